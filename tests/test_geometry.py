from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from matcher.geometry import cameras
from matcher.geometry import two_view as geometry
from matcher.geometry.two_view import Pose

INTRINSICS = np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]])
OTHER = np.array([[900.0, 0, 300], [0, 880, 260], [0, 0, 1]])


def project(points, intrinsics):
    pixels = points @ intrinsics.T
    return pixels[:, :2] / pixels[:, 2:]


def random_pose(random):
    rotation = Rotation.from_rotvec(random.normal(size=3) * 0.3).as_matrix()
    return Pose(rotation, random.normal(size=3))


def scene(seed=0, count=200):
    return np.random.default_rng(seed).uniform([-2, -2, 4], [2, 2, 10], (count, 3))


def test_transfer_undoes_itself_by_the_inverse():
    homography = np.array([[1.1, 0.1, 5], [-0.1, 0.9, 3], [1e-4, 2e-4, 1]])
    points = np.random.default_rng(0).uniform(0, 600, (50, 2))

    back = cameras.transfer(np.linalg.inv(homography), cameras.transfer(7 * homography, points))

    np.testing.assert_allclose(back, points, atol=1e-9)


def test_a_point_sent_to_infinity_is_not_finite():
    homography = np.array([[1.0, 0, 0], [0, 1, 0], [1, 0, 0]])

    assert not np.isfinite(cameras.transfer(homography, [[0.0, 5.0]])).any()


def test_a_resize_keeps_the_corners_of_the_picture():
    resized_from_pixels = cameras.resize_homography((600, 800), (300, 200))

    outline = cameras.transfer(resized_from_pixels, [[-0.5, -0.5], [799.5, 599.5]])

    np.testing.assert_allclose(outline, [[-0.5, -0.5], [199.5, 299.5]])


def test_a_homography_of_resized_pictures_maps_the_originals():  # GEO-12
    truth = np.array([[0.9, 0.05, 40], [-0.04, 0.8, 20], [1e-5, 2e-5, 1]])
    resized0 = cameras.resize_homography((600, 800), (300, 400))
    resized1 = cameras.resize_homography((500, 1000), (200, 400))
    found = resized1 @ truth @ np.linalg.inv(resized0)
    corners = np.array([[0, 0], [799, 0], [799, 599], [0, 599.0]])

    original = np.linalg.inv(resized1) @ found @ resized0

    offset = cameras.transfer(original, corners) - cameras.transfer(truth, corners)
    assert np.abs(offset).max() < 1e-9


def test_scaled_intrinsics_project_to_the_scaled_pixels():  # GEO-08
    points = scene()

    scaled = cameras.scale_intrinsics(INTRINSICS, (480, 640), (240, 320))

    expected = (project(points, INTRINSICS) + 0.5) / 2 - 0.5
    np.testing.assert_allclose(project(points, scaled), expected, atol=1e-9)


def test_intrinsics_of_another_resolution_give_a_warning():  # GEO-08
    message = (
        r"intrinsics has its principal point at \(320, 240\), far from the centre of 320 x 240"
    )
    with pytest.warns(UserWarning, match=message):
        cameras.scale_intrinsics(INTRINSICS, (240, 320), (120, 160))


@pytest.mark.parametrize("wrong", [None, np.eye(2), np.diag([500.0, -500, 1]), np.full((3, 3), 2)])
def test_what_is_no_camera_matrix_is_refused(wrong):  # GEO-15
    with pytest.raises(
        ValueError, match=r"intrinsics0 must be a camera matrix .* guess_intrinsics"
    ):
        cameras.check_intrinsics("intrinsics0", wrong)


def test_guessed_intrinsics_are_centred():  # GEO-15
    guess = cameras.guess_intrinsics((480, 640))

    assert guess.tolist() == [[768, 0, 319.5], [0, 768, 239.5], [0, 0, 1]]


