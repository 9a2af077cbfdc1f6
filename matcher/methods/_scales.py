"""Match images of unlike scale: try several sizes of either image, keep the best pair.

Learned features bear changes of scale by about two; a sign matched against the scene that it hangs
in differs by more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from matcher import images as pixels
from matcher.types import Description, Image, Mask, Matcher, Matches, ScoreMap


@dataclass(frozen=True, eq=False)
class ScaledDescription(Description):
    """An image described at several sizes; its own fields are those of the given size.

    Attributes:
        levels: By factor of the image's size, what the wrapped method made of it.
    """

    levels: tuple[tuple[float, Description], ...] = ()


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

    def describe(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Description]:
        """Describe each image at every size."""
        given = masks if masks is not None else [None] * len(images)
        return [self._describe(image, mask) for image, mask in zip(images, given, strict=True)]

    def _describe(self, image: Image, mask: Mask | None) -> Description:
        sizes = [
            (max(1, round(image.shape[0] * factor)), max(1, round(image.shape[1] * factor)))
            for factor in self.factors
        ]
        found = self.method.describe(
            [pixels.resize(image, size) for size in sizes],
            [None if mask is None else pixels.resize_mask(mask, size) for size in sizes],
        )
        own = {field.name: getattr(found[0], field.name) for field in fields(Description)}
        return ScaledDescription(**own, levels=tuple(zip(self.factors, found, strict=True)))

    def match(self, pairs: Sequence[tuple[Description, Description]]) -> list[Matches]:
        """Match every pair at the sizes that agree best."""
        return [self._match(*pair) for pair in pairs]

    def _match(self, description0: Description, description1: Description) -> Matches:
        """Match one pair of sizes after the other; one of the two always has its given size.

        Returns:
            The matches of the highest sum of scores. `linear1_from_0` records the scale: where
            image 1 shows the scene twice as large as image 0 did, it is twice the unit matrix.
        """
        tried = [
            (factor0, level0, factor1, level1)
            for factor0, level0 in _levels(description0)
            for factor1, level1 in _levels(description1)
            if 1 in (factor0, factor1)
        ]
        found = self.method.match([(level0, level1) for _, level0, _, level1 in tried])
        best = int(np.argmax([matches.scores.sum() for matches in found]))
        factor0, level0, factor1, level1 = tried[best]
        matches = found[best]
        known = matches.linear1_from_0
        linear = np.tile(np.eye(2), (len(matches), 1, 1)) if known is None else known
        return replace(
            matches,
            points0=pixels.resize_points(matches.points0, level0.size, description0.size),
            points1=pixels.resize_points(matches.points1, level1.size, description1.size),
            indices=None,
            linear1_from_0=linear * (factor0 / factor1),
        )

    def score_map(
        self, pair: tuple[Description, Description], point0: tuple[float, float]
    ) -> ScoreMap:
        """Score the places of image 1 at the given sizes."""
        return self.method.score_map((_levels(pair[0])[0][1], _levels(pair[1])[0][1]), point0)


def _levels(description: Description) -> tuple[tuple[float, Description], ...]:
    """List the sizes of a description, the given one first."""
    if isinstance(description, ScaledDescription):
        return description.levels
    return ((1.0, description),)
