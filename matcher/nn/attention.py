"""Attend: a mean of values, weighted by how well their keys answer a query.

`attend` is what networks use, on heads that are split already, and `attend_linearly` its cheap
kin. `MultiHeadAttention` is the whole block with everything open: which score compares a query with
a key, which keys a query may see, and whether the answer is the mean, the best or one draw.

Source: Vaswani et al., Attention Is All You Need, NeurIPS 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matcher.nn.attention_scopes import (
    Grid,
    PredictedWindow,
    strided_table,
    window_table,
)
from matcher.nn.attention_scores import SCORES
from matcher.shapes import check_shape

SCOPES = ("full", "linear", "window", "gaussian", "strided")
READ_OUTS = ("mean", "best", "draw")
LINEAR_FLOOR = 1e-6  # of the sum of linear weights, where no key may be seen


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute full scaled-dot attention with the fastest kernel that there is.

    Args:
        query: (B, heads, M, C).
        key: (B, heads, N, C).
        value: (B, heads, N, D).
        mask: (B, N), True at keys that may be seen; or (B, M, N), one row a query; None for all.

    Returns:
        (B, heads, M, D) in the values' type; 0 for a query that may see no key. With a (B, N) mask
        nothing that is hidden matters, even if NaN.
    """
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value)
    seen = mask[:, None]  # (B, 1, N) or (B, 1, M, N)
    if mask.ndim == 2:
        key, value = _cleaned(key, mask), _cleaned(value, mask)
        seen = seen[:, None]  # (B, 1, 1, N)
    blind = ~seen.any(-1, keepdim=True)  # (B, 1, 1 or M, 1)
    message = F.scaled_dot_product_attention(query, key, value, seen | blind)
    return message.masked_fill(blind, 0)


def attend_linearly(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Attend with weights φ(q) · φ(k), φ = elu + 1, at a cost linear in the number of tokens.

    Arguments and result are those of `attend`, with a (B, N) mask.

    Source: Katharopoulos et al., Transformers are RNNs, ICML 2020; Sun et al., LoFTR, CVPR 2021.
    """
    query, key = F.elu(query) + 1, F.elu(key) + 1
    if mask is not None:
        key, value = _cleaned(key, mask), _cleaned(value, mask)
    length = max(key.shape[2], 1)
    summary = key.mT @ (value / length)  # (B, heads, C, D); a mean stays in range of half precision
    total = query @ (key / length).sum(2)[..., None]  # (B, heads, M, 1)
    message: Tensor = query / total.clamp_min(LINEAR_FLOOR / length) @ summary
    return message


def _cleaned(tokens: Tensor, mask: Tensor) -> Tensor:
    """Put zeros in (B, heads, N, C) tokens where the (B, N) mask is False."""
    return tokens.masked_fill(~mask[:, None, :, None], 0)


@dataclass(frozen=True, eq=False)
class Attended:
    """What attention read, and how.

    Attributes:
        message: (B, heads, M, D) what each query read.
        weights: (B, heads, M, N) shares of the keys, of sum 1; 0 for a query that may see none.
        log_probability: (B, heads, M) logarithm of the weight of the key that was drawn, for
            REINFORCE; 0 for a mean, and for the best, which leave nothing to chance.
    """

    message: Tensor
    weights: Tensor
    log_probability: Tensor

    @property
    def entropy(self) -> Tensor:
        """The (B, heads, M) entropy of the weights, in nats."""
        entropy: Tensor = torch.special.entr(self.weights).sum(-1)
        return entropy


def read_out(
    scores: Tensor, value: Tensor, mask: Tensor | None = None, how: str = "mean"
) -> Attended:
    """Turn scores into weights and read the values.

    Args:
        scores: (B, heads, M, N).
        value: (B, heads, N, D).
        mask: Broadcast to the scores, True at keys that may be seen; None for all.
        how: "mean" of the values by weight; the value of the "best" key, the first of equals, which
            gives scores no gradient; or of one "draw" by weight, whose log-probability does.

    Raises:
        ValueError: There is no such way to read.
    """
    if how not in READ_OUTS:
        raise ValueError(f"no read-out {how!r}; there are {', '.join(READ_OUTS)}")
    weights = _softmax(scores, mask)
    none = torch.zeros_like(weights[..., :1].sum(-1))  # (B, heads, M)
    if how == "mean" or not weights.shape[-1]:
        return Attended(weights @ value, weights, none)
    if how == "best":
        chosen = weights.argmax(-1, keepdim=True)  # (B, heads, M, 1)
    else:
        blind = weights.sum(-1, keepdim=True) == 0
        chances = torch.where(blind, 1.0, weights.detach())
        chosen = torch.multinomial(chances.flatten(0, -2), 1).reshape(*weights.shape[:-1], 1)
    there = weights.gather(-1, chosen) > 0  # (B, heads, M, 1): False for a query that sees no key
    message = torch.take_along_dim(value, chosen, 2).masked_fill(~there, 0)
    if how == "best":
        return Attended(message, weights, none)
    chance = weights.gather(-1, chosen).masked_fill(~there, 1)
    return Attended(message, weights, chance.log()[..., 0])


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Make weights that sum to one over the keys that may be seen; float32 inside."""
    if mask is None:
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores)
    lowest = torch.finfo(scores.dtype).min
    weights = _softmax(scores.masked_fill(~mask, lowest), None)
    return weights.masked_fill(~mask, 0)


