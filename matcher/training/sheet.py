"""Draw what a network is trained on, to be looked at."""

from __future__ import annotations

import colorsys
import io
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

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
    if path.suffix.lower() not in Image.registered_extensions():
        raise ValueError(f"{path} must end like a picture's name, such as .png or .jpg")
    pairs: list[Image.Image] = []
    size: torch.Size | None = None
    while len(pairs) < _ROWS * _COLUMNS:
        views = samples.draw(random)
        size = size or views.image0.shape[2:]
        if views.image0.shape[2:] == size:
            pairs += [_pair(views.of(slice(item, item + 1))) for item in range(len(views))]
    width, height = pairs[0].size
    sheet = Image.new("RGB", (_COLUMNS * width, _ROWS * height))
    for number, pair in enumerate(pairs[: _ROWS * _COLUMNS]):
        sheet.paste(pair, (number % _COLUMNS * width, number // _COLUMNS * height))
    file = io.BytesIO()
    sheet.save(file, Image.registered_extensions()[path.suffix.lower()])
    return storage.write(path, file.getvalue())


def _pair(views: TwoViews) -> Image.Image:
    """Draw one pair."""
    both = torch.cat([views.image0, views.image1], 3)[0].mean(0)
    picture = Image.fromarray((both.numpy() * 255).astype(np.uint8)).convert("RGB")
    canvas = ImageDraw.Draw(picture)
    height, width = views.image0.shape[2:]
    for row in range(_STEP // 2, height, _STEP):
        for column in range(_STEP // 2, width, _STEP):
            x, y = views.places0[0, row, column].tolist()
            if math.isfinite(x):
                share = (row + 5 * column) * 0.61803 % 1
                colour = tuple(round(255 * part) for part in colorsys.hsv_to_rgb(share, 1, 1))
                canvas.circle((column, row), 4, fill=colour)
                canvas.circle((x + width, y), 4, fill=colour)
    return picture
