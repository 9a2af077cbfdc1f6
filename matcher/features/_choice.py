"""Choose the keypoints to keep among those that a detector found, by the same rules for all."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from matcher import images as pictures
from matcher.types import Floats, Image, Mask, Points

_CELL = 4  # pixels, half the side of the windows whose contrast is measured


@dataclass(frozen=True)
class Choice:
    """Rules of what to keep.

    Attributes:
        max_keypoints: The best are kept, equal ones in the detector's order; None keeps all.
        border: No keypoint has x or y below it, nor at or above the size less it, in pixels.
        min_contrast: Least standard deviation of the grey values in one of the 8 × 8 pixel windows
            near the keypoint. Learned detectors normalise the image first, and would else find
            keypoints in sensor noise: 1.5 of 255 grey levels is above noise of one level.
    """

    max_keypoints: int | None = 1024
    border: int = 4
    min_contrast: float = 1.5 / 255

    def __post_init__(self) -> None:
        if self.max_keypoints is not None and self.max_keypoints < 0:
            raise ValueError(f"max_keypoints must be at least 0, not {self.max_keypoints}")
        if self.border < 0:
            raise ValueError(f"border must be at least 0, not {self.border}")

    def rows(
        self, points: Points, scores: Floats, image: Image, mask: Mask | None
    ) -> NDArray[np.int64]:
        """Choose among (N, 2) points with (N,) scores: their rows, best first.

        Args:
            points: Pixels of `image`.
            scores: Higher is better.
            image: (H, W) or (H, W, 3).
            mask: (H, W), True where keypoints are allowed; the best are counted after masking.
        """
        height, width = image.shape[:2]
        upper = np.array([width, height]) - self.border
        keep = ((points >= self.border) & (points < upper)).all(axis=1)
        columns, rows = np.clip(np.rint(points), 0, [width - 1, height - 1]).astype(np.int64).T
        if mask is not None:
            keep &= mask[rows, columns]
        if self.min_contrast > 0:
            keep &= contrast_at(points, pictures.grey(image)) >= self.min_contrast
        kept = np.flatnonzero(keep)
        order = np.argsort(-scores[kept], kind="stable")
        return kept[order[: self.max_keypoints]]


def contrast_at(points: Points, image: Image) -> Floats:
    """Measure the contrast (N,) of a grey image (H, W) near points (N, 2): see `Choice.min_contrast`."""
    height, width = image.shape
    columns, rows = np.clip(np.rint(points), 0, [width - 1, height - 1]).astype(np.int64).T
    near: Floats = _contrast(image)[rows // _CELL, columns // _CELL]
    return near


def _contrast(image: Image) -> Floats:
    """Measure the highest standard deviation of 8 x 8 pixel windows near each 4 x 4 pixel cell.

    Windows lie four pixels apart, so no edge falls between all of them.
    """
    height, width = image.shape
    padded = np.pad(image, ((0, -height % _CELL), (0, -width % _CELL)), mode="edge")
    mean = _over_squares(_pooled(padded), np.add, (1, 0)) / 4
    square = _over_squares(_pooled(padded**2), np.add, (1, 0)) / 4
    deviation: Floats = np.sqrt(_over_squares(square - mean**2, np.maximum, (2, 2)).clip(0))
    return deviation


def _pooled(image: Image) -> NDArray[np.floating[Any]]:
    """Take the means of cells."""
    rows = functools.reduce(np.add, (image[i::_CELL] for i in range(_CELL)))
    sums: NDArray[np.floating[Any]] = functools.reduce(
        np.add, (rows[:, i::_CELL] for i in range(_CELL))
    )
    return sums / _CELL**2


def _over_squares(
    cells: NDArray[np.floating[Any]], add: np.ufunc, reach: tuple[int, int]
) -> NDArray[np.floating[Any]]:
    """Reduce over the square of cells from so many before to so many after; edges are repeated.

    As SciPy's filters, which take several times as long on maps as small as these.
    """
    width = sum(reach) + 1
    for axis in (0, 1):
        padded = np.pad(cells, [reach if i == axis else (0, 0) for i in (0, 1)], mode="edge")
        shifted = sliding_window_view(padded, width, axis)  # (rows, columns, width)
        cells = functools.reduce(add, np.moveaxis(shifted, -1, 0))
    return cells
