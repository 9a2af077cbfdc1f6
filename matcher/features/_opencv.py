"""What OpenCV's front ends share. OpenCV counts pixels as we do: (0, 0) is a pixel's centre."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher import images as pictures
from matcher.types import Floats, Image, Points


def bytes_of(image: Image) -> NDArray[np.uint8]:
    """Round an image in [0, 1] to the 256 grey levels that OpenCV's detectors take."""
    return np.rint(np.clip(pictures.grey(image), 0, 1) * 255).astype(np.uint8)


def places(found: Sequence[Any]) -> tuple[Points, Floats, Floats, Floats]:
    """Read (N, 2) pixels, (N,) radii, (N,) radians from +x to +y, and (N,) responses."""
    rows = [(*point.pt, point.size / 2, point.angle, point.response) for point in found]
    table = np.array(rows, np.float32).reshape(-1, 5)
    return table[:, :2], table[:, 2], np.deg2rad(table[:, 3]), table[:, 4]
