"""Train a model on half of a scene's photographs, and measure it on pairs of the other half.

    python scripts/experiments/finetuning.py PHOTOS --names 'park_*' --out FOLDER --minutes 30

Cameras come from structure from motion with SIFT, which no model under test has a part in. Every
second photograph is learned from (`matcher train MODEL --mine`); pairs of the others that see at
least a few of the same points are measured (`matcher evaluate`), before and after.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from matcher import storage, terminal
from matcher.images import list_images
from matcher.sfm.frontend import MethodChoice
from matcher.sfm.mapping import MapOptions, Model, View
from matcher.sfm.pipeline import Settings, reconstruct

SHARED = 10  # points of the model that both photographs of a pair see, at least


def main(
    photos: Annotated[Path, typer.Argument(exists=True, file_okay=False)],
    out: Annotated[Path, typer.Option(help="Folder for all that is made.")],
    names: Annotated[str, typer.Option(help="Which photographs of PHOTOS.")] = "*",
    model: Annotated[str, typer.Option(help="What to train.")] = "loftr-light",
    minutes: float = 30.0,
    pairs: Annotated[int, typer.Option(help="Most pairs to measure.")] = 120,
) -> None:
    """Reconstruct, split, train, measure."""
    listed = [path for path in list_images(photos)[0] if fnmatch(path.name, names)]
    scene = reconstructed(_copied(listed, out / "all"), out / "sfm")
    _copied(listed[::2], out / "learned")
    measured = [p.name for p in listed[1::2] if p.name in scene.views]
    manifest = write_pairs(scene, measured, out / "all", out / "pairs.json", pairs)
    trained = out / model
    if not (trained / "weights.safetensors").is_file():
        _matcher("train", model, "--photos", out / "learned", "--mine", "--minutes", minutes,
                 "--out", trained, "--validation-pairs", 60)  # fmt: skip
    method = model.partition("-")[0]
    rows = f"{method},{method}:weights={trained}"
    _matcher("evaluate", manifest, "-m", rows, "--refine", "both", "--out", out / "evaluation")


def reconstructed(folder: Path, out: Path) -> Model:
    """Find the cameras of all photographs, by SIFT."""
    settings = Settings(method=MethodChoice("sift"), mapping=MapOptions(), grow=False)
    with terminal.working("reconstructing"):
        models = reconstruct(folder, out, settings).models
    if not models:
        raise SystemExit("no model could be made of these photographs")
    terminal.print_line(f"{len(models[0].views)} photographs have their cameras")
    return models[0]


def write_pairs(scene: Model, names: list[str], images: Path, path: Path, most: int) -> Path:
    """Write the pairs of these photographs that see the same points, as `matcher evaluate` reads them."""
    views = [scene.views[name] for name in names]
    entries = [
        _entry(view0, view1, images)
        for view0, view1 in itertools.combinations(views, 2)
        if _shared(view0, view1) >= SHARED
    ]
    chosen = np.linspace(0, len(entries) - 1, min(most, len(entries))).round().astype(int)
    data = json.dumps([entries[number] for number in chosen], indent=1) + "\n"
    return storage.write(path, data.encode())


def _shared(view0: View, view1: View) -> int:
    points0, points1 = (set(view.seen[view.seen >= 0].tolist()) for view in (view0, view1))
    return len(points0 & points1)


def _entry(view0: View, view1: View, images: Path) -> dict[str, Any]:
    """Describe a pair by its cameras; their lenses are taken for free of distortion."""
    rotation = view1.pose.rotation @ view0.pose.rotation.T
    return {
        "id": f"{view0.name} {view1.name}",
        "dataset": images.parent.name,
        "type": "pose",
        "image0": str((images / view0.name).resolve()),
        "image1": str((images / view1.name).resolve()),
        "K0": view0.intrinsics.tolist(),
        "K1": view1.intrinsics.tolist(),
        "R_0to1": rotation.tolist(),
        "t_0to1": (view1.pose.translation - rotation @ view0.pose.translation).tolist(),
    }


def _copied(photographs: list[Path], folder: Path) -> Path:
    """Copy photographs into a folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    for photograph in photographs:
        shutil.copy2(photograph, folder / photograph.name)
    return folder


def _matcher(*words: object) -> None:
    """Run a command as a user would, and show it."""
    listed = [str(word) for word in words]
    terminal.print_line("$ matcher " + " ".join(listed))
    subprocess.run([sys.executable, "-m", "matcher", *listed], check=True)


if __name__ == "__main__":
    typer.run(main)
