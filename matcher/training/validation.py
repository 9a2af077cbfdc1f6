"""How good a network is on pairs that it is not trained on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from matcher.nn.assignment import mutual_best
from matcher.synthesis.views import TwoViews
from matcher.training.labels import Labels
from matcher.training.objectives import Judged, Objective, surprise


@dataclass(frozen=True)
class Figures:
    """Averages over pairs of tokens' truth.

    Attributes:
        loss: In nats.
        recall: Share of the tokens of image 0 that image 1 shows whose mutually best token is where
            they should be.
        precision: Share of the matches above the threshold, of tokens whose truth is known, that are
            where they should be; 1 of none.
        recall_sure: The recall of those matches.
        pairs: That were looked at.
    """

    loss: float
    recall: float
    precision: float
    recall_sure: float
    pairs: int


@torch.no_grad()
def measure(
    objective: Objective, batches: Iterable[TwoViews], reach: float, threshold: float
) -> Figures:
    """Look at batches.

    Args:
        objective: With the network.
        batches: On its device.
        reach: Pixels of image 1 within which a match is right.
        threshold: Least probability of a match that counts for the precision.
    """
    was_training = objective.training
    objective.eval()
    loss, pairs, counts = 0.0, 0, torch.zeros(5, dtype=torch.float64)
    for views in batches:
        judged, labels, (_, image1) = objective.look(views)
        loss += float(surprise(judged, labels)) * len(views)
        pairs += len(views)
        counts += _count(judged, labels, image1.points, reach, threshold).cpu()
    objective.train(was_training)
    shown, right, sure, sure_known, sure_right = counts.tolist()
    del sure
    return Figures(
        loss=loss / max(1, pairs),
        recall=right / max(1.0, shown),
        precision=sure_right / sure_known if sure_known else 1.0,
        recall_sure=sure_right / max(1.0, shown),
        pairs=pairs,
    )


def _count(
    judged: Judged, labels: Labels, points1: Tensor, reach: float, threshold: float
) -> Tensor:
    """Count tokens shown, right matches, sure matches, those whose truth is known, and right ones."""
    best = mutual_best(judged.matches)
    places = labels.places0[best.item, best.index0]
    shown = places[:, 0].isfinite()
    right = (places - points1[best.item, best.index1]).norm(dim=1) <= reach  # False for NaN
    sure = best.scores > threshold
    known = shown | labels.alone0[best.item, best.index0]
    numbers = (
        labels.places0[..., 0].isfinite().sum(),
        right.sum(),
        sure.sum(),
        (sure & known).sum(),
        (sure & right).sum(),
    )
    return torch.stack(numbers).double()
