"""Models to train: from a folder with recipe.toml to an objective, and back to a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from matcher import assets, storage, weights
from matcher.nn import loftr_light, superglue, xfeat
from matcher.reading import read_toml
from matcher.training import settings as training
from matcher.training.objectives import Cells, Keypoints, Objective
from matcher.training.settings import Mix, Settings

METHODS = ("superglue", "loftr")


@dataclass(frozen=True, eq=False)
class Model:
    """Something to train.

    Attributes:
        name: Of its folder.
        recipe: What its recipe.toml says.
        objective: The network with its loss.
        settings: Of the training.
    """

    name: str
    recipe: Mapping[str, Any]
    objective: Objective
    settings: Settings

    @property
    def reach(self) -> float:
        """Give the pixels within which a match is right: those of a keypoint, or of a cell."""
        return self.settings.near if self.recipe["method"] == "superglue" else xfeat.STRIDE

    @property
    def threshold(self) -> float:
        """Give the least probability of a match."""
        return float(self.recipe["threshold"])

    def state(self) -> dict[str, Tensor]:
        """Give the weights of the whole network, under the names that the method loads."""
        network = self.objective.trainable.network
        return {name: value.detach().cpu() for name, value in network.state_dict().items()}


def load(folder: str | Path, *, again: bool = False, **changes: Any) -> Model:
    """Prepare a model.

    Args:
        folder: With recipe.toml; or the name of a model of the package.
        again: Start where the recipe started, and not from the folder's weights.
        **changes: Of the recipe's `[training]` table.

    Raises:
        FileNotFoundError: There is no recipe.
        ValueError: The recipe names no method that can be trained, or lacks something.
        TypeError: A setting does not exist.
    """
    path = _recipe_path(folder)
    recipe = read_toml(path)
    if recipe.get("method") not in METHODS:
        raise ValueError(f"{path}: method must be one of {', '.join(METHODS)}")
    if recipe["method"] == "superglue" and recipe.get("front_end") != "xfeat":
        raise ValueError(
            f"{path}: front_end is {recipe.get('front_end')!r}; only xfeat's keypoints are trained on, "
            "scripts/calibrate_dustbin.py fits the transport of others"
        )
    settings = training.from_table(recipe.get("training", {}))
    settings = replace(settings, **{key: value for key, value in changes.items() if value})
    state = None if again else weights.of_folder(path.parent, recipe)
    make = _keypoints if recipe["method"] == "superglue" else _cells
    try:
        objective = Objective(make(recipe, settings, state), settings)
    except KeyError as error:
        raise ValueError(f"{path} lacks {error}") from error
    return Model(path.parent.name, recipe, objective, settings)


def with_real(model: Model, share: float) -> Model:
    """Let a share of the pairs be real; the other kinds keep their proportion."""
    mix = model.settings.mix
    left = (1 - share) / (1 - mix.real)
    mix = Mix(scenes=left * mix.scenes, unrelated=left * mix.unrelated, real=share)
    return replace(model, settings=replace(model.settings, mix=mix))


def write(model: Model, folder: Path, made: Mapping[str, Any]) -> None:
    """Write weights.safetensors, then recipe.toml, which the method `weights=FOLDER` reads.

    Args:
        model: Trained.
        folder: Made if missing.
        made: How it came about.
    """
    state = model.state()
    folder.mkdir(parents=True, exist_ok=True)
    weights.save(state, folder / "weights.safetensors")
    recipe = {key: value for key, value in model.recipe.items() if key not in _OF_THE_START}
    recipe |= {"model_sha256": weights.fingerprint(state, recipe["network"])}
    recipe |= {"training": training.to_table(model.settings), "made": dict(made)}
    started = {key: model.recipe[key] for key in _OF_THE_START if key in model.recipe}
    storage.write(folder / "recipe.toml", to_toml({**recipe, **started}).encode())


_OF_THE_START = ("layers", "dustbin", "temperature", "start")


def to_toml(table: Mapping[str, Any], above: str = "") -> str:
    """Write a table of plain values, lists and tables."""
    lines = [
        f"{key} = {json.dumps(value)}"
        for key, value in table.items()
        if not isinstance(value, dict)
    ]
    for key, value in table.items():
        if isinstance(value, dict):
            name = f"{above}{key}"
            lines += ["", f"[{name}]", to_toml(value, f"{name}.").rstrip("\n")]
    return "\n".join(lines) + "\n"


def _keypoints(
    recipe: Mapping[str, Any], settings: Settings, state: Mapping[str, Tensor] | None
) -> Keypoints:
    """Make the keypoint network from its weights, or from the layers that its recipe starts with."""
    network = superglue.SuperGlue(superglue.Config(**recipe["network"]))
    if state is None:
        layers = weights.state_dict(recipe["layers"])
        state = superglue.published_state(layers, network.config)
        state["dustbin"] = torch.tensor(float(recipe["dustbin"]))
        state["context.temperature"] = torch.tensor(float(recipe["temperature"]))
    weights.load_strict(network, state, "the model to train")
    front_end = xfeat.XFeat()
    weights.load_strict(front_end, weights.state_dict("xfeat"), "xfeat")
    return Keypoints(network, front_end, settings)


def _cells(
    recipe: Mapping[str, Any], settings: Settings, state: Mapping[str, Tensor] | None
) -> Cells:
    """Make the cell network from its weights, or from the files that its recipe starts with."""
    network = loftr_light.LoftrLight(loftr_light.Config(**recipe["network"]))
    if state is None:
        parts = {part: weights.state_dict(name) for part, name in recipe["start"].items()}
        state = loftr_light.start(**parts, layers=recipe["network"]["layers"])
    weights.load_strict(network, state, "the model to train")
    return Cells(network, settings)


def _recipe_path(folder: str | Path) -> Path:
    """Find a model's recipe."""
    shipped = assets.folder("models") / str(folder) / "recipe.toml"
    path = Path(folder).expanduser() / "recipe.toml"
    if path.is_file():
        return path
    if shipped.is_file():
        return shipped
    names = ", ".join(
        sorted(found.parent.name for found in shipped.parent.parent.glob("*/recipe.toml"))
    )
    raise FileNotFoundError(f"no {path}, and no model {str(folder)!r}; there are {names}")
