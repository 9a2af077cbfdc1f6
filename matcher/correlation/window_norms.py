"""Compute the norm of every window of a picture about the window's own mean."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher.correlation.sums import energies, window_sums
from matcher.correlation.workspace import Workspace
from matcher.types import Floats

_FLAT = 1e-13  # share of a window's power below which even exact sums leave nothing but rounding
_SINGLE = 1e-30, 1e30  # energies whose roots float32 can take


class WindowNorms:
    """Norms of the windows of a picture about their means, worked out for some rows at a time."""

    def __init__(self, values: NDArray[Any], size: tuple[int, int], space: Workspace) -> None:
        """Sum the windows.

        Args:
            values: (C, H, W) pixels less a value near their mean; bytes as they are.
            size: Height and width of a window.
            space: Where the sums are kept; its next use ends that of the norms.
        """
        self._space = space
        self._planes = [window_sums(v, size, space, plane) for plane, v in enumerate(values)]
        self._count = size[0] * size[1]
        largest = max(abs(float(values.min())), abs(float(values.max())))
        self._most = self._count * len(values) * largest**2  # that a window's power can be

    def __getitem__(self, rows: slice) -> Floats:
        """Return the norms of some rows of windows over all channels.

        Returns:
            (rows, W - w + 1) float32; infinite where a window is flat.
        """
        sums = [plane(rows) for plane in self._planes]
        if self._most < _SINGLE[1]:
            rounded = self._energies(sums, np.float32)
            if rounded.min() > max(_FLAT * self._most, _SINGLE[0]):
                return np.asarray(np.sqrt(rounded, out=rounded))
        power = functools.reduce(np.add, [squares for _, squares in sums])
        energy = self._energies(sums, np.float64)
        energy[energy <= _FLAT * power] = np.inf
        return np.asarray(np.sqrt(energy), np.float32)

    def _energies(
        self, sums: list[tuple[NDArray[Any], NDArray[Any]]], dtype: type[np.floating[Any]]
    ) -> NDArray[np.floating[Any]]:
        """Sum squares about the means over all channels."""
        return functools.reduce(
            np.add, [energies(*each, self._count, dtype, self._space) for each in sums]
        )
