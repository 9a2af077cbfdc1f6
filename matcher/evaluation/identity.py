"""Say what a method is, by class, options and weights: results of two are never mixed up."""

from __future__ import annotations

import glob
import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from matcher.matching import Refined

_DEEPEST = 6  # attributes of attributes that count


def identity(method: Any) -> str:
    """Describe a method in one line that is the same in every run.

    Methods are told apart by class, by every plain attribute, by the options and weights of their
    parts, and, outside of this package, by the text of their class or function. What a function
    sees beyond its own text is not looked at; other callable objects are never taken for each
    other.

    Args:
        method: A method or a function of two images.
    """
    if isinstance(method, Refined):
        return f"{identity(method.method)} refined" + " and grown" * method.grow
    if inspect.isfunction(method):
        return f"{method.__module__}.{method.__qualname__} {_source_hash(method)}"
    kind = type(method)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not hasattr(method, "describe"):
        return f"{name} {method!r}"  # with its address
    source = "" if name.startswith("matcher.") else f" {_source_hash(kind)}"
    return f"{name}{source}{_attributes(method, 0)}"


def _state(value: Any, depth: int) -> str:
    """Write a value: plain ones as they are, numbers by their hash, others by their parts."""
    if value is None or isinstance(value, (bool, int, float, str, torch.device, torch.dtype)):
        return str(value)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_state(item, depth + 1) for item in value) + "]"
    if isinstance(value, Mapping):
        parts = (f"{name}={_state(item, depth + 1)}" for name, item in sorted(value.items()))
        return "{" + ", ".join(parts) + "}"
    if numbers := _numbers(value):
        return (
            f"{type(value).__name__} {numbers} {_state(getattr(value, 'config', None), depth + 1)}"
        )
    ours = is_dataclass(value) or type(value).__module__.startswith("matcher.")
    return type(value).__name__ + (_attributes(value, depth) if ours and depth < _DEEPEST else "")


def _numbers(value: Any) -> str:
    """Hash arrays, weights and files; empty for what is none of them."""
    if isinstance(value, np.ndarray):
        return _hash(value.tobytes())
    if isinstance(value, torch.nn.Module):
        return _weights_hash(value)
    path = getattr(value, "_model_path", None)  # of a session of ONNX Runtime
    path = value if isinstance(value, Path) else path
    return _files_hash(Path(path)) if path else ""


def _attributes(value: Any, depth: int) -> str:
    known = sorted(getattr(value, "__dict__", {}).items())
    return "(" + ", ".join(f"{name}={_state(item, depth + 1)}" for name, item in known) + ")"


def _weights_hash(network: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(name.encode() + flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _files_hash(path: Path) -> str:
    """Hash a file, or its name where there is none, with files that hold more of it: a.onnx.data."""
    digest = hashlib.sha256(path.name.encode())
    for part in sorted(path.parent.glob(f"{glob.escape(path.name)}*")):
        if part.is_file():
            digest.update(part.name.encode() + part.read_bytes())
    return digest.hexdigest()[:16]


def _source_hash(kind: type | Callable[..., Any]) -> str:
    try:
        return _hash(inspect.getsource(kind).encode())
    except (OSError, TypeError):  # typed at a prompt, or compiled
        return "unknown source"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
