"""Say how far a figure can be trusted: bootstrap intervals, and paired differences of two methods.

A benchmark is a sample of pairs; another one would give another figure. The bootstrap draws pairs
with replacement and takes the spread of the figure. Repeats of one pair (robust fitting with other
seeds) are no new pairs: they are drawn together.

Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapters 10 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matcher.types import Matrix

Rows: TypeAlias = NDArray[np.int64]
Statistic: TypeAlias = Callable[[Matrix], Matrix]  # (..., N) to (...), along the last axis

RESAMPLES = 1000
LEVEL = 0.95
_BLOCK = 4_000_000  # numbers held at once


@dataclass(frozen=True)
class Interval:
    """A figure and the range that holds it with probability `LEVEL`.

    All are NaN without data; the limits are NaN for a single pair, which says nothing of others.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Interval):
    """A difference of two methods on the same pairs.

    Attributes:
        probability: Share of the draws whose difference is above zero; ties count half.
    """

    probability: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0


def mean(values: Matrix) -> Matrix:
    """Average along the last axis."""
    averages: Matrix = np.mean(values, axis=-1)
    return averages


def median(values: Matrix) -> Matrix:
    """Take the middle along the last axis."""
    middles: Matrix = np.median(values, axis=-1)
    return middles


def auc_at(threshold: float) -> Statistic:
    """Make the statistic that `metrics.auc` is for one row of errors, for many rows at once.

    Args:
        threshold: Error at which the curve ends; failures are infinite errors.
    """

    def auc(errors: Matrix) -> Matrix:
        ordered = np.sort(np.minimum(errors, threshold), axis=-1)  # NaN goes last and stays NaN
        count = ordered.shape[-1]
        inside = ordered < threshold
        reached = np.where(inside, ordered, 0)
        steps = np.diff(reached, axis=-1, prepend=0) * inside
        areas = (steps * (2 * np.arange(1, count + 1) - 1)).sum(axis=-1) / (2 * count)
        recall = inside.sum(axis=-1) / count
        area: Matrix = (areas + (threshold - reached.max(axis=-1)) * recall) / threshold
        return area

    return auc


def bootstrap_interval(
    values: ArrayLike, statistic: Statistic = mean, *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Compute a figure and its percentile interval.

    Args:
        values: (N,) one value a pair, or (N, R) with R repeats of each.
        statistic: Of all values together.
        resamples: Number of draws.
        seed: The same seed gives the same interval.

    Raises:
        ValueError: `values` is neither (N,) nor (N, R).
    """
    rows = _rows(values)
    if rows.size == 0:
        return Interval(np.nan, np.nan, np.nan)
    drawn = np.concatenate(
        [statistic(_pooled(rows, chosen)) for chosen in _draws(rows, resamples, seed)]
    )
    return Interval(float(statistic(rows.reshape(1, -1))[0]), *_limits(drawn, len(rows)))


def paired_bootstrap(
    values0: ArrayLike,
    values1: ArrayLike,
    statistic: Statistic = mean,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """Compare two methods on the same pairs: the figure of the second minus that of the first.

    Both are drawn alike, so that what makes a pair hard for both does not blur the difference.

    Args:
        values0: (N,) or (N, R) of the first method.
        values1: (N,) or (N, R) of the second, of the same pairs in the same order.
        statistic: Of all values together.
        resamples: Number of draws.
        seed: The same seed gives the same interval.

    Raises:
        ValueError: The two have other numbers of pairs.
    """
    rows0, rows1 = _rows(values0), _rows(values1)
    if len(rows0) != len(rows1):
        raise ValueError(f"values1 has {len(rows1)} pairs, values0 has {len(rows0)}")
    if rows0.size == 0:
        return Difference(np.nan, np.nan, np.nan, np.nan)
    drawn = np.concatenate(
        [
            statistic(_pooled(rows1, chosen)) - statistic(_pooled(rows0, chosen))
            for chosen in _draws(rows0, resamples, seed)
        ]
    )
    value = float(statistic(rows1.reshape(1, -1))[0] - statistic(rows0.reshape(1, -1))[0])
    above = np.mean(drawn > 0) + np.mean(drawn == 0) / 2
    return Difference(value, *_limits(drawn, len(rows0)), probability=float(above))


def _rows(values: ArrayLike) -> Matrix:
    rows = np.asarray(values, np.float64)
    if rows.ndim not in (1, 2):
        raise ValueError(f"values must be (N,) or (N, R), not {rows.shape}")
    return rows[:, None] if rows.ndim == 1 else rows


def _draws(rows: Matrix, resamples: int, seed: int) -> Iterator[Rows]:
    """Draw pairs with replacement, in blocks of bounded size whose sum does not depend on it."""
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK // rows.size)
    for start in range(0, resamples, block):
        count = min(block, resamples - start)
        yield generator.integers(0, len(rows), (count, len(rows)))


def _pooled(rows: Matrix, chosen: Rows) -> Matrix:
    """Gather the drawn pairs with all their repeats."""
    drawn: Matrix = rows[chosen].reshape(len(chosen), -1)
    return drawn


def _limits(drawn: Matrix, pairs: int) -> tuple[float, float]:
    if pairs < 2:
        return np.nan, np.nan
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
