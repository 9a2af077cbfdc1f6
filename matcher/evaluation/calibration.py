"""How far the scores of matches can be read as probabilities of being correct."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matcher.types import Matrix


@dataclass(frozen=True, eq=False)
class Reliability:
    """The reliability diagram of scores: bins of equal width over [0, 1].

    Attributes:
        counts: (B,) matches in the bin.
        confidence: (B,) their mean score; NaN in an empty bin.
        accuracy: (B,) the share of them that is correct; NaN in an empty bin.
    """

    counts: NDArray[np.int64]
    confidence: Matrix
    accuracy: Matrix

    @property
    def expected_calibration_error(self) -> float:
        """Mean distance of accuracy from confidence, by matches; NaN without matches."""
        if not self.counts.any():
            return float("nan")
        gaps = np.abs(self.accuracy - self.confidence)
        return float(np.nansum(gaps * self.counts) / self.counts.sum())


def reliability(scores: ArrayLike, correct: ArrayLike, bins: int = 10) -> Reliability:
    """Compare scores with how often matches of that score are correct.

    Args:
        scores: (N,) in [0, 1].
        correct: (N,) bool; leave out matches of which the truth says nothing.
        bins: Number of bins; a score on an edge belongs to the upper one, 1 to the last.

    Raises:
        ValueError: The two have different lengths, or a score is outside [0, 1].

    Source: Guo, Pleiss, Sun, Weinberger, On calibration of modern neural networks, ICML 2017.
    """
    score, right = _scored(scores, correct)
    if len(score) and not (score.min() >= 0 and score.max() <= 1):
        raise ValueError(f"scores must lie in [0, 1], not {score.min():g} ... {score.max():g}")
    numbers = np.minimum((score * bins).astype(np.int64), bins - 1)
    counts = np.bincount(numbers, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(numbers, score, bins) / counts
        share = np.bincount(numbers, right, bins) / counts
    return Reliability(counts, confidence, share)


def average_precision(scores: ArrayLike, correct: ArrayLike) -> float:
    """Compute the area under the precision-recall curve of matches taken by falling score.

    Args:
        scores: (N,); equal scores are taken together.
        correct: (N,) bool.

    Returns:
        Sum over the steps of (rise of recall) times precision, in [0, 1]; NaN without correct
        matches.

    Raises:
        ValueError: The two have different lengths.
    """
    score, right = _scored(scores, correct)
    if not right.any():
        return float("nan")
    order = np.argsort(-score, kind="stable")
    hits = np.cumsum(right[order])
    last = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)  # of equal scores
    hits_at = hits[last]
    return float((np.diff(hits_at, prepend=0) * hits_at / (last + 1)).sum() / hits[-1])


def _scored(scores: ArrayLike, correct: ArrayLike) -> tuple[Matrix, Matrix]:
    score, right = np.asarray(scores, np.float64), np.asarray(correct, np.float64)
    if len(score) != len(right):
        raise ValueError(f"scores has {len(score)} rows, correct has {len(right)}")
    return score, right
