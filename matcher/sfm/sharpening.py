"""Place the observations of tracks by correlation: one view of a track is the model of all others.

Matches of pairs cannot be refined one by one here: each pair would move the point to suit its own
partner. In a track the best observation stays, and every other one moves to where the pixels look
most like its surroundings. So all observations mean the same scene point, to a fraction of a pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from matcher.refinement import RefineOptions, refine
from matcher.sfm.tracks import Ints, Tracks
from matcher.types import Image, Matches, Points

MIN_GROUP = 8  # observations of a pair of images: fewer do not tell how the surroundings are warped


@dataclass(frozen=True, eq=False)
class Group:
    """Observations of one image whose models are in one other image.

    Attributes:
        fixed: Name of the image with the models.
        moving: Name of the other image.
        points_fixed: (N, 2) the models, in pixels as described.
        points_moving: (N, 2) what is to be placed.
    """

    fixed: str
    moving: str
    points_fixed: Points
    points_moving: Points


@dataclass(frozen=True, eq=False)
class Placed:
    """Where observations went.

    Attributes:
        points: (N, 2) in pixels as described.
        clear: (N,) bool, where the pixels tell the place.
    """

    points: Points
    clear: NDArray[np.bool_]


def sharpen(tracks: Tracks, place_all: Callable[[Sequence[Group]], Sequence[Placed]]) -> Tracks:
    """Move observations to their sub-pixel places, and drop those that the pixels cannot place.

    Args:
        tracks: With points in pixels of the described images.
        place_all: Places many groups: `place` for each of them, here or in other processes.

    Returns:
        The tracks that still have two observations.
    """
    model = _models(tracks)
    rows = np.flatnonzero(model != np.arange(len(model)))
    pairs = tracks.images[model[rows]] * len(tracks.names) + tracks.images[rows]
    rows = rows[np.argsort(pairs, kind="stable")]
    bounds = np.flatnonzero(np.diff(np.sort(pairs))) + 1
    chosen = [group for group in np.split(rows, bounds) if len(group) >= MIN_GROUP]
    groups = [_group(tracks, model[group], group) for group in chosen]
    points, clear = tracks.points.copy(), np.zeros(len(model), bool)
    for group, placed in zip(chosen, place_all(groups), strict=True):
        points[group] = placed.points
        clear[group] = placed.clear
        clear[model[group[placed.clear]]] = True
    return replace(tracks, points=points).select(clear)


def place(
    group: Group, image_fixed: Image, image_moving: Image, options: RefineOptions | None = None
) -> Placed:
    """Place the observations of one group; the search of the options bounds every move."""
    matches = Matches(
        group.points_fixed, group.points_moving, np.ones(len(group.points_fixed), np.float32)
    )
    found = refine(matches, image_fixed, image_moving, options)
    clear = np.zeros(len(found), bool) if found.refined is None else found.refined
    return Placed(found.points1, clear)


def _models(tracks: Tracks) -> Ints:
    """Choose one observation of each track: (N,) its row, for every observation of the track.

    It is the one with most weight; of equal ones that of the first image.
    """
    order = np.lexsort((tracks.images, -tracks.weights, tracks.tracks))
    starts = np.searchsorted(tracks.tracks, np.arange(len(tracks)))
    return np.asarray(order[starts][tracks.tracks])


def _group(tracks: Tracks, fixed: Ints, moving: Ints) -> Group:
    names = [tracks.names[tracks.images[rows[0]]] for rows in (fixed, moving)]
    return Group(names[0], names[1], tracks.points[fixed], tracks.points[moving])
