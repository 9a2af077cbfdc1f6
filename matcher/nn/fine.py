"""Fine windows: gather them from a feature map, and read a place out of scores in one."""

from __future__ import annotations

import torch
from torch import Tensor

from matcher.shapes import check_shape


def windows(features: Tensor, centres: Tensor, side: int) -> Tensor:
    """Gather square windows; only what is asked for is read, and zeros stand outside the map.

    Args:
        features: (H, W, C), channels last so that a cell is one run of memory.
        centres: (K, 2) int64 (column, row) of the middle cells; they may lie outside.
        side: Odd number of cells along a side.

    Returns:
        (K, side * side, C), rows first.

    Raises:
        ValueError: An even side, or centres that are not pairs.
    """
    if side % 2 == 0:
        raise ValueError(f"side must be odd so that a window has a middle, not {side}")
    check_shape("centres", centres, "K 2")
    height, width, _ = features.shape
    columns, rows = (centres[:, None, :] + offsets(side, centres.device)).unbind(
        -1
    )  # (K, side * side)
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    flat = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    gathered = features.flatten(0, 1)[flat]  # (K, side * side, C)
    return gathered if bool(inside.all()) else gathered * inside[..., None]


def offsets(side: int, device: torch.device) -> Tensor:
    """List (side * side, 2) int64 steps (column, row) from a window's middle, rows first."""
    steps = torch.arange(side, device=device) - side // 2
    rows, columns = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack([columns, rows], dim=-1).flatten(0, 1)


def expected_offset(scores: Tensor, side: int) -> Tensor:
    """Take the mean step from the middle of a window, weighted by the softmax of its scores.

    Args:
        scores: (K, side * side).
        side: Odd number of cells along a side.

    Returns:
        (K, 2) (x, y) in cells, between -(side // 2) and side // 2.
    """
    weights = torch.softmax(scores.float(), dim=-1)
    return (weights[..., None] * offsets(side, scores.device)).sum(1)  # float32 in any precision
