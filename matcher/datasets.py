"""Read benchmarks: pairs of images with what is known of them, checked before they are used.

A manifest is a JSON list, one entry a pair:

    {"id": "facade", "dataset": "real", "type": "pose", "image0": "a.jpg", "image1": "b.jpg",
     "size0": [640, 480], "size1": [640, 480], "note": "", "K0": ..., "K1": ..., "R_0to1": ...,
     "t_0to1": ...}

Paths are relative to the manifest and stay in its folder; sizes are (width, height). By type:

    homography, template   H_0to1: (3, 3), pixels of image 1 from pixels of image 0 (the template)
    pose                   K0, K1: (3, 3); R_0to1: (3, 3); t_0to1: (3,), of any unit
    disparity              disparity0: a grey image; x1 = x0 - value * disparity_scale, 0 unknown
    unrelated              nothing: every match is wrong

A pair list in SuperGlue's text format (38 columns) is read too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as PilImage

from matcher import assets
from matcher.types import DenseMap, Homography, Matrix, Pair, Truth, TwoView, Unrelated

_KEYS_OF = {
    "homography": {"H_0to1"},
    "template": {"H_0to1"},
    "pose": {"K0", "K1", "R_0to1", "t_0to1"},
    "disparity": {"disparity0"},
    "unrelated": set[str](),
}
_ALWAYS = {"id", "dataset", "type", "image0", "image1"}
_OPTIONAL = {"size0", "size1", "disparity_scale", "note", "rel_rot_deg"}
_COLUMNS = 38  # two names, two quarter turns, K0 and K1 (9 each), camera1_from_camera0 (16)


@dataclass(frozen=True)
class Fingerprint:
    """What a benchmark was made of, to see at a glance whether two runs had the same data.

    Attributes:
        pairs: Number of pairs.
        images: Number of different image files.
        sizes: (width, height) of the smallest and of the largest readable image, by pixels.
        focal_lengths: Smallest and largest in pixels; None where no pair is calibrated.
        sha256: Of names, truths and image files, in the order of the pairs.
    """

    pairs: int
    images: int
    sizes: tuple[tuple[int, int], tuple[int, int]]
    focal_lengths: tuple[float, float] | None
    sha256: str


@dataclass(frozen=True)
class _Entry:
    """One entry of a manifest, with the place that error messages name."""

    values: Mapping[str, Any]
    folder: Path
    place: str

    def error(self, key: str, problem: str) -> ValueError:
        return ValueError(f"{self.place}: {key} {problem}")

    def text(self, key: str) -> str:
        value = self.values[key]
        if not isinstance(value, str) or not value:
            raise self.error(key, f"must be text, not {value!r}")
        return value

    def path(self, key: str) -> Path:
        path = (self.folder / self.text(key)).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise self.error(key, f"leaves the folder of the benchmark: {self.text(key)}")
        return path

    def matrix(self, key: str, shape: tuple[int, ...]) -> Matrix:
        try:
            matrix = np.array(self.values[key], np.float64)
        except (TypeError, ValueError) as error:
            raise self.error(key, "must be numbers") from error
        if matrix.shape != shape or not np.isfinite(matrix).all():
            raise self.error(key, f"must be {shape} finite numbers, not {matrix.shape}")
        return matrix


def benchmark(name_or_path: str | Path) -> list[Pair]:
    """Load "sample", a manifest (.json) or a pair list (.txt).

    Raises:
        FileNotFoundError: There is no such file, or images are missing; the message lists them.
        ValueError: An entry is wrong; the message names file, entry and key.
    """
    if str(name_or_path) == "sample":
        return sample_pairs()
    path = Path(name_or_path)
    return load_pair_list(path) if path.suffix == ".txt" else load_pairs(path)


def sample_pairs() -> list[Pair]:
    """Load the pairs that ship with the package."""
    return load_pairs(assets.folder("data") / "pairs.json")


def load_pairs(manifest: str | Path) -> list[Pair]:
    """Load a manifest, in its order.

    Raises:
        FileNotFoundError: The manifest or images are missing; the message lists them.
        ValueError: Not a list, a name twice, or a wrong entry; the message names its place.
    """
    manifest = Path(manifest)
    try:
        entries = json.loads(manifest.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{manifest} is no JSON: {error}") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{manifest} must be a list of pairs")
    places = [f"{manifest}, pair {n} ({e.get('id', 'no id')})" for n, e in enumerate(entries, 1)]
    known = [_Entry(e, manifest.parent, place) for e, place in zip(entries, places, strict=True)]
    for entry in known:
        _check_keys(entry)
    _require_files([entry.path(key) for entry in known for key in _path_keys(entry)])
    pairs = [_pair(entry) for entry in known]
    _require_unique(pairs, places)
    return pairs


def load_pair_list(path: str | Path, root: str | Path | None = None) -> list[Pair]:
    """Load a list in SuperGlue's format: two names, two turns, K0, K1 and camera1_from_camera0.

    Args:
        path: The text file; empty lines are skipped.
        root: Folder of the images; by default that of the list.

    Raises:
        FileNotFoundError: The list or images are missing; the message lists them.
        ValueError: A wrong line; the message names file and line.
    """
    path = Path(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    numbered = [
        (f"{path}, line {n}", line.split()) for n, line in enumerate(lines, 1) if line.strip()
    ]
    folder = path.parent if root is None else Path(root)
    entries = [_entry_of_columns(columns, folder, place) for place, columns in numbered]
    _require_files([entry.path(key) for entry in entries for key in ("image0", "image1")])
    pairs = [_pair(entry) for entry in entries]
    _require_unique(pairs, [place for place, _ in numbered])
    return pairs


def fingerprint(pairs: Sequence[Pair]) -> Fingerprint:
    """Summarise and hash pairs with their files.

    Raises:
        ValueError: There are no pairs.
    """
    if not pairs:
        raise ValueError("a benchmark needs at least one pair")
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(pair_key(pair).encode())
    paths = {path for pair in pairs for path in (pair.image0, pair.image1)}
    sizes = sorted(_known_sizes(paths), key=lambda size: size[0] * size[1]) or [(0, 0)]
    truths = [pair.truth for pair in pairs if isinstance(pair.truth, TwoView)]
    focal = [K[i, i] for t in truths for K in (t.intrinsics0, t.intrinsics1) for i in (0, 1)]
    return Fingerprint(
        len(pairs),
        len(paths),
        (sizes[0], sizes[-1]),
        (float(min(focal)), float(max(focal))) if focal else None,
        digest.hexdigest(),
    )


def pair_key(pair: Pair) -> str:
    """Hash a pair's name, truth and image files: another hash is another pair."""
    digest = hashlib.sha256(f"{pair.group}\0{pair.name}\0{type(pair.truth).__name__}".encode())
    for _, value in sorted(vars(pair.truth).items()) if pair.truth else ():
        digest.update(np.ascontiguousarray(value).tobytes())
    for path in (pair.image0, pair.image1):
        digest.update(path.read_bytes() if path.is_file() else b"missing")
    return digest.hexdigest()


