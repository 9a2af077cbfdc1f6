"""The sections of a report that are charts."""

from __future__ import annotations

from matcher.evaluation import charts, curves
from matcher.evaluation.records import Kind
from matcher.evaluation.report_page import Page, card, section

_LIMITS = {
    Kind.HOMOGRAPHY: (10.0, "corner error, px"),
    Kind.PLACED: (10.0, "corner error, px"),
    Kind.LABELLED: (20.0, "median epipolar distance of the labelled points, px"),
    Kind.POSE: (20.0, "pose error, °"),
}


_TICKS = 8  # of a sweep; more do not fit
_UNITS = {"rotation": "degrees", "scale": "times", "blur": "pixels", "noise": "share of white"}


def error_curve(page: Page, kind: Kind) -> str:
    """Draw the share of pairs below each error of a kind of model."""
    if kind not in _LIMITS:
        return ""
    limit, title = _LIMITS[kind]
    series = [
        charts.Series(method, style, curves.cumulative(page.records(method), kind, limit))
        for method, style in page.styles.items()
    ]
    axes = charts.Axis(title, 0, limit), charts.Axis("share of the pairs", 0, 1, percent=True)
    note = "Share of the pairs with an error up to x; a pair that failed never enters."
    return card("Error curves", charts.lines(series, *axes), note)


def sweeps(page: Page) -> str:
    """Draw precision over what a data set varies, for every one that has levels."""
    cards = []
    for sweep in curves.sweeps(page.evaluation.records):
        levels = sorted({x for curve in sweep.curves.values() for x, _ in curve})
        series = [
            charts.Series(method, page.styles[method], curve)
            for method, curve in sweep.curves.items()
        ]
        ticks = tuple(levels[:: 1 if len(levels) <= _TICKS else 3])
        axes = (
            charts.Axis(_UNITS.get(sweep.group, "level"), levels[0], levels[-1], at=ticks),
            charts.Axis("matches within 3 px", 0, 1, percent=True),
        )
        cards.append(card(sweep.group.capitalize(), charts.lines(series, *axes, dots=True)))
    if not cards:
        return ""
    note = (
        "Mean share of the matches that are right, pairs without any counting 0, over what a data "
        "set varies: degrees of a turn, times of a zoom, pixels of a blur, the number of an image."
    )
    return section(page, "Sweeps", note, cards)


def scores(page: Page) -> str:
    """Draw precision against recall, and reliability."""
    falling, diagram, calibrated = [], [], []
    for method, style in page.styles.items():
        records = page.records(method)
        if curve := curves.precision_recall(records):
            falling.append(charts.Series(method, style, curve))
        found = curves.reliability_of(records)
        seen = found.counts > 0.005 * found.counts.sum()
        points = list(zip(found.confidence[seen], found.accuracy[seen], strict=True))
        if points:
            diagram.append(charts.Series(method, style, points))
            calibrated.append(f"{method} {found.expected_calibration_error:.2f}")
    if not falling:
        return ""
    share = charts.Axis("share of the right matches taken in", 0, 1, percent=True)
    right = charts.Axis("right within 3 px", 0, 1, percent=True)
    cards = [
        card("Precision over recall", charts.lines(falling, share, right)),
        card(
            "Reliability",
            charts.diagonal(diagram, charts.Axis("score", 0, 1), right),
            f"Expected calibration error: {'; '.join(calibrated)}.",
        ),
    ]
    note = (
        "Matches of all pairs together, by falling score. Scores that can be read as probabilities "
        "follow the diagonal."
    )
    return section(page, "What scores are worth", note, cards)
