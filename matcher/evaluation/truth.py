"""Errors of matches in pixels, against every kind of truth."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matcher.geometry.cameras import homogeneous, transfer
from matcher.geometry.two_view import Pose, fundamental_from_pose, symmetric_distance
from matcher.types import (
    DenseMap,
    Homography,
    Matches,
    Matrix,
    Truth,
    TwoView,
    TwoViewDepth,
    Unrelated,
)

_DEPTH_JUMP = 0.05  # share of the depth: neighbours that differ by more are two surfaces
_PLACE_JUMP = 5.0  # pixels: neighbours whose places lie further apart are two surfaces


def true_places(truth: Truth, points0: ArrayLike) -> Matrix:
    """Look up where points of image 0 truly lie in image 1.

    Args:
        truth: What is known of the pair.
        points0: (N, 2) pixels of image 0.

    Returns:
        (N, 2) float64 pixels of image 1, which may lie outside of it; infinite for a point that has
        no place there (behind camera 1, unrelated pictures); NaN where the truth does not say: no
        depth, at a depth edge, hidden in image 1, or two views without depth.
    """
    points = np.asarray(points0, np.float64)
    match truth:
        case Homography():
            return transfer(np.asarray(truth.pixels1_from_pixels0, np.float64), points)
        case DenseMap():
            places, spread = _sampled(truth.points1, points)
            return np.where((spread <= _PLACE_JUMP).all(axis=1, keepdims=True), places, np.nan)
        case TwoViewDepth():
            return _places_by_depth(truth, points)
        case Unrelated():
            return np.full(points.shape, np.inf)
        case _:
            return np.full(points.shape, np.nan)


def reprojection_errors(matches: Matches, truth: Truth) -> Matrix:
    """Measure how wrong each match is.

    Args:
        matches: In pixels of the two images.
        truth: What is known of the pair.

    Returns:
        (N,) pixels. The distance in image 1 from the true place for `Homography`, `DenseMap` and
        `TwoViewDepth`; the symmetric epipolar distance for `TwoView`; infinite for `Unrelated`.
        NaN where the truth does not say.
    """
    if isinstance(truth, TwoView) and not isinstance(truth, TwoViewDepth):
        fundamental = fundamental_of(truth)
        return symmetric_distance(matches.points0, matches.points1, fundamental)
    offsets = true_places(truth, matches.points0) - matches.points1
    return np.hypot(offsets[:, 0], offsets[:, 1])


def fundamental_of(truth: TwoView) -> Matrix:
    """Make the true fundamental matrix (3, 3), pixel1 @ fundamental @ pixel0 = 0."""
    pose = Pose(truth.rotation, truth.translation)
    return fundamental_from_pose(pose, truth.intrinsics0, truth.intrinsics1)


def squared_epipolar_errors(matches: Matches, truth: TwoView) -> Matrix:
    """Measure the squared symmetric epipolar distance on the image planes at depth 1.

    This is what SuperGlue's and LoFTR's precision counts, below 5e-4 indoors and 1e-4 outdoors.

    Returns:
        (N,) sum of the two squared distances, focal lengths being 1.
    """
    plane0 = transfer(np.linalg.inv(truth.intrinsics0), matches.points0)
    plane1 = transfer(np.linalg.inv(truth.intrinsics1), matches.points1)
    one = np.eye(3)
    essential = fundamental_from_pose(Pose(truth.rotation, truth.translation), one, one)
    lines1, lines0 = homogeneous(plane0) @ essential.T, homogeneous(plane1) @ essential
    product = (lines1 * homogeneous(plane1)).sum(axis=1) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = product * sum(1 / (lines[:, :2] ** 2).sum(axis=1) for lines in (lines0, lines1))
    return np.where(product == 0, 0.0, errors)


def _sampled(values: NDArray[np.floating], points: Matrix) -> tuple[Matrix, Matrix]:
    """Interpolate between the four pixels round each point.

    Args:
        values: (H, W, C); NaN where unknown.
        points: (N, 2) pixels.

    Returns:
        (N, C) values, NaN outside the image and where a pixel that counts is unknown; and (N, C)
        largest minus smallest of the pixels that count.
    """
    height, width, channels = values.shape
    result, low, high = (np.full((len(points), channels), fill) for fill in (0.0, np.inf, -np.inf))
    inside = _inside(points, width, height)
    corner = np.floor(np.where(inside[:, None], points, 0.0))
    for step in ((0, 0), (1, 0), (0, 1), (1, 1)):
        place = corner + step
        weights = (1 - np.abs(np.where(inside[:, None], points, 0.0) - place)).prod(axis=1)
        columns, rows = np.minimum(place, (width - 1, height - 1)).astype(np.int64).T
        counts = (weights > 0)[:, None]
        pixel = values[rows, columns].astype(np.float64)
        result += np.where(counts, weights[:, None] * pixel, 0.0)
        low = np.where(counts, np.minimum(low, pixel), low)
        high = np.where(counts, np.maximum(high, pixel), high)
    return np.where(inside[:, None], result, np.nan), high - low


def _inside(points: Matrix, width: int, height: int) -> NDArray[np.bool_]:
    """Tell which of (N, 2) points lie between the centres of an image's outermost pixels."""
    x, y = points.T
    return np.asarray((x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1))


def _depths(depth: NDArray[np.floating], points: Matrix) -> Matrix:
    """Interpolate inverse depth, exact on planes: (N,), NaN where unknown or at an edge."""
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse, spread = _sampled(np.where(depth > 0, 1 / depth, np.nan)[..., None], points)
        return np.where(spread <= _DEPTH_JUMP * inverse, 1 / inverse, np.nan)[:, 0]


def _places_by_depth(truth: TwoViewDepth, points0: Matrix) -> Matrix:
    """Carry points by their depth into image 1; NaN where another surface is nearer there."""
    directions = homogeneous(points0) @ np.linalg.inv(truth.intrinsics0).T
    scene0 = directions / directions[:, 2:] * _depths(truth.depth0, points0)[:, None]
    scene1 = scene0 @ np.asarray(truth.rotation).T + truth.translation
    with np.errstate(divide="ignore", invalid="ignore"):
        places = (scene1 @ truth.intrinsics1.T)[:, :2] / scene1[:, 2:]
    height, width = truth.depth1.shape
    outside = ~_inside(places, width, height)
    seen = np.abs(_depths(truth.depth1, places) / scene1[:, 2] - 1) <= _DEPTH_JUMP
    places[~(seen | outside)] = np.nan
    places[scene1[:, 2] <= 0] = np.inf
    return places
