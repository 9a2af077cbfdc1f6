"""DISK keypoints and descriptors, by kornia's network.

Source: Tyszkiewicz, Fua, Trulls, DISK: Learning local features with policy gradient, NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from matcher import weights as published
from matcher.extras import require
from matcher.features import Keypoints, fit_masks
from matcher.features._choice import Choice
from matcher.features.aliked import colour_batch
from matcher.nn.devices import choose_device
from matcher.nn.peaks import highest_near
from matcher.types import Image, Mask


@dataclass(frozen=True)
class Options(Choice):
    """The published choices, and those that every front end has.

    Attributes:
        threshold: Least logit of a keypoint; 0 is even odds.
        window: A keypoint is the highest in a window of this odd side.
    """

    threshold: float = 0.0
    window: int = 5


class DISKFrontEnd:
    """Find and describe DISK's keypoints. Scores are sigmoids of the network's logits.

    Images are padded with zeros to multiples of 16 pixels, for four halvings, and at least 32.
    """

    name = "disk"
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
        padding = (0, max(-width % 16, 32 - width), 0, max(-height % 16, 32 - height))
        batch = F.pad(colour_batch(image, self.device), padding)
        logits, features = self.network.heatmap_and_dense_descriptors(batch)
        logits = logits[:, :, :height, :width]
        peaks = (logits == highest_near(logits, self.options.window)) & (
            logits > self.options.threshold
        )
        rows, columns = torch.nonzero(peaks[0, 0], as_tuple=True)
        places = torch.stack([columns, rows], dim=1).float().cpu().numpy()
        scores = torch.sigmoid(logits[0, 0, rows, columns]).cpu().numpy()
        chosen = self.options.rows(places, scores, image, mask)
        kept = torch.from_numpy(chosen).to(self.device)
        descriptors = F.normalize(features[0, :, rows[kept], columns[kept]].T, dim=1)
        return Keypoints(places[chosen], np.clip(scores[chosen], 0, 1), descriptors.cpu().numpy())


def build(
    *, device: str = "auto", weights: str | Path | None = "default", **options: Any
) -> DISKFrontEnd:
    """Make the front end; see `matcher.features.build`. Its weights must have been fetched."""
    kornia = require("kornia", "disk")
    chosen = Options(**options)
    network = kornia.feature.DISK()
    untrained = published.initialise(network, weights, "disk")
    return DISKFrontEnd(network, chosen, choose_device(device), untrained)
