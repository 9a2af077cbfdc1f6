"""Trained networks of the method `superglue`: a folder with a recipe, or the official files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from matcher import assets
from matcher import weights as published
from matcher.nn.superglue import Config, SuperGlue, published_state
from matcher.reading import read_toml


@dataclass(frozen=True)
class Recipe:
    """What `recipe.toml` of a model's folder says.

    Attributes:
        front_end: Whose keypoints the network was made for.
        threshold: Least probability of a match.
        licence: Of the weights.
        network: Fields of the network's `Config`.
        layers: Registered weights that hold the layers, or held them before the training;
            `weights.safetensors` beside the recipe, where there is one, holds all.
        dustbin: Of the transport, for registered layers.
        temperature: Of the similarities, for registered layers.
        model_sha256: `matcher.weights.fingerprint` of `weights.safetensors` and `network`.
        method: "superglue".
        training: How the network is trained; for `matcher train`.
        made: How it was made; for the reader.
    """

    front_end: str
    threshold: float
    licence: str
    network: dict[str, Any]
    layers: str = ""
    dustbin: float = 0.0
    temperature: float = 1.0
    model_sha256: str = ""
    method: str = "superglue"
    training: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A network with what goes with its weights.

    Attributes:
        network: Ready for inference.
        threshold: Least probability of a match.
        licence: Of the weights; empty where they are random.
        untrained: True where they are random.
    """

    network: SuperGlue
    threshold: float
    licence: str = ""
    untrained: bool = False


def trained(front_end: str, weights: str | Path, changes: dict[str, Any]) -> Model:
    """Load a model folder.

    Args:
        front_end: Whose keypoints will be matched.
        weights: "default" for the folder that ships for this front end, else a folder.
        changes: Fields of the network's `Config` that go over the recipe's.

    Raises:
        ValueError: No network was trained for the front end, or the weights do not fit the recipe.
        FileNotFoundError: The folder has no recipe, or the weights were not fetched.
        TypeError: The recipe has an unknown field.
    """
    folder = _shipped(front_end) if weights == "default" else Path(weights).expanduser()
    path = folder / "recipe.toml"
    if not path.is_file():
        raise FileNotFoundError(f"no {path}: weights must be a folder with recipe.toml and weights")
    recipe = Recipe(**read_toml(path))
    if recipe.front_end != front_end:
        raise ValueError(f"{folder} was trained on {recipe.front_end}, not {front_end}")
    network = SuperGlue(Config(**{**recipe.network, **changes}))
    _fill(network, recipe, folder)
    return Model(network.eval(), recipe.threshold, recipe.licence)


def official(place: str, weights: str | Path, changes: dict[str, Any]) -> Model:
    """Load a published network, "outdoor" or "indoor": from the cache, a folder or a file.

    Raises:
        ValueError: The file is damaged or not the published layout.
        FileNotFoundError: It is not there; the message says how to get it.
    """
    name = f"superglue-{place}"
    network = SuperGlue(Config(**changes))
    state = published_state(published.chosen_state(weights, name), network.config)
    published.load_strict(network, state, name)
    # 0.2 is the published threshold.
    return Model(network.eval(), 0.2, published.entry(name).licence)


def random(config: Config) -> Model:
    """Make a network that was never trained, the same one every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Model(SuperGlue(config).eval(), 0.0, untrained=True)


def _shipped(front_end: str) -> Path:
    """Find the folder of a front end's model."""
    models = assets.folder("models")
    folder = models / f"superglue-{front_end}"
    if not (folder / "recipe.toml").is_file():
        found = sorted(path.parent.name for path in models.glob("superglue-*/recipe.toml"))
        there = ", ".join(name.removeprefix("superglue-") for name in found)
        raise ValueError(
            f"no network was trained for front end {front_end!r}; there are {there}. "
            "weights=None gives an untrained one, weights=FOLDER yours"
        )
    return folder


def _fill(network: SuperGlue, recipe: Recipe, folder: Path) -> None:
    """Load the folder's own weights, or the registered layers that its recipe names."""
    state = published.of_folder(folder, vars(recipe))
    if state is None:
        state = published_state(published.state_dict(recipe.layers), network.config)
        state["dustbin"] = torch.tensor(recipe.dustbin)
        state["context.temperature"] = torch.tensor(recipe.temperature)
    published.load_strict(network, state, str(folder))