def test_undistort_inverts_the_lens():
    cv2 = pytest.importorskip("cv2")
    points = scene()
    distortion = np.array([-0.2, 0.05, 1e-3, -2e-3, 0.01])
    seen, _ = cv2.projectPoints(points, np.zeros(3), np.zeros(3), INTRINSICS, distortion)

    ideal = cameras.undistort(seen[:, 0], INTRINSICS, distortion)

    np.testing.assert_allclose(ideal, project(points, INTRINSICS), atol=1e-6)


def test_no_distortion_changes_nothing():
    points = project(scene(), INTRINSICS)

    np.testing.assert_allclose(cameras.undistort(points, INTRINSICS, []), points, atol=1e-9)


def test_distortion_that_cannot_be_undone_is_nan():
    assert np.isnan(cameras.undistort([[5000.0, 5000.0]], INTRINSICS, [-0.5])).all()


def test_true_matches_lie_on_their_epipolar_lines():
    points, pose = scene(), random_pose(np.random.default_rng(1))
    pixels0 = project(points, INTRINSICS)
    pixels1 = project(points @ pose.rotation.T + pose.translation, OTHER)

    fundamental = geometry.fundamental_from_pose(pose, INTRINSICS, OTHER)

    assert geometry.symmetric_distance(pixels0, pixels1, fundamental).max() < 1e-8
    assert geometry.sampson_distance(pixels0, pixels1, fundamental).max() < 1e-8


def test_symmetric_distance_is_the_mean_of_two_point_line_distances():
    cv2 = pytest.importorskip("cv2")
    random = np.random.default_rng(2)
    points0, points1 = random.uniform(0, 600, (2, 50, 2))
    fundamental = geometry.fundamental_from_pose(random_pose(random), INTRINSICS, OTHER)
    lines1 = cv2.computeCorrespondEpilines(points0[:, None], 1, fundamental)[:, 0]
    lines0 = cv2.computeCorrespondEpilines(points1[:, None], 2, fundamental)[:, 0]
    one = np.ones((50, 1))

    distances = geometry.symmetric_distance(points0, points1, fundamental)

    to1 = np.abs((np.hstack([points1, one]) * lines1).sum(axis=1))  # OpenCV's lines have norm 1
    to0 = np.abs((np.hstack([points0, one]) * lines0).sum(axis=1))
    np.testing.assert_allclose(distances, (to0 + to1) / 2, rtol=1e-6)


def test_sampson_distance_is_opencvs():
    cv2 = pytest.importorskip("cv2")
    random = np.random.default_rng(3)
    points0, points1 = random.uniform(0, 600, (2, 20, 2))
    fundamental = geometry.fundamental_from_pose(random_pose(random), INTRINSICS, OTHER)

    squares = [
        cv2.sampsonDistance(np.append(a, 1.0)[:, None], np.append(b, 1.0)[:, None], fundamental)
        for a, b in zip(points0, points1, strict=True)
    ]

    distances = geometry.sampson_distance(points0, points1, fundamental)
    np.testing.assert_allclose(distances**2, squares, rtol=1e-9)


def test_a_point_at_the_epipole_has_distance_zero():
    pose = Pose(np.eye(3), np.array([0, 0, 1.0]))
    fundamental = geometry.fundamental_from_pose(pose, INTRINSICS, INTRINSICS)

    distance = geometry.symmetric_distance([[320.0, 240.0]], [[9.0, 9.0]], fundamental)

    assert distance.tolist() == [0.0]


def test_lines_far_from_their_points_have_far_distances():
    offset = 1e13  # of the lines, which leaves their normals as they are
    fundamental = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, offset]])
    points0, points1 = np.array([[3.0, 5.0]]), np.array([[40.0, 7.0]])

    distance = geometry.symmetric_distance(points0, points1, fundamental)

    np.testing.assert_allclose(distance, offset + 5 - 7)


