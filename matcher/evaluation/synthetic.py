"""Make the benchmark that needs no download: pairs with exact truth from the shipped photographs.

    viewpoint   a plane from elsewhere                  16 pairs
    light       the same place under another light      16
    blur        levels: standard deviation, pixels      16
    noise       levels: standard deviation, of white    16
    rotation    levels: degrees in the image plane      36
    scale       levels: times                           20
    scene       planes and relief that hide each other  20, with depth
    unrelated   two photographs                          8

Numbers come from one seed, and pixels are rounded to 8 bits: the same code makes the same files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as PilImage
from scipy.ndimage import gaussian_filter
from torch import Tensor

from matcher import assets, images, storage
from matcher.datasets import load_pairs
from matcher.synthesis import homographies, light, scenes
from matcher.synthesis.photographs import Photographs
from matcher.synthesis.surfaces import FAR
from matcher.synthesis.views import pixel_grid
from matcher.types import Image, Matrix, Pair

VERSION = 1
SIZE = (360, 480)  # height and width of all images
ANGLES = tuple(range(0, 360, 30))
SCALES = (1.0, 1.5, 2.0, 3.0, 4.0)
BLURS = (1.0, 2.0, 3.0, 4.0)
NOISES = (0.02, 0.05, 0.1, 0.2)
SCENES = 20

_SENSOR = 0.01  # noise of every image: no two show the same numbers
PHOTOGRAPH = 800  # pixels of the long side; they are not larger
_VIEWPOINT = homographies.Config(turn_degrees=10.0, any_turn=0.0, zoom_octaves=0.3)
_LIGHT = light.Config(exposure=1.0, shadow=0.6, spot=0.4, night=0.3, blur=0, motion=0, noise=0)
_GENTLE = light.Config(exposure=0.5, shadow=0, spot=0, night=0, blur=0, motion=0, noise=0, jpeg=0)


@dataclass(frozen=True, eq=False)
class Made:
    """A pair before it is written."""

    group: str
    name: str
    image0: Image
    image1: Image
    truth: dict[str, Any]
    level: float | None = None
    depths: tuple[Image, Image] | None = None


def synthetic_pairs(folder: str | Path | None = None) -> list[Pair]:
    """Load the benchmark; the first time, make it.

    Args:
        folder: Where its files lie or shall lie, 90 MB; by default in the cache of the package.
    """
    place = Path(folder or assets.cache_folder() / f"synthetic-{VERSION}")
    if not (place / "pairs.json").exists():
        write(place)
    return load_pairs(place / "pairs.json")


def write(folder: Path) -> Path:
    """Make all pairs; the manifest is written last, so what has one is whole.

    Returns:
        The manifest.
    """
    random = torch.Generator().manual_seed(VERSION)
    paths = photograph_paths()
    photographs = [Photographs.read([path], PHOTOGRAPH, colour=True) for path in paths]
    together = Photographs.read(paths, PHOTOGRAPH, colour=True)
    entries = []
    for made in (
        *_planar("viewpoint", photographs, random, _VIEWPOINT, _GENTLE),
        *_planar("light", photographs, random, homographies.Config(10.0, 0.0, 0.1), _LIGHT),
        *_blurred(photographs, random),
        *_noisy(photographs, random),
        *_turned(photographs, random),
        *_zoomed(photographs, random),
        *_scenes(together, random),
        *_unrelated(photographs),
    ):
        entries.append(saved(made, folder, random))
    return storage.write(folder / "pairs.json", (json.dumps(entries, indent=1) + "\n").encode())


def photograph_paths() -> list[Path]:
    """List the shipped photographs."""
    return images.list_images(assets.folder("data") / "photos")[0]


def _planar(
    group: str,
    photographs: Sequence[Photographs],
    random: torch.Generator,
    views: homographies.Config,
    changes: light.Config,
) -> Iterator[Made]:
    """Show each photograph from two sides."""
    for number, photograph in enumerate(photographs):
        pair, maps = homographies.draw(photograph, 1, SIZE, random, views)
        image0, image1 = (
            light.change(each, random, changes) for each in (pair.image0, pair.image1)
        )
        yield Made(group, f"{number:02}", array(image0), array(image1), _planar_truth(maps[0]))


def _blurred(photographs: Sequence[Photographs], random: torch.Generator) -> Iterator[Made]:
    for number, level in each_level(photographs, BLURS, 4):
        made = moved(
            photographs[number], f"{level:g} {number:02}", random, group="blur", level=level
        )
        blurred = gaussian_filter(made.image1, (level, level, 0), mode="nearest")
        yield Made(**{**vars(made), "image1": blurred})


def _noisy(photographs: Sequence[Photographs], random: torch.Generator) -> Iterator[Made]:
    for number, level in each_level(photographs, NOISES, 4):
        made = moved(
            photographs[number], f"{level:g} {number:02}", random, group="noise", level=level
        )
        noise = level * torch.randn(made.image1.shape, generator=random).numpy()
        yield Made(**{**vars(made), "image1": made.image1 + noise})


def _turned(photographs: Sequence[Photographs], random: torch.Generator) -> Iterator[Made]:
    for number, level in each_level(photographs, ANGLES, 3):
        turn = math.radians(level)
        yield moved(
            photographs[number],
            f"{level:g} {number:02}",
            random,
            group="rotation",
            level=level,
            turn=turn,
        )


def _zoomed(photographs: Sequence[Photographs], random: torch.Generator) -> Iterator[Made]:
    for number, level in each_level(photographs, SCALES, 4):
        yield moved(
            photographs[number],
            f"{level:g} {number:02}",
            random,
            group="scale",
            level=level,
            zoom=level,
        )


def each_level(
    photographs: Sequence[Photographs], levels: tuple[float, ...], copies: int
) -> Iterator[tuple[int, float]]:
    """Give every level `copies` photographs, in turn."""
    chosen = [level for level in levels for _ in range(copies)]
    return ((5 * rank % len(photographs), level) for rank, level in enumerate(chosen))


def moved(  # noqa: PLR0913  two of them are options
    photograph: Photographs,
    name: str,
    random: torch.Generator,
    *,
    group: str,
    level: float,
    turn: float = 0.0,
    zoom: float = 1.0,
) -> Made:
    """Turn and zoom a photograph about the middle, and shift it by up to 8 pixels."""
    textures = photograph.chosen(torch.zeros(1, dtype=torch.long))
    photo_from_0 = homographies.crops(textures.sizes, SIZE, random, (1.0, 1.0))
    middle = torch.tensor([SIZE[1] - 1, SIZE[0] - 1]) / 2
    shift = 16 * torch.rand(2, generator=random) - 8
    linear = zoom * torch.tensor(
        [[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]]
    )
    pixels1_from_0 = torch.eye(3)
    pixels1_from_0[:2, :2] = linear
    pixels1_from_0[:2, 2] = middle - linear @ middle + shift
    grid = pixel_grid(*SIZE, torch.device("cpu"))[None]
    step = photo_from_0[:, 0, 0]
    image0 = textures.sample(homographies.transform(photo_from_0, grid), step)
    photo_from_1 = photo_from_0 @ torch.linalg.inv(pixels1_from_0)
    image1 = textures.sample(homographies.transform(photo_from_1, grid), step / zoom)
    image1 = light.change(image1, random, _GENTLE)
    truth = _planar_truth(pixels1_from_0)
    return Made(group, name, array(image0), array(image1), truth, level)


def _scenes(photographs: Photographs, random: torch.Generator) -> Iterator[Made]:
    for number in range(SCENES):
        pair, cameras, seen = scenes.draw(photographs, 1, SIZE, random)
        image0, image1 = (
            light.change(each, random, _GENTLE) for each in (pair.image0, pair.image1)
        )
        depths = [torch.where(view.depth[0] < FAR, view.depth[0], 0.0).numpy() for view in seen]
        rotation = (cameras[1].rotation[0] @ cameras[0].rotation[0].mT).double()
        translation = (
            cameras[1].translation[0].double() - rotation @ cameras[0].translation[0].double()
        )
        truth = {
            "type": "depth",
            "K0": cameras[0].intrinsics[0].tolist(),
            "K1": cameras[1].intrinsics[0].tolist(),
            "R_0to1": rotation.tolist(),
            "t_0to1": translation.tolist(),
        }
        yield Made(
            "scene",
            f"{number:02}",
            array(image0),
            array(image1),
            truth,
            depths=(depths[0], depths[1]),
        )


def _unrelated(photographs: Sequence[Photographs]) -> Iterator[Made]:
    grid = pixel_grid(*SIZE, torch.device("cpu"))[None]
    random = torch.Generator().manual_seed(VERSION)
    shown = []
    for photograph in photographs:
        textures = photograph.chosen(torch.zeros(1, dtype=torch.long))
        photo_from_view = homographies.crops(textures.sizes, SIZE, random, (1.0, 1.0))
        places = homographies.transform(photo_from_view, grid)
        shown.append(array(textures.sample(places, photo_from_view[:, 0, 0])))
    for number in range(0, len(shown) - 1, 2):
        name = f"{number:02} {number + 1:02}"
        yield Made("unrelated", name, shown[number], shown[number + 1], {"type": "unrelated"})


def _planar_truth(pixels1_from_0: Tensor) -> dict[str, Any]:
    matrix: Matrix = pixels1_from_0.double().numpy()
    return {"type": "homography", "H_0to1": matrix.tolist()}


def array(image: Tensor) -> Image:
    """Move (1, C, H, W) to (H, W, C)."""
    return np.ascontiguousarray(image[0].permute(1, 2, 0).numpy())


def saved(made: Made, folder: Path, random: torch.Generator) -> dict[str, Any]:
    """Add the sensor's noise, write the files, and make the entry of the manifest."""
    stem = f"{made.group}-{made.name.replace(' ', '-')}"
    entry: dict[str, Any] = {"id": f"{made.group} {made.name}", "dataset": made.group}
    for side, image in enumerate((made.image0, made.image1)):
        noise = _SENSOR * torch.randn(image.shape, generator=random).numpy()
        entry[f"image{side}"] = f"{stem}-{side}.png"
        _write_picture(folder / f"{stem}-{side}.png", image + noise)
        if made.depths is not None:
            entry[f"depth{side}"] = f"{stem}-{side}.npy"
            binary = BytesIO()
            np.save(binary, made.depths[side].astype(np.float32))
            storage.write(folder / f"{stem}-{side}.npy", binary.getvalue())
    if made.level is not None:
        entry["level"] = made.level
    return entry | made.truth


def _write_picture(path: Path, image: NDArray[np.floating[Any]]) -> None:
    levels = np.rint(image.clip(0, 1) * 255).astype(np.uint8)
    binary = BytesIO()
    PilImage.fromarray(levels).save(binary, "PNG")
    storage.write(path, binary.getvalue())
