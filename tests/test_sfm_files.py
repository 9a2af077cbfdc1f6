"""Files for other programs, names and lists of pairs."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from sfm_scenes import CAMERA, tie_points

from matcher.geometry.two_view import Pose
from matcher.sfm import exports, pairs
from matcher.sfm.hloc import read_hloc, write_hloc
from matcher.sfm.photos import find_name, list_photos, load
from matcher.sfm.tiepoints import TiePoints
from matcher.types import Description

NAMES = ("cam1/0001.png", "cam2/0001.png", "my image (2).jpg", "über/x.png")


def picture(path, size=(32, 24), value=90):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, value).save(path)


# SFM-07
def test_names_are_paths_below_the_folder_in_natural_order(tmp_path):
    for name in (*NAMES, "seq/frame10.png", "seq/frame2.png"):
        picture(tmp_path / name)

    names = [photo.name for photo in list_photos(tmp_path)]

    assert set(NAMES) < set(names)
    assert names.index("seq/frame2.png") < names.index("seq/frame10.png")


# SFM-07
@pytest.mark.parametrize("text", ["cam2/0001.png", "cam2\\0001.png", "/data/cam2/0001.png"])
def test_names_are_found_however_a_list_writes_them(text):
    assert find_name(text, NAMES, "/data") == "cam2/0001.png"


# SFM-07
def test_names_that_are_not_there_are_said():
    with pytest.raises(ValueError, match="no image '0001.png' among 4, such as 'cam1/0001.png'"):
        find_name("0001.png", NAMES)


def test_a_folder_without_images_is_refused(tmp_path):
    (tmp_path / "note.txt").write_text("nothing")

    with pytest.raises(ValueError, match="no images in"):
        list_photos(tmp_path)


def test_masks_lie_under_the_names_of_images_and_join_alpha(tmp_path):
    picture(tmp_path / "images/a/x.png")
    mask = np.zeros((24, 32), np.uint8)
    mask[:, 16:] = 255
    (tmp_path / "masks/a").mkdir(parents=True)
    Image.fromarray(mask).save(tmp_path / "masks/a/x.png.png")

    (photo,) = list_photos(tmp_path / "images", tmp_path / "masks")
    loaded = load(photo, 16)

    assert loaded.size == (24, 32)
    assert loaded.image.shape == (12, 16)
    np.testing.assert_array_equal(loaded.mask, np.tile(np.arange(16) >= 8, (12, 1)))
    before = photo.content()
    Image.fromarray(255 - mask).save(tmp_path / "masks/a/x.png.png")
    assert photo.content() != before
    Image.fromarray(mask[:4]).save(tmp_path / "masks/a/x.png.png")
    with pytest.raises(ValueError, match=r"x.png.png is \(4, 32\), the image is \(24, 32\)"):
        load(photo, 16)


# SFM-07
def test_lists_of_pairs_are_read_with_tabs_and_spaces(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text(
        "# mine\ncam2\\0001.png cam1/0001.png\n\nmy image (2).jpg\tüber/x.png\n"
        "cam1/0001.png cam2/0001.png\n",
        "utf-8",
    )

    assert pairs.listed(path, NAMES) == [(NAMES[0], NAMES[1]), (NAMES[2], NAMES[3])]

    path.write_text("my image (2).jpg über/x.png\n", "utf-8")
    with pytest.raises(ValueError, match="line 1: 4 names, not 2; names with spaces need a tab"):
        pairs.listed(path, NAMES)
    path.write_text("cam1/0001.png none.png\n", "utf-8")
    with pytest.raises(ValueError, match="line 1: no image 'none.png'"):
        pairs.listed(path, NAMES)


def test_every_pair_is_chosen_once_in_order():
    names = list("abcd")

    assert len(pairs.exhaustive(names)) == 6
    assert pairs.union(names, [("c", "a"), ("a", "c")], [("b", "d")]) == [("a", "c"), ("b", "d")]
    with pytest.raises(ValueError, match="image 'a' is paired with itself"):
        pairs.union(names, [("a", "a")])
    with pytest.raises(ValueError, match="no image 'z' among 4"):
        pairs.union(names, [("a", "z")])


def test_a_sequence_pairs_neighbours_and_doubled_distances():
    names = [f"{number:03}" for number in range(40)]

    chosen = pairs.sequential(names, 3)

    steps = {int(one) - int(other) for other, one in chosen}
    assert steps == {1, 2, 3, 4, 8}
    assert ("000", "008") in chosen
    with pytest.raises(ValueError, match="overlap must be at least 1, not 0"):
        pairs.sequential(names, 0)


def described(descriptors):
    count = len(descriptors)
    image = np.zeros((4, 4), np.float32)
    return Description("x", image, None, np.zeros((count, 2)), np.ones(count), descriptors)


def test_pooled_descriptors_find_the_image_of_the_same_place():
    generator = np.random.default_rng(0)
    places = generator.normal(size=(5, 80, 16)).astype(np.float32)
    places /= np.linalg.norm(places, axis=2, keepdims=True)
    views = {
        f"{place}{view}": described(
            places[place] + generator.normal(0, 0.05, (80, 16)).astype("f4")
        )
        for view in "ab"
        for place in range(5)
    }
    views["empty"] = described(np.zeros((0, 16), np.float32))
    names = list(views)

    vectors = pairs.pool(names, views.__getitem__, words=8)
    chosen = pairs.retrieved(names[:-1], vectors[:-1], 1)

    assert chosen == [(f"{place}a", f"{place}b") for place in range(5)]
    np.testing.assert_allclose(np.linalg.norm(vectors[:-1], axis=1), 1, atol=1e-5)
    assert not vectors[-1].any()
    assert pairs.retrieved(names[:-1], vectors[:-1], 1, min_distance=6)[0][1] != "0b"
    with pytest.raises(ValueError, match="2 names have 11 vectors"):
        pairs.retrieved(names[:2], vectors)


def test_near_images_are_chosen_by_place_and_direction():
    places = {name: np.array([x, 0.0, 0.0]) for name, x in zip("abcd", (0, 1, 5, 5.5), strict=True)}

    assert pairs.near_positions(places, 1) == [("a", "b"), ("c", "d")]
    assert pairs.near_positions(places, 3, 0.7) == [("c", "d")]
    assert pairs.near_positions({"a": places["a"]}) == []
    back = np.diag([-1.0, 1, -1])
    poses = {
        name: Pose(back if name == "b" else np.eye(3), -(back if name == "b" else np.eye(3)) @ at)
        for name, at in places.items()
    }
    assert pairs.from_poses(poses, 1) == [("a", "c"), ("c", "d")]


def test_latitude_and_longitude_become_metres():
    places = {"a": np.array([50.0, 8, 100]), "b": np.array([50.001, 8.001, 103])}

    metres = pairs.metres_from_gps(places)

    np.testing.assert_allclose(metres["b"], [71.55, 111.32, 3], atol=0.1)
    assert not metres["a"].any()
    assert pairs.metres_from_gps({}) == {}


def test_images_that_see_the_same_points_are_chosen():
    seen = {"a": [1, 2, 3], "b": [3, 4], "c": [1, 2], "d": [9]}

    assert pairs.covisible(seen, 1) == [("a", "b"), ("a", "c")]


# SFM-07
def test_text_for_importers_refuses_spaces_and_is_exact(tmp_path):
    tied = tie_points(2, 40)

    paths = exports.write_text(tmp_path, tied)

    first, *rows = paths[0].read_text().strip().splitlines()
    assert first == "view0.png view1.png"
    assert [tuple(map(int, row.split())) for row in rows] == [
        tuple(row) for row in tied.verified()["view0.png", "view1.png"].tolist()
    ]
    head, *lines = (tmp_path / "view0.png.txt").read_text().strip().splitlines()
    assert head == "40 128"
    x, y = np.array([line.split()[:2] for line in lines], float).T
    np.testing.assert_allclose(x - 0.5, tied.keypoints["view0.png"][:, 0], atol=5e-4)
    np.testing.assert_allclose(y - 0.5, tied.keypoints["view0.png"][:, 1], atol=5e-4)
    spaced = TiePoints(("my image.png",), (CAMERA,), (0,), {}, {})
    with pytest.raises(
        ValueError, match="'my image.png' has a space, at which text importers split"
    ):
        exports.write_text(tmp_path, spaced)


def test_npz_holds_everything_without_rounding(tmp_path):
    tied = tie_points(3, 40, verified=False)

    (path,) = exports.write_npz(tmp_path, tied)

    with np.load(path, allow_pickle=False) as file:
        names, starts = file["names"].tolist(), file["starts"]
        assert names == list(tied.names)
        for number, name in enumerate(names):
            stored = file["keypoints"][starts[number] : starts[number + 1]]
            np.testing.assert_array_equal(stored, tied.keypoints[name])
        for number, (one, other) in enumerate(file["pairs"]):
            rows = slice(*file["match_starts"][number : number + 2])
            np.testing.assert_array_equal(
                file["matches"][rows], tied.pairs[names[one], names[other]]
            )


def independent(features, matches, name0, name1):
    """Read a pair as the format says, with h5py alone."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(features, "r") as file:
        points = [np.array(file[name]["keypoints"]) for name in (name0, name1)]
        size = np.array(file[name0]["image_size"]).tolist()
    with h5py.File(matches, "r") as file:
        group = file[name0.replace("/", "-")][name1.replace("/", "-")]
        partners = np.array(group["matches0"])
        assert len(group["matching_scores0"]) == len(partners) == len(points[0])
    rows = np.flatnonzero(partners >= 0)
    return points, np.stack([rows, partners[rows]], axis=1), size


