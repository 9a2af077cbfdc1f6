"""Affine and similarity maps of the plane: least squares, and a consensus of random samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matcher.geometry.solvers import Estimator
from matcher.types import Matrix

_BATCH = 128  # samples tried at once
_POLISH = 10  # least-squares steps at most: the set of inliers is stable after three or four


def solve_plane_map(
    points0: Matrix,
    points1: Matrix,
    maps: Callable[[Matrix, Matrix], Matrix],
    threshold: float,
    estimator: Estimator,
) -> Matrix | None:
    """Find the map with the lowest truncated squared error over random samples, then polish it.

    Args:
        points0: (N, 2) finite float64 pixels.
        points1: (N, 2) finite float64 pixels.
        maps: `affine_maps` or `similarity_maps`.
        threshold: Error in pixels of image 1 beyond which a match costs no more.
        estimator: Confidence, samples at most, and seed.

    Returns:
        (3, 3) pixels1_from_pixels0, or None where no sample determines a map.

    Source: Torr and Zisserman, MLESAC, 2000 (the cost); Chum, Matas, Kittler, Locally optimized
    RANSAC, 2003 (the polish).
    """
    random, sample = np.random.default_rng(estimator.seed), 3 if maps is affine_maps else 2
    best, best_cost, drawn, wanted = None, np.inf, 0, estimator.max_iterations
    while drawn < wanted:
        count = min(_BATCH, wanted - drawn)
        rows = random.integers(len(points0), size=(count, sample))
        found = maps(points0[rows], points1[rows])
        costs, drawn = _costs(found, points0, points1, threshold), drawn + count
        if costs.min() < best_cost:
            best, best_cost = _polish(found[costs.argmin()], points0, points1, maps, threshold)
            share = float((_errors(best[None], points0, points1)[0] <= threshold).mean())
            wanted = min(wanted, _samples(share**sample, estimator.confidence))
    return best


def _errors(maps: Matrix, points0: Matrix, points1: Matrix) -> Matrix:
    """Measure (K, N) distances in image 1; infinite under a map that is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        moved = points0 @ maps[:, :2, :2].swapaxes(1, 2) + maps[:, None, :2, 2]  # (K, N, 2)
        distances = np.linalg.norm(moved - points1, axis=2)
    return np.where(np.isnan(distances), np.inf, distances)


def _costs(maps: Matrix, points0: Matrix, points1: Matrix, threshold: float) -> Matrix:
    """Sum the squared errors of each map, cut at the threshold: (K,); infinite without a map."""
    errors = _errors(maps, points0, points1)
    costs = (np.minimum(errors, threshold) ** 2).sum(axis=1)
    return np.where(np.isfinite(maps).all(axis=(1, 2)), costs, np.inf)


def _polish(
    start: Matrix,
    points0: Matrix,
    points1: Matrix,
    maps: Callable[[Matrix, Matrix], Matrix],
    threshold: float,
) -> tuple[Matrix, float]:
    """Fit the inliers again and again while the cost falls; return the map and its cost."""
    best, best_cost = start, float(_costs(start[None], points0, points1, threshold)[0])
    for _ in range(_POLISH):
        inliers = _errors(best[None], points0, points1)[0] <= threshold
        found = maps(points0[inliers], points1[inliers])
        cost = float(_costs(found[None], points0, points1, threshold)[0])
        if not cost < best_cost:
            break
        best, best_cost = found, cost
    return best, best_cost


def _samples(clean: float, confidence: float) -> int:
    """Count samples until one is clean with the confidence; `clean` is the probability of one."""
    if clean >= 1:
        return 0
    return int(np.ceil(np.log1p(-confidence) / np.log1p(-max(clean, 1e-12))))


def affine_maps(points0: Matrix, points1: Matrix) -> Matrix:
    """Fit affine maps by least squares, many at once.

    Args:
        points0: (..., N, 2), three points or more.
        points1: (..., N, 2).

    Returns:
        (..., 3, 3) pixels1_from_pixels0; not finite where the points lie on a line.
    """
    centre0, centre1 = points0.mean(axis=-2), points1.mean(axis=-2)
    x, y = points0 - centre0[..., None, :], points1 - centre1[..., None, :]
    square = np.einsum("...ni,...nj->...ij", x, x)
    (a, b), (_, d) = np.moveaxis(square, (-2, -1), (0, 1))
    adjugate = np.stack([np.stack([d, -b], axis=-1), np.stack([-b, a], axis=-1)], axis=-2)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = adjugate / (a * d - b * b)[..., None, None]
        linear = np.einsum("...ni,...nj->...ij", y, x) @ inverse
    return _plane_map(linear, centre0, centre1)


def similarity_maps(points0: Matrix, points1: Matrix) -> Matrix:
    """Fit similarity maps (turn, scale, shift; no mirror) by least squares, many at once.

    Args:
        points0: (..., N, 2), two points or more.
        points1: (..., N, 2).

    Returns:
        (..., 3, 3) pixels1_from_pixels0; not finite where the points are one point.
    """
    centre0, centre1 = points0.mean(axis=-2), points1.mean(axis=-2)
    x, y = points0 - centre0[..., None, :], points1 - centre1[..., None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = (x * x).sum(axis=(-2, -1))
        cosine = (x * y).sum(axis=(-2, -1)) / spread
        sine = (x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]).sum(axis=-1) / spread
    rows = [np.stack([cosine, -sine], axis=-1), np.stack([sine, cosine], axis=-1)]
    return _plane_map(np.stack(rows, axis=-2), centre0, centre1)


def _plane_map(linear: Matrix, centre0: Matrix, centre1: Matrix) -> Matrix:
    """Assemble (..., 3, 3) from the linear parts and the centres that they map to each other."""
    whole = np.zeros((*linear.shape[:-2], 3, 3))
    whole[..., :2, :2] = linear
    with np.errstate(invalid="ignore"):
        whole[..., :2, 2] = centre1 - np.einsum("...ij,...j->...i", linear, centre0)
    whole[..., 2, 2] = 1.0
    return whole
