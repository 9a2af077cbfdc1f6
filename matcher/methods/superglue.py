"""SuperGlue-style matching: keypoints, attention between them, optimal transport.

The default is XFeat's keypoints with LighterGlue's layers, whose assignment goes through Sinkhorn
with a dustbin calibrated on synthetic pairs (`models/superglue-xfeat`). `official-outdoor` and
`official-indoor` are the published networks, from files that the user has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from matcher import features
from matcher.methods._sparse import check_pair
from matcher.methods._superglue import Model, official, random, trained
from matcher.nn.devices import (
    Precision,
    check_precision,
    choose_device,
    choose_precision,
    products_in,
    with_smaller_blocks,
)
from matcher.nn.pointsets import PointSet
from matcher.nn.superglue import Architecture, Assigned, Config
from matcher.types import Description, Image, Mask, Matches, ScoreMap

_OFFICIAL = {"official-outdoor": "outdoor", "official-indoor": "indoor"}
_KIND = "assignment probability"
_PAIRS_AT_ONCE = {"cpu": 1, "cuda": 16}


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    Attributes:
        preset: "modern" for LightGlue's layers, "published" for the paper's network, or the
            latter's trained forms "official-outdoor" and "official-indoor".
        front_end: A name of `matcher.features`; None for the preset's own, "xfeat" or "superpoint".
        max_keypoints: The best of each image.
        threshold: Least probability of a match; None for the preset's own.
        sinkhorn_steps: Iterations of the transport; None for the preset's own.
        adaptive: Stop early for easy pairs and drop points without a partner. Modern layers only.
        precision: Type of the products; the transport and positions stay float32. float16 is for
            GPUs: on a CPU it is float32, and the log says so.
    """

    preset: Literal["modern", "published", "official-outdoor", "official-indoor"] = "modern"
    front_end: str | None = None
    max_keypoints: int = 1024
    threshold: float | None = None
    sinkhorn_steps: int | None = None
    adaptive: bool = False
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        presets = ("modern", "published", *_OFFICIAL)
        if self.preset not in presets:
            raise ValueError(f"no preset {self.preset!r}; there are {', '.join(presets)}")
        check_precision(self.precision)
        if self.preset in _OFFICIAL and self.front_end not in (None, "superpoint"):
            raise ValueError(f"{self.preset} was trained on superpoint, not {self.front_end}")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must be in [0, 1], not {self.threshold}")


