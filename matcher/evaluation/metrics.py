"""Measures of matches, homographies and poses, with the rules for failures and empty results.

Rules that hold throughout. An error counts below a threshold, not at it. A failure is an infinite
error and is never left out. A NaN error of a *match* means that the truth does not say:
such matches are left out of that pair's figures. A NaN error of a *pair* is a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import KDTree

from matcher.evaluation.truth import reprojection_errors, true_places
from matcher.geometry.cameras import homogeneous, transfer
from matcher.geometry.two_view import (
    Pose,
    baseline_error_degrees,
    rotation_error_degrees,
    translation_error_degrees,
)
from matcher.types import Homography, Labelled, Matches, Matrix, Truth, TwoView


def _pair_errors(errors: ArrayLike) -> Matrix:
    """Sort pairs' errors; NaN counts as a failure."""
    array = np.asarray(errors, np.float64).ravel()
    return np.sort(np.where(np.isnan(array), np.inf, array))


def auc(errors: ArrayLike, thresholds: Sequence[float]) -> Matrix:
    """Compute the area under the recall curve by trapezoids: the AUC of the published tables.

    Args:
        errors: (N,) one error a pair; infinite or NaN for a failure.
        thresholds: In the unit of the errors.

    Returns:
        (T,) in [0, 1], pooled over all pairs; NaN where there are no pairs. The curve joins
        the points (error, recall) by lines, so it lies a little above `auc_exact`; four errors of
        0.5 have 0.5625 at 1, not 0.5.
    """
    ordered = np.concatenate([[0.0], _pair_errors(errors)])
    recall = np.linspace(0, 1, len(ordered))
    areas = []
    for threshold in thresholds:
        below = int(np.searchsorted(ordered, threshold))
        x = np.append(ordered[:below], threshold)
        y = np.append(recall[:below], recall[max(below - 1, 0)])
        areas.append(float(((x[1:] - x[:-1]) * (y[1:] + y[:-1])).sum() / (2 * threshold)))
    return np.array(areas) if len(ordered) > 1 else np.full(len(areas), np.nan)


def auc_exact(errors: ArrayLike, thresholds: Sequence[float]) -> Matrix:
    """Compute the area under the recall curve as the step function that it is.

    Arguments and result are those of `auc`.
    """
    ordered = _pair_errors(errors)
    if len(ordered) == 0:
        return np.full(len(thresholds), np.nan)
    return np.array([np.maximum(1 - ordered / limit, 0.0).mean() for limit in thresholds])


def accuracy(errors: ArrayLike, thresholds: Sequence[float]) -> Matrix:
    """Compute the share of pairs with an error below each threshold.

    Arguments and result are those of `auc`.
    """
    ordered = _pair_errors(errors)
    if len(ordered) == 0:
        return np.full(len(thresholds), np.nan)
    return np.array([(ordered < limit).mean() for limit in thresholds])


def auc_by_sequence(
    errors: ArrayLike, sequences: Sequence[str], thresholds: Sequence[float]
) -> Matrix:
    """Compute `auc` within each sequence and average over the sequences, each counting alike.

    Args:
        errors: (N,) one error a pair.
        sequences: The N pairs' sequences.
        thresholds: In the unit of the errors.

    Returns:
        (T,) in [0, 1]. The package's tables pool over pairs, with `auc`; they say so where not.

    Raises:
        ValueError: The two have different lengths.
    """
    array, names = np.asarray(errors, np.float64), np.asarray(sequences)
    if len(array) != len(names):
        raise ValueError(f"errors has {len(array)} rows, sequences has {len(names)}")
    parts = [auc(array[names == name], thresholds) for name in dict.fromkeys(sequences)]
    return np.mean(parts, axis=0) if parts else np.full(len(thresholds), np.nan)


def corner_error(estimated: Matrix | None, truth: Homography, size0: tuple[int, int]) -> float:
    """Measure how far a homography moves the corners of image 0 from their true places.

    Args:
        estimated: (3, 3) pixels1_from_pixels0, or None for a failure.
        truth: The true one.
        size0: Height and width of image 0.

    Returns:
        Mean distance over the centres of the four corner pixels, in pixels of image 1; infinite for
        a failure.
    """
    if estimated is None:
        return float("inf")
    bottom, right = size0[0] - 1, size0[1] - 1
    corners = np.array([[0, 0], [right, 0], [right, bottom], [0, bottom]], np.float64)
    offsets = transfer(estimated, corners) - transfer(truth.pixels1_from_pixels0, corners)
    error = float(np.hypot(offsets[:, 0], offsets[:, 1]).mean())
    return error if np.isfinite(error) else float("inf")


