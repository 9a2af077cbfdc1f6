"""LightGlue as an assignment of keypoints, by kornia's network.

Source: Lindenberger, Sarlin, Pollefeys, LightGlue: Local Feature Matching at Light Speed, ICCV
2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matcher import weights as published
from matcher.extras import require
from matcher.methods._sparse import Assigned
from matcher.nn.devices import choose_device
from matcher.types import Description


@dataclass(frozen=True)
class LightGlueOptions:
    """What a user may choose; the defaults are the published ones.

    Attributes:
        depth_confidence: Stop early where so large a share of points is certain; -1 never does.
        width_confidence: Drop points that are surely without partner; -1 never does.
        filter_threshold: Least probability of a match.
    """

    depth_confidence: float = 0.95
    width_confidence: float = 0.99
    filter_threshold: float = 0.1


class LightGlue:
    """Assign keypoints by a LightGlue network.

    Args:
        name: Of the registered weights.
        sizes: kornia's names of the network's sizes.
        options: The user's.
        weights: "default", a file or folder, or None for random ones.
        device: See `matcher.nn.devices.choose_device`.
    """

    def __init__(
        self,
        name: str,
        sizes: Mapping[str, int],
        options: LightGlueOptions,
        weights: str | Path | None,
        device: str,
    ) -> None:
        kornia = require("kornia", name)
        self._device = choose_device(device)
        self.network = kornia.feature.LightGlue(None, **asdict(options), **sizes)
        derived = ["confidence_thresholds"]
        self.untrained = published.initialise(self.network, weights, name, derived)
        self.network.to(self._device).eval()

    @torch.inference_mode()
    def __call__(self, description0: Description, description1: Description) -> Assigned:
        """Assign the keypoints of two descriptions, neither of them empty."""
        pair = {"image0": self._side(description0), "image1": self._side(description1)}
        found = self.network(pair)
        return Assigned(found["matches"][0].cpu().numpy(), found["scores"][0].float().cpu().numpy())

    def _tensor(self, array: NDArray[np.floating]) -> Tensor:
        """Make a batch of one."""
        return torch.from_numpy(np.asarray(array, np.float32))[None].to(self._device)

    def _side(self, description: Description) -> dict[str, Tensor]:
        """Write one image in kornia's form; positions are normalised by the image's size."""
        height, width = description.size
        return {
            "keypoints": self._tensor(np.clip(description.points, 0, [width, height])),
            "descriptors": self._tensor(description.descriptors),
            "image_size": torch.tensor([[width, height]], device=self._device),
        }