class SuperGlueMatcher:
    """A front end and a network behind the one interface.

    Attributes:
        front_end: Finds and describes the keypoints.
        network: Matches them.
        licence: Of the network's weights; empty where they are random.
        untrained: True where they are random.
        threshold: Least probability of a match.
    """

    def __init__(
        self,
        front_end: features.FrontEnd,
        model: Model,
        device: torch.device,
        precision: str = "float32",
    ) -> None:
        taken = model.network.config.input_channels
        if front_end.channels != taken:
            raise ValueError(
                f"{front_end.name} gives descriptors of {front_end.channels} channels, the network "
                f"takes {taken}"
            )
        self.front_end = front_end
        self.licence = model.licence
        self.untrained = model.untrained
        self.threshold = model.threshold
        self.network = model.network.folded().to(device)
        self._device = device
        self._precision = choose_precision(precision, device)

    def describe(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Description]:
        """Detect keypoints and describe them."""
        return features.describe("superglue", self.front_end, images, masks)

    def match(self, pairs: Sequence[tuple[Description, Description]]) -> list[Matches]:
        """Match pairs of described images, several at a time on a GPU.

        Raises:
            ValueError: Descriptors of another front end, or points outside their image.
        """
        most = _PAIRS_AT_ONCE.get(self._device.type, 1)
        return with_smaller_blocks(lambda size: self._match(pairs, size), most)

    def _match(self, pairs: Sequence[tuple[Description, Description]], size: int) -> list[Matches]:
        """Match so many pairs at a time."""
        order = sorted(range(len(pairs)), key=lambda number: _tokens(pairs[number]))
        found: dict[int, Matches] = {}
        for start in range(0, len(order), size):
            numbers = order[start : start + size]
            assigned = self._assign([pairs[number] for number in numbers])
            for row, number in enumerate(numbers):
                found[number] = self._matches(pairs[number], assigned, row)
        return [found[number] for number in range(len(pairs))]

    def score_map(
        self, pair: tuple[Description, Description], point0: tuple[float, float]
    ) -> ScoreMap:
        """Give the match probability of each keypoint of image 1 with image 0's nearest one."""
        description0, description1 = pair
        if not len(description0):
            return ScoreMap(
                description1.points, np.zeros(len(description1), np.float32), kind=_KIND
            )
        distances = np.linalg.norm(description0.points - np.asarray(point0, np.float32), axis=1)
        assigned = self._assign([pair])
        row = assigned.log_assignment[0, int(distances.argmin()), : len(description1)]
        return ScoreMap(description1.points, row.exp().cpu().numpy(), kind=_KIND)

    @torch.inference_mode()
    def _assign(self, pairs: Sequence[tuple[Description, Description]]) -> Assigned:
        """Run the network on some pairs."""
        for pair in pairs:
            check_pair("superglue", self.front_end.channels, pair)
        image0, image1 = (self._stack([pair[side] for pair in pairs]) for side in (0, 1))
        with products_in(self._precision, self._device):
            assigned: Assigned = self.network(image0, image1)
        return assigned

    def _stack(self, descriptions: Sequence[Description]) -> PointSet:
        """Pad descriptions to one length, and move them to the network's type and device."""
        counts = [len(description) for description in descriptions]
        real = np.arange(max(counts)) < np.asarray(counts)[:, None]
        sizes = [description.size[::-1] for description in descriptions]
        return PointSet(
            points=self._padded([each.points for each in descriptions]),
            scores=self._padded([each.scores for each in descriptions]),
            descriptors=self._padded([each.descriptors for each in descriptions]),
            sizes=torch.tensor(sizes, dtype=torch.float32, device=self._device),
            mask=None if real.all() else torch.from_numpy(real).to(self._device),
        )

    def _padded(self, arrays: Sequence[np.ndarray]) -> Tensor:
        """Stack (N, ...) arrays of unlike N."""
        tensors = [torch.from_numpy(np.asarray(array, np.float32)) for array in arrays]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(self._device)

    def _matches(
        self, pair: tuple[Description, Description], assigned: Assigned, row: int
    ) -> Matches:
        """Take the matches of one pair of a batch that are likely enough, best first."""
        partners = assigned.partners0[row].cpu().numpy()
        scores = assigned.scores0[row].cpu().numpy()
        rows = np.flatnonzero((partners >= 0) & (scores > self.threshold))
        indices = np.stack([rows, partners[rows]], axis=1)
        return Matches(
            points0=pair[0].points[indices[:, 0]],
            points1=pair[1].points[indices[:, 1]],
            scores=np.clip(scores[rows], 0, 1),
            indices=indices,
            untrained=self.untrained or pair[0].untrained or pair[1].untrained,
        ).sorted()


def build(
    *, device: str = "auto", weights: str | Path | None = "default", **options: Any
) -> SuperGlueMatcher:
    """Make the method.

    Args:
        device: See `matcher.nn.devices.choose_device`.
        weights: "default" for those that ship or were fetched; a file or folder (for an official
            preset the folder with `superpoint_v1.pth` and `superglue_*.pth`); None for a random
            network on the front end's own weights.
        **options: Fields of `Options`.
    """
    chosen, place = Options(**options), choose_device(device)
    name = chosen.front_end or ("xfeat" if chosen.preset == "modern" else "superpoint")
    its_weights = weights if chosen.preset in _OFFICIAL and weights is not None else "default"
    front_end = features.build(
        name, device=device, max_keypoints=chosen.max_keypoints, weights=its_weights
    )
    model = _model(chosen, front_end, weights)
    if chosen.threshold is not None:
        model = replace(model, threshold=chosen.threshold)
    return SuperGlueMatcher(front_end, model, place, chosen.precision)


def _model(options: Options, front_end: features.FrontEnd, weights: str | Path | None) -> Model:
    """Make the network that the preset and the weights ask for."""
    changes: dict[str, Any] = {}
    if options.sinkhorn_steps is not None:
        changes["sinkhorn_steps"] = options.sinkhorn_steps
    if options.adaptive:
        changes |= {"depth_confidence": 0.95, "width_confidence": 0.99}  # LightGlue's
    if weights is None:
        architecture: Architecture = "modern" if options.preset == "modern" else "published"
        return random(Config(architecture, front_end.channels, **changes))
    if options.preset in _OFFICIAL:
        return official(_OFFICIAL[options.preset], weights, changes)
    if options.preset == "published" and weights == "default":
        raise ValueError(
            "preset 'published' has no weights of its own: take official-outdoor or "
            "official-indoor, weights=FOLDER for yours, weights=None for an untrained network"
        )
    return trained(front_end.name, weights, changes)


def _tokens(pair: tuple[Description, Description]) -> int:
    """Count a pair's points: pairs of like counts go together, with little padding."""
    return len(pair[0]) + len(pair[1])
