"""Transform pictures, padded with zeros to sizes that transform fast."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import fft

Spectrum = NDArray[np.complexfloating[Any, Any]]


def fast_size(size: tuple[int, ...]) -> tuple[int, int]:
    """Enlarge a height and a width to the next that transform fast."""
    height, width = (cast(int, fft.next_fast_len(side, real=True)) for side in size)
    return height, width


def transform(pictures: NDArray[np.floating[Any]], size: tuple[int, int]) -> Spectrum:
    """Transform real (..., h, w) pictures, padded to (H, W): (..., H, W // 2 + 1), in their precision."""
    return cast(Spectrum, fft.rfft2(pictures, size))


def transform_back(spectra: Spectrum, size: tuple[int, int]) -> NDArray[np.floating[Any]]:
    """Undo `transform`: (..., H, W)."""
    return cast("NDArray[np.floating[Any]]", fft.irfft2(spectra, size))
