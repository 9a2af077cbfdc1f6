"""Verify pairs: which matches one geometry explains, what kind it is, and why a pair is rejected."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from matcher.geometry.fits import Fit, Reason
from matcher.geometry.fitting import Estimator, fit_fundamental, fit_homography, fit_pose
from matcher.geometry.two_view import Pose, essential_from_pose, fundamental_from_pose
from matcher.geometry.verification import judge
from matcher.sfm.cameras import Camera
from matcher.types import Matches, Matrix, Points

__all__ = ["Config", "Rejection", "TwoViewGeometry", "VerifyOptions", "verify_pair"]


class Config(StrEnum):
    """What explains the matches of a pair; the values of COLMAP's databases are in `database`."""

    REJECTED = "rejected"
    CALIBRATED = "calibrated"
    UNCALIBRATED = "uncalibrated"
    PLANAR = "planar or panoramic"


class Rejection(StrEnum):
    """Why a pair is of no use to a mapper."""

    NONE = ""
    NO_MATCHES = "no matches"
    FEW_MATCHES = "too few matches"
    FEW_INLIERS = "too few inliers"
    CHANCE = "no better than chance"
    DEGENERATE = "points on a line or in one place"
    NO_MOTION = "the camera did not move"


@dataclass(frozen=True)
class VerifyOptions:
    """When a pair counts.

    Attributes:
        threshold: Largest Sampson distance of an inlier, in pixels.
        min_inliers: Fewer reject the pair; mappers want 15 themselves.
        seed: Of the sampling.
    """

    threshold: float = 4.0
    min_inliers: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.threshold < np.inf:
            raise ValueError(f"threshold must be positive pixels, not {self.threshold}")
        if self.min_inliers < 5:
            raise ValueError(f"min_inliers must be at least 5, not {self.min_inliers}")


@dataclass(frozen=True, eq=False)
class TwoViewGeometry:
    """What became of a pair.

    Attributes:
        inliers: (N,) bool, of the matches given.
        config: What explains them.
        rejection: Why the pair is of no use, or `Rejection.NONE`.
        fundamental: (3, 3) with pixel1 @ fundamental @ pixel0 = 0, or None.
        homography: (3, 3) pixels1_from_pixels0, or None; only of planar pairs.
        essential: (3, 3) of pairs with known cameras, or None.
        pose: camera1_from_camera0 of pairs with known cameras, or None.
    """

    inliers: NDArray[np.bool_]
    config: Config
    rejection: Rejection
    fundamental: Matrix | None = None
    homography: Matrix | None = None
    essential: Matrix | None = None
    pose: Pose | None = None


def verify_pair(
    points: tuple[Points, Points],
    cameras: tuple[Camera, Camera],
    options: VerifyOptions | None = None,
) -> TwoViewGeometry:
    """Verify the matches of a pair.

    The fundamental matrix is fitted, and the pose where both cameras are known and without
    distortion; a pair counts if it has enough inliers and chance does not explain them.

    Args:
        points: (N, 2) pixels of each of the two photos; equal rows match.
        cameras: Of the two photos.
        options: When the pair counts.

    Returns:
        The geometry; a rejected pair has no inliers.
    """
    options = options or VerifyOptions()
    count = len(points[0])
    if count < options.min_inliers:
        return _rejected(count, Rejection.FEW_MATCHES if count else Rejection.NO_MATCHES)
    estimator = Estimator(threshold=options.threshold, seed=options.seed)
    views, plane = fit_fundamental(*points, estimator), fit_homography(*points, estimator)
    sizes = [(camera.height, camera.width) for camera in cameras]
    verdict = judge(Matches(*points, np.ones(count, np.float32)), plane, views, sizes[0], sizes[1])
    rejection = _rejection(views, options)
    if rejection is Rejection.NONE and not verdict.same_place:
        rejection = Rejection.CHANCE
    if rejection is not Rejection.NONE:
        return _rejected(count, rejection)
    if all(camera.known and not camera.distorted for camera in cameras):
        return _calibrated(points, cameras, estimator, options)
    planar = views.reason is Reason.PLANAR
    return TwoViewGeometry(
        views.inliers,
        Config.PLANAR if planar else Config.UNCALIBRATED,
        Rejection.NONE,
        views.model,
        plane.model if planar else None,
    )


def _rejection(fit: Fit[Matrix] | Fit[Pose], options: VerifyOptions) -> Rejection:
    if fit.reason is Reason.DEGENERATE:
        return Rejection.DEGENERATE
    if fit.reason is Reason.NO_BASELINE:
        return Rejection.NO_MOTION
    few = fit.inliers.sum() < options.min_inliers or fit.reason is Reason.FEW_INLIERS
    return Rejection.FEW_INLIERS if few else Rejection.NONE


def _rejected(count: int, reason: Rejection) -> TwoViewGeometry:
    return TwoViewGeometry(np.zeros(count, bool), Config.REJECTED, reason)


def _calibrated(
    points: tuple[Points, Points],
    cameras: tuple[Camera, Camera],
    estimator: Estimator,
    options: VerifyOptions,
) -> TwoViewGeometry:
    intrinsics0, intrinsics1 = (camera.intrinsics for camera in cameras)
    fit = fit_pose(*points, intrinsics0, intrinsics1, estimator)
    rejection = _rejection(fit, options)
    pose = fit.model
    if rejection is not Rejection.NONE or pose is None:
        return _rejected(len(points[0]), rejection or Rejection.FEW_INLIERS)
    if fit.reason is Reason.ROTATION_ONLY:
        turn = intrinsics1 @ pose.rotation @ np.linalg.inv(intrinsics0)
        return TwoViewGeometry(
            fit.inliers, Config.PLANAR, Rejection.NONE, homography=turn, pose=pose
        )
    return TwoViewGeometry(
        fit.inliers,
        Config.CALIBRATED,
        Rejection.NONE,
        fundamental_from_pose(pose, intrinsics0, intrinsics1),
        essential=essential_from_pose(pose),
        pose=pose,
    )
