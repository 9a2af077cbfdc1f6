"""Matches of images that a pair's list has turned before they are matched, turned back.

A turn, like a resize, belongs to how a pair is matched: truths and figures stay in the pixels of
the files. Turning the camera matrices and the pose along, as SuperGlue's evaluation does, gives the
same errors: a turn about the optical axis changes no angle between two poses.
"""

from __future__ import annotations

from dataclasses import replace

from matcher.quarter_turns import turned_back
from matcher.types import Matches


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
    points0 = turned_back(matches.points0, turns[0], sizes[0])
    points1 = turned_back(matches.points1, turns[1], sizes[1])
    return replace(matches, points0=points0, points1=points1, linear1_from_0=None)
