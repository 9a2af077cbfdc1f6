"""Pairs of views of scenes in space: planes and relief that hide each other, textured by photographs.

Camera 0 sits at the origin and looks along z, x to the right and y down. Every surface answers for
a ray how far along it lies; the nearest one is seen. Distances are in units of the scene: what
camera 0 looks at is about 1 away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from matcher.synthesis.photographs import Photographs, Textures
from matcher.synthesis.surfaces import FAR, Board, Cameras, Relief, Surface, each_pixel
from matcher.synthesis.views import TwoViews, within

_SAME = 0.01  # share of the depth by which two views of one point of a surface may differ


@dataclass(frozen=True)
class Config:
    """How scenes and cameras differ; spreads are standard deviations of normal distributions."""

    boards: int = 4  # planes of limited size before the ground
    relief: float = 0.5  # share of scenes whose ground has hills
    view_degrees: float = 15.0  # of the way round the scene from camera 0 to camera 1
    turn_degrees: float = 10.0  # round the line of sight
    zoom_octaves: float = 0.3  # of the distance
    focal: tuple[float, float] = (0.7, 1.4)  # in widths of the image


@dataclass(frozen=True, eq=False)
class Seen:
    """What cameras see.

    Attributes:
        image: (B, C, H, W).
        depth: (B, H, W) along the optical axis; FAR where there is nothing.
    """

    image: Tensor
    depth: Tensor


def draw(
    photographs: Photographs,
    count: int,
    size: tuple[int, int],
    random: torch.Generator,
    config: Config | None = None,
) -> tuple[TwoViews, tuple[Cameras, Cameras], tuple[Seen, Seen]]:
    """Make pairs.

    Args:
        photographs: On the device that the pairs shall be on.
        count: Pairs.
        size: Height and width of the views.
        random: Of the same device.
        config: How scenes and cameras differ.

    Returns:
        The pairs, their cameras, and what each sees with its depth.
    """
    config = config or Config()
    cameras = _cameras(count, size, random, config)
    surfaces = _surfaces(photographs, count, random, config)
    camera0, camera1 = cameras
    seen0, seen1 = look(camera0, surfaces), look(camera1, surfaces)
    places0 = _places((camera0, camera1), (seen0, seen1))
    places1 = _places((camera1, camera0), (seen1, seen0))
    complete = torch.ones(count, dtype=torch.bool, device=random.device)
    views = TwoViews(seen0.image, seen1.image, places0, places1, complete)
    return views, cameras, (seen0, seen1)


def look(cameras: Cameras, surfaces: list[Surface]) -> Seen:
    """Render what cameras see of surfaces: the nearest along each pixel's ray; black where none is."""
    meetings = [surface.meet(cameras) for surface in surfaces]
    depth, nearest = torch.stack([meeting.depth for meeting in meetings]).min(0)
    pixel = 1 / cameras.intrinsics[:, 0, 0]  # width of a pixel at depth one
    channels = surfaces[0].textures.levels[0].shape[1]
    image = depth.new_zeros(len(depth), channels, *cameras.size)
    for number, (surface, meeting) in enumerate(zip(surfaces, meetings, strict=True)):
        mine = (nearest == number) & (depth < FAR)
        rows = mine.flatten(1).any(1).nonzero().flatten()
        step = (pixel * surface.scale * _median(depth, mine))[rows]
        colour = surface.textures.of(rows).sample(meeting.places[rows], step)
        image[rows] = torch.where(mine[rows, None], colour, image[rows])
    return Seen(image, depth)


def _median(depth: Tensor, mine: Tensor) -> Tensor:
    """Take the median (B,) of the depths of some pixels; one where there are none."""
    thin = depth.where(mine, depth.new_tensor(math.nan))[:, ::4, ::4].flatten(1)
    return thin.nanmedian(1).values.nan_to_num(1.0)


def _places(cameras: tuple[Cameras, Cameras], seen: tuple[Seen, Seen]) -> Tensor:
    """Find each pixel of the first view in the second; NaN where that does not show it."""
    rays = each_pixel(cameras[0].world_from_pixel, cameras[0].size)
    points = cameras[0].centre[..., None, None] + seen[0].depth[:, None] * rays
    places, depth = cameras[1].project(points)
    shown = within(places, *cameras[1].size) & (seen[0].depth < FAR) & (depth > 1e-3)
    shown &= _nearest_depth(seen[1].depth, places, depth)
    return places.where(shown[..., None], places.new_tensor(math.nan))


def _nearest_depth(seen: Tensor, places: Tensor, depth: Tensor) -> Tensor:
    """Tell which points are not hidden: some of the four pixels round their places is as deep."""
    height, width = seen.shape[1:]
    low = places.nan_to_num(0).clamp(-1, 1e5).floor()
    shown = torch.zeros_like(depth, dtype=torch.bool)
    for right, down in ((0, 0), (1, 0), (0, 1), (1, 1)):
        column = (low[..., 0] + right).clamp(0, width - 1).long()
        row = (low[..., 1] + down).clamp(0, height - 1).long()
        there = seen.flatten(1).gather(1, (row * width + column).flatten(1)).reshape(depth.shape)
        shown |= (there - depth).abs() < _SAME * depth
    return shown


