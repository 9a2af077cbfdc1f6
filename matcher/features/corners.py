"""Corners, or a grid, described by the pixels round them: the tokens of `ncc`.

A descriptor is a patch without its mean and of unit length, under Gaussian weights, so the product
of two of them is their weighted normalised cross-correlation.

Source: Shi and Tomasi, Good Features to Track, CVPR 1994 (the smaller eigenvalue of the structure
tensor).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from matcher import images as pictures
from matcher.features import Keypoints, fit_masks
from matcher.features._choice import Choice
from matcher.nn.devices import choose_device
from matcher.patches import blur, gaussian, pyramid, warp_patches
from matcher.types import Floats, Image, Mask, Points

WEAKEST = 1e-6  # smaller eigenvalue of a corner, for grey values in [0, 1]


@dataclass(frozen=True)
class Options(Choice):
    """Where to put the points, and what they see.

    Attributes:
        where: "corners", or a "grid" that does not look at the picture.
        spacing: Least distance of two corners, or the step of the grid, in pixels.
        radius: Of the patch, in samples.
        octave: Samples are 2**octave pixels apart, of an image that was halved as often.
        blur: Sigma of the Gaussian that takes noise from the image first, in pixels.
    """

    max_keypoints: int | None = 2048
    where: Literal["corners", "grid"] = "corners"
    spacing: int = 3
    radius: int = 7
    octave: int = 1
    blur: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.where not in ("corners", "grid"):
            raise ValueError(f"where must be 'corners' or 'grid', not {self.where!r}")
        for name, least in (("spacing", 1), ("radius", 1), ("octave", 0), ("blur", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")


class Corners:
    """Find corners or lay a grid, and describe them by their patches."""

    name = "corners"
    untrained = False

    def __init__(self, options: Options, device: str = "cpu") -> None:
        self.options = options
        self.channels = (2 * options.radius + 1) ** 2
        self.device = choose_device(device)

    def detect(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Keypoints]:
        """Find points; see `FrontEnd`."""
        masks = fit_masks(images, masks)
        return [self._keypoints(*each) for each in zip(images, masks, strict=True)]

    def describe_points(self, image: Image, points: Points) -> Floats:
        """Describe points (N, 2) of the caller's own: (N, D); zeros where there is no contrast."""
        return self.warped(image, points, torch.eye(2)).cpu().numpy()

    def warped(self, image: Image, points: Points, step0_from_1: Tensor) -> Tensor:
        """Describe points after a linear change (2, 2) of the picture: a turn, a scale."""
        levels = pyramid(
            pictures.grey(image), self.options.octave + 1, self.options.blur, self.device
        )
        octave = len(levels) - 1
        places = (torch.from_numpy(points).to(self.device) + 0.5) / 2**octave - 0.5
        maps = step0_from_1.to(places).expand(len(places), 2, 2)
        patches, _ = warp_patches(levels[octave], places, maps, self.options.radius)
        return self._normalised(patches)

    def _normalised(self, patches: Tensor) -> Tensor:
        """Turn patches (N, K, K) into descriptors (N, K * K) whose products are weighted NCC."""
        radius = self.options.radius
        weights = gaussian(radius, 0.6 * radius, patches.device)
        weights = (weights[:, None] * weights).flatten()
        values = patches.flatten(1)
        values = (values - (values * weights).sum(1, keepdim=True)) * weights.sqrt()
        lengths = values.norm(dim=1, keepdim=True)
        descriptors: Tensor = values / lengths.clamp_min(1e-12) * (lengths > 1e-5)
        return descriptors

    def _keypoints(self, image: Image, mask: Mask | None) -> Keypoints:
        grey = torch.tensor(pictures.grey(image), device=self.device)
        points, scores = (
            self._corners(grey) if self.options.where == "corners" else self._grid(grey)
        )
        rows = self.options.rows(points, scores, image, mask)
        chosen = points[rows]
        return Keypoints(chosen, np.clip(scores[rows], 0, 1), self.describe_points(image, chosen))

    def _grid(self, grey: Tensor) -> tuple[Points, Floats]:
        """Lay points a step apart, in rows: (N, 2) and ones."""
        height, width = grey.shape
        step = self.options.spacing
        y, x = np.mgrid[step // 2 : height : step, step // 2 : width : step]
        points = np.stack([x.ravel(), y.ravel()], 1).astype(np.float32)
        return points, np.ones(len(points), np.float32)

    def _corners(self, grey: Tensor) -> tuple[Points, Floats]:
        """Find the local maxima of the smaller eigenvalue: (N, 2) points and (N,) values."""
        strength = _smaller_eigenvalue(grey)
        reach = self.options.spacing
        peak = F.max_pool2d(strength[None, None], 2 * reach + 1, 1, reach)[0, 0]
        y, x = torch.nonzero((strength == peak) & (strength > WEAKEST), as_tuple=True)
        points = torch.stack([x, y], 1).float()
        return points.cpu().numpy(), strength[y, x].cpu().numpy()


def strongest_by_cell(image: Tensor, cell: int) -> Tensor:
    """Find the strongest corner of every square cell of a grey image (1, 1, H, W) that has one: (K, 2) pixels."""
    height, width = image.shape[2:]
    strength = _smaller_eigenvalue(image[0, 0])
    padded = F.pad(strength[None, None], (0, -width % cell, 0, -height % cell), value=-1.0)
    best, places = F.max_pool2d(padded, cell, return_indices=True)
    places = places[best > WEAKEST]
    columns = padded.shape[3]
    return torch.stack([places % columns, places // columns], 1).float()


def _smaller_eigenvalue(grey: Tensor) -> Tensor:
    """Measure how much a small window (H, W) changes in its least changing direction."""
    padded = F.pad(grey[None, None], (1, 1, 1, 1), mode="replicate")
    slope_x = (padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]) / 2
    slope_y = (padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]) / 2
    tensor = torch.cat([slope_x**2, slope_x * slope_y, slope_y**2])  # (3, 1, H, W)
    xx, xy, yy = blur(tensor, 1.5)[:, 0]
    smaller: Tensor = (xx + yy) / 2 - torch.sqrt(((xx - yy) / 2) ** 2 + xy**2)
    return smaller


def build(
    *,
    device: str = "auto",
    weights: str | Path | None = "default",  # noqa: ARG001 - there are none
    **options: Any,
) -> Corners:
    """Make the front end; see `matcher.features.build`."""
    return Corners(Options(**options), device)
