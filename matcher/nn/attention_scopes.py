"""Say which keys a query may see: a table of neighbours, or a soft window added to the scores.

Tokens lie on a grid in row-major order: a sequence of N tokens is the grid (N,), a feature map is
(H, W). Tables hold -1 where a neighbour would lie outside.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

Grid = tuple[int, ...]


def grid_places(grid: Grid, device: torch.device | None = None) -> Tensor:
    """List the coordinates of all tokens: (N, axes) float32, rows before columns."""
    axes = [torch.arange(size, device=device, dtype=torch.float32) for size in grid]
    return torch.cartesian_prod(*axes).reshape(-1, len(grid))


def window_table(grid: Grid, radius: int) -> Tensor:
    """List the tokens at most `radius` away along every axis: (N, (2 radius + 1)^axes) int64."""
    places = grid_places(grid).long()  # (N, axes)
    steps = grid_places((2 * radius + 1,) * len(grid)).long() - radius  # (K, axes)
    near = places[:, None] + steps  # (N, K, axes)
    sizes = torch.tensor(grid)
    inside = ((near >= 0) & (near < sizes)).all(2)
    strides = torch.tensor([math.prod(grid[axis + 1 :]) for axis in range(len(grid))])
    return torch.where(inside, (near * strides).sum(2), -1)


def strided_table(count: int, stride: int) -> Tensor:
    """List each token's block of `stride`, and one token of every other block: (N, K) int64.

    With stride √N these are about 2 √N keys a query, and any two tokens are two steps apart.

    Source: Child et al., Generating Long Sequences with Sparse Transformers, 2019, section 4.3.
    """
    token = torch.arange(count)[:, None]
    block = token // stride * stride + torch.arange(stride)  # (N, stride)
    others = torch.arange(math.ceil(count / stride)) * stride + token % stride  # (N, blocks)
    others = others.masked_fill(others == token, -1)  # it is in its own block already
    table = torch.cat([block, others], 1)
    return table.masked_fill(table >= count, -1)


class PredictedWindow(nn.Module):
    """A Gaussian window round a place that the query predicts.

    The window multiplies the weights before they are made to sum to one; in the paper it does so
    after, and they no longer do.

    Source: Luong et al., Effective Approaches to Attention-based NMT, EMNLP 2015, section 3.2.
    """

    def __init__(
        self, channels: int, heads: int = 1, deviation: float = 4.0, axes: int = 1
    ) -> None:
        super().__init__()
        self.deviation = deviation
        self.hidden = nn.Parameter(torch.randn(heads, channels, channels) / channels**0.5)
        self.place = nn.Parameter(torch.randn(heads, channels, axes) / channels**0.5)

    def centres(self, query: Tensor, grid: Grid) -> Tensor:
        """Predict the (B, heads, M, axes) centres, within the grid."""
        share = torch.sigmoid(torch.tanh(query @ self.hidden) @ self.place)
        last = torch.tensor(grid, device=query.device, dtype=query.dtype) - 1
        return share * last

    def forward(self, query: Tensor, grid: Grid) -> Tensor:
        """Find what to add to the scores of (B, heads, M, C) queries: (B, heads, M, N)."""
        places = grid_places(grid, query.device).to(query.dtype)  # (N, axes)
        return _gaussian(places - self.centres(query, grid)[..., None, :], 0.5 / self.deviation**2)


class RelativeWindow(nn.Module):
    """A Gaussian window at a learned offset from the query's own place, one offset a head.

    As the sharpness grows, a head reads exactly one neighbour, and k × k heads make a convolution.

    Source: Cordonnier et al., On the Relationship between Self-Attention and Convolutional Layers,
    ICLR 2020, theorem 1.
    """

    def __init__(self, offsets: Tensor, sharpness: float = 1.0) -> None:
        """Begin with (heads, axes) offsets; the score falls by sharpness times squared distance."""
        super().__init__()
        self.offsets = nn.Parameter(offsets.clone())
        self.sharpness = nn.Parameter(torch.full((len(offsets),), sharpness))

    def forward(self, query: Tensor, grid: Grid) -> Tensor:
        """Find what to add to the scores of tokens on one grid: (1, heads, N, N)."""
        places = grid_places(grid, query.device).to(query.dtype)
        between = places - places[:, None]  # (N, N, axes), from query to key
        apart = between - self.offsets[:, None, None]  # (heads, N, N, axes)
        return _gaussian(apart, self.sharpness[:, None, None])[None]


def _gaussian(apart: Tensor, sharpness: Tensor | float) -> Tensor:
    """Take the logarithm of a Gaussian of (..., axes) distances."""
    return -sharpness * apart.square().sum(-1)
