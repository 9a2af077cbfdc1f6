from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from matcher.geometry import cameras, consensus, fitting
from matcher.geometry import two_view as geometry
from matcher.geometry.fits import Reason
from matcher.geometry.fitting import Estimator
from matcher.geometry.solvers import BACKENDS
from matcher.geometry.two_view import Pose
from matcher.geometry.verification import verify
from matcher.types import Matches

INTRINSICS = np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]])
OTHER = np.array([[900.0, 0, 300], [0, 900, 260], [0, 0, 1]])
POSE = Pose(Rotation.from_rotvec([0, 0.1, 0]).as_matrix(), np.array([1, 0, 0.2]))
HOMOGRAPHY = np.array([[1.1, 0.1, 5], [-0.1, 0.9, 3], [1e-4, 1e-4, 1]])
AFFINE = np.array([[1.1, 0.1, 5], [-0.2, 0.9, 3], [0, 0, 1]])
SIMILARITY = np.array([[0.8, -0.6, 5], [0.6, 0.8, 3], [0, 0, 1]])


def fit_pose(points0, points1, estimator=fitting.USUAL):
    return fitting.fit_pose(points0, points1, INTRINSICS, INTRINSICS, estimator)


def fit_essential(points0, points1, estimator=fitting.USUAL):
    return fitting.fit_essential(points0, points1, INTRINSICS, INTRINSICS, estimator)


MINIMUM = {
    fitting.fit_homography: 4,
    fitting.fit_affine: 3,
    fitting.fit_similarity: 2,
    fitting.fit_fundamental: 7,
    fit_pose: 5,
    fit_essential: 5,
}
FITS = list(MINIMUM)
PLANE_MAPS = [
    (fitting.fit_homography, HOMOGRAPHY),
    (fitting.fit_affine, AFFINE),
    (fitting.fit_similarity, SIMILARITY),
]


@pytest.fixture(params=BACKENDS)
def backend(request):
    if request.param == "opencv":
        pytest.importorskip("cv2")
    return request.param


def project(points, intrinsics=INTRINSICS):
    pixels = points @ intrinsics.T
    return pixels[:, :2] / pixels[:, 2:]


def views(points, pose=POSE, intrinsics1=INTRINSICS, noise=0.0, seed=1):
    random = np.random.default_rng(seed)
    moved = points @ pose.rotation.T + pose.translation
    pixels = project(points), project(moved, intrinsics1)
    return tuple(each + random.normal(0, noise, each.shape) for each in pixels)


def scene(seed=0, count=200, near=4.0, far=10.0):
    return np.random.default_rng(seed).uniform([-2, -2, near], [2, 2, far], (count, 3))


def with_outliers(points1, share, seed=2):
    random = np.random.default_rng(seed)
    wrong = random.permutation(len(points1)) < share * len(points1)
    return np.where(wrong[:, None], random.uniform(0, 600, points1.shape), points1), wrong


def errors(pose, truth=POSE):
    return (
        geometry.rotation_error_degrees(pose.rotation, truth.rotation),
        geometry.translation_error_degrees(pose.translation, truth.translation),
    )


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("count", range(9))
def test_too_few_matches_are_an_answer_and_no_exception(fit, count, backend):  # GEO-01
    points0, points1 = views(scene(count=count))

    found = fit(points0, points1, Estimator(backend=backend))

    assert found.inliers.shape == (count,)
    assert found.inliers.dtype == bool
    if count < MINIMUM[fit]:
        assert not found.success
        assert found.model is None
        assert not found.inliers.any()
        assert found.reason == "too few"


@pytest.mark.parametrize("fit", FITS)
def test_empty_lists_are_too_few(fit):  # GEO-01
    assert fit([], []).reason is Reason.TOO_FEW


@pytest.mark.parametrize("fit", [each for each in FITS if each is not fitting.fit_similarity])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_points_on_a_line_are_degenerate(fit, noise, backend):  # GEO-02
    line = np.stack([np.arange(50.0) * 9, np.arange(50.0) * 6], axis=1)
    noisy = line + np.random.default_rng(3).normal(0, noise, line.shape)

    found = fit(noisy, line + 5, Estimator(backend=backend))

    assert found.reason == "degenerate"
    assert found.model is None


@pytest.mark.parametrize("fit", FITS)
def test_copies_of_one_point_are_degenerate(fit, backend):  # GEO-02
    found = fit([[3, 4]] * 20, [[5, 6]] * 20, Estimator(backend=backend))

    assert (found.reason, found.model) == (Reason.DEGENERATE, None)


