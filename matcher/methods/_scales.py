"""Match images of unlike scale: try several sizes of either image, keep the best pair of sizes.

Learned features bear changes of scale by about two; a sign matched against the scene that it hangs
in differs by more, and so does a photograph from its thumbnail. A pair that matches well as given
costs nothing more; another costs a matching and a verification for every size of either image, and
a description of it that is kept as long as its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from matcher import images as pixels
from matcher.methods._places import ask
from matcher.methods._tries import best_verified
from matcher.methods._turns import Turned
from matcher.types import Description, Image, Mask, Matcher, Matches, Places, Points, ScoreMap

ENOUGH = 100  # verified inliers with which a pair needs no resizing: dozens may be misplaced still
UNLIKE = 2.0  # long sides in a larger ratio are worth making alike
_Size: TypeAlias = tuple[int, int]  # height and width


class Scaled:
    """Wrap a method so that it also matches images whose scales differ."""

    def __init__(
        self, method: Matcher, factors: Sequence[float], most_pixels: float = np.inf
    ) -> None:
        """Keep the factors.

        Args:
            method: Describes and matches every size. If it tries turns, it does so at the given
                size alone, and the others are matched the way up that was best there.
            factors: Sizes to try besides the given one, as factors of it. Where one image is far
                larger than the other, the size that makes them alike is tried too.
            most_pixels: No image is enlarged beyond that.

        Raises:
            ValueError: A factor is not positive.
        """
        if not all(factor > 0 for factor in factors):
            raise ValueError(f"scales must be positive, not {tuple(factors)}")
        self.method = method
        self.factors = sorted({*factors} - {1.0})
        self.most_pixels = most_pixels
        self._levels: WeakKeyDictionary[Description, dict[float, Description]] = WeakKeyDictionary()

    def describe(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Description]:
        """Describe the images as given; other sizes are described when a pair needs them."""
        return self.method.describe(images, masks)

    def match(self, pairs: Sequence[tuple[Description, Description]]) -> list[Matches]:
        """Match every pair at the sizes that give most verified inliers.

        Returns:
            One entry a pair, in pixels of the images as given. Where other sizes than these were
            best, `linear1_from_0` records them: twice the unit matrix where image 1 shows the
            scene twice as large as image 0.
        """
        given = self.method.match(pairs)  # all at once: most need no more
        return [self._best(*pair, found)[1] for pair, found in zip(pairs, given, strict=True)]

    def match_points(self, pair: tuple[Description, Description], points0: Points) -> Places:
        """Find points of the caller's own in image 1, at the sizes that match best.

        Raises:
            ValueError: The wrapped method matches only points that it finds itself.
        """
        (factor0, factor1), _ = self._best(*pair, self.method.match([pair])[0])
        level0, level1 = self._level(pair[0], factor0), self._level(pair[1], factor1)
        asked = pixels.resize_points(points0, pair[0].size, level0.size)
        places = ask(self.method, (level0, level1), asked)
        points1 = pixels.resize_points(places.points1, level1.size, pair[1].size)
        return replace(places, points1=points1)

    def score_map(
        self, pair: tuple[Description, Description], point0: tuple[float, float]
    ) -> ScoreMap:
        """Score with the wrapped method, both images as given."""
        return self.method.score_map(pair, point0)

    def _best(
        self, description0: Description, description1: Description, given: Matches
    ) -> tuple[tuple[float, float], Matches]:
        """Choose the factors of both images' sizes."""
        tries = self._tries(description0, description1, given)
        return best_verified(tries, description0.size, description1.size, ENOUGH)

    def _tries(
        self, description0: Description, description1: Description, given: Matches
    ) -> Iterator[tuple[tuple[float, float], Matches]]:
        """Give the matches as given, then match at one pair of sizes after the other."""
        yield (1.0, 1.0), given
        for factor0, factor1 in self._factors(description0.size, description1.size):
            level0, level1 = self._level(description0, factor0), self._level(description1, factor1)
            found = self._match(level0, level1, given.quarter_turns)
            sizes0, sizes1 = (level0.size, description0.size), (level1.size, description1.size)
            yield (factor0, factor1), _resized(found, sizes0, sizes1, factor0 / factor1)

    def _factors(self, size0: _Size, size1: _Size) -> list[tuple[float, float]]:
        """List what to try: one of the two images always has its given size."""
        ratio = max(size0) / max(size1)
        alike = [(min(1.0, 1 / ratio), min(1.0, ratio))] if _differ(ratio) else []
        others = [pair for factor in self.factors for pair in ((1.0, factor), (factor, 1.0))]
        wanted = dict.fromkeys(alike + others)
        return [
            pair for pair in wanted if self._allows(size0, pair[0]) and self._allows(size1, pair[1])
        ]

    def _allows(self, size: _Size, factor: float) -> bool:
        """Tell whether an image may be brought to a factor of its size."""
        return factor <= 1 or factor**2 * size[0] * size[1] <= self.most_pixels

    def _match(self, level0: Description, level1: Description, turns: int) -> Matches:
        """Match two levels, image 1 turned by so many quarter turns if the method can do that."""
        if isinstance(self.method, Turned):
            return self.method.match_turned(level0, level1, turns)
        return self.method.match([(level0, level1)])[0]

    def _level(self, description: Description, factor: float) -> Description:
        """Give the description of the image at a factor of its size."""
        if factor == 1:
            return description
        levels = self._levels.setdefault(description, {})
        if factor not in levels:
            height, width = (max(1, round(side * factor)) for side in description.size)
            image = pixels.resize(description.image, (height, width))
            mask = description.mask
            mask = None if mask is None else pixels.resize_mask(mask, (height, width))
            levels[factor] = self.method.describe([image], [mask])[0]
        return levels[factor]


def _differ(ratio: float) -> bool:
    """Tell whether one image is far larger than the other."""
    return max(ratio, 1 / ratio) > UNLIKE


def _resized(
    matches: Matches, sizes0: tuple[_Size, _Size], sizes1: tuple[_Size, _Size], scale: float
) -> Matches:
    """Move matches to the images as given; their listing of points is that of other sizes and goes.

    Args:
        matches: In pixels of the sizes that were matched.
        sizes0: Height and width of image 0 as matched and as given.
        sizes1: Likewise of image 1.
        scale: Size of the scene in image 1 over its size in image 0.
    """
    known = matches.linear1_from_0
    linear = np.tile(np.eye(2), (len(matches), 1, 1)) if known is None else known
    return replace(
        matches,
        points0=pixels.resize_points(matches.points0, *sizes0),
        points1=pixels.resize_points(matches.points1, *sizes1),
        indices=None,
        linear1_from_0=scale * linear,
    )
