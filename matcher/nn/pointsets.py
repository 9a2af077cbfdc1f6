"""Keypoints of many pairs at once: padded to one length, masked, picked and put back.

Pairs of a batch have unlike numbers of points. Padding is masked in every attention and sum, and
whatever stood there is set to zero at the door, so that a pair comes out as it would alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from matcher.nn.positions import Rotation
from matcher.shapes import check_shape


@dataclass(frozen=True)
class PointSet:
    """Keypoints of one image of each pair.

    Attributes:
        points: (B, N, 2) float32 pixels (x, y).
        scores: (B, N) how good a keypoint.
        descriptors: (B, N, D).
        sizes: (B, 2) width and height of each image in pixels: the layers see positions relative to
            it.
        mask: (B, N), True at real points; None where all are. What stands at the others does not
            matter.
    """

    points: Tensor
    scores: Tensor
    descriptors: Tensor
    sizes: Tensor
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        known = check_shape("points", self.points, "B N 2")
        check_shape("scores", self.scores, "B N", known)
        check_shape("descriptors", self.descriptors, "B N D", known)
        check_shape("sizes", self.sizes, "B 2", known)
        if self.mask is not None:
            check_shape("mask", self.mask, "B N", known)

    def cleaned(self) -> PointSet:
        """Put zeros at the padding: nothing that stood there, NaN included, reaches a point."""
        if self.mask is None:
            return self
        padding = ~self.mask
        return replace(
            self,
            points=self.points.masked_fill(padding[..., None], 0),
            scores=self.scores.masked_fill(padding, 0),
            descriptors=self.descriptors.masked_fill(padding[..., None], 0),
        )


@dataclass(frozen=True)
class Side:
    """The tokens of one image of every pair that is still at work.

    Attributes:
        tokens: (B, N, C).
        rows: (B, N) int64 which of the input's points each token is.
        mask: (B, N), True at real tokens; None where all are.
        rotation: Their positions; None in a network whose tokens hold them.
    """

    tokens: Tensor
    rows: Tensor
    mask: Tensor | None
    rotation: Rotation | None = None

    @classmethod
    def begin(cls, image: PointSet) -> Side:
        """Begin with every point, its descriptor for token."""
        pairs, count = image.scores.shape
        rows = torch.arange(count, device=image.points.device).expand(pairs, -1)
        return cls(image.descriptors, rows, image.mask)

    def real(self) -> Tensor:
        """Tell the real tokens from padding: (B, N) bool."""
        return torch.ones_like(self.rows, dtype=torch.bool) if self.mask is None else self.mask

    def pick(self, pairs: Tensor) -> Side:
        """Keep some pairs: (B,) bool."""
        return Side(
            tokens=self.tokens[pairs],
            rows=self.rows[pairs],
            mask=None if self.mask is None else self.mask[pairs],
            rotation=None if self.rotation is None else self.rotation[pairs],
        )

    def keep(self, wanted: Tensor) -> Side:
        """Keep some tokens, (B, N) bool, in their order and without gaps."""
        wanted = wanted & self.real()
        counts = wanted.sum(1)
        order = torch.argsort(~wanted, dim=1, stable=True)[:, : int(counts.max())]  # (B, kept)
        left = torch.arange(order.shape[1], device=order.device) < counts[:, None]
        places = order[:, None, :, None, None]  # (B, 1, kept, 1, 1)
        return Side(
            tokens=torch.take_along_dim(self.tokens, order[..., None], 1),
            rows=torch.take_along_dim(self.rows, order, 1),
            mask=None if bool(left.all()) else left,
            rotation=None
            if self.rotation is None
            else torch.take_along_dim(self.rotation, places, 2),
        )


@dataclass(frozen=True)
class State:
    """Both images of the pairs that are still at work.

    Attributes:
        sides: Tokens of image 0 and of image 1.
        pairs: (B,) int64 which of the input's pairs.
        pruned: True once a point was dropped.
    """

    sides: tuple[Side, Side]
    pairs: Tensor
    pruned: bool = False

    @classmethod
    def begin(cls, side0: Side, side1: Side) -> State:
        """Take every pair in which both images have a point."""
        pairs = torch.arange(len(side0.rows), device=side0.rows.device)
        return cls((side0, side1), pairs).pick(side0.real().any(1) & side1.real().any(1))

    def pick(self, pairs: Tensor) -> State:
        """Keep some pairs: (B,) bool."""
        if bool(pairs.all()):
            return self
        sides = self.sides[0].pick(pairs), self.sides[1].pick(pairs)
        return replace(self, sides=sides, pairs=self.pairs[pairs])

    def keep(self, wanted: tuple[Tensor, Tensor]) -> State:
        """Keep some tokens of both images: (B, M) and (B, N) bool."""
        sides = self.sides[0].keep(wanted[0]), self.sides[1].keep(wanted[1])
        return replace(self, sides=sides, pruned=True)

    def updated(self, tokens0: Tensor, tokens1: Tensor) -> State:
        """Exchange the tokens."""
        side0, side1 = self.sides
        return replace(self, sides=(replace(side0, tokens=tokens0), replace(side1, tokens=tokens1)))


def nothing_assigned(image0: PointSet, image1: PointSet) -> Tensor:
    """Send every real point to the dustbin: (B, M + 1, N + 1) log of the transport."""
    (pairs, count0), count1 = image0.scores.shape, image1.scores.shape[1]
    shape = (pairs, count0 + 1, count1 + 1)
    log_assignment = torch.full(shape, -math.inf, device=image0.points.device)
    log_assignment[:, :-1, -1] = 0
    log_assignment[:, -1, :-1] = 0
    if image0.mask is not None:
        log_assignment[:, :-1, -1].masked_fill_(~image0.mask, -math.inf)
    if image1.mask is not None:
        log_assignment[:, -1, :-1].masked_fill_(~image1.mask, -math.inf)
    return log_assignment


def put_back(whole: Tensor, transport: Tensor, state: State) -> Tensor:
    """Write the transport of the pairs and tokens that are left into that of the input.

    Args:
        whole: (P, M + 1, N + 1) of every pair and point.
        transport: (B, m + 1, n + 1), dustbins last.
        state: Which pairs and tokens those are.
    """
    if len(transport) == len(whole) and not state.pruned:
        return transport
    rows0, rows1 = (
        F.pad(side.rows.masked_fill(~side.real(), end + 1), (0, 1), value=end)
        for side, end in zip(state.sides, (whole.shape[1] - 1, whole.shape[2] - 1), strict=True)
    )
    larger = F.pad(whole, (0, 1, 0, 1))  # padding goes to one more row and column, cut off below
    larger[state.pairs[:, None, None], rows0[:, :, None], rows1[:, None, :]] = transport
    return larger[:, :-1, :-1]