def test_three_of_four_points_on_a_line_are_degenerate(backend):  # GEO-02
    points = np.array([[0, 0], [100, 100], [200, 200], [300, 10]])

    found = fitting.fit_homography(points, points, Estimator(backend=backend))

    assert found.reason == "degenerate"


def test_all_points_but_one_on_a_line_are_degenerate():  # GEO-02
    line = np.stack([np.arange(50.0) * 9, np.arange(50.0) * 6], axis=1)
    points = np.concatenate([line, [[300, 20]]])

    assert fitting.fit_homography(points, points + 3).reason == "degenerate"


def test_all_of_image_1_in_one_place_is_degenerate():  # GEO-02
    points = np.random.default_rng(4).uniform(0, 600, (50, 2))
    blur = np.random.default_rng(5).normal(0, 0.2, (50, 2))

    for fit in (fitting.fit_homography, fitting.fit_affine, fitting.fit_similarity):
        assert fit(points, blur + 100).reason == "degenerate"


@pytest.mark.parametrize(("fit", "truth"), PLANE_MAPS)
def test_integers_and_duplicates_are_no_trouble(fit, truth, backend):  # GEO-02
    points = np.random.default_rng(6).integers(0, 600, (60, 2)).astype(np.int32)
    points = np.concatenate([points, points[:20]])

    found = fit(points, cameras.transfer(truth, points), Estimator(backend=backend))

    assert found.success
    np.testing.assert_allclose(found.model / found.model[2, 2], truth, atol=1e-3)


@pytest.mark.parametrize(("fit", "truth"), PLANE_MAPS)
def test_plane_maps_are_found_among_outliers(fit, truth, backend):
    random = np.random.default_rng(7)
    points0 = random.uniform(0, 600, (400, 2))
    exact = cameras.transfer(truth, points0)
    points1, wrong = with_outliers(exact + random.normal(0, 0.5, exact.shape), 0.6)

    found = fit(points0, points1, Estimator(backend=backend))

    assert found.success
    assert np.linalg.norm(cameras.transfer(found.model, points0) - exact, axis=1).mean() < 0.4
    assert (found.inliers == ~wrong).mean() > 0.97


@pytest.mark.parametrize("maps", [consensus.affine_maps, consensus.similarity_maps])
def test_least_squares_maps_are_those_of_a_general_solver(maps):
    random = np.random.default_rng(8)
    points0, points1 = random.uniform(0, 600, (2, 30, 2))
    x, y, one, none = *points0.T, np.ones(30), np.zeros(30)
    if maps is consensus.affine_maps:
        rows = [[x, y, none, none, one, none], [none, none, x, y, none, one]]
    else:
        rows = [[x, -y, one, none], [y, x, none, one]]
    design = np.concatenate([np.stack(row, axis=1) for row in rows])
    solution = np.linalg.lstsq(design, points1.T.ravel(), rcond=None)[0]

    moved = cameras.transfer(maps(points0, points1), points0)

    np.testing.assert_allclose(moved.T.ravel(), design @ solution, atol=1e-8)


def test_a_similarity_is_never_a_mirror():
    points = np.random.default_rng(9).uniform(0, 600, (100, 2))

    found = fitting.fit_similarity(points, points * [-1, 1])

    assert found.model is None or np.linalg.det(found.model[:2, :2]) > 0


@pytest.mark.parametrize("count", [5, 6])
def test_one_essential_matrix_comes_from_a_minimal_sample(count, backend):  # GEO-03
    points0, points1 = views(scene(count=count))

    found = fit_essential(points0, points1, Estimator(backend=backend))

    rays0, rays1 = (cameras.rays(points, INTRINSICS) for points in (points0, points1))
    assert found.success
    assert found.model.shape == (3, 3)
    assert np.abs(np.einsum("ni,ij,nj->n", rays1, found.model, rays0)).max() < 1e-6


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_standing_camera_has_no_baseline(noise, backend):  # GEO-04
    points = project(scene(count=100))
    points1 = points + np.random.default_rng(10).normal(0, noise, points.shape)

    found = fit_pose(points, points1, Estimator(backend=backend))

    assert found.reason == "no baseline"
    assert not found.success
    assert not found.model.translation.any()
    assert geometry.rotation_error_degrees(found.model.rotation, np.eye(3)) < 0.1
    assert found.conditioning.median_displacement < 3 * noise + 1e-9
    assert fit_essential(points, points1).model is None


