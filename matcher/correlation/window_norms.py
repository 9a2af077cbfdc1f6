"""Compute the norm of every window of a picture about the window's own mean."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher.correlation.sums import energies, window_sums
from matcher.correlation.tiles import ROWS
from matcher.types import Floats

_FLAT = 1e-13  # share of a window's power below which even exact sums leave nothing but rounding
_SINGLE = 1e-30, 1e30  # energies whose roots float32 can take


def window_norms(values: NDArray[Any], size: tuple[int, int]) -> Floats:
    """Compute the norm of every window about its mean, over all channels.

    Args:
        values: (C, H, W) pixels less a value near their mean; bytes as they are.
        size: Height and width of a window.

    Returns:
        (H - h + 1, W - w + 1) float32; infinite where a window is flat.
    """
    rows, columns = (v - k + 1 for v, k in zip(values.shape[1:], size, strict=True))
    count, planes = size[0] * size[1], [window_sums(plane, size) for plane in values]
    largest = max(abs(float(values.min())), abs(float(values.max())))
    most = count * len(planes) * largest**2  # that a window's power can be
    norms = np.empty((rows, columns), np.float32)
    for first in range(0, rows, ROWS):
        some = slice(first, min(first + ROWS, rows))
        sums = [of(some) for of in planes]
        energy = functools.reduce(np.add, [energies(*each, count) for each in sums])
        target = norms[some]
        if most < _SINGLE[1]:
            np.copyto(target, energy, casting="same_kind")
            if target.min() > max(_FLAT * most, _SINGLE[0]):
                np.sqrt(target, out=target)
                continue
        power = functools.reduce(np.add, [squares for _, squares in sums])
        energy[energy <= _FLAT * power] = np.inf
        np.sqrt(energy, out=target, casting="same_kind")
    return norms
