"""Compute the norm of every window of a picture about the window's own mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher.correlation.sums import window_energies
from matcher.types import Floats

_FLAT = 1e-13  # share of a window's power below which even exact sums leave nothing but rounding
_SINGLE = 1e-30, 1e30  # energies whose roots float32 can take


def window_norms(values: NDArray[Any], size: tuple[int, int]) -> Floats:
    """Compute the norm of every window about its mean, over all channels.

    Args:
        values: (C, H, W) pixels less a value near their mean, or just pixels if `fits_int32`.
        size: Height and width of a window.

    Returns:
        (H - h + 1, W - w + 1) float32; infinite where a window is flat.
    """
    energy, power = window_energies(values[0], size)
    for plane in values[1:]:
        more, squares = window_energies(plane, size)
        energy += more
        power += squares
    largest = max(abs(float(values.min())), abs(float(values.max())))
    most = size[0] * size[1] * len(values) * largest**2  # that a window's power can be
    single = energy.astype(np.float32) if most < _SINGLE[1] else energy
    if single.min() > max(_FLAT * most, _SINGLE[0]):
        return np.sqrt(single, out=single).astype(np.float32, copy=False)
    energy[energy <= _FLAT * power] = np.inf
    return np.sqrt(energy).astype(np.float32)
