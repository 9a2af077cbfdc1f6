"""Turn images by quarter turns, and points of turned images back."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from matcher.types import Points

_Value = TypeVar("_Value", bound=np.generic)


def turned(pixels: NDArray[_Value], turns: int) -> NDArray[_Value]:
    """Turn an image or a mask counter-clockwise, as one sees it, as `np.rot90` does.

    Args:
        pixels: (H, W) or (H, W, C).
        turns: Quarter turns; negative ones go clockwise.

    Returns:
        The image itself where nothing turns, else a copy in memory order.
    """
    return np.rot90(pixels, turns).copy() if turns % 4 else pixels


def turned_back(points: Points, turns: int, size: tuple[int, int]) -> Points:
    """Move points of a turned image to the image as it was.

    Args:
        points: (N, 2) pixels (x, y) after the turn.
        turns: Quarter turns that `turned` made.
        size: Height and width before them.

    Returns:
        (N, 2) float32 pixels before them.
    """
    x, y = points.T
    right, bottom = size[1] - 1, size[0] - 1
    before = ((x, y), (right - y, x), (right - x, bottom - y), (y, bottom - x))[turns % 4]
    return np.stack(before, axis=1).astype(np.float32)
