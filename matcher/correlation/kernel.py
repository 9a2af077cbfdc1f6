"""Make a template ready to be correlated: weights, zero mean, unit norm."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from matcher.correlation.fourier import transform
from matcher.types import Matrix

Pixels: TypeAlias = NDArray[Any]  # (H, W) or (H, W, C), any real dtype and range


@dataclass(frozen=True, eq=False)
class Kernel:
    """A template made ready to be correlated.

    Attributes:
        pattern: (C, h, w) float64, weighted, zero mean in every channel, unit norm; zeros for a flat template.
        weights: (h, w) float64 in [0, 1], or None where all pixels count alike.
        spread: (C, h, w) float64 deviation from the mean, scaled like `pattern` but without weights.
        flat: True where the template has no contrast and so no score.
    """

    pattern: NDArray[np.float64]
    weights: NDArray[np.float64] | None
    spread: NDArray[np.float64]
    flat: bool

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pattern.shape[1], self.pattern.shape[2]

    @functools.cached_property
    def peak(self) -> float:
        """Largest magnitude of the spectrum of a channel."""
        return float(np.abs(transform(self.pattern, self.size)).max())

    @functools.cached_property
    def reach(self) -> float:
        """Sum of magnitudes of the pattern, which no magnitude of its spectrum exceeds."""
        return float(np.abs(self.pattern).sum())


def make_kernel(template: Pixels, mask: NDArray[np.generic] | None = None) -> Kernel:
    """Remove the mean of every channel and scale to unit norm, under the mask's weights.

    Args:
        template: (h, w) or (h, w, C), any range; NaN and infinite pixels get weight 0.
        mask: (h, w) weights of any range, 0 or more, True or the largest for full weight; None for all alike.

    Raises:
        ValueError: The mask has another size, a negative weight, or no weight at all.
    """
    channels = channels_first(template)
    valid = np.asarray(np.isfinite(channels).all(axis=0))
    weights = weights_of(valid, mask)
    channels = channels if valid.all() else np.where(valid, channels, 0.0)
    total = float(valid.size) if weights is None else float(weights.sum())
    spread = channels - _weighted(channels, weights).sum(axis=(1, 2), keepdims=True) / total
    norm = math.sqrt(float((_weighted(spread, weights) * spread).sum()))
    level = float(np.abs(channels[:, weights > 0] if weights is not None else channels).max())
    flat = norm <= 1e-7 * level * math.sqrt(total)  # float32 rounds a constant by that much
    spread = np.zeros_like(spread) if flat else spread / norm
    return Kernel(_weighted(spread, weights), weights, spread, flat)


def channels_first(pixels: Pixels, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Turn (H, W) or (H, W, C) into (C, H, W)."""
    if pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise ValueError(f"pixels must be (H, W) or (H, W, C) and not empty, not {pixels.shape}")
    planes = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)
    return np.ascontiguousarray(planes, dtype)


def weights_of(valid: NDArray[np.bool_], mask: NDArray[np.generic] | None) -> Matrix | None:
    """Bring the weights of a template's pixels to [0, 1]; None where all count alike.

    Args:
        valid: (h, w) True where pixels are finite; the others get 0.
        mask: As in `make_kernel`, which says what is raised.
    """
    if not valid.any():
        raise ValueError("the template has no finite pixel")
    if mask is None:
        return None if valid.all() else valid.astype(np.float64)
    weights = np.asarray(mask, np.float64)
    if weights.shape != valid.shape:
        raise ValueError(f"mask must be {valid.shape} like the template, not {weights.shape}")
    if not (weights >= 0).all() or not np.isfinite(weights).all():
        raise ValueError("mask must hold weights of 0 or more, or booleans")
    weights = np.where(valid, weights, 0.0)
    largest = weights.max()
    if largest == 0:
        raise ValueError("mask leaves no pixel of the template")
    return None if (weights == largest).all() else weights / largest


def _weighted(values: Matrix, weights: Matrix | None) -> Matrix:
    return values if weights is None else values * weights
