"""SIFT: RootSIFT descriptors, mutually nearest, with Lowe's ratio test from both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matcher import features
from matcher.methods._options import split
from matcher.methods._sparse import Nearest, NearestOptions, SparseMatcher


def build(
    *, device: str = "auto", weights: str | Path | None = "default", **options: Any
) -> SparseMatcher:
    """Make the method.

    Args:
        device: Where descriptors are compared; OpenCV finds them on the CPU.
        weights: Ignored: there are none.
        **options: Fields of `NearestOptions` and of `matcher.features.sift.Options`.
    """
    own, rest = split(NearestOptions, options, ratio=0.8)  # Lowe's
    return SparseMatcher(
        "sift", features.build("sift", weights=weights, **rest), Nearest(own, device)
    )
