"""Merge the matches of pairs into tracks: one scene point, seen at most once in each image.

A detector-free method finds the same spot of an image at a slightly different place in each pair,
so its matches alone give no track longer than two images. Merging has two steps:

1. `merge_points`: in each image, matched places that lie close together become one keypoint, their
   mean weighted by score, and no place is moved by more than a declared radius;
2. `link`: matches connect keypoints to tracks, strongest first, and a link that would make a track
   visit an image twice is refused. So matches are one-to-one in every pair.

Both give the same result for any order of the pairs. For methods with keypoints, whose places
repeat exactly, the first step only counts how often each was matched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

from matcher.types import Floats, Matches, Matrix, Points

Ints = NDArray[np.int64]
_ROUNDS = (
    4  # of reassigning places to the nearest centre; what still moves then is within the radius
)


@dataclass(frozen=True)
class MergeOptions:
    """How matches become tracks.

    Attributes:
        radius: Largest move of a matched place when it is merged, in pixels of the described image.
        max_keypoints: Most keypoints of an image: those in the longest tracks, then the best.
    """

    radius: float = 2.0
    max_keypoints: int = 8192

    def __post_init__(self) -> None:
        if not 0 <= self.radius < np.inf:
            raise ValueError(f"radius must be 0 or more pixels, not {self.radius}")
        if self.max_keypoints < 1:
            raise ValueError(f"max_keypoints must be at least 1, not {self.max_keypoints}")


@dataclass(frozen=True, eq=False)
class Tracks:
    """Observations of scene points, sorted by track and then by image.

    Attributes:
        names: Of the images.
        images: (N,) index of the image of each observation.
        points: (N, 2) float32 pixels.
        weights: (N,) float32, sum of the scores of the matches that led there.
        tracks: (N,) track of each observation, rising from 0; each has two images or more.
    """

    names: tuple[str, ...]
    images: Ints
    points: Points
    weights: Floats
    tracks: Ints

    def __len__(self) -> int:
        """Count the tracks."""
        return int(self.tracks[-1]) + 1 if len(self.tracks) else 0

    @property
    def mean_length(self) -> float:
        """Mean number of images that see a track; 0 without tracks."""
        return len(self.tracks) / len(self) if len(self) else 0.0

    def select(self, rows: NDArray[np.bool_]) -> Tracks:
        """Keep some observations; tracks left with one are dropped and the others renumbered."""
        alive = np.bincount(self.tracks[rows], minlength=len(self)) >= 2
        rows = rows & alive[self.tracks]
        number = np.cumsum(alive) - 1
        return Tracks(
            self.names,
            self.images[rows],
            self.points[rows],
            self.weights[rows],
            number[self.tracks[rows]],
        )


def build_tracks(
    matches: Mapping[tuple[str, str], Matches],
    names: Sequence[str],
    options: MergeOptions | None = None,
) -> Tracks:
    """Merge the matches of all pairs into tracks.

    Args:
        matches: By names of the images of a pair; weights are their scores.
        names: Of all images, in their order.
        options: How.

    Raises:
        ValueError: A pair of an image with itself, or a name that is not listed.
    """
    options = options or MergeOptions()
    ends = _Ends.of(matches, {name: number for number, name in enumerate(names)})
    keypoints, points, images = _keypoints(ends, len(names), options.radius)
    left, right = keypoints.reshape(2, -1)
    linked = (left >= 0) & (right >= 0)
    left, right, scores = left[linked], right[linked], ends.scores[: len(linked)][linked]
    tracks = link(left, right, scores, images)
    strength = _sums(left, scores, len(points)) + _sums(right, scores, len(points))
    built = _sorted(tuple(names), images, points, strength, tracks)
    return bounded(built, options.max_keypoints)


@dataclass(frozen=True, eq=False)
class _Ends:
    """Both ends of all matches: all of the first images, then all of the second."""

    images: Ints
    points: Points
    scores: Floats

    @classmethod
    def of(cls, matches: Mapping[tuple[str, str], Matches], numbers: Mapping[str, int]) -> _Ends:
        listed = [_in_order(pair, found, numbers) for pair, found in matches.items()]
        listed.sort(key=lambda each: each[:2])  # sums of floats depend on their order
        found = [each[2] for each in listed]
        none = np.zeros((0, 2), np.float32)
        images = [np.full(len(each[2]), each[side]) for side in (0, 1) for each in listed]
        points = [m.points0 for m in found] + [m.points1 for m in found]
        scores = np.concatenate([none[:, 0], *[m.scores for m in found]])
        return cls(
            np.concatenate([none[:, 0], *images]).astype(np.int64),
            np.concatenate([none, *points]),
            np.concatenate([scores, scores]),
        )


def _in_order(
    pair: tuple[str, str], found: Matches, numbers: Mapping[str, int]
) -> tuple[int, int, Matches]:
    """Turn a pair so that the image that is listed first comes first."""
    if pair[0] == pair[1]:
        raise ValueError(f"{pair[0]!r} is paired with itself")
    for name in pair:
        if name not in numbers:
            raise ValueError(f"{name!r} of a pair is not among the {len(numbers)} images")
    one, other = numbers[pair[0]], numbers[pair[1]]
    return (one, other, found) if one < other else (other, one, found.swapped())


def _keypoints(ends: _Ends, count: int, radius: float) -> tuple[Ints, Points, Ints]:
    """Merge image by image: keypoint of every end, and the points and images of all keypoints."""
    keypoints = np.full(len(ends.images), -1)
    points: list[Points] = [np.zeros((0, 2), np.float32)]
    images: list[Ints] = [np.zeros(0, np.int64)]
    order = np.argsort(ends.images, kind="stable")
    bounds = np.searchsorted(ends.images[order], np.arange(count + 1))
    known = 0
    for image in range(count):
        rows = order[bounds[image] : bounds[image + 1]]
        labels, centres = merge_points(ends.points[rows], ends.scores[rows], radius)
        keypoints[rows] = np.where(labels >= 0, labels + known, -1)
        points.append(centres)
        images.append(np.full(len(centres), image))
        known += len(centres)
    return keypoints, np.concatenate(points), np.concatenate(images)


def merge_points(points: Points, weights: Floats, radius: float) -> tuple[Ints, Points]:
    """Merge points of one image that lie close together.

    The places with most weight around them become centres, none within the radius of a better one;
    every point joins the nearest centre, which then moves to the weighted mean.

    Args:
        points: (N, 2) pixels.
        weights: (N,), not negative.
        radius: In pixels; 0 merges only what coincides.

    Returns:
        (N,) row of each point's centre, -1 for a point that lies farther than the radius from
        where its centre went to, and (K, 2) centres, in an order that depends on places alone.
    """
    if not len(points):
        return np.zeros(0, np.int64), np.zeros((0, 2), np.float32)
    places, inverse = np.unique(points, axis=0, return_inverse=True)
    place: Ints = inverse.reshape(-1)
    mass = np.bincount(place, weights.astype(np.float64) + 1e-6).astype(
        np.float64
    )  # a score of 0 is a place too
    if radius == 0:
        return place, places
    exact = places.astype(np.float64)
    centres = exact[_peaks(exact, mass, radius)]
    for _ in range(_ROUNDS):
        nearest = KDTree(centres).query(exact)[1]
        total = np.bincount(nearest, mass, len(centres))
        sums = [np.bincount(nearest, mass * axis, len(centres)) for axis in exact.T]
        centres = np.stack(sums, axis=1)[total > 0] / total[total > 0, None]
    distance, nearest = KDTree(centres).query(exact)
    rounded = centres.astype(np.float32)
    return np.where(distance <= radius, nearest, -1)[place], rounded


def _peaks(places: Matrix, mass: Matrix, radius: float) -> Ints:
    """List places that have most weight within the radius, so that every place is near to one."""
    near = KDTree(places).query_pairs(radius, output_type="ndarray")
    both = np.concatenate([near, near[:, ::-1]])
    density = mass + np.bincount(both[:, 0], mass[both[:, 1]], len(places))
    rank = np.empty(len(places), np.int64)
    rank[np.lexsort((places[:, 1], places[:, 0], density.round(6)))] = np.arange(len(places))
    undecided, peak = np.ones(len(places), bool), np.zeros(len(places), bool)
    while undecided.any():
        both = both[undecided[both].all(axis=1)]
        best = rank.copy()
        np.maximum.at(best, both[:, 0], rank[both[:, 1]])
        chosen = undecided & (best == rank)
        peak |= chosen
        undecided &= ~chosen
        undecided[both[chosen[both[:, 0]], 1]] = False
    return np.flatnonzero(peak)


def link(left: Ints, right: Ints, scores: Floats, images: Ints) -> Ints:
    """Connect keypoints to tracks that visit no image twice.

    Args:
        left: (M,) keypoint at one end of each match.
        right: (M,) keypoint at the other end.
        scores: (M,), not negative; matches between the same keypoints add up.
        images: (K,) image of each keypoint.

    Returns:
        (K,) a number for each track; keypoints without a match have one of their own.
    """
    count = len(images)
    if not count:
        return np.zeros(0, np.int64)
    low, high = np.minimum(left, right), np.maximum(left, right)
    edges, edge = np.unique(low * count + high, return_inverse=True)
    strength = np.bincount(edge.reshape(-1), scores.astype(np.float64), len(edges)).round(6)
    low, high = edges // count, edges % count
    graph = coo_array((np.ones(len(edges)), (low, high)), shape=(count, count))
    _, component = connected_components(graph, directed=False)
    component = component.astype(np.int64)
    twice = _visits_twice(component, images)
    inside = np.flatnonzero(twice[component[low]])
    order = inside[np.lexsort((high[inside], low[inside], -strength[inside]))]
    return _split(component, twice, (low[order], high[order]), images)


def _visits_twice(component: Ints, images: Ints) -> NDArray[np.bool_]:
    """Tell which components have two keypoints in one image."""
    visits = component * (images.max(initial=0) + 1) + images
    _, first, number = np.unique(visits, return_index=True, return_counts=True)
    twice = np.zeros(component.max(initial=-1) + 1, bool)
    twice[component[first[number > 1]]] = True
    return twice


def _split(
    component: Ints, twice: NDArray[np.bool_], edges: tuple[Ints, Ints], images: Ints
) -> Ints:
    """Build anew the components that visit an image twice, from their edges, strongest first."""
    tracks, fresh = component.copy(), len(twice)
    members: dict[int, list[int]] = {}
    seen: dict[int, set[int]] = {}
    for keypoint in np.flatnonzero(twice[component]).tolist():
        tracks[keypoint] = fresh
        members[fresh], seen[fresh] = [keypoint], {int(images[keypoint])}
        fresh += 1
    for one, other in zip(edges[0].tolist(), edges[1].tolist(), strict=True):
        small, large = sorted((int(tracks[one]), int(tracks[other])), key=lambda t: len(members[t]))
        if small == large or seen[small] & seen[large]:
            continue
        tracks[members[small]] = large
        members[large] += members.pop(small)
        seen[large] |= seen.pop(small)
    return tracks


def _sorted(
    names: tuple[str, ...], images: Ints, points: Points, weights: Floats, tracks: Ints
) -> Tracks:
    """Sort observations by track, tracks by their first observation; drop tracks of one image."""
    _, first, track = np.unique(tracks, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    track = rank[track.reshape(-1)]
    order = np.lexsort((images, track))
    built = Tracks(names, images[order], points[order], weights[order], track[order])
    return built.select(np.ones(len(order), bool))


def bounded(tracks: Tracks, most: int) -> Tracks:
    """Keep at most so many keypoints of each image: those of long tracks, then of high weight."""
    length = np.bincount(tracks.tracks, minlength=len(tracks))[tracks.tracks]
    order = np.lexsort((tracks.tracks, -tracks.weights, -length, tracks.images))
    sizes = np.bincount(tracks.images, minlength=len(tracks.names))
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    keep = np.zeros(len(order), bool)
    keep[order[place < most]] = True
    return tracks if keep.all() else tracks.select(keep)


def _sums(rows: Ints, values: Floats, count: int) -> Floats:
    return np.bincount(rows, values, count).astype(np.float32)
