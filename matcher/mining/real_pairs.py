"""Batches of real pairs for training, cut out of mined photographs with their measured places."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from matcher import images
from matcher.local_maps import inverse_2x2
from matcher.mining.pair_file import Collection, MinedPair, load_pairs
from matcher.synthesis.homographies import transform
from matcher.synthesis.photographs import Photographs
from matcher.synthesis.views import TwoViews, pixel_grid, within
from matcher.types import Image

_REACH = 6  # pixels round a match over which its local map holds: the matches of a grid of 8 leave no gap
_DISC = sorted(
    (
        (x, y)
        for x in range(-_REACH, _REACH + 1)
        for y in range(-_REACH, _REACH + 1)
        if math.hypot(x, y) <= _REACH
    ),
    key=lambda step: -math.hypot(*step),
)
_CROP = (0.6, 1.0)  # share of the largest part of the view's shape
_TURN_DEGREES = 10.0  # standard deviation
_SHIFT = 0.3  # of a view, at most, in halves of its size


class RealPair(NamedTuple):
    """A pair as it was mined, at the long side of its `RealPairs`.

    Attributes:
        image0: (H0, W0) uint8 grey.
        image1: (H1, W1) uint8 grey.
        points0: (N, 2) float32 pixels of image 0.
        points1: (N, 2) float32 pixels of image 1. A place without a match is unknown, not unmatched.
    """

    image0: Tensor
    image1: Tensor
    points0: Tensor
    points1: Tensor


class RealPairs:
    """The pairs of a file that `matcher mine` wrote, for training or for validation.

    Args:
        source: The file, or the collection itself.
        held_out: Only those kept for validation; else only the others.
        long_side: Larger photographs are shrunk to it, in pixels.
        min_confidence: Matches below it are left out.
        device: Where photographs and matches lie.

    Raises:
        FileNotFoundError: The file or a photograph is missing.
        ValueError: It is no such file; no pair is left; or a photograph has another size than when it was mined.
    """

    def __init__(
        self,
        source: str | Path | Collection,
        *,
        held_out: bool = False,
        long_side: int = 640,
        min_confidence: float = 0.0,
        device: str | torch.device = "cpu",
    ) -> None:
        collection = source if isinstance(source, Collection) else load_pairs(source)
        pairs = [pair for pair in collection.pairs if pair.held_out == held_out]
        if not pairs:
            kind = "held out" if held_out else "for training"
            raise ValueError(f"no pair of the {len(collection.pairs)} is {kind}")
        used = sorted({row for pair in pairs for row in (pair.image0, pair.image1)})
        pictures = {row: _read(collection, row) for row in used}
        self.device = torch.device(device)
        self.photographs = Photographs.of(list(pictures.values()), long_side).to(self.device)
        slots = {row: slot for slot, row in enumerate(used)}
        scales = {}
        for row, (width, height) in zip(used, self.photographs.sizes.tolist(), strict=True):
            scales[row] = (width / collection.sizes[row][1], height / collection.sizes[row][0])
        placed = [_placed(pair, slots, scales, min_confidence) for pair in pairs]
        self._pairs = [pair.to(self.device) for pair in placed if pair is not None]
        if not self._pairs:
            raise ValueError(f"no match has a confidence of {min_confidence:g}")

    def __len__(self) -> int:
        """Count the pairs."""
        return len(self._pairs)

    def __getitem__(self, row: int) -> RealPair:
        """Give a pair as it was mined."""
        pair = self._pairs[row]
        image0, image1 = (self._photograph(slot) for slot in (pair.slot0, pair.slot1))
        return RealPair(image0, image1, pair.points0, pair.points1)

    def draw(self, count: int, size: tuple[int, int], random: torch.Generator) -> TwoViews:
        """Cut views out of random pairs, round a random match of each, with some turn and scale of their own.

        Args:
            count: Pairs.
            size: Height and width of the views.
            random: Of the device of the pairs.

        Returns:
            Pairs of views; `complete` is False, as a pixel without a place is unknown.
        """
        rows = torch.randint(len(self), (count,), generator=random, device=random.device).tolist()
        pairs = [self._pairs[row] for row in rows]
        chance = torch.rand(count, generator=random, device=random.device).tolist()
        matches = [
            int(share * len(pair.points0)) for share, pair in zip(chance, pairs, strict=True)
        ]
        sides = [pairs, [pair.swapped() for pair in pairs]]
        maps = []
        for side in sides:
            anchors = [pair.points0[match] for pair, match in zip(side, matches, strict=True)]
            maps.append(self._round(_slots(side), torch.stack(anchors), size, random))
        places = [
            torch.stack([_places(*each, size) for each in zip(side, here, there, strict=True)])
            for side, here, there in zip(sides, maps, maps[::-1], strict=True)
        ]
        image0, image1 = (
            self._view(_slots(side), shown, size) for side, shown in zip(sides, maps, strict=True)
        )
        complete = torch.zeros(count, dtype=torch.bool, device=self.device)
        return TwoViews(image0, image1, places[0], places[1], complete)

    def _photograph(self, slot: int) -> Tensor:
        width, height = self.photographs.sizes[slot].int().tolist()
        return self.photographs.levels[0][slot, 0, :height, :width]

    def _round(
        self, slots: Tensor, anchors: Tensor, size: tuple[int, int], random: torch.Generator
    ) -> Tensor:
        """Draw (B, 3, 3) maps from pixels of views to pixels of photographs, round (B, 2) places."""
        sizes, view = self.photographs.sizes[slots], anchors.new_tensor([size[1], size[0]])
        dice = torch.rand((len(slots), 3), generator=random, device=random.device)
        step = (sizes / view).amin(1) * (_CROP[0] + (_CROP[1] - _CROP[0]) * dice[:, 0])
        half = step[:, None] * view / 2
        centre = anchors + 0.5 + _SHIFT * (2 * dice[:, 1:] - 1) * half
        centre = torch.minimum(torch.maximum(centre, half), sizes - half) - 0.5
        angle = torch.randn(len(slots), generator=random, device=random.device)
        angle = math.radians(_TURN_DEGREES) * angle
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1)
        linear = step[:, None, None] * turn.reshape(-1, 2, 2)
        maps = torch.eye(3, device=self.device).repeat(len(slots), 1, 1)
        maps[:, :2, :2] = linear
        maps[:, :2, 2] = centre - linear @ ((view - 1) / 2)
        return maps

    def _view(self, slots: Tensor, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """Show photographs through maps: (B, 1, H, W)."""
        grid = pixel_grid(*size, self.device).expand(len(slots), -1, -1, -1)
        steps = maps[:, :2, 0].norm(dim=1)
        return self.photographs.chosen(slots).sample(transform(maps, grid), steps)


@dataclass(frozen=True, eq=False)
class _Placed:
    """Matches of two photographs in pixels of these as they are held.

    Attributes:
        slot0: Of the photograph that image 0 is.
        slot1: Likewise.
        points0: (N, 2).
        points1: (N, 2).
        linear1_from_0: (N, 2, 2).
    """

    slot0: int
    slot1: int
    points0: Tensor
    points1: Tensor
    linear1_from_0: Tensor

    def to(self, device: torch.device) -> _Placed:
        """Move them."""
        tensors = (self.points0, self.points1, self.linear1_from_0)
        return _Placed(self.slot0, self.slot1, *(tensor.to(device) for tensor in tensors))

    def swapped(self) -> _Placed:
        """Exchange the images."""
        linear = inverse_2x2(self.linear1_from_0)
        return _Placed(self.slot1, self.slot0, self.points1, self.points0, linear)


def _read(collection: Collection, row: int) -> Image:
    """Read a photograph, and refuse one that cannot be the one that was mined."""
    path, size = collection.images[row], collection.sizes[row]
    image = images.read(path)
    if image.shape[:2] != size:
        height, width = image.shape[:2]
        raise ValueError(
            f"{path} is {width} x {height} pixels; when it was mined it had {size[1]} x {size[0]}"
        )
    return images.grey(image)


def _placed(
    pair: MinedPair,
    slots: Mapping[int, int],
    scales: Mapping[int, tuple[float, float]],
    least: float,
) -> _Placed | None:
    """Move a pair's sure matches to photographs that were shrunk by scales of (x, y); None without any."""
    sure = pair.confidence >= least
    if not sure.any():
        return None
    scale0, scale1 = (np.array(scales[row]) for row in (pair.image0, pair.image1))
    points0, points1 = (
        ((points[sure] + 0.5) * scale - 0.5).astype(np.float32)
        for points, scale in ((pair.points0, scale0), (pair.points1, scale1))
    )
    linear = pair.linear1_from_0[sure] * (scale1[:, None] / scale0).astype(np.float32)
    tensors = (torch.from_numpy(array) for array in (points0, points1, linear))
    return _Placed(slots[pair.image0], slots[pair.image1], *tensors)


