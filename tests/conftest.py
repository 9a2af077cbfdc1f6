"""Inputs that many tests share."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter


def texture(height: int, width: int, seed: int = 0, sigma: float = 1.5) -> NDArray[np.uint8]:
    """Make smoothed noise, 0 to 255: `tex` of the shared cases."""
    noise = np.random.default_rng(seed).normal(size=(height, width))
    smooth = gaussian_filter(noise, sigma, mode="wrap")
    low, high = smooth.min(), smooth.max()
    return ((smooth - low) / (high - low) * 255).astype(np.uint8)


@pytest.fixture(name="texture")
def texture_fixture():
    return texture


@pytest.fixture
def shifted_pair():
    """Two crops of one texture: (x, y) of the first is (x + dx, y + dy) of the second."""

    def make(height: int, width: int, dx: int, dy: int, seed: int = 0, sigma: float = 1.5):
        margin = max(abs(dx), abs(dy))
        large = texture(height + 2 * margin, width + 2 * margin, seed, sigma)
        image0 = large[margin : margin + height, margin : margin + width]
        image1 = large[margin - dy : margin - dy + height, margin - dx : margin - dx + width]
        return image0, image1

    return make
