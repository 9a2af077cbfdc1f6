from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from matcher.evaluation import calibration, metrics
from matcher.evaluation.truth import reprojection_errors, squared_epipolar_errors, true_places
from matcher.geometry import cameras
from matcher.geometry.two_view import Pose
from matcher.types import (
    DenseMap,
    Homography,
    Labelled,
    Matches,
    TwoView,
    TwoViewDepth,
    Unrelated,
)

INTRINSICS = np.array([[500.0, 0, 319.5], [0, 500, 239.5], [0, 0, 1]])
OFFSET = np.array([3.0, 4.0])
SHIFT = np.array([[1.0, 0, 3], [0, 1, 4], [0, 0, 1]])  # by OFFSET
INF, NAN = float("inf"), float("nan")


def matched(points0, points1, scores=None, indices=None):
    scores = np.ones(len(points0)) if scores is None else scores
    return Matches(points0, points1, scores, indices)


def two_view(rotation=None, translation=(1.0, 0, 0)):
    rotation = np.eye(3) if rotation is None else rotation
    return TwoView(INTRINSICS, INTRINSICS, rotation, np.array(translation))


def test_the_three_areas_differ_as_documented():  # EVA-01
    errors, thresholds = [1, 3, 7, 30, INF], (5, 10, 20)

    np.testing.assert_allclose(metrics.auc(errors, thresholds), [0.300, 0.450, 0.525])
    np.testing.assert_allclose(metrics.auc_exact(errors, thresholds), [0.240, 0.380, 0.490])
    np.testing.assert_allclose(metrics.accuracy(errors, thresholds), [0.4, 0.6, 0.6])


@pytest.mark.parametrize(
    ("errors", "threshold", "expected"),
    [
        ([INF, INF, INF], 5, 0),
        ([0, 0, 0], 5, 1),
        ([5.0], 5, 0),
        ([0.5] * 4, 1, 0.5625),
        ([NAN, 1], 5, 0.45),  # as [inf, 1]
        ([], 5, NAN),
    ],
)
def test_failures_ties_and_empties_follow_the_rules(errors, threshold, expected):  # EVA-02
    assert metrics.auc(errors, [threshold])[0] == pytest.approx(expected, nan_ok=True)


def test_exact_area_and_accuracy_follow_the_same_rules():  # EVA-02
    assert np.isnan(metrics.auc_exact([], [5])).all()
    assert np.isnan(metrics.accuracy([], [5])).all()
    assert metrics.auc_exact([NAN, 1], [5]) == metrics.auc_exact([INF, 1], [5]) == [0.4]
    assert metrics.accuracy([5.0, 4.9], [5]) == [0.5]


def area_by_quadrature(errors, threshold):
    """Integrate the joined recall curve interval by interval, as its definition reads."""
    errors = sorted(INF if np.isnan(e) else e for e in errors)
    corners = [(0.0, 0.0)] + [
        (e, (i + 1) / len(errors)) for i, e in enumerate(errors) if e < threshold
    ]
    corners.append((threshold, corners[-1][1]))
    area = 0.0
    for (left, low), (right, high) in pairwise(corners):
        area += (right - left) * low + (right - left) * (high - low) / 2
    return area / threshold


def test_areas_equal_an_independent_implementation():
    random = np.random.default_rng(0)
    for _ in range(1000):
        errors = random.exponential(8, random.integers(1, 40)).round(random.integers(0, 4))
        errors[random.random(len(errors)) < 0.1] = random.choice([INF, NAN])
        threshold = random.choice([1, 3, 5, 10, 20])

        expected = area_by_quadrature(errors.tolist(), threshold)

        assert metrics.auc(errors, [threshold])[0] == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.floats(0.1, 50))
def test_the_exact_area_is_below_the_trapezoids_and_above_zero(errors, threshold):
    exact = metrics.auc_exact(errors, [threshold])[0]

    assert -1e-12 <= exact <= metrics.auc(errors, [threshold])[0] + 1e-9
    assert metrics.auc(errors, [threshold])[0] <= metrics.accuracy(errors, [threshold])[0] + 1e-9


def test_pooling_is_by_pair_or_by_sequence():  # EVA-05
    errors, sequences = [1, 1, 1, 1, 100], ["A"] * 4 + ["B"]

    assert metrics.auc(errors, [10])[0] == pytest.approx(0.730)
    assert metrics.auc_by_sequence(errors, sequences, [10])[0] == pytest.approx(0.9125 / 2)
    assert np.isnan(metrics.auc_by_sequence([], [], [10])).all()


