"""Choose which photographs to match: those whose strongest keypoints already look alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from matcher.types import Description

_KEYPOINTS = (
    512  # of each photograph, the strongest; 1,024 rank hardly better and take 7 times as long
)
_RATIO = 0.8  # of distances, Lowe's


def candidate_pairs(descriptions: Sequence[Description], partners: int) -> list[tuple[int, int]]:
    """List the pairs worth matching: for every photograph, those that it has most in common with.

    What two have in common is counted by mutually nearest descriptors that pass the ratio test. All pairs are
    counted, at about a millisecond each.

    Args:
        descriptions: One a photograph, with descriptors of length 1.
        partners: Of every photograph; it may be chosen by more.

    Returns:
        Rows of the two photographs, the first the smaller, ordered; a pair with nothing in common is left out.
    """
    tokens = [torch.from_numpy(each.descriptors[:_KEYPOINTS]) for each in descriptions]
    count = len(tokens)
    common = np.zeros((count, count), np.int64)
    for row0 in range(count):
        for row1 in range(row0 + 1, count):
            common[row0, row1] = common[row1, row0] = _in_common(tokens[row0], tokens[row1])
    chosen = set()
    for row, line in enumerate(common):
        for other in np.argsort(-line, kind="stable")[:partners].tolist():
            if line[other]:
                chosen.add((min(row, other), max(row, other)))
    return sorted(chosen)


def _in_common(tokens0: Tensor, tokens1: Tensor) -> int:
    """Count mutually nearest tokens, (N0, D) and (N1, D), whose second nearest is clearly farther."""
    if min(len(tokens0), len(tokens1)) < 2:
        return 0
    similarity = tokens0 @ tokens1.T  # (N0, N1)
    best, row1 = similarity.topk(2, dim=1)
    row0 = similarity.argmax(0)
    mutual = row0[row1[:, 0]] == torch.arange(len(row1))
    distance, second = (1 - best).clamp_min(0).unbind(1)  # half the squared distances
    return int((mutual & (distance < _RATIO**2 * second)).sum())
