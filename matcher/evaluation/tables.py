"""Sum an evaluation up: one row for each method and data set, every figure with its interval."""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from matcher import storage
from matcher.datasets import Fingerprint
from matcher.evaluation.figures import FIGURES, Figure, errors_of, values_of
from matcher.evaluation.records import Kind, Outcome, Record, finite
from matcher.evaluation.runner import Evaluation
from matcher.evaluation.statistics import (
    Difference,
    Interval,
    auc_at,
    bootstrap_interval,
    median,
    paired_bootstrap,
)

ALL = "all"


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


def table(evaluation: Evaluation) -> list[Row]:
    """Sum up every method on every data set, and on all where there are several."""
    rows = []
    groups = list(dict.fromkeys(record.group for record in evaluation.records))
    for method in dict.fromkeys(record.method for record in evaluation.records):
        own = [record for record in evaluation.records if record.method == method]
        chosen = {group: [r for r in own if r.group == group] for group in groups}
        if len(groups) > 1:
            chosen[ALL] = own
        rows += [row_of(method, group, records) for group, records in chosen.items()]
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
        values_of(chosen[figure], _records_of(evaluation, method)) for method in (method0, method1)
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
                threshold: 100 * _plain(Figure(name, auc_at(at), errors_of(kind, index)), records)
                for index, threshold in enumerate(thresholds)
            }
            best = max(values, key=lambda threshold: values[threshold])
            rows.append(SweepRow(method, name, values[thresholds[0]], values, best))
    return rows


def cells(row: Row) -> dict[str, str]:
    """Write the main figures of a row for a terminal; ± is half the interval."""
    models = ("homography AUC@3", "pose AUC@5", "templates found", "labelled points")
    shown = ("matches", "precision@3", *models, "false accepts")
    figures = {name: plus_minus(row.figures[name]) if name in row.figures else "" for name in shown}
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
        "templates found": ["templates found"],
        "labelled points, 0-19/3/10 px": [f.name for f in FIGURES if f.name.startswith("labelled")],
        "false accepts": ["false accepts"],
    }
    known = {
        title: " / ".join(plus_minus(row.figures[name]) for name in names if name in row.figures)
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
    lines += [
        "| " + " | ".join(cell(line.get(title, "")) for title in used) + " |" for line in written
    ]
    lines += ["", "± is half the 95 % bootstrap interval; times are medians.", ""]
    lines += [f"- {cell(name)}: {cell(text)}" for name, text in notes(evaluation).items()]
    lines += [
        f"- {cell(label)} is **untrained**: its figures mean nothing."
        for label in untrained(evaluation)
    ]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Write text for Markdown: a name can neither end a cell nor be a tag."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def notes(evaluation: Evaluation) -> dict[str, str]:
    """Say what the figures rest on: protocol, data, settings, versions, machine, methods."""
    environment = evaluation.environment
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    commit = f", commit {environment.commit}" if environment.commit else ""
    return {
        **({"protocol": evaluation.protocol} if evaluation.protocol else {}),
        "data": _described(evaluation.data),
        "settings": str(evaluation.settings),
        "versions": versions,
        "code": environment.code + commit,
        "machine": f"{environment.machine}, {environment.devices}",
        **evaluation.methods,
    }


def untrained(evaluation: Evaluation) -> list[str]:
    """List the rows of networks with random weights."""
    return list(dict.fromkeys(record.method for record in evaluation.records if record.untrained))


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


def row_of(method: str, group: str, records: Sequence[Record]) -> Row:
    """Sum up some records of a method under a name."""
    figures = {}
    for figure in FIGURES:
        values = values_of(figure, records)
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


def _plain(figure: Figure, records: Sequence[Record]) -> float:
    return float(figure.statistic(values_of(figure, records).reshape(1, -1))[0])


def _failed(row: Row) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in row.failures.items()) or "0"


def plus_minus(interval: Interval) -> str:
    """Write a figure with half of its interval, where that is known."""
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
