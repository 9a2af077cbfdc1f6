"""Pairs that a homography relates: two views of one photograph, other photographs round it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from matcher.synthesis.photographs import Photographs, Textures
from matcher.synthesis.views import TwoViews, pixel_grid, within


@dataclass(frozen=True)
class Config:
    """How far views differ; spreads are standard deviations of normal distributions."""

    turn_degrees: float = 20.0
    any_turn: float = 0.1  # share of pairs with an angle from the whole circle
    zoom_octaves: float = 0.5
    most_octaves: float = 2.0  # scales from 1/4 to 4
    perspective: float = 0.12  # of the corners, in shares of the size
    shift: float = 0.15  # in shares of the size
    crop: tuple[float, float] = (0.6, 1.0)  # of the photograph that view 0 shows


def draw(
    photographs: Photographs,
    count: int,
    size: tuple[int, int],
    random: torch.Generator,
    config: Config | None = None,
) -> tuple[TwoViews, Tensor]:
    """Make pairs.

    Args:
        photographs: On the device that the pairs shall be on.
        count: Pairs.
        size: Height and width of the views.
        random: Of the same device.
        config: How far views differ.

    Returns:
        The pairs, and the (count, 3, 3) homographies from pixels of image 0 to those of image 1.
    """
    config = config or Config()
    device = photographs.device
    rows = torch.randint(len(photographs), (2, count), generator=random, device=device)
    textures, others = photographs.chosen(rows[0]), photographs.chosen(rows[1])
    photo_from_0 = crops(textures.sizes, size, random, config.crop)
    pixels1_from_0 = homographies(count, size, random, config)
    photo_from_1 = photo_from_0 @ torch.linalg.inv(pixels1_from_0)
    other_from_view = crops(others.sizes, size, random, (0.6, 1.0))
    grid = pixel_grid(*size, device)[None].expand(count, -1, -1, -1)
    image0, image1 = (
        _view(textures, others, map_, other_from_view, grid)
        for map_ in (photo_from_0, photo_from_1)
    )
    places0 = _places(pixels1_from_0, grid, textures, photo_from_0)
    places1 = _places(torch.linalg.inv(pixels1_from_0), grid, textures, photo_from_1)
    complete = torch.ones(count, dtype=torch.bool, device=device)
    return TwoViews(image0, image1, places0, places1, complete), pixels1_from_0


def homographies(
    count: int, size: tuple[int, int], random: torch.Generator, config: Config
) -> Tensor:
    """Draw (count, 3, 3) maps of pixels: perspective, zoom and turn about the middle, shift."""
    height, width = size
    device = random.device
    scale = torch.tensor([width, height], device=device, dtype=torch.float32)
    corners = (torch.tensor([[0, 0], [1, 0], [1, 1], [0, 1]], device=device) - 0.5) * scale
    jitter = config.perspective * _normal((count, 4, 2), random) * scale
    angle = math.radians(config.turn_degrees) * _normal((count,), random)
    anywhere = torch.rand(count, generator=random, device=device) < config.any_turn
    circle = (torch.rand(count, generator=random, device=device) * 2 - 1) * math.pi
    angle = torch.where(anywhere, circle, angle)
    octaves = config.zoom_octaves * _normal((count,), random)
    zoom = 2 ** octaves.clamp(-config.most_octaves, config.most_octaves)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1)
    turned = torch.einsum("bij,bkj->bki", turn.reshape(-1, 2, 2), corners + jitter)
    moved = turned * zoom[:, None, None] + config.shift * _normal((count, 1, 2), random) * scale
    middle = (scale - 1) / 2
    return from_corners((corners + middle).expand(count, -1, -1), moved + middle)


def from_corners(corners0: Tensor, corners1: Tensor) -> Tensor:
    """Find the (B, 3, 3) homographies that take (B, 4, 2) points to (B, 4, 2) others."""
    (x, y), (u, v) = corners0.double().unbind(-1), corners1.double().unbind(-1)
    one, none = torch.ones_like(x), torch.zeros_like(x)
    upper = torch.stack([x, y, one, none, none, none, -u * x, -u * y], -1)
    lower = torch.stack([none, none, none, x, y, one, -v * x, -v * y], -1)
    solved = torch.linalg.solve(torch.cat([upper, lower], 1), torch.cat([u, v], 1))
    whole = torch.cat([solved, torch.ones_like(solved[:, :1])], 1)
    return whole.reshape(-1, 3, 3).to(corners0.dtype)


def crops(
    sizes: Tensor, size: tuple[int, int], random: torch.Generator, share: tuple[float, float]
) -> Tensor:
    """Draw (B, 3, 3) maps from pixels of a view to pixels of photographs: a part, unturned.

    Args:
        sizes: (B, 2) width and height of the photographs.
        size: Height and width of the views.
        random: Where the numbers come from.
        share: Least and greatest share of the largest part with the view's shape.
    """
    view = sizes.new_tensor([size[1], size[0]])
    largest = (sizes / view).amin(1)  # pixels of the photograph a pixel of the view
    wide = torch.rand((len(sizes), 3), generator=random, device=sizes.device)
    step = largest * (share[0] + (share[1] - share[0]) * wide[:, 0])
    start = (sizes - step[:, None] * view) * wide[:, 1:]
    maps = torch.zeros(len(sizes), 3, 3, device=sizes.device)
    maps[:, 0, 0] = maps[:, 1, 1] = step
    maps[:, :2, 2] = start + (step[:, None] - 1) / 2  # centres of pixels, not their corners
    maps[:, 2, 2] = 1
    return maps


def transform(maps: Tensor, points: Tensor) -> Tensor:
    """Apply (B, 3, 3) homographies to (B, H, W, 2) points; NaN for those behind the horizon."""
    flat = points.flatten(1, 2)  # (B, H * W, 2)
    homogeneous = flat @ maps[:, :, :2].mT + maps[:, None, :, 2]
    depth = homogeneous[..., 2:]
    moved = homogeneous[..., :2] / depth.where(depth > 1e-6, depth.new_tensor(math.nan))
    return moved.reshape(points.shape)


def _view(
    textures: Textures,
    others: Textures,
    photo_from_view: Tensor,
    other_from_view: Tensor,
    grid: Tensor,
) -> Tensor:
    """Show photographs through maps, and other ones where they end."""
    places = transform(photo_from_view, grid)
    image = textures.sample(places.nan_to_num(-1e4), _stretch(places))
    beyond = ~textures.inside(places)
    rows = beyond.flatten(1).any(1).nonzero().flatten()
    there = transform(other_from_view[rows], grid[rows])
    back = others.of(rows).sample(there, _stretch(there))
    image[rows] = torch.where(beyond[rows, None], back, image[rows])
    return image


def _stretch(places: Tensor) -> Tensor:
    """Measure the median (B,) step of (B, H, W, 2) places from pixel to pixel."""
    right = (places[:, ::8, 1::8] - places[:, ::8, :-1:8]).norm(dim=-1).flatten(1)
    down = (places[:, 1::8, ::8] - places[:, :-1:8, ::8]).norm(dim=-1).flatten(1)
    return torch.cat([right, down], 1).nanmedian(1).values.nan_to_num(1.0)


def _places(there: Tensor, grid: Tensor, textures: Textures, photo_from_view: Tensor) -> Tensor:
    """Find the place of each pixel in the other view; NaN where it is outside or no photograph is."""
    places = transform(there, grid)
    shown = textures.inside(transform(photo_from_view, grid))
    shown &= within(places, *grid.shape[1:3])
    return places.where(shown[..., None], places.new_tensor(math.nan))


def _normal(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=random, device=random.device)
