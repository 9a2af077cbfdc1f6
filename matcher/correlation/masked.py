"""Score a tile under weights of the template's pixels and validity of the scene's, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher.correlation.fourier import Spectrum, fast_size, transform, transform_back
from matcher.correlation.kernel import Kernel
from matcher.types import Matrix

_FLAT = 1e-13  # share of a window's power below which its variance is rounding
_LEAST_SEEN = 0.5 - 1e-9  # share of the weights: half of them, however their sums are rounded


@dataclass(frozen=True, eq=False)
class Powers:
    """What masked scores need of a tile.

    Attributes:
        pixels: (C, Ny, Nx // 2 + 1) complex128 transform of the deviations.
        squares: Likewise of their squares.
        size: Height and width of the transform, (Ny, Nx).
        noise: What rounding may add to a sum of squares, per unit norm of the weights.
    """

    pixels: Spectrum
    squares: Spectrum
    size: tuple[int, int]
    noise: float


def powers_of(deviations: Matrix) -> Powers:
    """Transform a tile of (C, ny, nx) deviations and their squares."""
    size = fast_size(deviations.shape[1:])
    squares = np.square(deviations)
    noise = 1e3 * float(np.finfo(np.float64).eps * np.linalg.norm(squares))
    return Powers(transform(deviations, size), transform(squares, size), size, noise)


def masked_scores(tile: Powers, valid: NDArray[np.bool_] | None, kernel: Kernel) -> Matrix:
    """Score every place of a template in a tile.

    Args:
        tile: Transform of the tile's pixels, and of their squares.
        valid: (ny, nx) bool where some pixels of the tile are invalid (their value is 0).
        kernel: The template.

    Returns:
        (Ny, Nx) scores; 0 where a window is flat or sees less than half of the weight.

    Source: Padfield, IEEE Transactions on Image Processing 21 (2012), with weights in place of sets.
    """
    size, pattern = tile.size, kernel.pattern
    mask = np.ones(kernel.size) if kernel.weights is None else kernel.weights
    products = _correlate(tile.pixels, pattern, size)  # (C, Ny, Nx)
    sums, squares = (_correlate(each, mask[None], size) for each in (tile.pixels, tile.squares))
    total: NDArray[np.floating[Any]] | float = float(mask.sum())
    norm: NDArray[np.floating[Any]] = np.ones((1, 1))
    if valid is not None:
        there = transform(valid[None].astype(np.float64), size)
        seen = np.maximum(_correlate(there, mask[None], size), 1e-6 * total)
        means = _correlate(there, pattern, size) / seen
        products = products - means * sums
        square = pattern * kernel.spread
        norm = (_correlate(there, square, size) - np.square(means) * seen).sum(0)
        norm[(norm <= _FLAT) | (seen[0] < _LEAST_SEEN * total)] = np.inf
        total = seen
    energy = (squares - np.square(sums) / total).sum(0)  # (Ny, Nx)
    flat = energy <= tile.noise * float(np.linalg.norm(mask)) + squares.sum(0) * _FLAT
    energy[flat] = np.inf
    scores: Matrix = products.sum(0) / np.sqrt(energy * norm)
    return scores


def _correlate(
    spectrum: Spectrum, pattern: Matrix, size: tuple[int, int]
) -> NDArray[np.floating[Any]]:
    """Correlate transformed tiles (C or 1, Ny, Nx // 2 + 1) with a real pattern (C or 1, h, w)."""
    return transform_back(spectrum * transform(pattern, size).conj(), size)
