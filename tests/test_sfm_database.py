"""COLMAP's database: written without COLMAP, read by it, and what a check says of it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3

import numpy as np
import pytest
from PIL import Image
from sfm_scenes import CAMERA, SIZE, tie_points

from matcher.sfm import database, schema
from matcher.sfm.cameras import Camera, cameras_of
from matcher.sfm.checking import check_database
from matcher.sfm.database import quaternion_of, read_database, rotation_of, write_database
from matcher.sfm.photos import list_photos
from matcher.sfm.tiepoints import TiePoints, merge_pairs

EMPTY = np.zeros((0, 2))


def made(pairs, counts, names=None, camera=CAMERA):
    names = sorted(counts) if names is None else names
    keypoints = {
        name: np.random.default_rng(7).uniform(0, 400, (count, 2)) for name, count in counts.items()
    }
    return TiePoints(tuple(names), (camera,), (0,) * len(names), keypoints, pairs)


def rows_of(path, query):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def content(path):
    tables = ("cameras", "images", "keypoints", "matches", "two_view_geometries", "frames")
    return {table: rows_of(path, f"SELECT * FROM {table}") for table in tables}


# SFM-01
def test_verified_pairs_are_written_for_the_mapper(tmp_path):
    tied = tie_points(3, 200)

    path = write_database(tmp_path / "d.db", tied)

    found = rows_of(path, "SELECT rows, config, F, E, qvec, tvec FROM two_view_geometries")
    assert len(found) == 3
    for rows, config, fundamental, essential, quaternion, translation in found:
        assert rows > 190
        assert config == 2
        assert [len(b) for b in (fundamental, essential)] == [72, 72]
        assert (len(quaternion), len(translation)) == (32, 24)
    assert check_database(path).usable


# SFM-01
def test_raw_matches_alone_are_said_to_need_verification(tmp_path):
    path = write_database(tmp_path / "d.db", tie_points(3, 50, verified=False))

    report = check_database(path)

    assert report.rows["matches"] == 3
    assert report.rows["two_view_geometries"] == 0
    assert not report.usable
    assert "3 pairs have matches, none is verified" in report.findings[0].message
    assert "geometric_verification" in report.findings[0].remedy


# SFM-02
def test_pair_ids_and_columns_follow_the_smaller_image_id(tmp_path):
    tied = made({("b", "a"): [[5, 9], [6, 7]]}, {"a": 10, "b": 10})

    path = write_database(tmp_path / "d.db", tied)

    ((key, data),) = rows_of(path, "SELECT pair_id, data FROM matches")
    assert key == 2147483649 == schema.pair_id(1, 2) == schema.pair_id(2, 1)
    assert np.frombuffer(data, np.uint32).reshape(-1, 2).tolist() == [[9, 5], [7, 6]]
    turned = made({("a", "b"): [[9, 5], [7, 6]]}, {"a": 10, "b": 10})
    write_database(path, turned)
    assert rows_of(path, "SELECT pair_id, data FROM matches") == [(key, data)]


# SFM-02
@pytest.mark.parametrize("ids", [(1, 2), (2147483645, 2147483646), (3, 2147483646)])
def test_pair_ids_are_reversible(ids):
    assert schema.image_ids(schema.pair_id(*ids)) == ids
    assert schema.image_ids(schema.pair_id(*ids[::-1])) == ids


def test_pair_ids_out_of_range_are_refused():
    for ids in ((0, 1), (2, 2), (1, 2147483647)):
        with pytest.raises(ValueError, match="image ids must be two of 1 ... 2147483646"):
            schema.pair_id(*ids)


# SFM-02
def test_a_turned_pair_has_its_geometry_turned(tmp_path):
    tied = tie_points(2, 100, noise=0)
    pair = ("view0.png", "view1.png")
    names = tied.names[::-1]
    turned = TiePoints(
        names, tied.cameras, tied.camera_of, tied.keypoints, tied.pairs, tied.geometries
    )

    read = read_database(write_database(tmp_path / "d.db", turned))

    back = read.geometries[pair[::-1]]
    truth = tied.geometries[pair].pose.inverse
    np.testing.assert_allclose(back.pose.rotation, truth.rotation, atol=1e-9)
    np.testing.assert_allclose(back.pose.translation, truth.translation, atol=1e-9)
    points = [
        read.keypoints[name][read.pairs[pair[::-1]][:, side]] for side, name in enumerate(names)
    ]
    homogeneous = [np.c_[each, np.ones(len(each))] for each in points]
    residual = np.einsum("ni,ij,nj->n", homogeneous[1], back.fundamental, homogeneous[0])
    assert np.abs(residual).max() < 1e-3 * np.abs(back.fundamental).max() * 500


# SFM-03
def test_numbers_of_any_type_and_order_are_stored_as_colmap_reads_them(tmp_path):
    points = np.asfortranarray(np.random.default_rng(0).uniform(0, 400, (12, 2)))
    wide = np.zeros((20, 4), np.int64)
    wide[:, ::2] = np.stack([np.arange(20) % 12, np.arange(20)[::-1] % 12], axis=1)
    tied = TiePoints(
        ("a", "b"), (CAMERA,), (0, 0), {"a": points, "b": points}, {("a", "b"): wide[:, ::2]}
    )

    path = write_database(tmp_path / "d.db", tied)

    for rows, cols, data in rows_of(path, "SELECT rows, cols, data FROM keypoints"):
        assert (rows, cols, len(data)) == (12, 2, 12 * 2 * 4)
        stored = np.frombuffer(data, np.float32).reshape(rows, cols)
        np.testing.assert_array_equal(stored, (points.astype(np.float32) + 0.5).astype(np.float32))
    ((rows, cols, data),) = rows_of(path, "SELECT rows, cols, data FROM matches")
    assert len(data) == rows * cols * 4
    assert {*map(tuple, np.frombuffer(data, np.uint32).reshape(-1, 2).tolist())} == {
        *map(tuple, wide[:, ::2].tolist())
    }


# SFM-04
def test_pairs_listed_again_are_joined_with_a_notice_and_self_pairs_refused(caplog):
    listed = [("a", "b", [[1, 2]]), ("b", "a", [[3, 1], [2, 1]]), ("a", "b", [[1, 2]])]

    pairs = merge_pairs(listed)

    assert {pair: rows.tolist() for pair, rows in pairs.items()} == {("a", "b"): [[1, 2], [1, 3]]}
    assert "pair a, b was listed 3 times" in caplog.text
    with pytest.raises(ValueError, match="image 'a' is paired with itself"):
        merge_pairs([*listed, ("a", "a", [[0, 0]])])


# SFM-04
def test_writing_twice_gives_the_same_content(tmp_path):
    tied = tie_points(3, 60)

    first = content(write_database(tmp_path / "d.db", tied))
    second = content(write_database(tmp_path / "d.db", tied))

    assert first == second


def _write_and_die(path):
    """Begin a write and die in the middle of it."""

    def killed(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    database._write_pairs = killed
    write_database(path, tie_points(3, 30))


# SFM-04, SFM-13
def test_a_killed_write_leaves_the_old_content(tmp_path):
    path = write_database(tmp_path / "d.db", tie_points(3, 60))
    before = content(path)

    process = multiprocessing.get_context("fork").Process(target=_write_and_die, args=(path,))
    process.start()
    process.join()

    assert process.exitcode == -signal.SIGKILL
    assert content(path) == before


# SFM-05
def test_half_a_pixel_is_added_once_and_taken_off_again(tmp_path):
    corners = np.array([[0, 0], [639, 479]], np.float32)
    tied = TiePoints(("a",), (CAMERA,), (0,), {"a": corners}, {})

    path = write_database(tmp_path / "d.db", tied)

    ((data,),) = rows_of(path, "SELECT data FROM keypoints")
    assert np.frombuffer(data, np.float32).tolist() == [0.5, 0.5, 639.5, 479.5]
    np.testing.assert_array_equal(read_database(path).keypoints["a"], corners)
    ((note,),) = rows_of(path, "SELECT value FROM tiepoint WHERE key = 'pixels'")
    assert "0.5 added" in note
    ((params,),) = rows_of(path, "SELECT params FROM cameras")
    assert np.frombuffer(params).tolist() == [500, 500, 320, 240]


# SFM-07
def test_names_survive_whatever_they_hold(tmp_path):
    names = ("cam1/0001.png", "cam2/0001.png", "my image (2).jpg", "über/x.png")
    tied = made({names[:2]: [[0, 1]], names[2:]: [[1, 0]]}, dict.fromkeys(names, 3), names)

    read = read_database(write_database(tmp_path / "d.db", tied))

    assert read.names == names
    assert set(read.pairs) == {names[:2], names[2:]}


# SFM-07
@pytest.mark.parametrize(
    "name", ["/abs/a.png", "cam1\\a.png", "", "../a.png", "a/../../b.png", "a\0.png", "\udcff.png"]
)
def test_names_that_are_no_paths_below_the_folder_are_refused(name):
    with pytest.raises(ValueError, match="must be a path below the image folder"):
        TiePoints((name,), (CAMERA,), (0,), {}, {})
    with pytest.raises(ValueError, match="image names must be unique: a"):
        TiePoints(("a", "a"), (CAMERA,), (0, 0), {}, {})


# SFM-08
def test_ids_follow_the_order_of_the_sequence_and_stay(tmp_path):
    names = [f"frame{number}.png" for number in range(1, 13)]
    path = write_database(tmp_path / "d.db", made({}, dict.fromkeys(names[:8], 1), names[:8]))

    write_database(path, made({}, dict.fromkeys(names, 1), names))

    found = rows_of(path, "SELECT name FROM images ORDER BY image_id")
    assert [name for (name,) in found] == names


# SFM-09
@pytest.mark.parametrize("version", schema.versions())
def test_both_schemas_are_read_by_a_reader_that_asks_by_name(tmp_path, version):
    tied = tie_points(3, 60)

    path = write_database(tmp_path / "d.db", tied, version)

    assert ("rig_id" in schema.columns(sqlite3.connect(path), "frames")) == (version == "4")
    assert ("type" in schema.columns(sqlite3.connect(path), "descriptors")) == (version == "4")
    read = read_database(path)
    for pair, rows in tied.pairs.items():
        np.testing.assert_array_equal(read.pairs[pair], rows)
        np.testing.assert_array_equal(read.geometries[pair].inliers, tied.geometries[pair].inliers)


# SFM-09
def test_a_database_keeps_its_schema(tmp_path):
    path = write_database(tmp_path / "d.db", tie_points(2, 30), "3")

    write_database(path, tie_points(3, 30), "4")

    assert not schema.columns(sqlite3.connect(path), "frames")
    with pytest.raises(ValueError, match="no schema '5'; there are 3, 4"):
        write_database(tmp_path / "e.db", tie_points(2, 30), "5")


def read_version_3(path):
    """Read a database as programs for COLMAP 3.x do: columns by place, blobs by their sizes."""
    images = {number: name for number, name, *_ in rows_of(path, "SELECT * FROM images")}
    cameras = {
        number: (model, width, height, np.frombuffer(params, np.float64))
        for number, model, width, height, params, _ in rows_of(path, "SELECT * FROM cameras")
    }
    keypoints = {
        images[number]: np.frombuffer(data, np.float32).reshape(rows, columns)
        for number, rows, columns, data in rows_of(path, "SELECT * FROM keypoints")
    }

    def names_of(pair):
        second = pair % 2147483647
        return images[(pair - second) // 2147483647], images[second]

    matches = {
        names_of(pair): np.frombuffer(data, np.uint32).reshape(rows, columns)
        for pair, rows, columns, data in rows_of(path, "SELECT * FROM matches")
    }
    verified = {}
    for pair, rows, columns, data, config, *blobs in rows_of(
        path, "SELECT * FROM two_view_geometries"
    ):
        numbers = [None if blob is None else np.frombuffer(blob, np.float64) for blob in blobs]
        inliers = np.frombuffer(data, np.uint32).reshape(rows, columns)
        verified[names_of(pair)] = (inliers, config, *numbers)
    return images, cameras, keypoints, matches, verified


# SFM-09
def test_a_reader_for_version_3_finds_all_and_can_reconstruct_from_it(tmp_path):
    tied = tie_points(3, 80, noise=0.1)
    path = write_database(tmp_path / "d.db", tied, "3")

    images, cameras, keypoints, matches, verified = read_version_3(path)

    assert list(images.values()) == list(tied.names)
    model, width, height, params = cameras[1]
    assert (model, (height, width)) == (1, SIZE)  # PINHOLE
    np.testing.assert_allclose(params, CAMERA.params)
    for pair, rows in tied.pairs.items():
        inliers, config, fundamental, essential, plane, turn, shift = verified[pair]
        np.testing.assert_array_equal(matches[pair], rows)
        np.testing.assert_array_equal(inliers, rows[tied.geometries[pair].inliers])
        assert (config, plane) == (2, None)  # calibrated
        both = [
            np.column_stack([keypoints[name][inliers[:, side]], np.ones(len(inliers))])
            for side, name in enumerate(pair)
        ]
        lines = both[0] @ fundamental.reshape(3, 3).T
        distance = np.abs((both[1] * lines).sum(axis=1)) / np.hypot(*lines[:, :2].T)
        assert np.median(distance) < 0.3
        matrix = np.array([[params[0], 0, params[2]], [0, params[1], params[3]], [0, 0, 1]])
        rays = [points @ np.linalg.inv(matrix).T for points in both]
        cameras_ = [np.eye(3, 4), np.column_stack([rotation_of(turn), shift])]
        assert np.abs((rays[1] @ essential.reshape(3, 3) * rays[0]).sum(axis=1)).max() < 0.01
        for ray0, ray1 in zip(rays[0], rays[1], strict=True):
            rows4 = [
                each[axis] * camera[2] - camera[axis]
                for each, camera in zip((ray0, ray1), cameras_, strict=True)
                for axis in (0, 1)
            ]
            point = np.linalg.svd(np.array(rows4))[2][-1]
            seen = cameras_[1] @ point
            assert (seen[2] * point[3] > 0) & (point[2] * point[3] > 0)
            assert np.linalg.norm((seen[:2] / seen[2] - ray1[:2]) * params[:2]) < 1.5


# SFM-09
def test_an_old_database_with_columns_that_are_gone_is_written_by_name(tmp_path):
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "CREATE TABLE images(image_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, name TEXT "
            "NOT NULL UNIQUE, camera_id INTEGER NOT NULL, prior_qw REAL, prior_qx REAL, prior_qy "
            "REAL, prior_qz REAL, prior_tx REAL, prior_ty REAL, prior_tz REAL)"
        )
    connection.close()

    write_database(path, tie_points(3, 60), "4")

    images, _, keypoints, _, verified = read_version_3(path)
    assert list(images.values()) == ["view0.png", "view1.png", "view2.png"]
    assert len(keypoints["view0.png"]) == 60
    assert len(verified) == 3


# SFM-09
@pytest.mark.parametrize("version", schema.versions())
def test_pycolmap_reads_what_is_written(tmp_path, version):
    pycolmap = pytest.importorskip("pycolmap")
    tied = tie_points(3, 60)
    path = write_database(tmp_path / "d.db", tied, version)

    with pycolmap.Database.open(str(path)) as database:
        images = {image.name: image.image_id for image in database.read_all_images()}
        keypoints = database.read_keypoints(images["view1.png"])
        matches = database.read_matches(images["view0.png"], images["view1.png"])
        geometry = database.read_two_view_geometry(images["view0.png"], images["view1.png"])
        frames = database.num_frames()

    assert sorted(images, key=images.get) == list(tied.names)
    assert frames == (3 if version == "4" else 0)  # an old one gets them when it is mapped
    np.testing.assert_allclose(keypoints[:, :2] - 0.5, tied.keypoints["view1.png"], atol=1e-4)
    np.testing.assert_array_equal(matches, tied.pairs["view0.png", "view1.png"])
    ours = tied.geometries["view0.png", "view1.png"]
    assert len(geometry.inlier_matches) == ours.inliers.sum()
    np.testing.assert_allclose(
        geometry.cam2_from_cam1.rotation.matrix(), ours.pose.rotation, atol=1e-9
    )


# SFM-10
def test_weak_pairs_are_listed_with_the_option_to_lower(tmp_path):
    names = ("a", "b", "c", "d", "e")
    counts = {("a", "b"): 10, ("b", "c"): 24, ("c", "d"): 60, ("d", "e"): 90}
    path = write_database(
        tmp_path / "d.db",
        made(
            {p: np.repeat(np.arange(n)[:, None], 2, 1) for p, n in counts.items()},
            dict.fromkeys(names, 150),
        ),
    )
    connection = sqlite3.connect(path)
    connection.execute(
        "INSERT INTO two_view_geometries(pair_id, rows, cols, data, config) "
        "SELECT pair_id, rows, cols, data, 3 FROM matches"
    )
    connection.commit()
    connection.close()

    messages = [f"{each.message}. {each.remedy}" for each in check_database(path).findings]

    assert any(
        "no pair has 100 verified matches" in m and "init_min_num_inliers to 90" in m
        for m in messages
    )
    assert any(
        "1 pairs have fewer than 15" in m and "a, b: 10" in m and "min_num_matches to 10" in m
        for m in messages
    )


# SFM-11
@pytest.mark.parametrize("row", [[99, 100], [-1, 3]])
def test_matches_of_keypoints_that_are_not_there_are_refused(row):
    with pytest.raises(ValueError, match=r"pair \('a', 'b'\): match 1 is .*has 100 keypoints"):
        made({("a", "b"): [[0, 0], row]}, {"a": 100, "b": 100})


# SFM-11
def test_the_check_finds_matches_beyond_the_keypoints(tmp_path):
    path = write_database(tmp_path / "d.db", made({("a", "b"): [[9, 9]]}, {"a": 10, "b": 10}))
    connection = sqlite3.connect(path)
    connection.execute(
        "UPDATE keypoints SET rows = 5, data = substr(data, 1, 40) WHERE image_id = 2"
    )
    connection.commit()
    connection.close()

    report = check_database(path)

    assert not report.usable
    assert any("match 0 is (9, 9), but there are 10 and 5" in f.message for f in report.findings)


# SFM-12
def test_a_locked_database_is_named_with_the_remedy(tmp_path, monkeypatch):
    path = write_database(tmp_path / "d.db", tie_points(2, 30))
    monkeypatch.setattr("matcher.sfm.database._WAIT", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(
        OSError, match=r"d.db cannot be written: database is locked. Close the program"
    ):
        write_database(path, tie_points(2, 30))
    assert len(read_database(path).names) == 2  # readers need no lock

    other.execute("ROLLBACK")
    other.close()
    write_database(path, tie_points(2, 30))


# SFM-12
def test_what_is_no_database_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no database"):
        read_database(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("not a database, but long enough to be looked at" * 40)
    with pytest.raises(OSError, match="text.db is no database that can be read"):
        check_database(tmp_path / "text.db")
    with pytest.raises(OSError, match="cannot be written"):
        write_database(tmp_path / "text.db", tie_points(2, 30))


# SFM-14
def test_verified_matches_are_among_the_raw_ones_once(tmp_path):
    path = write_database(tmp_path / "d.db", tie_points(3, 100, noise=1.5))

    joined = rows_of(
        path,
        "SELECT g.data, m.data FROM two_view_geometries g JOIN matches m ON g.pair_id = m.pair_id",
    )

    assert len(joined) == 3
    for verified, raw in joined:
        chosen = [*map(tuple, np.frombuffer(verified, np.uint32).reshape(-1, 2).tolist())]
        listed = [*map(tuple, np.frombuffer(raw, np.uint32).reshape(-1, 2).tolist())]
        assert set(chosen) <= set(listed)
        assert len(set(chosen)) == len(chosen)


# SFM-14
def test_pycolmap_verifies_what_was_written_raw(tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    path = write_database(tmp_path / "d.db", tie_points(3, 120, verified=False))

    pycolmap.logging.minloglevel = 2
    pycolmap.geometric_verification(str(path))

    report = check_database(path)
    assert report.usable
    assert report.rows["two_view_geometries"] == 3


def test_the_check_finds_wrong_sizes_parts_and_forgotten_half_pixels(tmp_path):
    whole = {name: np.arange(40).reshape(20, 2) for name in "abcd"}
    both = np.repeat(np.arange(20)[:, None], 2, 1)
    tied = TiePoints(
        tuple("abcd"), (CAMERA,), (0,) * 4, whole, {("a", "b"): both, ("c", "d"): both}
    )
    path = write_database(tmp_path / "d.db", tied)
    connection = sqlite3.connect(path)
    connection.execute(
        "INSERT INTO two_view_geometries(pair_id, rows, cols, data, config) "
        "SELECT pair_id, rows, cols, data, 3 FROM matches"
    )
    shifted = (whole["a"] * 1.0).astype(np.float32).tobytes()
    connection.execute("UPDATE keypoints SET data = ? WHERE image_id = 1", (shifted,))
    connection.execute("UPDATE keypoints SET data = ? WHERE image_id = 2", (shifted + b"\0",))
    connection.commit()
    connection.close()

    messages = [finding.message for finding in check_database(path).findings]

    assert any("keypoints of 'a' are all whole numbers" in message for message in messages)
    assert any("keypoints of 'b': 161 bytes for 20 x 2 float32" in message for message in messages)
    assert any("join the 4 images to 2 parts of 2, 2 images" in message for message in messages)


def test_the_check_names_missing_tables_and_columns(tmp_path):
    connection = sqlite3.connect(tmp_path / "d.db")
    connection.execute("CREATE TABLE images(image_id INTEGER, name TEXT)")
    connection.commit()
    connection.close()

    messages = [finding.message for finding in check_database(tmp_path / "d.db").findings]

    assert "table images lacks the columns camera_id" in messages
    assert "there is no table cameras" in messages


def test_rotations_survive_as_quaternions():
    generator = np.random.default_rng(0)
    for _ in range(50):
        quaternion = generator.normal(size=4)
        quaternion /= np.linalg.norm(quaternion) * np.sign(quaternion[0])

        np.testing.assert_allclose(quaternion_of(rotation_of(quaternion)), quaternion, atol=1e-12)


def test_cameras_are_shared_by_folder_and_size_and_read_their_focal_length(tmp_path):
    for name, size in (("one/a.jpg", (60, 40)), ("one/b.jpg", (60, 40)), ("two/c.jpg", (60, 40))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0xA405] = 26
        Image.new("L", size).save(tmp_path / name, exif=exif)

    cameras, index = cameras_of(list_photos(tmp_path))

    assert index == [0, 0, 1]
    assert cameras[0].known
    assert cameras[0].params[0] == pytest.approx(26 * np.hypot(60, 40) / np.hypot(36, 24))
    assert cameras[0].params[1:] == (30, 20, 0)


def test_cameras_of_unknown_models_and_numbers_are_refused():
    with pytest.raises(ValueError, match="no camera model 'X'; there are SIMPLE_PINHOLE"):
        Camera("X", 4, 3, ())
    with pytest.raises(ValueError, match="no camera model 'X'; there are SIMPLE_PINHOLE"):
        Camera.guessed(SIZE, "X")
    with pytest.raises(ValueError, match="PINHOLE has 4 parameters, not 3"):
        Camera("PINHOLE", 4, 3, (1, 2, 3))


def test_tie_points_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="1 images have 0 cameras"):
        TiePoints(("a",), (CAMERA,), (), {}, {})
    with pytest.raises(ValueError, match=r"keypoints of 'a' must be \(N, 2\), not \(3, 4\)"):
        TiePoints(("a",), (CAMERA,), (0,), {"a": np.zeros((3, 4))}, {})
    with pytest.raises(ValueError, match="keypoints of 'a' are not all finite"):
        TiePoints(("a",), (CAMERA,), (0,), {"a": np.full((1, 2), np.nan)}, {})
    with pytest.raises(ValueError, match=r"pair \('a', 'b'\): no image 'b'"):
        TiePoints(("a",), (CAMERA,), (0,), {"a": EMPTY}, {("a", "b"): np.zeros((0, 2), int)})
    with pytest.raises(ValueError, match=r"must be \(M, 2\) whole numbers, not \(1, 2\) float64"):
        merge_pairs([("a", "b", [[0.5, 1]])])
    tied = tie_points(2, 40)
    pair = next(iter(tied.pairs))
    with pytest.raises(ValueError, match="40 inlier flags for 39 matches"):
        TiePoints(
            tied.names,
            tied.cameras,
            tied.camera_of,
            tied.keypoints,
            {pair: tied.pairs[pair][:-1]},
            tied.geometries,
        )
    with pytest.raises(ValueError, match="a pair is listed both ways round"):
        TiePoints(
            tied.names,
            tied.cameras,
            tied.camera_of,
            tied.keypoints,
            {pair: tied.pairs[pair], pair[::-1]: tied.pairs[pair]},
            tied.geometries,
        )
