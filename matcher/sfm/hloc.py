"""hloc's h5 files: written without loss, and read whichever way hloc wrote them.

Keypoints count from the centre of the top-left pixel in both, so nothing moves. hloc itself may
keep keypoints as float16 and matches as int16, which rounds positions beyond 2048 pixels to two
pixels and cannot number more than 32,767 keypoints; here they are float32 and int32.

Layout: features have a group for each image, its name with "/" nested, with `keypoints` (N, 2),
`scores` (N,), `image_size` (width, height). Matches have a group for each image 0, its name with
"/" as "-", and in it one for each image 1, with `matches0` (N0,), -1 for none, and
`matching_scores0` (N0,).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher.extras import require
from matcher.reading import MOST_RATIO, SMALL, refusing
from matcher.sfm.tiepoints import NamePair, Rows, TiePoints
from matcher.storage import replacing, write
from matcher.types import Points

FINGERPRINT = (
    "fingerprint"  # attribute of both files: matches belong to the keypoints they were made for
)


def write_hloc(folder: str | Path, tie_points: TiePoints) -> tuple[Path, Path, Path]:
    """Write `features.h5`, `matches.h5` and `pairs.txt`, each whole or not at all.

    Verified matches are written where pairs were verified, else the raw ones.

    Returns:
        The three paths.

    Raises:
        ImportError: h5py is not installed.
        ValueError: Two names are one in hloc's files ("a/b.jpg" and "a-b.jpg"), or one has a space,
            which hloc's pair lists cannot hold.
        OSError: Another program has a file open.
    """
    _check_hloc_names(tie_points.names)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    features, matches = folder / "features.h5", folder / "matches.h5"
    pairs = tie_points.verified() if tie_points.geometries else dict(tie_points.pairs)
    mark = fingerprint(tie_points.keypoints)
    with _written(features) as file:
        file.attrs[FINGERPRINT] = mark
        for name in tie_points.names:
            _write_features(file.create_group(name), tie_points, name)
    with _written(matches) as file:
        file.attrs[FINGERPRINT] = mark
        for pair, rows in pairs.items():
            group = file.create_group("/".join(map(_flat, pair)))
            _write_matches(group, rows, tie_points, pair)
    text = "".join(f"{name0} {name1}\n" for name0, name1 in pairs)
    listed = write(folder / "pairs.txt", text.encode())
    return features, matches, listed


def fingerprint(keypoints: Mapping[str, Points]) -> str:
    """Hash all keypoints, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(keypoints):
        digest.update(name.encode() + b"\0" + np.asarray(keypoints[name], np.float32).tobytes())
    return digest.hexdigest()[:32]


def _write_features(group: Any, tie_points: TiePoints, name: str) -> None:
    points = tie_points.keypoints[name]
    weights = tie_points.weights.get(name, np.ones(len(points), np.float32))
    height, width = tie_points.sizes[name]
    group.create_dataset("keypoints", data=points.astype(np.float32))
    group.create_dataset("scores", data=weights.astype(np.float32))
    group.create_dataset("image_size", data=np.array([width, height], np.int32))


def _write_matches(group: Any, rows: Rows, tie_points: TiePoints, pair: NamePair) -> None:
    partners = np.full(len(tie_points.keypoints[pair[0]]), -1, np.int32)
    partners[rows[:, 0]] = rows[:, 1]
    group.create_dataset("matches0", data=partners)
    group.create_dataset("matching_scores0", data=(partners >= 0).astype(np.float32))


def read_hloc(
    features: str | Path, matches: str | Path, names: Sequence[str] | None = None
) -> tuple[dict[str, Points], dict[NamePair, Rows]]:
    """Read hloc's files, of any of its layouts: float16 or float32, "score" or "scores", old names.

    Args:
        features: The file of keypoints.
        matches: The file of matches.
        names: Images to read; all of the features where None.

    Returns:
        (N, 2) float32 keypoints by image, and (M, 2) int64 rows by pair, in the order of the names.

    Raises:
        ImportError: h5py is not installed.
        FileNotFoundError: A file is missing.
        ValueError: Matches that were made for other keypoints.
        OSError: A file is locked or damaged.
    """
    with _reading(features) as file:
        mark = file.attrs.get(FINGERPRINT)
        found = _names_in(file) if names is None else list(names)
        keypoints = {name: _keypoints(file, name) for name in found}
    with _reading(matches) as file:
        other = file.attrs.get(FINGERPRINT, mark)
        pairs = {pair: _read_matches(file, path) for pair, path in _pairs_in(file, found)}
    if str(other) != str(mark):
        raise ValueError(f"{matches} was made for other keypoints than those in {features}")
    for pair, rows in pairs.items():
        _check_counts(pair, rows, keypoints)
    return keypoints, pairs


