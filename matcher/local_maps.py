"""Fit how a small step in image 0 looks in image 1, for every match, from its neighbours' matches."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

NEIGHBOURS = 16
TRIALS = 16  # pairs of neighbours from which a map is guessed
MIN_SUPPORT = 3.0  # neighbours, each counted by how well it fits
MAX_SCALE, MAX_STRETCH = 8.0, 4.0  # a map beyond these is taken for an error


def nearest_rows(points: Tensor) -> Tensor:
    """List for each of (N, 2) points its nearest neighbours, near ones first: (N, k) rows, k below N."""
    places = np.nan_to_num(points.cpu().numpy(), posinf=1e9, neginf=-1e9)
    count = min(NEIGHBOURS, len(places) - 1)
    if count < 1:
        return torch.zeros((len(points), 0), dtype=torch.long, device=points.device)
    rows = np.asarray(KDTree(places).query(places, count + 1)[1])[:, 1:]
    return torch.from_numpy(rows).to(points.device)


def fit_local_maps(
    points0: Tensor, points1: Tensor, neighbours: Tensor, known: Tensor | None = None
) -> Tensor:
    """Fit a linear map to every match, so that map[i] @ (points0[j] - points0[i]) is near points1[j] - points1[i].

    Robust in the manner of RANSAC: pairs of neighbours vote for maps, and the one that most neighbours
    support is fitted to them by weighted least squares. A match without support gets its known map,
    else the median map of the others.

    Args:
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1.
        neighbours: (N, k) rows of the matches near each, from `nearest_rows(points0)`.
        known: (N, 2, 2) maps to try along, from the keypoints' scales and angles.

    Returns:
        (N, 2, 2) float32 linear1_from_0.
    """
    fallback = torch.eye(2, device=points0.device).expand(len(points0), 2, 2)
    fallback = fallback if known is None else known
    if neighbours.shape[1] < MIN_SUPPORT:
        return fallback
    steps = _steps(points0, neighbours), _steps(points1, neighbours)
    maps, sound = _fit(_best_trials(*steps, known), *steps)
    if known is None and bool(sound.any()):
        fallback = maps[sound].median(0).values.expand_as(maps)
    return torch.where(sound[:, None, None], maps, fallback)


def refit_local_maps(points0: Tensor, points1: Tensor, neighbours: Tensor, maps: Tensor) -> Tensor:
    """Fit maps (N, 2, 2) again after the points moved a little; one that lost its support stays as it was."""
    if neighbours.shape[1] < MIN_SUPPORT:
        return maps
    refitted, sound = _fit(maps, _steps(points0, neighbours), _steps(points1, neighbours))
    return torch.where(sound[:, None, None], refitted, maps)


def support(points0: Tensor, points1: Tensor, neighbours: Tensor, maps: Tensor) -> Tensor:
    """Count (N,) the neighbours that each map (N, 2, 2) explains, each by how well; 0 for implausible maps."""
    steps0, steps1 = _steps(points0, neighbours), _steps(points1, neighbours)
    weights = _weights(maps[:, None], steps0, steps1, _tolerance(steps0))
    return weights.sum((1, 2)) * _plausible(maps)


def determinant_2x2(matrices: Tensor) -> Tensor:
    """Compute the (...) determinants of (..., 2, 2) matrices in closed form."""
    a, b, c, d = matrices.flatten(-2).unbind(-1)
    return a * d - b * c


def inverse_2x2(matrices: Tensor) -> Tensor:
    """Invert (..., 2, 2) matrices in closed form; singular ones give large numbers, not errors."""
    a, b, c, d = matrices.flatten(-2).unbind(-1)
    det = determinant_2x2(matrices)
    det = torch.where(det.abs() > 1e-12, det, 1e-12)
    return torch.stack([d, -b, -c, a], -1).reshape(matrices.shape) / det[..., None, None]


def _steps(points: Tensor, neighbours: Tensor) -> Tensor:
    """Return the (N, k, 2) steps from each point to its neighbours; those from and to lost points are 0."""
    return (points[neighbours] - points[:, None]).nan_to_num(0, 0, 0)


def _fit(maps: Tensor, steps0: Tensor, steps1: Tensor) -> tuple[Tensor, Tensor]:
    """Refine maps (N, 2, 2) by least squares over the neighbours they explain, and tell which are sound."""
    tolerance = _tolerance(steps0)
    for _ in range(2):
        maps, support = _least_squares(maps, steps0, steps1, tolerance)
    return maps, _plausible(maps) & (support >= MIN_SUPPORT)


def _best_trials(steps0: Tensor, steps1: Tensor, known: Tensor | None) -> Tensor:
    """Choose of the maps guessed from pairs of neighbours, and the known ones, those of most support: (N, 2, 2)."""
    trials = _guess(steps0, steps1)
    if known is not None:
        trials = torch.cat([known[:, None], trials], 1)
    best = _weights(trials, steps0, steps1, _tolerance(steps0)).sum(2).argmax(1)
    return trials[torch.arange(len(best), device=best.device), best]


def _guess(steps0: Tensor, steps1: Tensor) -> Tensor:
    """Guess (N, T, 2, 2) maps, each from a pair of neighbours; a pair on one line gives zeros, which few support."""
    first, second = np.triu_indices(steps0.shape[1], 1)
    chosen = np.random.default_rng(0).permutation(len(first))[:TRIALS]
    sides = [(steps[:, first[chosen]], steps[:, second[chosen]]) for steps in (steps0, steps1)]
    frame0, frame1 = (torch.stack(side, -1) for side in sides)  # (N, T, 2, 2), steps in columns
    lengths = frame0.square().sum(-2).prod(-1)  # both squared
    usable = determinant_2x2(frame0).square() > 0.04 * lengths + 1e-6  # over 12 degrees apart
    return (frame1 @ inverse_2x2(frame0)) * usable[..., None, None]


def _tolerance(steps0: Tensor) -> Tensor:
    """Allow (N, k) squared pixels: coarse matches are off by a pixel or two, and scenes are curved."""
    return (1.5 + 0.1 * steps0.square().sum(2).sqrt()).square()


def _weights(maps: Tensor, steps0: Tensor, steps1: Tensor, tolerance: Tensor) -> Tensor:
    """Weigh neighbours (N, T, k) by how well maps (N, T, 2, 2) predict them: 1 exactly, 0 beyond the tolerance."""
    N, T = maps.shape[:2]
    predicted = (maps.flatten(1, 2) @ steps0.mT).reshape(N, T, 2, -1)  # (N, T, 2, k)
    residuals = predicted.sub_(steps1.mT[:, None]).square_().sum(2)
    return (1 - residuals / tolerance[:, None]).clamp_min_(0)


def _least_squares(
    maps: Tensor, steps0: Tensor, steps1: Tensor, tolerance: Tensor
) -> tuple[Tensor, Tensor]:
    """Refit maps (N, 2, 2), drawn a little towards where they were, and count their support (N,)."""
    weights = _weights(maps[:, None], steps0, steps1, tolerance)[:, 0, :, None]  # (N, k, 1)
    normal = steps0.mT @ (weights * steps0)  # (N, 2, 2)
    mixed = steps1.mT @ (weights * steps0)
    damping = 0.05 * normal.diagonal(dim1=1, dim2=2).sum(1) + 1
    ridge = damping[:, None, None] * torch.eye(2, device=maps.device)
    return (mixed + maps @ ridge) @ inverse_2x2(normal + ridge), weights.sum((1, 2))


def _plausible(maps: Tensor) -> Tensor:
    """Tell which maps (N, 2, 2) keep orientation and neither zoom nor stretch beyond what matching survives."""
    det = determinant_2x2(maps)
    stretch = maps.square().sum((1, 2)) / (2 * det.clamp_min(1e-9))  # (s0/s1 + s1/s0) / 2
    limit = (MAX_STRETCH + 1 / MAX_STRETCH) / 2
    return (det > MAX_SCALE**-2) & (det < MAX_SCALE**2) & (stretch < limit)
