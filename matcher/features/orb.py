"""ORB keypoints and descriptors of OpenCV.

Source: Rublee, Rabaud, Konolige, Bradski, ORB: an efficient alternative to SIFT or SURF, ICCV 2011.
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

_ALL = 1_000_000  # more than any image has
_EDGE = 31  # pixels along each edge without keypoints, OpenCV's `edgeThreshold`


@dataclass(frozen=True)
class Options(Choice):
    """OpenCV's choices, and those that every front end has.

    Attributes:
        fast_threshold: Least difference of grey levels on the circle round a corner.
        levels: Scales of the image.
        scale_factor: Between two scales.
    """

    max_keypoints: int | None = 2048
    fast_threshold: int = 20
    levels: int = 8
    scale_factor: float = 1.2


class ORBFrontEnd:
    """Find ORB keypoints. Scores are Harris responses over the highest one of the image.

    Descriptors are the 256 bits as ±1/16, so that their scalar product is 1 - 2 × (bits that
    differ) / 256.
    """

    name = "orb"
    channels = 256
    untrained = False

    def __init__(self, options: Options) -> None:
        cv2 = require("cv2", "orb")
        self.options = options
        # All are asked for: OpenCV would give each scale a fixed share, and so fewer than asked for.
        self._detector = cv2.ORB_create(
            nfeatures=_ALL,
            scaleFactor=options.scale_factor,
            nlevels=options.levels,
            fastThreshold=options.fast_threshold,
        )

    def detect(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Keypoints]:
        """Find keypoints; see `FrontEnd`."""
        masks = fit_masks(images, masks)
        return [self._keypoints(*each) for each in zip(images, masks, strict=True)]

    def _keypoints(self, image: Image, mask: Mask | None) -> Keypoints:
        found, bits = (), None
        if min(image.shape[:2]) > _EDGE:  # OpenCV fails on images of a few pixels
            found, bits = self._detector.detectAndCompute(bytes_of(image), None)
        if bits is None:
            bits = np.zeros((0, self.channels // 8), np.uint8)
        points, scales, angles, responses = places(found)
        rows = self.options.rows(points, responses, image, mask)
        highest = np.maximum(responses.max(initial=0), np.float32(1e-12))
        scores: Floats = np.clip(responses[rows] / highest, 0, 1).astype(np.float32)
        signs: Floats = (np.unpackbits(bits[rows], axis=1) / 8 - 1 / 16).astype(np.float32)
        return Keypoints(points[rows], scores, signs, scales[rows], angles[rows])


def build(
    *,
    device: str = "auto",  # noqa: ARG001 - OpenCV's runs on the CPU
    weights: str | Path | None = "default",  # noqa: ARG001 - there are none
    **options: Any,
) -> ORBFrontEnd:
    """Make the front end; see `matcher.features.build`."""
    return ORBFrontEnd(Options(**options))
