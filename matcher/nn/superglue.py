"""Match keypoints of two images: self- and cross-attention, then optimal transport.

One `Config` covers two networks. The **published** one adds an encoding of (x, y, score) to the
descriptors and ends in one projection. The **modern** one takes LightGlue's layers
(`matcher.nn.transformer`), may stop early for a pair, may drop points that have no partner, and
gives its head's assignment, dustbins included, to the same optimal transport.

Source: Sarlin, DeTone, Malisiewicz, Rabinovich, "SuperGlue: Learning Feature Matching with Graph
Neural Networks", CVPR 2020; written from the paper and the layout of the files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from matcher.nn import transformer
from matcher.nn.assignment import mutual_best, sinkhorn
from matcher.nn.perceptron import fold
from matcher.nn.pointsets import PointSet, State, nothing_assigned, put_back
from matcher.nn.sinkhorn import LOWEST
from matcher.nn.superglue_modern import Modern
from matcher.nn.superglue_published import Published, published_names
from matcher.shapes import check_shape

Architecture: TypeAlias = Literal["published", "modern"]


@dataclass(frozen=True)
class Config:
    """The defaults are the published network's.

    Attributes:
        architecture: "published", or "modern" for LightGlue's layers.
        input_channels: Channels of the descriptors; the published network wants `channels` of them.
        channels: Channels of a token.
        heads: Heads of every attention.
        layers: Rounds of one self- and one cross-attention.
        encoder: Hidden channels of the published position encoder.
        sinkhorn_steps: Iterations of the transport.
        depth_confidence: Share of a pair's points that must be sure for it to stop early; None runs
            every layer.
        width_confidence: A sure point is dropped once it is that likely to have no partner; None
            keeps all.
    """

    architecture: Architecture = "published"
    input_channels: int = 256
    channels: int = 256
    heads: int = 4
    layers: int = 9
    encoder: tuple[int, ...] = (32, 64, 128, 256)
    sinkhorn_steps: int = 100
    depth_confidence: float | None = None
    width_confidence: float | None = None

    def __post_init__(self) -> None:
        if self.architecture not in ("published", "modern"):
            raise ValueError(f"no architecture {self.architecture!r}; there are published, modern")
        transformer.check_size("layers", self.layers, transformer.MOST_LAYERS)
        for width in (self.channels, self.input_channels, *self.encoder):
            transformer.check_size("channels", width, transformer.MOST_CHANNELS)
        transformer.check_size("heads", self.heads, self.channels)
        if self.channels % self.heads:
            raise ValueError(
                f"channels ({self.channels}) must be a multiple of heads ({self.heads})"
            )
        if self.architecture == "published":
            self._check_published()

    def _check_published(self) -> None:
        """Refuse what the published network cannot do."""
        if self.input_channels != self.channels:
            raise ValueError(
                f"the published network adds positions to descriptors of {self.channels} channels, "
                f"not {self.input_channels}; architecture='modern' projects them first"
            )
        if self.depth_confidence is not None or self.width_confidence is not None:
            raise ValueError("depth_confidence and width_confidence need architecture='modern'")


@dataclass(frozen=True)
class Assigned:
    """What the network decided.

    Attributes:
        partners0: (B, M) int64 row of each point's partner in image 1; -1 for none.
        partners1: (B, N) row in image 0; `partners1[partners0[i]] == i` for every match and nothing
            else.
        scores0: (B, M) float32 probability of the match; 0 where there is none.
        scores1: (B, N) likewise.
        log_assignment: (B, M + 1, N + 1) float32 log of the transport, dustbins last.
        layers: (B,) int64 how many layers each pair took.
    """

    partners0: Tensor
    partners1: Tensor
    scores0: Tensor
    scores1: Tensor
    log_assignment: Tensor
    layers: Tensor


class SuperGlue(nn.Module):
    """Assign the keypoints of two images to each other, many pairs at once."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.context = _context(config)
        # The published start is 1; the modern scores are relative to their own dustbins.
        self.dustbin = nn.Parameter(torch.tensor(float(config.architecture == "published")))

    def forward(self, image0: PointSet, image1: PointSet) -> Assigned:
        """Match every pair as if it were alone.

        Args:
            image0: (B, M) points with descriptors of `input_channels`; M, or the count of any pair,
                may be 0.
            image1: (B, N) points.

        Raises:
            ValueError: The two have different numbers of pairs, or the descriptors another number
                of channels.
        """
        known = {"B": len(image0.points), "D": self.config.input_channels}
        check_shape("image0.descriptors", image0.descriptors, "B M D", known)
        check_shape("image1.descriptors", image1.descriptors, "B N D", known)
        log_assignment = nothing_assigned(image0, image1)
        layers = torch.zeros_like(log_assignment[:, 0, 0], dtype=torch.int64)
        for state, depth in self._run(image0.cleaned(), image1.cleaned()):
            log_assignment = put_back(log_assignment, self.transport(state, depth), state)
            layers = layers.index_fill(0, state.pairs, depth)
        return _decide(log_assignment, layers)

    def transport(self, state: State, depth: int) -> Tensor:
        """Assign the tokens as they are after so many layers: (B, m + 1, n + 1) log of the transport.

        Few iterations end nearer to the sums of what they scale last. The published network scales
        columns last; the modern one takes the mean of both ways, so that the order of the images
        does not matter.
        """
        scores, steps = self.context.scores(state, depth), self.config.sinkhorn_steps
        mask0, mask1 = (side.mask for side in state.sides)
        columns_last = sinkhorn(scores, self.dustbin, steps, mask0, mask1).log_assignment
        if self.config.architecture == "published":
            return columns_last
        rows_last = sinkhorn(scores.mT, self.dustbin, steps, mask1, mask0).log_assignment
        rows_last = (
            rows_last.mT.contiguous()
        )  # in one order of memory, or the sum takes ten times as long
        both = torch.logaddexp(columns_last.clamp_min(LOWEST), rows_last.clamp_min(LOWEST))
        return (both - math.log(2)).masked_fill(columns_last == -math.inf, -math.inf)

    def folded(self) -> SuperGlue:
        """Fold every batch norm into the product before it, in place, for inference only."""
        for module in list(self.modules()):
            if isinstance(module, nn.Sequential):
                fold(module)
        return self.eval()

    def _run(self, image0: PointSet, image1: PointSet) -> Iterator[tuple[State, int]]:
        """Yield pairs as they are done, with the number of layers that they took."""
        state = self.context.begin(image0, image1)
        for depth in range(1, self.config.layers + 1):
            if not len(state.pairs):
                return
            state = self.context.step(state, depth)
            if depth == self.config.layers:
                yield state, depth
                return
            settled = self.context.settled(state, depth)
            if settled is not None and bool(settled.any()):
                yield state.pick(settled), depth
                state = state.pick(~settled)
            state = self.context.pruned(state, depth)