def test_a_standing_camera_is_hardly_ever_given_a_baseline():  # GEO-04
    reasons = []
    for seed in range(40):
        random = np.random.default_rng(seed)
        points = project(scene(seed, count=100))
        points1 = points + random.normal(0, 0.3, points.shape)
        reasons.append(fit_pose(points, points1, Estimator(max_iterations=300)).reason)

    assert reasons.count(Reason.NO_BASELINE) >= 38


def test_things_that_move_do_not_move_a_standing_camera(backend):  # GEO-04
    random = np.random.default_rng(11)
    points = project(scene(count=100))
    points1 = points + random.normal(0, 0.1, points.shape)
    points1[80:] += random.uniform(-30, 30, (20, 2))

    found = fit_pose(points, points1, Estimator(backend=backend))

    assert found.reason == "no baseline"
    assert geometry.rotation_error_degrees(found.model.rotation, np.eye(3)) < 0.1


def test_a_scene_too_far_for_its_baseline_is_said_to_be_so(backend):  # GEO-05
    far = scene(count=200, near=40, far=42) * [8, 8, 1]
    pose = Pose(np.eye(3), np.array([0.05, 0, 0]))

    found = fit_pose(*views(far, pose, noise=0.5), Estimator(backend=backend))

    assert found.reason in (Reason.NO_BASELINE, Reason.ROTATION_ONLY)
    assert found.inliers.mean() > 0.9
    assert found.conditioning.baseline_over_depth < 0.01


def test_a_plane_is_flagged_with_its_second_reading(backend):  # GEO-05
    wall = scene() * [1, 1, 0] + [0, 0, 6]

    found = fit_pose(*views(wall, noise=0.3), Estimator(backend=backend))

    assert found.conditioning.planar
    assert found.conditioning.second_ratio > 0.9


def test_a_deep_scene_is_well_conditioned(backend):  # GEO-05
    found = fit_pose(*views(scene(), noise=0.5), Estimator(backend=backend))

    assert found.success
    assert not found.conditioning.planar
    assert found.conditioning.second_ratio < 0.1
    assert found.conditioning.baseline_over_depth == pytest.approx(1 / 7, rel=0.1)
    assert found.conditioning.median_displacement > 50


def test_a_short_but_visible_baseline_is_a_pose():  # GEO-05
    pose = Pose(POSE.rotation, POSE.translation * 0.03)  # 2 pixels of parallax, 0.1 of noise

    found = fit_pose(*views(scene(), pose, noise=0.1))

    assert found.success
    assert max(errors(found.model, pose)) < 5


def test_exchanging_the_images_gives_the_inverse_pose(backend):  # GEO-06
    points0, points1 = views(scene())
    estimator = Estimator(backend=backend)

    forward, backward = fit_pose(points0, points1, estimator), fit_pose(points1, points0, estimator)

    rotation, translation = errors(forward.model)
    assert (rotation < 0.01, translation < 0.1) == (True, True)
    rotation, translation = errors(backward.model, POSE.inverse)
    assert (rotation < 0.01, translation < 0.1) == (True, True)


@pytest.mark.parametrize("fit", FITS)
def test_unlike_lengths_are_refused(fit):  # GEO-06
    with pytest.raises(ValueError, match="points0 has 9 rows, points1 has 8"):
        fit(np.zeros((9, 2)), np.zeros((8, 2)))


@pytest.mark.parametrize("fit", FITS)
def test_arrays_of_another_shape_are_refused(fit):  # GEO-11
    with pytest.raises(ValueError, match=r"points1 must be \(N, 2\), not \(9, 3\)"):
        fit(np.zeros((9, 2)), np.zeros((9, 3)))


def test_two_different_cameras_and_a_lens_are_handled(backend):  # GEO-07
    distortion = [-0.2]
    points0, points1 = views(scene(), intrinsics1=OTHER)
    plane = cameras.transfer(np.linalg.inv(INTRINSICS), points0)
    bent = plane * (1 + distortion[0] * (plane**2).sum(axis=1, keepdims=True))
    seen0 = cameras.transfer(INTRINSICS, bent)
    points1, wrong = with_outliers(points1, 0.3)

    ideal0 = cameras.undistort(seen0, INTRINSICS, distortion)
    found = fitting.fit_pose(ideal0, points1, INTRINSICS, OTHER, Estimator(backend=backend))

    assert max(errors(found.model)) < 0.2
    assert found.inliers[~wrong].all()


