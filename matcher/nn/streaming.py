"""Assign the tokens of two images to each other without ever holding their whole score matrix.

Dual softmax and Sinkhorn both end in log scores that are the similarity with a number added to each
row and each column: log score(i, j) = gain * s(i, j) + bias0(i) + bias1(j). The biases need sums
over rows and columns, which are gathered block by block; the mutual maxima need one pass more. A
block is a strip of rows that is computed, used and overwritten, so memory grows with the number of
tokens and not with its square, and what comes out equals the dense form (tests/test_streaming.py).

Padding and masks need no code here: a token that must not count is left out by the caller, which is
exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from matcher.shapes import check_shape

BUDGET = 2**23  # bytes for blocks: strips stay in a core's cache and the products are still large
_STRIPS = 2  # blocks alive at once: the scores and one temporary of the same size


@dataclass(frozen=True, eq=False)
class CoarseMatches:
    """Tokens that choose each other, rows rising.

    Attributes:
        rows: (K,) int64 tokens of image 0, each at most once.
        columns: (K,) int64 tokens of image 1, each at most once.
        scores: (K,) float32 probabilities in [0, 1].
    """

    rows: Tensor
    columns: Tensor
    scores: Tensor


class Similarity:
    """The scalar products of two sets of tokens, made strip by strip, always in float32."""

    def __init__(
        self, tokens0: Tensor, tokens1: Tensor, scale: float, budget: int = BUDGET
    ) -> None:
        """Keep the tokens and settle the height of a strip.

        Args:
            tokens0: (M, C).
            tokens1: (N, C).
            scale: What the products are multiplied by.
            budget: Bytes for blocks; at least one row is always computed at a time.

        Raises:
            ValueError: The shapes disagree, or the budget is not positive.
        """
        sizes = check_shape("tokens0", tokens0, "M C")
        check_shape("tokens1", tokens1, "N C", {"C": sizes["C"]})
        if budget <= 0:
            raise ValueError(f"budget must be a positive number of bytes, not {budget}")
        self.tokens0 = tokens0.float() * scale
        self.tokens1 = tokens1.float()
        self.height = min(
            max(1, budget // (_STRIPS * 4 * max(1, len(tokens1)))), max(1, len(tokens0))
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Number of tokens of either image."""
        return len(self.tokens0), len(self.tokens1)

    def strips(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield row ranges and their (height, N) products; a strip is overwritten by the next."""
        rows, columns = self.shape
        if rows == 0 or columns == 0:
            return
        memory = self.tokens0.new_empty(self.height, columns)
        for start in range(0, rows, self.height):
            part = self.tokens0[start : start + self.height]
            strip = memory[: len(part)]
            yield slice(start, start + len(part)), torch.mm(part, self.tokens1.T, out=strip)


@dataclass(frozen=True, eq=False)
class Scores:
    """An assignment: log score(i, j) = gain * similarity(i, j) + bias0(i) + bias1(j).

    Attributes:
        similarity: Of M and N tokens.
        gain: 2 for dual softmax, 1 for Sinkhorn.
        bias0: (M,) added to the rows.
        bias1: (N,) added to the columns.
        floor0: (M,) log score that a token of image 0 must reach: that of its dustbin; None for no
            such rule.
        floor1: (N,) likewise for image 1.
    """

    similarity: Similarity
    gain: float
    bias0: Tensor
    bias1: Tensor
    floor0: Tensor | None = None
    floor1: Tensor | None = None

    def powered(self, power: float) -> Scores:
        """Raise every score to a power above 0: which pairs are best stays the same."""
        floors = (None if each is None else power * each for each in (self.floor0, self.floor1))
        return Scores(
            self.similarity, power * self.gain, power * self.bias0, power * self.bias1, *floors
        )

    def strips(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield row ranges and their (height, N) log scores; a strip is overwritten by the next."""
        for rows, strip in self.similarity.strips():
            yield rows, strip.mul_(self.gain).add_(self.bias1).add_(self.bias0[rows, None])

    def rows(self, index: Tensor) -> Tensor:
        """Compute the (K, N) log scores of chosen tokens of image 0."""
        products = self.similarity.tokens0[index] @ self.similarity.tokens1.T
        return products.mul_(self.gain).add_(self.bias1).add_(self.bias0[index, None])

    def mutual_best(self, threshold: float) -> CoarseMatches:
        """Find the pairs that are the best of their row and of their column.

        Args:
            threshold: Least probability; the score must be above it.

        Returns:
            The pairs. Of equal scores the lower token wins, in rows and in columns.
        """
        least = math.log(threshold) if threshold > 0 else -math.inf
        best0 = torch.full_like(self.bias0, -math.inf)
        best1 = torch.full_like(self.bias1, -math.inf)
        # Filled in place: small tensors that outlive a strip would keep its memory from being reused.
        choice0 = torch.zeros_like(best0, dtype=torch.int64)
        for rows, strip in self.strips():
            best0[rows] = strip.amax(1)
            torch.maximum(best1, strip.amax(0), out=best1)
            enough = (best0[rows] > least).nonzero().flatten()
            choice0[rows][enough] = strip[enough].argmax(1)
        row = (best0 > least).nonzero().flatten()
        column, score = choice0[row], best0[row]
        keep = score == best1[column]
        if self.floor0 is not None:
            keep &= score >= self.floor0[row]
        if self.floor1 is not None:
            keep &= score >= self.floor1[column]
        return _first_of_each_column(row[keep], column[keep], score[keep].exp().clamp_(max=1.0))


def _first_of_each_column(rows: Tensor, columns: Tensor, scores: Tensor) -> CoarseMatches:
    """Drop all but the lowest row where several share a column with exactly equal scores."""
    order = columns.argsort(stable=True)
    ordered = columns[order]
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    keep = order[first].sort().values
    return CoarseMatches(rows[keep], columns[keep], scores[keep])


def dual_softmax(
    similarity: Similarity, logits0: Tensor | None = None, logits1: Tensor | None = None
) -> Scores:
    """Score by the product of the softmax over rows and the softmax over columns.

    Args:
        similarity: Of M and N tokens.
        logits0: (M,) logits of the probability that a token has a match at all, which multiplies
            its scores (LightGlue's matchability); None for certainty.
        logits1: (N,) likewise.

    Source: Sun et al., LoFTR, CVPR 2021, section 3.3; Lindenberger et al., LightGlue, ICCV 2023,
    section 3.2.
    """
    sum0, sum1 = _log_sums(similarity)
    bias0 = -sum0 if logits0 is None else F.logsigmoid(logits0.float()) - sum0
    bias1 = -sum1 if logits1 is None else F.logsigmoid(logits1.float()) - sum1
    return Scores(similarity, 2.0, bias0, bias1)


def _log_sums(similarity: Similarity) -> tuple[Tensor, Tensor]:
    """Compute the (M,) and (N,) log-sum-exps of the rows and the columns in one pass."""
    count0, count1 = similarity.shape
    sum0 = similarity.tokens0.new_full((count0,), -math.inf)
    sum1 = similarity.tokens0.new_full((count1,), -math.inf)
    for rows, strip in similarity.strips():
        top = strip.amax(1, keepdim=True)
        top1 = strip.amax(0)
        work = torch.sub(strip, top).exp_()
        sum0[rows] = work.sum(1).log_() + top[:, 0]
        part1 = strip.sub_(top1).exp_().sum(0).log_() + top1
        torch.logaddexp(sum1, part1, out=sum1)
    return sum0, sum1


def sinkhorn(similarity: Similarity, dustbin: Tensor, steps: int) -> Scores:
    """Score by optimal transport with a dustbin; real rows and columns sum to one.

    Every step is one pass: a strip gives the new potentials of its rows, and with those its part of
    the columns' sums.

    Args:
        similarity: Of M and N tokens.
        dustbin: () score of staying unmatched.
        steps: Sinkhorn iterations.

    Returns:
        Scores whose floors are those of the dustbins.

    Source: Sarlin et al., SuperGlue, CVPR 2020, section 3.2.
    """
    count0, count1 = similarity.shape
    alpha = dustbin.detach().float()
    total = math.log(max(1, count0 + count1))
    mass0 = similarity.tokens0.new_full(
        (count0 + 1,), -total
    )  # log of what a row holds, its dustbin last
    mass1 = similarity.tokens0.new_full((count1 + 1,), -total)
    mass0[-1] += math.log(max(1, count1))
    mass1[-1] += math.log(max(1, count0))
    u, v = torch.zeros_like(mass0), torch.zeros_like(mass1)
    for _ in range(steps):
        u, v = _transport_step(similarity, alpha, (mass0, mass1), v)
    return Scores(
        similarity,
        1.0,
        u[:-1] + total,
        v[:-1],
        floor0=u[:-1] + total + v[-1] + alpha,
        floor1=v[:-1] + total + u[-1] + alpha,
    )


def _transport_step(
    similarity: Similarity, alpha: Tensor, mass: tuple[Tensor, Tensor], v: Tensor
) -> tuple[Tensor, Tensor]:
    """Update the (M + 1,) row from the (N + 1,) column potentials, then those in turn."""
    u = torch.empty_like(mass[0])
    u[-1] = mass[0][-1] - alpha - v.logsumexp(0)
    sums = torch.full_like(v[:-1], -math.inf)
    for rows, strip in similarity.strips():
        in_row = torch.logaddexp((strip + v[:-1]).logsumexp(1), alpha + v[-1])
        u[rows] = mass[0][rows] - in_row
        torch.logaddexp(sums, strip.add_(u[rows, None]).logsumexp(0), out=sums)
    new = torch.empty_like(v)
    new[:-1] = mass[1][:-1] - torch.logaddexp(sums, alpha + u[-1])
    new[-1] = mass[1][-1] - alpha - u.logsumexp(0)
    return u, new
