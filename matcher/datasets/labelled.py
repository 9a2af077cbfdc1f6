"""Read data sets whose truth is points that people marked in both images of a pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from matcher.datasets.entries import Entry
from matcher.types import Matrix

_ENDINGS = (".png", ".jpg")


def wxbs(root: Path, *, skip: Sequence[str] = ()) -> list[Entry]:
    """List WxBS: folders SET/PAIR with 01 and 02 (.png or .jpg) and corrs.txt: x0 y0 x1 y1 a row.

    A set is one group.

    Args:
        root: Holds the sets, which name what changes: WGABS for geometry and appearance ...
        skip: Pairs that the protocol leaves out: those on which thresholds are chosen.

    Source: Mishkin, Matas, Perdoch, Lenc, WxBS: Wide Baseline Stereo Generalizations, BMVC 2015.
    """
    entries = []
    for marked in sorted(root.glob("*/*/corrs.txt")):
        folder = marked.parent
        if folder.name in skip:
            continue
        points = _points(marked)
        inner = folder.relative_to(root).as_posix()
        ending = next((e for e in _ENDINGS if (folder / f"01{e}").is_file()), _ENDINGS[0])
        values = {
            "id": inner,
            "dataset": folder.parent.name,
            "type": "labelled",
            "image0": f"{inner}/01{ending}",
            "image1": f"{inner}/02{ending}",
            "points0": points[:, :2],
            "points1": points[:, 2:],
        }
        entries.append(Entry(values, root, str(marked)))
    return entries


def _points(path: Path) -> Matrix:
    """Read rows of four numbers.

    Raises:
        ValueError: It holds something else.
    """
    rows = [
        line.replace(",", " ").split() for line in path.read_text(encoding="utf-8").splitlines()
    ]
    try:
        return np.array([row for row in rows if row], np.float64).reshape(-1, 4)
    except ValueError as error:
        raise ValueError(f"{path} must have rows of four numbers") from error