def published_state(state: Mapping[str, Tensor], config: Config) -> dict[str, Tensor]:
    """Give a published file the names of `SuperGlue`.

    Args:
        state: SuperGlue's (`kenc`, `gnn`, `final_proj`, `bin_score`) for the published
            architecture, LightGlue's for the modern one, whose dustbin and temperature are then 0
            and 1.
        config: The network to fill.
    """
    if config.architecture == "published":
        return published_names(state, config.channels, config.heads)
    layers = transformer.first_layers(state, config.layers)
    start = {"dustbin": torch.tensor(0.0), "context.temperature": torch.tensor(1.0)}
    return start | {f"context.{name}": value for name, value in layers.items()}


def _decide(log_assignment: Tensor, layers: Tensor) -> Assigned:
    """Match the points that are each other's best, however unlikely."""
    found = mutual_best(log_assignment[:, :-1, :-1])
    none0 = torch.full_like(log_assignment[:, :-1, 0], -1, dtype=torch.int64)
    none1 = torch.full_like(log_assignment[:, 0, :-1], -1, dtype=torch.int64)
    place0, place1 = (found.item, found.index0), (found.item, found.index1)
    return Assigned(
        partners0=none0.index_put(place0, found.index1),
        partners1=none1.index_put(place1, found.index0),
        scores0=torch.zeros_like(none0, dtype=torch.float32).index_put(place0, found.scores),
        scores1=torch.zeros_like(none1, dtype=torch.float32).index_put(place1, found.scores),
        log_assignment=log_assignment,
        layers=layers,
    )


def _context(config: Config) -> Published | Modern:
    """Make the layers."""
    if config.architecture == "published":
        return Published(config.channels, config.heads, config.layers, config.encoder)
    sizes = (config.input_channels, config.channels, config.heads, config.layers)
    return Modern(transformer.Config(*sizes), config.depth_confidence, config.width_confidence)
