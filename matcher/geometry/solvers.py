"""Robust solvers of other libraries behind one door: PoseLib and OpenCV's USAC.

Every function takes two (N, 2) C-ordered float64 arrays of finite pixels with at least the rows
that a minimal sample needs, and returns the model or None. What counts as an inlier, and whether
the points determine the model at all, is judged by `matcher.geometry.fitting`, alike for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import poselib

from matcher.extras import require
from matcher.geometry.cameras import transfer
from matcher.geometry.two_view import Pose, poses_from_essential
from matcher.types import Matrix

BACKENDS = ("poselib", "opencv")


@dataclass(frozen=True)
class Estimator:
    """How to fit robustly.

    Attributes:
        backend: "poselib", or "opencv" for its USAC with MAGSAC scores. Affine and similarity maps
            are always fitted by `matcher.geometry.consensus`: neither has a seeded solver for them both.
        threshold: Largest error of an inlier in pixels, or None for the usual one: 3 for maps of
            the plane, measured in image 1; 1 for epipolar geometry, the Sampson distance.
        confidence: Probability with which the search wants to have seen one clean sample.
        max_iterations: Samples drawn at most: 20,000 find one of five clean matches among 20 %
            inliers with probability 0.998.
        seed: Of the sampling; the same seed gives the same bits.
    """

    backend: str = "poselib"
    threshold: float | None = None
    confidence: float = 0.9999
    max_iterations: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"no backend {self.backend!r}; there are {', '.join(BACKENDS)}")
        if self.threshold is not None and not 0 < self.threshold < np.inf:
            raise ValueError(f"threshold must be positive pixels, not {self.threshold}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must lie between 0 and 1, not {self.confidence}")
        if self.max_iterations < 1:
            raise ValueError(f"max_iterations must be at least 1, not {self.max_iterations}")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must lie in 0 ... 2147483647, not {self.seed}")


def solve_homography(
    points0: Matrix, points1: Matrix, threshold: float, estimator: Estimator
) -> Matrix | None:
    """Find pixels1_from_pixels0 (3, 3) from four matches or more."""
    if estimator.backend == "poselib":
        options = _poselib_options(estimator, max_reproj_error=threshold)
        found, _ = poselib.estimate_homography(points0, points1, options)
    else:
        found = _usac("findHomography", (points0, points1), threshold, estimator)
    return _usable(found)


def solve_fundamental(
    points0: Matrix, points1: Matrix, threshold: float, estimator: Estimator
) -> Matrix | None:
    """Find the fundamental matrix (3, 3) from seven matches or more."""
    if estimator.backend == "poselib":
        options = _poselib_options(estimator, max_epipolar_error=threshold)
        found, _ = poselib.estimate_fundamental(points0, points1, options)
    else:
        found = _usac("findFundamentalMat", (points0, points1), threshold, estimator)
    return _usable(found)


def solve_pose(
    points0: Matrix,
    points1: Matrix,
    intrinsics: tuple[Matrix, Matrix],
    threshold: float,
    estimator: Estimator,
) -> list[Pose]:
    """Find the relative pose from five matches or more: candidates, to be told apart by depth.

    The threshold in pixels is divided by the mean of the focal lengths of both cameras.
    """
    if estimator.backend == "poselib":
        options = _poselib_options(estimator, max_epipolar_error=threshold)
        cameras = [_poselib_camera(matrix) for matrix in intrinsics]
        plain = [_plain_pixels(*pair) for pair in zip((points0, points1), intrinsics, strict=True)]
        found, _ = poselib.estimate_relative_pose(*plain, *cameras, options)
        return [Pose(np.array(found.R), np.array(found.t))] if np.any(found.t) else []
    given = (points0, points1, *intrinsics, None, None)
    essential = _usable(_usac("findEssentialMat", given, threshold, estimator))
    return [] if essential is None else poses_from_essential(essential)


def _poselib_options(estimator: Estimator, **threshold: float) -> dict[str, Any]:
    return {
        **threshold,
        "max_iterations": estimator.max_iterations,
        "min_iterations": min(1000, estimator.max_iterations),
        "success_prob": estimator.confidence,
        "seed": estimator.seed,
    }


def _poselib_camera(intrinsics: Matrix) -> dict[str, Any]:
    """Describe a camera without skew; the size is only PoseLib's book-keeping."""
    focal_x, focal_y, x, y = intrinsics[[0, 1, 0, 1], [0, 1, 2, 2]]
    size = {"width": int(2 * abs(x) + 1), "height": int(2 * abs(y) + 1)}
    return {"model": "PINHOLE", **size, "params": [focal_x, focal_y, x, y]}


def _plain_pixels(points: Matrix, intrinsics: Matrix) -> Matrix:
    """Move the points of a camera with skew to where the camera without it would see them."""
    if intrinsics[0, 1] == 0:
        return points
    plain = intrinsics.copy()
    plain[0, 1] = 0
    return np.ascontiguousarray(transfer(plain @ np.linalg.inv(intrinsics), points))


def _usac(
    solve: str, given: tuple[Any, ...], threshold: float, estimator: Estimator
) -> Matrix | None:
    """Call one of OpenCV's USAC solvers; its exceptions for hopeless data mean no model."""
    cv2 = require("cv2", "backend 'opencv'")
    options = cv2.UsacParams()
    options.score = cv2.SCORE_METHOD_MAGSAC
    options.loMethod = cv2.LOCAL_OPTIM_SIGMA
    options.final_polisher = cv2.MAGSAC
    options.threshold = threshold
    options.confidence = estimator.confidence
    options.maxIterations = estimator.max_iterations
    options.randomGeneratorState = estimator.seed
    options.isParallel = False
    try:
        found: Matrix | None = getattr(cv2, solve)(*given, options)[0]
    except cv2.error:
        return None
    return found


def _usable(found: Matrix | None) -> Matrix | None:
    """Turn the ways in which solvers say "nothing" into None; scale the others to norm 1."""
    if found is None or found.shape != (3, 3) or not np.isfinite(found).all():
        return None
    length = np.linalg.norm(found)
    return np.asarray(found / length) if length > 0 else None
