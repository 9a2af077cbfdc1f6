"""Grow matches by correlation: where neighbours agree how the picture changes, match what lies between them too.

A method finds some hundred places; the pixels round them hold many more that follow from them. In rounds:

1. *candidates*: the strongest corner of every cell of image 0 that holds no match;
2. *sources*: matches whose local map (`local_maps.py`) their neighbours support; each candidate near one is predicted;
3. *peaks*: it is a match where normalised cross-correlation has a clear, high peak near the prediction;
4. what has grown is a source of the next round, and stays in the end if its neighbours, old and new, support it.

Unrelated pictures have hardly any sources, so hardly anything grows on them.

Source: Lhuillier and Quan, Match propagation for image-based modeling and rendering, PAMI 2002, section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import Tensor

from matcher import images
from matcher.features.corners import strongest_by_cell
from matcher.local_maps import nearest_rows, refit_local_maps, support
from matcher.methods._places import inside
from matcher.nn.devices import choose_device
from matcher.refinement import (
    FINE_SEARCH,
    Pyramids,
    RefineOptions,
    move_to_peaks,
    pyramids,
    refine_on_pyramids,
)
from matcher.types import Mask, Matches, Points

SMALLEST_CELL = 8  # pixels

FAR = 1e9  # where matches without a place are put
TWIN = 1.0  # pixels of image 1: a match that ends nearer to another is the same


@dataclass(frozen=True)
class GrowOptions:
    """How matches grow.

    Attributes:
        cells: Image 0 is divided into about so many square cells, of 8 pixels at least; each grows one match at most.
        reach: A candidate lies within so many cells of its source.
        rounds: How often what has grown grows on.
        min_score: Least NCC of what grows.
        min_support: Least number of a match's 16 neighbours that agree, each counted by how well it fits.
        search: How far a candidate may be from where it is predicted, in pixels of the coarser image.
        device: "auto", "cpu", "cuda", "cuda:1", "mps".
    """

    cells: int = 4000
    reach: float = 4.0
    rounds: int = 6
    min_score: float = 0.8
    min_support: float = 6.0
    search: int = 3
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("cells", "reach", "rounds", "min_support", "search"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, not {getattr(self, name)}")
        if not -1 <= self.min_score <= 1:
            raise ValueError(f"min_score must be in [-1, 1], not {self.min_score}")


def grow(
    matches: Matches,
    image0: object,
    image1: object,
    options: GrowOptions | None = None,
    *,
    mask0: Mask | None = None,
    mask1: Mask | None = None,
) -> Matches:
    """Add matches between and round those whose neighbours agree with them.

    Works for the matches of any method; those that are not refined yet are refined first.

    Args:
        matches: In pixels of the two images.
        image0: A path, PIL image, numpy array or torch tensor; see `matcher.read`.
        image1: Likewise.
        options: How; the defaults suit images of 640 x 480 pixels and more.
        mask0: (H, W) or a smaller or larger picture of it, True where matches may grow in image 0; None for everywhere.
        mask1: Likewise for image 1.

    Returns:
        All the given matches and what has grown, best first. A match that has grown is wrong only if both its source
        and the pixels mislead: its score is 1 - (1 - score of the source) (1 - NCC). It has no listed points: its
        `indices` are -1.
    """
    options = options or GrowOptions()
    moving = RefineOptions(min_score=options.min_score, search=options.search)
    levels = pyramids(image0, image1, moving.smooth, choose_device(options.device))
    if matches.refined is None or matches.linear1_from_0 is None:
        matches = refine_on_pyramids(matches, levels, RefineOptions())
    if len(matches) < options.min_support:
        return matches
    size0, size1 = (level[0].shape[2:] for level in levels)
    candidates, cell = _candidates(levels[0], options.cells, _fitted(mask0, size0), matches.points0)
    found = _Found.of(matches, levels[0][0].device)
    for _ in range(options.rounds):
        sources = found.select(found.support() >= options.min_support)
        near, nearest = _nearest(candidates, sources.points0, options.reach * cell)
        grown = _moved(
            _predicted(candidates[near], sources.select(torch.from_numpy(nearest))), levels, moving
        )
        if not len(grown.points0):
            break
        candidates, found = candidates[~near], found.plus(grown)
    grown = _settled(
        found, len(matches), levels, replace(moving, search=FINE_SEARCH), options.min_support
    )
    return _joined(matches, grown, size1, _fitted(mask1, size1))


class _Found(NamedTuple):
    """Matches as tensors: points (N, 2), linear1_from_0 (N, 2, 2), scores (N,)."""

    points0: Tensor
    points1: Tensor
    maps: Tensor
    scores: Tensor

    @classmethod
    def of(cls, matches: Matches, device: torch.device) -> _Found:
        """Take them from refined matches, which know their maps."""
        arrays = matches.points0, matches.points1, matches.linear1_from_0, matches.scores
        return cls(
            *(torch.as_tensor(array, dtype=torch.float32, device=device) for array in arrays)
        )

    def select(self, rows: Tensor) -> _Found:
        """Keep some rows."""
        return _Found(*(values[rows] for values in self))

    def plus(self, more: _Found) -> _Found:
        """Add rows."""
        return _Found(*(torch.cat(both) for both in zip(self, more, strict=True)))

    def support(self) -> Tensor:
        """Count (N,) the neighbours that agree with the map of each."""
        return support(self.points0, self.points1, nearest_rows(self.points0), self.maps)


def _fitted(mask: Mask | None, size: tuple[int, ...]) -> Mask | None:
    """Give a mask the size (H, W) of its image."""
    return None if mask is None else images.resize_mask(np.asarray(mask) != 0, (size[0], size[1]))


def _candidates(
    levels: list[Tensor], cells: int, mask: Mask | None, taken: Points
) -> tuple[Points, int]:
    """Choose the strongest corner of every cell that holds no match and where the mask allows.

    Corners of large cells are looked for at a level of the pyramid where a cell has some ten pixels.

    Returns:
        (K, 2) pixels of image 0, and the side of a cell.
    """
    height, width = levels[0].shape[2:]
    side = max(SMALLEST_CELL, math.sqrt(height * width / cells))
    level = min(int(math.log2(side / SMALLEST_CELL)), len(levels) - 1)
    cell = math.ceil(side / 2**level) << level
    corners = strongest_by_cell(levels[level], cell >> level).cpu().numpy()
    corners = ((corners + 0.5) * 2**level - 0.5).astype(np.float32)
    full = np.zeros((height // cell + 2, width // cell + 2), np.bool_)
    full[*_cells(taken, cell, full.shape)] = True
    free = ~full[*_cells(corners, cell, full.shape)]
    chosen: Points = corners[free & inside(corners, (height, width), mask)]
    return chosen, cell


def _cells(points: Points, cell: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the (2, N) row and column of the cell of each point (N, 2)."""
    cells = np.nan_to_num(points + 0.5) // cell
    columns, rows = np.clip(cells, 0, [shape[1] - 1, shape[0] - 1]).T
    return np.stack([rows, columns]).astype(np.int64)


