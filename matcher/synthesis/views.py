"""A batch of image pairs with the place of every pixel in the other image."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TwoViews:
    """Pairs of images of one size with dense truth.

    Attributes:
        image0: (B, C, H, W) float32 in [0, 1].
        image1: (B, C, H, W).
        places0: (B, H, W, 2) float32 pixel (x, y) of image 1 that shows what a pixel of image 0
            shows; NaN where image 1 does not show it.
        places1: (B, H, W, 2) the other way.
        complete: (B,) bool, True where a pixel without a place is known to have none: so it is with
            synthetic pairs, and not where places were measured.
    """

    image0: Tensor
    image1: Tensor
    places0: Tensor
    places1: Tensor
    complete: Tensor

    def __len__(self) -> int:
        """Count the pairs."""
        return len(self.image0)

    def swapped(self) -> TwoViews:
        """Exchange the images."""
        return TwoViews(self.image1, self.image0, self.places1, self.places0, self.complete)

    def of(self, rows: Tensor | slice) -> TwoViews:
        """Keep some pairs."""
        return TwoViews(*(getattr(self, field.name)[rows] for field in fields(self)))

    def shown(self, image0: Tensor, image1: Tensor) -> TwoViews:
        """Exchange the pictures, as changes of light do, and keep the truth."""
        return replace(self, image0=image0, image1=image1)

    @staticmethod
    def joined(parts: list[TwoViews]) -> TwoViews:
        """Put batches behind each other."""
        names = [field.name for field in fields(TwoViews)]
        return TwoViews(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def unrelated(self) -> TwoViews:
        """Give each image 0 another pair's image 1, so that nothing has a partner."""
        nowhere = torch.full_like(self.places0, torch.nan)
        image1 = self.image1.roll(1, 0)
        return TwoViews(self.image0, image1, nowhere, nowhere, torch.ones_like(self.complete))

    def to(self, device: torch.device) -> TwoViews:
        """Move them."""
        return TwoViews(*(getattr(self, field.name).to(device) for field in fields(self)))


def follow(places: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Say where points lie in the other image.

    Args:
        places: (B, H, W, 2), as in `TwoViews`.
        points: (B, N, 2) pixels (x, y) of fractions, inside the image.

    Returns:
        (B, N, 2) places, NaN where the other image does not show the point; and (B, N) bool, True
        where all four pixels round the point say the same: near the rim of what is shown, or of an
        object, nobody should be taught that a point has no partner.
    """
    height, width = places.shape[1:3]
    upper = points.new_tensor([width - 1, height - 1])
    inside = torch.minimum(points.clamp_min(0), upper)
    low = torch.minimum(inside.floor(), (upper - 1).clamp_min(0))
    part = inside - low
    corners = [_pick(places, low + low.new_tensor(step)) for step in _STEPS]
    weights = _weights(part)
    mixed = sum(w[..., None] * corner for w, corner in zip(weights, corners, strict=True))
    nearest = torch.stack(weights).argmax(0)  # (B, N)
    closest = torch.stack(corners).gather(0, nearest[None, ..., None].expand(1, -1, -1, 2))[0]
    seen = torch.stack([corner[..., 0].isfinite() for corner in corners])
    spread = _spread(corners)
    smooth = seen.all(0) & (spread < _JUMP)
    agreed = smooth | ~seen.any(0)
    return torch.where(smooth[..., None], mixed, closest), agreed


_STEPS = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
_JUMP = 8.0  # pixels that places of neighbours are apart at most on one surface, scale 4 included


def _weights(part: Tensor) -> list[Tensor]:
    """Give the bilinear weights of the four corners for (B, N, 2) fractions."""
    x, y = part.unbind(-1)
    return [(1 - x) * (1 - y), x * (1 - y), (1 - x) * y, x * y]


def _spread(corners: list[Tensor]) -> Tensor:
    """Measure how far the (B, N, 2) places of four neighbours are apart at most."""
    stacked = torch.stack(corners)
    return (stacked.amax(0) - stacked.amin(0)).amax(-1)


def _pick(places: Tensor, pixels: Tensor) -> Tensor:
    """Read (B, H, W, 2) places at (B, N, 2) whole pixels."""
    width = places.shape[2]
    upper = pixels.new_tensor([width - 1, places.shape[1] - 1])
    column, row = torch.minimum(pixels, upper).long().unbind(-1)
    index = (row * width + column)[..., None].expand(-1, -1, 2)
    return places.flatten(1, 2).gather(1, index)


def pixel_grid(height: int, width: int, device: torch.device) -> Tensor:
    """List every pixel's (x, y): (H, W, 2) float32."""
    rows = torch.arange(height, device=device, dtype=torch.float32)
    columns = torch.arange(width, device=device, dtype=torch.float32)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([x, y], dim=-1)


def within(places: Tensor, height: int, width: int) -> Tensor:
    """Tell which of (..., 2) pixels lie in an image, to half a pixel round its outer pixels."""
    upper = places.new_tensor([width - 0.5, height - 0.5])
    return ((places >= -0.5) & (places <= upper)).all(-1)
