"""Cameras, and the surfaces that they see: rectangles and hilly grounds with photographs on them.

Every surface answers for the rays of all pixels how deep it lies and which place of its photograph
is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from matcher.synthesis.photographs import Textures

FAR = 1e4  # distance of a ray that meets nothing
_MARCH = 12  # steps through the slab of all heights; hills are wider than a step
_CLOSING = 5  # then: below a hundredth of a pixel, tests/test_synthesis.py


@dataclass(frozen=True, eq=False)
class Cameras:
    """One camera for each pair of a batch.

    Attributes:
        intrinsics: (B, 3, 3).
        rotation: (B, 3, 3) camera from world.
        translation: (B, 3) likewise.
        size: Height and width of the images.
    """

    intrinsics: Tensor
    rotation: Tensor
    translation: Tensor
    size: tuple[int, int]

    @property
    def centre(self) -> Tensor:
        """Where the cameras are: (B, 3)."""
        return -torch.einsum("bji,bj->bi", self.rotation, self.translation)

    @property
    def world_from_pixel(self) -> Tensor:
        """Turn pixels (x, y, 1) into directions of depth one in the world: (B, 3, 3)."""
        inverse: Tensor = torch.linalg.inv(self.intrinsics)
        return self.rotation.mT @ inverse

    def project(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Give pixels (B, H, W, 2) and depths (B, H, W) of points (B, 3, H, W) of the world."""
        height, width = points.shape[2:]
        seen = torch.baddbmm(self.translation[..., None], self.rotation, points.flatten(2))
        depth = seen[:, 2]
        pixels = (self.intrinsics[:, :2] @ seen) / depth[:, None].clamp_min(1e-6)
        return pixels.mT.reshape(-1, height, width, 2), depth.reshape(-1, height, width)


@dataclass(frozen=True, eq=False)
class Meeting:
    """Where the rays of all pixels meet a surface.

    Attributes:
        depth: (B, H, W) along the optical axis; FAR where they miss it.
        places: (B, H, W, 2) pixels of the photograph on it.
    """

    depth: Tensor
    places: Tensor


class Surface(Protocol):
    """Something in a scene."""

    @property
    def textures(self) -> Textures:
        """Give what is on it."""
        ...

    @property
    def scale(self) -> Tensor:
        """Give the (B,) pixels of the photograph a unit of the scene."""
        ...

    def meet(self, cameras: Cameras) -> Meeting:
        """Follow the rays of all pixels."""
        ...


@dataclass(frozen=True, eq=False)
class Board:
    """A rectangle with a photograph on it, which fills its larger side.

    Attributes:
        centre: (B, 3).
        axes: (B, 3, 3) unit vectors in rows: along its width, its height, its normal.
        half: (B, 2) half of width and height.
        textures: What is on it.
    """

    centre: Tensor
    axes: Tensor
    half: Tensor
    textures: Textures

    @property
    def scale(self) -> Tensor:
        """Give the pixels of the photograph a unit."""
        return (self.textures.sizes / 2 / self.half).amin(1)

    def meet(self, cameras: Cameras) -> Meeting:
        """Meet the plane inside the rectangle, from its front or its back, by its homography.

        A ray from o along d meets the plane after (c - o) n / d n; its place there, times d n, is
        linear in d, and d is linear in the pixel.
        """
        away = self.centre - cameras.centre
        right, down, normal = self.axes.unbind(1)
        height = (away * normal).sum(1, keepdim=True)  # (B, 1)
        rows = [
            height * axis - (away * axis).sum(1, keepdim=True) * normal for axis in (right, down)
        ]
        linear = torch.stack([*rows, normal], 1) @ cameras.world_from_pixel  # (B, 3, 3)
        along, across, towards = each_pixel(linear, cameras.size).unbind(1)
        inverse = 1 / towards.where(towards.abs() > 1e-6, towards.new_tensor(1e-6))
        depth = height[..., None] * inverse
        places = torch.stack([along * inverse, across * inverse], -1)  # (B, H, W, 2)
        inside = (places.abs() <= self.half[:, None, None]).all(-1) & (depth > 1e-3)
        middle = (self.textures.sizes[:, None, None] - 1) / 2
        return Meeting(
            depth.where(inside, depth.new_tensor(FAR)),
            places * self.scale[:, None, None, None] + middle,
        )


