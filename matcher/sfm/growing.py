"""Grow tracks: correlation carries corners of one image into all others, along the tracks they share.

A keypoint must be found again in every image of its track; a corner need not be: the shared tracks
round it say where it lies in another image, and the pixels say it exactly. So tracks grow denser and
longer than any detector makes them, and each is measured against one image, as placed tracks are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from matcher.growth import GrowOptions, grow
from matcher.sfm.sharpening import Group
from matcher.sfm.tiepoints import NamePair
from matcher.sfm.tracks import Ints, Tracks
from matcher.types import Floats, Image, Mask, Matches, Points

MIN_SHARED = 20  # tracks that two images share: fewer do not tell how the surroundings are warped
MIN_LENGTH = 3  # images of a grown track: two prove nothing beyond themselves

# Half the cells of a pair's usual: tracks grow from every image, and a model needs no more.
_USUAL = GrowOptions(cells=2000)

_CELL = 4  # pixels: tracks that lie in the same cells of most of their images are one


@dataclass(frozen=True, eq=False)
class Grown:
    """What grew from one image into another.

    Attributes:
        points_fixed: (N, 2) corners, in pixels as described.
        points_moving: (N, 2) where they lie in the other image.
        scores: (N,) how sure.
    """

    points_fixed: Points
    points_moving: Points
    scores: Floats

    @classmethod
    def nothing(cls) -> Grown:
        """Make a result of which there is none."""
        none = np.zeros((0, 2), np.float32)
        return cls(none, none, none[:, 0])


def grow_tracks(
    tracks: Tracks,
    pairs: Sequence[NamePair],
    grow_all: Callable[[Sequence[Group]], Sequence[Grown]],
) -> Tracks:
    """Add tracks of corners between the tracks there are.

    Args:
        tracks: With placed observations, in pixels of the described images.
        pairs: Of images that show the same place.
        grow_all: Grows many groups: `grow_group` for each of them, here or in other processes.

    Returns:
        The tracks, and those that have grown into three images or more and are no copy of another.
    """
    number = {name: image for image, name in enumerate(tracks.names)}
    rows = [np.flatnonzero(tracks.images == image) for image in range(len(tracks.names))]
    ways = sorted({(number[a], number[b]) for pair in pairs for a, b in (pair, pair[::-1])})
    groups = {way: _group(tracks, way, rows) for way in ways}
    groups = {way: each for way, each in groups.items() if len(each.points_fixed) >= MIN_SHARED}
    found = [Grown.nothing(), *grow_all(list(groups.values()))]
    counts = [len(each.scores) for each in found]
    fixed, moving = np.repeat(np.array([(0, 0), *groups], np.int64), counts, axis=0).T
    corners = np.column_stack([fixed, np.concatenate([each.points_fixed for each in found])])
    # All that has grown from one corner of one image is one track.
    origins, grown = np.unique(corners, axis=0, return_inverse=True)
    made = _sorted(
        tracks.names,
        np.concatenate([origins[:, 0].astype(np.int64), moving]),
        np.concatenate([origins[:, 1:], *[each.points_moving for each in found]]),
        np.concatenate([np.ones(len(origins), np.float32), *[each.scores for each in found]]),
        np.concatenate([np.arange(len(origins)), grown.reshape(-1)]),
    )
    long = np.bincount(made.tracks, minlength=len(made)) >= MIN_LENGTH
    return _joined(tracks, made.select(long[made.tracks]))


def grow_group(
    group: Group,
    images: tuple[Image, Image],
    masks: tuple[Mask | None, Mask | None] = (None, None),
    options: GrowOptions = _USUAL,
) -> Grown:
    """Grow from the observations that two images share."""
    count = len(group.points_fixed)
    shared = Matches(
        group.points_fixed,
        group.points_moving,
        np.ones(count, np.float32),
        indices=np.zeros((count, 2), np.int64),
    )
    found = grow(shared, *images, options, mask0=masks[0], mask1=masks[1])
    new = found.select(found.indices[:, 0] < 0) if found.indices is not None else found
    return Grown(new.points0, new.points1, new.scores)


def _group(tracks: Tracks, way: tuple[int, int], rows: Sequence[Ints]) -> Group:
    """Collect the observations that two images share."""
    one, other = rows[way[0]], rows[way[1]]
    _, first, second = np.intersect1d(
        tracks.tracks[one], tracks.tracks[other], assume_unique=True, return_indices=True
    )
    fixed, moving = (tracks.names[image] for image in way)
    return Group(fixed, moving, tracks.points[one[first]], tracks.points[other[second]])


def _sorted(
    names: tuple[str, ...], images: Ints, points: Points, weights: Floats, tracks: Ints
) -> Tracks:
    """Sort observations by track and then by image."""
    order = np.lexsort((images, tracks))
    return Tracks(
        names,
        images[order],
        points[order].astype(np.float32),
        weights[order].astype(np.float32),
        tracks[order],
    )


def _joined(tracks: Tracks, grown: Tracks) -> Tracks:
    """Add tracks that hold most of their cells: of those that share a cell, the longest has it."""
    both = _sorted(
        tracks.names,
        np.concatenate([tracks.images, grown.images]),
        np.concatenate([tracks.points, grown.points]),
        np.concatenate([tracks.weights, grown.weights]),
        np.concatenate([tracks.tracks, grown.tracks + len(tracks)]),
    )
    length = np.bincount(both.tracks, minlength=len(both))
    length[: len(tracks)] += len(tracks.names)  # those that were there come before all that grew
    rank = np.lexsort((both.tracks, -length[both.tracks]))
    cells = np.column_stack([both.images, both.points // _CELL]).astype(np.int64)
    _, first = np.unique(cells[rank], axis=0, return_index=True)
    held = np.bincount(both.tracks[rank[first]], minlength=len(both))
    own = 2 * held > np.bincount(both.tracks, minlength=len(both))
    own[: len(tracks)] = True
    return both.select(own[both.tracks])
