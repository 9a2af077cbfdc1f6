"""The figures that an evaluation measures: which values of which pairs, and what sums them up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matcher.evaluation.records import Kind, Record
from matcher.evaluation.settings import (
    EPIPOLAR_LIMITS,
    HOMOGRAPHY_PIXELS,
    LABELLED_PIXELS,
    PLACED_LIMITS,
    POSE_DEGREES,
    PRECISION_PIXELS,
)
from matcher.evaluation.statistics import Statistic, auc_at, mean


@dataclass(frozen=True)
class Figure:
    """One figure of the table.

    Attributes:
        name: As in "pose AUC@5".
        statistic: From the values of all pairs to the figure.
        values: (R,) values of one pair; empty where the figure does not apply to it.
        percent: Whether it is a share.
    """

    name: str
    statistic: Statistic
    values: Callable[[Record], Sequence[float]]
    percent: bool = True


def values_of(figure: Figure, records: Sequence[Record]) -> NDArray[np.float64]:
    """Collect (N, R) values of the pairs that have the figure."""
    found = [list(values) for record in records if len(values := figure.values(record))]
    return np.array(found, np.float64)


def _matches(record: Record) -> Sequence[float]:
    return [record.score.matches]


def _precision_at(index: int) -> Callable[[Record], Sequence[float]]:
    def values(record: Record) -> Sequence[float]:
        known = record.kind not in (Kind.UNRELATED, Kind.UNKNOWN)
        return record.score.precision[index : index + 1] if known else []

    return values


def errors_of(kind: Kind, threshold: int = 0) -> Callable[[Record], Sequence[float]]:
    """Make the function from a record to its errors of models of a kind, under one threshold."""

    def values(record: Record) -> Sequence[float]:
        return record.score.errors[threshold] if record.kind is kind else []

    return values


def _epipolar_at(index: int) -> Callable[[Record], Sequence[float]]:
    return lambda record: record.score.epipolar[index : index + 1]


def _matching_score(record: Record) -> Sequence[float]:
    """Correct matches within 3 pixels over the keypoints of image 0; failures count 0."""
    if not record.score.precision or record.keypoints0 is None:
        return []
    return [record.score.precision[1] * record.score.matches / max(record.keypoints0, 1)]


def _recall(record: Record) -> Sequence[float]:
    return [] if record.score.recall is None else [record.score.recall]


def _area(record: Record) -> Sequence[float]:
    return [] if record.kind is Kind.UNRELATED else [record.score.area]


def _bias_along(axis: int) -> Callable[[Record], Sequence[float]]:
    return lambda record: record.score.bias[axis : axis + 1]


def _found(record: Record) -> Sequence[float]:
    """Tell whether a template was found: its place, turn and size all within the limits."""
    near = zip(record.score.placed, PLACED_LIMITS, strict=False)
    return [float(all(error <= limit for error, limit in near))] if record.score.placed else []


def _labelled_at(pixels: float) -> Callable[[Record], Sequence[float]]:
    index = LABELLED_PIXELS.index(pixels)
    return lambda record: record.score.labelled[index : index + 1]


def _labelled(record: Record) -> Sequence[float]:
    shares = record.score.labelled
    return [sum(shares) / len(shares)] if shares else []


def _false_accept(record: Record) -> Sequence[float]:
    return [float(bool(record.score.same_place))] if record.kind is Kind.UNRELATED else []


FIGURES = (
    Figure("matches", mean, _matches, percent=False),
    *(
        Figure(f"precision@{pixels:g}", mean, _precision_at(index))
        for index, pixels in enumerate(PRECISION_PIXELS)
    ),
    *(
        Figure(f"homography AUC@{pixels:g}", auc_at(pixels), errors_of(Kind.HOMOGRAPHY))
        for pixels in HOMOGRAPHY_PIXELS
    ),
    *(
        Figure(f"pose AUC@{degrees:g}", auc_at(degrees), errors_of(Kind.POSE))
        for degrees in POSE_DEGREES
    ),
    *(
        Figure(f"epipolar precision@{limit:g}", mean, _epipolar_at(index))
        for index, limit in enumerate(EPIPOLAR_LIMITS)
    ),
    Figure("templates found", mean, _found),
    Figure("labelled points", mean, _labelled),
    *(Figure(f"labelled points@{pixels:g}", mean, _labelled_at(pixels)) for pixels in (3.0, 10.0)),
    Figure("matching score@3", mean, _matching_score),
    Figure("recall@3", mean, _recall),
    Figure("covered area", mean, _area),
    Figure("bias x px", mean, _bias_along(0), percent=False),
    Figure("bias y px", mean, _bias_along(1), percent=False),
    Figure("false accepts", mean, _false_accept),
)
