"""Put the results of stored evaluations into a document, so that no number is typed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matcher import storage
from matcher.evaluation.records import Kind
from matcher.evaluation.report_page import HEADLINES, milliseconds
from matcher.evaluation.runner import Evaluation
from matcher.evaluation.tables import ALL, Row, cell, plus_minus, table

BEGIN = "<!-- results: written by `matcher report DIR ... --readme README.md` -->"
END = "<!-- end of the results -->"


def update(document: str | Path, evaluations: Mapping[str, Evaluation]) -> Path:
    """Write the results between the markers of a document.

    Args:
        document: Markdown with the lines `BEGIN` and `END`.
        evaluations: By name; each becomes a table.

    Returns:
        The document.

    Raises:
        ValueError: It has not the two markers, in their order.
    """
    document = Path(document)
    text = document.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"{document} must have the lines {BEGIN} and {END}")
    new = f"{before}{BEGIN}\n\n{markdown(evaluations)}\n{END}{after}"
    return storage.write(document, new.encode())


def markdown(evaluations: Mapping[str, Evaluation]) -> str:
    """Write a table for each evaluation: a row for every method that it ran, what it rests on below."""
    parts = [_part(name, evaluation) for name, evaluation in evaluations.items()]
    return "\n".join([*parts, "± is half the 95 % bootstrap interval over pairs.", ""])


def _part(name: str, evaluation: Evaluation) -> str:
    """Write one evaluation: the headline figures and the time of each method."""
    columns = _columns(table(evaluation))
    methods = dict.fromkeys(method for cells in columns.values() for method in cells)
    titles = [cell(f"{name}: method"), *map(cell, columns)]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for method in methods:
        values = (cells.get(method, "") for cells in columns.values())
        lines.append(f"| {' | '.join([cell(method), *values])} |")
    environment, data = evaluation.environment, evaluation.data
    made = (
        f"{data.pairs} pairs, sha256 {data.sha256[:12]}, code {environment.code}, "
        f"{environment.machine}, {environment.devices}"
    )
    return "\n".join([*lines, "", f"{cell(name)}: {made}.", ""])


def _columns(rows: list[Row]) -> dict[str, dict[str, str]]:
    """Choose the rows over all data sets, and their figures, by title and method."""
    groups = {row.group for row in rows}
    totals = [row for row in rows if len(groups) == 1 or row.group == ALL]
    there = {name for row in totals for name in row.figures}
    models = [figure for figure, kind, _ in HEADLINES if kind is not Kind.DENSE]
    names = [name for name in (*models, "false accepts") if name in there] or ["precision@3"]
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for row in totals:
        for name in names:
            if name in row.figures:
                found[name][row.method] = plus_minus(row.figures[name])
        if row.seconds:
            found.setdefault("ms a pair", {})[row.method] = f"{milliseconds(row):.0f}"
    return found
