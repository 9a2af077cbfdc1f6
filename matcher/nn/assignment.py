"""Turn scores of all pairs into matches: dual softmax and mutual best; transport is in `sinkhorn`.

Everything is on natural logarithms: log 0 is -inf, and no small probability is lost on the way to a
loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from matcher.nn.sinkhorn import Assignment, sinkhorn, sinkhorn_log
from matcher.shapes import check_shape

__all__ = ["Assignment", "Choice", "dual_softmax", "mutual_best", "sinkhorn", "sinkhorn_log"]


@dataclass(frozen=True, eq=False)
class Choice:
    """The pairs chosen in a batch, ordered by item, then falling score; equal scores by `index0`.

    Attributes:
        item: (K,) int64, which pair of images of the batch.
        index0: (K,) int64 point of image 0.
        index1: (K,) int64 point of image 1.
        scores: (K,) probability, differentiable.
    """

    item: Tensor
    index0: Tensor
    index1: Tensor
    scores: Tensor

    def of(self, item: int) -> tuple[Tensor, Tensor]:
        """Return one item's (k, 2) indices and (k,) scores."""
        rows = self.item == item
        return torch.stack([self.index0[rows], self.index1[rows]], 1), self.scores[rows]


def mutual_best(
    log_scores: Tensor,
    threshold: float = 0.0,
    mask0: Tensor | None = None,
    mask1: Tensor | None = None,
) -> Choice:
    """Choose the pairs in which each point is the other's best.

    Args:
        log_scores: (B, M, N) logarithms of probabilities, without dustbins; -inf is never chosen.
        threshold: A pair's probability must be above it.
        mask0: (B, M), True for real points; not needed where masked scores are -inf already.
        mask1: (B, N) likewise for image 1.

    Returns:
        At most min(M, N) pairs an item. Of equally good partners the first counts.
    """
    sizes = check_shape("log_scores", log_scores, "B M N")
    if min(log_scores.shape) == 0:
        none = torch.zeros(0, dtype=torch.int64, device=log_scores.device)
        return Choice(none, none, none, log_scores.new_zeros(0))
    log_scores = _masked(log_scores, mask0, mask1, sizes)
    best, index1 = log_scores.max(2)  # (B, M)
    index0 = log_scores.argmax(1)  # (B, N)
    rows = torch.arange(best.shape[1], device=best.device)
    score = best.exp()
    chosen = (index0.gather(1, index1) == rows) & (score > threshold)
    order = score.argsort(dim=1, descending=True, stable=True)  # (B, M)
    item, place = chosen.gather(1, order).nonzero(as_tuple=True)
    row = order[item, place]
    return Choice(item, row, index1[item, row], score[item, row])


def dual_softmax(
    scores: Tensor, mask0: Tensor | None = None, mask1: Tensor | None = None
) -> Tensor:
    """Multiply the softmax over image 1 with the softmax over image 0.

    Args:
        scores: (B, M, N) similarities, divided by their temperature.
        mask0: (B, M), True for real points.
        mask1: (B, N) likewise for image 1.

    Returns:
        (B, M, N) logarithms of probabilities; -inf where masked.

    Source: Rocco et al., NCNet, NeurIPS 2018; Sun et al., LoFTR, CVPR 2021, section 3.3.
    """
    sizes = check_shape("scores", scores, "B M N")
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask0 is None and mask1 is None:
        return scores.log_softmax(2) + scores.log_softmax(1)
    lowest = torch.finfo(scores.dtype).min / 4  # finite: a row of -inf has no softmax
    filled = _masked(scores, mask0, mask1, sizes, lowest)
    both = filled.log_softmax(2) + filled.log_softmax(1)
    return _masked(both, mask0, mask1, sizes)


def _masked(
    scores: Tensor,
    mask0: Tensor | None,
    mask1: Tensor | None,
    sizes: dict[str, int],
    value: float = -torch.inf,
) -> Tensor:
    """Write one value in the rows and columns of padding."""
    if mask0 is not None:
        check_shape("mask0", mask0, "B M", sizes)
        scores = scores.masked_fill(~mask0[:, :, None], value)
    if mask1 is not None:
        check_shape("mask1", mask1, "B N", sizes)
        scores = scores.masked_fill(~mask1[:, None], value)
    return scores
