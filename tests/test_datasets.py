"""Benchmarks are checked before anything runs on them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from PIL import Image as PilImage

from matcher import datasets
from matcher.types import DenseMap, Homography, Pair, TwoView, Unrelated

CAMERA = [[50.0, 0, 20], [0, 50, 15], [0, 0, 1]]
POSE = {
    "type": "pose",
    "K0": CAMERA,
    "K1": CAMERA,
    "R_0to1": np.eye(3).tolist(),
    "t_0to1": [1, 0, 0],
}


@pytest.fixture
def folder(tmp_path):
    """A folder with two images of 40 x 30 pixels and one of 30 x 40."""
    generator = np.random.default_rng(0)
    for name, shape in (("a.png", (30, 40)), ("b.png", (30, 40)), ("c.png", (40, 30))):
        PilImage.fromarray(generator.integers(1, 255, shape, dtype=np.uint8)).save(tmp_path / name)
    return tmp_path


@pytest.fixture
def write(folder):
    """Write a manifest of entries that differ from a good homography entry by what is given."""

    def make(*changes):
        good = {
            "id": "one",
            "dataset": "made",
            "type": "homography",
            "image0": "a.png",
            "image1": "b.png",
            "H_0to1": np.eye(3).tolist(),
        }
        entries = []
        for change in changes:
            entry = {**good, **change}
            if entry["type"] != "homography":
                del entry["H_0to1"]
            entries.append({key: value for key, value in entry.items() if value is not None})
        path = folder / "pairs.json"
        path.write_text(json.dumps(entries))
        return path

    return make


def test_every_type_becomes_its_truth(write) -> None:
    path = write(
        {"id": "map"},
        {"id": "view", **POSE},
        {"id": "stereo", "type": "disparity", "disparity0": "a.png", "disparity_scale": 0.5},
        {"id": "none", "type": "unrelated"},
    )

    pairs = datasets.load_pairs(path)

    assert [type(pair.truth) for pair in pairs] == [Homography, TwoView, DenseMap, Unrelated]
    assert [pair.name for pair in pairs] == ["map", "view", "stereo", "none"]
    assert {pair.group for pair in pairs} == {"made"}


def test_disparity_moves_points_to_the_left_and_zero_is_unknown(write, folder) -> None:
    disparity = np.full((30, 40), 8, np.uint8)
    disparity[4, 5] = 0
    PilImage.fromarray(disparity).save(folder / "d.png")
    change = {"type": "disparity", "disparity0": "d.png", "disparity_scale": 0.25}

    truth = datasets.load_pairs(write(change))[0].truth

    assert truth.points1[10, 20].tolist() == [18, 10]
    assert np.isnan(truth.points1[4, 5, 0])


@pytest.mark.parametrize(  # EVA-06
    ("change", "message"),
    [
        ({"image1": None}, "image1 missing"),
        (
            {"type": "stereo"},
            "type 'stereo' is none of depth, disparity, homography, labelled, placed, pose",
        ),
        ({"H_0to1": None}, "H_0to1 missing, and type 'homography' needs it"),
        ({"thing": 1}, "thing unknown for type 'homography'"),
        ({"image1": "a.png"}, "image1 is the same file as image0: a.png"),
        ({"image1": "../b.png"}, "image1 leaves the folder of the benchmark: ../b.png"),
        ({"image0": 3}, "image0 must be text, not 3"),
        ({"H_0to1": [[1, 0], [0, 1]]}, "H_0to1 must be (3, 3) finite numbers, not (2, 2)"),
        ({"H_0to1": [["x"] * 3] * 3}, "H_0to1 must be numbers"),
        ({"H_0to1": np.zeros((3, 3)).tolist()}, "H_0to1 is singular"),
        ({"size1": [30, 40]}, "size1 is (30, 40), and the image is (40, 30)"),
        (
            {**POSE, "K0": [[50, 0, 60], [0, 50, 15], [0, 0, 1]]},
            "K0 has its centre (60, 15) outside 40 x 30",
        ),
        (
            {**POSE, "K1": [[-50, 0, 20], [0, 50, 15], [0, 0, 1]]},
            "K1 has a focal length that is not positive",
        ),
        ({**POSE, "R_0to1": np.diag([1, 1, -1]).tolist()}, "R_0to1 is no rotation"),
        (
            {"type": "disparity", "disparity0": "c.png"},
            "disparity0 must be (30, 40), not (40, 30)",
        ),
        ({"image0": "broken.png"}, "image0 is no image"),
    ],
)
def test_a_wrong_entry_is_named_with_its_place_and_key(write, folder, change, message) -> None:
    (folder / "broken.png").write_text("this is text")
    path = write({"id": "good"}, {"id": "wrong", **change})

    with pytest.raises(ValueError, match=re.escape(f"{path}, pair 2 (wrong): {message}")):
        datasets.load_pairs(path)


def test_a_name_must_not_come_twice(write) -> None:
    path = write({}, {"image1": "c.png"})

    with pytest.raises(ValueError, match=r"pair 2 \(one\): id 'one' is also that of .*pair 1"):
        datasets.load_pairs(path)


def test_missing_images_are_listed_together(write) -> None:
    changes = [{"id": str(i), "image1": f"gone{i}.png"} for i in range(7)]

    with pytest.raises(FileNotFoundError, match=r"7 of 8 files are missing: .*gone0.*gone4.* …"):
        datasets.load_pairs(write(*changes))


def test_a_manifest_that_is_no_list_of_pairs_is_refused(tmp_path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text('{"pairs": []}')

    with pytest.raises(ValueError, match=r"a\.json is no JSON"):
        datasets.load_pairs(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"b\.json must be a list of pairs"):
        datasets.load_pairs(tmp_path / "b.json")


def columns(name0="a.png", name1="b.png", turns="0 0"):
    camera = " ".join(str(value) for row in CAMERA for value in row)
    motion = "1 0 0 .5 0 1 0 0 0 0 1 0 0 0 0 1"
    return f"{name0} {name1} {turns} {camera} {camera} {motion}"


def test_a_pair_list_of_38_columns_is_read(folder) -> None:
    path = folder / "list.txt"
    path.write_text(columns() + "\n\n" + columns("b.png", "a.png") + "\n")

    pairs = datasets.benchmark(path)

    assert [pair.name for pair in pairs] == ["a.png-b.png", "b.png-a.png"]
    assert pairs[0].truth.translation.tolist() == [0.5, 0, 0]
    assert pairs[0].truth.intrinsics1.tolist() == CAMERA


@pytest.mark.parametrize(  # EVA-06
    ("line", "message"),
    [
        (columns() + " 7", "39 columns, not 2, 4, 32 or 38"),
        (columns(turns="0 4"), "turns must be two quarter turns of 0 to 3, not [0, '4']"),
        (columns(turns="90 0"), "turns must be two quarter turns of 0 to 3, not ['90', 0]"),
        (columns().replace("50", "fifty"), "a column after the names is no number"),
        (columns("a.png", "a.png"), "image1 is the same file as image0"),
        (columns().replace("20", "70", 1), "K0 has its centre (70, 15) outside 40 x 30"),
        (columns(), "id 'a.png-b.png' is also that of"),
    ],
)
def test_a_wrong_line_of_a_pair_list_is_named(folder, line, message) -> None:
    path = folder / "list.txt"
    path.write_text(columns() + "\n\n" + line)

    with pytest.raises(ValueError, match=re.escape(f"{path}, line 3: {message}")):
        datasets.load_pair_list(path)


def test_images_of_a_pair_list_may_lie_elsewhere(folder, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("lists") / "list.txt"
    path.write_text(columns())

    assert datasets.load_pair_list(path, folder)[0].image0 == (folder / "a.png").resolve()
    with pytest.raises(FileNotFoundError, match="2 of 2 files are missing"):
        datasets.load_pair_list(path)


def test_the_fingerprint_tells_what_the_data_are(write) -> None:
    pairs = datasets.load_pairs(write({"id": "view", **POSE}, {"id": "map", "image1": "c.png"}))

    found = datasets.fingerprint(pairs)

    assert (found.pairs, found.images) == (2, 3)
    assert set(found.sizes) == {(40, 30)} | {(30, 40)} or found.sizes[0] in ((40, 30), (30, 40))
    assert found.focal_lengths == (50, 50)
    assert len(found.sha256) == 64


def test_the_fingerprint_changes_with_files_truth_and_order(write, folder) -> None:
    pairs = datasets.load_pairs(write({}, {"id": "two", "image1": "c.png"}))
    before = datasets.fingerprint(pairs).sha256

    reordered = datasets.fingerprint(pairs[::-1]).sha256
    moved = Pair("one", pairs[0].image0, pairs[0].image1, Homography(2 * np.eye(3)), "made")
    other_truth = datasets.fingerprint([moved, pairs[1]]).sha256
    PilImage.new("L", (40, 30)).save(folder / "b.png")
    other_file = datasets.fingerprint(pairs).sha256

    assert len({before, reordered, other_truth, other_file}) == 4


def test_a_benchmark_without_pairs_has_no_fingerprint() -> None:
    with pytest.raises(ValueError, match="a benchmark needs at least one pair"):
        datasets.fingerprint([])


def test_turned_photographs_count_as_one_sees_them(tmp_path, write) -> None:
    image = PilImage.new("L", (30, 40))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif)

    pairs = datasets.load_pairs(write({"image0": "turned.jpg", "size0": [40, 30]}))

    assert datasets.fingerprint(pairs).sizes == ((40, 30), (40, 30))