def test_pooling_refuses_unlike_lengths():  # EVA-05
    with pytest.raises(ValueError, match="errors has 2 rows, sequences has 1"):
        metrics.auc_by_sequence([1, 2], ["A"], [10])


def test_pose_errors_follow_both_definitions():  # EVA-03
    turn = Rotation.from_rotvec([0, 0, np.radians(2)]).as_matrix()
    nearly_opposite = np.array([np.cos(np.radians(178)), np.sin(np.radians(178)), 0])

    error = metrics.pose_error(Pose(turn, nearly_opposite), two_view())

    assert (error.common, error.strict) == (pytest.approx(2), pytest.approx(178))
    exact = metrics.pose_error(Pose(np.eye(3), np.array([5.0, 0, 0])), two_view())
    assert (exact.common, exact.strict) == (0, 0)


def test_without_a_true_baseline_the_rotation_alone_counts():  # EVA-03
    turn = Rotation.from_rotvec([0, 0, np.radians(2)]).as_matrix()

    error = metrics.pose_error(Pose(turn, np.array([1.0, 0, 0])), two_view(translation=(0, 0, 0)))

    assert not error.has_baseline
    assert (error.common, error.strict) == (pytest.approx(2), pytest.approx(2))


def test_a_failed_pose_is_wrong_by_180_degrees():  # EVA-02
    error = metrics.pose_error(None, two_view())

    assert (error.rotation, error.common, error.strict) == (180, 180, 180)
    still = metrics.pose_error(Pose(np.eye(3), np.zeros(3)), two_view())
    assert (still.common, still.strict) == (90, 180)


def test_pose_errors_equal_an_independent_implementation():
    random = np.random.default_rng(1)
    for _ in range(1000):
        start, turn = (Rotation.from_rotvec(random.normal(0, sigma, 3)) for sigma in (2, 0.5))
        truth, found = random.normal(size=(2, 3))

        error = metrics.pose_error(
            Pose((turn * start).as_matrix(), found), two_view(start.as_matrix(), truth)
        )

        rotation = np.degrees(turn.magnitude())
        one, other = found / np.linalg.norm(found), truth / np.linalg.norm(truth)
        strict = np.degrees(2 * np.arcsin(np.linalg.norm(one - other) / 2))  # by the chord
        assert error.rotation == pytest.approx(rotation, abs=1e-9)
        assert error.strict == pytest.approx(max(rotation, strict), abs=1e-9)
        assert error.common == pytest.approx(max(rotation, min(strict, 180 - strict)), abs=1e-9)


def test_corner_errors_are_pixels_whatever_the_aspect():  # EVA-04
    truth = Homography(np.array([[0.9, 0.05, 40], [-0.04, 0.8, 20], [0, 0, 1]]))

    error = metrics.corner_error(SHIFT @ truth.pixels1_from_pixels0, truth, (200, 640))

    assert error == pytest.approx(5.0, abs=1e-12)
    assert metrics.in_normalised_frame(error, (200, 640)) == pytest.approx(12.0)


def test_corner_errors_equal_an_independent_implementation():
    random = np.random.default_rng(2)
    for _ in range(1000):
        height, width = random.integers(100, 2000, 2)
        estimated, truth = np.eye(3) + random.normal(0, 1e-5, (2, 3, 3)) * [1e3, 1e3, 1e5]

        error = metrics.corner_error(estimated, Homography(truth), (height, width))

        distances = []
        for corner in (
            (0, 0, 1),
            (width - 1, 0, 1),
            (width - 1, height - 1, 1),
            (0, height - 1, 1),
        ):
            (x, y, w), (u, v, z) = estimated @ corner, truth @ corner
            distances.append(((x / w - u / z) ** 2 + (y / w - v / z) ** 2) ** 0.5)
        assert error == pytest.approx(sum(distances) / 4, rel=1e-9, abs=1e-9)


def test_a_failed_homography_has_an_infinite_corner_error():  # EVA-02
    at_infinity = np.array([[1.0, 0, 0], [0, 1, 0], [1, 0, 0]])

    assert metrics.corner_error(None, Homography(np.eye(3)), (10, 10)) == INF
    assert metrics.corner_error(at_infinity, Homography(np.eye(3)), (10, 10)) == INF


