"""Choose between several ways to match one pair: that which geometry says most for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

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
            given; they are made one by one, until one has enough.
        size0: Height and width of image 0.
        size1: Height and width of image 1.
        enough: Verified inliers with which nothing more is tried.
        least: Verified inliers without which another try than the first is not taken: every further
            try is another chance to be wrong.

    Returns:
        One of the tries; the first where chance explains all of them, or none has so many.

    Raises:
        ValueError: There is no try.
    """
    best, most = None, 0
    for way, matches in tries:
        verdict = verify(matches, size0, size1)
        inliers = verdict.inliers if verdict.same_place else 0
        if best is None or inliers > max(most, least - 1):
            best, most = (way, matches), inliers
        if most >= enough:
            break
    if best is None:
        raise ValueError("there must be a way to match the pair")
    return best