def test_an_epipole_is_known_in_spite_of_rounding_and_its_neighbours_are_not_taken_for_it():
    random = np.random.default_rng(4)
    for _ in range(20):
        pose = random_pose(random)
        fundamental = geometry.fundamental_from_pose(pose, INTRINSICS, OTHER)
        centre = INTRINSICS @ pose.inverse.translation
        epipole = centre[:2] / centre[2]
        near = epipole + np.array([[0, 0], [0.01, 0.02]])

        distances = geometry.symmetric_distance(near, [[9.0, 9.0]] * 2, fundamental)

        assert distances[0] == 0
        assert distances[1] > 0


@pytest.mark.parametrize("measure", [geometry.symmetric_distance, geometry.sampson_distance])
def test_epipolar_distances_refuse_unlike_lengths(measure):
    with pytest.raises(ValueError, match="points0 has 3 rows, points1 has 2"):
        measure(np.zeros((3, 2)), np.zeros((2, 2)), np.eye(3))


@pytest.mark.parametrize("degrees", [0.0, 1e-7, 0.01, 5.0, 90.0, 179.999, 180.0])
def test_rotation_errors_are_exact_from_zero_to_a_half_turn(degrees):
    random = np.random.default_rng(4)
    axis = random.normal(size=3)
    turn = Rotation.from_rotvec(np.radians(degrees) * axis / np.linalg.norm(axis)).as_matrix()
    start = Rotation.from_rotvec(random.normal(size=3)).as_matrix()

    assert geometry.rotation_error_degrees(turn @ start, start) == pytest.approx(degrees, abs=1e-9)


def test_a_rotation_that_is_not_finite_is_wrong_by_180_degrees():
    assert geometry.rotation_error_degrees(np.full((3, 3), np.nan), np.eye(3)) == 180.0


def test_the_sense_of_a_translation_counts_in_the_strict_measure_only():  # EVA-03
    truth = np.array([1.0, 0, 0])
    nearly_opposite = np.array([np.cos(np.radians(178)), np.sin(np.radians(178)), 0])

    assert geometry.translation_error_degrees(nearly_opposite, truth) == pytest.approx(178)
    assert geometry.baseline_error_degrees(nearly_opposite, truth) == pytest.approx(2)


def test_directions_without_length_have_documented_errors():  # EVA-03
    axis, zero = np.array([1.0, 0, 0]), np.zeros(3)

    assert geometry.translation_error_degrees(zero, axis) == 180
    assert geometry.baseline_error_degrees(zero, axis) == 90
    assert geometry.baseline_error_degrees(np.full(3, np.nan), axis) == 90
    assert np.isnan(geometry.translation_error_degrees(axis, zero))
    assert np.isnan(geometry.baseline_error_degrees(axis, zero))


def test_an_essential_matrix_has_its_pose_among_four_proper_ones():  # GEO-14
    random = np.random.default_rng(6)
    for _ in range(100):
        pose = random_pose(random)

        found = geometry.poses_from_essential(geometry.essential_from_pose(pose))

        assert len(found) == 4
        assert all(abs(np.linalg.det(each.rotation) - 1) < 1e-9 for each in found)
        assert all(abs(np.linalg.norm(each.translation) - 1) < 1e-9 for each in found)
        assert min(
            geometry.rotation_error_degrees(each.rotation, pose.rotation)
            + geometry.translation_error_degrees(each.translation, pose.translation)
            for each in found
        ) == pytest.approx(0, abs=1e-5)


def test_a_planar_motion_is_among_the_readings_of_its_homography():  # GEO-14
    random = np.random.default_rng(7)
    for _ in range(100):
        pose = random_pose(random)
        normal = random.normal(size=3) * 0.3 + [0, 0, 1]
        normal /= np.linalg.norm(normal)
        shift = pose.translation * min(1, 0.5 / np.linalg.norm(pose.translation))
        homography = OTHER @ (pose.rotation + np.outer(shift, normal)) @ np.linalg.inv(INTRINSICS)

        found = geometry.decompose_homography(-3 * homography, INTRINSICS, OTHER)

        assert all(abs(np.linalg.det(each.rotation) - 1) < 1e-6 for each in found)
        assert min(
            np.abs(each.rotation - pose.rotation).max()
            + np.abs(each.translation - shift).max()
            + np.abs(each.normal - normal).max()
            for each in found
        ) == pytest.approx(0, abs=1e-6)


