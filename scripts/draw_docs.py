"""Draw the pictures of the documentation from a sample pair, small enough to keep.

python scripts/draw_docs.py --out docs/pictures
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image as PilImage

from matcher import datasets, methods, terminal
from matcher.explore.opened import open_pair
from matcher.explore.pictures import draw_pair

PAIR, LONG_SIDE, WIDTH, QUALITY = "facade", 640, 1000, 80  # pixels; JPEG's
SHOWN = {
    "loftr": (
        "matches",
        "epipolar",
        "stage-1-pixels",
        "stage-2-before",
        "stage-3-attention",
        "stage-4-after",
        "stage-5-assignment",
    ),
    "superglue": ("attention",),
}


def main(out: Annotated[Path, typer.Option(help="Folder of the pictures.")]) -> None:
    """Draw, shrink, write."""
    pair = next(pair for pair in datasets.sample_pairs() if pair.name == PAIR)
    makers = {name: partial(methods.build, name, device="cpu") for name in SHOWN}
    opened = open_pair(pair, makers, LONG_SIDE)
    written = []
    with tempfile.TemporaryDirectory() as folder:
        for method, names in SHOWN.items():
            drawn = {path.stem: path for path in draw_pair(opened, method, Path(folder) / method)}
            written += [_shrink(drawn[name], out / f"{method}-{name}.jpg") for name in names]
    size = sum(path.stat().st_size for path in written) / 1e3
    terminal.finish(f"{len(written)} pictures, {size:.0f} kB", written)


def _shrink(source: Path, target: Path) -> Path:
    """Write a picture as a JPEG of the documentation's width."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with PilImage.open(source) as picture:
        height = round(picture.height * WIDTH / picture.width)
        small = picture.convert("RGB").resize((WIDTH, height), PilImage.Resampling.LANCZOS)
    small.save(target, quality=QUALITY, optimize=True)
    return target


if __name__ == "__main__":
    typer.run(main)
