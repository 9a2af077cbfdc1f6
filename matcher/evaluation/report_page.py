"""What the sections of a report share: the evaluation, its rows and colours, cards of the page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path

from matcher.evaluation import charts
from matcher.evaluation.records import Kind, Record
from matcher.evaluation.runner import Evaluation
from matcher.evaluation.tables import ALL, Row, row_of, table

# What methods are ranked by, the first that a benchmark has first: figure, kind, words.
HEADLINES = (
    ("homography AUC@3", Kind.HOMOGRAPHY, "corner error below 3 px"),
    ("pose AUC@5", Kind.POSE, "pose error below 5°"),
    ("templates found", Kind.PLACED, "templates within the limits of place, turn and size"),
    ("labelled points", Kind.LABELLED, "labelled points that agree, over limits of 0 to 19 px"),
    ("precision@3", Kind.DENSE, "matches within 3 px"),
)


@dataclass(frozen=True)
class Page:
    """An evaluation with what several sections need of it."""

    evaluation: Evaluation
    folder: Path

    @cached_property
    def rows(self) -> list[Row]:
        """The table."""
        return table(self.evaluation)

    @cached_property
    def totals(self) -> dict[str, Row]:
        """The row of each method over all data sets."""
        groups = {row.group for row in self.rows}
        return {row.method: row for row in self.rows if len(groups) == 1 or row.group == ALL}

    @cached_property
    def styles(self) -> dict[str, str]:
        """The classes of each method's colour."""
        return charts.style_of(list(self.totals))

    @cached_property
    def headlines(self) -> list[tuple[str, Kind, str]]:
        """Those of `HEADLINES` that the benchmark has."""
        kinds = {record.kind for record in self.evaluation.records}
        return [each for each in HEADLINES if each[1] in kinds]

    def records(self, method: str) -> list[Record]:
        """The results of one method."""
        return [record for record in self.evaluation.records if record.method == method]

    def ranked(self, figure: str, kind: Kind) -> list[Row]:
        """Sum up the pairs of one kind of truth by method, the best first."""
        rows = [
            row_of(method, kind, [r for r in self.records(method) if r.kind is kind])
            for method in self.totals
        ]
        known = [row for row in rows if figure in row.figures]
        return sorted(known, key=lambda row: -row.figures[figure].value)

    def legend(self) -> str:
        """Tell the colours of the methods."""
        items = (
            f'<li class="{style}"><i></i>{escape(method)}</li>'
            for method, style in self.styles.items()
        )
        return f'<ul class="legend">{"".join(items)}</ul>'


def section(page: Page, title: str, note: str, cards: Iterable[str]) -> str:
    """Make a section of cards under a heading, a note and the legend."""
    return (
        f"<h2>{escape(title)}</h2><p class=note>{escape(note)}</p>{page.legend()}"
        f'<div class="grid2">{"".join(cards)}</div>'
    )


def card(title: str, content: str, note: str = "") -> str:
    """Frame a chart or a table, with a title above it and a note below."""
    below = f"<figcaption>{escape(note)}</figcaption>" if note else ""
    return f"<figure class=card><h3>{escape(title)}</h3>{content}{below}</figure>"


def milliseconds(row: Row) -> float:
    """Add up the medians of describing, matching and refining a pair."""
    return 1000 * sum(row.seconds.get(stage, 0.0) for stage in ("describe", "match", "refine"))
