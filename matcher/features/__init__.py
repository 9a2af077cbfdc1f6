"""Keypoint front ends, one file each: the file name registers it, as with methods.

A front end's file has a class that keeps the `FrontEnd` interface and a function
`build(*, device, weights, **options)`. Files that begin with an underscore hold what front ends
share.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from matcher import images as pictures
from matcher.features._storage import load, save
from matcher.types import Description, Floats, Image, Mask, Points

__all__ = ["FrontEnd", "Keypoints", "build", "describe", "load", "names", "save"]


@dataclass(frozen=True, eq=False)
class Keypoints:
    """Keypoints of one image, best first.

    Attributes:
        points: (N, 2) float32 pixels of the image that was given.
        scores: (N,) float32 in [0, 1], falling.
        descriptors: (N, D) float32; D is the same where nothing was found.
        scales: (N,) float32 radius in pixels, or None.
        angles: (N,) float32 radians from +x towards +y, or None.
    """

    points: Points
    scores: Floats
    descriptors: Floats
    scales: Floats | None = None
    angles: Floats | None = None

    def __len__(self) -> int:
        return len(self.points)


class FrontEnd(Protocol):
    """What finds and describes keypoints."""

    @property
    def name(self) -> str:
        """The front end's name."""
        ...

    @property
    def channels(self) -> int:
        """Length of a descriptor."""
        ...

    @property
    def untrained(self) -> bool:
        """Whether its network has random weights."""
        ...

    def detect(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Keypoints]:
        """Find keypoints of images of any sizes, only where a mask is True."""
        ...


def names() -> list[str]:
    """List every front end by name, sorted."""
    stems = [found.name for found in pkgutil.iter_modules(__path__)]
    return sorted(stem.replace("_", "-") for stem in stems if not stem.startswith("_"))


def build(
    name: str, *, device: str = "auto", weights: str | Path | None = "default", **options: Any
) -> FrontEnd:
    """Make a front end.

    Args:
        name: One of `names()`.
        device: See `matcher.nn.devices.choose_device`; OpenCV's front ends run on the CPU.
        weights: "default", a file or folder, or None for random ones.
        **options: Fields of the front end's own `Options`; every one has `max_keypoints`.

    Raises:
        ValueError: There is no such front end.
        ImportError: It needs an optional package; the message names the extra.
        TypeError: It has no such option.
    """
    if name not in names():
        raise ValueError(f"no front end {name!r}; there are {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    front_end: FrontEnd = module.build(device=device, weights=weights, **options)
    return front_end


def describe(
    method: str,
    front_end: FrontEnd,
    images: Sequence[Image],
    masks: Sequence[Mask | None] | None = None,
) -> list[Description]:
    """Detect keypoints, and keep with them what matching and refinement need of the image.

    Args:
        method: Who will match them.
        front_end: Who finds them.
        images: (H, W) or (H, W, 3), of any sizes.
        masks: One for each image, or None; a mask of another size is stretched to the image's.

    Raises:
        ValueError: As many masks as images are needed.
    """
    fitted = fit_masks(images, masks)
    found = front_end.detect(images, fitted)
    return [
        Description(
            method=method,
            image=pictures.grey(image),
            mask=mask,
            points=keypoints.points,
            scores=keypoints.scores,
            descriptors=keypoints.descriptors,
            scales=keypoints.scales,
            angles=keypoints.angles,
            untrained=front_end.untrained,
        )
        for image, mask, keypoints in zip(images, fitted, found, strict=True)
    ]


def fit_masks(
    images: Sequence[Image], masks: Sequence[Mask | None] | None
) -> Sequence[Mask | None]:
    """Give every image a boolean mask of its own size, or None; True, or not zero, is allowed.

    Raises:
        ValueError: As many masks as images are needed.
    """
    if masks is None:
        return [None] * len(images)
    if len(masks) != len(images):
        raise ValueError(f"{len(images)} images need as many masks, not {len(masks)}")
    return [
        None if mask is None else pictures.resize_mask(np.asarray(mask) != 0, image.shape[:2])
        for image, mask in zip(images, masks, strict=True)
    ]
