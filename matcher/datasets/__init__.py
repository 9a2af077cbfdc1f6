"""Benchmarks: pairs of images with what is known of them, checked before they are used."""

from __future__ import annotations

from pathlib import Path

from matcher.datasets.fingerprints import Fingerprint, fingerprint, pair_key
from matcher.datasets.layouts import LAYOUTS, load_layout
from matcher.datasets.lists import load_pair_list
from matcher.datasets.manifest import load_pairs, sample_pairs
from matcher.types import Pair

__all__ = [
    "LAYOUTS",
    "Fingerprint",
    "benchmark",
    "fingerprint",
    "load_layout",
    "load_pair_list",
    "load_pairs",
    "pair_key",
    "sample_pairs",
]


def benchmark(name_or_path: str | Path) -> list[Pair]:
    """Load "sample", a manifest (.json, .toml) or a pair list (.txt).

    Raises:
        FileNotFoundError: There is no such file, or images are missing; the message lists them.
        ValueError: An entry is wrong; the message names file, entry and key.
    """
    if str(name_or_path) == "sample":
        return sample_pairs()
    path = Path(name_or_path)
    return load_pair_list(path) if path.suffix == ".txt" else load_pairs(path)
