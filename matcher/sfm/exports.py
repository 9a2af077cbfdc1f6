"""Tie points as text for COLMAP's importers, and as one npz for everybody else."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from matcher.sfm.tiepoints import NamePair, Rows, TiePoints
from matcher.storage import write


def _chosen(tie_points: TiePoints) -> Mapping[NamePair, Rows]:
    """Return the verified matches, or the raw ones where nothing was verified."""
    return tie_points.verified() if tie_points.geometries else tie_points.pairs


def write_text(folder: str | Path, tie_points: TiePoints) -> list[Path]:
    """Write text for COLMAP's `feature_importer` and `matches_importer --match_type inliers`.

    Keypoints go to NAME.txt with 0.5 added to each coordinate, and descriptors of zeros, which the
    importer asks for.

    Returns:
        The files, `matches.txt` first.

    Raises:
        ValueError: A name has a space, at which the importer would split it.
    """
    folder = Path(folder)
    for name in tie_points.names:
        if re.search(r"\s", name):
            raise ValueError(
                f"{name!r} has a space, at which text importers split: rename it, or use a database"
            )
    blocks = [
        f"{name0} {name1}\n" + "".join(f"{i} {j}\n" for i, j in rows.tolist()) + "\n"
        for (name0, name1), rows in _chosen(tie_points).items()
    ]
    paths = [write(folder / "matches.txt", "".join(blocks).encode())]
    zeros = " 0" * 128
    for name in tie_points.names:
        points = tie_points.keypoints[name].astype(np.float64) + 0.5
        lines = [f"{x:.6g} {y:.6g} 1 0{zeros}\n" for x, y in points.tolist()]
        text = f"{len(points)} 128\n" + "".join(lines)
        paths.append(write(folder / f"{name}.txt", text.encode()))
    return paths


def write_npz(folder: str | Path, tie_points: TiePoints) -> list[Path]:
    """Write one npz that needs no library but numpy.

    Arrays: `names`; `sizes` (I, 2) height and width; `keypoints` (K, 2) float32 of all images one
    after the other, those of image i in rows `starts[i]` to `starts[i + 1]`; `pairs` (P, 2) indices of
    images; `matches` (M, 2) rows of the two images' keypoints, those of pair p in rows
    `match_starts[p]` to `match_starts[p + 1]`.
    """
    names, chosen = list(tie_points.names), _chosen(tie_points)
    place = {name: number for number, name in enumerate(names)}
    counts = [len(tie_points.keypoints[name]) for name in names]
    data = io.BytesIO()
    none = np.zeros((0, 2))
    np.savez(
        data,
        names=np.array(names),
        sizes=np.array([tie_points.sizes[name] for name in names]),
        keypoints=np.concatenate([none, *(tie_points.keypoints[name] for name in names)]).astype(
            np.float32
        ),
        starts=np.cumsum([0, *counts]),
        pairs=np.array([[place[a], place[b]] for a, b in chosen]).reshape(-1, 2),
        matches=np.concatenate([none, *chosen.values()]).astype(np.int64),
        match_starts=np.cumsum([0, *map(len, chosen.values())]),
    )
    return [write(Path(folder) / "tie_points.npz", data.getvalue())]
