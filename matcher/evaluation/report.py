"""Write an evaluation as one page that needs nothing else: no network, no scripts, no other file."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from matcher import storage
from matcher.evaluation import charts, curves, pictures
from matcher.evaluation.records import Kind, Record
from matcher.evaluation.report_charts import error_curve, scores, sweeps
from matcher.evaluation.report_page import HEADLINES, Page, card, milliseconds
from matcher.evaluation.runner import Evaluation
from matcher.evaluation.statistics import Interval
from matcher.evaluation.tables import (
    ALL,
    Row,
    difference,
    notes,
    plus_minus,
    sweep,
    untrained,
    write_tables,
)


def write_report(evaluation: Evaluation, folder: str | Path) -> list[Path]:
    """Write index.html and the tables table.md, table.csv, table.json.

    Args:
        evaluation: What to report.
        folder: Where to; match pictures that lie in its folder `pictures` go into the page.

    Returns:
        Their paths, the page first.
    """
    page = storage.write(Path(folder) / "index.html", html(evaluation, folder).encode())
    return [page, *write_tables(evaluation, folder)]


def html(evaluation: Evaluation, folder: str | Path) -> str:
    """Make the page; equal evaluations make equal pages."""
    page = Page(evaluation, Path(folder))
    name = evaluation.protocol.partition(":")[0] or ", ".join(
        dict.fromkeys(record.group for record in evaluation.records)
    )
    sections = (
        _head(page, name),
        *(_ranking(page, *headline) for headline in page.headlines),
        _by_group(page),
        sweeps(page),
        scores(page),
        _costs(page),
        _thresholds(page),
        _failures(page),
        _pictures(page),
        _foundation(page),
    )
    style = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}: matching methods compared</title><style>{style}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _head(page: Page, name: str) -> str:
    evaluation = page.evaluation
    environment = evaluation.environment
    lines = [
        f"{evaluation.data.pairs} pairs of {evaluation.data.images} images, "
        f"{len(page.totals)} methods.",
        f"Code {environment.code}{' of ' + environment.commit if environment.commit else ''}, "
        f"{environment.devices}.",
    ]
    warnings = "".join(
        f'<p class="warning"><b>{escape(method)}</b> is untrained: its figures mean nothing.</p>'
        for method in untrained(evaluation)
    )
    return f'<h1>{escape(name)}</h1><p class="facts">{escape(" ".join(lines))}</p>{warnings}'


def _ranking(page: Page, figure: str, kind: Kind, words: str) -> str:
    """Rank methods by one figure, beside plots of it against time and of the errors."""
    rows = page.ranked(figure, kind)
    note = f"Share of the {words}, in percent, with its 95 % interval."
    if "AUC" in figure:
        note = (
            f"{figure[0].upper()}{figure[1:]} over {rows[0].pairs} pairs, in percent: 100 where "
            f"every pair has a {words} near zero. Bars show it with its 95 % interval. “Behind” is "
            "the difference to the first on the same pairs, clear where its own interval leaves "
            "zero out."
        )
    head = "<tr><th>method</th><th class=bars></th><th>" + escape(figure) + "</th><th>behind</th>"
    head += "<th>matches</th><th>precision 3 px</th><th>ms a pair</th><th>failed</th></tr>"
    body = "".join(_ranked(page, row, rows[0], figure) for row in rows)
    return (
        f"<h2>Ranking by {escape(figure)}</h2><p class=note>{escape(note)}</p>"
        f'<div class="card wide"><table>{head}{body}</table></div>{page.legend()}'
        f'<div class="grid2">{_speed(page, figure, rows)}{error_curve(page, kind)}</div>'
    )


def _ranked(page: Page, row: Row, first: Row, figure: str) -> str:
    value, style = row.figures[figure], page.styles[row.method]
    bar = charts.interval_bar(value.value, value.low, value.high, 100, style)
    cells = [
        _name(page, row.method),
        f"<td class=bars>{bar}</td><td><b>{escape(plus_minus(value))}</b></td>",
        f"<td class=small>{_behind(page, row, first, figure)}</td>",
        f"<td>{_figure(row.figures.get('matches'))}</td>",
        f"<td>{_figure(row.figures.get('precision@3'))}</td>",
        f"<td>{milliseconds(row):.0f}</td>" if row.seconds else "<td></td>",
        f"<td>{sum(row.failures.values()) or ''}</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _behind(page: Page, row: Row, first: Row, figure: str) -> str:
    if row is first:
        return ""
    found = difference(page.evaluation, first.method, row.method, figure)
    value = f"{found.value:+.1f}" if abs(found.value) >= 0.05 else "0.0"
    return f"{value}{' clear' if found.clear else ''}"


def _speed(page: Page, figure: str, rows: Sequence[Row]) -> str:
    """Plot a figure against time; methods that another beats in both are off the line."""
    timed = [row for row in rows if row.seconds]
    if not timed:
        return ""
    points = {row.method: (max(milliseconds(row), 0.1), row.figures[figure].value) for row in timed}
    costs = [cost for cost, _ in points.values()]
    low, high = 0.6 * min(costs), 1.7 * max(costs)
    tops = [row.figures[figure].high for row in timed if math.isfinite(row.figures[figure].high)]
    top = min(100.0, 1.1 * max([*tops, *(worth for _, worth in points.values()), 10.0]))
    series = [
        charts.Series(
            row.method,
            page.styles[row.method],
            [points[row.method]],
            (row.figures[figure].low, row.figures[figure].high),
        )
        for row in timed
    ]
    x = charts.Axis("milliseconds a pair: describe, match, refine", low, high, logarithmic=True)
    chart = charts.scatter(series, x, charts.Axis(figure, 0, top), curves.pareto(points))
    return card(
        "Speed against accuracy", chart, "The line joins those that no other beats in both."
    )


def _costs(page: Page) -> str:
    """Tabulate time by stage, and memory."""
    stages = ("describe", "match", "refine", "fit")
    body = "".join(
        f"<tr>{_name(page, row.method)}"
        + "".join(f"<td>{1000 * row.seconds[stage]:.1f}</td>" for stage in stages)
        + f"<td>{milliseconds(row):.1f}</td><td>{row.peak_mib:.0f}</td></tr>"
        for row in page.totals.values()
        if row.seconds
    )
    head = "<tr><th>method</th>" + "".join(f"<th>{stage} ms</th>" for stage in stages)
    head += "<th>a pair ms</th><th>peak MiB</th></tr>"
    return (
        "<h2>Time and memory</h2><p class=note>Medians over all pairs. Describe is of both images, "
        "fit is one robust fit and not part of the time of a pair; the peak is the largest growth of "
        f'memory in a pair.</p><div class="card wide"><table>{head}{body}</table></div>'
    )


def _thresholds(page: Page) -> str:
    """Tabulate what other inlier thresholds give, where several were tried."""
    rows = sweep(page.evaluation)
    if not any(len(row.by_threshold) > 1 for row in rows):
        return ""
    body = "".join(
        f"<tr>{_name(page, row.method)}<td>{escape(row.figure)}</td><td><b>{row.fixed:.1f}</b></td>"
        f"<td>{row.by_threshold[row.best]:.1f} at {row.best:g} px</td><td>"
        + ", ".join(f"{pixels:g}: {value:.1f}" for pixels, value in row.by_threshold.items())
        + "</td></tr>"
        for row in rows
    )
    head = "<tr><th>method</th><th>figure</th><th>fixed</th><th>best</th><th>all, px: %</th></tr>"
    return (
        "<h2>Inlier thresholds</h2><p class=note>Only the fixed one may be quoted: the best was "
        "chosen on the test pairs themselves.</p>"
        f'<div class="card wide"><table>{head}{body}</table></div>'
    )


def _by_group(page: Page) -> str:
    """Tabulate the headline figures by data set, darker for better."""
    groups = [g for g in dict.fromkeys(row.group for row in page.rows) if g != ALL]
    if len(groups) < 2:
        return ""
    cells = {(row.method, row.group): _headline(row) for row in page.rows}
    names = {g: next((c[0] for (_, own), c in cells.items() if own == g and c), "") for g in groups}
    head = "".join(
        f"<th>{escape(g)}<br><span class=small>{escape(names[g])}</span></th>" for g in groups
    )
    body = ""
    for method in page.styles:
        body += f"<tr>{_name(page, method)}"
        for group in groups:
            found = cells.get((method, group))
            body += "<td></td>" if found is None else _shaded(*found)
        body += "</tr>"
    return (
        "<h2>By data set</h2><p class=note>In percent; the darker the better. Of unrelated pairs "
        "the share that was taken for the same place, where less is better.</p>"
        f'<div class="card wide"><table><tr><th>method</th>{head}</tr>{body}</table></div>'
    )


def _headline(row: Row) -> tuple[str, Interval] | None:
    names = [*(figure for figure, _, _ in HEADLINES), "false accepts"]
    return next(((name, row.figures[name]) for name in names if name in row.figures), None)


def _shaded(name: str, interval: Interval) -> str:
    value = interval.value
    if name == "false accepts":
        return f"<td>{value:.1f}</td>"
    return f'<td class=shaded style="--v:{max(value, 0) / 100:.2f}">{value:.1f}</td>'


def _failures(page: Page) -> str:
    reasons = list(dict.fromkeys(r for row in page.totals.values() for r in row.failures))
    if not reasons:
        return "<h2>Failures</h2><p class=note>None: every pair has a model or needs none.</p>"
    head = "".join(f"<th>{escape(reason)}</th>" for reason in reasons)
    body = "".join(
        f"<tr>{_name(page, row.method)}"
        + "".join(f"<td>{row.failures.get(reason, '')}</td>" for reason in reasons)
        + f"<td>{row.pairs}</td></tr>"
        for row in page.totals.values()
    )
    return (
        "<h2>Failures by reason</h2><p class=note>Pairs without matches to score, or without a "
        "model that the matches determine. They count as the worst result and are never left out."
        f"</p><div class='card wide'><table><tr><th>method</th>{head}<th>of pairs</th></tr>{body}"
        "</table></div>"
    )


def _pictures(page: Page) -> str:
    blocks: list[str] = []
    for method, style in page.styles.items():
        found = pictures.extremes(page.records(method))
        shown = [("worst", r) for r in found.worst] + [("best", r) for r in found.best]
        figures = "".join(_picture(page.folder, words, record) for words, record in shown)
        opened = " open" if not blocks else ""
        blocks.append(
            f'<details{opened}><summary><span class="dot {style}"></span>{escape(method)}</summary>'
            f'<div class="grid2">{figures}</div></details>'
        )
    note = "Blue within 3 px of the truth, vermilion beyond, grey where it is unknown; up to 300."
    return f"<h2>Worst and best pairs</h2><p class=note>{note}</p>{''.join(blocks)}"


def _picture(folder: Path, words: str, record: Record) -> str:
    path = folder / pictures.FOLDER / f"{record.key}.jpg"
    image = ""
    if path.is_file():
        data = base64.b64encode(path.read_bytes()).decode()
        alt = escape(f"matches of {record.method} on {record.pair}")
        image = f'<img alt="{alt}" src="data:image/jpeg;base64,{data}">'
    text = f"<figcaption><b>{words}</b> {escape(pictures.caption(record))}</figcaption>"
    return f"<figure class=card>{image}{text}</figure>"


def _foundation(page: Page) -> str:
    """Say what the figures rest on."""
    facts: Mapping[str, str] = notes(page.evaluation)
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items()
    )
    return f"<h2>What this rests on</h2><div class=card><dl>{items}</dl></div>"


def _name(page: Page, method: str) -> str:
    return f'<td><span class="dot {page.styles[method]}"></span>{escape(method)}</td>'


def _figure(interval: Interval | None) -> str:
    return "" if interval is None else escape(plus_minus(interval))
