"""LightGlue's layers, with a decision for each pair after each of them, in front of a transport.

Source: Lindenberger, Sarlin, Pollefeys, "LightGlue: Local Feature Matching at Light Speed", ICCV
2023, for layers, depth and width; the scores that lead to the transport are ours.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from matcher.nn.assignment import dual_softmax
from matcher.nn.pointsets import PointSet, Side, State
from matcher.nn.positions import normalise_points
from matcher.nn.sinkhorn import LOWEST, NEGLIGIBLE_LOG
from matcher.nn.transformer import Config, Context


class Modern(Context):
    """LightGlue's layers with a decision after each: stop for a pair, drop points, or go on."""

    def __init__(
        self, config: Config, depth_confidence: float | None, width_confidence: float | None
    ) -> None:
        super().__init__(config)
        self.depth_confidence = depth_confidence
        self.width_confidence = width_confidence
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def begin(self, image0: PointSet, image1: PointSet) -> State:
        """Project the descriptors and turn positions into rotations."""
        side0, side1 = (
            replace(
                Side.begin(image),
                tokens=self.input_proj(image.descriptors),
                rotation=self.posenc(normalise_points(image.points, image.sizes, 0.5)),
            )
            for image in (image0, image1)
        )
        return State.begin(side0, side1)

    def step(self, state: State, depth: int) -> State:
        """Apply one layer."""
        side0, side1 = state.sides
        rotations = side0.rotation, side1.rotation
        layer = self.transformers[depth - 1]
        tokens = layer((side0.tokens, side1.tokens), rotations, (side0.mask, side1.mask))
        return state.updated(*tokens)

    def settled(self, state: State, depth: int) -> Tensor | None:
        """Tell of each pair (B,) whether enough of its own points are sure; None if nobody asks."""
        if self.depth_confidence is None:
            return None
        sure0, sure1 = (self._sure(side, depth).sum(1) for side in state.sides)
        count0, count1 = (side.real().sum(1) for side in state.sides)
        return sure0 + sure1 > self.depth_confidence * (count0 + count1)

    def pruned(self, state: State, depth: int) -> State:
        """Drop the points that are sure and have no partner, of each pair by itself."""
        if self.width_confidence is None or not len(state.pairs):
            return state
        wanted0, wanted1 = (self._wanted(side, depth) for side in state.sides)
        return state.keep((wanted0, wanted1))

    def scores(self, state: State, depth: int) -> Tensor:
        """Compare all tokens: (B, M, N) float32 log-odds of a match against none for both.

        LightGlue's head gives each pair p = softmax over the row x softmax over the column x chance
        that both points have a partner, and each point the chance q that it has none. Those are a
        transport plan but for its sums, and what completes it in the corner is the number of
        matches, the sum of p. A plan is the same to Sinkhorn after a factor for each row and each
        column, so p / (q0 q1) times that number, with dustbins of one, says it all.
        """
        (side0, side1), head = state.sides, self.head(depth)
        odds0, odds1 = head.matchable(side0.tokens), head.matchable(side1.tokens)
        similarity = head.similarity(side0.tokens, side1.tokens)
        plan = dual_softmax(similarity, side0.mask, side1.mask)
        likely = plan.clamp_min(NEGLIGIBLE_LOG).exp()
        matches = torch.einsum("bm,bmn,bn->b", odds0.sigmoid(), likely, odds1.sigmoid())
        gates = odds0[:, :, None] + odds1[:, None, :]
        plan = plan.clamp_min(LOWEST)  # padding: 0 times -inf is no number
        return self.temperature * plan + gates + matches.log()[:, None, None]

    def _sure(self, side: Side, depth: int) -> Tensor:
        """Tell of each token (B, N) whether later layers would leave its partner."""
        least = 0.8 + 0.1 * math.exp(-4.0 * (depth - 1) / self.config.layers)  # as in LightGlue
        sure: Tensor = self.token_confidence[depth - 1](side.tokens) >= least
        return sure & side.real()

    def _wanted(self, side: Side, depth: int) -> Tensor:
        """Tell of each token (B, N) whether it is unsure, or likely to have a partner."""
        odds = self.head(depth).matchable(side.tokens).masked_fill(~side.real(), -math.inf)
        likeliest = odds.argmax(1, keepdim=True)
        likely = odds.sigmoid() > 1 - (self.width_confidence or 0.0)
        return (likely | ~self._sure(side, depth)).scatter(1, likeliest, True)
