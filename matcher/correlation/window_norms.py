"""Compute the norm of every window of a scene about the window's own mean."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

_BAND = 1 << 18  # values summed at once: fits the cache and bounds memory
# share of a window's power about the centre that its energy must exceed for float32 sums: these
# err by some 8 units in the last place, and half of that share is the error of a score, 1e-5
_ROUGH_SHARE = 4 * 2.0**-23 / 1e-5
_FLAT = 1e-13  # the same share below which even exact sums leave nothing but rounding


def inverse_norms(values: Tensor, centre: float, size: tuple[int, int]) -> Tensor:
    """Compute one over the norm of every window about its mean.

    Float32 sums serve until a window turns up whose contrast is faint beside its distance from the
    centre; from there on sums are exact (int32 for 8-bit pictures) or float64.

    Args:
        values: (C, H, W) pixels.
        centre: A value near their mean, a whole number only if all pixels are whole.
        size: Height and width of a window.

    Returns:
        (H - h + 1, W - w + 1) float32; 0 where a window is flat.
    """
    (_, height, width), (h, w) = values.shape, size
    low, high = (float(v) - centre for v in values.aminmax())
    largest = max(low * low, high * high) * h * w  # no sum of squares exceeds it
    exact = centre.is_integer() and largest < 2**31
    energies = torch.empty(height - h + 1, width - w + 1, dtype=torch.float32)
    done = _fill_energies(energies, values, centre, size, torch.float32)
    if done < len(energies):
        dtype = torch.int32 if exact else torch.float64
        _fill_energies(energies[done:], values[:, done:], centre, size, dtype)
    return energies.rsqrt_()


def _fill_energies(
    energies: Tensor, values: Tensor, centre: float, size: tuple[int, int], dtype: torch.dtype
) -> int:
    """Sum squares about every window's mean, infinite for flat windows, while that is precise.

    Returns:
        How many rows are filled: all, unless sums in float32 turned out too rough.
    """
    single = dtype == torch.float32
    share = _ROUGH_SHARE if single else _FLAT
    for top, windows in _window_sums(values, centre, size, dtype):
        skipped = max(0, -top)
        sums, squares = windows[:, :, skipped:].to(dtype if single else torch.float64)
        energy = sum_channels(torch.addcmul(squares, sums, sums, value=-1 / math.prod(size)))
        squares = sum_channels(squares)
        if energy.min() <= share * squares.max():
            faint = energy <= share * squares
            if single and bool(faint.any()):
                return top + skipped
            energy.masked_fill_(faint, torch.inf)
        energies[top + skipped : top + skipped + len(energy)] = energy
    return len(energies)


def _window_sums(
    values: Tensor, centre: float, size: tuple[int, int], dtype: torch.dtype
) -> Iterator[tuple[int, Tensor]]:
    """Sum deviations and their squares over every window, some rows of windows at a time.

    Running sums start anew every window length: a window is the rest of one run and the start of
    the next, so that its sums do not feel what lies far away.
    Source: van Herk, Pattern Recognition Letters 13 (1992), with sums in place of maxima.

    Yields:
        Number of the first row (rows before 0 mean nothing), and (2, C, rows, W - w + 1) sums, of
        which later ones overwrite the memory.
    """
    (channels, height, width), (h, w) = values.shape, size
    band = h * max(1, _BAND // (channels * width * h))
    powers = torch.zeros(2, channels, band, _multiple(width, w), dtype=dtype)
    runs = torch.zeros(2, channels, band + h, width - w + 1, dtype=dtype)
    sums = torch.empty(2, channels, band, width - w + 1, dtype=dtype)
    blocks = torch.unflatten(runs, 2, (-1, h))
    for top in range(0, height, band):
        count = min(band, height - top)
        rows, deviation = values[:, top : top + count], powers[0, :, :count, :width]
        if dtype == torch.float32:
            torch.sub(rows, centre, out=deviation)
        else:  # rows may be of a narrower type, which the difference must not be rounded to
            deviation.copy_(rows).sub_(centre if dtype == torch.float64 else int(centre))
        powers[0, :, count:] = 0
        torch.mul(powers[0], powers[0], out=powers[1])
        _sum_across(powers, w, out=runs[:, :, h:])
        # row by row: torch sums along other axes than the last one column at a time
        for above, row in itertools.pairwise(blocks[:, :, 1:].unbind(3)):
            row.add_(above)
        torch.sub(runs[:, :, h:], runs[:, :, :band], out=sums)
        torch.unflatten(sums, 2, (-1, h)).add_(blocks[:, :, :-1, -1:])
        yield top - h + 1, sums[:, :, :count]
        runs[:, :, :h] = runs[:, :, band:]


def _sum_across(values: Tensor, side: int, out: Tensor) -> None:
    """Sum every `side` neighbours of a row, whose length is a multiple of `side`."""
    blocks = torch.unflatten(values, -1, (-1, side)).cumsum(-1, dtype=values.dtype)
    runs, totals = blocks.flatten(-2), blocks[..., -1]
    out[..., 0] = runs[..., side - 1]
    rest = out[..., 1:]
    length = rest.shape[-1]
    torch.sub(runs[..., side : side + length], runs[..., :length], out=rest)
    whole = length // side
    inside = torch.unflatten(rest[..., : whole * side], -1, (whole, side))
    inside.add_(totals[..., :whole, None])
    rest[..., whole * side :].add_(totals[..., whole, None])


def sum_channels(values: Tensor) -> Tensor:
    """Sum over the first axis; a single channel is not copied."""
    return values[0] if len(values) == 1 else values.sum(0)


def _multiple(length: int, side: int) -> int:
    return -(-length // side) * side