def placement_error(
    estimated: Matrix | None, truth: Homography, size0: tuple[int, int]
) -> tuple[float, float, float]:
    """Measure how far the place of a template in a scene is off.

    Args:
        estimated: (3, 3) scene from template, or None for a failure.
        truth: The true one.
        size0: Height and width of the template.

    Returns:
        Distance of its centres in pixels of the scene; angle between its turns in degrees, 0 to 180;
        and the factor between its sizes, 1 or more. Infinite for a failure.
    """
    failed = float("inf"), float("inf"), float("inf")
    if estimated is None:
        return failed
    height, width = size0
    middle = np.array([width - 1, height - 1]) / 2
    # Both centres, and where a step to the right and one down lead from there.
    near = middle + np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found, true = transfer(estimated, near), transfer(truth.pixels1_from_pixels0, near)
    steps, true_steps = found[1:] - found[0], true[1:] - true[0]
    turn = np.degrees(np.arctan2(*steps[0, ::-1]) - np.arctan2(*true_steps[0, ::-1]))
    sizes = np.sqrt(np.abs([np.linalg.det(steps), np.linalg.det(true_steps)]))
    with np.errstate(divide="ignore"):
        factor = np.exp(np.abs(np.log(sizes[0]) - np.log(sizes[1])))
    errors = (float(np.hypot(*(found[0] - true[0]))), abs((turn + 180) % 360 - 180), float(factor))
    if not np.isfinite(errors).all():
        return failed
    return errors[0], float(errors[1]), errors[2]