def _names_in(file: Any) -> list[str]:
    """List groups that hold keypoints, whatever the depth; links are not followed."""
    found: list[str] = []
    file.visit(
        lambda path: found.append(path.rpartition("/")[0]) if path.endswith("/keypoints") else None
    )
    return sorted(found)


def _pairs_in(file: Any, names: Sequence[str]) -> Iterator[tuple[NamePair, str]]:
    """Find the path of every pair's group, under the new form of its key or the old one."""
    plain = {_flat(name): name for name in names}
    for key0 in file:
        if key0 in plain:
            for key1 in _own(file, key0):
                if key1 in plain:
                    yield (plain[key0], plain[key1]), f"{key0}/{key1}"
            continue
        for cut in (i for i, letter in enumerate(key0) if letter == "_"):
            one, other = key0[:cut], key0[cut + 1 :]
            if one in plain and other in plain:
                yield (plain[one], plain[other]), key0


def _own(file: Any, path: str) -> Any:
    """Look up a path that lies in the file itself: links to other places and files are refused."""
    h5py = require("h5py", "reading hloc's files")
    found = file
    for part in path.split("/"):
        link = found.get(part, getlink=True)
        if link is None:
            raise ValueError(f"there is no {path}")
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"{path} is a link to another place")
        found = found[part]
    return found


def _numbers(file: Any, path: str, dimensions: int) -> NDArray[Any]:
    """Read numbers that the file itself stores, and no more of them than it can hold."""
    data = _own(file, path)
    if data.external or data.is_virtual:
        raise ValueError(f"{path} lies in another file")
    if data.ndim != dimensions or data.dtype.kind not in "iuf":
        raise ValueError(f"{path} must be numbers in {dimensions} dimensions")
    if data.nbytes > max(SMALL, MOST_RATIO * data.id.get_storage_size()):
        raise ValueError(f"{path} claims {data.nbytes} bytes that are not stored")
    return np.array(data)


def _keypoints(file: Any, name: str) -> Points:
    points = _numbers(file, f"{name}/keypoints", 2).astype(np.float32)
    if points.shape[1] != 2 or not np.isfinite(points).all():
        raise ValueError(f"keypoints of {name} must be (N, 2) finite numbers")
    return points


def _read_matches(file: Any, path: str) -> Rows:
    partners = _numbers(file, f"{path}/matches0", 1).astype(np.int64)
    rows = np.flatnonzero(partners >= 0)
    return np.stack([rows, partners[rows]], axis=1)


def _check_counts(pair: NamePair, rows: Rows, keypoints: Mapping[str, Points]) -> None:
    for side, name in enumerate(pair):
        if len(rows) and rows[:, side].max() >= len(keypoints[name]):
            raise ValueError(
                f"pair {pair}: match of keypoint {rows[:, side].max()}, but {name!r} has "
                f"{len(keypoints[name])}: the features were extracted again"
            )


def _flat(name: str) -> str:
    return name.replace("/", "-")


def _check_hloc_names(names: Sequence[str]) -> None:
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(_flat(name), name)
        if other != name:
            raise ValueError(f"{other!r} and {name!r} are one name in hloc's files: rename one")
        if any(letter.isspace() for letter in name):
            raise ValueError(
                f"{name!r} has a space, which hloc's pair lists cannot hold: rename it"
            )


@contextmanager
def _reading(path: str | Path) -> Iterator[Any]:
    """Open a file read-only and without a lock, which network file systems may not have."""
    h5py = require("h5py", "reading hloc's files")
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file {path}")
    try:
        file = h5py.File(path, "r", locking=False)
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error}") from error
    with refusing(path, "file of hloc"), file:
        yield file


@contextmanager
def _written(path: Path) -> Iterator[Any]:
    """Write a file under another name, then rename it."""
    h5py = require("h5py", "writing hloc's files")
    try:
        with replacing(path) as unfinished, h5py.File(unfinished, "w", locking=False) as file:
            yield file
    except OSError as error:
        raise OSError(
            f"{path} cannot be written: {error}. Choose a folder that may be written to, or export "
            "npz or a database, which need no locks"
        ) from error
