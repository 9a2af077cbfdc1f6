"""Find local maxima of a score map."""

from __future__ import annotations

import functools

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