def _cameras(
    count: int, size: tuple[int, int], random: torch.Generator, config: Config
) -> tuple[Cameras, Cameras]:
    """Draw two cameras that look at about the same place, one unit before camera 0."""
    device = random.device
    focal0, focal1 = (_between(config.focal, (count,), random) * size[1] for _ in range(2))
    eye = torch.eye(3, device=device).expand(count, 3, 3)
    camera0 = Cameras(_intrinsics(focal0, size), eye, torch.zeros(count, 3, device=device), size)
    round_ = math.radians(config.view_degrees) * _normal((count, 2), random)
    roll = math.radians(config.turn_degrees) * _normal((count, 1), random)
    rotation = rotations(torch.cat([round_, roll], 1))
    target = torch.tensor([0.0, 0.0, 1.0], device=device)
    # The zoom is what the focal lengths leave of the one that was drawn, so that it is the images'.
    octaves = config.zoom_octaves * _normal((count,), random)
    distance = (focal1 / focal0 * 2**octaves).clamp(0.4, 2.5)
    aside = 0.1 * _normal((count, 3), random) * torch.tensor([1.0, 1.0, 0.0], device=device)
    translation = target * distance[:, None] - rotation @ target + aside
    return camera0, Cameras(_intrinsics(focal1, size), rotation, translation, size)


def _surfaces(
    photographs: Photographs, count: int, random: torch.Generator, config: Config
) -> list[Surface]:
    """Draw a ground behind everything, hilly or flat, and boards before it."""
    ground: list[Surface] = [
        _relief(photographs, count, random, config),
        _wall(photographs, count, random),
    ]
    boards: list[Surface] = [_board(photographs, count, random) for _ in range(config.boards)]
    return [*ground, *boards]


def _relief(
    photographs: Photographs, count: int, random: torch.Generator, config: Config
) -> Relief:
    away = _between((1.0, 1.6), (count,), random)
    middle = 0.5 * _normal((count, _HILLS, 2), random)
    width = _between((0.12, 0.4), (count, _HILLS, 1), random)
    hilly = torch.rand((count, 1, 1), generator=random, device=random.device) < config.relief
    height = 0.6 * width * _normal((count, _HILLS, 1), random) * hilly
    scale = _between((250, 600), (count,), random)
    textures = _textures(photographs, count, random)
    return Relief(away, torch.cat([middle, width, height], -1), scale, textures)


_HILLS = 3


def _wall(photographs: Photographs, count: int, random: torch.Generator) -> Board:
    """Draw a large plane that stands steeply in the ground: a wall, a floor, a ceiling."""
    angle = 2 * math.pi * torch.rand(count, generator=random, device=random.device)
    tilt = math.radians(20) * _normal((count,), random)
    flat = torch.zeros_like(angle)
    axes = rotations(torch.stack([flat, flat, angle], 1)) @ rotations(
        torch.stack([flat, math.pi / 2 - 0.4 + tilt, flat], 1)
    )
    outward = torch.stack([angle.cos(), angle.sin()], 1) * _between((0.3, 1.2), (count, 1), random)
    centre = torch.cat([outward, _between((0.8, 1.2), (count, 1), random)], 1)
    half = _between((0.8, 1.5), (count, 2), random)
    return Board(centre, axes.mT, half, _textures(photographs, count, random))


def _board(photographs: Photographs, count: int, random: torch.Generator) -> Board:
    """Draw a rectangle somewhere in sight, tilted."""
    depth = _between((0.45, 1.1), (count, 1), random)
    centre = torch.cat([0.35 * _normal((count, 2), random) * depth, depth], 1)
    angles = math.radians(30) * _normal((count, 3), random)
    half = _between((0.06, 0.3), (count, 2), random) * depth
    return Board(centre, rotations(angles), half, _textures(photographs, count, random))


def _textures(photographs: Photographs, count: int, random: torch.Generator) -> Textures:
    device = photographs.device
    return photographs.chosen(
        torch.randint(len(photographs), (count,), generator=random, device=device)
    )


def rotations(angles: Tensor) -> Tensor:
    """Turn (B, 3) rotation vectors in radians into (B, 3, 3) matrices."""
    x, y, z = angles.unbind(-1)
    none = torch.zeros_like(x)
    cross = torch.stack([none, -z, y, z, none, -x, -y, x, none], -1).reshape(-1, 3, 3)
    matrices: Tensor = torch.linalg.matrix_exp(cross)
    return matrices


def _intrinsics(focal: Tensor, size: tuple[int, int]) -> Tensor:
    """Make (B, 3, 3) intrinsics with the principal point in the middle."""
    matrix = torch.zeros(len(focal), 3, 3, device=focal.device)
    matrix[:, 0, 0] = matrix[:, 1, 1] = focal
    matrix[:, 0, 2], matrix[:, 1, 2] = (size[1] - 1) / 2, (size[0] - 1) / 2
    matrix[:, 2, 2] = 1
    return matrix


def _between(
    limits: tuple[float, float], shape: tuple[int, ...], random: torch.Generator
) -> Tensor:
    low, high = limits
    return low + (high - low) * torch.rand(shape, generator=random, device=random.device)


def _normal(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=random, device=random.device)
