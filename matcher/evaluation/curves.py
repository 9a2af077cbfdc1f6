"""From the records of an evaluation to what its charts draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from matcher.evaluation.calibration import Reliability
from matcher.evaluation.records import Kind, Record
from matcher.evaluation.scoring import SCORE_BINS

Curve: TypeAlias = list[tuple[float, float]]  # x and y

_DIAGRAM_BINS = 10
_LEAST_LEVELS = 3  # fewer make no sweep


def cumulative(records: Sequence[Record], kind: Kind, limit: float) -> Curve:
    """Tell the share of the pairs of a kind, fits and repeats alike, with an error up to x.

    Args:
        records: Of one method.
        kind: `HOMOGRAPHY` or `POSE`.
        limit: Where the curve ends, pixels or degrees.

    Returns:
        Corners of the steps from (0, 0) to the limit; empty without such pairs.
    """
    errors = [error for r in records if r.kind is kind for error in r.score.errors[0]]
    if not errors:
        return []
    ordered = np.sort(errors)
    inside = ordered[ordered < limit]
    steps = [(float(e), (n + up) / len(errors)) for n, e in enumerate(inside) for up in (0, 1)]
    return [(0.0, 0.0), *steps, (limit, len(inside) / len(errors))]


def precision_recall(records: Sequence[Record]) -> Curve:
    """Tell how precision falls as matches of lower scores are taken in, over all pairs.

    Returns:
        (recall, precision) points by falling score; recall is the share of the correct matches that
        the method has found at all. Empty without correct matches.
    """
    counts, right = _by_score(records)
    taken, hits = np.cumsum(counts[::-1]), np.cumsum(right[::-1])
    if not hits[-1]:
        return []
    rows = np.flatnonzero(counts[::-1])
    return [(float(hits[row] / hits[-1]), float(hits[row] / taken[row])) for row in rows]


def reliability_of(records: Sequence[Record]) -> Reliability:
    """Compare scores with how often matches of that score are correct, over all pairs."""
    counts, right = (bins.reshape(_DIAGRAM_BINS, -1) for bins in _by_score(records))
    centres = ((np.arange(SCORE_BINS) + 0.5) / SCORE_BINS).reshape(_DIAGRAM_BINS, -1)
    total = counts.sum(axis=1)
    with np.errstate(invalid="ignore"):
        confidence = (counts * centres).sum(axis=1) / total
        accuracy = right.sum(axis=1) / total
    return Reliability(total, confidence, accuracy)


@dataclass(frozen=True)
class Sweep:
    """How a method bears what a data set varies.

    Attributes:
        group: The data set.
        curves: By method: (level, mean share of the matches within 3 pixels) points.
    """

    group: str
    curves: Mapping[str, Curve]


def sweeps(records: Sequence[Record]) -> list[Sweep]:
    """Find the data sets with levels, and draw precision over them."""
    found = []
    for group in dict.fromkeys(r.group for r in records if r.level is not None):
        own = [r for r in records if r.group == group and r.level is not None and r.score.precision]
        if len({r.level for r in own}) >= _LEAST_LEVELS:
            methods = dict.fromkeys(r.method for r in own)
            curves = {m: _over_levels([r for r in own if r.method == m]) for m in methods}
            found.append(Sweep(group, curves))
    return found


def pareto(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Name those of (cost, worth) points that no other beats in both, the cheapest first."""
    front: list[str] = []
    best = -np.inf
    for name, (_, worth) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if worth > best:
            front.append(name)
            best = worth
    return front


def _over_levels(records: Sequence[Record]) -> Curve:
    by_level: dict[float, list[float]] = {}
    for record in records:
        if record.level is not None:
            by_level.setdefault(record.level, []).append(record.score.precision[1])
    return [(level, float(np.mean(shares))) for level, shares in sorted(by_level.items())]


def _by_score(records: Sequence[Record]) -> tuple[np.ndarray, np.ndarray]:
    """Add up (SCORE_BINS,) matches and correct matches."""
    total = np.zeros((2, SCORE_BINS), np.int64)
    for record in records:
        for row, bins in enumerate(record.score.by_score):
            total[row, : len(bins)] += np.array(bins, np.int64)
    return total[0], total[1]
