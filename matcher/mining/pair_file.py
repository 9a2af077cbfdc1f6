"""Mined pairs and their file: one .npz without pickled objects, written whole or not at all."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from matcher.reading import read_npz, refusing
from matcher.storage import write
from matcher.types import Floats, Points

_VERSION = 1
_WHAT = "file of mined pairs"
_COLUMNS = {"points0": (2,), "points1": (2,), "confidence": (), "linear1_from_0": (2, 2)}


@dataclass(frozen=True, eq=False)
class MinedPair:
    """Verified matches of two photographs. A place without a match is unknown, not unmatched.

    Attributes:
        image0: Row of the photograph in its collection.
        image1: Likewise.
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1.
        confidence: (N,) in [0, 1]: how well the pixels round both points correlate; at least 0.5 for a point
            that many views confirm.
        linear1_from_0: (N, 2, 2) local linear map of each match: how a small step in image 0 looks in image 1.
        held_out: Kept for validation: no pair with `held_out` False shows either photograph.
    """

    image0: int
    image1: int
    points0: Points
    points1: Points
    confidence: Floats
    linear1_from_0: Floats
    held_out: bool = False

    def __len__(self) -> int:
        return len(self.points0)


@dataclass(frozen=True, eq=False)
class Collection:
    """Photographs and the pairs of them whose matches are known.

    Attributes:
        images: Paths of the photographs.
        sizes: Height and width of each, upright as `matcher.read` gives it: the pixels of the points.
        pairs: Of rows of `images`.
        origin: How it was made: teacher, options, counts.
    """

    images: tuple[Path, ...]
    sizes: tuple[tuple[int, int], ...]
    pairs: tuple[MinedPair, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)


def join(collections: Sequence[Collection]) -> Collection:
    """Make one collection of several; `origin` is that of the first."""
    images: list[Path] = []
    sizes: list[tuple[int, int]] = []
    pairs: list[MinedPair] = []
    for collection in collections:
        start = len(images)
        images += collection.images
        sizes += collection.sizes
        pairs += [
            replace(pair, image0=pair.image0 + start, image1=pair.image1 + start)
            for pair in collection.pairs
        ]
    origin = collections[0].origin if collections else {}
    return Collection(tuple(images), tuple(sizes), tuple(pairs), origin)


def save_pairs(collection: Collection, path: str | Path) -> Path:
    """Write a collection.

    Paths of photographs are written relative to the folder of the file where they lie below it, else in full.

    Args:
        collection: Any number of pairs.
        path: Ends in .npz; missing folders are made.

    Returns:
        The path.

    Raises:
        ValueError: The name has another ending.
    """
    path = Path(path)
    if path.suffix.lower() != ".npz":
        raise ValueError(f"{path} must end in .npz")
    pairs = collection.pairs
    home = path.parent.resolve()
    header = {"version": _VERSION, "origin": dict(collection.origin)}
    arrays = {
        "header": np.array(json.dumps(header, sort_keys=True)),
        "images": np.array([_portable(image, home) for image in collection.images], np.str_),
        "sizes": np.array(collection.sizes, np.int32).reshape(-1, 2),
        "pairs": np.array([[p.image0, p.image1] for p in pairs], np.int32).reshape(-1, 2),
        "counts": np.array([len(pair) for pair in pairs], np.int64),
        "held_out": np.array([pair.held_out for pair in pairs], np.bool_),
        **{name: _stack(pairs, name, shape) for name, shape in _COLUMNS.items()},
    }
    binary = io.BytesIO()
    np.savez_compressed(binary, allow_pickle=False, **arrays)
    return write(path, binary.getvalue())


def load_pairs(path: str | Path) -> Collection:
    """Read a collection that `save_pairs` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no file of mined pairs, or one of a version that this package does not know.
    """
    path = Path(path)
    arrays = read_npz(path, _WHAT)
    with refusing(path, _WHAT):
        header = json.loads(str(arrays["header"]))
        version, origin = header["version"], dict(header["origin"])
        pairs = tuple(_pairs(arrays))
        home = path.parent.resolve()
        images = tuple(home / name for name in arrays["images"].tolist())
        sizes = tuple((height, width) for height, width in arrays["sizes"].tolist())
    if version != _VERSION:
        raise ValueError(f"{path} has version {version}, not {_VERSION}")
    return Collection(images, sizes, pairs, origin)


def _portable(image: Path, home: Path) -> str:
    image = image.resolve()
    return (image.relative_to(home) if image.is_relative_to(home) else image).as_posix()


def _stack(pairs: Sequence[MinedPair], name: str, shape: tuple[int, ...]) -> Floats:
    """Put the arrays of all pairs behind each other."""
    parts = [np.zeros((0, *shape), np.float32), *(getattr(pair, name) for pair in pairs)]
    return np.concatenate(parts).astype(np.float32)


def _pairs(arrays: Mapping[str, Any]) -> Iterable[MinedPair]:
    """Cut the long arrays at the borders of the pairs."""
    images, ends = arrays["pairs"], np.cumsum(arrays["counts"])
    if len(images) and (images.min() < 0 or images.max() >= len(arrays["images"])):
        raise ValueError("a pair names a photograph that is not listed")
    total = int(ends[-1]) if len(ends) else 0
    for name, shape in _COLUMNS.items():
        if arrays[name].shape != (total, *shape):
            raise ValueError(f"{name} must be {(total, *shape)}, not {arrays[name].shape}")
    for row, end in enumerate(ends.tolist()):
        own = slice(end - int(arrays["counts"][row]), end)
        columns = {name: arrays[name][own] for name in _COLUMNS}
        image0, image1 = images[row].tolist()
        yield MinedPair(image0, image1, **columns, held_out=bool(arrays["held_out"][row]))
