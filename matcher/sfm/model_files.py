"""Look through the binary files of a COLMAP model before COLMAP's own reader does.

That reader believes every count: a damaged one keeps it busy for ever. Here each record is walked
over, and one that leads out of its file is refused. Text files have no counts.

Source: COLMAP's documentation, "Output format"; rigs and frames as its version 4 writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from matcher.reading import refusing

_COUNT = struct.Struct("<Q")
_SHORT = struct.Struct("<I")
_POSE = 7 * 8  # rotation as a quaternion, translation

_Step = Callable[[bytes, int], int]  # where the record ends that begins here


def check_model(folder: Path) -> None:
    """Refuse a model in which a count claims more than its file holds.

    Args:
        folder: Of the model; what is not there or in text is passed over.

    Raises:
        ValueError: One does.
    """
    for name, step in _STEPS.items():
        path = folder / f"{name}.bin"
        if path.is_file():
            with refusing(path, "whole file of a COLMAP model"):
                _walk(path.read_bytes(), step)


def _walk(data: bytes, step: _Step) -> None:
    """Step from record to record.

    Raises:
        ValueError: One leads out of the file.
        struct.error: The file ends in the middle of a number.
    """
    (records,) = _COUNT.unpack_from(data)
    place = _COUNT.size
    for number in range(records):
        place = step(data, place)
        if place > len(data):
            raise ValueError(f"record {number + 1} of {records} leads out of it")


def _camera(_: bytes, place: int) -> int:
    return place + 24  # and parameters, as many as its model has, which claims nothing by itself


def _image(data: bytes, place: int) -> int:
    name = data.index(b"\0", place + 4 + _POSE + 4) + 1
    return name + 8 + 24 * int(_COUNT.unpack_from(data, name)[0])


def _point(data: bytes, place: int) -> int:
    track = place + 8 + 24 + 3 + 8
    return track + 8 + 8 * int(_COUNT.unpack_from(data, track)[0])


def _rig(data: bytes, place: int) -> int:
    sensors = int(_SHORT.unpack_from(data, place + 4)[0])
    place += 8 + (8 if sensors else 0)
    for _ in range(sensors - 1):
        place += 9 + (_POSE if data[place + 8] else 0)
    return place


def _frame(data: bytes, place: int) -> int:
    listed = place + 8 + _POSE
    return listed + 4 + 16 * int(_SHORT.unpack_from(data, listed)[0])


_STEPS: dict[str, _Step] = {
    "cameras": _camera,
    "images": _image,
    "points3D": _point,
    "rigs": _rig,
    "frames": _frame,
}
