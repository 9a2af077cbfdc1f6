"""Compute the norm of every window of a scene about the window's own mean."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

_BAND = 1 << 16  # values summed at once: fits the cache
# share of a window's power about the centre that its energy must exceed for an error of 1e-5 in the
# score: sums rounded to float32 err by some 4 units in the last place, and an error counts half
_ROUGH = 4 * 2.0**-24 / 1e-5
_FLAT = 1e-13  # the same share below which even exact sums leave nothing but rounding


def inverse_norms(values: Tensor, centre: float, size: tuple[int, int]) -> Tensor:
    """Compute one over the norm of every window about its mean.

    Args:
        values: (C, H, W) pixels.
        centre: A value near their mean, a whole number only if all pixels are whole.
        size: Height and width of a window.

    Returns:
        (H - h + 1, W - w + 1) float32; 0 where a window is flat.
    """
    (_, height, width), (h, w) = values.shape, size
    norms = empty(height - h + 1, width - w + 1)
    for top, windows in _window_sums(values, centre, size):
        torch.rsqrt(_energies(windows, h * w), out=norms[top : top + len(windows)])
    return norms


def empty(height: int, width: int) -> Tensor:
    """Allocate float32 memory through numpy, which asks for huge pages: these are quick to touch."""
    return torch.from_numpy(np.empty((height, width), np.float32))


def _energies(windows: Tensor, count: int) -> Tensor:
    """Sum squares about every window's mean, over all channels.

    Args:
        windows: (rows, 2, C, columns) sums of deviations from the centre, and of their squares.
        count: Pixels of a window.

    Returns:
        (rows, columns), float32 where that is precise, else float64; infinite for flat windows.
    """
    for dtype, share in ((torch.float32, _ROUGH), (torch.float64, _FLAT)):
        sums, squares = windows.to(dtype).unbind(1)
        energy = sum_channels(torch.addcmul(squares, sums, sums, value=-1 / count), 1)
        squares = sum_channels(squares, 1)
        if energy.min() > share * squares.max():
            return energy
    return energy.masked_fill_(energy <= _FLAT * squares, torch.inf)


def _window_sums(
    values: Tensor, centre: float, size: tuple[int, int]
) -> Iterator[tuple[int, Tensor]]:
    """Sum deviations and their squares over every window, some rows of windows at a time.

    Sums of columns grow by the row that enters and shrink by the one that leaves; differences of
    running sums across them are sums of windows. In int32 all may wrap round on the way.

    Yields:
        Number of the first row, and (rows, 2, C, W - w + 1) sums; later ones overwrite the memory.
    """
    (channels, height, width), (h, w) = values.shape, size
    dtype = _sum_dtype(values, centre, h * w)
    band = max(1, _BAND // (channels * width))
    entering, leaving = torch.zeros(2, band, channels, width, dtype=dtype)
    columns = torch.zeros(1 + band, 2, channels, width, dtype=dtype)
    running = torch.zeros(band, 2, channels, width + 1, dtype=dtype)  # the first column stays 0
    sums = torch.empty(band, 2, channels, width - w + 1, dtype=dtype)
    for top in range(0, height, band):
        count = min(band, height - top)
        _deviations(values[:, top : top + count], centre, entering[:count])
        unseen = min(max(h - top, 0), count)  # rows for which none leaves yet
        _deviations(values[:, top + unseen - h : top + count - h], centre, leaving[unseen:count])
        torch.sub(entering, leaving, out=columns[1:, 0])
        torch.mul(entering.add_(leaving), columns[1:, 0], out=columns[1:, 1])
        # row by row: torch sums along other axes than the last one column at a time
        for above, row in itertools.pairwise(columns[: 1 + count].flatten(1).numpy()):
            np.add(above, row, out=row)
        first = min(max(h - 1 - top, 0), count)
        torch.cumsum(columns[1:], -1, dtype=dtype, out=running[..., 1:])
        torch.sub(running[..., w:], running[..., :-w], out=sums)
        if first < count:
            yield top - h + 1 + first, sums[first:count]
        columns[0] = columns[count]


def _deviations(values: Tensor, centre: float, out: Tensor) -> None:
    """Write (C, rows, W) pixels less a constant as (rows, C, W)."""
    out.copy_(values.transpose(0, 1))
    out -= centre if out.is_floating_point() else int(centre)


def _sum_dtype(values: Tensor, centre: float, count: int) -> torch.dtype:
    """Choose what sums over so many pixels are exact in."""
    low, high = (float(v) - centre for v in values.aminmax())
    fits = max(low * low, high * high) * count < 2**31
    return torch.int32 if centre.is_integer() and fits else torch.float64


def sum_channels(values: Tensor, axis: int = 0) -> Tensor:
    """Sum over an axis; a single channel is not copied."""
    return values.select(axis, 0) if values.shape[axis] == 1 else values.sum(axis)