def _slots(pairs: Sequence[_Placed]) -> Tensor:
    """List (B,) photographs of image 0."""
    device = pairs[0].points0.device
    return torch.tensor([pair.slot0 for pair in pairs], device=device)


def _places(
    pair: _Placed, photo0_from_0: Tensor, photo1_from_1: Tensor, size: tuple[int, int]
) -> Tensor:
    """Find the (H, W, 2) places in view 1 of the pixels of view 0; NaN where no match is near or it is outside."""
    grid = pixel_grid(*size, photo0_from_0.device)
    pixels0 = transform(photo0_from_0[None], grid[None])[0]  # (H, W, 2) of photograph 0
    match = _nearest(pair.points0, pixels0)
    step0 = pixels0 - pair.points0[match]
    pixels1 = pair.points1[match] + (pair.linear1_from_0[match] @ step0[..., None])[..., 0]
    places = transform(torch.linalg.inv(photo1_from_1)[None], pixels1[None])[0]
    known = (match >= 0) & within(places, *size)
    return places.where(known[..., None], math.nan)


def _nearest(points: Tensor, pixels: Tensor) -> Tensor:
    """Find for (H, W, 2) places the row of the nearest of (N, 2) points, to half a pixel; -1 beyond the reach."""
    origin = points.amin(0).floor() - 2 * _REACH
    width, height = (points.amax(0) - origin).ceil().int().add(2 * _REACH).tolist()
    owner = torch.full((height, width), -1, device=points.device)
    x, y = (points - origin).round().long().unbind(1)
    rows = torch.arange(len(points), device=points.device)
    for step_x, step_y in _DISC:  # from afar, so that the nearest has the last word
        owner[y + step_y, x + step_x] = rows
    last = origin.new_tensor([width - 1, height - 1])
    column, row = torch.minimum((pixels - origin).round().clamp_min(0), last).long().unbind(-1)
    return owner[row, column]
