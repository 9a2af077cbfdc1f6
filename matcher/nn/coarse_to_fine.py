"""What the networks of the LoFTR family share: their steps and the values between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from matcher.nn.streaming import CoarseMatches, Scores


@dataclass(frozen=True, eq=False)
class Maps:
    """What a network computes from one image alone.

    Attributes:
        coarse: (h, w, C) features of the cells, channels last.
        points: (h, w, 2) pixel (x, y) of the image that each cell stands for.
        priority: (h, w) how much a cell is worth looking at, in [0, 1]; None where all count alike.
        fine: (h', w', C') finer features, channels last; None for a network without them.
    """

    coarse: Tensor
    points: Tensor
    priority: Tensor | None = None
    fine: Tensor | None = None


@dataclass(frozen=True, eq=False)
class View:
    """One image as the context layers see it: a list of cells, without those that do not count.

    Attributes:
        tokens: (N, C) features of the cells.
        cells: (N, 2) int64 (column, row).
        points: (N, 2) float32 pixel (x, y) that each cell stands for.
        size: Height and width of the image in pixels.
        fine: As in `Maps`.
    """

    tokens: Tensor
    cells: Tensor
    points: Tensor
    size: tuple[int, int]
    fine: Tensor | None = None


class CoarseToFine(Protocol):
    """The steps of a network of this family; all work on one image or one pair."""

    stride: int  # pixels between cells
    centre: float  # pixel (x and y) of the middle of cell (0, 0)
    channels: int  # of the coarse features

    def describe(self, image: Tensor) -> Maps:
        """Compute the maps of a (1, 1, H, W) grey image in [0, 1]."""
        ...

    def describing_bytes(self, pixels: int) -> int:
        """Estimate the memory at the peak of `describe`, the maps that it returns included."""
        ...

    def held_bytes(self, pixels: int) -> int:
        """Estimate the memory of the maps of one image."""
        ...

    def relating_bytes(self, count0: int, count1: int) -> int:
        """Estimate the memory at the peak of the later steps, without blocks of scores."""
        ...

    def relate(self, view0: View, view1: View) -> tuple[Tensor, Tensor]:
        """Put the cells into the context of both images: (M, C) and (N, C)."""
        ...

    def score(self, tokens0: Tensor, tokens1: Tensor, budget: int) -> Scores:
        """Score all pairs of related cells with blocks of so many bytes."""
        ...

    def place(
        self, views: tuple[View, View], related: tuple[Tensor, Tensor], found: CoarseMatches
    ) -> tuple[Tensor, Tensor]:
        """Give (K, 2) sub-pixel places of coarse matches in both images."""
        ...

    def follow(
        self,
        views: tuple[View, View],
        related: tuple[Tensor, Tensor],
        found: CoarseMatches,
        points0: Tensor,
    ) -> Tensor:
        """Give the (K, 2) places in image 1 of points of image 0 that lie in matched cells."""
        ...


def cell_points(height: int, width: int, stride: int, device: torch.device) -> Tensor:
    """List the (height, width, 2) float32 top-left pixels (x, y) of the cells of a map."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([columns, rows], dim=-1).to(device, torch.float32) * stride
