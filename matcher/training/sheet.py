"""Draw what a network is trained on, to be looked at."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from matcher import storage
from matcher.synthesis.views import TwoViews
from matcher.training.samples import Samples

_ROWS, _COLUMNS = 6, 2  # pairs on a sheet
_STEP = 32  # pixels between marked places


def draw_sheet(samples: Samples, random: torch.Generator, path: Path) -> Path:
    """Draw pairs of one size side by side; dots of one colour are the same point.

    Args:
        samples: What to draw from.
        random: Their generator.
        path: Of a PNG or JPEG file.

    Returns:
        The path.

    Raises:
        ValueError: The name has another ending.
    """
    pairs: list[NDArray[np.uint8]] = []
    size: torch.Size | None = None
    while len(pairs) < _ROWS * _COLUMNS:
        views = samples.draw(random)
        size = size or views.image0.shape[2:]
        if views.image0.shape[2:] == size:
            pairs += [_pair(views.of(slice(item, item + 1))) for item in range(len(views))]
    rows = [np.hstack(pairs[start : start + _COLUMNS]) for start in range(0, len(pairs), _COLUMNS)]
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise ValueError(f"{path} must end in .png, .jpg or .jpeg")
    _, encoded = cv2.imencode(path.suffix, np.vstack(rows[:_ROWS]))
    return storage.write(path, encoded.tobytes())


def _pair(views: TwoViews) -> NDArray[np.uint8]:
    """Draw one pair."""
    both = torch.cat([views.image0, views.image1], 3)[0].mean(0)
    canvas = cv2.cvtColor((both.numpy() * 255).astype(np.uint8), cv2.COLOR_GRAY2BGR)
    height, width = views.image0.shape[2:]
    for row in range(_STEP // 2, height, _STEP):
        for column in range(_STEP // 2, width, _STEP):
            x, y = views.places0[0, row, column].tolist()
            if np.isfinite(x):
                hue = np.array([[[(37 * (row + 5 * column)) % 180, 255, 255]]], np.uint8)
                colour = cv2.cvtColor(hue, cv2.COLOR_HSV2BGR)[0, 0].tolist()
                for place in ((column, row), (round(x) + width, round(y))):
                    cv2.circle(canvas, place, 4, colour, -1, cv2.LINE_AA)
    return canvas.astype(np.uint8)
