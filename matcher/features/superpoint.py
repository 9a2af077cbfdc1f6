"""SuperPoint keypoints.

The official weights are for non-commercial use, and nothing downloads them unasked; a file of the
open retraining's layout is read too.

Source: DeTone, Malisiewicz, Rabinovich: SuperPoint, CVPRW 2018.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from matcher import images as pictures
from matcher import weights as published
from matcher.features import Keypoints, fit_masks
from matcher.features._choice import Choice
from matcher.nn.devices import choose_device
from matcher.nn.superpoint import STRIDE, Config, SuperPoint, published_state, sample, suppress
from matcher.types import Image, Mask

_IMAGES_AT_ONCE = 8  # of one padded size


@dataclass(frozen=True)
class Options(Choice):
    """The published choices, and those that every front end has.

    Attributes:
        threshold: Least probability of a keypoint at its pixel.
        radius: No two keypoints are nearer than this, in pixels along an axis.
        legacy: Read descriptors as the published matchers were trained, beside the keypoint by up
            to half a cell; False reads them at the keypoint.
    """

    threshold: float = 0.005
    radius: int = 4
    legacy: bool = True


class SuperPointFrontEnd:
    """Find and describe SuperPoint's keypoints; images of one padded size go together."""

    name = "superpoint"

    def __init__(
        self, network: SuperPoint, options: Options, device: torch.device, untrained: bool = False
    ) -> None:
        self.network = network.to(device).eval()
        self.channels = network.config.descriptor_channels
        self.options = options
        self.device = device
        self.untrained = untrained

    def detect(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Keypoints]:
        """Find keypoints; see `FrontEnd`."""
        masks = fit_masks(images, masks)
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, image in enumerate(images):
            groups[_padded(image).shape].append(number)
        found: dict[int, Keypoints] = {}
        for group in groups.values():
            for start in range(0, len(group), _IMAGES_AT_ONCE):
                numbers = group[start : start + _IMAGES_AT_ONCE]
                scores, descriptors = self._maps([images[number] for number in numbers])
                for row, number in enumerate(numbers):
                    maps = scores[row], descriptors[row]
                    found[number] = self._keypoints(*maps, images[number], masks[number])
        return [found[number] for number in range(len(images))]

    @torch.inference_mode()
    def _maps(self, images: Sequence[Image]) -> tuple[Tensor, Tensor]:
        """Run the network on images of one padded size: (B, H, W) maxima, (B, D, h, w)."""
        batch = np.stack([_padded(image) for image in images])
        scores, descriptors = self.network(torch.from_numpy(batch)[:, None].to(self.device))
        return suppress(scores, self.options.radius), descriptors

    @torch.inference_mode()
    def _keypoints(
        self, scores: Tensor, descriptors: Tensor, image: Image, mask: Mask | None
    ) -> Keypoints:
        """Choose one image's keypoints among the maxima, and describe them."""
        inside = scores[: image.shape[0], : image.shape[1]]
        rows, columns = torch.nonzero(inside > self.options.threshold, as_tuple=True)
        points = torch.stack([columns, rows], dim=1).float()  # (N, 2)
        places, values = points.cpu().numpy(), inside[rows, columns].cpu().numpy()
        chosen = self.options.rows(places, values, image, mask)
        kept = points[torch.from_numpy(chosen).to(points.device)]
        described = sample(descriptors, kept, legacy=self.options.legacy)
        return Keypoints(places[chosen], values[chosen], described.cpu().numpy())


def build(
    *, device: str = "auto", weights: str | Path | None = "default", **options: Any
) -> SuperPointFrontEnd:
    """Make the front end.

    Args:
        device: See `matcher.nn.devices.choose_device`.
        weights: "default" for the official ones, if they were fetched; a folder that holds
            `superpoint_v1.pth`; a file in its layout or the open retraining's; None for random.
        **options: Fields of `Options`.
    """
    chosen, place = Options(**options), choose_device(device)
    if weights is None:
        return SuperPointFrontEnd(SuperPoint(Config()), chosen, place, untrained=True)
    state = published_state(published.chosen_state(weights, "superpoint-magicleap"))
    network = SuperPoint(Config(normed="stages.0.0.norm.weight" in state))
    published.load_strict(network, state, f"SuperPoint's weights {weights}")
    return SuperPointFrontEnd(network, chosen, place)


def _padded(image: Image) -> Image:
    """Make grey; repeat the last row and column up to a multiple of 8 (zeros would be an edge)."""
    grey = pictures.grey(image)
    return np.pad(grey, [(0, -side % STRIDE) for side in grey.shape], mode="edge")
