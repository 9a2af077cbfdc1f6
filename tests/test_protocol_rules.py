"""The rules of published protocols: sizes, solvers, numbers of matches; and the pairs we make."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from PIL import Image as PilImage

from matcher import images
from matcher.datasets import load_pairs
from matcher.evaluation import benchmarks, metrics, synthetic
from matcher.evaluation.runner import evaluate
from matcher.evaluation.settings import Settings
from matcher.evaluation.solvers import fit
from matcher.evaluation.truth import true_places
from matcher.geometry.cameras import transfer
from matcher.geometry.fits import Reason
from matcher.types import Homography, Labelled, Matches, Pair, TwoView, TwoViewDepth

CAMERA0 = np.array([[500.0, 0, 320], [0, 520, 240], [0, 0, 1]])
CAMERA1 = np.array([[600.0, 0, 300], [0, 600, 250], [0, 0, 1]])


def turn(degrees):
    angle = np.deg2rad(degrees)
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])


VIEWS = TwoView(CAMERA0, CAMERA1, turn(12), np.array([-1.0, 0.2, 0.1]))
PLANE = Homography(np.array([[1.1, 0.1, -20], [-0.05, 0.9, 12], [1e-5, 2e-5, 1]]))


def matches_of(truth, count=300, noise=0.2, wrong=0.3, seed=0):
    """True matches with noise, and some that are none."""
    generator = np.random.default_rng(seed)
    points0 = generator.uniform((20, 20), (620, 460), (count, 2))
    if isinstance(truth, Homography):
        points1 = transfer(truth.pixels1_from_pixels0, points0)
    else:
        rays = np.column_stack([points0, np.ones(count)]) @ np.linalg.inv(truth.intrinsics0).T
        scene = rays * generator.uniform(3, 8, (count, 1))
        seen = (scene @ truth.rotation.T + truth.translation) @ truth.intrinsics1.T
        points1 = seen[:, :2] / seen[:, 2:]
    points1 = points1 + generator.normal(0, noise, (count, 2))
    bad = generator.random(count) < wrong
    points1[bad] = generator.uniform((20, 20), (620, 460), (int(bad.sum()), 2))
    return Matches(points0, points1, np.ones(count))


@pytest.mark.parametrize("solver", ["judged", "opencv", "poselib"])
@pytest.mark.parametrize("truth", [VIEWS, PLANE], ids=["pose", "plane"])
def test_every_solver_finds_the_model_among_wrong_matches(solver, truth):
    if solver == "opencv":
        pytest.importorskip("cv2")
    found = fit(matches_of(truth), truth, Settings(solver=solver), 1.5, 0)

    assert found.success
    assert 180 < found.inliers.sum() < 260
    if truth is PLANE:
        assert metrics.corner_error(found.model, PLANE, (480, 640)) < 1
    else:
        assert metrics.pose_error(found.model, VIEWS).common < 1


def test_opencvs_pose_is_that_of_a_direct_call_to_it():
    cv2 = pytest.importorskip("cv2")
    matches, threshold = matches_of(VIEWS, seed=3), 0.5
    settings = Settings(solver="opencv")

    found = fit(matches, VIEWS, settings, threshold, 0)

    planes = [
        (points.astype(np.float64) - K[:2, 2]) / K[[0, 1], [0, 1]]
        for points, K in ((matches.points0, CAMERA0), (matches.points1, CAMERA1))
    ]
    focal = (500 + 520 + 600 + 600) / 4
    essential, mask = cv2.findEssentialMat(
        *planes,
        np.eye(3),
        cv2.RANSAC,
        settings.estimator.confidence,
        threshold / focal,
        settings.estimator.max_iterations,
    )
    _, rotation, translation, _ = cv2.recoverPose(essential, *planes, np.eye(3), 1e9, mask=mask)
    np.testing.assert_allclose(found.model.rotation, rotation, atol=1e-6)
    np.testing.assert_allclose(found.model.translation, translation[:, 0], atol=1e-6)


@pytest.mark.parametrize("solver", ["judged", "opencv", "poselib"])
def test_labelled_points_agree_with_the_geometry_of_good_matches(solver):  # of labelled truth
    if solver == "opencv":
        pytest.importorskip("cv2")
    marked = matches_of(VIEWS, 30, 0, 0, seed=8)
    truth = Labelled(marked.points0, marked.points1)

    found = fit(matches_of(VIEWS, seed=4), truth, Settings(solver=solver), 1.0, 0)

    assert found.success
    assert metrics.labelled_shares(found.model, truth, (3.0,))[0] > 0.9


def test_labelled_pairs_are_measured_in_either_frame_and_failures_count(tmp_path, texture):
    for name in "ab":
        PilImage.fromarray(texture(480, 640)).save(tmp_path / f"{name}.png")
    marked = matches_of(VIEWS, 30, 0, 0, seed=8)
    truth = Labelled(marked.points0, marked.points1)
    pair = Pair("one", tmp_path / "a.png", tmp_path / "b.png", truth, "g")
    good = matches_of(VIEWS, 300, 0.2, 0.1)

    def ours(image0, image1):
        scale = image0.shape[0] / 480
        return [(each + 0.5) * scale - 0.5 for each in (good.points0, good.points1)]

    for measure in ("original", "resized"):
        rules = Settings(long_side=320, measure=measure, solver="poselib", repeats=2)
        score = evaluate({"m": ours}, [pair], rules).records[0].score

        assert score.precision == ()
        assert len(score.errors[0]) == 2
        assert score.errors[0][0] < 1
        assert len(score.labelled) == 20
        assert score.labelled[3] > 0.9
        assert score.labelled[0] < 0.1
    (failed,) = evaluate({"m": lambda a, b: 1 / 0}, [pair], Settings(repeats=2)).records
    assert failed.score.labelled == (0,) * 20
    assert failed.score.errors == ((np.inf, np.inf),)


@pytest.mark.parametrize("solver", ["opencv", "poselib"])
@pytest.mark.parametrize("truth", [VIEWS, PLANE], ids=["pose", "plane"])
def test_too_few_matches_are_no_model(solver, truth):
    found = fit(matches_of(truth, 3), truth, Settings(solver=solver), 1.0, 0)

    assert found.reason is Reason.TOO_FEW
    assert found.model is None


@pytest.mark.parametrize("solver", ["opencv", "poselib"])
@pytest.mark.parametrize("truth", [VIEWS, PLANE], ids=["pose", "plane"])
def test_hopeless_matches_end_without_an_exception(solver, truth):
    if solver == "opencv":
        pytest.importorskip("cv2")
    same = Matches(np.full((8, 2), 5.0), np.full((8, 2), 7.0), np.ones(8))

    fit(same, truth, Settings(solver=solver), 1.0, 0)


def test_repeats_shuffle_what_has_no_seed():
    pytest.importorskip("cv2")
    matches = matches_of(VIEWS, noise=1.5)

    found = [fit(matches, VIEWS, Settings(solver="opencv"), 0.5, n).model for n in (0, 0, 1)]

    np.testing.assert_array_equal(found[0].rotation, found[1].rotation)
    assert not np.array_equal(found[0].rotation, found[2].rotation)


@pytest.mark.parametrize(
    ("options", "size", "expected"),
    [
        ({"long_side": 640}, (960, 1280), (480, 640)),
        ({"long_side": 640}, (240, 320), (240, 320)),
        ({"long_side": 640, "enlarge": True}, (240, 320), (480, 640)),
        ({"long_side": None}, (241, 321), (241, 321)),
        ({"long_side": None, "multiple_of": 32}, (241, 321), (224, 320)),
        ({"long_side": None, "multiple_of": 32}, (20, 321), (32, 320)),
        ({"long_side": None, "short_side": 480}, (960, 1280), (480, 640)),
        ({"long_side": None, "exact_size": (640, 480)}, (968, 1296), (480, 640)),
    ],
)
def test_images_are_matched_at_the_size_of_the_rules(options, size, expected):
    assert Settings(**options).working_size(size) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"short_side": 480}, "long_side and short_side exclude each other"),
        (
            {"long_side": None, "exact_size": (640, 8)},
            "exact_size must be at least 16 pixels, not 8",
        ),
        ({"multiple_of": 0}, "multiple_of must be at least 1, not 0"),
        ({"max_matches": 0}, "max_matches must be at least 1, not 0"),
        ({"solver": "magic"}, "solver must be judged or opencv or poselib, not 'magic'"),
    ],
)
def test_rules_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Settings(**options)


def test_a_table_of_rules_is_read_with_its_gaps():
    assert Settings.of({"short_side": 480}).long_side is None
    assert Settings.of({"long_side": 0}).long_side is None
    assert Settings.of({"failure_degrees": None}).failure_degrees == np.inf
    assert Settings.of({"estimator": {"seed": 7}}).estimator.seed == 7
    with pytest.raises(TypeError, match="long_sid"):
        Settings.of({"long_sid": 640})


def test_only_the_best_matches_are_scored_where_the_rules_say_so(tmp_path, texture):
    for name in "ab":
        PilImage.fromarray(texture(96, 128)).save(tmp_path / f"{name}.png")
    pair = Pair("one", tmp_path / "a.png", tmp_path / "b.png", Homography(np.eye(3)), "g")
    points = np.random.default_rng(0).uniform(5, 90, (50, 2))

    def ours(image0, image1):
        scores = np.linspace(0, 1, 50)
        return Matches(points, points + 20 * (scores < 0.5)[:, None], scores)

    found = evaluate({"m": ours}, [pair], Settings(long_side=None, max_matches=20)).records[0]

    assert found.score.matches == 20
    assert found.score.precision == (1, 1, 1)
    assert sum(found.score.by_score[0]) == sum(found.score.by_score[1]) == 20
    assert found.score.bias == pytest.approx((0, 0), abs=1e-5)
    assert 0.2 < found.score.area < 1


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A benchmark of few small pairs, of every kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "SIZE", (96, 128))
        patch.setattr(synthetic, "ANGLES", (0, 90, 200))
        patch.setattr(synthetic, "SCALES", (1.0, 2.0))
        patch.setattr(synthetic, "BLURS", (2.0,))
        patch.setattr(synthetic, "NOISES", (0.1,))
        patch.setattr(synthetic, "SCENES", 2)
        folders = [tmp_path_factory.mktemp(name) for name in ("one", "other")]
        for folder in folders:
            synthetic.write(folder)
    return folders


def test_the_pairs_we_make_are_the_same_to_the_last_bit(few):
    hashes = [
        {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
        for folder in few
    ]

    assert hashes[0] == hashes[1]
    assert len(hashes[0]) > 100


def test_the_pairs_we_make_are_loaded_and_not_made_again(few):
    before = (few[0] / "pairs.json").stat().st_mtime_ns

    found = benchmarks.find("synthetic", few[0])

    assert (few[0] / "pairs.json").stat().st_mtime_ns == before
    assert found.protocol.startswith("synthetic, version 1")
    groups = {pair.group for pair in found.pairs}
    assert groups == {
        "viewpoint",
        "light",
        "blur",
        "noise",
        "rotation",
        "scale",
        "scene",
        "unrelated",
    }
    assert {p.level for p in found.pairs if p.group == "rotation"} == {0, 90, 200}


def test_the_truth_of_the_pairs_we_make_is_that_of_their_pixels(few):
    pairs = [p for p in load_pairs(few[0] / "pairs.json") if p.group in ("rotation", "scale")]

    for pair in pairs:
        image0, image1 = (images.grey(images.read(path)) for path in (pair.image0, pair.image1))
        assert correlation(image0, image1, pair.truth) > 0.9, pair.name


def test_scenes_hide_parts_of_each_other_and_their_depth_carries_pixels_over(few):
    pairs = [p for p in load_pairs(few[0] / "pairs.json") if p.group == "scene"]

    for pair in pairs:
        assert isinstance(pair.truth, TwoViewDepth)
        image0, image1 = (images.grey(images.read(path)) for path in (pair.image0, pair.image1))
        assert correlation(image0, image1, pair.truth) > 0.8, pair.name


def correlation(image0, image1, truth):
    """Correlate the pixels that both images show, by the truth."""
    height, width = image0.shape
    y, x = np.mgrid[4 : height - 4, 4 : width - 4]
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    places = true_places(truth, points)
    inside = np.isfinite(places).all(axis=1)
    inside[inside] &= ((places[inside] >= 1) & (places[inside] < (width - 2, height - 2))).all(1)
    assert inside.sum() > 500
    columns, rows = np.rint(places[inside]).astype(int).T
    own = image0[points[inside, 1], points[inside, 0]]
    return np.corrcoef(own, image1[rows, columns])[0, 1]


def test_the_manifest_of_the_pairs_we_make_comes_last(few, monkeypatch, tmp_path):
    entries = json.loads((few[0] / "pairs.json").read_text())

    assert all((few[0] / entry["image0"]).exists() for entry in entries)
    monkeypatch.setattr(synthetic.assets, "cache_folder", lambda: few[0].parent / few[0].name)
    (few[0] / "synthetic-1").mkdir(exist_ok=True)
    (few[0] / "synthetic-1" / "pairs.json").write_text("[]")
    assert synthetic.synthetic_pairs() == []
