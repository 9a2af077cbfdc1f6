"""Say what a benchmark was made of: counts, sizes, cameras, and a hash of everything."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from matcher.decoding import open_image, orientation
from matcher.types import Pair, TwoView


@dataclass(frozen=True)
class Fingerprint:
    """What a benchmark was made of, to see at a glance whether two runs had the same data.

    Attributes:
        pairs: Number of pairs.
        images: Number of different image files.
        sizes: (width, height) of the smallest and of the largest readable image, by pixels.
        focal_lengths: Smallest and largest in pixels; None where no pair is calibrated.
        sha256: Of names, truths and image files, in the order of the pairs.
    """

    pairs: int
    images: int
    sizes: tuple[tuple[int, int], tuple[int, int]]
    focal_lengths: tuple[float, float] | None
    sha256: str


def fingerprint(pairs: Sequence[Pair]) -> Fingerprint:
    """Summarise and hash pairs with their files.

    Raises:
        ValueError: There are no pairs.
    """
    if not pairs:
        raise ValueError("a benchmark needs at least one pair")
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(pair_key(pair).encode())
    paths = {path for pair in pairs for path in (pair.image0, pair.image1)}
    sizes = sorted(_known_sizes(paths), key=lambda size: size[0] * size[1]) or [(0, 0)]
    truths = [pair.truth for pair in pairs if isinstance(pair.truth, TwoView)]
    focal = [K[i, i] for t in truths for K in (t.intrinsics0, t.intrinsics1) for i in (0, 1)]
    return Fingerprint(
        len(pairs),
        len(paths),
        (sizes[0], sizes[-1]),
        (float(min(focal)), float(max(focal))) if focal else None,
        digest.hexdigest(),
    )


def pair_key(pair: Pair) -> str:
    """Hash a pair's name, truth and image files: another hash is another pair."""
    digest = hashlib.sha256(f"{pair.group}\0{pair.name}\0{type(pair.truth).__name__}".encode())
    for _, value in sorted(vars(pair.truth).items()) if pair.truth else ():
        digest.update(np.ascontiguousarray(value).tobytes())
    if any(pair.turns):
        digest.update(f"turns {pair.turns}".encode())
    for path in (pair.image0, pair.image1):
        digest.update(path.read_bytes() if path.is_file() else b"missing")
    return digest.hexdigest()


def image_size(path: Path) -> tuple[int, int]:
    """Read (width, height) of the upright image from the file's header.

    Raises:
        OSError: The file is missing or cannot be read.
        ImageError: It is no image.
    """
    with path.open("rb") as file, open_image(file) as image:
        turned = orientation(image) >= 5
        return (image.height, image.width) if turned else (image.width, image.height)


def _known_sizes(paths: Iterable[Path]) -> Iterator[tuple[int, int]]:
    """Read the sizes of those files that are images."""
    for path in paths:
        with suppress(OSError, ValueError):
            yield image_size(path)
