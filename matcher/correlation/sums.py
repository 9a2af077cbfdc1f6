"""Sum over every window of a picture: its squares about the mean, its products with a pattern.

OpenCV does so fastest, where it is installed; numpy and scipy take about twice as long for the same
sums.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher.correlation.fourier import fast_size, transform, transform_back
from matcher.types import Floats, Matrix

# A window begins at its pixel, sums are no means, and what lies beyond the picture is 0.
_WHOLE: Mapping[str, Any] = {"anchor": (0, 0), "normalize": False, "borderType": 0}


@functools.cache
def opencv() -> ModuleType | None:
    """Import OpenCV; None where it is not installed, or misses libraries of the system."""
    try:
        return importlib.import_module("cv2")
    except ImportError:
        return None


def sliding_products(picture: Floats, pattern: Floats) -> Floats:
    """Sum the products of a pattern with every window, in float32.

    Args:
        picture: (H, W) float32.
        pattern: (h, w) float32.

    Returns:
        (H - h + 1, W - w + 1) float32.
    """
    cv2 = opencv()
    if cv2 is None:
        return exact_products(picture, pattern)
    products: Floats = cv2.matchTemplate(picture, pattern, cv2.TM_CCORR)
    return products


def exact_products(
    picture: NDArray[np.floating[Any]], pattern: NDArray[np.floating[Any]]
) -> NDArray[np.floating[Any]]:
    """Sum the same products by Fourier transforms, in the precision of what is given."""
    rows, columns = (p - k + 1 for p, k in zip(picture.shape, pattern.shape, strict=True))
    size = fast_size(picture.shape)
    spectrum = transform(picture, size) * transform(pattern, size).conj()
    return transform_back(spectrum, size)[:rows, :columns]


def fits_int32(dtype: np.dtype[Any], size: tuple[int, int]) -> bool:
    """Tell whether pixels are bytes, and int32 holds the sum of their squares over a window."""
    return dtype == np.uint8 and size[0] * size[1] * 255**2 < 2**31


def window_energies(values: NDArray[Any], size: tuple[int, int]) -> tuple[Matrix, NDArray[Any]]:
    """Sum the squares of every window about its own mean, and about 0; exact for whole numbers.

    Args:
        values: (H, W) float32 or float64, or uint8 where `fits_int32`.
        size: Height and width of a window.

    Returns:
        (H - h + 1, W - w + 1) float64, and the same of int32 or float64.
    """
    share, cv2 = -1 / (size[0] * size[1]), opencv()
    if cv2 is None:
        exact = values.astype(np.float64)
        sums, squares = _running(exact, size), _running(np.square(exact), size)
        return squares + share * np.square(sums), squares
    rows, columns = (v - k + 1 for v, k in zip(values.shape, size, strict=True))
    depth = cv2.CV_32S if values.dtype == np.uint8 else cv2.CV_64F
    sums = cv2.boxFilter(values, depth, size[::-1], **_WHOLE)
    squares = cv2.sqrBoxFilter(values, depth, size[::-1], **_WHOLE)
    energy = cv2.multiply(sums, sums, scale=share, dtype=cv2.CV_64F)
    energy = cv2.add(energy, squares, energy, dtype=cv2.CV_64F)
    return energy[:rows, :columns], squares[:rows, :columns]


def _running(values: Matrix, size: tuple[int, int]) -> Matrix:
    """Sum over windows by differences of running sums, first down the columns, then along rows."""
    for axis, length in enumerate(size):
        before = [(0, 0), (0, 0)]
        before[axis] = 1, 0
        total = np.pad(values, before).cumsum(axis)
        enters, leaves = [slice(None)] * 2, [slice(None)] * 2
        enters[axis], leaves[axis] = slice(length, None), slice(None, -length)
        values = total[tuple(enters)] - total[tuple(leaves)]
    return values
