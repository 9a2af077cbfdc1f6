"""XFeat*: semi-dense matching of XFeat's most reliable cells, at two scales.

Source: Potje et al., XFeat: Accelerated Features for Lightweight Image Matching, CVPR 2024, and
its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from matcher import weights as published
from matcher.features import Keypoints
from matcher.features._choice import Choice
from matcher.features.xfeat import network_maps
from matcher.methods._options import split
from matcher.methods._sparse import Assigned, Nearest, NearestOptions, SparseMatcher
from matcher.nn.devices import choose_device
from matcher.nn.xfeat import CHANNELS, STRIDE, XFeat, XFeatMaps, corrected, folded
from matcher.types import Description, Floats, Image, Mask

_SHARES = {0.6: 0.2, 1.3: 0.8}  # of the cells, by the image's scale; as published


@dataclass(frozen=True)
class Options(Choice):
    """The published choice, and those that every front end has."""

    max_keypoints: int | None = 4096


class XFeatCells:
    """Take the most reliable cells of XFeat's map of each of two scales as keypoints.

    A cell's place is its first pixel, as it was when the network learnt to move the place.
    Descriptors are the map's values, not normalised.
    """

    name = "xfeat-star"
    channels = CHANNELS

    def __init__(
        self, network: XFeat, options: Options, device: torch.device, untrained: bool
    ) -> None:
        self.network = network
        self.options = options
        self.device = device
        self.untrained = untrained

    def detect(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Keypoints]:
        """Choose cells; see `matcher.features.FrontEnd`. `scales` are half a cell's side."""
        masks = masks or [None] * len(images)
        found: dict[int, list[Keypoints]] = {number: [] for number in range(len(images))}
        for scale, share in _SHARES.items():
            for numbers, maps in network_maps(self.network, images, self.device, scale):
                for row, number in enumerate(numbers):
                    cells = _cells(maps, row, images[number], scale)
                    rows = self.options.rows(
                        cells.points, cells.scores, images[number], masks[number]
                    )
                    most = self.options.max_keypoints
                    rows = rows if most is None else rows[: int(most * share)]
                    found[number].append(_select(cells, rows))
        return [_best_first(parts) for parts in found.values()]


@dataclass(frozen=True)
class CellOptions:
    """How to choose and place matches.

    Attributes:
        confidence: Least certainty of the place within the cell; as published.
        corrected: Undo the published network's bias of a pixel; False is as published.
    """

    confidence: float = 0.25
    corrected: bool = True


class CellAssignment:
    """Match cells that are mutually nearest by scalar product, and find the place within the cell.

    Scores are the confidences of the place.
    """

    def __init__(self, network: XFeat, device: torch.device, options: CellOptions) -> None:
        self._network = network
        self._device = device
        self._nearest = Nearest(NearestOptions(min_cosine=-np.inf), str(device))
        self._options = options

    @torch.inference_mode()
    def __call__(self, description0: Description, description1: Description) -> Assigned:
        """Assign the cells of two descriptions, neither of them empty."""
        indices = self._nearest(description0, description1).indices
        descriptors0, descriptors1 = (
            torch.from_numpy(description.descriptors[rows]).to(self._device)
            for description, rows in zip((description0, description1), indices.T, strict=True)
        )
        moves, confidence = self._network.fine_offsets(descriptors0, descriptors1)
        if self._options.corrected:
            moves = corrected(moves)
        scores = confidence.cpu().numpy()
        keep = scores > self._options.confidence
        sides = _radii(description0)[indices[keep, 0]] * 2 / STRIDE  # of a pixel of that scale
        return Assigned(indices[keep], scores[keep], moves.cpu().numpy()[keep] * sides[:, None])


def build(
    *, device: str = "auto", weights: str | Path | None = "default", **options: Any
) -> SparseMatcher:
    """Make the method.

    Args:
        device: See `matcher.nn.devices.choose_device`.
        weights: "default" for those that ship, a file or folder, or None for random ones.
        **options: Fields of `CellOptions` and of `Options`.
    """
    own, rest = split(CellOptions, options)
    chosen, place = Options(**rest), choose_device(device)
    network = XFeat()
    untrained = published.initialise(network, weights, "xfeat")
    fast = folded(network).to(place)
    assign = CellAssignment(fast, place, own)
    return SparseMatcher(
        "xfeat-star", XFeatCells(fast, chosen, place, untrained), assign, untrained
    )


def _cells(maps: XFeatMaps, row: int, image: Image, scale: float) -> Keypoints:
    """List the cells of one image of a batch, in reading order, in pixels of the image."""
    size = np.array(image.shape[1::-1])  # (width, height)
    resized = np.maximum(1, np.round(size * scale))
    columns, rows = -(-resized // STRIDE).astype(int)  # those that begin inside the image
    reliability = maps.reliability[row, 0, :rows, :columns].flatten()
    features = maps.features[row, :, :rows, :columns].flatten(1).T  # (rows * columns, 64)
    grid = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(-1, 2)
    points = ((grid * STRIDE + 0.5) * (size / resized) - 0.5).astype(np.float32)
    return Keypoints(
        np.clip(points, 0, size - 1).astype(np.float32),
        reliability.cpu().numpy(),
        features.contiguous().cpu().numpy(),
        np.full(len(points), STRIDE / scale / 2, np.float32),
    )


def _select(cells: Keypoints, rows: NDArray[np.int64]) -> Keypoints:
    """Keep some cells."""
    return Keypoints(
        cells.points[rows], cells.scores[rows], cells.descriptors[rows], _radii(cells)[rows]
    )


def _best_first(parts: Sequence[Keypoints]) -> Keypoints:
    """Put the cells of all scales in one falling order."""
    together = Keypoints(
        np.concatenate([part.points for part in parts]),
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.descriptors for part in parts]),
        np.concatenate([_radii(part) for part in parts]),
    )
    return _select(together, np.argsort(-together.scores, kind="stable"))


def _radii(cells: Keypoints | Description) -> Floats:
    """Read half the cells' sides.

    Raises:
        ValueError: They are missing: another method made the description.
    """
    if cells.scales is None:
        raise ValueError("xfeat-star needs the scales of its cells, which this description lacks")
    return cells.scales
