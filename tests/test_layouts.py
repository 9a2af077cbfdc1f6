"""Data sets in the layouts in which they are published, on tiny copies of them."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
from PIL import Image as PilImage

from matcher import datasets
from matcher.evaluation import benchmarks, protocols
from matcher.types import Homography, Labelled, TwoView, TwoViewDepth

CAMERA = np.array([[50.0, 0, 20], [0, 50, 15], [0, 0, 1]])
SHIFT = np.array([[1.0, 0, 3], [0, 1, 0], [0, 0, 1]])


def picture(path, size=(40, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    PilImage.new("L", size, 90).save(path)


def numbers(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(" ".join(map(str, row)) for row in np.atleast_2d(values)))


def turn(degrees):
    angle = np.deg2rad(degrees)
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])


def pose(rotation, place):
    """Camera from world (4, 4) of a camera at a place."""
    motion = np.eye(4)
    motion[:3, :3], motion[:3, 3] = rotation, -rotation @ place
    return motion


def hpatches(root):
    for name in ("i_one", "v_two", "i_dc"):
        for index in range(1, 7):
            picture(root / name / f"{index}.ppm")
        for index in range(2, 7):
            numbers(root / name / f"H_1_{index}", SHIFT * index)


def test_hpatches_is_read_without_the_sequences_that_published_tables_leave_out(tmp_path):
    hpatches(tmp_path)

    pairs = datasets.load_layout("hpatches", tmp_path, skip=["i_dc"])

    assert [pair.name for pair in pairs[:2]] == ["i_one 2", "i_one 3"]
    assert {pair.group for pair in pairs} == {"illumination", "viewpoint"}
    assert len(pairs) == 10
    assert pairs[0].truth.pixels1_from_pixels0[0, 2] == 6
    assert (pairs[3].image0.name, pairs[3].image1.name) == ("1.ppm", "5.ppm")


def test_what_a_data_set_lacks_is_listed_with_how_to_get_it(tmp_path):
    hpatches(tmp_path)
    (tmp_path / "v_two" / "4.ppm").unlink()

    with pytest.raises(FileNotFoundError, match=r"1 of 18 files are missing: .*4\.ppm\. Get hpat"):
        datasets.load_layout("hpatches", tmp_path)
    (tmp_path / "v_two" / "H_1_3").unlink()
    with pytest.raises(FileNotFoundError, match=r"H_1_3.*--root is the folder with i_ajuntament"):
        datasets.load_layout("hpatches", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere is no folder\. Ask for ScanNet"):
        datasets.load_layout("scannet", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="has no pair in the layout 'evd'"):
        datasets.load_layout("evd", tmp_path / "empty")
    with pytest.raises(ValueError, match="no layout 'hpatch'; there are hpatches, megadepth"):
        datasets.load_layout("hpatch", tmp_path)


def test_a_homography_file_must_have_nine_numbers(tmp_path):
    hpatches(tmp_path)
    (tmp_path / "i_one" / "H_1_2").write_text("1 2 three")

    with pytest.raises(ValueError, match="H_1_2 must have nine numbers"):
        datasets.load_layout("hpatches", tmp_path)


def test_oxford_affine_has_a_level_for_every_image(tmp_path):
    for index in range(1, 7):
        picture(tmp_path / "graf" / f"img{index}.ppm")
        picture(tmp_path / "boat" / f"img{index}.pgm")
    for index in range(2, 7):
        numbers(tmp_path / "graf" / f"H1to{index}p", SHIFT)
        numbers(tmp_path / "boat" / f"H1to{index}p", SHIFT)
    (tmp_path / "notes").mkdir()

    pairs = datasets.load_layout("oxford-affine", tmp_path)

    assert [pair.level for pair in pairs] == [2, 3, 4, 5, 6] * 2
    assert [pair.group for pair in pairs] == ["boat"] * 5 + ["graf"] * 5
    assert pairs[0].image1.name == "img2.pgm"


def test_evd_is_read(tmp_path):
    for side in "12":
        picture(tmp_path / side / "adam.png")
    numbers(tmp_path / "h" / "adam.txt", SHIFT)

    (pair,) = datasets.load_layout("evd", tmp_path)

    assert isinstance(pair.truth, Homography)
    assert pair.image1 == (tmp_path / "2" / "adam.png").resolve()


def wxbs(root):
    rows = [[10, 20, 12, 21.5], [3, 4, 5, 6]]
    for inner, ending in (("WGABS/one", "png"), ("WGBS/two", "jpg"), ("WGABS/petrzin", "png")):
        for name in ("01", "02"):
            picture(root / inner / f"{name}.{ending}")
        numbers(root / inner / "corrs.txt", rows)


def test_wxbs_is_read_without_the_pairs_that_thresholds_are_chosen_on(tmp_path):
    wxbs(tmp_path)

    pairs = datasets.load_layout("wxbs", tmp_path, skip=["petrzin"])

    assert [(pair.name, pair.group) for pair in pairs] == [
        ("WGABS/one", "WGABS"),
        ("WGBS/two", "WGBS"),
    ]
    assert pairs[1].image1.name == "02.jpg"
    assert isinstance(pairs[0].truth, Labelled)
    np.testing.assert_array_equal(pairs[0].truth.points1, [[12, 21.5], [5, 6]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2 3", "corrs.txt must have rows of four numbers"),
        ("1 2 3 x", "corrs.txt must have rows of four numbers"),
        ("", "points1 must have a row for each of 0 points0, at least one"),
    ],
)
def test_labelled_points_must_be_there(tmp_path, text, message):
    wxbs(tmp_path)
    (tmp_path / "WGABS" / "one" / "corrs.txt").write_text(text)

    with pytest.raises(ValueError, match=message):
        datasets.load_layout("wxbs", tmp_path)


def megadepth(root, **changes):
    """A scene file as LoFTR keeps it, with None for images that are not there."""
    folder = root / "megadepth_test_1500_scene_info"
    folder.mkdir(parents=True)
    names = [None, "Undistorted_SfM/0015/images/a.jpg", "Undistorted_SfM/0015/images/b.jpg"]
    for name in names[1:]:
        picture(root / name)
    infos = np.empty(1, object)
    infos[0] = ((1, 2), 0.2, np.zeros((3, 4)))
    arrays = {
        "image_paths": np.array(names, object),
        "intrinsics": objects([None, CAMERA, CAMERA]),
        "poses": objects([None, pose(np.eye(3), [0, 0, 0]), pose(turn(10), [1, 0, 0])]),
        "pair_infos": infos,
        "numbers": np.arange(3),
    }
    np.savez(folder / "0015_0.1_0.3.npz", **{**arrays, **changes})


def objects(values):
    array = np.empty(len(values), object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def test_megadepth_is_read_from_its_scene_files(tmp_path):
    megadepth(tmp_path)

    (pair,) = datasets.load_layout("megadepth", tmp_path)

    assert (pair.name, pair.group) == ("0015_0.1_0.3 0", "0015")
    np.testing.assert_allclose(pair.truth.rotation, turn(10), atol=1e-12)
    np.testing.assert_allclose(pair.truth.translation, -turn(10) @ [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(pair.truth.intrinsics0, CAMERA)


class Harmful:
    """What a file from elsewhere could hold: reading it as a pickle would call this."""

    def __reduce__(self):
        return (pytest.fail, ("a file from elsewhere ran code",))


def test_a_scene_file_cannot_run_anything(tmp_path):
    megadepth(tmp_path, pair_infos=objects([Harmful()]))

    message = r"0\.3\.npz is no file of a data set's arrays: .*_Fail is no part of an array"
    with pytest.raises(ValueError, match=message):
        datasets.load_layout("megadepth", tmp_path)


def test_megadepth_without_scene_files_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no \*\.npz, neither by itself nor in mega"):
        datasets.load_layout("megadepth", tmp_path)


def test_scannet_is_read_and_its_cameras_are_moved_to_the_images(tmp_path):
    lists = tmp_path / "scannet_test_1500"
    scene = lists / "scene0707_00"
    for frame, place, size in ((15, [0, 0, 0], (1296, 968)), (585, [0, 0, 2], (640, 480))):
        picture(scene / "color" / f"{frame}.jpg", size)
        numbers(scene / "pose" / f"{frame}.txt", np.linalg.inv(pose(turn(frame / 10), place)))
    np.savez(lists / "test.npz", name=np.array([[707, 0, 15, 585]]))
    camera = np.array([[577.0, 0, 319.5, 0], [0, 577, 239.5, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    np.savez(lists / "intrinsics.npz", scene0707_00=camera)

    (pair,) = datasets.load_layout("scannet", tmp_path)

    np.testing.assert_allclose(pair.truth.rotation, turn(58.5 - 1.5), atol=1e-9)
    np.testing.assert_allclose(pair.truth.translation, -turn(58.5) @ [0, 0, 2], atol=1e-9)
    assert pair.truth.intrinsics0[0, 0] == pytest.approx(577 * 1296 / 640)
    assert pair.truth.intrinsics0[0, 2] == pytest.approx((1296 - 1) / 2)
    np.testing.assert_allclose(pair.truth.intrinsics1, camera[:3, :3])
    numbers(scene / "pose" / "15.txt", [[1, 2]])
    with pytest.raises(ValueError, match=r"15\.txt must have 16 numbers"):
        datasets.load_layout("scannet", tmp_path)


def test_strecha_pairs_views_that_are_near_in_order(tmp_path):
    places = [[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 0, 0]]
    for index, place in enumerate(places):
        picture(tmp_path / "fountain_dense" / "urd" / f"{index:04}.png")
        values = [*CAMERA.ravel(), 0, 0, 0, *turn(5 * index).T.ravel(), *place, 40, 30]
        numbers(tmp_path / "fountain_dense_cameras" / f"{index:04}.png.camera", [values])

    pairs = datasets.load_layout("strecha", tmp_path, max_gap=2)

    assert [pair.name for pair in pairs][:2] == [
        "fountain 0000.png 0001.png",
        "fountain 0000.png 0002.png",
    ]
    assert len(pairs) == 5
    np.testing.assert_allclose(pairs[0].truth.rotation, turn(5), atol=1e-12)
    np.testing.assert_allclose(pairs[0].truth.translation, -turn(5) @ [1, 0, 0], atol=1e-12)
    (tmp_path / "fountain_dense" / "urd" / "0003.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"0003\.png\.camera has no image 0003\.png in"):
        datasets.load_layout("strecha", tmp_path)


def row(*columns):
    return " ".join(str(value) for column in columns for value in np.ravel(column))


@pytest.mark.parametrize(
    ("line", "truth"),
    [
        (row("a.png", "b.png"), None),
        (row("a.png", "b.png", 0, 0), None),
        (row("a.png", "b.png", CAMERA, CAMERA, np.eye(3), [1, 0, 0]), TwoView),
        (row("a.png", "b.png", 0, 0, CAMERA, CAMERA, pose(np.eye(3), [-1, 0, 0])), TwoView),
    ],
)
def test_pair_lists_of_four_projects_are_read(tmp_path, line, truth):
    for name in "ab":
        picture(tmp_path / "images" / f"{name}.png")
    (tmp_path / "list.txt").write_text(f"# names\n{line}\n")

    (pair,) = datasets.load_layout("list", tmp_path, file="list.txt", images="images")

    assert type(pair.truth) is (truth or type(None))
    if truth is not None:
        np.testing.assert_allclose(pair.truth.translation, [1, 0, 0])


def test_a_toml_manifest_needs_no_more_than_what_cannot_be_guessed(tmp_path):
    for name in "ab":
        picture(tmp_path / f"{name}.png")
    path = tmp_path / "mine.toml"
    text = '[[pair]]\nimage0 = "a.png"\nimage1 = "b.png"\n'
    path.write_text(f"{text}H_0to1 = {SHIFT.tolist()}\nlevel = 2\n{text}id = 'plain'\n")

    first, second = datasets.benchmark(path)

    assert (first.name, first.group, first.level) == ("a.png-b.png", "mine", 2)
    assert isinstance(first.truth, Homography)
    assert second.truth is None
    path.write_text("pairs = 3")
    with pytest.raises(ValueError, match=r"must have tables \[\[pair\]\] and nothing else"):
        datasets.benchmark(path)
    path.write_text("[[pair")
    with pytest.raises(ValueError, match="is no TOML"):
        datasets.benchmark(path)
    path.write_text(f"{text}level = 'far'\n")
    with pytest.raises(ValueError, match="level must be a number, not 'far'"):
        datasets.benchmark(path)


@pytest.mark.parametrize("ending", [".npy", ".png"])
def test_depth_of_a_manifest_is_the_truth_of_every_pixel(tmp_path, ending):
    depth = np.full((30, 40), 2000, np.uint16)
    depth[0] = 0
    for name in "ab":
        picture(tmp_path / f"{name}.png")
    if ending == ".npy":
        np.save(tmp_path / "depth.npy", depth)
    else:
        PilImage.fromarray(depth).save(tmp_path / "depth.png")
    lines = ["[[pair]]", 'image0 = "a.png"', 'image1 = "b.png"', "t_0to1 = [1, 0, 0]"]
    lines += [f"{key} = {CAMERA.tolist()}" for key in ("K0", "K1")]
    lines += [f"R_0to1 = {np.eye(3).tolist()}", "depth_scale = 0.001"]
    lines += [f"depth{side} = 'depth{ending}'" for side in (0, 1)]
    (tmp_path / "deep.toml").write_text("\n".join(lines))

    (pair,) = datasets.benchmark(tmp_path / "deep.toml")

    assert isinstance(pair.truth, TwoViewDepth)
    assert pair.truth.depth0[5, 5] == pytest.approx(2)
    assert np.isnan(pair.truth.depth1[0]).all()
    picture(tmp_path / "a.png", (50, 30))
    with pytest.raises(ValueError, match=r"depth0 must be \(30, 50\), not \(30, 40\)"):
        datasets.benchmark(tmp_path / "deep.toml")


@pytest.mark.parametrize("name", protocols.names())
def test_every_protocol_is_whole_and_says_what_it_is(name):
    found = protocols.protocol(name)

    assert found.version >= 1
    assert str(found).startswith(f"{name}, version {found.version}: {found.title}")
    assert found.layout in (*datasets.LAYOUTS, "list", "manifest")
    assert found.obtain or found.layout in datasets.LAYOUTS
    assert found.source


def test_published_protocols_have_the_published_rules():
    loftr = protocols.protocol("megadepth1500-loftr").settings
    glue = protocols.protocol("hpatches-gluefactory").settings
    indoors = protocols.protocol("scannet1500").settings

    assert loftr.working_size((1200, 1600)) == (624, 840)  # 630 is no multiple of 8
    assert (loftr.solver, loftr.pose_thresholds, loftr.failure_degrees) == (
        "opencv",
        (0.5,),
        np.inf,
    )
    assert loftr.estimator.confidence == 0.99999
    assert glue.working_size((600, 800)) == (480, 640)
    assert glue.working_size((300, 200)) == (720, 480)
    assert indoors.working_size((968, 1296)) == (480, 640)
    assert indoors.measure == "resized"
    sample = protocols.protocol("superglue-sample").settings
    assert (sample.repeats, sample.pose_thresholds, sample.solver) == (20, (1.0,), "opencv")


def test_a_part_of_a_protocol_is_taken_only_where_asked_for_and_named(tmp_path):
    hpatches(tmp_path)

    with pytest.raises(ValueError, match=r"has 10 pairs, hpatches-loftr has 540: .* \(--partial\)"):
        benchmarks.find("hpatches-loftr", tmp_path)
    found = benchmarks.find("hpatches-loftr", tmp_path, partial=True)

    assert found.protocol.endswith("Only 10 of its 540 pairs.")
    assert found.settings.max_matches == 1000
    assert found.keypoints == 1024
    assert found.turns is False
    assert found.refined("both").settings.refine == "both"


def test_a_benchmark_that_is_not_there_or_is_given_other_rules_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no benchmark 'hpatch'; there are sample, synthetic, evd"):
        benchmarks.find("hpatch")
    with pytest.raises(ValueError, match="evd fixes its rules: it takes no resize and no repeats"):
        benchmarks.find("evd", tmp_path, long_side=640, repeats=2)
    with pytest.raises(ValueError, match=r"evd needs --root, the folder of its data\. Get the Ext"):
        benchmarks.find("evd")
    with pytest.raises(ValueError, match="no protocol 'loftr'; there are evd"):
        protocols.protocol("loftr")
    with pytest.raises(FileNotFoundError, match=r"pairs_calibrated\.txt.* Get megadepth1500\.zip"):
        protocols.protocol("megadepth1500-poselib").load(tmp_path)


def test_the_sample_takes_the_rules_of_the_caller():
    assert benchmarks.find("sample", long_side=0, repeats=3).settings.repeats == 3
    assert benchmarks.find("sample", long_side=0).settings.long_side is None
    assert benchmarks.find("sample").settings.long_side == 640
    assert benchmarks.find("sample").turns is None


def test_scene_files_with_long_headers_are_read_too(tmp_path):
    folder = tmp_path / "megadepth_test_1500_scene_info"
    megadepth(tmp_path)
    with (
        zipfile.ZipFile(folder / "0015_0.1_0.3.npz", "a") as archive,
        archive.open("later.npy", "w") as file,
    ):
        np.lib.format.write_array(file, np.arange(4), version=(2, 0))

    assert len(datasets.load_layout("megadepth", tmp_path)) == 1
