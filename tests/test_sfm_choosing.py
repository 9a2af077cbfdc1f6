"""Pairs by what is known of the photos: positions in their files, poses of a model."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from matcher import cli
from matcher.geometry.two_view import Pose
from matcher.sfm import choosing
from matcher.sfm.choosing import PairChoice, choose_pairs
from matcher.sfm.frontend import FrontEnd, MethodChoice
from matcher.sfm.gps import positions_of
from matcher.sfm.photos import Photo, list_photos

CHOICE = MethodChoice("ncc", {"max_keypoints": 60}, "cpu")
NORTH = {1: "N", 2: (50.0, 30.0, 36.0), 3: "E", 4: (8.0, 15.0, 0.0), 5: b"\x00", 6: 120.5}


def photo(folder, name, gps, pixels=None):
    """Write a photo that says where it was taken."""
    folder.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if gps is not None:
        exif.get_ifd(0x8825).update(gps)
        exif[0x8825] = gps  # TIFF asks for the tag, too
    grey = np.full((16, 16), 90, np.uint8) if pixels is None else pixels
    Image.fromarray(grey).save(folder / name, exif=exif, quality=95)
    return Photo(name, folder / name)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({}, [50.51, 8.25, 120.5]),
        ({1: "S", 3: "W", 5: b"\x01"}, [-50.51, -8.25, -120.5]),
    ],
)
@pytest.mark.parametrize("ending", ["jpg", "tif", "png"])
def test_positions_are_read_with_their_signs(tmp_path, changes, place, ending):
    found = positions_of([photo(tmp_path, f"a.{ending}", NORTH | changes)])

    np.testing.assert_allclose(found[f"a.{ending}"], place, atol=1e-6)


def test_altitude_may_be_missing(tmp_path):
    flat = {tag: value for tag, value in NORTH.items() if tag < 5}

    assert positions_of([photo(tmp_path, "a.jpg", flat)])["a.jpg"][2] == 0


@pytest.mark.parametrize(
    "gps",
    [None, {1: "N", 2: (50.0, 0.0, 0.0)}, NORTH | {2: (95.0, 0.0, 0.0)}, NORTH | {4: (8.0,)}],
)
def test_positions_that_are_missing_or_make_no_sense_are_left_out(tmp_path, gps):
    assert positions_of([photo(tmp_path, "a.jpg", gps)]) == {}


@pytest.fixture
def walk(tmp_path, texture):
    """Four photos 100 m apart to the east, except the last, which does not say."""
    large = texture(120, 200, sigma=2.0)
    for number in range(4):
        gps = NORTH | {4: (8.0, 15.0, 5.0 * number)} if number < 3 else None
        pixels = large[:, 10 * number : 10 * number + 150]
        photo(tmp_path / "images", f"{number}.jpg", gps, pixels)
    return tmp_path / "images"


def test_gps_pairs_the_nearest_and_retrieval_those_without(walk, tmp_path):
    front_end = FrontEnd(list_photos(walk), tmp_path / "out", CHOICE)

    chosen = choose_pairs(PairChoice("gps", partners=1), front_end, walk)

    placed = [pair for pair in chosen if "3.jpg" not in pair]
    assert placed == [("0.jpg", "1.jpg"), ("1.jpg", "2.jpg")]
    assert any("3.jpg" in pair for pair in chosen)


def test_photos_without_any_position_are_said(tmp_path):
    photos = [photo(tmp_path / "images", f"{number}.jpg", None) for number in range(2)]

    with pytest.raises(ValueError, match="none of 2 images has a GPS position"):
        choose_pairs(PairChoice("gps"), FrontEnd(photos, tmp_path, CHOICE), tmp_path)


def test_a_model_pairs_what_stands_near_and_looks_the_same_way(walk, tmp_path, monkeypatch):
    def model(names):
        turns = [np.eye(3), np.diag([-1.0, 1, -1]), np.eye(3), np.eye(3)]  # 1 looks back
        poses = {
            name: Pose(turn, -turn @ [float(number), 0, 0])
            for number, (name, turn) in enumerate(zip(names, turns, strict=True))
        }
        views = {name: type("View", (), {"pose": pose}) for name, pose in poses.items()}
        return lambda _: type("Model", (), {"views": views})

    front_end = FrontEnd(list_photos(walk), tmp_path / "out", CHOICE)
    choice = PairChoice(str(tmp_path), partners=1)

    monkeypatch.setattr(choosing, "read_model", model(list(front_end.photos)))
    assert choose_pairs(choice, front_end, walk) == [("0.jpg", "2.jpg"), ("2.jpg", "3.jpg")]
    monkeypatch.setattr(choosing, "read_model", model(["a.jpg", "b.jpg", "c.jpg", "d.jpg"]))
    with pytest.raises(ValueError, match="none of 4 images has a pose in"):
        choose_pairs(choice, front_end, walk)


def test_a_model_pairs_what_sees_most_points_in_common_where_asked(walk, tmp_path, monkeypatch):
    seen = [[1, 2, 3, -1], [1, -1], [2, 3, 4], [4, 1]]
    front_end = FrontEnd(list_photos(walk), tmp_path / "out", CHOICE)
    views = {
        name: type("View", (), {"seen": np.array(rows)})
        for name, rows in zip(front_end.photos, seen, strict=True)
    }
    monkeypatch.setattr(choosing, "read_model", lambda _: type("Model", (), {"views": views}))

    chosen = choose_pairs(PairChoice(f"covisible:{tmp_path}", partners=1), front_end, walk)

    assert chosen == [("0.jpg", "1.jpg"), ("0.jpg", "2.jpg"), ("0.jpg", "3.jpg")]
    views.clear()
    with pytest.raises(ValueError, match="none of 4 images has points in"):
        choose_pairs(PairChoice(f"covisible:{tmp_path}"), front_end, walk)
    with pytest.raises(
        ValueError, match="no pairs 'covisible:nowhere'; .* or covisible: and a model"
    ):
        choose_pairs(PairChoice("covisible:nowhere"), front_end, walk)


def test_the_command_pairs_by_gps(walk, tmp_path, capsys):
    more = ["--method", "ncc", "-o", "max_keypoints=60", "--device", "cpu", "--mapper", "none"]

    code = cli.run(
        ["sfm", str(walk), "--out", str(tmp_path / "out"), "--pairs", "gps", "--partners", "1",
         *more]
    )  # fmt: skip

    assert code == 0
    assert "pairs: " in capsys.readouterr().out
    listed = (tmp_path / "out/pairs.csv").read_text()
    assert "0.jpg,1.jpg" in listed
    assert "0.jpg,2.jpg" not in listed