@dataclass(frozen=True, eq=False)
class Relief:
    """A ground z = `away` with smooth hills and hollows towards and away from camera 0.

    Attributes:
        away: (B,) z of the flat ground.
        hills: (B, K, 4) each one's x, y, width and height.
        scale: (B,) pixels of the photograph a unit.
        textures: What lies on the ground, seen along z.
    """

    away: Tensor
    hills: Tensor
    scale: Tensor
    textures: Textures

    def meet(self, cameras: Cameras) -> Meeting:
        """March in equal steps to the first crossing, and close in on it by false position."""
        origin, rays = cameras.centre, each_pixel(cameras.world_from_pixel, cameras.size)
        start, stop = self._limits(origin, rays)
        stride = (stop - start) / _MARCH
        before = self._above(origin, rays, start)
        found = torch.zeros_like(start, dtype=torch.bool)
        low, above, below = start, before, before
        for number in range(1, _MARCH + 1):
            after = self._above(origin, rays, start + number * stride)
            crossed = (before > 0) & (after <= 0) & ~found
            low = torch.where(crossed, start + (number - 1) * stride, low)
            above, below = torch.where(crossed, before, above), torch.where(crossed, after, below)
            found |= crossed
            before = after
        depth = self._close_in(origin, rays, (low, low + stride), (above, below))
        middle = (self.textures.sizes[:, None, None] - 1) / 2
        x, y, _ = self._along(origin, rays, depth)
        places = torch.stack([x, y], -1) * self.scale[:, None, None, None] + middle
        return Meeting(depth.where(found, depth.new_tensor(FAR)), places)

    def _close_in(
        self,
        origin: Tensor,
        rays: Tensor,
        bracket: tuple[Tensor, Tensor],
        gaps: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Halve the gap of an end that stays, so that both ends move (the Illinois rule)."""
        (low, high), (above, below) = bracket, gaps
        for _ in range(_CLOSING):
            depth = low + (high - low) * above / (above - below).clamp_min(1e-9)
            gap = self._above(origin, rays, depth)
            under = gap <= 0
            low, above = torch.where(under, low, depth), torch.where(under, above / 2, gap)
            high, below = torch.where(under, depth, high), torch.where(under, gap, below / 2)
        return low + (high - low) * above / (above - below).clamp_min(1e-9)

    def _above(self, origin: Tensor, rays: Tensor, depth: Tensor) -> Tensor:
        """Measure how far above the ground places along the rays are, along z."""
        x, y, z = self._along(origin, rays, depth)
        total = self.away[:, None, None] - z
        for hill in self.hills.unbind(1):
            right, down, width, height = hill[:, :, None, None].unbind(1)
            across, along = x - right, y - down
            squared = across.mul_(across).addcmul_(along, along)
            total.addcmul_(height, squared.mul_(-0.5 / (width * width)).exp_(), value=-1)
        return total

    def _along(self, origin: Tensor, rays: Tensor, depth: Tensor) -> tuple[Tensor, ...]:
        """Give x, y, z of places on rays: (B, H, W) each."""
        return tuple(origin[:, axis, None, None] + depth * rays[:, axis] for axis in range(3))

    def _limits(self, origin: Tensor, rays: Tensor) -> tuple[Tensor, Tensor]:
        """Bound the depths between which a ray can meet the ground: the slab of all its heights."""
        tallest = self.hills[..., 3].abs().sum(1)[:, None, None] + 0.01
        down = rays[:, 2].clamp_min(1e-3)
        gap = self.away[:, None, None] - origin[:, 2, None, None]
        return ((gap - tallest) / down).clamp_min(0), ((gap + tallest) / down).clamp(max=FAR / 10)


def each_pixel(linear: Tensor, size: tuple[int, int]) -> Tensor:
    """Apply (B, 3, 3) maps to the (x, y, 1) of all pixels: (B, 3, H, W)."""
    height, width = size
    x = torch.arange(width, device=linear.device, dtype=linear.dtype)
    y = torch.arange(height, device=linear.device, dtype=linear.dtype)
    right, down, still = linear[..., None, None].unbind(2)  # (B, 3, 1, 1)
    return right * x + (down * y[:, None] + still)
