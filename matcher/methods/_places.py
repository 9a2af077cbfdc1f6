"""Places in images: which lie inside, and where points of the caller's own are found."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matcher.types import Description, Mask, Matcher, Places, PointMatcher, Points


def ask(method: Matcher, pair: tuple[Description, Description], points0: Points) -> Places:
    """Ask a method where points (K, 2) of image 0 lie in image 1.

    Raises:
        ValueError: It matches only points that it finds itself.
    """
    if not isinstance(method, PointMatcher):
        raise ValueError("this method cannot be asked about given points; ncc and loftr can")
    return method.match_points(pair, points0)


def inside(points: Points, size: tuple[int, ...], mask: Mask | None) -> NDArray[np.bool_]:
    """Tell which (K, 2) points lie on a pixel of the image, and of its mask.

    Args:
        points: Pixels (x, y); NaN lies nowhere.
        size: Height and width, and what may follow.
        mask: (H, W), True where allowed; None for everywhere.
    """
    nearest = np.floor(points + 0.5)
    found: NDArray[np.bool_] = np.all(
        np.logical_and(nearest >= 0, nearest < [size[1], size[0]]), axis=1
    )
    if mask is not None:
        columns, rows = np.where(found[:, None], nearest, 0).astype(np.int64).T
        found &= mask[rows, columns]
    return found
