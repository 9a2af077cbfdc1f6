"""Read data sets of planar scenes, whose truth is a homography of every pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matcher.datasets.entries import Entry
from matcher.types import Matrix

_HPATCHES = {"i": "illumination", "v": "viewpoint"}


def hpatches(root: Path, *, skip: Sequence[str] = ()) -> list[Entry]:
    """List HPatches: folders i_NAME and v_NAME with 1.ppm to 6.ppm and H_1_2 to H_1_6.

    Args:
        root: Holds the folders.
        skip: Folders that the protocol leaves out.

    Source: Balntas, Lenc, Vedaldi, Mikolajczyk, HPatches, CVPR 2017.
    """
    entries = []
    for folder in _folders(root):
        if folder.name[:2] in ("i_", "v_") and folder.name not in skip:
            for index in range(2, 7):
                values = {
                    "id": f"{folder.name} {index}",
                    "dataset": _HPATCHES[folder.name[0]],
                    "image0": f"{folder.name}/1.ppm",
                    "image1": f"{folder.name}/{index}.ppm",
                }
                entries.append(_planar(root, values, folder / f"H_1_{index}"))
    return entries


def oxford_affine(root: Path) -> list[Entry]:
    """List Oxford-affine: folders with img1 to img6 (.ppm or .pgm) and H1to2p to H1to6p.

    A folder is one group, the number of the second image its level.

    Source: Mikolajczyk et al., A comparison of affine region detectors, IJCV 2005.
    """
    entries = []
    for folder in _folders(root):
        if not (folder / "H1to2p").exists():
            continue
        ending = ".pgm" if (folder / "img1.pgm").exists() else ".ppm"
        for index in range(2, 7):
            values = {
                "id": f"{folder.name} {index}",
                "dataset": folder.name,
                "image0": f"{folder.name}/img1{ending}",
                "image1": f"{folder.name}/img{index}{ending}",
                "level": index,
            }
            entries.append(_planar(root, values, folder / f"H1to{index}p"))
    return entries


def evd(root: Path) -> list[Entry]:
    """List the Extreme View Dataset: 1/NAME.png, 2/NAME.png, h/NAME.txt.

    Source: Mishkin, Matas, Perdoch, MODS: fast and robust method for two-view matching, CVIU 2015.
    """
    entries = []
    for path in sorted((root / "h").glob("*.txt")):
        values = {
            "id": path.stem,
            "dataset": "evd",
            "image0": f"1/{path.stem}.png",
            "image1": f"2/{path.stem}.png",
        }
        entries.append(_planar(root, values, path))
    return entries


def _folders(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.iterdir()) if path.is_dir())


def _planar(root: Path, values: dict[str, Any], homography: Path) -> Entry:
    return Entry(
        {**values, "type": "homography", "H_0to1": _matrix(homography)}, root, str(homography)
    )


def _matrix(path: Path) -> Matrix:
    """Read the numbers of a text file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds something else.
    """
    try:
        return np.array(path.read_text(encoding="utf-8").split(), np.float64).reshape(3, 3)
    except ValueError as error:
        raise ValueError(f"{path} must have nine numbers") from error
