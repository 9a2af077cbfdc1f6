"""SuperPoint keypoints.

The official weights are for non-commercial use, and nothing downloads them unasked; a file of the
open retraining's layout is read too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matcher import images as pictures
from matcher import weights as published
from matcher.features import Keypoints
from matcher.nn.devices import choose_device
from matcher.nn.superpoint import (
    STRIDE,
    Config,
    SuperPoint,
    published_state,
    sample,
    suppress,
)
from matcher.types import Image, Mask


@dataclass(frozen=True)
class Options:
    """The published choices.

    Attributes:
        max_keypoints: The best are kept.
        threshold: Least probability of a keypoint.
        radius: No two keypoints are nearer than this, in pixels along an axis.
        border: Pixels along the image's edge without keypoints.
        legacy: Sample descriptors as the published matchers were trained, up to half a cell beside
            the keypoint.
    """

    max_keypoints: int = 1024
    threshold: float = 0.005
    radius: int = 4
    border: int = 4
    legacy: bool = True


class SuperPointFrontEnd:
    """Find and describe keypoints; images of one padded size go through the network together."""

    name = "superpoint"

    def __init__(self, network: SuperPoint, options: Options, device: torch.device) -> None:
        self.options = options
        self.channels = network.config.descriptor_channels
        self._device = device
        self._network = network.to(device, memory_format=torch.channels_last).eval()

    def detect(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Keypoints]:
        """Detect in every image: at most `max_keypoints`, best first, ties in reading order."""
        masks = masks or [None] * len(images)
        found: dict[int, Keypoints] = {}
        for numbers in _same_size(images):
            padded = [_padded(images[number]) for number in numbers]
            for number, maps in zip(numbers, self._maps(np.stack(padded)), strict=True):
                found[number] = self._keypoints(*maps, images[number].shape[:2], masks[number])
        return [found[number] for number in range(len(images))]

    @torch.inference_mode()
    def _maps(self, batch: NDArray[np.float32]) -> list[tuple[Tensor, Tensor]]:
        """Run the network on (B, H, W): score and descriptor maps of each image."""
        scores, descriptors = self._network(torch.from_numpy(batch)[:, None].to(self._device))
        return list(zip(suppress(scores, self.options.radius), descriptors, strict=True))

    @torch.inference_mode()
    def _keypoints(
        self, scores: Tensor, descriptors: Tensor, size: tuple[int, int], mask: Mask | None
    ) -> Keypoints:
        """Choose among the maxima, then describe."""
        allowed = _inside(scores, size, self.options.border)
        if mask is not None:
            allowed[: size[0], : size[1]] &= torch.from_numpy(mask).to(allowed.device)
        rows, columns = torch.nonzero((scores > self.options.threshold) & allowed, as_tuple=True)
        values = scores[rows, columns]
        best = torch.argsort(values, descending=True, stable=True)[: self.options.max_keypoints]
        points = torch.stack([columns, rows], dim=1)[best].float()
        described = sample(descriptors, points, legacy=self.options.legacy)
        return Keypoints(points.cpu().numpy(), values[best].cpu().numpy(), described.cpu().numpy())


def build(
    *, device: str = "auto", weights: str | Path | None = "default", **options: int | float | bool
) -> SuperPointFrontEnd:
    """Make the front end.

    Args:
        device: See `matcher.nn.devices.choose_device`.
        weights: "default" for the official ones, if they were fetched; a folder that holds
            `superpoint_v1.pth`; a file in its layout or the open retraining's; None for random
            ones.
        **options: Fields of `Options`.
    """
    chosen = Options(**options)  # type: ignore[arg-type]
    if weights is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return SuperPointFrontEnd(SuperPoint(Config()), chosen, choose_device(device))
    state = published_state(published.chosen_state(weights, "superpoint-magicleap"))
    network = SuperPoint(Config(normed="stages.0.0.norm.weight" in state))
    published.load_strict(network, state, f"superpoint weights {weights}")
    return SuperPointFrontEnd(network, chosen, choose_device(device))


def _same_size(images: Sequence[Image]) -> list[list[int]]:
    """Group the images' numbers by size after padding."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, image in enumerate(images):
        groups.setdefault(tuple(-(-side // STRIDE) for side in image.shape[:2]), []).append(number)
    return list(groups.values())


def _padded(image: Image) -> Image:
    """Make grey; repeat the last row and column up to a multiple of 8 (zeros would be an edge)."""
    grey = pictures.grey(image)
    return np.pad(grey, [(0, -side % STRIDE) for side in grey.shape], mode="edge")


def _inside(scores: Tensor, size: tuple[int, int], border: int) -> Tensor:
    """Mark the pixels of the image, its border and the padding left out."""
    allowed = torch.zeros_like(scores, dtype=torch.bool)
    allowed[border : max(size[0] - border, 0), border : max(size[1] - border, 0)] = True
    return allowed