def _nearest(
    candidates: Points, sources: Tensor, reach: float
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Tell which candidates (K,) have a source within reach, and the rows of the nearest of those."""
    if not len(sources):
        return np.zeros(len(candidates), np.bool_), np.zeros(0, np.int64)
    distances, rows = map(np.asarray, KDTree(sources.cpu().numpy()).query(candidates))
    near = distances <= reach
    return near, rows[near]


def _predicted(candidates: Points, sources: _Found) -> _Found:
    """Predict where candidates (K, 2) lie, each by the map of its source."""
    points0 = torch.from_numpy(candidates).to(sources.points0)
    steps = sources.maps @ (points0 - sources.points0)[:, :, None]
    return sources._replace(points0=points0, points1=sources.points1 + steps[:, :, 0])


def _moved(found: _Found, levels: Pyramids, options: RefineOptions) -> _Found:
    """Move to the peaks near the places, and keep those that have one, as sure as both allow."""
    moved = move_to_peaks(found.points0, found.points1, found.maps, levels, options)
    scores = 1 - (1 - found.scores) * (1 - moved.scores.clamp(0, 1))
    return found._replace(points1=moved.points1, scores=scores).select(moved.clear)


def _settled(
    found: _Found, given: int, levels: Pyramids, options: RefineOptions, min_support: float
) -> _Found:
    """Choose what has grown and is supported now that all is there, and place it with the maps that follow."""
    neighbours = nearest_rows(found.points0)
    maps = refit_local_maps(found.points0, found.points1, neighbours, found.maps)
    supported = support(found.points0, found.points1, neighbours, maps) >= min_support
    supported[:given] = False
    grown = found._replace(maps=maps).select(supported)
    moved = move_to_peaks(grown.points0, grown.points1, grown.maps, levels, options)
    return grown._replace(points1=moved.points1).select(moved.clear)


def _joined(matches: Matches, grown: _Found, size: tuple[int, ...], mask: Mask | None) -> Matches:
    """Add what has grown, where the mask allows and no other match ends, to the matches, best first."""
    points1 = np.concatenate([matches.points1, grown.points1.cpu().numpy()])
    places = np.nan_to_num(points1, nan=-FAR, posinf=FAR, neginf=-FAR)
    others = KDTree(places).query(places[len(matches) :], 2)[0][:, 1]
    keep = inside(points1[len(matches) :], size, mask) & (others > TWIN)
    rows = np.concatenate([np.ones(len(matches), np.bool_), keep])
    added = {
        "points0": grown.points0.cpu().numpy(),
        "points1": grown.points1.cpu().numpy(),
        "scores": grown.scores.cpu().numpy(),
        "linear1_from_0": grown.maps.cpu().numpy(),
        "refined": np.ones(len(keep), np.bool_),
        "indices": np.full((len(keep), 2), -1),
    }
    known = {name: getattr(matches, name) for name in added}
    joined: dict[str, Any] = {
        k: np.concatenate([v, added[k]]) for k, v in known.items() if v is not None
    }
    return replace(matches, **joined).select(rows).sorted()
