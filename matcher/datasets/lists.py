"""Read pair lists: text files with a line a pair, as other projects keep them.

columns
2        two names: hloc; nothing is known of the pairs
4        two names, two quarter turns: SuperGlue's without truth
32       two names, K0, K1, rotation (9 each), translation (3): glue-factory
38       two names, two quarter turns, K0, K1 (9 each), camera1_from_camera0 (16): SuperGlue

Quarter turns, 0 to 3, are counter-clockwise and made before an image is matched; cameras and motion
are those of the files as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matcher.datasets.entries import Entry, pairs_of
from matcher.reading import read_text
from matcher.types import Pair

_COLUMNS = (2, 4, 32, 38)
_QUARTERS = {str(turns): turns for turns in range(4)}


def load_pair_list(
    path: str | Path, root: str | Path | None = None, *, dataset: str = ""
) -> list[Pair]:
    """Load a list of pairs.

    Args:
        path: The text file; empty lines and those that begin with # are skipped.
        root: Folder of the images; by default that of the list.
        dataset: Group of the pairs; by default the name of the list.

    Raises:
        FileNotFoundError: The list or images are missing; the message lists them.
        ValueError: A wrong line; the message names file and line.
    """
    path = Path(path)
    folder = path.parent if root is None else Path(root)
    lines = read_text(path).splitlines()
    entries = []
    for number, line in enumerate(lines, 1):
        columns = line.split()
        if columns and not columns[0].startswith("#"):
            place = f"{path}, line {number}"
            values = {"dataset": dataset or path.stem, **_values(columns, place)}
            entries.append(Entry(values, folder, place))
    return pairs_of(entries)


def _values(columns: Sequence[str], place: str) -> dict[str, Any]:
    """Turn a line into the values of an entry."""
    if len(columns) not in _COLUMNS:
        allowed = f"{', '.join(map(str, _COLUMNS[:-1]))} or {_COLUMNS[-1]}"
        raise ValueError(f"{place}: {len(columns)} columns, not {allowed}")
    values = {
        "id": f"{columns[0]}-{columns[1]}",
        "type": "unknown",
        "image0": columns[0],
        "image1": columns[1],
    }
    if len(columns) not in (4, 38):
        return {**values, **_pose(columns[2:], place)}
    turns = [_QUARTERS.get(column, column) for column in columns[2:4]]
    return {**values, "turns": turns, **_pose(columns[4:], place)}


def _pose(columns: Sequence[str], place: str) -> dict[str, Any]:
    """Read both cameras and the motion, where the line has them."""
    if not columns:
        return {}
    try:
        numbers = np.array(columns, np.float64)
    except ValueError as error:
        raise ValueError(f"{place}: a column after the names is no number") from error
    motion = numbers[18:]
    if len(motion) == 16:
        motion = motion.reshape(4, 4)
        rotation, translation = motion[:3, :3], motion[:3, 3]
    else:
        rotation, translation = motion[:9].reshape(3, 3), motion[9:]
    cameras = {"K0": numbers[:9].reshape(3, 3), "K1": numbers[9:18].reshape(3, 3)}
    return {"type": "pose", **cameras, "R_0to1": rotation, "t_0to1": translation}
