"""Images that a pair's list has turned before they are matched, and matches turned back.

A turn, like a resize, belongs to how a pair is matched: truths and figures stay in the pixels of
the files. Turning the camera matrices and the pose along, as SuperGlue's evaluation does, gives the
same errors: a turn about the optical axis changes no angle between two poses.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from matcher.types import Image, Matches, Matrix, Points


def turned(image: Image, turns: int) -> Image:
    """Turn an image by quarter turns, counter-clockwise as one sees it, as `np.rot90` does."""
    return np.ascontiguousarray(np.rot90(image, turns)) if turns else image


def turned_back(points: Points | Matrix, turns: int, size: tuple[int, int]) -> Matrix:
    """Move points of a turned image to the image as it was.

    Args:
        points: (N, 2) pixels after the turn.
        turns: Quarter turns that were made.
        size: Height and width before the turn.

    Returns:
        (N, 2) float64 pixels before it.
    """
    x, y = np.asarray(points, np.float64).T
    right, bottom = size[1] - 1, size[0] - 1
    before = ((x, y), (right - y, x), (right - x, bottom - y), (y, bottom - x))[turns]
    return np.stack(before, axis=1)


def matches_turned_back(
    matches: Matches, turns: tuple[int, int], sizes: tuple[tuple[int, int], tuple[int, int]]
) -> Matches:
    """Move matches between turned images to the images as they were; local maps are left behind.

    Args:
        matches: In the pixels after the turns.
        turns: Quarter turns of both images.
        sizes: Height and width of both before them.
    """
    if turns == (0, 0):
        return matches
    points = (matches.points0, matches.points1)
    points0, points1 = map(turned_back, points, turns, sizes)
    return replace(
        matches,
        points0=points0.astype(np.float32),
        points1=points1.astype(np.float32),
        linear1_from_0=None,
    )
