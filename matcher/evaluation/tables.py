"""Sum an evaluation up: one row for each method and data set, every figure with its interval."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from matcher import storage
from matcher.datasets import Fingerprint
from matcher.evaluation.records import Kind, Outcome, Record, finite
from matcher.evaluation.runner import Evaluation
from matcher.evaluation.settings import (
    EPIPOLAR_LIMITS,
    HOMOGRAPHY_PIXELS,
    POSE_DEGREES,
    PRECISION_PIXELS,
)
from matcher.evaluation.statistics import (
    Difference,
    Interval,
    Statistic,
    auc_at,
    bootstrap_interval,
    mean,
    median,
    paired_bootstrap,
)

ALL = "all"


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


@dataclass(frozen=True)
class Row:
    """A method on one data set, or on "all".

    Attributes:
        method: Label.
        group: Data set.
        pairs: Their number, failed ones included.
        failures: How many pairs have no result or no model, by reason.
        figures: By name, shares in percent; only those that the data set has.
        seconds: Median of each stage: describe (both images), match, refine, fit.
        peak_mib: Largest growth of memory in a pair.
    """

    method: str
    group: str
    pairs: int
    failures: Mapping[str, int]
    figures: Mapping[str, Interval]
    seconds: Mapping[str, float]
    peak_mib: float


@dataclass(frozen=True)
class SweepRow:
    """A method's AUC under every inlier threshold that was tried; only the fixed one may be quoted.

    Attributes:
        method: Label.
        figure: "homography AUC@3" or "pose AUC@5".
        fixed: Percent under the first threshold of the settings.
        by_threshold: Percent by pixels.
        best: Threshold of the highest, which was chosen on the test pairs themselves.
    """

    method: str
    figure: str
    fixed: float
    by_threshold: Mapping[float, float]
    best: float


def _matches(record: Record) -> Sequence[float]:
    return [record.score.matches]


def _precision_at(index: int) -> Callable[[Record], Sequence[float]]:
    def values(record: Record) -> Sequence[float]:
        known = record.kind in (Kind.HOMOGRAPHY, Kind.POSE, Kind.DENSE)
        return record.score.precision[index : index + 1] if known else []

    return values


def _errors_of(kind: Kind, threshold: int = 0) -> Callable[[Record], Sequence[float]]:
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


def _false_accept(record: Record) -> Sequence[float]:
    return [float(bool(record.score.same_place))] if record.kind is Kind.UNRELATED else []


FIGURES = (
    Figure("matches", mean, _matches, percent=False),
    *(
        Figure(f"precision@{pixels:g}", mean, _precision_at(index))
        for index, pixels in enumerate(PRECISION_PIXELS)
    ),
    *(
        Figure(f"homography AUC@{pixels:g}", auc_at(pixels), _errors_of(Kind.HOMOGRAPHY))
        for pixels in HOMOGRAPHY_PIXELS
    ),
    *(
        Figure(f"pose AUC@{degrees:g}", auc_at(degrees), _errors_of(Kind.POSE))
        for degrees in POSE_DEGREES
    ),
    *(
        Figure(f"epipolar precision@{limit:g}", mean, _epipolar_at(index))
        for index, limit in enumerate(EPIPOLAR_LIMITS)
    ),
    Figure("matching score@3", mean, _matching_score),
    Figure("recall@3", mean, _recall),
    Figure("covered area", mean, _area),
    Figure("bias x px", mean, _bias_along(0), percent=False),
    Figure("bias y px", mean, _bias_along(1), percent=False),
    Figure("false accepts", mean, _false_accept),
)


def table(evaluation: Evaluation) -> list[Row]:
    """Sum up every method on every data set, and on all where there are several."""
    rows = []
    groups = list(dict.fromkeys(record.group for record in evaluation.records))
    for method in dict.fromkeys(record.method for record in evaluation.records):
        own = [record for record in evaluation.records if record.method == method]
        chosen = {group: [r for r in own if r.group == group] for group in groups}
        if len(groups) > 1:
            chosen[ALL] = own
        rows += [_row(method, group, records) for group, records in chosen.items()]
    return rows


def difference(evaluation: Evaluation, method0: str, method1: str, figure: str) -> Difference:
    """Compare two rows' figure on the same pairs: that of `method1` minus that of `method0`.

    Raises:
        ValueError: No such method, figure, or no pair that has it.
    """
    chosen = {known.name: known for known in FIGURES}
    if figure not in chosen:
        raise ValueError(f"no figure {figure!r}; there are {', '.join(chosen)}")
    values0, values1 = (
        _values(chosen[figure], _records_of(evaluation, method)) for method in (method0, method1)
    )
    if not values0.size:
        raise ValueError(f"no pair has {figure}")
    scale = 100 if chosen[figure].percent else 1
    found = paired_bootstrap(values0, values1, chosen[figure].statistic)
    return replace(found, value=scale * found.value, low=scale * found.low, high=scale * found.high)


def sweep(evaluation: Evaluation) -> list[SweepRow]:
    """Tabulate AUC@3 of homographies and AUC@5 of poses over the thresholds of the settings."""
    kinds = (
        (Kind.HOMOGRAPHY, "homography AUC@3", 3.0, evaluation.settings.homography_thresholds),
        (Kind.POSE, "pose AUC@5", 5.0, evaluation.settings.pose_thresholds),
    )
    rows = []
    for method in dict.fromkeys(record.method for record in evaluation.records):
        for kind, name, at, thresholds in kinds:
            records = [r for r in evaluation.records if r.method == method and r.kind is kind]
            if not records:
                continue
            values = {
                threshold: 100 * _plain(Figure(name, auc_at(at), _errors_of(kind, index)), records)
                for index, threshold in enumerate(thresholds)
            }
            best = max(values, key=lambda threshold: values[threshold])
            rows.append(SweepRow(method, name, values[thresholds[0]], values, best))
    return rows


def cells(row: Row) -> dict[str, str]:
    """Write the main figures of a row for a terminal; ± is half the interval."""
    shown = ("matches", "precision@3", "homography AUC@3", "pose AUC@5", "false accepts")
    figures = {
        name: _plus_minus(row.figures[name]) if name in row.figures else "" for name in shown
    }
    per_pair = 1000 * sum(row.seconds.get(stage, 0.0) for stage in ("describe", "match", "refine"))
    return {
        "method": row.method,
        "data": row.group,
        "pairs": str(row.pairs),
        **figures,
        "ms a pair": f"{per_pair:.0f}" if row.seconds else "",
        "failed": _failed(row),
    }


def all_cells(row: Row) -> dict[str, str]:
    """Write a whole row for a page: kindred figures share a column; ± is half the interval."""
    joined = {
        "matches": ["matches"],
        "precision 1/3/5 px": [f.name for f in FIGURES if f.name.startswith("precision")],
        "homography AUC 1/3/5/10 px": [f.name for f in FIGURES if f.name.startswith("homography")],
        "pose AUC 1/3/5/10/20°": [f.name for f in FIGURES if f.name.startswith("pose")],
        "false accepts": ["false accepts"],
    }
    known = {
        title: " / ".join(_plus_minus(row.figures[name]) for name in names if name in row.figures)
        for title, names in joined.items()
    }
    return {
        "method": row.method,
        "data": row.group,
        "pairs": str(row.pairs),
        **known,
        **{f"{stage} ms": f"{1000 * value:.1f}" for stage, value in row.seconds.items()},
        "peak MiB": f"{row.peak_mib:.0f}",
        "failed": _failed(row),
    }


def markdown(evaluation: Evaluation) -> str:
    """Write the table and what it rests on."""
    written = [all_cells(row) for row in table(evaluation)]
    titles = dict.fromkeys(title for line in written for title in line)
    used = [title for title in titles if any(line.get(title) for line in written)]
    lines = ["| " + " | ".join(used) + " |", "|" + "---|" * len(used)]
    lines += ["| " + " | ".join(line.get(title, "") for title in used) + " |" for line in written]
    environment = evaluation.environment
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    untrained = dict.fromkeys(record.method for record in evaluation.records if record.untrained)
    notes = [
        *([evaluation.protocol] if evaluation.protocol else []),
        f"{_described(evaluation.data)}.",
        f"{evaluation.settings}.",
        f"{versions}; {environment.devices}; {environment.machine}; "
        f"code {environment.code}{' ' + environment.commit if environment.commit else ''}.",
        *(f"{label}: {what}." for label, what in evaluation.methods.items()),
        *(f"{label} is **untrained**: its figures mean nothing." for label in untrained),
    ]
    return "\n".join(
        [*lines, "", "± is half the 95 % bootstrap interval; times are medians.", ""]
    ) + ("\n".join(f"- {note}" for note in notes) + "\n")


def write_tables(evaluation: Evaluation, folder: str | Path) -> list[Path]:
    """Write table.md, table.csv and table.json; each is whole or not there.

    Returns:
        Their paths.
    """
    rows = table(evaluation)
    texts = {
        "table.md": markdown(evaluation),
        "table.csv": _csv(rows),
        "table.json": _json(rows),
    }
    return [storage.write(Path(folder) / name, text.encode()) for name, text in texts.items()]


def _records_of(evaluation: Evaluation, method: str) -> list[Record]:
    found = [record for record in evaluation.records if record.method == method]
    if not found:
        there = ", ".join(dict.fromkeys(record.method for record in evaluation.records))
        raise ValueError(f"no method {method!r} in this evaluation; there are {there}")
    return found


def _row(method: str, group: str, records: Sequence[Record]) -> Row:
    figures = {}
    for figure in FIGURES:
        values = _values(figure, records)
        if values.size:
            found = bootstrap_interval(values, figure.statistic)
            scale = 100 if figure.percent else 1
            figures[figure.name] = Interval(*(scale * value for value in asdict(found).values()))
    matched = [record for record in records if record.outcome is Outcome.OK]
    seconds = {
        stage: float(median(np.array([asdict(record.seconds)[stage] for record in matched])))
        for stage in ("describe", "match", "refine", "fit")
        if matched
    }
    peak = max((record.peak_mib for record in records), default=0.0)
    return Row(method, group, len(records), _failures(records), figures, seconds, peak)


def _failures(records: Sequence[Record]) -> dict[str, int]:
    """Count pairs without matches to score, and those without a model where one is measured."""
    reasons = []
    for record in records:
        if record.outcome is not Outcome.OK:
            reasons.append(str(record.outcome))
        elif record.score.errors and record.score.reason != "ok":
            reasons.append(record.score.reason)
    return dict(Counter(reasons))


def _values(figure: Figure, records: Sequence[Record]) -> NDArray[np.float64]:
    """Collect (N, R) values of the pairs that have the figure."""
    found = [list(values) for record in records if len(values := figure.values(record))]
    return np.array(found, np.float64)


def _plain(figure: Figure, records: Sequence[Record]) -> float:
    return float(figure.statistic(_values(figure, records).reshape(1, -1))[0])


def _failed(row: Row) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in row.failures.items()) or "0"


def _plus_minus(interval: Interval) -> str:
    digits = 0 if interval.value >= 1000 else 1
    half = (interval.high - interval.low) / 2
    return f"{interval.value:.{digits}f}" + (f" ±{half:.{digits}f}" if math.isfinite(half) else "")


def _described(data: Fingerprint) -> str:
    """Say in words what the pairs were."""
    sizes = " to ".join(f"{width} x {height}" for width, height in data.sizes)
    focal = data.focal_lengths
    cameras = "" if focal is None else f", focal lengths {focal[0]:.0f} to {focal[1]:.0f} px"
    return (
        f"{data.pairs} pairs of {data.images} images of {sizes} px{cameras}, "
        f"sha256 {data.sha256[:16]}"
    )


def _json(rows: Sequence[Row]) -> str:
    """Write every figure with its limits; limits that nobody knows are null."""
    return json.dumps(finite([asdict(row) for row in rows]), indent=1, allow_nan=False) + "\n"


def _csv(rows: Sequence[Row]) -> str:
    """Write every figure with its limits, one row a line."""
    text = io.StringIO()
    names = [figure.name for figure in FIGURES]
    limits = [f"{name}{end}" for name in names for end in ("", " low", " high")]
    stages = ["describe", "match", "refine", "fit"]
    head = ["method", "data", "pairs", "failed", *limits, *(f"{s} s" for s in stages), "peak MiB"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for row in rows:
        figures = [row.figures.get(name) for name in names]
        numbers = [value for f in figures for value in (asdict(f).values() if f else ("", "", ""))]
        times = [row.seconds.get(stage, "") for stage in stages]
        failed = sum(row.failures.values())
        writer.writerow([row.method, row.group, row.pairs, failed, *numbers, *times, row.peak_mib])
    return text.getvalue()
