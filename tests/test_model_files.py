"""Damaged models of COLMAP are refused by name, and at once."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from matcher import cli
from matcher.sfm.mapping import read_model
from matcher.sfm.model_files import check_model

pycolmap = pytest.importorskip("pycolmap")

# Where the counts of the first record stand: after the number of records.
COUNTS = {
    "images": (8 + 4 + 56 + 4, "<Q"),  # its points, after its name
    "points3D": (8 + 8 + 24 + 3 + 8, "<Q"),  # the images that see it
    "frames": (8 + 8 + 56, "<I"),  # its pictures
    "rigs": (8 + 4, "<I"),  # its cameras
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 2, 2, 3
    options.num_points3D = 12
    pycolmap.synthesize_dataset(options).write_binary(str(folder))
    return folder


@pytest.fixture
def copy(model, tmp_path):
    return Path(shutil.copytree(model, tmp_path / "copy"))


def test_a_whole_model_is_read(model):
    check_model(model)
    found = read_model(model)

    assert len(found.views) == 12
    assert found.points.shape == (12, 3)
    assert np.isfinite(found.points).all()


@pytest.mark.parametrize("name", ["cameras", "images", "points3D", "frames", "rigs"])
def test_a_file_that_claims_more_records_than_it_holds_is_refused(copy, name):
    path = copy / f"{name}.bin"
    if not path.exists():
        pytest.skip(f"this version of COLMAP writes no {name}.bin")
    path.write_bytes(struct.pack("<Q", 2**60) + path.read_bytes()[8:])

    with pytest.raises(ValueError, match=rf"{name}\.bin is no whole file of a COLMAP model: "):
        read_model(copy)


@pytest.mark.parametrize("name", COUNTS)
def test_a_record_that_claims_more_than_its_file_holds_is_refused(copy, name):
    path = copy / f"{name}.bin"
    if not path.exists():
        pytest.skip(f"this version of COLMAP writes no {name}.bin")
    data = bytearray(path.read_bytes())
    place, form = COUNTS[name]
    if name == "images":
        place = data.index(b"\0", place) + 1
    struct.pack_into(form, data, place, 2 ** (8 * struct.calcsize(form) - 1))
    path.write_bytes(data)

    with pytest.raises(ValueError, match=rf"{name}\.bin is no whole file of a COLMAP model: "):
        read_model(copy)


def test_whatever_else_is_wrong_with_a_model_is_an_error_with_its_name(copy):
    chance = random.Random(0)
    whole = {path: path.read_bytes() for path in copy.iterdir()}
    refused = 0
    for _ in range(60):
        path = chance.choice(sorted(whole))
        data = bytearray(whole[path])
        place = chance.randrange(len(data))
        data[place : place + 4] = chance.randbytes(4)
        path.write_bytes(data)
        try:
            read_model(copy)
        except ValueError as error:
            assert str(copy) in str(error)  # noqa: PT017  some damage changes only a number
            refused += 1
        path.write_bytes(whole[path])

    assert refused > 10


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="cameras, images and points3D are missing"):
        read_model(tmp_path)


def test_a_model_is_shown_and_drawn(model, tmp_path, capsys):
    picture, points = tmp_path / "model.png", tmp_path / "model.ply"

    code = cli.run(["sfm", "show", str(model), "--picture", str(picture), "--ply", str(points)])

    said = capsys.readouterr().out
    assert code == 0
    assert "12 images" in said
    assert picture.stat().st_size > 1000
    assert points.read_bytes().startswith(b"ply")