def test_precision_of_nothing_is_zero_and_counts():  # EVA-07
    errors = [0.5] * 5 + [9.0] * 5

    assert metrics.precision([], [3]) == [0]
    assert metrics.mean_matching_accuracy([[], errors], [3]) == [0.25]
    assert metrics.matching_score([], 100, [3]) == [0]
    assert metrics.matching_score([], 0, [3]) == [0]
    assert metrics.matching_score(errors, 100, [3]) == [0.05]
    assert metrics.matching_score([1.0], 1, [3, 1]).tolist() == [1, 0]  # below, not at


def test_matches_of_which_the_truth_says_nothing_are_left_out():  # EVA-07
    assert metrics.precision([NAN, 0.5, 9.0], [3]) == [0.5]
    assert np.isnan(metrics.precision([NAN], [3])).all()
    assert metrics.mean_matching_accuracy([[NAN], [0.5]], [3]) == [1.0]
    assert np.isnan(metrics.mean_matching_accuracy([], [3])).all()
    assert metrics.matching_score([NAN, 0.5], 10, [3]) == [0.1]


def test_precision_counts_below_the_threshold_not_at_it():
    np.testing.assert_allclose(metrics.precision([0.5, 1, 3], [1, 3, 5]), [1 / 3, 2 / 3, 1])


def test_errors_against_a_homography_are_distances_in_image_1():
    points = np.random.default_rng(3).uniform(0, 100, (20, 2))

    errors = reprojection_errors(matched(points, points), Homography(SHIFT))

    np.testing.assert_allclose(errors, 5, atol=1e-5)


def test_errors_against_two_views_are_epipolar_distances():
    matches = matched([[10, 50]] * 2, [[300, 50], [300, 53]])

    errors = reprojection_errors(matches, two_view())  # moved along x: lines are rows

    np.testing.assert_allclose(errors, [0, 3], atol=1e-9)
    np.testing.assert_allclose(squared_epipolar_errors(matches, two_view()), [0, 2 * 0.006**2])


def test_every_match_of_unrelated_pictures_is_wrong():
    assert reprojection_errors(matched([[1, 2]], [[1, 2]]), Unrelated()).tolist() == [INF]


@pytest.mark.parametrize(
    "truth", [Homography(SHIFT), two_view(), DenseMap(np.zeros((4, 4, 2), np.float32)), Unrelated()]
)
def test_no_matches_have_no_errors(truth):
    assert reprojection_errors(Matches.empty(), truth).shape == (0,)


def dense(homography, height=40, width=50):
    y, x = np.mgrid[:height, :width]
    places = cameras.transfer(homography, np.stack([x.ravel(), y.ravel()], axis=1))
    return places.reshape(height, width, 2).astype(np.float32)


def test_a_dense_map_is_interpolated_between_its_pixels():
    points = np.random.default_rng(4).uniform([0, 0], [49, 39], (200, 2))

    places = true_places(DenseMap(dense(SHIFT * 0.7 + np.eye(3) * 0.3)), points)

    expected = cameras.transfer(SHIFT * 0.7 + np.eye(3) * 0.3, points)
    np.testing.assert_allclose(places, expected, atol=1e-5)


def test_a_dense_map_says_nothing_at_edges_holes_and_outside():
    values = dense(np.eye(3))
    values[:, 20:] += 30  # another surface
    values[5, 5] = np.nan
    points = [[19.5, 10], [5, 5], [4.5, 5], [-0.1, 3], [49.1, 3], [19, 10], [6, 5], [49, 39]]

    known = np.isfinite(true_places(DenseMap(values), points)).all(axis=1)

    assert known.tolist() == [False, False, False, False, False, True, True, True]


def wall_and_box(size=(480, 640)):
    """A wall at depth 4 with a box at depth 2 in the middle; camera 1 stands 0.2 to the right."""
    depth0, depth1 = np.full(size, 4.0, np.float32), np.full(size, 4.0, np.float32)
    depth0[200:280, 300:340] = 2
    depth1[200:280, 250:290] = 2  # 500 * 0.2 / 2 = 50 pixels to the left
    return TwoViewDepth(INTRINSICS, INTRINSICS, np.eye(3), np.array([-0.2, 0, 0]), depth0, depth1)


