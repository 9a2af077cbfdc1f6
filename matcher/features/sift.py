"""SIFT keypoints of OpenCV with RootSIFT descriptors.

Sources: Lowe, Distinctive Image Features from Scale-Invariant Keypoints, IJCV 2004; Arandjelovic
and Zisserman, Three things everyone should know to improve object retrieval, CVPR 2012 (RootSIFT).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from matcher.extras import require
from matcher.features import Keypoints, fit_masks
from matcher.features._choice import Choice
from matcher.features._opencv import bytes_of, places
from matcher.types import Floats, Image, Mask


@dataclass(frozen=True)
class Options(Choice):
    """OpenCV's choices, and those that every front end has.

    Attributes:
        contrast: Least contrast of a blob, OpenCV's `contrastThreshold`.
        edge: Greatest ratio of curvatures, OpenCV's `edgeThreshold`.
        octave_layers: Scales in an octave.
        sigma: Blur of the first octave, in pixels.
    """

    max_keypoints: int | None = 2048
    contrast: float = 0.04
    edge: float = 10
    octave_layers: int = 3
    sigma: float = 1.6


class SIFTFrontEnd:
    """Find SIFT keypoints and describe them by RootSIFT. Scores are the blobs' contrasts."""

    name = "sift"
    channels = 128
    untrained = False

    def __init__(self, options: Options) -> None:
        cv2 = require("cv2", "sift")
        self.options = options
        # All are asked for: OpenCV would choose the best before masking. The precise doubling of
        # the image is needed for places that are right to better than a quarter pixel.
        self._detector = cv2.SIFT_create(
            nfeatures=0,
            nOctaveLayers=options.octave_layers,
            contrastThreshold=options.contrast,
            edgeThreshold=options.edge,
            sigma=options.sigma,
            enable_precise_upscale=True,
        )

    def detect(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Keypoints]:
        """Find keypoints; see `FrontEnd`."""
        masks = fit_masks(images, masks)
        return [self._keypoints(*each) for each in zip(images, masks, strict=True)]

    def _keypoints(self, image: Image, mask: Mask | None) -> Keypoints:
        found, descriptors = self._detector.detectAndCompute(bytes_of(image), None)
        if descriptors is None:
            descriptors = np.zeros((0, self.channels), np.float32)
        points, scales, angles, responses = places(found)
        rows = self.options.rows(points, responses, image, mask)
        return Keypoints(
            points[rows],
            np.clip(responses[rows], 0, 1),
            root(descriptors[rows]),
            scales[rows],
            angles[rows],
        )


def root(descriptors: Floats) -> Floats:
    """Turn (N, 128) SIFT into RootSIFT: square roots of shares, of unit length."""
    total = np.maximum(descriptors.sum(axis=1, keepdims=True), 1e-12)
    rooted: Floats = np.sqrt(descriptors / total).astype(np.float32)
    return rooted


def build(
    *,
    device: str = "auto",  # noqa: ARG001 - OpenCV's runs on the CPU
    weights: str | Path | None = "default",  # noqa: ARG001 - there are none
    **options: Any,
) -> SIFTFrontEnd:
    """Make the front end; see `matcher.features.build`."""
    return SIFTFrontEnd(Options(**options))
