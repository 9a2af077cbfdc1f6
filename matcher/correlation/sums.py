"""Sum over every window of a picture: its squares about the mean, its products with a pattern.

OpenCV does so fastest, where it is installed; numpy and scipy take about twice as long for the same
sums.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matcher.correlation.fourier import fast_size, transform, transform_back
from matcher.correlation.workspace import Workspace
from matcher.types import Floats, Matrix

# Gives the sums of some rows of windows, and those of squares.
WindowSums: TypeAlias = Callable[[slice], tuple[NDArray[Any], NDArray[Any]]]

# A window begins at its pixel, sums are no means, and what lies beyond the picture is 0.
_WHOLE: Mapping[str, Any] = {"anchor": (0, 0), "normalize": False, "borderType": 0}


@functools.cache
def opencv() -> ModuleType | None:
    """Import OpenCV; None where it is not installed, or misses libraries of the system."""
    try:
        return importlib.import_module("cv2")
    except ImportError:
        return None


def sliding_products(picture: Floats, pattern: Floats, out: Floats | None = None) -> Floats:
    """Sum the products of a pattern with every window, in float32.

    Args:
        picture: (H, W) float32.
        pattern: (h, w) float32.
        out: (H - h + 1, W - w + 1) float32, contiguous: may be used for the result.

    Returns:
        (H - h + 1, W - w + 1) float32.
    """
    cv2 = opencv()
    if cv2 is None:
        return exact_products(picture, pattern)
    products: Floats = cv2.matchTemplate(picture, pattern, cv2.TM_CCORR, out)
    return products


def exact_products(
    picture: NDArray[np.floating[Any]],
    pattern: NDArray[np.floating[Any]],
) -> NDArray[np.floating[Any]]:
    """Sum the same products by Fourier transforms, in the precision of what is given."""
    rows, columns = (p - k + 1 for p, k in zip(picture.shape, pattern.shape, strict=True))
    size = fast_size(picture.shape)
    spectrum = transform(picture, size) * transform(pattern, size).conj()
    return transform_back(spectrum, size)[:rows, :columns]


def window_sums(
    values: NDArray[Any], size: tuple[int, int], space: Workspace, plane: int = 0
) -> WindowSums:
    """Sum every window's values, and their squares; exact for whole numbers.

    Args:
        values: (H, W) uint8, float32 or float64.
        size: Height and width of a window.
        space: Where the sums are kept.
        plane: Number of these values among those that are kept there.

    Returns:
        What gives both for some rows of windows: (rows, W - w + 1) int32 or float64.
    """
    cv2 = opencv()
    if cv2 is None:
        exact = values.astype(np.float64)
        both = _running(exact, size), _running(np.square(exact), size)
        return lambda rows: (both[0][rows], both[1][rows])
    small, area = values.dtype == np.uint8, math.prod(size)
    tables = small and area * 255**2 >= 2**31  # which a box filter's int32 overflows
    shape = tuple(side + tables for side in values.shape)  # a table begins with zeros
    whole = {"sums": small and area * 255 < 2**31, "squares": small and not tables}
    sums, squares = (
        space.array(f"{name} of plane {plane}", shape, np.int32 if fits else np.float64)
        for name, fits in whole.items()
    )
    if tables:
        depth = cv2.CV_32S if whole["sums"] else cv2.CV_64F
        cv2.integral2(values, sums, squares, depth, cv2.CV_64F)
        return lambda some: (_corners(sums, size, some), _corners(squares, size, some))
    depth = cv2.CV_32S if small else cv2.CV_64F
    cv2.boxFilter(values, depth, size[::-1], sums, **_WHOLE)
    cv2.sqrBoxFilter(values, depth, size[::-1], squares, **_WHOLE)
    rows, columns = (slice(v - k + 1) for v, k in zip(values.shape, size, strict=True))
    return lambda some: (sums[rows, columns][some], squares[rows, columns][some])


def _corners(table: NDArray[Any], size: tuple[int, int], rows: slice) -> NDArray[Any]:
    """Sum over windows by the four corners of each in a table of sums from the first pixel on."""
    first, stop, _ = rows.indices(len(table) - size[0])
    strips: NDArray[Any] = table[first + size[0] : stop + size[0]] - table[first:stop]
    sums: NDArray[Any] = strips[:, size[1] :] - strips[:, : -size[1]]
    return sums


def energies(
    sums: NDArray[Any],
    squares: NDArray[Any],
    count: int,
    dtype: type[np.floating[Any]],
    space: Workspace,
) -> NDArray[np.floating[Any]]:
    """Sum squares about the means: squares - sums^2 / count, of windows of so many values.

    Args:
        sums: (rows, columns) of the values.
        squares: Likewise, of their squares.
        count: Of the values in a window.
        dtype: What the result is rounded to, float32 or float64; it is computed in float64.
        space: Where they are computed.

    Returns:
        (rows, columns), 0 or a little less where all values are the same.
    """
    cv2 = opencv()
    if cv2 is None:
        return np.asarray(squares - np.square(sums) / count, dtype)
    means = space.array("energies", sums.shape, np.float64)
    cv2.multiply(sums, sums, means, -1 / count, cv2.CV_64F)
    depth = cv2.CV_32F if dtype == np.float32 else cv2.CV_64F
    exact: NDArray[np.floating[Any]] = cv2.add(means, squares, dtype=depth)
    return exact


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
