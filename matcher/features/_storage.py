"""Keep descriptions in files: lossless, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from matcher.reading import read_npz, refusing
from matcher.storage import replacing
from matcher.types import Description

_WHAT = "saved description"
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
        ValueError: It holds more than one description: those of the image's tiles.
    """
    if type(description) is not Description:
        raise ValueError(
            f"a {type(description).__name__} holds an image in several parts and cannot be saved; "
            "save what the method without tile=... describes"
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
    with replacing(target) as part, part.open("wb") as file:
        np.savez(file, about=np.array(json.dumps(about)), **arrays)
    return target


def load(path: str | Path) -> Description:
    """Read a description that `save` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no description, of another format, or a field is missing or misshapen.
    """
    arrays = read_npz(path, _WHAT)
    with refusing(path, _WHAT):
        about = json.loads(str(arrays.pop("about")))
        number, method, untrained = about.get("format"), str(about["method"]), about["untrained"]
        missing = sorted({*about["fields"], *_NEEDED} - set(arrays))
    if number != _FORMAT:
        raise ValueError(f"{path} has format {number}, not {_FORMAT}")
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    return Description(
        method=method,
        untrained=bool(untrained),
        maps={name[len(_MAP) :]: array for name, array in arrays.items() if name.startswith(_MAP)},
        image=arrays["image"],
        mask=arrays.get("mask"),
        points=arrays["points"],
        scores=arrays["scores"],
        descriptors=arrays["descriptors"],
        scales=arrays.get("scales"),
        angles=arrays.get("angles"),
    )