def test_depth_carries_points_into_the_other_view():
    truth = wall_and_box()

    places = true_places(truth, [[100, 100], [320, 240], [10, 20]])

    np.testing.assert_allclose(places, [[75, 100], [270, 240], [-15, 20]], atol=1e-4)
    found = reprojection_errors(matched([[100, 100]], [[75, 103]]), truth)
    assert found == pytest.approx([3], abs=1e-4)


def test_hidden_points_depth_edges_and_holes_are_unknown():
    truth = wall_and_box()
    truth.depth0[50, 50] = np.nan
    hidden, edge, hole = [295, 240], [299.5, 240], [50, 50]

    assert np.isnan(true_places(truth, [hidden, edge, hole])).all()


def test_depth_is_exact_on_a_slanted_plane():
    y, x = np.mgrid[:480, :640]
    normal = np.array([0.3, 0.1, 1]) / 4
    rays = np.stack([(x - 319.5) / 500, (y - 239.5) / 500, np.ones_like(x)], axis=-1)
    depth0 = (1 / (rays @ normal)).astype(np.float32)
    shift = np.array([-0.2, 0, 0])
    depth1 = ((1 + normal @ shift) / (rays @ normal)).astype(np.float32)
    truth = TwoViewDepth(INTRINSICS, INTRINSICS, np.eye(3), shift, depth0, depth1)
    points = np.random.default_rng(5).uniform([60, 20], [600, 460], (100, 2))

    places = true_places(truth, points)

    homography = INTRINSICS @ (np.eye(3) + np.outer(shift, normal)) @ np.linalg.inv(INTRINSICS)
    np.testing.assert_allclose(places, cameras.transfer(homography, points), atol=1e-3)


def test_a_point_behind_camera_1_has_no_place():
    depth = np.full((480, 640), 1.0, np.float32)
    behind = np.array([0, 0, -2.0])
    truth = TwoViewDepth(INTRINSICS, INTRINSICS, np.eye(3), behind, depth, depth)

    assert reprojection_errors(matched([[100, 100]], [[100, 100]]), truth).tolist() == [INF]


def test_recall_counts_the_points_that_could_be_matched():
    points0 = np.array([[10, 10], [20, 20], [30, 30], [40, 40]], np.float64)
    points1 = points0[:3] + OFFSET  # the fourth has no partner
    right = matched(points0[:2], points1[:2], indices=[[0, 0], [1, 1]])
    wrong = matched(points0[2:3], points1[:1], indices=[[2, 0]])

    assert metrics.recall(right, Homography(SHIFT), points0, points1) == pytest.approx(2 / 3)
    assert metrics.recall(wrong, Homography(SHIFT), points0, points1) == 0
    assert metrics.recall(Matches.empty(), Homography(SHIFT), points0, points1) == 0
    assert np.isnan(metrics.recall(right, Unrelated(), points0, points1))
    assert np.isnan(metrics.recall(right, Homography(SHIFT), points0, points1 + 100))
    assert np.isnan(metrics.recall(right, Homography(SHIFT), points0, points1[:0]))


def test_recall_takes_matches_within_three_pixels():
    points0 = np.array([[10, 10], [50, 50]], np.float64)
    moved = points0 + OFFSET + [[2.9, 0], [3.1, 0]]
    found = matched(points0, moved, indices=[[0, 0], [1, 1]])

    assert metrics.recall(found, Homography(SHIFT), points0, points0 + OFFSET) == 0.5


def test_bias_counts_below_the_threshold_in_the_plane():
    points = np.array([[10, 10], [20, 20], [30, 30]], np.float64)
    offsets = np.array([[0.25, 0.5], [4, 0], [0, 3]])  # far in x alone; at the threshold in y

    bias = metrics.localisation_bias(matched(points, points + offsets), Homography(np.eye(3)))

    np.testing.assert_allclose(bias, [0.25, 0.5], atol=1e-6)


def test_recall_without_indices_goes_by_place():
    points0 = np.array([[10, 10], [20, 20], [30, 30]], np.float64)
    moved = points0[:2] + 0.4

    found = metrics.recall(
        matched(moved, moved + OFFSET), Homography(SHIFT), points0, points0 + OFFSET
    )

    assert found == pytest.approx(2 / 3)


