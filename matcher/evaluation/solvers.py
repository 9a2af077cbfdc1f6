"""Fit one model to a pair's matches: with the judgement of this package, or as published tables do.

Published protocols take what a solver returns, whether the matches determine it or not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from matcher.evaluation.settings import Settings
from matcher.extras import require
from matcher.geometry import fitting
from matcher.geometry.cameras import transfer
from matcher.geometry.fits import Fit, Reason
from matcher.geometry.solvers import Estimator, solve_fundamental, solve_homography, solve_pose
from matcher.geometry.two_view import Pose, fundamental_from_pose, sampson_distance
from matcher.types import Homography, Labelled, Matches, Matrix, TwoView

Points: TypeAlias = tuple[Matrix, Matrix]
Fitted: TypeAlias = Homography | Labelled | TwoView  # truths that say which model to fit


def fit(
    matches: Matches, truth: Fitted, settings: Settings, threshold: float, repeat: int
) -> Fit[Any]:
    """Fit the model that a truth is of.

    Args:
        matches: In the pixels of the truth.
        truth: Says what to fit, and has the cameras of a pose.
        settings: Which solver, with what confidence and seed.
        threshold: Largest error of an inlier in pixels.
        repeat: Added to the seed.

    Raises:
        ImportError: The solver "opencv" is asked for and OpenCV is not installed.
    """
    estimator = settings.estimator
    estimator = replace(estimator, threshold=threshold, seed=estimator.seed + repeat)
    if settings.solver == "judged":
        points = matches.points0, matches.points1
        if isinstance(truth, Homography):
            return fitting.fit_homography(*points, estimator)
        if isinstance(truth, Labelled):
            return fitting.fit_fundamental(*points, estimator)
        return fitting.fit_pose(*points, truth.intrinsics0, truth.intrinsics1, estimator)
    both = matches.points0.astype(np.float64), matches.points1.astype(np.float64)
    nobody = np.zeros(len(matches), np.bool_)
    if len(matches) < _least(truth):
        return Fit(None, nobody, Reason.TOO_FEW, estimator)
    solve = _by_opencv if settings.solver == "opencv" else _by_poselib
    model = solve(both, truth, estimator)
    if model is None:
        return Fit(None, nobody, Reason.FEW_INLIERS, estimator)
    return Fit(model, _errors(both, truth, model) <= threshold, Reason.OK, estimator)


def _least(truth: Fitted) -> int:
    """Count the matches of a minimal sample."""
    if isinstance(truth, Homography):
        return 4
    return 7 if isinstance(truth, Labelled) else 5


def _errors(points: Points, truth: Fitted, model: Matrix | Pose) -> Matrix:
    """Measure (N,) errors in pixels: of transfer, or Sampson's."""
    if isinstance(truth, TwoView) and isinstance(model, Pose):
        fundamental = fundamental_from_pose(model, truth.intrinsics0, truth.intrinsics1)
        return sampson_distance(*points, fundamental)
    if isinstance(truth, Labelled):
        return sampson_distance(*points, np.asarray(model))
    offsets = transfer(np.asarray(model), points[0]) - points[1]
    return np.asarray(np.hypot(*offsets.T))


def _by_poselib(points: Points, truth: Fitted, estimator: Estimator) -> Matrix | Pose | None:
    chosen = replace(estimator, backend="poselib")
    threshold = estimator.threshold or 0.0
    if isinstance(truth, Homography):
        return solve_homography(*points, threshold, chosen)
    if isinstance(truth, Labelled):
        return solve_fundamental(*points, threshold, chosen)
    cameras = truth.intrinsics0, truth.intrinsics1
    found = solve_pose(*points, cameras, threshold, chosen)
    return found[0] if found else None


def _by_opencv(points: Points, truth: Fitted, estimator: Estimator) -> Matrix | Pose | None:
    """Run OpenCV's plain RANSAC, which has no seed: another seed than 0 shuffles the matches."""
    cv2 = require("cv2", "solver 'opencv'")
    if estimator.seed:
        order = np.random.default_rng(estimator.seed).permutation(len(points[0]))
        points = points[0][order], points[1][order]
    try:
        if isinstance(truth, TwoView):
            return _pose_by_opencv(cv2, points, truth, estimator)
        if isinstance(truth, Labelled):
            return _fundamental_by_opencv(cv2, points, estimator)
        found, _ = cv2.findHomography(
            *points,
            cv2.RANSAC,
            estimator.threshold,
            maxIters=estimator.max_iterations,
            confidence=estimator.confidence,
        )
    except cv2.error:  # hopeless data
        return None
    return None if found is None else np.asarray(found, np.float64)


def _fundamental_by_opencv(cv2: Any, points: Points, estimator: Estimator) -> Matrix | None:
    """Find a fundamental matrix; of several answers in one, the first."""
    threshold, confidence = estimator.threshold or 0.0, estimator.confidence
    found, _ = cv2.findFundamentalMat(
        *points, cv2.FM_RANSAC, threshold, confidence, estimator.max_iterations
    )
    return None if found is None else np.asarray(found[:3], np.float64)


def _pose_by_opencv(cv2: Any, points: Points, truth: TwoView, estimator: Estimator) -> Pose | None:
    """Find an essential matrix on the image planes at depth 1, and its pose of most inliers.

    The threshold is divided by the mean of the four focal lengths; OpenCV may answer with several
    matrices in one. Source: SuperGlue's evaluation, which LoFTR's and others follow.
    """
    cameras = truth.intrinsics0, truth.intrinsics1
    planes = [transfer(np.linalg.inv(K), own) for K, own in zip(cameras, points, strict=True)]
    focal = float(np.mean([K[i, i] for K in cameras for i in (0, 1)]))
    one = np.eye(3)
    essentials, inliers = cv2.findEssentialMat(
        *planes,
        one,
        threshold=(estimator.threshold or 0.0) / focal,
        prob=estimator.confidence,
        method=cv2.RANSAC,
        maxIters=estimator.max_iterations,
    )
    best, most = None, 0
    for essential in [] if essentials is None else np.split(essentials, len(essentials) // 3):
        count, rotation, translation, _ = cv2.recoverPose(
            essential, *planes, one, 1e9, mask=inliers.copy()
        )
        if count > most:
            best, most = Pose(rotation, translation[:, 0]), count
    return best