@dataclass(frozen=True)
class Config:
    """What a multi-head attention is made of.

    Attributes:
        channels: Channels of the tokens.
        heads: How many attentions work side by side, on `channels` / `heads` channels each.
        score: How a query is compared with a key: a name in `attention_scores.SCORES`.
        scope: "full"; "linear" in the number of tokens, which has a score of its own; "window", a
            square round the query; "gaussian", a soft window where the query predicts it; or
            "strided", the query's block and one token of every other.
        span: Radius of the window, deviation of the Gaussian, or the stride, in tokens.
        axes: 1 for sequences, 2 for maps; what a predicted place has.
        read_out: "mean", "best" or "draw".
    """

    channels: int = 256
    heads: int = 4
    score: str = "scaled-dot"
    scope: Literal["full", "linear", "window", "gaussian", "strided"] = "full"
    span: int = 4
    axes: int = 1
    read_out: Literal["mean", "best", "draw"] = "mean"

    def __post_init__(self) -> None:
        if self.channels % self.heads:
            raise ValueError(
                f"channels ({self.channels}) must be a multiple of heads ({self.heads})"
            )
        for name, value, known in (
            ("score", self.score, tuple(SCORES)),
            ("scope", self.scope, SCOPES),
            ("read_out", self.read_out, READ_OUTS),
        ):
            if value not in known:
                raise ValueError(f"no {name} {value!r}; there are {', '.join(known)}")
        if self.span < 1:
            raise ValueError(f"span must be at least 1, not {self.span}")
        if self.scope == "linear" and (self.score, self.read_out) != ("scaled-dot", "mean"):
            raise ValueError("linear attention has its own score and reads the mean")


