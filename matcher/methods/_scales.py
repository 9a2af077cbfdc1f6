"""Match images of unlike scale: try several sizes of either image, keep the best pair of sizes.

Learned features bear changes of scale by about two; a sign matched against the scene that it hangs
in differs by more. A pair that matches well as given costs nothing more; another costs a matching
and a verification for every size of either image, and a description of it that is kept as long as
its own.
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
from matcher.types import Description, Image, Mask, Matcher, Matches, Places, Points, ScoreMap

ENOUGH = 100  # verified inliers with which a pair needs no resizing: dozens may be misplaced still
_Size: TypeAlias = tuple[int, int]  # height and width


class Scaled:
    """Wrap a method so that it also matches images whose scales differ."""

    def __init__(self, method: Matcher, factors: Sequence[float]) -> None:
        """Keep the factors.

        Args:
            method: Describes and matches every size.
            factors: Sizes to try besides the given one, as factors of it.

        Raises:
            ValueError: A factor is not positive.
        """
        if not all(factor > 0 for factor in factors):
            raise ValueError(f"scales must be positive, not {tuple(factors)}")
        self.method = method
        self.factors = sorted({1.0, *factors}, key=lambda factor: (factor != 1, factor))
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
        return [self._best(*pair)[1] for pair in pairs]

    def match_points(self, pair: tuple[Description, Description], points0: Points) -> Places:
        """Find points of the caller's own in image 1, at the sizes that match best.

        Raises:
            ValueError: The wrapped method matches only points that it finds itself.
        """
        (factor0, factor1), _ = self._best(*pair)
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
        self, description0: Description, description1: Description
    ) -> tuple[tuple[float, float], Matches]:
        """Choose the factors of both images' sizes."""
        tries = self._tries(description0, description1)
        return best_verified(tries, description0.size, description1.size, ENOUGH)

    def _tries(
        self, description0: Description, description1: Description
    ) -> Iterator[tuple[tuple[float, float], Matches]]:
        """Match at one pair of sizes after the other; one of the two always has its given size."""
        for factor0 in self.factors:
            for factor1 in self.factors if factor0 == 1 else [1.0]:
                level0 = self._level(description0, factor0)
                level1 = self._level(description1, factor1)
                found = self.method.match([(level0, level1)])[0]
                if factor0 != factor1:
                    sizes0 = level0.size, description0.size
                    sizes1 = level1.size, description1.size
                    found = _resized(found, sizes0, sizes1, factor0 / factor1)
                yield (factor0, factor1), found

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
