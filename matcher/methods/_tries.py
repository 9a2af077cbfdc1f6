"""Choose between several ways to match one pair: that which geometry says most for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from matcher.geometry.verification import MIN_INLIERS, verify
from matcher.types import Matches

_Way = TypeVar("_Way")


def best_verified(
    tries: Iterable[tuple[_Way, Matches]],
    size0: tuple[int, int],
    size1: tuple[int, int],
    enough: int,
    least: int = MIN_INLIERS,
) -> tuple[_Way, Matches]:
    """Take the matches with most verified inliers; the first of equals.

    Args:
        tries: Ways to match the pair, one at least, with what each gives in pixels of the images as
            given. The rest is made only if the first, the pair as given, is not enough.
        size0: Height and width of image 0.
        size1: Height and width of image 1.
        enough: Verified inliers of the first with which nothing else is tried.
        least: Verified inliers without which another is not taken: every further try is another
            chance to be wrong.

    Returns:
        One of the tries.
    """
    made = iter(tries)
    best = next(made)
    most = _inliers(best[1], size0, size1)
    if most >= enough:
        return best
    for other in made:
        inliers = _inliers(other[1], size0, size1)
        if inliers > most and inliers >= least:
            best, most = other, inliers
    return best


def _inliers(matches: Matches, size0: tuple[int, int], size1: tuple[int, int]) -> int:
    """Count verified inliers; none where chance explains them.

    They are remembered as long as the matches live: what turns have verified, sizes ask for again.
    """
    known = _verified.setdefault(matches, {})
    if (size0, size1) not in known:
        verdict = verify(matches, size0, size1)
        known[size0, size1] = verdict.inliers if verdict.same_place else 0
    return known[size0, size1]


_Sizes: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
_verified: WeakKeyDictionary[Matches, dict[_Sizes, int]] = WeakKeyDictionary()
