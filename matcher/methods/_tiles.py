"""Match very large images in tiles, and merge the tiles' matches without duplicates.

An overview of the whole images, shrunk to the size of a tile, says which tiles show the same: only
these are matched. Where the overview finds next to nothing, as for a small sign in a large scene,
every tile is matched with every other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from matcher import images as pixels
from matcher.types import Description, Image, Mask, Matcher, Matches, Points, ScoreMap

_GRID = 32  # tiles start on multiples of this, so that the cells of overlapping tiles coincide
_LINKS = 4  # matches of the overview that make two tiles worth matching; fewer may be accidents


@dataclass(frozen=True, eq=False)
class TiledDescription(Description):
    """A large image described in parts.

    Attributes:
        tiles: What each part is.
        corners: (T, 2) int64 pixel (x, y) of each part's top-left pixel.
        overview: The whole image, shrunk; None for an image that is one tile.
    """

    tiles: tuple[Description, ...] = ()
    corners: NDArray[np.int64] | None = None
    overview: Description | None = None


class Tiled:
    """Wrap a method so that images larger than a tile are matched in tiles."""

    def __init__(self, method: Matcher, side: int, overlap: int, radius: float = 2.0) -> None:
        """Keep the sizes.

        Args:
            method: Describes and matches the tiles.
            side: Of a tile, in pixels.
            overlap: Least overlap of neighbouring tiles, in pixels.
            radius: Matches of different tiles that are nearer than this in either image are one.

        Raises:
            ValueError: The overlap leaves no step from tile to tile.
        """
        if side < 2 * _GRID or not 0 <= overlap <= side - 2 * _GRID:
            raise ValueError(
                f"tiles of {side} with an overlap of {overlap} pixels do not cover: the side must "
                f"be at least {2 * _GRID}, and the overlap from 0 to the side less {2 * _GRID}"
            )
        self.method = method
        self.side, self.overlap, self.radius = side, overlap, radius

    def describe(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Description]:
        """Describe small images whole, and large ones by their tiles and an overview."""
        given = masks if masks is not None else [None] * len(images)
        return [self._describe(image, mask) for image, mask in zip(images, given, strict=True)]

    def _describe(self, image: Image, mask: Mask | None) -> Description:
        size = image.shape[0], image.shape[1]
        if max(size) <= self.side:
            return self.method.describe([image], [mask])[0]
        corners = np.array([(x, y) for y in self.starts(size[0]) for x in self.starts(size[1])])
        parts = [np.s_[y : y + self.side, x : x + self.side] for x, y in corners]
        cut = [None if mask is None else mask[part] for part in parts]
        tiles = self.method.describe([image[part] for part in parts], cut)
        small = pixels.fit_long_side(size, self.side)
        overview = self.method.describe(
            [pixels.resize(image, small)],
            [None if mask is None else pixels.resize_mask(mask, small)],
        )[0]
        return TiledDescription(
            method=tiles[0].method,
            image=pixels.grey(image),
            mask=mask,
            points=np.concatenate([t.points + c for t, c in zip(tiles, corners, strict=True)]),
            scores=np.concatenate([tile.scores for tile in tiles]),
            descriptors=np.concatenate([tile.descriptors for tile in tiles]),
            untrained=tiles[0].untrained,
            tiles=tuple(tiles),
            corners=corners,
            overview=overview,
        )

    def starts(self, length: int) -> list[int]:
        """List where tiles begin along an axis: evenly spread, the last one reaching the end."""
        count = max(1, math.ceil((length - self.overlap) / (self.side - self.overlap - _GRID)))
        last = max(0, length - self.side)
        return sorted(
            {math.ceil(last * i / max(1, count - 1) / _GRID) * _GRID for i in range(count)}
        )

    def match(self, pairs: Sequence[tuple[Description, Description]]) -> list[Matches]:
        """Match pairs of described images, tile by tile where they have tiles."""
        return [self._match(*pair) for pair in pairs]

    def _match(self, description0: Description, description1: Description) -> Matches:
        if not (_is_tiled(description0) or _is_tiled(description1)):
            return self.method.match([(description0, description1)])[0]
        tiles0, tiles1 = _tiles(description0), _tiles(description1)
        chosen = self._chosen(description0, description1)
        found = self.method.match([(tiles0[i][1], tiles1[j][1]) for i, j in chosen])
        moved = [
            replace(
                matches,
                points0=matches.points0 + tiles0[i][0],
                points1=matches.points1 + tiles1[j][0],
            )
            for matches, (i, j) in zip(found, chosen, strict=True)
        ]
        return merge(moved, self.radius)

    def _chosen(
        self, description0: Description, description1: Description
    ) -> list[tuple[int, int]]:
        """List the numbers of the tiles that are worth matching."""
        overview0, overview1 = _overview(description0), _overview(description1)
        found = self.method.match([(overview0, overview1)])[0]
        held0 = _held(found.points0, overview0, description0)
        held1 = _held(found.points1, overview1, description1)
        links = held0.T.astype(np.int64) @ held1.astype(np.int64)  # (T0, T1)
        worth = links >= _LINKS if (links >= _LINKS).any() else np.ones_like(links, bool)
        return [(int(i), int(j)) for i, j in np.argwhere(worth)]

    def score_map(
        self, pair: tuple[Description, Description], point0: tuple[float, float]
    ) -> ScoreMap:
        """Score the places of the overview of image 1."""
        overview0, overview1 = _overview(pair[0]), _overview(pair[1])
        asked = pixels.resize_points(np.array([point0], np.float32), pair[0].size, overview0.size)[
            0
        ]
        answer = self.method.score_map((overview0, overview1), (float(asked[0]), float(asked[1])))
        return replace(
            answer, points1=pixels.resize_points(answer.points1, overview1.size, pair[1].size)
        )


def merge(parts: Sequence[Matches], radius: float) -> Matches:
    """Join matches of several tiles, best first, so that no place of either image is matched twice.

    Args:
        parts: One entry a pair of tiles, in pixels of the whole images.
        radius: Of two matches of different parts that are nearer than this in either image, in
            pixels, the better stays.

    Returns:
        The matches that stay; those of one part are never set against each other.
    """
    if not parts:
        return Matches.empty()
    points0, points1 = (
        np.concatenate([getattr(m, name) for m in parts]) for name in ("points0", "points1")
    )
    part = np.repeat(np.arange(len(parts)), [len(matches) for matches in parts])
    joined = Matches(
        points0,
        points1,
        np.concatenate([matches.scores for matches in parts]),
        untrained=any(matches.untrained for matches in parts),
    )
    order = np.argsort(-joined.scores, kind="stable")
    joined, part = joined.select(order), part[order]
    keep = np.ones(len(joined), bool)
    for better, worse in _rivals(joined, part, radius):
        keep[worse] &= not keep[better]
    return joined.select(keep)


def _rivals(matches: Matches, part: NDArray[np.int64], radius: float) -> NDArray[np.int64]:
    """List (R, 2) rows too near each other, the better first, in rising order of the worse."""
    near = [
        KDTree(points).query_pairs(radius, output_type="ndarray")
        for points in (matches.points0, matches.points1)
        if len(points)
    ]
    rivals = np.concatenate([*near, np.zeros((0, 2), np.intp)]).astype(np.int64)  # lower row first
    rivals = rivals[part[rivals[:, 0]] != part[rivals[:, 1]]]
    ordered: NDArray[np.int64] = rivals[np.lexsort((rivals[:, 0], rivals[:, 1]))]
    return ordered


def _is_tiled(description: Description) -> bool:
    """Tell whether a description has tiles."""
    return isinstance(description, TiledDescription)


def _tiles(description: Description) -> list[tuple[Points, Description]]:
    """List the tiles with their corners; a small image is its own tile."""
    if not isinstance(description, TiledDescription) or description.corners is None:
        return [(np.zeros(2, np.float32), description)]
    corners = description.corners.astype(np.float32)
    return list(zip(corners, description.tiles, strict=True))


def _overview(description: Description) -> Description:
    """Return the small description of a whole image."""
    if isinstance(description, TiledDescription) and description.overview is not None:
        return description.overview
    return description


def _held(points: Points, overview: Description, whole: Description) -> NDArray[np.bool_]:
    """Tell which (M, T) tiles of the whole image hold which points of its overview."""
    moved = pixels.resize_points(points, overview.size, whole.size)
    tiles = _tiles(whole)
    held = [
        ((moved >= corner - 0.5) & (moved < corner + tile.size[::-1] - 0.5)).all(1)
        for corner, tile in tiles
    ]
    return np.stack(held, axis=1) if held else np.zeros((len(points), 0), bool)
