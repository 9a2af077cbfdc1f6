"""The methods, one file each: the file name registers it, `xfeat_lighterglue.py` is "xfeat-lighterglue".

A method's file has a class that keeps the `Matcher` interface and a function
`build(*, device, weights, **options)` that makes one. Files that begin with an underscore hold what methods share.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

from matcher.types import Matcher

BACKENDS = ("torch", "onnxruntime")


def names() -> list[str]:
    """List every method by name, sorted."""
    stems = [found.name for found in pkgutil.iter_modules(__path__)]
    return sorted(stem.replace("_", "-") for stem in stems if not stem.startswith("_"))


def build(
    name: str,
    *,
    device: str = "auto",
    weights: str | Path | None = "default",
    backend: str = "torch",
    **options: Any,
) -> Matcher:
    """Make a method, as published: without the stages that `matcher.create` puts round it.

    Args:
        name: One of `names()`.
        device: "auto" (a GPU where there is one), "cpu", "cuda", "cuda:1", "mps".
        weights: "default" for those that ship or were fetched, a file or folder, or None for random ones,
            whose results are marked `untrained`. Methods without weights ignore it.
        backend: "torch", or "onnxruntime" for exported networks; see `matcher.create`.
        **options: Fields of the method's own `Options`.

    Raises:
        ValueError: There is no such method.
        ImportError: The method needs an optional package; the message names the extra.
        TypeError: The method has no such option.
    """
    if name not in names():
        raise ValueError(f"no method {name!r}; there are {', '.join(names())}")
    if backend not in BACKENDS:
        raise ValueError(f"no backend {backend!r}; there are {', '.join(BACKENDS)}")
    if backend == "onnxruntime":
        runner = importlib.import_module(f"{__name__}._onnx")
        exported: Matcher = runner.build(name, device=device, weights=weights, **options)
        return exported
    need_torch(f"method {name!r}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    method: Matcher = module.build(device=device, weights=weights, **options)
    return method


def need_torch(what: str) -> None:
    """Refuse at once what cannot work without torch.

    Raises:
        ImportError: It is not installed.
    """
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        message = f"{what} needs torch, which `pip install tiepoint` brings; exported methods run "
        raise ImportError(
            f"{message}without it: backend='onnxruntime', refine=False", name="torch"
        ) from error
