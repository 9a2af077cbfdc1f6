"""Detector-free matching: every cell of a feature map looks for its partner in the other image.

`describe` runs the CNN, once an image; `match` runs the attention, the assignment and the fine
stage of a pair. Images of any size are taken as they are: nothing is resampled unless `max_side`
asks for it, and cells that a mask excludes are left out before the attention, so that they change
nothing.

Presets: "light" starts from published XFeat and LighterGlue weights and ships with the package;
"official-…" is the published LoFTR, whose checkpoint the user brings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matcher import images
from matcher.features import fit_masks
from matcher.features._choice import Choice, contrast_at
from matcher.methods._loftr_presets import PRESETS, licence, start_weights
from matcher.methods._places import inside
from matcher.methods._sparse import check_pair
from matcher.methods._tiles import Tiled
from matcher.nn.coarse_to_fine import CoarseToFine, Maps, View
from matcher.nn.devices import (
    Precision,
    check_precision,
    choose_device,
    choose_precision,
    products_in,
    with_smaller_blocks,
)
from matcher.nn.streaming import BUDGET, CoarseMatches, Scores
from matcher.types import (
    Description,
    Floats,
    Image,
    Mask,
    Matcher,
    Matches,
    Places,
    Points,
    ScoreMap,
)
from matcher.weights import load_strict

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Options:
    """What a user may set; None takes the preset's value.

    Attributes:
        preset: Which network; see the module.
        threshold: Least score, in [0, 1].
        border: Cells along the edges that never match.
        tokens: Most cells of an image that are looked at: time grows with their square.
        max_side: Larger images are shrunk to this long side, in pixels, before they are described.
        tile: Larger images are cut into tiles of this side, in pixels.
        overlap: Of neighbouring tiles, in pixels.
        memory: Bytes for blocks of scores.
        precision: Of the layers' products; scores and places stay float32.
    """

    preset: str = "light"
    threshold: float | None = None
    border: int | None = None
    tokens: int | None = None
    max_side: int | None = None
    tile: int | None = None
    overlap: int = 64
    memory: int = BUDGET
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"no preset {self.preset!r}; there are {', '.join(sorted(PRESETS))}")
        for name in ("tokens", "max_side", "memory"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive, not {value}")
        if self.border is not None and self.border < 0:
            raise ValueError(f"border must be at least 0, not {self.border}")
        check_precision(self.precision)


def build(*, device: str, weights: str | Path | None, **options: Any) -> Matcher:
    """Make the method.

    Args:
        device: As `matcher.methods.build` takes it.
        weights: "default", which only the preset "light" has; a file; or None for random weights.
        **options: Fields of `Options`.

    Raises:
        ValueError: A bad option, or weights that do not fit the preset's network.
        FileNotFoundError: The file is missing.
    """
    chosen = Options(**options)
    place = choose_device(device)
    network = PRESETS[chosen.preset].make()
    if weights is not None:
        load_strict(network, start_weights(chosen.preset, weights), f"loftr {chosen.preset}")
    network.prepare().to(place)
    loftr = Loftr(network, chosen, place, untrained=weights is None)
    loftr.licence = licence(chosen.preset, weights)
    method: Matcher = loftr
    return method if chosen.tile is None else Tiled(method, chosen.tile, chosen.overlap)


class Loftr:
    """The method; see the module.

    Attributes:
        licence: Of the network's weights; empty where it is not known or they are random.
    """

    name = "loftr"
    licence = ""

    def __init__(
        self, network: CoarseToFine, options: Options, device: torch.device, *, untrained: bool
    ) -> None:
        preset = PRESETS[options.preset]
        self.network = network
        self.options = options
        self.device = device
        self.untrained = untrained
        self.threshold = preset.threshold if options.threshold is None else options.threshold
        self.border = preset.border if options.border is None else options.border
        self.tokens = options.tokens or preset.tokens
        self._precision = choose_precision(options.precision, device)

    @torch.inference_mode()
    def describe(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Description]:
        """Run the CNN on each image and keep the cells that count."""
        fitted = fit_masks(images, masks)
        return [self._describe(image, mask) for image, mask in zip(images, fitted, strict=True)]

    def _describe(self, image: Image, mask: Mask | None) -> Description:
        grey = images.grey(image)
        seen = images.resize(grey, self._seen_size(grey.shape))
        with products_in(self._precision, self.device):
            maps = self.network.describe(torch.from_numpy(seen)[None, None].to(self.device))
        cells, points = (
            self._cells(maps),
            _given_pixels(maps.points.flatten(0, 1), seen.shape, grey.shape),
        )
        allowed = inside(points, grey.shape, mask)
        priority = np.ones(len(cells), np.float32)
        if maps.priority is not None:
            priority = maps.priority.flatten().float().cpu().numpy()
            allowed &= contrast_at(points, grey) >= Choice.min_contrast
        chosen = _best(np.where(allowed, priority, -1.0), self.tokens)
        coarse = maps.coarse.flatten(0, 1).float().cpu().numpy()  # (h * w, C)
        kept: dict[str, NDArray[np.generic]] = {
            "cells": cells[chosen],
            "seen": np.array(seen.shape),
        }
        if maps.fine is not None:
            kept["fine"] = maps.fine.float().contiguous().cpu().numpy()
        if len(chosen) < len(cells):  # for questions about other cells
            kept["coarse"], kept["points"] = coarse, points
        return Description(
            method=self.name,
            image=grey,
            mask=mask,
            points=points[chosen],
            scores=priority[chosen].clip(0, 1),
            descriptors=coarse[chosen],
            maps=kept,
            untrained=self.untrained,
        )

    def _seen_size(self, size: tuple[int, ...]) -> tuple[int, int]:
        """Height and width that the network sees of an image."""
        full = size[0], size[1]
        return images.fit_long_side(full, self.options.max_side) if self.options.max_side else full

    def _cells(self, maps: Maps) -> NDArray[np.int64]:
        """List all cells (column, row), rows first."""
        rows, columns = np.indices(maps.coarse.shape[:2]).reshape(2, -1)
        return np.stack([columns, rows], axis=1)

    @torch.inference_mode()
    def match(self, pairs: Sequence[tuple[Description, Description]]) -> list[Matches]:
        """Match pairs one after the other, each as if it were alone."""
        return [self._match(*pair) for pair in pairs]

    def _match(self, description0: Description, description1: Description) -> Matches:
        check_pair(self.name, self.network.channels, (description0, description1))
        views = self._view(description0), self._view(description1)
        if not (len(description0) and len(description1)):
            return Matches.empty(untrained=self.untrained)
        related = self._relate(*views)
        best = self._scored(related, lambda scores: scores.mutual_best(self.threshold))
        found = self._without_border(views, best)
        with products_in(self._precision, self.device):
            places = self.network.place(views, related, found)
        points0, points1 = (
            _given_pixels(points, self._seen(description), description.size)
            for points, description in zip(places, (description0, description1), strict=True)
        )
        kept = inside(points0, description0.size, description0.mask)
        kept &= inside(points1, description1.size, description1.mask)
        matches = Matches(points0, points1, found.scores.cpu().numpy(), untrained=self.untrained)
        return matches.select(kept).sorted()

    def _relate(self, view0: View, view1: View) -> tuple[Tensor, Tensor]:
        """Put the cells into the context of both images, in the precision asked for."""
        with products_in(self._precision, self.device):
            tokens0, tokens1 = self.network.relate(view0, view1)
        return tokens0.float(), tokens1.float()

    def _scored(
        self, related: tuple[Tensor, Tensor], finish: Callable[[Scores], _Result]
    ) -> _Result:
        """Score all pairs of cells and take what is wanted, in blocks that the memory has room for."""
        return with_smaller_blocks(
            lambda memory: finish(self.network.score(*related, memory)), self.options.memory
        )

    @torch.inference_mode()
    def match_points(self, pair: tuple[Description, Description], points0: Points) -> Places:
        """Find where given points of image 0 lie in image 1.

        Args:
            pair: Both descriptions.
            points0: (K, 2) pixels of image 0, of any fraction.

        Raises:
            ValueError: The points are not pairs.
        """
        points0 = np.asarray(points0, np.float32)
        if points0.ndim != 2 or points0.shape[1] != 2:
            raise ValueError(f"points0 must be (K, 2), not {points0.shape}")
        asked = inside(points0, pair[0].size, pair[0].mask)
        points1 = np.full_like(points0, np.nan)
        scores = np.zeros(len(points0), np.float32)
        if asked.any() and len(pair[1]):
            points1[asked], scores[asked] = self._follow(pair, points0[asked])
        valid = (scores > self.threshold) & inside(points1, pair[1].size, pair[1].mask)
        points1[~valid] = np.nan
        return Places(points1, scores, valid)

    def _follow(
        self, pair: tuple[Description, Description], points0: Points
    ) -> tuple[Points, Floats]:
        """Answer for (K, 2) points inside image 0: their places and the (K,) scores."""
        asked = self._seen_pixels(points0, pair[0])
        cells = self._nearest_cells(asked)
        view0, rows = self._with_cells(pair[0], cells)
        views = view0, self._view(pair[1])
        related = self._relate(*views)
        best = self._scored(related, lambda scores: scores.rows(rows)).max(1)
        found = CoarseMatches(rows, best.indices, best.values.exp().clamp(max=1))
        with products_in(self._precision, self.device):
            places = self.network.follow(views, related, found, asked)
        return _given_pixels(places, self._seen(pair[1]), pair[1].size), found.scores.cpu().numpy()

    def _nearest_cells(self, points: Tensor) -> Tensor:
        """Give the (K, 2) int64 (column, row) of the cells whose middles are nearest to pixels."""
        return ((points - self.network.centre) / self.network.stride).round().long()

    def _with_cells(self, description: Description, cells: Tensor) -> tuple[View, Tensor]:
        """Make a view that holds the (K, 2) cells asked for, and find their (K,) rows in it."""
        view = self._view(description)
        columns, rows = self._grid(description)
        cells = torch.minimum(cells.clamp_min(0), cells.new_tensor([columns - 1, rows - 1]))
        row_of = torch.full((rows * columns,), -1, device=self.device)
        flat = view.cells[:, 1] * columns + view.cells[:, 0]
        wanted = cells[:, 1] * columns + cells[:, 0]
        if "coarse" in description.maps:
            flat = torch.unique(torch.cat([flat, wanted]))
            tokens = torch.from_numpy(np.asarray(description.maps["coarse"])).to(self.device)[flat]
            points = self._seen_pixels(description.maps["points"].astype(np.float32), description)[
                flat
            ]
            listed = torch.stack([flat % columns, flat // columns], dim=1)
            view = View(tokens, listed, points, view.size, view.fine)
        row_of[flat] = torch.arange(len(flat), device=self.device)
        return view, row_of[wanted]

    @torch.inference_mode()
    def score_map(
        self, pair: tuple[Description, Description], point0: tuple[float, float]
    ) -> ScoreMap:
        """Score every cell of image 1 for the cell nearest to a point; cells left out score 0."""
        cell = self._nearest_cells(self._seen_pixels(np.array([point0], np.float32), pair[0]))
        view0, asked = self._with_cells(pair[0], cell)
        view1 = self._view(pair[1])
        columns1, rows1 = self._grid(pair[1])
        scores = np.zeros(rows1 * columns1, np.float32)
        if len(pair[1]) and len(view0.tokens):
            related = self._relate(view0, view1)
            row = self._scored(related, lambda scores: scores.rows(asked))[0].exp()
            scores[(view1.cells[:, 1] * columns1 + view1.cells[:, 0]).cpu()] = row.cpu().numpy()
        rows, columns = np.indices((rows1, columns1)).reshape(2, -1)
        places = np.stack([columns, rows], axis=1) * self.network.stride + self.network.centre
        points1 = images.resize_points(places.astype(np.float32), self._seen(pair[1]), pair[1].size)
        return ScoreMap(points1, scores, grid=(rows1, columns1), kind="assignment probability")

    def memory(self, size0: tuple[int, int], size1: tuple[int, int]) -> int:
        """Estimate the bytes that describing and matching two images takes at its peak.

        Args:
            size0: Height and width of image 0.
            size1: Height and width of image 1.

        Returns:
            Bytes beside the network and the images themselves.
        """
        areas = [math.prod(self._seen_size(size)) for size in (size0, size1)]
        cells = [math.ceil(area / self.network.stride**2) for area in areas]
        counts = [min(count, self.tokens or count) for count in cells]
        held = sum(self.network.held_bytes(area) for area in areas)
        describing = max(
            self.network.describing_bytes(areas[0]),
            self.network.held_bytes(areas[0]) + self.network.describing_bytes(areas[1]),
        )
        blocks = min(self.options.memory, 8 * math.prod(counts))
        return max(describing, held + blocks + self.network.relating_bytes(counts[0], counts[1]))

    def _view(self, description: Description) -> View:
        """Bring a description to the device.

        Raises:
            ValueError: Another method made it.
        """
        if description.method != self.name:
            raise ValueError(
                f"{self.name} cannot match what {description.method} described; describe again"
            )
        fine = description.maps.get("fine")
        return View(
            torch.from_numpy(description.descriptors).to(self.device),
            torch.from_numpy(np.asarray(description.maps["cells"], np.int64)).to(self.device),
            self._seen_pixels(description.points, description),
            self._seen(description),
            None if fine is None else torch.from_numpy(np.asarray(fine)).to(self.device),
        )

    def _seen_pixels(self, points: Points, description: Description) -> Tensor:
        """Move (K, 2) pixels of a described image to the image that the network saw."""
        moved = images.resize_points(points, description.size, self._seen(description))
        return torch.from_numpy(moved).to(self.device)

    def _seen(self, description: Description) -> tuple[int, int]:
        """Height and width of the image that the network saw."""
        height, width = np.asarray(description.maps["seen"])
        return int(height), int(width)

    def _grid(self, description: Description) -> tuple[int, int]:
        """Columns and rows of the coarse map."""
        height, width = self._seen(description)
        return math.ceil(width / self.network.stride), math.ceil(height / self.network.stride)

    def _without_border(self, views: tuple[View, View], found: CoarseMatches) -> CoarseMatches:
        """Drop matches whose cell lies within some cells of an edge of either image."""
        keep = torch.ones_like(found.rows, dtype=torch.bool)
        for view, chosen in zip(views, (found.rows, found.columns), strict=True):
            height, width = view.size
            last = view.cells.new_tensor([width - 1, height - 1]) // self.network.stride
            cells = view.cells[chosen]
            keep &= ((cells >= self.border) & (cells <= last - self.border)).all(1)
        return CoarseMatches(found.rows[keep], found.columns[keep], found.scores[keep])


def _given_pixels(points: Tensor, seen: tuple[int, ...], size: tuple[int, ...]) -> Points:
    """Move (K, 2) pixels of the image that the network saw to the image that the user gave."""
    numbers: Points = points.float().cpu().numpy()
    return images.resize_points(numbers, (seen[0], seen[1]), (size[0], size[1]))


def _best(priority: NDArray[np.float64], most: int | None) -> NDArray[np.int64]:
    """List the best cells of not negative priority, at most so many; rising."""
    order = np.argsort(-priority, kind="stable")[: len(priority) if most is None else most]
    return np.sort(order[priority[order] >= 0])
