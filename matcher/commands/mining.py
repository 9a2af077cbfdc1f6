"""The command `matcher mine`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from matcher import terminal
from matcher.options import Device, method_from

if TYPE_CHECKING:
    from matcher.mining.pair_file import Collection

_SAMPLES = 6  # pictures
_LINES = 150  # of a picture: more hide the photographs


def mine(
    folders: Annotated[
        list[Path], typer.Argument(exists=True, file_okay=False, help="Photographs of scenes.")
    ],
    out: Annotated[Path, typer.Option(help="The file of pairs, .npz.")],
    names: Annotated[str, typer.Option(help="Which files, such as 'castle_*'.")] = "*",
    teacher: Annotated[
        str, typer.Option(help="A method that matches listed keypoints; NAME:option=value too.")
    ] = "aliked-lightglue",
    partners: Annotated[int, typer.Option(help="Photographs to match each one with.")] = 12,
    held_out: Annotated[int, typer.Option(min=0, help="Pairs kept for validation.")] = 50,
    pictures: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder for pictures of some pairs.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Mine training pairs from photographs: match, verify by structure from motion, spread.

    Every folder is taken for itself; a folder may hold several scenes.
    """
    from matcher import matching
    from matcher.mining.miner import MineOptions
    from matcher.mining.miner import mine as mine_folder
    from matcher.mining.pair_file import join, save_pairs
    from matcher.mining.regions import hold_out

    if out.suffix.lower() != ".npz":  # before the work is done, not after
        raise typer.BadParameter(f"{out} must end in .npz")
    found = [_photographs(folder, names) for folder in folders]
    name, fields = method_from(teacher)
    with terminal.working(f"loading {teacher}"):
        made = matching.create(name, **{"device": device, "refine": False, "scales": (), **fields})
    options = MineOptions(partners=partners)
    collections = []
    for folder, paths in zip(folders, found, strict=True):
        with terminal.bar(f"mining {folder.name}") as advance:
            collections.append(
                mine_folder(paths, made, options, lambda _, done, total: advance(done, total))
            )
        terminal.print_line(f"{folder}: {_summary(collections[-1])}")
    whole = hold_out(join(collections), held_out)
    written = [save_pairs(whole, out)]
    written += [] if pictures is None else _draw(whole, pictures)
    kept = sum(pair.held_out for pair in whole.pairs)
    terminal.finish(f"{len(whole.pairs) - kept} pairs to learn from, {kept} held out", written)


def _photographs(folder: Path, names: str) -> list[Path]:
    """List the photographs of a folder whose names fit."""
    from matcher.images import list_images

    paths = [path for path in list_images(folder)[0] if path.match(names)]
    if len(paths) < 2:
        raise ValueError(f"{folder} has {len(paths)} photographs named {names!r}; 2 are the least")
    return paths


def _summary(collection: Collection) -> str:
    """Say what was found."""
    origin, pairs = collection.origin, collection.pairs
    return (
        f"{len(collection.images)} photographs, {origin['verified']} of {origin['candidates']} "
        f"candidates verified, {origin['placed']} photographs placed in {origin['models']} models, "
        f"{len(pairs)} pairs with {sum(map(len, pairs))} matches"
    )


def _draw(collection: Collection, folder: Path) -> Sequence[Path]:
    """Draw some pairs with some of their matches, evenly chosen."""
    import numpy as np

    from matcher.explore.plots import draw_matches
    from matcher.types import Matches

    written = []
    chosen = np.linspace(0, len(collection.pairs) - 1, min(_SAMPLES, len(collection.pairs)))
    for number, row in enumerate(chosen.round().astype(int).tolist()):
        pair = collection.pairs[row]
        some = np.linspace(0, len(pair) - 1, min(_LINES, len(pair))).round().astype(int)
        matches = Matches(pair.points0[some], pair.points1[some], pair.confidence[some]).sorted()
        image0, image1 = collection.images[pair.image0], collection.images[pair.image1]
        title = f"{image0.name} ↔ {image1.name}   {len(pair)} matches"
        path = folder / f"pair_{number}.png"
        written.append(draw_matches(image0, image1, matches, path, title=title))
    return written
