"""XFeat keypoints: maxima of the keypoint map, scored by keypoint probability times reliability.

Unlike the authors' code, which resizes every image to multiples of 32 pixels, images are padded;
for sizes that are such multiples the two agree, but for the places below the pixel.

Source: Potje et al., XFeat: Accelerated Features for Lightweight Image Matching, CVPR 2024.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from matcher import weights as published
from matcher.features import Keypoints, fit_masks
from matcher.features._choice import Choice
from matcher.nn.devices import choose_device
from matcher.nn.peaks import below_pixel, highest_near
from matcher.nn.sampling import sample
from matcher.nn.xfeat import CHANNELS, STRIDE, XFeat, XFeatMaps, folded, pad, standardise
from matcher.types import Image, Mask

_IMAGES_AT_ONCE = 8  # of one padded size


@dataclass(frozen=True)
class Options(Choice):
    """The published choices, and those that every front end has.

    Attributes:
        threshold: Least probability of a keypoint at its pixel.
        window: A keypoint is the highest in a window of this odd side.
        subpixel: Place keypoints below the pixel; the authors' code leaves them at pixels.
    """

    max_keypoints: int | None = 4096
    threshold: float = 0.05
    window: int = 5
    subpixel: bool = True


class XFeatFrontEnd:
    """Find and describe XFeat's keypoints; images of one padded size are run together."""

    name = "xfeat"
    channels = CHANNELS

    def __init__(
        self, network: XFeat, options: Options, device: torch.device, untrained: bool = False
    ) -> None:
        self.network = folded(network).to(device)
        self.options = options
        self.device = device
        self.untrained = untrained

    def detect(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Keypoints]:
        """Find keypoints; see `FrontEnd`."""
        masks = fit_masks(images, masks)
        found: dict[int, Keypoints] = {}
        for numbers, maps in network_maps(self.network, images, self.device):
            for row, number in enumerate(numbers):
                found[number] = self._keypoints(maps, row, images[number], masks[number])
        return [found[number] for number in range(len(images))]

    @torch.inference_mode()
    def _keypoints(self, maps: XFeatMaps, row: int, image: Image, mask: Mask | None) -> Keypoints:
        """Choose one image's keypoints from the maps of a batch, and describe them."""
        height, width = image.shape[:2]
        probability = _probability(maps.keypoint_logits[row, None])[:, :, :height, :width]
        peaks = probability == highest_near(probability, self.options.window)
        rows, columns = torch.nonzero(
            (peaks & (probability > self.options.threshold))[0, 0], as_tuple=True
        )
        points = torch.stack([columns, rows], dim=1).float()  # (N, 2)
        reliability = sample(maps.reliability[row], points, STRIDE)[:, 0]
        scores = probability[0, 0, rows, columns] * reliability
        places, values = points.cpu().numpy(), scores.cpu().numpy()
        chosen = self.options.rows(places, values, _seen(image), mask)
        features = F.normalize(maps.features[row], dim=0)
        descriptors = sample(features, points[torch.from_numpy(chosen)], STRIDE, mode="bicubic")
        described = F.normalize(descriptors, dim=1).cpu().numpy()
        if self.options.subpixel:
            places = places + below_pixel(probability[0, 0], rows, columns).cpu().numpy()
            border = self.options.border
            places = places.clip(border, np.array([width, height]) - 1 - border).astype(np.float32)
        return Keypoints(places[chosen], np.clip(values[chosen], 0, 1), described)


def network_maps(
    network: XFeat, images: Sequence[Image], device: torch.device, scale: float = 1.0
) -> Iterator[tuple[list[int], XFeatMaps]]:
    """Run the network over images of any sizes.

    Args:
        network: On `device`.
        images: (H, W) or (H, W, 3).
        device: Where it runs.
        scale: Resize the images by this factor first.

    Yields:
        The images' numbers and their maps; images of one padded size come together.
    """
    groups: dict[torch.Size, list[tuple[int, Tensor]]] = defaultdict(list)
    for number, image in enumerate(images):
        ready = torch.from_numpy(np.require(_seen(image), requirements=["C", "W"]))
        ready = ready[None, None].to(device)
        if scale != 1:
            size = [max(1, round(side * scale)) for side in image.shape[:2]]
            ready = F.interpolate(ready, size, mode="bilinear", align_corners=False)
        ready = pad(standardise(ready))
        groups[ready.shape].append((number, ready))
    for group in groups.values():
        for start in range(0, len(group), _IMAGES_AT_ONCE):
            numbers, batch = zip(*group[start : start + _IMAGES_AT_ONCE], strict=True)
            with torch.inference_mode():
                yield list(numbers), network(torch.cat(batch))


def build(
    *, device: str = "auto", weights: str | Path | None = "default", **options: Any
) -> XFeatFrontEnd:
    """Make the front end; see `matcher.features.build`. "default" weights ship with the package."""
    chosen = Options(**options)
    network = XFeat()
    untrained = published.initialise(network, weights, "xfeat")
    return XFeatFrontEnd(network, chosen, choose_device(device), untrained)


def _seen(image: Image) -> Image:
    """Make the (H, W) grey image that the network sees: the mean of the colours, as published."""
    grey: Image = image if image.ndim == 2 else image.mean(axis=2)
    return grey


def _probability(logits: Tensor) -> Tensor:
    """Turn (1, 65, h, w) logits of cells into (1, 1, 8 h, 8 w) probabilities of pixels."""
    return F.pixel_shuffle(torch.softmax(logits, dim=1)[:, :-1], STRIDE)
