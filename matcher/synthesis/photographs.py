"""Hold photographs on a device, and sample them at any place and scale without aliasing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from matcher import images
from matcher.types import Image

LEVELS = 4  # full size, half, quarter, eighth: views shrink a photograph by up to that much


@dataclass(frozen=True, eq=False)
class Photographs:
    """Photographs in one tensor.

    Attributes:
        levels: (N, C, S, S), (N, C, S / 2, S / 2), … uint8; each photograph lies in the upper left
            corner, its edge repeated beyond it.
        sizes: (N, 2) float32 width and height of the largest.
    """

    levels: tuple[Tensor, ...]
    sizes: Tensor

    def __len__(self) -> int:
        """Count them."""
        return len(self.sizes)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.sizes.device

    @classmethod
    def read(
        cls, paths: Sequence[str | Path], long_side: int = 640, *, colour: bool = False
    ) -> Photographs:
        """Read files.

        Args:
            paths: Of images.
            long_side: Larger ones are shrunk to it, in pixels.
            colour: Keep the colours, three channels; else grey, one.

        Raises:
            ValueError: There is none, or a file is no image.
            FileNotFoundError: A file is missing.
        """
        return cls.of([images.read(path) for path in paths], long_side, colour=colour)

    @classmethod
    def of(
        cls, pictures: Sequence[Image], long_side: int = 640, *, colour: bool = False
    ) -> Photographs:
        """Take images that are read already; see `read`."""
        if not pictures:
            raise ValueError("no photographs: pairs are made out of at least one")
        ready = [_ready(picture, long_side, colour) for picture in pictures]
        side = max(max(picture.shape[1:]) for picture in ready)
        pyramids = [_pyramid(_padded(picture, side)) for picture in ready]
        levels = tuple(torch.stack(level) for level in zip(*pyramids, strict=True))
        sizes = torch.tensor([picture.shape[:0:-1] for picture in ready], dtype=torch.float32)
        return cls(levels, sizes)

    def to(self, device: torch.device) -> Photographs:
        """Move them."""
        return Photographs(tuple(level.to(device) for level in self.levels), self.sizes.to(device))

    def chosen(self, rows: Tensor) -> Textures:
        """Choose the photographs of (B,) rows for sampling."""
        return Textures(tuple(level[rows] for level in self.levels), self.sizes[rows])


@dataclass(frozen=True, eq=False)
class Textures:
    """One photograph for each pair of a batch, at several sizes.

    Attributes:
        levels: (B, C, S, S), (B, C, S / 2, S / 2), … uint8.
        sizes: (B, 2) width and height of the largest.
    """

    levels: tuple[Tensor, ...]
    sizes: Tensor

    def of(self, rows: Tensor) -> Textures:
        """Keep the photographs of some pairs."""
        return Textures(tuple(level[rows] for level in self.levels), self.sizes[rows])

    def sample(self, places: Tensor, shrinking: Tensor) -> Tensor:
        """Look up pixels; beyond its edges a photograph is mirrored.

        Args:
            places: (B, H, W, 2) pixels of the photographs.
            shrinking: (B,) how many of their pixels a step of the view takes: it chooses between
                the levels, so that fine texture is averaged and not aliased.

        Returns:
            (B, C, H, W).
        """
        inside = _mirrored(places, self.sizes[:, None, None])
        level = shrinking.clamp_min(1e-6).log2().clamp(0, len(self.levels) - 1)
        shape = len(places), self.levels[0].shape[1], *places.shape[1:3]
        total = places.new_zeros(shape)
        for number, texture in enumerate(self.levels):
            weight = (1 - (level - number).abs()).clamp_min(0)
            rows = weight.nonzero().flatten()  # at most two levels are needed for each
            part = _look_up(texture[rows], inside[rows], 2**number)
            total.index_add_(0, rows, weight[rows, None, None, None] * part)
        return total

    def inside(self, places: Tensor) -> Tensor:
        """Tell which (B, H, W) of (B, H, W, 2) pixels lie on the photographs."""
        upper = self.sizes[:, None, None] - 0.5
        return ((places >= -0.5) & (places <= upper)).all(-1)


def _look_up(texture: Tensor, places: Tensor, step: int) -> Tensor:
    """Interpolate a level whose pixels are `step` of the finest apart."""
    height, width = texture.shape[2:]
    size = places.new_tensor([width, height])
    grid = (places + 0.5) / step / size * 2 - 1
    levels = texture.float()
    return F.grid_sample(levels, grid, padding_mode="border", align_corners=False) / 255


def _mirrored(places: Tensor, sizes: Tensor) -> Tensor:
    """Fold places beyond the edges back, as in a mirror that stands there."""
    period = 2 * sizes
    along = torch.remainder(places + 0.5, period)
    return torch.minimum(along, period - along) - 0.5


def _ready(picture: Image, long_side: int, colour: bool) -> Tensor:
    """Convert to (C, H, W) uint8."""
    kept = images.grey(picture) if not colour else picture
    if colour and kept.ndim == 2:
        kept = np.repeat(kept[:, :, None], 3, axis=2)
    if max(kept.shape[:2]) > long_side:
        kept = images.resize(kept, images.fit_long_side(kept.shape[:2], long_side))
    levels = torch.from_numpy(np.rint(kept.clip(0, 1) * 255).astype(np.uint8))
    return levels[None] if levels.ndim == 2 else levels.permute(2, 0, 1)


def _pyramid(finest: Tensor) -> list[Tensor]:
    """Halve a (C, S, S) uint8 picture again and again."""
    levels = [finest.float()]
    while len(levels) < LEVELS:
        levels.append(F.avg_pool2d(levels[-1], 2, ceil_mode=True, count_include_pad=False))
    return [level.round().to(torch.uint8) for level in levels]


def _padded(picture: Tensor, side: int) -> Tensor:
    """Repeat the last column and row up to a square."""
    height, width = picture.shape[1:]
    padded = F.pad(picture.float(), (0, side - width, 0, side - height), mode="replicate")
    return padded.to(torch.uint8)
