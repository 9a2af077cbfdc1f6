"""Tell where products in float32 are too coarse for a score."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from matcher.correlation.kernel import Kernel
from matcher.types import Floats

_TOLERANCE = 1e-5  # largest error of a score that float32 products may cause
_ROUNDING = 4 * 2.0**-23  # their error over their root mean square, see tests


class Precision:
    """The precision of a tile's float32 products with a template.

    Their rounding spreads evenly over the tile: its root mean square is about the precision of a
    number times theirs, which is at most the peak of the pattern's spectrum times the tile's power.
    """

    def __init__(self, kernel: Kernel, deviations: Floats) -> None:
        """Measure the power of a tile: (C, H, W) pixels less a value near their mean."""
        self._kernel = kernel
        self._power = math.sqrt(float(np.vdot(deviations, deviations)) / deviations[0].size)

    def too_coarse(self, norms: Floats) -> NDArray[np.bool_] | None:
        """Return where the scores of windows of these norms are not sure to 1e-5; None for nowhere."""
        smallest = norms.min()
        most = self._least(self._kernel.reach)  # no less than that of the peak, and cheaper
        if smallest >= most:
            return None
        least = self._least(self._kernel.peak)
        return None if smallest >= least else norms < least

    def _least(self, peak: float) -> float:
        """Tell how small a window's norm may be."""
        return _ROUNDING / _TOLERANCE * peak * self._power
