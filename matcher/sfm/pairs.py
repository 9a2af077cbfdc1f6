"""Choose which images to match.

All functions give each pair once, as (name0, name1) in the order of the names; join their results
with `union`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from matcher.geometry.two_view import Pose
from matcher.reading import read_text
from matcher.sfm.photos import find_name
from matcher.types import Description, Floats, Matrix

NamePair: TypeAlias = tuple[str, str]

WORDS = 32  # centres of the pooled descriptor
_SAMPLE = 20_000  # descriptors that the centres are learnt from
_STEPS = 10  # of k-means


def exhaustive(names: Sequence[str]) -> list[NamePair]:
    """Pair every image with every other."""
    return list(combinations(names, 2))


def sequential(names: Sequence[str], overlap: int = 10) -> list[NamePair]:
    """Pair every image of a sequence with the next ones, and with those 2, 4, 8 … times as far.

    Loops are closed by joining the result with that of `retrieved`.

    Args:
        names: In the order of the sequence: natural order puts frame2 before frame10.
        overlap: How many next images; farther ones are at doubled distances up to 2**overlap.

    Raises:
        ValueError: The overlap is less than 1.
    """
    if overlap < 1:
        raise ValueError(f"overlap must be at least 1, not {overlap}")
    steps: set[int] = {*range(1, overlap + 1), *(2**power for power in range(min(overlap, 30) + 1))}
    near = [
        (first, first + step)
        for first in range(len(names))
        for step in sorted(steps)
        if first + step < len(names)
    ]
    return [(names[first], names[second]) for first, second in near]


def retrieved(
    names: Sequence[str], vectors: Floats, count: int = 20, min_distance: int = 0
) -> list[NamePair]:
    """Pair every image with those that look most like it.

    Args:
        names: Of the images.
        vectors: (N, D) of length 1, from `pool`.
        count: Most partners that an image chooses.
        min_distance: Images nearer in the list are passed over: 1 + overlap finds only loops.

    Raises:
        ValueError: The number of vectors differs from that of names.
    """
    if len(vectors) != len(names):
        raise ValueError(f"{len(names)} names have {len(vectors)} vectors")
    chosen: set[tuple[int, int]] = set()
    for first in range(len(names)):
        scores = vectors @ vectors[first]  # (N,)
        near = np.abs(np.arange(len(names)) - first) < max(min_distance, 1)
        order = np.argsort(np.where(near, np.inf, -scores), kind="stable")
        best = [int(second) for second in order[:count] if not near[second]]
        chosen |= {(min(first, second), max(first, second)) for second in best}
    return [(names[first], names[second]) for first, second in sorted(chosen)]


def pool(
    names: Sequence[str], description: Callable[[str], Description], words: int = WORDS
) -> Floats:
    """Make one vector an image from its own descriptors: no other network, nothing to fetch.

    Args:
        names: Of the images.
        description: Gives the description of a name.
        words: Centres that descriptors are assigned to; learnt from these very images.

    Returns:
        (N, words * D) float32 of length 1, zeros for an image without descriptors.

    Source: Jegou, Douze, Schmid, Perez, Aggregating local descriptors into a compact image
    representation, CVPR 2010; Arandjelovic and Zisserman, All about VLAD, CVPR 2013 (the
    normalisation of each word).
    """
    share = max(1, _SAMPLE // max(len(names), 1))
    samples = [_spread(description(name).descriptors, share) for name in names]
    centres = _means(np.concatenate(samples).astype(np.float32), words)
    return np.stack([_vlad(description(name).descriptors, centres) for name in names])


def _spread(descriptors: Floats, count: int) -> Floats:
    """Take at most so many rows, evenly spread."""
    rows = np.linspace(0, len(descriptors) - 1, min(count, len(descriptors))).astype(np.int64)
    return descriptors[rows]


def _means(samples: Floats, count: int) -> Floats:
    """Find (K, D) centres by k-means from evenly spread starts."""
    centres = _spread(samples, count)
    for _ in range(_STEPS):
        nearest = _nearest(samples, centres)
        total = np.bincount(nearest, minlength=len(centres))
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, samples)
        centres = np.where(total[:, None] > 0, sums / np.maximum(total, 1)[:, None], centres)
    return centres


def _nearest(samples: Floats, centres: Floats) -> NDArray[np.int64]:
    return np.asarray(np.argmax(samples @ centres.T - (centres**2).sum(axis=1) / 2, axis=1))


def _vlad(descriptors: Floats, centres: Floats) -> Floats:
    """Sum the offsets from each word, each sum of length 1, then all of them."""
    sums = np.zeros_like(centres)
    if len(descriptors) and len(centres):
        nearest = _nearest(descriptors, centres)
        np.add.at(sums, nearest, descriptors - centres[nearest])
    sums /= np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    flat = sums.flatten()
    return np.asarray(flat / max(float(np.linalg.norm(flat)), 1e-12), np.float32)


def near_positions(
    positions: Mapping[str, Matrix], count: int = 20, max_distance: float = np.inf
) -> list[NamePair]:
    """Pair images that were taken near each other.

    Args:
        positions: (3,) by name, in metres or any unit: from poses, or from GPS by `metres_from_gps`.
        count: Most partners that an image chooses.
        max_distance: In the unit of the positions.
    """
    names = list(positions)
    if len(names) < 2:
        return []
    places = np.array([positions[name] for name in names], np.float64)
    found = KDTree(places).query(
        places, k=min(count + 1, len(names)), distance_upper_bound=max_distance
    )
    distances, partners = (np.asarray(each) for each in found)  # both (N, K)
    chosen = {
        (min(first, int(second)), max(first, int(second)))
        for first in range(len(names))
        for second, distance in zip(partners[first], distances[first], strict=True)
        if second != first and np.isfinite(distance)
    }
    return [(names[first], names[second]) for first, second in sorted(chosen)]


def from_poses(
    poses: Mapping[str, Pose], count: int = 20, max_angle_degrees: float = 60
) -> list[NamePair]:
    """Pair images taken near each other and looking the same way.

    Args:
        poses: camera_from_world by name.
        count: Most partners that an image chooses, among those near enough in angle.
        max_angle_degrees: Between the two optical axes.
    """
    names = list(poses)
    centres = np.array([poses[name].inverse.translation for name in names]).reshape(-1, 3)
    axes = np.array([poses[name].rotation[2] for name in names]).reshape(-1, 3)
    least = np.cos(np.radians(max_angle_degrees))
    chosen: set[tuple[int, int]] = set()
    for first in range(len(names)):
        distances = np.linalg.norm(centres - centres[first], axis=1)
        distances[axes @ axes[first] < least] = np.inf
        distances[first] = np.inf
        order = np.argsort(distances, kind="stable")[:count]
        best = [int(second) for second in order if np.isfinite(distances[second])]
        chosen |= {(min(first, second), max(first, second)) for second in best}
    return [(names[first], names[second]) for first, second in sorted(chosen)]


def metres_from_gps(places: Mapping[str, Matrix]) -> dict[str, Matrix]:
    """Turn latitude, longitude (degrees) and altitude (metres) into metres east, north, up.

    Good to a per mille within some hundred kilometres of the first place.
    """
    radius = 6_378_137.0  # of the earth's equator
    if not places:
        return {}
    first = next(iter(places.values()))
    scale = np.radians(radius) * np.array([np.cos(np.radians(first[0])), 1.0])
    return {
        name: np.array([*((place[1::-1] - first[1::-1]) * scale), place[2] - first[2]])
        for name, place in places.items()
    }


def covisible(seen: Mapping[str, Iterable[int]], count: int = 20) -> list[NamePair]:
    """Pair images that see the same points of an existing model.

    Args:
        seen: Numbers of the points that each image sees.
        count: Most partners that an image chooses: those with most points in common.
    """
    names = list(seen)
    viewers: dict[int, list[int]] = {}
    for index, name in enumerate(names):
        for point in set(seen[name]):
            viewers.setdefault(point, []).append(index)
    shared: list[Counter[int]] = [Counter() for _ in names]
    for views in viewers.values():
        for first, second in combinations(views, 2):
            shared[first][second] += 1
            shared[second][first] += 1
    chosen: set[tuple[int, int]] = set()
    for first, partners in enumerate(shared):
        best = sorted(partners, key=lambda second: (-partners[second], second))[:count]
        chosen |= {(min(first, second), max(first, second)) for second in best}
    return [(names[first], names[second]) for first, second in sorted(chosen)]


def listed(
    path: str | Path, names: Sequence[str], root: str | Path | None = None
) -> list[NamePair]:
    """Read a user's list: two names a line, with a tab between, or a space where no name has one.

    Args:
        path: Text file; empty lines and those that begin with # are passed over.
        names: Of all images.
        root: The image folder, for lists of absolute paths.

    Raises:
        ValueError: A line that is not two known names, with its number.
    """
    found = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        parts = text.split("\t") if "\t" in text else text.split()
        if len(parts) != 2:
            raise ValueError(
                f"{path}, line {number}: {len(parts)} names, not 2; "
                "names with spaces need a tab between them"
            )
        try:
            found.append((find_name(parts[0], names, root), find_name(parts[1], names, root)))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return union(names, found)


def union(names: Sequence[str], *lists: Iterable[NamePair]) -> list[NamePair]:
    """Join lists of pairs: each pair once, whichever way round, in the order of the names.

    Raises:
        ValueError: A pair of an image with itself, or of one that is not among the names.
    """
    place = {name: number for number, name in enumerate(names)}
    chosen: set[tuple[int, int]] = set()
    for name0, name1 in (pair for pairs in lists for pair in pairs):
        if name0 == name1:
            raise ValueError(f"image {name0!r} is paired with itself")
        if unknown := {name0, name1} - place.keys():
            raise ValueError(f"no image {min(unknown)!r} among {len(names)}")
        first, second = sorted((place[name0], place[name1]))
        chosen.add((first, second))
    return [(names[first], names[second]) for first, second in sorted(chosen)]
