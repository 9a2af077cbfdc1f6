"""Choose between several ways to match one pair: that which geometry says most for."""

from __future__ import annotations

from collections.abc import Iterable

from matcher.geometry.verification import verify
from matcher.types import Matches


def best_verified(
    tries: Iterable[Matches], size0: tuple[int, int], size1: tuple[int, int], enough: int
) -> Matches:
    """Take the matches with most verified inliers; the first of equals.

    Args:
        tries: Ways to match the pair, in pixels of the images as given; they are made one by one,
            until one has enough.
        size0: Height and width of image 0.
        size1: Height and width of image 1.
        enough: Verified inliers with which nothing more is tried.

    Returns:
        One of the tries; the first where chance explains all of them.
    """
    best, most = Matches.empty(), -1
    for matches in tries:
        verdict = verify(matches, size0, size1)
        inliers = verdict.inliers if verdict.same_place else 0
        if inliers > most:
            best, most = matches, inliers
        if most >= enough:
            break
    return best
