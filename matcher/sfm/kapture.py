"""Tie points as a folder in the form of kapture 1.1.

Source: NAVER LABS Europe, kapture: data format v1.1 (kapture_format.adoc).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from matcher.sfm.tiepoints import NamePair, Rows, TiePoints
from matcher.storage import write

KIND = "tiepoint"  # folder of the keypoints, and of their matches


def write_kapture(folder: str | Path, tie_points: TiePoints) -> list[Path]:
    """Write sensors, images, keypoints and matches; images belong in sensors/records_data.

    Keypoints have 0.5 added to each coordinate: cameras and pixels are COLMAP's there, too. Matches
    are those verified, or the raw ones where nothing was verified, each with score 1.

    Returns:
        The files, `sensors.txt` first.

    Raises:
        ValueError: A name has a comma, at which the form splits, or spaces at an end, which it drops.
    """
    for name in tie_points.names:
        if "," in name or name != name.strip():
            raise ValueError(
                f"{name!r} has a comma, or a space at an end, which kapture cannot hold: rename it"
            )
    root = Path(folder)
    chosen = tie_points.verified() if tie_points.geometries else tie_points.pairs
    places = root / "reconstruction/keypoints" / KIND
    written = [*_sensors(root / "sensors", tie_points)]
    written.append(_table(places / "keypoints.txt", "name, dtype, dsize", [f"{KIND}, float32, 2"]))
    for name in tie_points.names:
        points = tie_points.keypoints[name].astype(np.float64) + 0.5
        written.append(write(places / f"{name}.kpt", points.astype("<f4").tobytes()))
    written += [_matches(root / "reconstruction/matches" / KIND, *each) for each in chosen.items()]
    return written


def _sensors(folder: Path, tie_points: TiePoints) -> list[Path]:
    """Write which cameras there are, and which took each image; its number stands for the time."""
    cameras = [
        f"camera{number}, , camera, {camera.model}, {camera.width}, {camera.height}, "
        + ", ".join(map(repr, map(float, camera.params)))
        for number, camera in enumerate(tie_points.cameras)
    ]
    records = [
        f"{time}, camera{camera}, {name}"
        for time, (name, camera) in enumerate(
            zip(tie_points.names, tie_points.camera_of, strict=True)
        )
    ]
    head = "sensor_device_id, name, sensor_type, [sensor_params]+"
    return [
        _table(folder / "sensors.txt", head, cameras),
        _table(folder / "records_camera.txt", "timestamp, device_id, image_path", records),
    ]


def _table(path: Path, head: str, lines: Iterable[str]) -> Path:
    text = "\n".join(["# kapture format: 1.1", f"# {head}", *lines, ""])
    return write(path, text.encode())


def _matches(folder: Path, pair: NamePair, rows: Rows) -> Path:
    """Write the matches of a pair under the name that comes first in the alphabet."""
    first, second = sorted(pair)
    turned = rows if (first, second) == pair else rows[:, ::-1]
    scored = np.column_stack([turned, np.ones(len(rows))]).astype("<f8")
    return write(folder / f"{first}.overlapping" / f"{second}.matches", scored.tobytes())