def test_bias_is_the_median_offset_of_correct_matches():
    points = np.random.default_rng(6).uniform(0, 100, (21, 2))
    offset = np.concatenate([np.tile([0.5, -0.25], (20, 1)), [[50, 50]]])
    places = cameras.transfer(SHIFT, points) + offset

    bias = metrics.localisation_bias(matched(points, places), Homography(SHIFT))

    np.testing.assert_allclose(bias, [0.5, -0.25], atol=1e-4)
    assert np.isnan(metrics.localisation_bias(Matches.empty(), Homography(SHIFT))).all()


def test_scores_drawn_as_probabilities_are_calibrated():
    random = np.random.default_rng(7)
    scores = random.random(20000)
    correct = random.random(20000) < scores

    found = calibration.reliability(scores, correct)

    assert found.counts.sum() == 20000
    assert found.expected_calibration_error < 0.02
    np.testing.assert_allclose(found.accuracy, found.confidence, atol=0.05)


def test_calibration_error_by_hand():
    found = calibration.reliability([0.95, 0.95, 0.15, 1.0], [True, False, False, True])

    assert found.counts.tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0, 3]
    assert np.isnan(found.accuracy[0])
    expected = (0.15 + 3 * abs(2 / 3 - 2.9 / 3)) / 4
    assert found.expected_calibration_error == pytest.approx(expected)
    assert np.isnan(calibration.reliability([], []).expected_calibration_error)


def test_average_precision_is_the_sum_over_distinct_scores():
    random = np.random.default_rng(8)
    for _ in range(100):
        scores = random.integers(0, 6, 30) / 5
        correct = random.random(30) < 0.5
        expected, before = 0.0, 0.0
        for level in sorted(set(scores), reverse=True):
            taken = scores >= level
            reached = correct[taken].sum() / correct.sum()
            expected += (reached - before) * correct[taken].mean()
            before = reached

        assert calibration.average_precision(scores, correct) == pytest.approx(expected)

    assert np.isnan(calibration.average_precision([0.5], [False]))
    assert calibration.average_precision([0.9, 0.1], [True, False]) == 1


def test_calibration_refuses_what_are_no_scores():
    with pytest.raises(ValueError, match=r"scores must lie in \[0, 1\], not -1 ... 0.5"):
        calibration.reliability([-1, 0.5], [True, False])
    with pytest.raises(ValueError, match="scores has 2 rows, correct has 1"):
        calibration.average_precision([0.1, 0.5], [True])


SIDEWAYS = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])  # of a camera that moved along x


def test_labelled_points_agree_by_the_published_measure():
    """The example of the published package: both distances are the difference of the rows."""
    points0 = np.stack([np.arange(5.0), np.arange(5.0)], axis=1)
    points1 = np.array([[0, 0], [1, 1.1], [2, 3], [2.5, 2], [4.1, 6]])
    truth = Labelled(points0, points1)

    errors = metrics.labelled_errors(SIDEWAYS, truth)

    np.testing.assert_allclose(errors, np.sqrt(2) * np.array([0, 0.1, 1, 1, 2]), atol=1e-9)
    shares = metrics.labelled_shares(SIDEWAYS, truth, (0.0, 1.0, 2.0, 3.0))
    np.testing.assert_allclose(shares, [0.2, 0.4, 0.8, 1.0])
    assert (metrics.labelled_shares(None, truth, (0.0, 19.0)) == 0).all()


def test_labelled_points_are_measured_as_an_independent_implementation_does():
    epipolar = pytest.importorskip("kornia.geometry.epipolar")
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(3)
    for _ in range(50):
        fundamental = generator.normal(size=(3, 3))
        points = generator.uniform(0, 500, (2, 12, 2))

        errors = metrics.labelled_errors(fundamental, Labelled(points[0], points[1]))

        both = [torch.from_numpy(each)[None] for each in points]
        theirs = epipolar.symmetrical_epipolar_distance(
            *both, torch.from_numpy(fundamental)[None], squared=False, eps=0.0
        )
        np.testing.assert_allclose(errors, theirs[0].numpy(), rtol=1e-9)


def test_a_point_without_an_epipolar_line_is_wrong_without_end():
    assert metrics.labelled_errors(
        np.zeros((3, 3)), Labelled(np.ones((1, 2)), np.ones((1, 2)))
    ) == [INF]
