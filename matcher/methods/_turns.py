"""Match images whatever way up they are: try image 1 turned by quarter turns, keep the best.

Learned matchers bear turns of some 45 degrees; with four quarter turns every turn is within that. A pair that matches
well as given costs one verification; another costs up to three more descriptions of image 1, kept as long as its own
for the next pairs, and three more matchings and verifications.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from matcher.methods._places import ask
from matcher.methods._tries import best_verified
from matcher.quarter_turns import turned, turned_back
from matcher.types import Description, Image, Mask, Matcher, Matches, Places, Points, ScoreMap

ENOUGH = 30  # verified inliers: a pair with them needs no turning, a turn without is not believed


class Turned:
    """Wrap a method so that it also matches images that are turned in the plane."""

    def __init__(self, method: Matcher) -> None:
        self.method = method
        self._views: WeakKeyDictionary[Description, dict[int, Description]] = WeakKeyDictionary()

    def describe(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Description]:
        """Describe the images as given; turned ones are described when a pair needs them."""
        return self.method.describe(images, masks)

    def match(self, pairs: Sequence[tuple[Description, Description]]) -> list[Matches]:
        """Match every pair the way up of image 1 that gives most verified inliers."""
        given = self.method.match(pairs)  # all at once: most need no more
        return [self._best(*pair, found)[1] for pair, found in zip(pairs, given, strict=True)]

    def match_points(self, pair: tuple[Description, Description], points0: Points) -> Places:
        """Find points of the caller's own in image 1, the way up that matches best.

        Raises:
            ValueError: The wrapped method matches only points that it finds itself.
        """
        turns, _ = self._best(*pair, self.method.match([pair])[0])
        places = ask(self.method, (pair[0], self._view(pair[1], turns)), points0)
        return replace(places, points1=turned_back(places.points1, turns, pair[1].size))

    def score_map(
        self, pair: tuple[Description, Description], point0: tuple[float, float]
    ) -> ScoreMap:
        """Score with the wrapped method, both images as given."""
        return self.method.score_map(pair, point0)

    def _best(
        self, description0: Description, description1: Description, given: Matches
    ) -> tuple[int, Matches]:
        """Choose the quarter turns of image 1."""
        tries = self._tries(description0, description1, given)
        return best_verified(tries, description0.size, description1.size, ENOUGH, least=ENOUGH)

    def _tries(
        self, description0: Description, description1: Description, given: Matches
    ) -> Iterator[tuple[int, Matches]]:
        """Give the matches with image 1 as given, then match it turned."""
        yield 0, given
        for turns in range(1, 4):
            yield turns, self.match_turned(description0, description1, turns)

    def match_turned(
        self, description0: Description, description1: Description, turns: int
    ) -> Matches:
        """Match with image 1 turned by so many quarter turns, and try nothing else.

        Returns:
            In pixels of the images as given.
        """
        found = self.method.match([(description0, self._view(description1, turns))])[0]
        return _as_given(found, turns, description1.size)

    def _view(self, description: Description, turns: int) -> Description:
        """Give the description of the image after some quarter turns."""
        if not turns:
            return description
        views = self._views.setdefault(description, {})
        if turns not in views:
            mask = None if description.mask is None else turned(description.mask, turns)
            views[turns] = self.method.describe([turned(description.image, turns)], [mask])[0]
        return views[turns]


def _as_given(matches: Matches, turns: int, size: tuple[int, int]) -> Matches:
    """Move points of image 1, matched after np.rot90 by `turns`, to the image as given.

    The points' listing belongs to the turned picture, so `indices` go unless nothing was turned.
    """
    if not turns:
        return matches
    linear = np.linalg.matrix_power(np.array([[0.0, -1.0], [1.0, 0.0]]), turns)
    maps = matches.linear1_from_0
    return replace(
        matches,
        points1=turned_back(matches.points1, turns, size),
        indices=None,
        linear1_from_0=None if maps is None else linear @ maps,
        quarter_turns=turns,
    )
