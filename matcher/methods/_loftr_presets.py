"""The networks that `loftr` can be, with the decisions that each was trained with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from matcher import assets
from matcher.nn import loftr, loftr_light
from matcher.reading import read_toml
from matcher.weights import of_folder, state_dict

TOKENS = 900  # of the light preset: what each number costs and gains is in its card


@dataclass(frozen=True)
class Preset:
    """A network and the decisions that it was trained with.

    Attributes:
        make: Makes the network with random weights.
        threshold: Least score of a match.
        border: Cells along the edges of both images that never match.
        tokens: Most cells an image that are looked at; None for all.
        file: The checkpoint that the user brings; empty where the package has the weights.
        published: What that checkpoint was trained as; None where the package has the weights.
    """

    make: Callable[[], loftr.LoFTR | loftr_light.LoftrLight]
    threshold: float
    border: int = 0
    tokens: int | None = None
    file: str = ""
    published: loftr.Config | None = None


def _folder() -> Path:
    """Give the light network's folder."""
    return assets.folder("models") / "loftr-light"


def _recipe(folder: Path) -> dict[str, Any]:
    """Read how a light network is made, where it starts, and how it was trained."""
    path = folder / "recipe.toml"
    if not path.is_file():
        raise FileNotFoundError(f"no {path}: weights must be a file, or a folder with recipe.toml")
    return read_toml(path)


def _published(config: loftr.Config, file: str) -> Preset:
    """Make the preset of a published checkpoint: the authors' threshold and border."""
    make = functools.partial(loftr.LoFTR, config)
    return Preset(make, threshold=0.2, border=2, file=file, published=config)


PRESETS: Mapping[str, Preset] = {
    "light": Preset(
        lambda: loftr_light.LoftrLight(loftr_light.Config(**_recipe(_folder())["network"])),
        threshold=0.56,  # LighterGlue's 0.1 of the product whose fourth root a score is
        tokens=TOKENS,
    ),
    "official-outdoor": _published(loftr.OUTDOOR, "outdoor_ds.ckpt or kornia's loftr_outdoor.ckpt"),
    "official-indoor": _published(loftr.OUTDOOR, "indoor_ds.ckpt or kornia's loftr_indoor.ckpt"),
    "official-indoor-new": _published(loftr.INDOOR_NEW, "indoor_ds_new.ckpt"),
    "official-outdoor-ot": _published(loftr.OPTIMAL_TRANSPORT, "outdoor_ot.ckpt"),
    "official-indoor-ot": _published(loftr.OPTIMAL_TRANSPORT, "indoor_ot.ckpt"),
}


def start_weights(preset: str, weights: str | Path) -> Mapping[str, Tensor]:
    """Read the weights of a preset.

    Raises:
        ValueError: They are not in the package, and the user named no file; or the folder's weights
            are not those of its recipe.
        FileNotFoundError: The file, or the folder's recipe, is missing.
    """
    chosen = PRESETS[preset]
    if chosen.file and weights == "default":
        raise ValueError(f"preset {preset!r} needs weights=FILE: {chosen.file}")
    if chosen.published is not None:
        return loftr.published_state(state_dict(weights), chosen.published)
    folder = _folder() if weights == "default" else Path(weights).expanduser()
    if folder.is_dir():
        return _trained(folder)
    return state_dict(weights)


def licence(preset: str, weights: str | Path | None) -> str:
    """Name the licence of a preset's weights; empty where they are random or a bare file."""
    if weights is None or PRESETS[preset].published is not None:
        return ""
    folder = _folder() if weights == "default" else Path(weights).expanduser()
    return str(_recipe(folder).get("licence", "")) if folder.is_dir() else ""


def _trained(folder: Path) -> Mapping[str, Tensor]:
    """Read the weights of a model's folder, or make those that its recipe starts from."""
    recipe = _recipe(folder)
    own = of_folder(folder, recipe)
    if own is not None:
        return own
    begin = {part: state_dict(name) for part, name in recipe["start"].items()}
    return loftr_light.start(**begin, layers=recipe["network"]["layers"])