def labelled_errors(estimated: Matrix, truth: Labelled) -> Matrix:
    """Measure how far labelled points are from the epipolar geometry that was found.

    Args:
        estimated: (3, 3) with pixel1 @ estimated @ pixel0 = 0.
        truth: The labelled points.

    Returns:
        (N,) pixels: the root of the sum of both squared distances to epipolar lines, the symmetric
        epipolar distance of the WxBS benchmark; infinite where a point has no line.
    """
    points0, points1 = homogeneous(truth.points0), homogeneous(truth.points1)
    lines1, lines0 = points0 @ estimated.T, points1 @ estimated
    product = np.abs((lines1 * points1).sum(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = [product / np.hypot(lines[:, 0], lines[:, 1]) for lines in (lines0, lines1)]
    return np.asarray(np.nan_to_num(np.hypot(*distances), nan=np.inf))


def labelled_shares(
    estimated: Matrix | None, truth: Labelled, thresholds: Sequence[float]
) -> Matrix:
    """Compute the share of labelled points that agree with the epipolar geometry that was found.

    Arguments are those of `labelled_errors`, with None for a failure, and limits in pixels.

    Returns:
        (T,) in [0, 1]; an error at the limit counts, as in the published code; 0 for a failure.

    Source: Mishkin, Matas, Perdoch, Lenc, WxBS: Wide Baseline Stereo Generalizations, BMVC 2015.
    """
    if estimated is None:
        return np.zeros(len(thresholds))
    errors = labelled_errors(estimated, truth)
    return np.array([(errors <= limit).mean() for limit in thresholds])


def in_normalised_frame(error: float, size1: tuple[int, int], shorter_side: int = 480) -> float:
    """Convert pixels of an image into those of the image resized to a shorter side.

    Args:
        error: Pixels of the image.
        size1: Height and width of the image in which the error was measured.
        shorter_side: Of the frame; published homography tables use 480.
    """
    return error * shorter_side / min(size1)


@dataclass(frozen=True)
class PoseError:
    """Errors of a relative pose in degrees; 180 throughout for a failure.

    Attributes:
        rotation: Angle of the turn between the rotations, in [0, 180].
        baseline: Angle between the baselines as unsigned lines, in [0, 90]; NaN where the true
            motion has none, 180 for a failure.
        translation: Angle between the directions of translation, in [0, 180]; NaN likewise.
    """

    rotation: float
    baseline: float
    translation: float

    @property
    def common(self) -> float:
        """The larger of rotation and baseline error, as in the published tables."""
        return float(np.fmax(self.rotation, self.baseline))

    @property
    def strict(self) -> float:
        """The larger of rotation and translation error: a translation of wrong sign is wrong."""
        return float(np.fmax(self.rotation, self.translation))

    @property
    def has_baseline(self) -> bool:
        """Whether the true motion has a baseline; without one the rotation alone counts."""
        return not np.isnan(self.translation)


def pose_error(estimated: Pose | None, truth: TwoView) -> PoseError:
    """Compare a pose with the true one.

    Args:
        estimated: camera1_from_camera0, or None for a failure. A zero translation, of a fit that
            found no baseline, counts 90 degrees as a baseline and 180 as a translation.
        truth: The true pose.
    """
    if estimated is None:
        return PoseError(180.0, 180.0, 180.0)
    translation = np.asarray(truth.translation, np.float64)
    return PoseError(
        rotation_error_degrees(estimated.rotation, np.asarray(truth.rotation, np.float64)),
        baseline_error_degrees(estimated.translation, translation),
        translation_error_degrees(estimated.translation, translation),
    )


def precision(errors: ArrayLike, thresholds: Sequence[float]) -> Matrix:
    """Compute the share of a pair's matches whose error is below each threshold.

    Args:
        errors: (N,) of one pair, from `reprojection_errors`.
        thresholds: In pixels.

    Returns:
        (T,) in [0, 1]; 0 for a pair without matches, so that finding nothing is not rewarded; NaN
        where there are matches but the truth says nothing of any.
    """
    array = np.asarray(errors, np.float64)
    known = array[~np.isnan(array)]
    if len(known) == 0:
        return np.full(len(thresholds), np.nan if len(array) else 0.0)
    return np.array([(known < limit).mean() for limit in thresholds])


def mean_matching_accuracy(
    errors_by_pair: Sequence[ArrayLike], thresholds: Sequence[float]
) -> Matrix:
    """Average `precision` over pairs, pairs without matches counting 0.

    Args:
        errors_by_pair: The errors of each pair's matches.
        thresholds: In pixels.

    Returns:
        (T,) in [0, 1]; pairs of which the truth says nothing are left out; NaN without any other.
    """
    rows = np.array([precision(errors, thresholds) for errors in errors_by_pair])
    known = rows[~np.isnan(rows).any(axis=1)] if len(rows) else rows
    return np.asarray(known.mean(axis=0)) if len(known) else np.full(len(thresholds), np.nan)


def matching_score(errors: ArrayLike, keypoints0: int, thresholds: Sequence[float]) -> Matrix:
    """Compute the number of correct matches over the number of keypoints of image 0.

    Args:
        errors: (N,) of one pair, from `reprojection_errors`.
        keypoints0: Keypoints of image 0, matched or not.
        thresholds: In pixels.

    Returns:
        (T,) in [0, 1]; 0 without keypoints. Matches of which the truth says nothing are not
        correct.
    """
    array = np.asarray(errors, np.float64)
    return np.array([(array < limit).sum() / max(keypoints0, 1) for limit in thresholds])


def recall(
    matches: Matches, truth: Truth, points0: ArrayLike, points1: ArrayLike, threshold: float = 3.0
) -> float:
    """Compute the share of the points that could be matched which were matched correctly.

    A point of image 0 could be matched where some point of image 1 lies within the threshold of its
    true place. It was matched correctly where a match within the threshold of the truth starts at
    it (at the nearest point within the threshold, for matches without indices).

    Args:
        matches: Of the pair.
        truth: With places: `Homography`, `DenseMap` or `TwoViewDepth`.
        points0: (N, 2) described points of image 0.
        points1: (M, 2) described points of image 1.
        threshold: In pixels.

    Returns:
        In [0, 1]; NaN where no point could be matched.
    """
    array0, array1 = np.asarray(points0, np.float64), np.asarray(points1, np.float64)
    places = true_places(truth, array0)
    known = np.isfinite(places).all(axis=1)
    if not known.any() or not len(array1):
        return float("nan")
    possible = np.zeros(len(array0), bool)
    possible[known] = KDTree(array1).query(places[known])[0] < threshold
    correct = matches.select(reprojection_errors(matches, truth) < threshold)
    found = np.zeros(len(array0), bool)
    if correct.indices is not None:
        rows = correct.indices[:, 0]
        found[rows[rows >= 0]] = True
    elif len(correct):
        distances, rows = map(np.atleast_1d, KDTree(array0).query(correct.points0))
        found[rows[distances < threshold]] = True
    return float((found & possible).sum() / possible.sum()) if possible.any() else float("nan")


def localisation_bias(matches: Matches, truth: Truth, threshold: float = 3.0) -> Matrix:
    """Compute the median offset of the correct matches from their true places.

    Args:
        matches: Of the pair.
        truth: With places: `Homography`, `DenseMap` or `TwoViewDepth`.
        threshold: Error in pixels below which a match is correct.

    Returns:
        (2,) pixels of image 1, x and y; NaN without correct matches.
    """
    offsets = matches.points1 - true_places(truth, matches.points0)
    with np.errstate(invalid="ignore"):
        near = offsets[np.hypot(offsets[:, 0], offsets[:, 1]) < threshold]
    return np.asarray(np.median(near, axis=0)) if len(near) else np.full(2, np.nan)