def test_pixels_twice_as_small_give_the_same_inliers(backend):  # GEO-07
    points0, points1 = views(scene(), intrinsics1=OTHER, noise=0.4)
    points1, _ = with_outliers(points1, 0.3)
    double = np.diag([2.0, 2.0, 1.0])

    one = fitting.fit_pose(points0, points1, INTRINSICS, OTHER, Estimator(backend))
    two = fitting.fit_pose(
        points0 * 2, points1 * 2, double @ INTRINSICS, double @ OTHER, Estimator(backend, 2.0)
    )

    assert (one.inliers == two.inliers).mean() > 0.99
    assert max(errors(one.model)) < 1
    assert max(errors(two.model)) < 1


def test_a_camera_with_skew_is_handled():
    skewed = np.array([[500.0, 40, 320], [0, 500, 240], [0, 0, 1]])
    points0, points1 = views(scene(), intrinsics1=skewed)

    found = fitting.fit_pose(points0, points1, INTRINSICS, skewed)

    assert max(errors(found.model)) < 1e-3


def test_intrinsics_scaled_with_the_picture_give_the_pose():  # GEO-08
    points0, points1 = ((points + 0.5) / 2 - 0.5 for points in views(scene()))
    scaled = cameras.scale_intrinsics(INTRINSICS, (480, 640), (240, 320))

    found = fitting.fit_pose(points0, points1, scaled, scaled)

    assert max(errors(found.model)) < 1e-3


def test_missing_intrinsics_are_refused():  # GEO-15
    with pytest.raises(ValueError, match="intrinsics1 must be a camera matrix"):
        fitting.fit_pose([], [], INTRINSICS, None)


@pytest.mark.parametrize("fit", FITS)
def test_the_same_seed_gives_the_same_bits(fit, backend):  # GEO-09
    points0, points1 = views(scene(count=100), noise=0.5)
    points1, _ = with_outliers(points1, 0.5)

    answers = {digest(fit(points0, points1, Estimator(backend=backend))) for _ in range(3)}
    seeds = [fit(points0, points1, Estimator(backend=backend, seed=seed)).seed for seed in (0, 9)]

    assert len(answers) == 1
    assert seeds == [0, 9]


def digest(found):
    model = found.model
    if isinstance(model, Pose):
        model = np.column_stack([model.rotation, model.translation])
    parts = (b"" if model is None else model.tobytes(), found.inliers.tobytes(), found.reason)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


PROGRAM = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
from test_fitting import *
points0, points1 = views(scene(count=3000), noise=0.5)
points1, _ = with_outliers(points1, 0.5)
for backend in {backends!r}:
    for fit in FITS:
        print(digest(fit(points0, points1, Estimator(backend=backend, max_iterations=500))))
