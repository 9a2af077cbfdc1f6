"""Fit maps of the plane, epipolar geometry and poses to matches of which some are wrong.

Data never raises: every fit answers with one `Fit`, whose `reason` says what the points determine.
Points are pixels of the two images; a model goes from image 0 to image 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from matcher.geometry.cameras import check_intrinsics, transfer
from matcher.geometry.conditioning import (
    Bools,
    Conditioning,
    condition,
    determines_homography,
    displacement,
    explained,
    gric,
    homography_errors,
    in_one_place,
    noise_of,
    on_a_line,
    turn_between,
    turn_homography,
)
from matcher.geometry.consensus import affine_maps, similarity_maps, solve_plane_map
from matcher.geometry.fits import Fit, Reason, Sample
from matcher.geometry.solvers import Estimator, solve_fundamental, solve_homography, solve_pose
from matcher.geometry.two_view import Pose, essential_from_pose, sampson_distance
from matcher.types import Matrix

__all__ = [
    "Estimator",
    "Fit",
    "Reason",
    "fit_affine",
    "fit_essential",
    "fit_fundamental",
    "fit_homography",
    "fit_pose",
    "fit_similarity",
]

USUAL = Estimator()
PLANE_THRESHOLD = 3.0  # pixels; the usual one of published homography protocols
EPIPOLAR_THRESHOLD = 1.0  # pixels; PoseLib's default and that of published pose protocols
_BLUR = 1.0  # pixels: points nearer to a line or to each other than matches are sharp tell nothing


def fit_homography(
    points0: ArrayLike, points1: ArrayLike, estimator: Estimator = USUAL
) -> Fit[Matrix]:
    """Fit the homography of a planar scene or a turning camera.

    Args:
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1.
        estimator: How; its threshold is the distance in image 1, 3 pixels by default.

    Returns:
        A fit with pixels1_from_pixels0 (3, 3) of norm 1.

    Raises:
        ValueError: An array that is not (N, 2), or two different lengths.
    """
    sample = Sample.of(points0, points1, estimator, PLANE_THRESHOLD)
    return _fit_plane(sample, 4, _solve_homography, _homography_determined)


def fit_affine(points0: ArrayLike, points1: ArrayLike, estimator: Estimator = USUAL) -> Fit[Matrix]:
    """Fit an affine map; arguments and errors are those of `fit_homography`.

    Returns:
        A fit with pixels1_from_pixels0 (3, 3), last row 0 0 1.
    """
    sample = Sample.of(points0, points1, estimator, PLANE_THRESHOLD)
    return _fit_plane(sample, 3, _solve_affine, _spread)


def fit_similarity(
    points0: ArrayLike, points1: ArrayLike, estimator: Estimator = USUAL
) -> Fit[Matrix]:
    """Fit a turn, scale and shift; arguments and errors are those of `fit_homography`.

    Returns:
        A fit with pixels1_from_pixels0 (3, 3), last row 0 0 1, never a mirror image.
    """
    sample = Sample.of(points0, points1, estimator, PLANE_THRESHOLD)
    return _fit_plane(sample, 2, _solve_similarity, _apart)


def _fit_plane(
    sample: Sample,
    minimum: int,
    solve: Callable[[Sample], Matrix | None],
    determined: Callable[[Matrix, Matrix, float], bool],
) -> Fit[Matrix]:
    lack = sample.lack(minimum)
    if lack is None and not determined(sample.points0, sample.points1, sample.threshold):
        lack = Reason.DEGENERATE
    if lack is not None:
        return sample.answer(lack)
    model = solve(sample)
    if model is None:
        return sample.answer(Reason.FEW_INLIERS)
    distances = np.linalg.norm(transfer(model, sample.points0) - sample.points1, axis=1)
    inliers = distances <= sample.threshold
    if inliers.sum() < minimum:
        return sample.answer(Reason.FEW_INLIERS)
    if not determined(*sample.select(inliers), sample.threshold):
        return sample.answer(Reason.DEGENERATE, None, inliers)
    return sample.answer(Reason.OK, model, inliers)


def _solve_homography(sample: Sample) -> Matrix | None:
    return solve_homography(sample.points0, sample.points1, sample.threshold, sample.estimator)


def _solve_affine(sample: Sample) -> Matrix | None:
    return solve_plane_map(
        sample.points0, sample.points1, affine_maps, sample.threshold, sample.estimator
    )


def _solve_similarity(sample: Sample) -> Matrix | None:
    return solve_plane_map(
        sample.points0, sample.points1, similarity_maps, sample.threshold, sample.estimator
    )


def _homography_determined(points0: Matrix, points1: Matrix, threshold: float) -> bool:
    spread = _spread(points0, points1, threshold)
    return spread and determines_homography(points0, points1, threshold / 10)


def _spread(points0: Matrix, points1: Matrix, threshold: float) -> bool:
    tolerance = min(threshold, _BLUR)
    return not (on_a_line(points0, tolerance) or on_a_line(points1, tolerance))


def _apart(points0: Matrix, points1: Matrix, threshold: float) -> bool:
    tolerance = min(threshold, _BLUR)
    return not (in_one_place(points0, tolerance) or in_one_place(points1, tolerance))


def fit_fundamental(
    points0: ArrayLike, points1: ArrayLike, estimator: Estimator = USUAL
) -> Fit[Matrix]:
    """Fit the fundamental matrix of two views of unknown cameras.

    Args:
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1.
        estimator: How; its threshold is the Sampson distance, 1 pixel by default.

    Returns:
        A fit with the (3, 3) matrix of norm 1, pixel1 @ model @ pixel0 = 0.

    Raises:
        ValueError: An array that is not (N, 2), or two different lengths.
    """
    sample = Sample.of(points0, points1, estimator, EPIPOLAR_THRESHOLD)
    lack = sample.lack(7)
    if lack is not None:
        return sample.answer(lack)
    model = solve_fundamental(sample.points0, sample.points1, sample.threshold, sample.estimator)
    if model is None:
        return _only_a_plane(sample)
    errors = sampson_distance(sample.points0, sample.points1, model)
    inliers = errors <= sample.threshold
    if inliers.sum() < 7:
        return _only_a_plane(sample)
    chosen = sample.select(inliers)
    if not _spread(*chosen, sample.threshold):
        return sample.answer(Reason.DEGENERATE, None, inliers)
    noise = noise_of(errors[inliers], 7, sample.threshold)
    homography = _homography_of(chosen, sample)
    planar = homography is not None and gric(
        homography_errors(*chosen, homography), noise, 2, 8
    ) < gric(errors[inliers], noise, 3, 7)
    return sample.answer(Reason.PLANAR if planar else Reason.OK, model, inliers)


def _only_a_plane(sample: Sample) -> Fit[Matrix]:
    """Answer where no fundamental matrix was found: exact data of a plane gives solvers none."""
    homography = _homography_of((sample.points0, sample.points1), sample)
    if homography is not None:
        errors = homography_errors(sample.points0, sample.points1, homography)
        if (errors <= sample.threshold).sum() >= 7:
            return sample.answer(Reason.PLANAR, None, errors <= sample.threshold)
    return sample.answer(Reason.FEW_INLIERS)


def _homography_of(chosen: tuple[Matrix, Matrix], sample: Sample) -> Matrix | None:
    """Find the homography of most matches, or none: one that only few follow does not count."""
    samples = min(200, sample.estimator.max_iterations)  # a clean one of 40 % inliers: 0.994
    quick = replace(sample.estimator, max_iterations=samples)
    return solve_homography(*chosen, sample.threshold, quick)


def fit_pose(
    points0: ArrayLike,
    points1: ArrayLike,
    intrinsics0: ArrayLike,
    intrinsics1: ArrayLike,
    estimator: Estimator = USUAL,
) -> Fit[Pose]:
    """Fit the pose of camera 1 seen from camera 0.

    Points of a lens with distortion go through `matcher.geometry.cameras.undistort` first.

    Args:
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1.
        intrinsics0: (3, 3) of image 0, for the pixels of the points: see `scale_intrinsics`.
        intrinsics1: (3, 3) of image 1, which may be another camera.
        estimator: How; its threshold is the Sampson distance in pixels, 1 by default, which the
            solvers divide by the mean focal length of the two cameras.

    Returns:
        A fit with a `Pose` (camera1_from_camera0, translation of length 1) and its conditioning.
        Far points on the wrong side by less than the threshold count as inliers. A turn without a
        baseline is told from a motion by Torr's criterion.

    Raises:
        ValueError: Wrong shapes, two different lengths, or a matrix that is no camera's.
    """
    intrinsics = (
        check_intrinsics("intrinsics0", intrinsics0),
        check_intrinsics("intrinsics1", intrinsics1),
    )
    sample = Sample.of(points0, points1, estimator, EPIPOLAR_THRESHOLD)
    lack = sample.lack(5)
    if lack is not None:
        return sample.answer(lack)
    both = sample.points0, sample.points1
    candidates = solve_pose(*both, intrinsics, sample.threshold, sample.estimator)
    sides = [explained(*both, intrinsics, pose, sample.threshold)[0] for pose in candidates]
    best = int(np.argmax([side.sum() for side in sides])) if sides else -1
    if best < 0 or sides[best].sum() < 5:
        return _only_a_turn(sample, intrinsics)
    return _judge_pose(sample, candidates[best], sides[best], intrinsics)


def _judge_pose(
    sample: Sample, pose: Pose, inliers: Bools, intrinsics: tuple[Matrix, Matrix]
) -> Fit[Pose]:
    """Say whether the inliers of a pose determine it, and what it rests on."""
    chosen = sample.select(inliers)
    if not _spread(*chosen, sample.threshold):
        return sample.answer(Reason.DEGENERATE, None, inliers)
    homography = _homography_of(chosen, sample)
    conditioning, turn = condition(*chosen, intrinsics, pose, homography, sample.threshold)
    if turn is not None:
        return _turned(sample, turn, inliers, conditioning)
    return sample.answer(Reason.OK, pose, inliers, conditioning)


def _only_a_turn(sample: Sample, intrinsics: tuple[Matrix, Matrix]) -> Fit[Pose]:
    """Answer where no pose was found: exact data of a turn gives some solvers none."""
    both = sample.points0, sample.points1
    homography = _homography_of(both, sample)
    if homography is None:
        return sample.answer(Reason.FEW_INLIERS)
    on_plane = homography_errors(*both, homography) <= sample.threshold
    if on_plane.sum() < 5:
        return sample.answer(Reason.FEW_INLIERS)
    turn = turn_between(*sample.select(on_plane), intrinsics, homography)
    inliers = homography_errors(*both, turn_homography(turn, intrinsics)) <= sample.threshold
    if inliers.sum() < 5:
        return sample.answer(Reason.FEW_INLIERS)
    moved = displacement(*sample.select(inliers))
    return _turned(sample, turn, inliers, Conditioning(moved, 0.0, True, 1.0))


def _turned(sample: Sample, turn: Matrix, inliers: Bools, conditioning: Conditioning) -> Fit[Pose]:
    """Answer with a rotation and no translation."""
    still = conditioning.median_displacement <= sample.threshold
    reason = Reason.NO_BASELINE if still else Reason.ROTATION_ONLY
    return sample.answer(reason, Pose(turn, np.zeros(3)), inliers, conditioning)


def fit_essential(
    points0: ArrayLike,
    points1: ArrayLike,
    intrinsics0: ArrayLike,
    intrinsics1: ArrayLike,
    estimator: Estimator = USUAL,
) -> Fit[Matrix]:
    """Fit the essential matrix: that of `fit_pose`, with its arguments, errors and conditioning.

    Returns:
        A fit with one (3, 3) matrix, ray1 @ model @ ray0 = 0, the one whose points are in front of
        both cameras; no model where there is no baseline.
    """
    fit = fit_pose(points0, points1, intrinsics0, intrinsics1, estimator)
    essential = essential_from_pose(fit.model) if fit.model is not None and fit.success else None
    found = {name: getattr(fit, name) for name in ("inliers", "reason", "estimator", "dropped")}
    return Fit(essential, **found, conditioning=fit.conditioning)
