"""Measure `matcher.find` by the rules of matching methods: a hit is the matches of its template."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from matcher import images
from matcher.templates import find
from matcher.types import Image, Matches

_SIDE = 8  # points a side of the grid that stands for a hit


@dataclass(frozen=True)
class TemplateFinder:
    """A function of a template and a scene, both taken as grey, for `evaluate`.

    The best hit becomes a grid of matches, from which every fit finds its place again; without a hit
    there are none, so a template that is absent and not found is a right verdict.

    Attributes:
        threshold: Least score of a hit.
        turn_degrees: Turns up to so many degrees either way are searched.
        zoom: Sizes from this factor down to this factor up.
    """

    threshold: float = 0.7
    turn_degrees: float = 180.0
    zoom: float = 1.5

    def __call__(self, image0: Image, image1: Image) -> Matches:
        """Find image 0 in image 1."""
        hits = find(
            images.grey(image0),
            images.grey(image1),
            threshold=self.threshold,
            max_hits=1,
            angles=(-self.turn_degrees, self.turn_degrees),
            scales=(1 / self.zoom, self.zoom),
        )
        if not hits:
            return Matches.empty()
        height, width = image0.shape[:2]
        share = (np.indices((_SIDE, _SIDE)).reshape(2, -1).T[:, ::-1] + 0.5) / _SIDE  # (64, 2)
        corners = hits[0].corners.astype(np.float64)
        across, down = corners[1] - corners[0], corners[3] - corners[0]
        points1 = corners[0] + share[:, :1] * across + share[:, 1:] * down
        scores = np.full(len(share), min(max(hits[0].score, 0.0), 1.0), np.float32)
        points0 = share * (width, height) - 0.5
        return Matches(points0.astype(np.float32), points1.astype(np.float32), scores)
