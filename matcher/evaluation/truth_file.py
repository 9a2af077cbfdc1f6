"""Read the truth of one pair of images from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from matcher import datasets
from matcher.reading import read_npy, read_text
from matcher.types import Homography, Matrix, Truth


def read_truth(path: str | Path, image0: str | Path, image1: str | Path) -> Truth:
    """Read what is known of two image files.

    Args:
        path: A benchmark's manifest (.json, .txt pair list) that has the pair; or a homography
            pixels1_from_pixels0 as nine numbers in text, three a line, or as a 3 x 3 .npy.
        image0: File of image 0.
        image1: File of image 1.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It has neither nine numbers nor the pair, or knows nothing of the pair.
    """
    path = Path(path)
    if path.suffix == ".json":
        return _of_pair(path, image0, image1)
    if path.suffix == ".npy":
        numbers = read_npy(path)
    else:
        try:
            numbers = _table(read_text(path))
        except ValueError:
            return _of_pair(path, image0, image1)
    if numbers.dtype.kind not in "iuf" or numbers.shape != (3, 3) or not np.isfinite(numbers).all():
        raise ValueError(f"{path} must have (3, 3) finite numbers, not {numbers.shape}")
    return Homography(numbers.astype(np.float64))


def _table(text: str) -> Matrix:
    """Read rows of numbers; what follows a # is a comment."""
    rows = [line.partition("#")[0].split() for line in text.splitlines()]
    return np.array([row for row in rows if row], np.float64)


def _of_pair(manifest: Path, image0: str | Path, image1: str | Path) -> Truth:
    wanted = Path(image0).resolve(), Path(image1).resolve()
    for pair in datasets.benchmark(manifest):
        if (pair.image0.resolve(), pair.image1.resolve()) == wanted and pair.truth is not None:
            return pair.truth
    raise ValueError(f"{manifest} has no truth of {image0} and {image1} in this order")
