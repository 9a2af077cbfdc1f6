"""Keep whole parts of scenes for validation, so that no photograph is both learned from and looked at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from matcher.mining.pair_file import Collection

_LEAST_PHOTOGRAPHS = 6  # of a scene of which a part can be spared
_LARGEST_PART = 0.1  # of the pairs; about as many again are dropped
_LARGEST_SHARE = 1 / 3  # of a scene's photographs


def hold_out(collection: Collection, pairs: int) -> Collection:
    """Mark pairs of photographs that stand together as held out, in every scene its share of them.

    A scene is a set of photographs that pairs connect. In each, photographs are taken one after the other, always
    the one with most matches to those taken before, until enough pairs lie between them. Pairs of a photograph that
    is taken with one that is not are dropped.

    Args:
        collection: All pairs, however marked before.
        pairs: To be held out in all, at most a tenth of what there is; small scenes give fewer, or none.

    Returns:
        The pairs that are left, in their order.

    Raises:
        ValueError: A negative number of pairs.
    """
    if pairs < 0:
        raise ValueError(f"pairs must not be negative, not {pairs}")
    pairs = min(pairs, round(_LARGEST_PART * len(collection.pairs)))
    common = _common(collection)
    _, scenes = connected_components(common > 0, directed=False)
    taken: set[int] = set()
    for scene in range(int(scenes.max(initial=-1)) + 1):
        members = np.flatnonzero(scenes == scene)
        inside = common[np.ix_(members, members)]
        share = round(pairs * int(np.count_nonzero(inside)) / max(len(collection.pairs), 1) / 2)
        taken |= set(members[_together(inside, share)].tolist())
    ends = [{pair.image0, pair.image1} for pair in collection.pairs]
    spared = np.flatnonzero([end <= taken for end in ends])
    places = np.linspace(0, len(spared) - 1, min(pairs, len(spared))).round().astype(np.int64)
    held = set(spared[places].tolist())
    kept = [
        replace(pair, held_out=row in held)
        for row, pair in enumerate(collection.pairs)
        if row in held or not ends[row] & taken
    ]
    return replace(collection, pairs=tuple(kept))


def _common(collection: Collection) -> NDArray[np.int64]:
    """Count the matches of each two photographs, a symmetric matrix."""
    count = len(collection.images)
    common = np.zeros((count, count), np.int64)
    for pair in collection.pairs:
        common[pair.image0, pair.image1] += len(pair)
        common[pair.image1, pair.image0] += len(pair)
    return common


def _together(common: NDArray[np.int64], pairs: int) -> list[int]:
    """Take photographs that stand together, from the end of a scene, until so many pairs lie between them."""
    count = len(common)
    if count < _LEAST_PHOTOGRAPHS or pairs < 1:
        return []
    # The one with the fewest matches stands at the rim: a part round it cuts few pairs.
    taken = [int(np.argmin(common.sum(axis=1)))]
    while len(taken) < _LARGEST_SHARE * count:
        if np.count_nonzero(common[np.ix_(taken, taken)]) >= 2 * pairs:
            break
        gain = common[taken].sum(axis=0)
        gain[taken] = -1
        taken.append(int(np.argmax(gain)))
    return taken
