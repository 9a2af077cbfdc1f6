"""Spread verified matches over the surfaces between them, so that most textured places get a truth.

Between three matches near to each other a surface is almost flat: the triangle's affine map predicts where a place
lies, correlation of the pixels confirms and corrects it. What correlation cannot confirm stays unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import Delaunay, KDTree, QhullError

from matcher.local_maps import inverse_2x2
from matcher.patches import gaussian, warp_patches
from matcher.refinement import RefineOptions, refine
from matcher.types import Floats, Image, Matches, Matrix, Points

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class DenseOptions:
    """How matches are spread. Lengths are in pixels of the images that were matched."""

    # Distance of the places of image 0 that are asked about: the cells of a coarse feature map.
    step: int = 8
    # The longest side of a triangle of matches between which a surface is taken for flat.
    longest_side: float = 64.0
    # How far a triangle may miss its neighbour's third corner, besides a tenth of the way there.
    disagreement: float = 2.0
    # How far correlation may move a predicted place, and the NCC it must reach.
    search: int = 4
    min_score: float = 0.6
    # How far a confirmed place may deviate from what its confirmed neighbours moved.
    roughness: float = 1.5


_MAX_STRETCH = 4.0  # of an affine map, larger over smaller singular value


def spread(
    matches: Matches, image0: Image, image1: Image, options: DenseOptions | None = None
) -> Matches:
    """Find where the places of a grid in image 0 lie in image 1, from verified matches around them.

    Args:
        matches: Verified, in pixels of the images, each point of image 0 at most once.
        image0: (H, W) grey.
        image1: Likewise.
        options: How.

    Returns:
        Places of the grid, those that correlation has confirmed and moved to their sub-pixel places, with the
        NCC as scores, best first. The matches given are not among them.
    """
    options = options or DenseOptions()
    predicted = _predict(matches, image0.shape, options)
    how = RefineOptions(search=options.search, min_score=options.min_score)
    found = refine(predicted, image0, image1, how)
    smooth = _smooth(found.points0, found.points1 - predicted.points1, found.refined, options)
    found = found.select(smooth)
    return replace(found, scores=agreement(found, image0, image1)).sorted()


def agreement(matches: Matches, image0: Image, image1: Image) -> Floats:
    """Correlate the surroundings of both points of each match, under its local map.

    Args:
        matches: With `linear1_from_0`, as `matcher.refine` leaves them.
        image0: (H, W) grey.
        image1: Likewise.

    Returns:
        (N,) weighted NCC in [0, 1]; 0 where it is negative or a surrounding leaves its image.

    Raises:
        ValueError: The matches have no local maps.
    """
    if matches.linear1_from_0 is None:
        raise ValueError("agreement needs matches with linear1_from_0: refine them first")
    radius = RefineOptions().radius
    maps = torch.from_numpy(matches.linear1_from_0).float()
    steps = inverse_2x2(maps), torch.eye(2).expand(len(maps), 2, 2)
    weights = gaussian(radius, 0.6 * radius, torch.device("cpu"))
    outer = weights[:, None] * weights
    sides, inside = [], torch.ones(len(maps), dtype=torch.bool)
    both = (image0, matches.points0), (image1, matches.points1)
    for (image, points), step in zip(both, steps, strict=True):
        picture = torch.tensor(image)[None, None]
        patches, within = warp_patches(picture, torch.from_numpy(points), step, radius)
        sides.append(patches - (patches * outer).sum((1, 2), keepdim=True))
        inside &= within
    variances = [(side**2 * outer).sum((1, 2)) for side in sides]
    covariance = (sides[0] * sides[1] * outer).sum((1, 2))
    scores = covariance * (variances[0] * variances[1]).clamp_min(1e-12).rsqrt()
    return np.asarray(torch.where(inside, scores.clamp(0, 1), 0.0).numpy())


def _predict(matches: Matches, shape: tuple[int, ...], options: DenseOptions) -> Matches:
    """Interpolate the places of the grid inside sound triangles of matches."""
    try:
        mesh = Delaunay(matches.points0.astype(np.float64))
    except (QhullError, ValueError):  # fewer than three points, or all on a line
        return replace(Matches.empty(), linear1_from_0=np.zeros((0, 2, 2)))
    maps, sound = _affine_maps(mesh, matches.points1.astype(np.float64), options)
    y, x = (np.arange(options.step // 2, size, options.step) - 0.5 for size in shape)
    places = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)  # of even cells: their centres
    triangle = mesh.find_simplex(places)
    inside = (triangle >= 0) & sound[triangle]
    places, triangle = places[inside], triangle[inside]
    corner = mesh.simplices[triangle, 0]
    step0 = places - mesh.points[corner]
    points1 = matches.points1[corner] + np.einsum("nij,nj->ni", maps[triangle], step0)
    scores = np.ones(len(places), np.float32)
    return Matches(places, points1, scores, linear1_from_0=maps[triangle])


def _affine_maps(mesh: Delaunay, points1: Matrix, options: DenseOptions) -> tuple[Matrix, Bools]:
    """Compute each triangle's (T, 2, 2) linear map, and tell which (T,) can be trusted.

    Those can whose sides are short, that keep orientation, and whose map tells where the third corner of a
    neighbouring triangle lies: at least half of the neighbours must agree.
    """
    corners0, corners1 = mesh.points[mesh.simplices], points1[mesh.simplices]  # (T, 3, 2)
    frame0, frame1 = (
        np.swapaxes(corners[:, 1:] - corners[:, :1], 1, 2) for corners in (corners0, corners1)
    )
    flat = np.abs(np.linalg.det(frame0)) < 1.0  # half a pixel of area
    frame0[flat] = np.eye(2)
    maps = frame1 @ np.linalg.inv(frame0)
    values = np.linalg.svd(maps, compute_uv=False)
    sides = np.linalg.norm(corners0 - np.roll(corners0, 1, axis=1), axis=2)
    sound = ~flat & (sides.max(axis=1) <= options.longest_side) & (np.linalg.det(maps) > 0)
    sound &= values[:, 0] <= _MAX_STRETCH * values[:, 1]
    return maps, np.logical_and(sound, _agree(mesh, points1, maps, options))


def _agree(mesh: Delaunay, points1: Matrix, maps: Matrix, options: DenseOptions) -> Bools:
    """Tell which triangles' maps predict the far corners of at least half of their neighbours."""
    neighbours = mesh.neighbors  # (T, 3), -1 at the border
    there = neighbours >= 0
    corner = mesh.simplices[:, 0]
    agreeing = np.zeros(len(maps), np.int64)
    for side in range(3):
        other = neighbours[:, side]
        own, others = mesh.simplices, mesh.simplices[other]
        shared = (others[:, :, None] == own[:, None]).any(axis=2)  # (T, 3)
        far = others[np.arange(len(others)), np.argmin(shared, axis=1)]
        step0 = mesh.points[far] - mesh.points[corner]
        missed = points1[corner] + np.einsum("nij,nj->ni", maps, step0) - points1[far]
        allowed = options.disagreement + 0.1 * np.linalg.norm(step0, axis=1)
        agreeing += there[:, side] & (np.linalg.norm(missed, axis=1) <= allowed)
    return np.asarray(2 * agreeing >= there.sum(axis=1))


def _smooth(points0: Points, moves: Points, moved: Bools | None, options: DenseOptions) -> Bools:
    """Tell which moved places moved as the median of the moved ones among their eight neighbours did."""
    rows = np.flatnonzero(moved) if moved is not None else np.zeros(0, np.int64)
    smooth = np.zeros(len(points0), np.bool_)
    if len(rows) < 3:
        return smooth
    count = min(9, len(rows))
    distances, near = KDTree(points0[rows]).query(points0[rows], count)
    around = moves[rows][near]  # (M, count, 2), itself first
    around[(distances > 1.5 * options.step) | (np.arange(count) == 0)] = np.nan
    known = np.isfinite(around[:, :, 0]).sum(axis=1) >= 2
    medians = np.nanmedian(around[known], axis=1)
    deviation = np.linalg.norm(moves[rows][known] - medians, axis=1)
    smooth[rows[known]] = deviation <= options.roughness
    return smooth
