"""Make the pairs of the protocol `template-search`: templates in scenes, at known places, or absent.

Each of the shipped photographs is the scene of three templates that were cut from it before it was
turned by any angle, zoomed by 0.7 to 1.4 times, lit anew and given noise, and of one that was cut
from another photograph. Numbers come from one seed: the same code makes the same files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from matcher import assets, storage
from matcher.evaluation.synthetic import (
    PHOTOGRAPH,
    SIZE,
    Made,
    moved,
    photograph_paths,
    saved,
)
from matcher.geometry.cameras import transfer
from matcher.synthesis.photographs import Photographs
from matcher.types import Image, Matrix

Ints: TypeAlias = NDArray[np.int64]

VERSION = 1
SIDES = (64, 97)  # of a template, pixels: at least, below
ZOOMS = (0.7, 1.4)
COPIES = 3  # of a photograph as a scene that holds its template

_TRIES = 40  # places of which the one with most contrast is cut out


def template_folder(folder: str | Path | None = None) -> Path:
    """Return the folder with the pairs; the first time, make them.

    Args:
        folder: Where they lie or shall lie, 20 MB; by default in the cache of the package.
    """
    place = Path(folder or assets.cache_folder() / f"template-search-{VERSION}")
    if not (place / "pairs.json").exists():
        write(place)
    return place


def write(folder: Path) -> Path:
    """Make all pairs; the manifest is written last, so what has one is whole.

    Returns:
        The manifest.
    """
    random = torch.Generator().manual_seed(VERSION)
    numbers = np.random.default_rng(VERSION)
    photographs = [Photographs.read([path], PHOTOGRAPH, colour=True) for path in photograph_paths()]
    made = [
        _placed(photograph, f"{number:02} {copy}", random, numbers)
        for number, photograph in enumerate(photographs)
        for copy in range(COPIES)
    ]
    made += _absent(made)
    entries = [saved(each, folder, random) for each in made]
    return storage.write(folder / "pairs.json", (json.dumps(entries, indent=1) + "\n").encode())


def _placed(
    photograph: Photographs, name: str, random: torch.Generator, numbers: np.random.Generator
) -> Made:
    """Cut a template out of a view, and turn and zoom the view to be the scene."""
    turn = float(numbers.uniform(-math.pi, math.pi))
    zoom = float(np.exp(numbers.uniform(*np.log(ZOOMS))))
    view = moved(photograph, name, random, group="placed", level=0.0, turn=turn, zoom=zoom)
    scene_from_view = np.array(view.truth["H_0to1"])
    corner, size = _cut(view.image0, scene_from_view, numbers)
    x, y = transfer(scene_from_view, (corner + (size - 1) / 2)[None])[0]
    (left, top), (width, height) = corner.tolist(), size.tolist()
    template = np.ascontiguousarray(view.image0[top : top + height, left : left + width])
    truth = {
        "type": "placed",
        "x": float(x),
        "y": float(y),
        "angle_degrees": math.degrees(turn),
        "scale": zoom,
    }
    return Made("placed", name, template, view.image1, truth)


def _cut(view: Image, scene_from_view: Matrix, numbers: np.random.Generator) -> tuple[Ints, Ints]:
    """Choose the corner (x, y) and size (width, height) of a template that the scene shows whole."""
    best: float = -1.0
    chosen: tuple[Ints, Ints] | None = None
    while chosen is None:
        for _ in range(_TRIES):
            size = numbers.integers(*SIDES, 2)
            corner = numbers.integers(0, np.array(SIZE[::-1]) - size)
            outline = corner + np.array([(0, 0), (1, 0), (1, 1), (0, 1)]) * (size - 1)
            places = transfer(scene_from_view, outline)
            inside = (places >= 0).all() and (places <= np.array(SIZE[::-1]) - 1).all()
            (left, top), (right, bottom) = corner, corner + size
            contrast = float(view[top:bottom, left:right].mean(axis=-1).std())
            if inside and contrast > best:
                best, chosen = contrast, (corner, size)
    return chosen


def _absent(made: Sequence[Made]) -> list[Made]:
    """Look for each photograph's first template in the next photograph's first scene."""
    firsts = made[::COPIES]
    return [
        Made("absent", one.name, one.image0, other.image1, {"type": "unrelated"})
        for one, other in zip(firsts, [*firsts[1:], firsts[0]], strict=True)
    ]