"""


def test_the_number_of_threads_changes_no_bit():  # GEO-09
    tests = Path(__file__).parent
    backends = [name for name in BACKENDS if name == "poselib" or find_spec("cv2")]
    program = PROGRAM.format(tests=str(tests), root=str(tests.parent), backends=backends)
    answers = set()
    for threads in ("1", "8"):
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, threads)}
        command = [sys.executable, "-c", program]
        answers.add(subprocess.check_output(command, env=environment, text=True))

    assert len(answers) == 1


@pytest.mark.parametrize("fit", FITS)
def test_coordinates_that_are_no_pixels_are_dropped(fit, backend):  # GEO-10
    points0, points1 = views(scene(count=100))
    estimator = Estimator(backend=backend)
    clean = fit(points0, points1, estimator)
    points0, points1 = (
        np.insert(points, [10, 50, 70], 7.0, axis=0) for points in (points0, points1)
    )
    points0[10, 0], points1[51, 1], points0[72, 1] = np.nan, np.inf, 1e12

    found = fit(points0, points1, estimator)

    kept = np.delete(np.arange(103), [10, 51, 72])
    assert found.dropped == 3
    assert not found.inliers[[10, 51, 72]].any()
    assert (found.inliers[kept] == clean.inliers).all()
    assert found.reason == clean.reason
    if isinstance(clean.model, np.ndarray):
        assert (found.model == clean.model).all()


@pytest.mark.parametrize("fit", FITS)
def test_every_form_of_array_gives_the_same_answer(fit, backend):  # GEO-11
    points0, points1 = (np.round(points, 2) for points in views(scene(count=60)))
    estimator = Estimator(backend=backend)
    wide = np.zeros((120, 4))
    wide[::2, ::2] = points0

    answers = {
        digest(fit(form, points1, estimator))
        for form in (points0, points0.tolist(), wide[::2, ::2], np.asfortranarray(points0))
    }
    single = fit(points0.astype(np.float32), points1.astype(np.float32), estimator)

    assert len(answers) == 1
    assert single.inliers.shape == (60,)


def test_an_image_turned_about_its_centre_is_a_rotation_only(backend):  # GEO-15
    side = 1836
    points = np.random.default_rng(12).uniform(0, side - 1, (300, 2))
    turned = np.stack([points[:, 1], side - 1 - points[:, 0]], axis=1)
    guess = cameras.guess_intrinsics((side, side))

    found = fitting.fit_pose(points, turned, guess, guess, Estimator(backend=backend))

    roll = Rotation.from_euler("z", -90, degrees=True).as_matrix()
    assert found.reason == "rotation only"
    assert geometry.rotation_error_degrees(found.model.rotation, roll) < 0.01
    assert not found.model.translation.any()


def test_a_plane_does_not_determine_a_fundamental_matrix(backend):
    wall = scene() * [1, 1, 0] + [0, 0, 6]
    estimator = Estimator(backend=backend)

    assert fitting.fit_fundamental(*views(wall), estimator).reason == "planar"
    assert fitting.fit_fundamental(*views(wall, noise=0.3), estimator).reason == "planar"


def test_a_fundamental_matrix_is_found_among_outliers(backend):
    points0, points1 = views(scene(), intrinsics1=OTHER, noise=0.3)
    mixed, wrong = with_outliers(points1, 0.4)

    found = fitting.fit_fundamental(points0, mixed, Estimator(backend=backend))

    truth = geometry.fundamental_from_pose(POSE, INTRINSICS, OTHER)
    exact0, exact1 = views(scene(), intrinsics1=OTHER)
    assert found.success
    assert np.linalg.norm(found.model) == pytest.approx(1)
    assert geometry.symmetric_distance(exact0, exact1, truth).max() < 1e-8
    assert geometry.symmetric_distance(exact0, exact1, found.model).mean() < 0.3
    assert found.inliers[~wrong].mean() > 0.95


@pytest.mark.parametrize("fit", [fitting.fit_homography, fitting.fit_fundamental, fit_pose])
def test_matches_without_a_common_model_never_raise(fit, backend):
    points0, points1 = np.random.default_rng(13).uniform(0, 600, (2, 100, 2))

    found = fit(points0, points1, Estimator(backend=backend, max_iterations=500))

    assert found.inliers.mean() < 0.4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "ransac"}, "no backend 'ransac'; there are poselib, opencv"),
        ({"threshold": 0}, "threshold must be positive pixels, not 0"),
        ({"threshold": float("nan")}, "threshold must be positive pixels, not nan"),
        ({"confidence": 1.0}, "confidence must lie between 0 and 1, not 1.0"),
        ({"max_iterations": 0}, "max_iterations must be at least 1, not 0"),
        ({"seed": -1}, "seed must lie in 0 ... 2147483647, not -1"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Estimator(**options)


def matched(points0, points1):
    return Matches(points0, points1, np.ones(len(points0)))


def test_the_same_place_is_accepted_with_its_grounds():  # EVA-09
    points0, points1 = views(scene(), noise=0.5)
    points1, _ = with_outliers(points1, 0.5)

    verdict = verify(matched(points0, points1), (480, 640), (480, 640))

    assert (verdict.same_place, verdict.reason) == (True, Reason.OK)
    assert verdict.inliers >= 90
    assert verdict.inlier_ratio == verdict.inliers / 200
    assert 0.2 < verdict.covered_area <= 1
    assert verdict.log10_chance < -20


def test_a_small_flat_thing_is_accepted():  # EVA-09
    points0 = np.random.default_rng(14).uniform([300, 200], [360, 260], (30, 2))

    verdict = verify(
        matched(points0, cameras.transfer(HOMOGRAPHY, points0)), (480, 640), (480, 640)
    )

    assert verdict.same_place
    assert verdict.covered_area < 0.02


@pytest.mark.parametrize("count", [0, 3, 10, 40, 400])
def test_random_matches_are_rejected_with_a_reason(count):  # ATT-11, EVA-09
    for seed in range(5):
        points0, points1 = np.random.default_rng(seed).uniform(0, 480, (2, count, 2))

        verdict = verify(matched(points0, points1), (480, 640), (480, 640))

        assert not verdict.same_place
        assert verdict.reason in (Reason.TOO_FEW, Reason.FEW_INLIERS)
        assert verdict.log10_chance > -4


def test_few_inliers_never_decide():  # ATT-11
    points0, points1 = views(scene(count=11))

    verdict = verify(matched(points0, points1), (480, 640), (480, 640))

    assert (verdict.same_place, verdict.inliers, verdict.reason) == (False, 11, Reason.TOO_FEW)
