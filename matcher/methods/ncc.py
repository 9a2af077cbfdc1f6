"""NCC: points compared by normalised cross-correlation of the pixels round them.

Attention without context: raw normalised patches are the queries and the keys. All points of image 0
meet all candidates of image 1 in a few matrix products; a match is the best of both sides that has no
rival elsewhere, moved to the sub-pixel peak of its correlation surface.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from matcher import correlation, features
from matcher.features import corners
from matcher.methods._options import split
from matcher.methods._sparse import check_pair
from matcher.refinement import RefineOptions, refine
from matcher.types import Description, Image, Mask, Matches, Places, Points, ScoreMap

_BLOCK = 1 << 24  # scores held at a time: 64 MiB
_TWIN = 1e-3  # a rival within this of a perfect score makes a match ambiguous, whatever the ratio
_CANDIDATES = 40_000  # pixels of image 1 that are compared in full, at most


@dataclass(frozen=True)
class Options:
    """What is compared, and what makes a match.

    Attributes:
        candidates: Places of image 1: its "corners", or its "pixels" (every one, or every second, third … of
            a large image).
        window: A match lies within so many pixels of where it was in image 0; None searches everywhere.
        angles_degrees: Turns of image 1 against image 0 to try, counter-clockwise as seen on the screen.
        patch_scales: Sizes of image 1 over image 0 to try for every patch.
        min_score: Least NCC of a match.
        ratio: Distance of the best over that of the best rival, at most; of unit patches, so sqrt(2 - 2 NCC). At 1
            rivals do not matter.
        exclusion: Candidates within so many pixels of the best are no rivals of it.
    """

    candidates: Literal["corners", "pixels"] = "corners"
    window: float | None = None
    angles_degrees: Sequence[float] = (0.0,)
    patch_scales: Sequence[float] = (0.7, 1.0, 1.4)
    min_score: float = 0.6
    ratio: float = 0.9
    exclusion: float = 8.0

    def __post_init__(self) -> None:
        if self.candidates not in ("corners", "pixels"):
            raise ValueError(f"candidates must be 'corners' or 'pixels', not {self.candidates!r}")
        if self.window is not None and self.window <= 0:
            raise ValueError(f"window must be more than 0 pixels, not {self.window}")
        for name in ("angles_degrees", "patch_scales"):  # of any form, read once
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.angles_degrees or not self.patch_scales or min(self.patch_scales) <= 0:
            raise ValueError(
                "angles_degrees and patch_scales must not be empty, and patch_scales more than 0"
            )
        if not -1 <= self.min_score <= 1:
            raise ValueError(f"min_score must be in [-1, 1], not {self.min_score}")
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio must be in (0, 1], not {self.ratio}")

    @property
    def maps(self) -> Tensor:
        """The (T, 2, 2) linear1_from_0 to try; y points down, so turns seen counter-clockwise are negative."""
        return torch.tensor(
            [
                [
                    [scale * math.cos(angle), scale * math.sin(angle)],
                    [-scale * math.sin(angle), scale * math.cos(angle)],
                ]
                for scale in self.patch_scales
                for angle in map(math.radians, self.angles_degrees)
            ]
        )


class Found(NamedTuple):
    """The best candidate of every query.

    Attributes:
        rows: (N,) of the candidates.
        scores: (N,) NCC.
        rivals: (N,) best NCC of the candidates that are not close to the best.
        trials: (N,) which of the maps fitted best.
    """

    rows: Tensor
    scores: Tensor
    rivals: Tensor
    trials: Tensor


class NCC:
    """Corners or a grid of image 0, compared with corners or all pixels of image 1."""

    name = "ncc"

    def __init__(self, front_end: corners.Corners, options: Options) -> None:
        self.front_end = front_end
        self.options = options

    def describe(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Description]:
        """Find points and normalise the patches round them."""
        return features.describe(self.name, self.front_end, images, masks)

    def match(self, pairs: Sequence[tuple[Description, Description]]) -> list[Matches]:
        """Match pairs of described images.

        Raises:
            ValueError: A description is not of such patches, or has points outside its image.
        """
        return [self._match(*pair) for pair in pairs]

    def match_points(self, pair: tuple[Description, Description], points0: Points) -> Places:
        """Find where points (K, 2) of the caller's own lie in image 1, among all its pixels."""
        points0 = np.asarray(points0, np.float32).reshape(-1, 2)
        candidates = self._pixels(pair[1])
        scores = np.zeros(len(points0), np.float32)
        points1 = np.full_like(points0, np.nan)
        if not len(points0) or not len(candidates):
            return Places(points1, scores, scores > 0)
        keys = self._described(pair[1], candidates)
        found = self._search(pair[0], points0, candidates, keys)
        matches = self._refined(self._matches(points0, candidates, found), pair)
        valid = self._unique(found).cpu().numpy()
        points1[valid] = matches.points1[valid]
        return Places(points1, np.clip(found.scores.cpu().numpy(), 0, 1), valid)

    def score_map(
        self, pair: tuple[Description, Description], point0: tuple[float, float]
    ) -> ScoreMap:
        """Score every pixel of image 1 by the NCC of the patch round `point0`."""
        radius = self.front_end.options.radius << self.front_end.options.octave
        scene = np.pad(pair[1].image, radius, mode="edge")
        x, y = np.rint(point0).astype(int)
        template = np.pad(pair[0].image, radius, mode="edge")
        template = template[y : y + 2 * radius + 1, x : x + 2 * radius + 1]
        scores = correlation.score_map(template, scene)
        rows, columns = np.mgrid[: scores.shape[0], : scores.shape[1]]
        points1 = np.stack([columns.ravel(), rows.ravel()], 1).astype(np.float32)
        return ScoreMap(points1, scores.ravel(), (scores.shape[0], scores.shape[1]), "NCC")

    def _match(self, description0: Description, description1: Description) -> Matches:
        check_pair(self.name, self.front_end.channels, (description0, description1))
        listed = self.options.candidates == "corners"
        candidates = description1.points if listed else self._pixels(description1)
        if not len(description0) or not len(candidates):
            return Matches.empty()
        keys = self._described(description1, candidates)
        found = self._search(description0, description0.points, candidates, keys)
        best = torch.full((len(candidates),), -2.0, device=found.scores.device)
        best.scatter_reduce_(0, found.rows, found.scores, "amax")
        keep = (self._unique(found) & (found.scores >= best[found.rows])).cpu().numpy()
        matches = self._matches(description0.points, candidates, found).select(keep)
        if listed:
            rows = np.stack([np.arange(len(keep)), found.rows.cpu().numpy()], 1)[keep]
            matches = Matches(
                matches.points0,
                matches.points1,
                matches.scores,
                indices=rows,
                linear1_from_0=matches.linear1_from_0,
            )
        return self._refined(matches, (description0, description1)).sorted()

    def _search(
        self, description0: Description, points0: Points, points1: Points, keys: Tensor
    ) -> Found:
        """Compare points of image 0, under every map, with candidates of image 1 and their descriptors (M, D)."""
        queries = torch.stack(
            [
                self.front_end.warped(description0.image, points0, torch.linalg.inv(step))
                for step in self.options.maps
            ],
            dim=1,
        )  # (N, T, D)
        places0, places1 = (torch.from_numpy(p).to(keys.device) for p in (points0, points1))
        size = max(1, _BLOCK // len(points1))
        blocks = [
            self._best(*block, places1, keys)
            for block in zip(torch.split(queries, size), torch.split(places0, size), strict=True)
        ]
        return Found(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))

    def _best(self, queries: Tensor, places0: Tensor, places1: Tensor, keys: Tensor) -> Found:
        """Find the best candidate, its rival and its map for queries (n, T, D)."""
        similarity = torch.full((len(queries), len(keys)), -2.0, device=keys.device)
        trials = torch.zeros(similarity.shape, dtype=torch.uint8, device=keys.device)
        for trial, query in enumerate(queries.unbind(1)):
            other = query @ keys.T
            trials[other > similarity] = trial
            similarity = torch.maximum(similarity, other)
        if self.options.window is not None:
            similarity[torch.cdist(places0, places1) > self.options.window] = -2.0
        scores, rows = similarity.max(1)
        close = torch.cdist(places1[rows], places1) <= self.options.exclusion
        rivals = similarity.masked_fill_(close, -2.0).amax(1)
        return Found(rows, scores.clamp(-1, 1), rivals, trials.gather(1, rows[:, None])[:, 0])

    def _unique(self, found: Found) -> Tensor:
        """Tell which best candidates are good, and clearly better than their rivals."""
        good = (found.scores >= self.options.min_score) & (found.scores > -1)
        if self.options.ratio == 1:
            return good
        distance, rival = ((1 - score).clamp_min(0) for score in (found.scores, found.rivals))
        return good & (distance <= self.options.ratio**2 * (rival - _TWIN))

    def _pixels(self, description: Description) -> Points:
        """List every pixel, or every second, third … of a large image, that the mask allows."""
        height, width = description.size
        step = max(1, math.ceil(math.sqrt(height * width / _CANDIDATES)))
        y, x = np.mgrid[step // 2 : height : step, step // 2 : width : step]
        points = np.stack([x.ravel(), y.ravel()], 1)
        if description.mask is not None:
            points = points[description.mask[points[:, 1], points[:, 0]]]
        return points.astype(np.float32)

    def _described(self, description: Description, points: Points) -> Tensor:
        """Describe points of image 1: (M, D)."""
        if points is description.points:
            return torch.from_numpy(description.descriptors).to(self.front_end.device)
        return self.front_end.warped(description.image, points, torch.eye(2))

    def _matches(self, points0: Points, points1: Points, found: Found) -> Matches:
        """Pair points with the candidates found for them."""
        return Matches(
            points0,
            points1[found.rows.cpu().numpy()],
            found.scores.clamp(0, 1).cpu().numpy(),
            linear1_from_0=self.options.maps[found.trials.long().cpu()].numpy(),
        )

    def _refined(self, matches: Matches, pair: tuple[Description, Description]) -> Matches:
        """Move matches to the sub-pixel peaks of their correlation surfaces."""
        options = RefineOptions(device=str(self.front_end.device))
        return refine(matches, pair[0].image, pair[1].image, options)


def build(*, device: str = "auto", weights: str | Path | None = "default", **options: Any) -> NCC:
    """Make the method.

    Args:
        device: Where patches are cut and compared.
        weights: Ignored: there are none.
        **options: Fields of `Options` and of `matcher.features.corners.Options`.
    """
    own, rest = split(Options, options)
    return NCC(corners.build(device=device, weights=weights, **rest), own)