def _check_keys(entry: _Entry) -> None:
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


def _path_keys(entry: _Entry) -> list[str]:
    return [key for key in ("image0", "image1", "disparity0") if key in entry.values]


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


def _pair(entry: _Entry) -> Pair:
    sizes = [_checked_size(entry, index) for index in (0, 1)]
    return Pair(
        name=entry.text("id"),
        image0=entry.path("image0"),
        image1=entry.path("image1"),
        truth=_truth(entry, sizes),
        group=entry.text("dataset"),
    )


def _checked_size(entry: _Entry, index: int) -> tuple[int, int]:
    """Read (width, height) from the image file; another size in the entry means other frames."""
    try:
        size = _image_size(entry.path(f"image{index}"))
    except OSError as error:
        raise entry.error(f"image{index}", f"is no image: {error}") from error
    stated = entry.values.get(f"size{index}", size)
    if tuple(stated) != size:
        raise entry.error(f"size{index}", f"is {tuple(stated)}, and the image is {size}")
    return size


def _image_size(path: Path) -> tuple[int, int]:
    """Read (width, height) of the upright image from the file's header."""
    with PilImage.open(path) as image:
        turned = image.getexif().get(0x0112, 1) >= 5
        return (image.height, image.width) if turned else (image.width, image.height)


def _known_sizes(paths: Iterable[Path]) -> Iterator[tuple[int, int]]:
    """Read the sizes of those files that are images."""
    for path in paths:
        with suppress(OSError):
            yield _image_size(path)


def _truth(entry: _Entry, sizes: Sequence[tuple[int, int]]) -> Truth:
    kind = entry.text("type")
    if kind == "unrelated":
        return Unrelated()
    if kind == "disparity":
        return _dense_map(entry)
    if kind == "pose":
        return _two_view(entry, sizes)
    matrix = entry.matrix("H_0to1", (3, 3))
    if abs(np.linalg.det(matrix)) < 1e-12:
        raise entry.error("H_0to1", "is singular")
    return Homography(matrix)


def _two_view(entry: _Entry, sizes: Sequence[tuple[int, int]]) -> TwoView:
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


def _dense_map(entry: _Entry) -> DenseMap:
    with PilImage.open(entry.path("disparity0")) as image:
        disparity = np.asarray(image, np.float32)
    size = _image_size(entry.path("image0"))
    if disparity.shape != size[::-1]:
        raise entry.error("disparity0", f"must be {size[::-1]}, not {disparity.shape}")
    y, x = np.indices(disparity.shape, np.float32)
    x1 = np.where(
        disparity > 0, x - disparity * float(entry.values.get("disparity_scale", 1)), np.nan
    )
    return DenseMap(np.stack([x1, y], axis=2).astype(np.float32))


def _entry_of_columns(columns: Sequence[str], folder: Path, place: str) -> _Entry:
    """Turn a line of a pair list into an entry of a manifest."""
    if len(columns) != _COLUMNS:
        raise ValueError(f"{place}: {len(columns)} columns, not {_COLUMNS}")
    if columns[2] != "0" or columns[3] != "0":
        raise ValueError(f"{place}: quarter turns of the images are not read: turn the files")
    try:
        numbers = np.array(columns[4:], np.float64)
    except ValueError as error:
        raise ValueError(f"{place}: a column after the fourth is no number") from error
    motion = numbers[18:].reshape(4, 4)
    values = {
        "id": f"{columns[0]}-{columns[1]}",
        "dataset": Path(place.rsplit(",", 1)[0]).stem,
        "type": "pose",
        "image0": columns[0],
        "image1": columns[1],
        "K0": numbers[:9].reshape(3, 3),
        "K1": numbers[9:18].reshape(3, 3),
        "R_0to1": motion[:3, :3],
        "t_0to1": motion[:3, 3],
    }
    entry = _Entry(values, folder, place)
    _check_keys(entry)
    return entry
