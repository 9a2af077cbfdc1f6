"""Keep descriptions in files: lossless, written whole or not at all."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import numpy as np

from matcher.types import Description

_FORMAT = 1  # of the file; another number is refused
_NEEDED = ("image", "points", "scores", "descriptors")
_OPTIONAL = ("mask", "scales", "angles")
_MAP = "map:"  # before the names of a method's own arrays


def save(description: Description, path: str | Path) -> Path:
    """Write a description as .npz. Positions stay float32, and every array keeps its type.

    Args:
        description: From a method's `describe`.
        path: Where to; what stood there is replaced.

    Raises:
        ValueError: It holds more than one description: the image's tiles, turns or sizes.
    """
    if type(description) is not Description:
        raise ValueError(
            f"a {type(description).__name__} holds an image in several forms (tiles, turns, scales) "
            "and cannot be saved; save what the method without these options describes"
        )
    target = Path(path)
    arrays = {name: getattr(description, name) for name in (*_NEEDED, *_OPTIONAL)}
    arrays |= {_MAP + name: array for name, array in description.maps.items()}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    about = {
        "format": _FORMAT,
        "method": description.method,
        "untrained": description.untrained,
        "fields": sorted(arrays),
    }
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **arrays)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def load(path: str | Path) -> Description:
    """Read a description that `save` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no description, of another format, or a field is missing or misshapen.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop("about")))
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise ValueError(f"{path} is no saved description: {error}") from error
    if about.get("format") != _FORMAT:
        raise ValueError(f"{path} has format {about.get('format')}, not {_FORMAT}")
    missing = sorted({*about["fields"], *_NEEDED} - set(arrays))
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    return Description(
        method=about["method"],
        untrained=about["untrained"],
        maps={name[len(_MAP) :]: array for name, array in arrays.items() if name.startswith(_MAP)},
        image=arrays["image"],
        mask=arrays.get("mask"),
        points=arrays["points"],
        scores=arrays["scores"],
        descriptors=arrays["descriptors"],
        scales=arrays.get("scales"),
        angles=arrays.get("angles"),
    )
