"""How well matches determine a model: lines, planes, turns without a baseline, second solutions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matcher.geometry.cameras import rays, transfer
from matcher.geometry.two_view import (
    Pose,
    decompose_homography,
    essential_from_pose,
    fundamental_from_pose,
    nearest_rotation,
    poses_from_essential,
    rotation_error_degrees,
    sampson_distance,
    translation_error_degrees,
    triangulate,
)
from matcher.types import Matrix

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Conditioning:
    """What a relative pose rests on; low parallax, a plane or a rival pose make it doubtful.

    Attributes:
        median_displacement: Median distance in pixels between the two places of an inlier.
        baseline_over_depth: Median over the inliers of the baseline over the depth in camera 0.
        planar: True where a homography explains the inliers better than epipolar geometry does.
        second_ratio: Matches that the best clearly different pose explains (epipolar and in front)
            over those of the chosen one; near 1 the choice between the two is open.
    """

    median_displacement: float
    baseline_over_depth: float
    planar: bool
    second_ratio: float


def on_a_line(points: Matrix, tolerance: float) -> bool:
    """Tell whether points lie on a line, or in one place, but for an RMS distance in pixels."""
    offsets = points - points.mean(axis=0)
    scatter = np.einsum("ni,nj->ij", offsets, offsets) / len(points)
    return bool(np.linalg.eigvalsh(scatter)[0] <= tolerance**2)


def in_one_place(points: Matrix, tolerance: float) -> bool:
    """Tell whether points lie in one place but for an RMS distance in pixels."""
    return bool(points.var(axis=0).sum() <= tolerance**2)


def determines_homography(points0: Matrix, points1: Matrix, noise: float) -> bool:
    """Tell whether matches determine a homography: four of them with no three on a line.

    The linear equations of a homography leave one solution; here a second one is looked for, to
    within the noise.

    Args:
        points0: (N, 2) inliers, not all in one place.
        points1: (N, 2) inliers, likewise.
        noise: Accuracy of a point in pixels.

    Source: Hartley and Zisserman, Multiple View Geometry, 2nd ed., section 4.1.
    """
    (x, y), (u, v) = _normalised(points0).T, _normalised(points1).T
    one, none = np.ones_like(x), np.zeros_like(x)
    above = np.stack([x, y, one, none, none, none, -u * x, -u * y, -u], axis=1)
    below = np.stack([none, none, none, x, y, one, -v * x, -v * y, -v], axis=1)
    rows = np.concatenate([above, below])
    squares = np.linalg.eigvalsh(np.einsum("ni,nj->ij", rows, rows) / len(points0))
    relative = noise * max(_scale(points0), _scale(points1))
    return bool(squares[1] > max(relative**2 / 4, 1e-12))


def _scale(points: Matrix) -> float:
    """Scale that brings the RMS distance from the centre to the square root of two."""
    return float(np.sqrt(2 / points.var(axis=0).sum()))


def _normalised(points: Matrix) -> Matrix:
    return np.asarray((points - points.mean(axis=0)) * _scale(points))


def noise_of(errors: Matrix, parameters: int, threshold: float) -> float:
    """Estimate the noise of a coordinate in pixels from the residuals of inliers.

    The RMS: inliers have no outliers left to be robust against, and it varies less than a median.

    Args:
        errors: (N,) Sampson distances.
        parameters: Degrees of freedom that the model took from them.
        threshold: Of the inliers; a hundredth of it is the least that is returned.
    """
    free = max(len(errors) - parameters, 1)
    return max(float(np.sqrt((errors**2).sum() / free)), threshold / 100)


def gric(errors: Matrix, noise: float, dimension: int, parameters: int) -> float:
    """Rate a model of two views, the lower the better: Torr's robust information criterion.

    Args:
        errors: (N,) distances in pixels, over both images together.
        noise: Standard deviation of a coordinate in pixels.
        dimension: 3 for epipolar geometry, 2 for maps of points to points.
        parameters: 7 for a fundamental matrix, 5 for a pose, 8 for a homography, 3 for a turn.

    Source: P. H. S. Torr, Geometric motion segmentation and model selection, 1998.
    """
    costs = np.minimum((errors / noise) ** 2, 2.0 * (4 - dimension))
    count = len(errors)
    return float(costs.sum() + np.log(4) * dimension * count + np.log(4 * count) * parameters)


def homography_errors(points0: Matrix, points1: Matrix, pixels1_from_pixels0: Matrix) -> Matrix:
    """Measure how far a match must move, in both images together, to fit a homography.

    Returns:
        (N,) pixels, exact for a map that is a similarity near the point; infinite beyond infinity.
    """
    forward = np.linalg.norm(transfer(pixels1_from_pixels0, points0) - points1, axis=1)
    a, b, c = pixels1_from_pixels0
    inverse = np.stack([np.cross(b, c), np.cross(c, a), np.cross(a, b)], axis=1)  # of any scale
    backward = np.linalg.norm(transfer(inverse, points1) - points0, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = 1 / np.hypot(1 / forward, 1 / backward)
    return np.where(np.isnan(errors), np.inf, errors)


def turn_between(
    points0: Matrix, points1: Matrix, intrinsics: tuple[Matrix, Matrix], homography: Matrix
) -> Matrix:
    """Fit the rotation that explains matches best when the camera did not move.

    Args:
        points0: (N, 2) pixels.
        points1: (N, 2) pixels.
        intrinsics: Of image 0 and image 1.
        homography: pixels1_from_pixels0, where the search starts.

    Returns:
        (3, 3) camera1_from_camera0, by reweighted least squares between rays (Cauchy weights).
    """
    rays0, rays1 = rays(points0, intrinsics[0]), rays(points1, intrinsics[1])
    start = np.linalg.inv(intrinsics[1]) @ homography @ intrinsics[0]
    rotation = nearest_rotation(start * np.sign(np.linalg.det(start)))
    for _ in range(10):
        squares = ((rays0 @ rotation.T - rays1) ** 2).sum(axis=1)
        weights = 1 / (1 + squares / max(float(np.median(squares)), 1e-16))
        rotation = nearest_rotation(np.einsum("n,ni,nj->ij", weights, rays1, rays0))
    return rotation


def turn_homography(rotation: Matrix, intrinsics: tuple[Matrix, Matrix]) -> Matrix:
    """Make pixels1_from_pixels0 of a camera that only turned."""
    return np.asarray(intrinsics[1] @ rotation @ np.linalg.inv(intrinsics[0]))


def explained(
    points0: Matrix,
    points1: Matrix,
    intrinsics: tuple[Matrix, Matrix],
    pose: Pose,
    threshold: float,
) -> tuple[Bools, Matrix]:
    """Find the matches that a pose explains: near their epipolar lines, and not behind a camera.

    Rays that are parallel to within the threshold belong to points too far away to tell their side.

    Returns:
        (N,) True where explained, and (N,) depths in camera 0, NaN where not in front of both.
    """
    fundamental = fundamental_from_pose(pose, *intrinsics)
    near = sampson_distance(points0, points1, fundamental) <= threshold
    rays0, rays1 = rays(points0, intrinsics[0]), rays(points1, intrinsics[1])
    depths = triangulate(rays0, rays1, pose)[:, 2]
    focal = (np.trace(intrinsics[0]) + np.trace(intrinsics[1]) - 2) / 4
    parallel = np.linalg.norm(rays0 @ pose.rotation.T - rays1, axis=1) <= 2 * threshold / focal
    return near & (np.isfinite(depths) | parallel), depths


def condition(
    points0: Matrix,
    points1: Matrix,
    intrinsics: tuple[Matrix, Matrix],
    pose: Pose,
    homography: Matrix | None,
    threshold: float,
) -> tuple[Conditioning, Matrix | None]:
    """Say what a pose rests on, and whether a turn alone explains its inliers better.

    Args:
        points0: (N, 2) inliers.
        points1: (N, 2) inliers.
        intrinsics: Of image 0 and image 1.
        pose: Of the inliers, translation of length 1.
        homography: pixels1_from_pixels0 of most of the inliers, or None.
        threshold: Pixels of Sampson distance, of the inliers.

    Returns:
        The conditioning, and the (3, 3) rotation of the turn that Torr's criterion prefers to the
        pose, or None.
    """
    errors = sampson_distance(points0, points1, fundamental_from_pose(pose, *intrinsics))
    noise = noise_of(errors, 5, threshold)
    of_pose, of_plane, of_turn = gric(errors, noise, 3, 5), np.inf, np.inf
    rotation = None
    if homography is not None:
        of_plane = gric(homography_errors(points0, points1, homography), noise, 2, 8)
        rotation = turn_between(points0, points1, intrinsics, homography)
        turned = homography_errors(points0, points1, turn_homography(rotation, intrinsics))
        of_turn = gric(turned, noise, 2, 3)
    planar = of_plane < of_pose
    depths = explained(points0, points1, intrinsics, pose, threshold)[1]
    depths = depths[np.isfinite(depths)]
    conditioning = Conditioning(
        median_displacement=displacement(points0, points1),
        baseline_over_depth=float(np.median(1 / depths)) if len(depths) else 0.0,
        planar=planar,
        second_ratio=second_ratio(
            points0, points1, intrinsics, pose, homography if planar else None, threshold
        ),
    )
    return conditioning, rotation if of_turn < min(of_pose, of_plane) else None


def displacement(points0: Matrix, points1: Matrix) -> float:
    """Measure the median distance in pixels between the two places of a match."""
    return float(np.median(np.linalg.norm(points1 - points0, axis=1)))


def second_ratio(
    points0: Matrix,
    points1: Matrix,
    intrinsics: tuple[Matrix, Matrix],
    chosen: Pose,
    homography: Matrix | None,
    threshold: float,
) -> float:
    """Count the matches that the best rival pose explains, over those of the chosen pose.

    Rivals are the other readings of the essential matrix and, where a homography is given, all of
    its readings; poses within five degrees of the chosen one are no rivals.
    """
    rivals = poses_from_essential(essential_from_pose(chosen))
    if homography is not None:
        motions = decompose_homography(homography, *intrinsics)
        rivals += [Pose(motion.rotation, motion.translation) for motion in motions]
    best = 0
    for rival in rivals:
        turn = rotation_error_degrees(rival.rotation, chosen.rotation)
        shift = translation_error_degrees(rival.translation, chosen.translation)
        if max(turn, shift) > 5 and rival.translation.any():
            best = max(
                best, int(explained(points0, points1, intrinsics, rival, threshold)[0].sum())
            )
    own = int(explained(points0, points1, intrinsics, chosen, threshold)[0].sum())
    return best / max(own, 1)
