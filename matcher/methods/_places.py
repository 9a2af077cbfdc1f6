"""Tell which places lie in an image, the same for every way a method runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matcher.types import Mask, Points


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