class MultiHeadAttention(nn.Module):
    """Let tokens read from a source's tokens, in several heads with scores of their own."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        channels, heads = config.channels, config.heads
        self.query, self.key, self.value, self.merge = (
            nn.Linear(channels, channels) for _ in range(4)
        )
        self.score = SCORES[config.score](channels // heads, heads)
        self.window = (
            PredictedWindow(channels // heads, heads, config.span, config.axes)
            if config.scope == "gaussian"
            else None
        )

    def forward(
        self, tokens: Tensor, source: Tensor, mask: Tensor | None = None, grid: Grid | None = None
    ) -> Tensor:
        """Compute the (B, M, C) messages.

        Args:
            tokens: (B, M, C), those that ask.
            source: (B, N, C), those that answer; the same tensor for self-attention.
            mask: (B, N), True at tokens that may be seen; what the others hold does not matter.
            grid: How the source lies, (N,) or (H, W); None for a sequence.

        Raises:
            ValueError: Shapes do not fit, or a neighbourhood is asked for across two images.
        """
        query, key, value = self._split(tokens, source, mask)
        if self.config.scope == "linear":
            message = attend_linearly(query, key, value, mask)
        elif (self.config.score, self.config.scope, self.config.read_out) == FUSED:
            message = attend(query, key, value, mask)
        else:
            message = self._attend(query, key, value, mask, grid).message
        return self._merge(message)

    def explain(
        self, tokens: Tensor, source: Tensor, mask: Tensor | None = None, grid: Grid | None = None
    ) -> Attended:
        """Compute what `forward` reads before the heads are merged, with its weights.

        Under a neighbourhood the weights are (B, heads, M, K), in the order of its table.
        """
        query, key, value = self._split(tokens, source, mask)
        if self.config.scope != "linear":
            return self._attend(query, key, value, mask, grid)
        products = (F.elu(query) + 1) @ (F.elu(key) + 1).mT  # (B, heads, M, N)
        return read_out(products.log(), value, _keys(mask))

    def _split(
        self, tokens: Tensor, source: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Check, clean what is hidden, project, and split heads: (B, heads, M or N, C/heads)."""
        known = check_shape("tokens", tokens, "B M C", {"C": self.config.channels})
        known = check_shape("source", source, "B N C", known)
        if mask is not None:
            check_shape("mask", mask, "B N", known)
            source = source.masked_fill(~mask[..., None], 0)
        projected = self.query(tokens), self.key(source), self.value(source)
        query, key, value = (
            torch.unflatten(each, -1, (self.config.heads, -1)).transpose(1, 2) for each in projected
        )
        return query, key, value

    def _merge(self, message: Tensor) -> Tensor:
        merged: Tensor = self.merge(message.transpose(1, 2).flatten(2))  # (B, M, C)
        return merged

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, grid: Grid | None
    ) -> Attended:
        """Score, window, read."""
        grid = grid or (key.shape[2],)
        if math.prod(grid) != key.shape[2]:
            raise ValueError(f"grid {grid} does not hold {key.shape[2]} tokens")
        if self.config.scope in ("window", "strided"):
            return self._attend_near(query, key, value, mask, grid)
        scores = self.score(query, key)
        if self.window is not None:
            scores = scores + self.window(query, grid)
        return read_out(scores, value, _keys(mask), self.config.read_out)

    def _attend_near(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, grid: Grid
    ) -> Attended:
        """Gather each query's K neighbours: as many small attentions of one query as queries."""
        B, _, M, _ = query.shape
        if key.shape[2] != M:
            raise ValueError(f"a {self.config.scope} needs one grid, not {M} and {key.shape[2]}")
        span = self.config.span
        table = (
            window_table(grid, span) if self.config.scope == "window" else strided_table(M, span)
        ).to(query.device)  # (M, K)
        near = table.clamp_min(0)
        seen = (table >= 0).expand(B, -1, -1) if mask is None else mask[:, near] & (table >= 0)
        asked, keys, values = (
            each.transpose(1, 2).flatten(0, 1)  # (B*M, heads, 1 or K, C/heads)
            for each in (query[:, :, :, None], key[:, :, near], value[:, :, near])
        )
        found = read_out(
            self.score(asked, keys), values, seen.flatten(0, 1)[:, None, None], self.config.read_out
        )
        message, weights, chance = (
            torch.unflatten(each, 0, (B, M)).transpose(1, 2)  # (B, heads, M, 1, ...)
            for each in (found.message, found.weights, found.log_probability)
        )
        return Attended(message[..., 0, :], weights[..., 0, :], chance[..., 0])


FUSED = ("scaled-dot", "full", "mean")  # what `attend` does


def _keys(mask: Tensor | None) -> Tensor | None:
    """(B, N) to (B, 1, 1, N)."""
    return None if mask is None else mask[:, None, None]


class PooledAttention(nn.Module):
    """Attend between maps at a fraction of their resolution; the message goes back to full size.

    Queries are strided depthwise convolutions, keys and values the maxima of squares: the cost
    falls with the fourth power of the stride.

    Source: Wang et al., Efficient LoFTR, CVPR 2024, section 3.2.
    """

    def __init__(self, config: Config, stride: int = 4) -> None:
        super().__init__()
        self.stride = stride
        channels = config.channels
        self.pool = nn.Conv2d(channels, channels, stride, stride, groups=channels, bias=False)
        self.attention = MultiHeadAttention(config)

    def forward(self, map0: Tensor, map1: Tensor, mask1: Tensor | None = None) -> Tensor:
        """Read from a (B, C, h, w) map for each cell of a (B, C, H, W) one: (B, C, H, W).

        Sizes need not be multiples of the stride. `mask1` is (B, h, w), True where `map1` may be
        seen.
        """
        height, width = map0.shape[2:]
        asking = self.pool(_padded(map0, self.stride, 0.0))
        if mask1 is not None:
            map1 = map1.masked_fill(~mask1[:, None], -torch.inf)
        answering = F.max_pool2d(_padded(map1, self.stride, -torch.inf), self.stride)
        seen = answering.isfinite().all(1)  # (B, h, w): some cell of the square may be seen
        answering = answering.masked_fill(~seen[:, None], 0)
        message = self.attention(
            asking.flatten(2).mT, answering.flatten(2).mT, seen.flatten(1), seen.shape[1:]
        )
        coarse = torch.unflatten(message.mT, 2, asking.shape[2:])  # (B, C, H/stride, W/stride)
        full = F.interpolate(coarse, scale_factor=self.stride, mode="bilinear")
        return full[:, :, :height, :width]


def _padded(features: Tensor, stride: int, value: float) -> Tensor:
    """Pad on the right and below to a multiple of the stride."""
    height, width = features.shape[2:]
    return F.pad(features, (0, -width % stride, 0, -height % stride), value=value)