# SFM-07
def test_hloc_files_are_read_by_an_independent_reader(tmp_path):
    pytest.importorskip("h5py")
    tied = tie_points(2, 40, names=["cam1/a.png", "cam2/a.png"])

    features, matches, listed = write_hloc(tmp_path, tied)

    points, rows, size = independent(features, matches, "cam1/a.png", "cam2/a.png")
    assert (points[0].dtype, size) == (np.float32, [640, 480])
    for found, name in zip(points, tied.names, strict=True):
        np.testing.assert_array_equal(found, tied.keypoints[name])
    wanted = tied.verified()[tied.names]
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, wanted.tolist()))
    assert listed.read_text() == "cam1/a.png cam2/a.png\n"
    keypoints, pairs_ = read_hloc(features, matches)
    assert set(keypoints) == set(tied.names)
    np.testing.assert_array_equal(pairs_[tied.names], rows)


def test_hloc_files_of_hloc_are_read_in_half_precision_and_with_old_names(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name in ("a_1.jpg", "b.jpg"):
            file.create_group(name)["keypoints"] = np.array([[1, 2], [3, 4]], np.float16)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_group("a_1.jpg_b.jpg")["matches0"] = np.array([-1, 0], np.int16)

    keypoints, pairs_ = read_hloc(tmp_path / "f.h5", tmp_path / "m.h5")

    assert keypoints["b.jpg"].dtype == np.float32
    assert pairs_["a_1.jpg", "b.jpg"].tolist() == [[1, 0]]


# SFM-07, SFM-11, SFM-12
def test_hloc_files_that_cannot_be_are_refused(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    with pytest.raises(ValueError, match="'a/b.png' and 'a-b.png' are one name in hloc's files"):
        write_hloc(tmp_path, TiePoints(("a/b.png", "a-b.png"), (CAMERA,), (0, 0), {}, {}))
    with pytest.raises(ValueError, match="'a b.png' has a space, which hloc's pair lists"):
        write_hloc(tmp_path, TiePoints(("a b.png",), (CAMERA,), (0,), {}, {}))
    features, _, _ = write_hloc(tmp_path / "one", tie_points(2, 40))
    _, matches, _ = write_hloc(tmp_path / "two", tie_points(2, 40, noise=0.3))
    with pytest.raises(ValueError, match="matches.h5 was made for other keypoints"):
        read_hloc(features, matches)
    with h5py.File(matches, "a") as file:
        del file.attrs["fingerprint"]
    with h5py.File(features, "a") as file:
        del file["view1.png/keypoints"]
        file["view1.png/keypoints"] = np.zeros((5, 2), np.float32)
    with pytest.raises(ValueError, match="'view1.png' has 5: the features were extracted again"):
        read_hloc(features, matches)
    with pytest.raises(FileNotFoundError, match="no file"):
        read_hloc(tmp_path / "none.h5", matches)
    (tmp_path / "text.h5").write_text("no h5")
    with pytest.raises(OSError, match="text.h5 cannot be read"):
        read_hloc(tmp_path / "text.h5", matches)

    def locked(*_, **__):
        raise OSError("Unable to lock file")

    monkeypatch.setattr(h5py, "File", locked)
    with pytest.raises(OSError, match="features.h5 cannot be written: Unable to lock file. Choose"):
        write_hloc(tmp_path, tie_points(2, 40))
    assert not list(tmp_path.glob("*.part"))
