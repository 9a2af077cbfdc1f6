"""Say which tokens of two images are the same point, and which have no partner."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from matcher.nn.pointsets import PointSet
from matcher.synthesis.views import TwoViews, follow


@dataclass(frozen=True, eq=False)
class Labels:
    """The truth about the tokens of a batch; of tokens that nothing names, nobody knows.

    Attributes:
        item: (K,) int64, which pair of the batch.
        index0: (K,) token of image 0 that is the same point as
        index1: (K,) this token of image 1.
        alone0: (B, M) bool, True where a token of image 0 has no partner.
        alone1: (B, N) bool.
        places0: (B, M, 2) where the points of image 0 lie in image 1; NaN where it does not show
            them.
    """

    item: Tensor
    index0: Tensor
    index1: Tensor
    alone0: Tensor
    alone1: Tensor
    places0: Tensor


def label(views: TwoViews, image0: PointSet, image1: PointSet, near: float, far: float) -> Labels:
    """Compare where tokens lie with where they should.

    The distance of two tokens is the larger of those in either image, so that a change of scale
    makes no difference to the rule.

    Args:
        views: With the truth.
        image0: (B, M) tokens.
        image1: (B, N) tokens.
        near: Mutually nearest tokens within so many pixels are partners.
        far: A token is alone if none is nearer than that and its surroundings agree about its
            place.
    """
    places0, agreed0 = follow(views.places0, image0.points)
    places1, agreed1 = follow(views.places1, image1.points)
    apart1 = torch.cdist(places0.nan_to_num(1e6), image1.points)  # (B, M, N) pixels of image 1
    apart0 = torch.cdist(image0.points, places1.nan_to_num(-1e6))  # (B, M, N) pixels of image 0
    apart = torch.maximum(apart0, apart1)
    real0, real1 = (_real(image) for image in (image0, image1))
    apart = apart.masked_fill(~(real0[:, :, None] & real1[:, None]), torch.inf)
    gap, nearest1 = apart.min(2)
    nearest0 = apart.argmin(1)
    rows = torch.arange(apart.shape[1], device=apart.device)
    mutual = (nearest0.gather(1, nearest1) == rows) & (gap < near)
    item, index0 = mutual.nonzero(as_tuple=True)
    known = views.complete[:, None]
    return Labels(
        item=item,
        index0=index0,
        index1=nearest1[item, index0],
        alone0=(gap > far) & agreed0 & real0 & known,
        alone1=(apart.amin(1) > far) & agreed1 & real1 & known,
        places0=places0.masked_fill(~real0[..., None], torch.nan),
    )


def _real(image: PointSet) -> Tensor:
    """Tell tokens from padding."""
    return torch.ones_like(image.scores, dtype=torch.bool) if image.mask is None else image.mask
