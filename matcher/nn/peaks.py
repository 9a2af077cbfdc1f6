"""Find local maxima of a score map, their places below the pixel, and those that are one corner."""

from __future__ import annotations

import functools
import itertools

import torch
import torch.nn.functional as F
from torch import Tensor


def highest_near(scores: Tensor, window: int) -> Tensor:
    """Give each pixel the highest score of the window round it, cut off at the map's edges.

    The same as `max_pool2d` with stride 1, but by maxima of shifted rows and columns, which a CPU does
    several times as fast.

    Args:
        scores: (..., H, W).
        window: Odd side of the window, in pixels.

    Raises:
        ValueError: The window is even.
    """
    if window % 2 == 0:
        raise ValueError(f"window must be odd, not {window}")
    for axis in (-1, -2):
        edges = [0, 0, 0, 0]
        edges[2 * (-1 - axis)] = edges[2 * (-1 - axis) + 1] = window // 2
        padded = F.pad(scores, edges, value=-torch.inf)
        length = scores.shape[axis]
        shifted = [padded.narrow(axis, start, length) for start in range(window)]
        scores = functools.reduce(torch.maximum, shifted)
    return scores


def below_pixel(chances: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Tell how far beside their pixels maxima of a map lie: the mean of the pixels round each.

    Each of the 3 x 3 pixels counts by the root of its chance, since networks name one pixel more
    surely than they know it. Where a maximum lies between pixels, that halves the error of its place.

    Args:
        chances: (H, W), 0 or more.
        rows: (N,) of the maxima.
        columns: (N,) likewise.

    Returns:
        (N, 2) steps in x and y of less than half a pixel: the nearest pixel stays the same.
    """
    weights = F.pad(chances[None, None], (1, 1, 1, 1), mode="replicate")[0, 0].sqrt()
    steps = torch.arange(3, device=chances.device)
    near = weights[(rows[:, None] + steps)[:, :, None], (columns[:, None] + steps)[:, None]]
    total = near.sum((1, 2)).clamp_min(1e-12)  # near: (N, 3, 3)
    x, y = near[:, :, 2] - near[:, :, 0], near[:, 2] - near[:, 0]
    return (torch.stack([x.sum(1), y.sum(1)], 1) / total[:, None]).clamp(-0.499, 0.499)


def strongest_nearby(chances: Tensor, points: Tensor, apart: float) -> Tensor:
    """Tell which cells' points have no likelier point of a neighbouring cell near them.

    A corner beside the edge of a cell is often the likeliest point of both cells; in one of them it
    is only the slope of the other's peak.

    Args:
        chances: (..., h, w) of the cells' points, 0 or more.
        points: (..., h, w, 2) pixels.
        apart: Points less than so many pixels apart, in x and in y, are near.

    Returns:
        (..., h, w) bool.
    """
    height, width = chances.shape[-2:]
    likelier = F.pad(chances, (1, 1, 1, 1), value=-1.0)
    places = F.pad(points, (0, 0, 1, 1, 1, 1))
    strongest = torch.ones_like(chances, dtype=torch.bool)
    for row, column in itertools.product(range(3), range(3)):
        rows, columns = slice(row, row + height), slice(column, column + width)
        near = ((places[..., rows, columns, :] - points).abs() < apart).all(-1)
        strongest = strongest & ~(near & (likelier[..., rows, columns] > chances))
    return strongest