def test_a_turn_has_one_reading_without_translation():  # GEO-14
    random = np.random.default_rng(8)
    for _ in range(100):
        rotation = random_pose(random).rotation

        found = geometry.decompose_homography(
            OTHER @ rotation @ np.linalg.inv(INTRINSICS), INTRINSICS, OTHER
        )

        assert len(found) == 1
        assert np.abs(found[0].rotation - rotation).max() < 1e-6
        assert not found[0].translation.any()


def test_the_nearest_rotation_is_never_a_mirror():
    mirror = np.diag([1.0, 1.0, -1.0])

    assert np.linalg.det(geometry.nearest_rotation(mirror)) == pytest.approx(1)


def test_the_inverse_pose_undoes_the_pose():
    pose = random_pose(np.random.default_rng(9))
    points = scene()

    moved = points @ pose.rotation.T + pose.translation
    back = moved @ pose.inverse.rotation.T + pose.inverse.translation

    np.testing.assert_allclose(back, points, atol=1e-12)


def test_triangulated_points_are_the_scene():
    points, pose = scene(), random_pose(np.random.default_rng(10))
    moved = points @ pose.rotation.T + pose.translation
    seen = moved[:, 2] > 0.1
    rays0 = cameras.rays(project(points[seen], INTRINSICS), INTRINSICS)
    rays1 = cameras.rays(project(moved[seen], OTHER), OTHER)

    found = geometry.triangulate(rays0, rays1, pose)

    assert seen.sum() > 50
    np.testing.assert_allclose(found, points[seen], rtol=1e-8)


def test_triangulation_is_near_opencvs_with_noise():
    cv2 = pytest.importorskip("cv2")
    random = np.random.default_rng(11)
    points, pose = scene(), Pose(np.eye(3), np.array([1.0, 0, 0.2]))
    pixels0 = project(points, INTRINSICS) + random.normal(0, 0.3, (200, 2))
    pixels1 = project(points + pose.translation, OTHER) + random.normal(0, 0.3, (200, 2))
    projections = INTRINSICS @ np.eye(3, 4), OTHER @ np.c_[np.eye(3), pose.translation]
    theirs = cv2.triangulatePoints(*projections, pixels0.T, pixels1.T)

    ours = geometry.triangulate(
        cameras.rays(pixels0, INTRINSICS), cameras.rays(pixels1, OTHER), pose
    )

    errors_theirs = np.linalg.norm((theirs[:3] / theirs[3]).T - points, axis=1)
    errors_ours = np.linalg.norm(ours - points, axis=1)
    assert np.median(errors_ours) <= 1.1 * np.median(errors_theirs)


def test_points_behind_a_camera_and_parallel_rays_are_not_triangulated():
    pose = Pose(np.eye(3), np.array([1.0, 0, 0]))
    forward = np.array([[0.0, 0, 1]])
    diverging = np.array([[0.1, 0, 1]]) / np.hypot(0.1, 1)

    behind = geometry.triangulate(diverging, forward, pose)
    parallel = geometry.triangulate(forward, forward, pose)

    assert np.isnan(behind).all()
    assert np.isnan(parallel).all()


def test_covered_area_is_that_of_the_hull():
    square = [[0, 0], [50, 0], [50, 40], [0, 40], [20, 20]]

    assert geometry.covered_area(square, (80, 100)) == pytest.approx(0.25)


@pytest.mark.parametrize(
    "points", [np.zeros((0, 2)), [[1, 1], [2, 2]], [[1, 1]] * 5, [[1, 1], [2, 2], [3, 3]]]
)
def test_nothing_is_covered_by_a_line_or_less(points):
    assert geometry.covered_area(points, (80, 100)) == 0.0
