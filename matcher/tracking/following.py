"""Follow points by correlation where their neighbours' matches say they should be.

A detector finds about half of its points again in the next frame. The others are still there: their
place follows from the matches round them, and correlation of the pixels tells it exactly, or tells
that it is hidden.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RBFInterpolator
from scipy.linalg import LinAlgError

from matcher.refinement import RefineOptions, refine
from matcher.types import Image, Mask, Matches, Points

_NEIGHBOURS = 16  # matches that predict a point
_RADIUS = 5  # of the patches, pixels: small ones keep to one surface
_LEAST = 0.7  # correlation of a point that is followed: a hidden one has less
_APART = 1.5  # pixels: followed points that come nearer to a matched one are the same spot


def follow(
    found: Matches, others: Points, image0: Image, image1: Image, mask1: Mask | None
) -> tuple[Matches, NDArray[np.bool_], Points]:
    """Move matches to their sub-pixel places, and find further points of image 0 in image 1.

    Args:
        found: Matches that agree with the motion.
        others: (K, 2) points of image 0 that were not matched.
        image0: (H, W) grey.
        image1: Likewise.
        mask1: Where points may lie in image 1; None for everywhere.

    Returns:
        The matches, refined; (K,) bool which others were found; and where, (K, 2), as predicted for
        those that were not.
    """
    expected = _predicted(found, others, image1)
    score = np.zeros(len(others), np.float32)
    joined = Matches(
        np.concatenate([found.points0, others]),
        np.concatenate([found.points1, expected]),
        np.concatenate([found.scores, score]),
    )
    options = RefineOptions(radius=_RADIUS, min_score=_LEAST)
    refined = refine(joined, image0, image1, options)
    count = len(found)
    places = refined.points1[count:]
    sure = np.zeros(len(others), np.bool_) if refined.refined is None else refined.refined[count:]
    sure = sure & _allowed(places, image1, mask1) & _apart(refined.points1[:count], places)
    return refined.select(slice(count)), sure, places


def _predicted(found: Matches, others: Points, image1: Image) -> Points:
    """Predict places by a smooth map through the matches; outside the image where there is none."""
    try:
        motion = RBFInterpolator(
            found.points0.astype(np.float64),
            found.points1.astype(np.float64) - found.points0,
            neighbors=min(_NEIGHBOURS, len(found)),
            smoothing=len(found),
            kernel="linear",
        )
        expected = others + motion(others.astype(np.float64)) if len(others) else others
    except LinAlgError:  # matches on a line say nothing of what lies beside it
        expected = np.full_like(others, -1.0)
    height, width = image1.shape
    return np.clip(expected, 0, [width - 1, height - 1]).astype(np.float32)


def _allowed(points: Points, image: Image, mask: Mask | None) -> NDArray[np.bool_]:
    """Tell which points lie inside, off the edges, and where the mask allows."""
    height, width = image.shape
    inside = np.asarray(((points > 1) & (points < [width - 2, height - 2])).all(axis=1))
    if mask is not None:
        columns, rows = np.clip(np.rint(points), 0, [width - 1, height - 1]).astype(np.int64).T
        inside = inside & mask[rows, columns]
    return inside


def _apart(taken: Points, points: Points) -> NDArray[np.bool_]:
    """Tell which points are not where a match lies already."""
    if not (len(taken) and len(points)):
        return np.ones(len(points), np.bool_)
    gaps = np.linalg.norm(points[:, None] - taken[None], axis=2)
    return np.asarray(gaps.min(axis=1) > _APART)
