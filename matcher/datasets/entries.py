"""Turn entries, tables of one pair each, into pairs with truth; whatever is wrong is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher import images
from matcher.datasets.fingerprints import image_size
from matcher.reading import read_npy
from matcher.types import (
    DenseMap,
    Floats,
    Homography,
    Labelled,
    Matrix,
    Pair,
    Placed,
    Truth,
    TwoView,
    TwoViewDepth,
    Unrelated,
)

_POSE = {"K0", "K1", "R_0to1", "t_0to1"}
_KEYS_OF = {
    "homography": {"H_0to1"},
    "template": {"H_0to1"},
    "placed": {"x", "y", "angle_degrees", "scale"},
    "labelled": {"points0", "points1"},
    "pose": _POSE,
    "depth": {*_POSE, "depth0", "depth1"},
    "disparity": {"disparity0"},
    "unrelated": set[str](),
    "unknown": set[str](),
}
_ALWAYS = {"id", "dataset", "type", "image0", "image1"}
_OPTIONAL = {
    "size0",
    "size1",
    "disparity_scale",
    "depth_scale",
    "level",
    "note",
    "rel_rot_deg",
    "turns",
}
_LARGEST = 1e300  # of a number: beyond it, squares overflow
_FILES = ("image0", "image1", "disparity0", "depth0", "depth1")


@dataclass(frozen=True)
class Entry:
    """One entry of a manifest or a layout.

    Attributes:
        values: By key; see `matcher.datasets.manifest`.
        folder: Where its paths start.
        place: What error messages name.
    """

    values: Mapping[str, Any]
    folder: Path
    place: str

    def error(self, key: str, problem: str) -> ValueError:
        """Make the error of one key."""
        return ValueError(f"{self.place}: {key} {problem}")

    def number(self, key: str) -> float | None:
        """Read a number that may be left out.

        Raises:
            ValueError: It is none, or not finite.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not abs(value) < _LARGEST
        ):
            raise self.error(key, f"must be a number, not {value!r}")
        return float(value)

    def text(self, key: str) -> str:
        """Read text that must be there."""
        value = self.values[key]
        if not isinstance(value, str) or not value or _broken(value):
            raise self.error(key, f"must be text, not {value!r}")
        return value

    def path(self, key: str) -> Path:
        """Read a path, which must not leave the folder."""
        path = (self.folder / self.text(key)).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise self.error(key, f"leaves the folder of the benchmark: {self.text(key)}")
        return path

    def matrix(self, key: str, shape: tuple[int, ...]) -> Matrix:
        """Read finite numbers of a shape; -1 stands for any length."""
        try:
            matrix = np.array(self.values[key], np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise self.error(key, "must be numbers") from error
        right = matrix.ndim == len(shape) and all(
            wanted in (-1, length) for wanted, length in zip(shape, matrix.shape, strict=True)
        )
        if not right or not np.isfinite(matrix).all():
            raise self.error(key, f"must be {shape} finite numbers, not {matrix.shape}")
        return matrix


def _broken(text: str) -> bool:
    """Tell text with half a character, which no file can hold."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def pairs_of(entries: Sequence[Entry]) -> list[Pair]:
    """Check entries and their files, and make pairs in their order.

    Raises:
        FileNotFoundError: Files are missing; the message lists them.
        ValueError: A wrong entry, or an id twice; the message names its place and key.
    """
    for entry in entries:
        _check_keys(entry)
    _require_files([entry.path(key) for entry in entries for key in _path_keys(entry)])
    pairs = [_pair(entry) for entry in entries]
    _require_unique(pairs, [entry.place for entry in entries])
    return pairs


def _check_keys(entry: Entry) -> None:
    """Refuse missing and unknown keys, and a pair of one image with itself."""
    keys = set(entry.values)
    if missing := _ALWAYS - keys:
        raise entry.error(", ".join(sorted(missing)), "missing")
    kind = entry.text("type")
    if kind not in _KEYS_OF:
        raise entry.error("type", f"{kind!r} is none of {', '.join(sorted(_KEYS_OF))}")
    if missing := _KEYS_OF[kind] - keys:
        raise entry.error(", ".join(sorted(missing)), f"missing, and type {kind!r} needs it")
    if unknown := keys - _ALWAYS - _OPTIONAL - _KEYS_OF[kind]:
        raise entry.error(", ".join(sorted(unknown)), f"unknown for type {kind!r}")
    if entry.text("image0") == entry.text("image1"):
        raise entry.error("image1", f"is the same file as image0: {entry.text('image1')}")


def _path_keys(entry: Entry) -> list[str]:
    return [key for key in _FILES if key in entry.values]


def _require_files(paths: Sequence[Path]) -> None:
    missing = sorted({str(path) for path in paths if not path.is_file()})
    if missing:
        shown = ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")
        raise FileNotFoundError(f"{len(missing)} of {len(set(paths))} files are missing: {shown}")


def _require_unique(pairs: Sequence[Pair], places: Sequence[str]) -> None:
    first: dict[str, str] = {}
    for pair, place in zip(pairs, places, strict=True):
        if pair.name in first:
            raise ValueError(f"{place}: id {pair.name!r} is also that of {first[pair.name]}")
        first[pair.name] = place


def _pair(entry: Entry) -> Pair:
    sizes = [_checked_size(entry, index) for index in (0, 1)]
    return Pair(
        name=entry.text("id"),
        image0=entry.path("image0"),
        image1=entry.path("image1"),
        truth=_truth(entry, sizes),
        group=entry.text("dataset"),
        level=entry.number("level"),
        turns=_turns(entry),
    )


def _turns(entry: Entry) -> tuple[int, int]:
    """Read the quarter turns of both images, none where they are left out."""
    turns = entry.values.get("turns", (0, 0))
    whole = isinstance(turns, Sequence) and all(type(each) is int for each in turns)
    if not whole or len(turns) != 2 or not set(turns) <= set(range(4)):
        raise entry.error("turns", f"must be two quarter turns of 0 to 3, not {turns!r}")
    return turns[0], turns[1]


def _checked_size(entry: Entry, index: int) -> tuple[int, int]:
    """Read (width, height) from the image file; another size in the entry means other frames."""
    try:
        size = image_size(entry.path(f"image{index}"))
    except (OSError, ValueError) as error:
        raise entry.error(f"image{index}", f"is no image: {error}") from error
    stated = entry.values.get(f"size{index}", size)
    if not isinstance(stated, Sequence) or tuple(stated) != size:
        shown = tuple(stated) if isinstance(stated, list) else repr(stated)
        raise entry.error(f"size{index}", f"is {shown}, and the image is {size}")
    return size


def _truth(entry: Entry, sizes: Sequence[tuple[int, int]]) -> Truth | None:
    kind = entry.text("type")
    if kind in ("unrelated", "unknown"):
        return Unrelated() if kind == "unrelated" else None
    if kind == "disparity":
        return _dense_map(entry)
    if kind == "placed":
        return _placed(entry, sizes[0])
    if kind == "labelled":
        return _labelled(entry)
    if kind in ("pose", "depth"):
        views = _two_view(entry, sizes)
        return views if kind == "pose" else _with_depth(entry, sizes, views)
    matrix = entry.matrix("H_0to1", (3, 3))
    if abs(np.linalg.det(matrix)) < 1e-12:
        raise entry.error("H_0to1", "is singular")
    return Homography(matrix)


def _placed(entry: Entry, size0: tuple[int, int]) -> Placed:
    """Read where the middle of a template of (width, height) lies in the scene, and how."""
    x, y, angle, scale = (
        float(entry.matrix(key, ())) for key in ("x", "y", "angle_degrees", "scale")
    )
    if scale <= 0:
        raise entry.error("scale", f"must be positive, not {scale:g}")
    from matcher.templates.poses import Pose  # noqa: PLC0415  imports torch

    pose = Pose(x, y, angle, scale)
    matrix = np.eye(3)
    matrix[:2, :2] = pose.scene_from_template
    middle = (np.array(size0) - 1) / 2
    matrix[:2, 2] = np.array([x, y]) - matrix[:2, :2] @ middle
    return Placed(matrix)


def _labelled(entry: Entry) -> Labelled:
    """Read marked points, one row each in both images."""
    points0, points1 = (entry.matrix(f"points{index}", (-1, 2)) for index in (0, 1))
    if len(points0) != len(points1) or not len(points0):
        raise entry.error(
            "points1", f"must have a row for each of {len(points0)} points0, at least one"
        )
    return Labelled(points0.astype(np.float32), points1.astype(np.float32))


def _two_view(entry: Entry, sizes: Sequence[tuple[int, int]]) -> TwoView:
    """Read a calibrated pair; a centre outside the image or no rotation betrays mixed-up rows."""
    for index, (width, height) in enumerate(sizes):
        matrix = entry.matrix(f"K{index}", (3, 3))
        x, y = matrix[:2, 2]
        if not (0 <= x < width and 0 <= y < height):
            raise entry.error(
                f"K{index}", f"has its centre ({x:g}, {y:g}) outside {width} x {height}"
            )
        if matrix[0, 0] <= 0 or matrix[1, 1] <= 0:
            raise entry.error(f"K{index}", "has a focal length that is not positive")
    rotation = entry.matrix("R_0to1", (3, 3))
    if np.abs(rotation @ rotation.T - np.eye(3)).max() > 1e-3 or np.linalg.det(rotation) < 0:
        raise entry.error("R_0to1", "is no rotation")
    translation = entry.matrix("t_0to1", (3,))
    return TwoView(entry.matrix("K0", (3, 3)), entry.matrix("K1", (3, 3)), rotation, translation)


def _with_depth(entry: Entry, sizes: Sequence[tuple[int, int]], views: TwoView) -> TwoViewDepth:
    depths = [_depth(entry, f"depth{index}", size) for index, size in enumerate(sizes)]
    return TwoViewDepth(**vars(views), depth0=depths[0], depth1=depths[1])


def _depth(entry: Entry, key: str, size: tuple[int, int]) -> Floats:
    """Read depth along the axis from .npy or a grey picture; what is not positive is unknown."""
    path = entry.path(key)
    depth = _numbers(entry, key, read_npy if path.suffix == ".npy" else images.values)
    if depth.shape != size[::-1]:
        raise entry.error(key, f"must be {size[::-1]}, not {depth.shape}")
    scaled = depth.astype(np.float32) * np.float32(entry.number("depth_scale") or 1.0)
    return np.where(scaled > 0, scaled, np.float32(np.nan)).astype(np.float32)


def _numbers(entry: Entry, key: str, read: Callable[[Path], NDArray[Any]]) -> NDArray[Any]:
    """Read the numbers of a file that an entry names."""
    try:
        found = read(entry.path(key))
    except (OSError, ValueError) as error:
        raise entry.error(key, f"cannot be read: {error}") from error
    if found.dtype.kind not in "buif":
        raise entry.error(key, f"must be numbers, not {found.dtype}")
    return found


def _dense_map(entry: Entry) -> DenseMap:
    disparity = _numbers(entry, "disparity0", images.values)
    size = image_size(entry.path("image0"))
    if disparity.shape != size[::-1]:
        raise entry.error("disparity0", f"must be {size[::-1]}, not {disparity.shape}")
    y, x = np.indices(disparity.shape, np.float32)
    x1 = np.where(disparity > 0, x - disparity * (entry.number("disparity_scale") or 1.0), np.nan)
    return DenseMap(np.stack([x1, y], axis=2).astype(np.float32))
