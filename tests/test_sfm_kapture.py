"""Tie points as kapture 1.1, read back as its specification says, without our code."""

from __future__ import annotations

import numpy as np
import pytest
from sfm_scenes import CAMERA, tie_points

from matcher.sfm.kapture import write_kapture
from matcher.sfm.tiepoints import TiePoints

NAMES = ["left/b 10.jpg", "left/b 9.jpg", "a.jpg"]


def rows_of(path):
    """Read a table: commas part values, and spaces round them do not count."""
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    assert first == "# kapture format: 1.1"
    return [[part.strip() for part in line.split(",")] for line in lines if line[:1] != "#"]


# SFM-07
def test_cameras_and_images_are_listed(tmp_path):
    paths = write_kapture(tmp_path, tie_points(3, 40, names=NAMES))

    (camera,) = rows_of(tmp_path / "sensors/sensors.txt")
    records = rows_of(tmp_path / "sensors/records_camera.txt")
    assert camera[:4] == ["camera0", "", "camera", "PINHOLE"]
    assert [float(part) for part in camera[4:]] == [640, 480, *CAMERA.params]
    assert records == [[str(time), "camera0", name] for time, name in enumerate(NAMES)]
    assert paths[0].name == "sensors.txt"
    assert all(path.is_file() for path in paths)


# SFM-07
@pytest.mark.parametrize("verified", [True, False])
def test_matches_join_the_same_keypoints(tmp_path, verified):
    tied = tie_points(3, 40, verified=verified, names=NAMES)

    write_kapture(tmp_path, tied)

    ((kind, dtype, size),) = rows_of(tmp_path / "reconstruction/keypoints/tiepoint/keypoints.txt")
    stored = {
        name: np.fromfile(
            tmp_path / f"reconstruction/keypoints/{kind}/{name}.kpt", np.dtype(dtype)
        ).reshape(-1, int(size))
        for name in NAMES
    }
    for (one, other), rows in (tied.verified() if verified else tied.pairs).items():
        first, second = sorted([one, other])
        file = tmp_path / f"reconstruction/matches/{kind}/{first}.overlapping/{second}.matches"
        matches = np.fromfile(file, np.float64).reshape(-1, 3)
        place = {one: matches[:, 0], other: matches[:, 1]}
        if first != one:
            place = {one: matches[:, 1], other: matches[:, 0]}
        for column, name in enumerate((one, other)):
            points = stored[name][place[name].astype(int)]
            wanted = tied.keypoints[name][rows[:, column]] + np.float32(0.5)
            np.testing.assert_array_equal(points, wanted)
        assert (matches[:, 2] == 1).all()


@pytest.mark.parametrize("name", ["a,b.jpg", " a.jpg", "a.jpg "])
def test_names_that_the_tables_cannot_hold_are_refused(tmp_path, name):
    tied = TiePoints((name,), (CAMERA,), (0,), {}, {})

    with pytest.raises(ValueError, match="has a comma, or a space at an end, which kapture"):
        write_kapture(tmp_path, tied)
