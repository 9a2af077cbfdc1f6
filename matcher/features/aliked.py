"""ALIKED keypoints and descriptors, by kornia's network.

Source: Zhao et al., ALIKED: A Lighter Keypoint and Descriptor Extraction Network via Deformable
Transformation, IEEE TIM 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from matcher import weights as published
from matcher.extras import require
from matcher.features import Keypoints, fit_masks
from matcher.features._choice import Choice
from matcher.nn.devices import choose_device
from matcher.types import Image, Mask


@dataclass(frozen=True)
class Options(Choice):
    """The published choices, and those that every front end has.

    Attributes:
        threshold: Least score of a keypoint.
        radius: A keypoint is the highest within so many pixels along each axis.
    """

    threshold: float = 0.2
    radius: int = 2


class ALIKEDFrontEnd:
    """Find and describe ALIKED's keypoints, one image at a time."""

    name = "aliked"
    channels = 128

    def __init__(
        self, network: nn.Module, options: Options, device: torch.device, untrained: bool = False
    ) -> None:
        self.network: Any = network.to(device).eval()
        self.options = options
        self.device = device
        self.untrained = untrained

    def detect(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Keypoints]:
        """Find keypoints; see `FrontEnd`."""
        masks = fit_masks(images, masks)
        return [self._keypoints(*each) for each in zip(images, masks, strict=True)]

    @torch.inference_mode()
    def _keypoints(self, image: Image, mask: Mask | None) -> Keypoints:
        height, width = image.shape[:2]
        batch = colour_batch(image, self.device)
        features, score_map = self.network.extract_dense_map(batch)
        if min(height, width) <= 2 * self.options.radius:  # no place that has its whole window
            return Keypoints(*_nothing(self.channels))
        grids, scores, _ = self.network.dkd(score_map)
        places = _pixels(grids[0], width, height).cpu().numpy()
        values = scores[0].cpu().numpy()
        chosen = self.options.rows(places, values, image, mask)
        chosen = chosen[values[chosen] > self.options.threshold]
        if not len(chosen):
            return Keypoints(*_nothing(self.channels))
        kept = grids[0][torch.from_numpy(chosen).to(self.device)]
        descriptors, _ = self.network.desc_head(features, [kept])
        return Keypoints(
            places[chosen], np.clip(values[chosen], 0, 1), descriptors[0].cpu().numpy()
        )


def colour_batch(image: Image, device: torch.device) -> Tensor:
    """Make a (1, 3, H, W) batch of one image; grey is repeated."""
    colours = image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2)
    return torch.from_numpy(np.ascontiguousarray(colours.transpose(2, 0, 1)))[None].to(device)


def build(
    *, device: str = "auto", weights: str | Path | None = "default", **options: Any
) -> ALIKEDFrontEnd:
    """Make the front end; see `matcher.features.build`. Its weights must have been fetched."""
    kornia = require("kornia", "aliked")
    chosen = Options(**options)
    network = kornia.feature.ALIKED(
        "aliked-n16", -1, detection_threshold=chosen.threshold, nms_radius=chosen.radius
    )
    untrained = published.initialise(network, weights, "aliked-n16", ["dkd.hw_grid"])
    return ALIKEDFrontEnd(network, chosen, choose_device(device), untrained)


def _pixels(grid: Tensor, width: int, height: int) -> Tensor:
    """Turn (N, 2) coordinates in [-1, 1] into pixels."""
    return ((grid + 1) / 2 * torch.tensor([width - 1, height - 1], device=grid.device)).float()


def _nothing(channels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, scores and descriptors of an image without keypoints."""
    none = np.zeros((0, 2), np.float32)
    return none, none[:, 0], np.zeros((0, channels), np.float32)
