"""Small charts as SVG text: they lie in the page itself and take its colours, light or dark.

Colours are classes s0 ... s7 of the page's style sheet; rows of the same method are dashed (refined) or
thick (grown).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from matcher.evaluation.settings import GROWN, REFINED, method_of

WIDTH, HEIGHT = 460, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 22, 10, 40
_LETTER, _LINE = 6.6, 13  # width and height of text in the units of the chart
COLOURS = 8


@dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    Attributes:
        title: With the unit.
        low: Where it begins.
        high: Where it ends.
        logarithmic: Whether equal factors are equal steps; `low` is positive then.
        percent: Whether its values are shares, which are written in percent.
        at: Its ticks; those that are round where none are given.
    """

    title: str
    low: float
    high: float
    logarithmic: bool = False
    percent: bool = False
    at: tuple[float, ...] = ()

    def share(self, value: float) -> float:
        """Tell how far along the axis a value lies, 0 to 1; what is beyond stops at the end."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return min(max((value - low) / (high - low), 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Give the ticks, or choose four to eight round values."""
        if self.at:
            return list(self.at)
        if self.logarithmic:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if self.high / self.low < 1000 else (1,)
            values = [step * 10.0**decade for decade in decades for step in steps]
            return [value for value in values if self.low <= value <= self.high]
        rough = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(n * unit for n in (1, 2, 2.5, 5, 10) if n * unit >= 0.8 * rough)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def written(self, value: float) -> str:
        """Write a tick."""
        return f"{100 * value:.0f} %" if self.percent else f"{value:g}"


@dataclass(frozen=True)
class Series:
    """A line of a chart, or one point of a scatter plot.

    Attributes:
        name: For the tooltip.
        style: Its class, from `style_of`.
        points: (x, y) in the units of the axes.
        interval: Lower and upper limit of the one point's y; drawn as a bar.
    """

    name: str
    style: str
    points: Sequence[tuple[float, float]]
    interval: tuple[float, float] | None = None


def style_of(methods: Sequence[str]) -> dict[str, str]:
    """Give each row of a report its classes: rows of one method share a colour."""
    bases = list(dict.fromkeys(map(method_of, methods)))
    return {
        row: f"s{bases.index(method_of(row)) % COLOURS}"
        + (" dashed" if row.endswith(REFINED) else " thick" if row.endswith(GROWN) else "")
        + (" dotted" if bases.index(method_of(row)) >= COLOURS else "")
        for row in methods
    }


def lines(series: Sequence[Series], x: Axis, y: Axis, *, dots: bool = False) -> str:
    """Draw a line a series; `dots` marks its points too."""
    drawn = [_grid(x, y)]
    for each in series:
        places = [_place(point, x, y) for point in each.points]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        marks = "".join(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3"/>' for px, py in places)
        drawn.append(
            f'<g class="{each.style}"><title>{escape(each.name)}</title>'
            f'<polyline points="{path}"/>{marks if dots else ""}</g>'
        )
    return _svg(drawn, f"{y.title} over {x.title}")


def diagonal(series: Sequence[Series], x: Axis, y: Axis) -> str:
    """Draw lines with dots beside the diagonal on which x equals y."""
    (x0, y0), (x1, y1) = _place((x.low, y.low), x, y), _place((x.high, y.high), x, y)
    ideal = f'<line class="ideal" x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}"/>'
    return lines(series, x, y, dots=True).replace("</svg>", f"{ideal}</svg>")


def scatter(series: Sequence[Series], x: Axis, y: Axis, front: Sequence[str]) -> str:
    """Draw a labelled point a series with its interval; those of `front` are joined."""
    places = {each.name: _place(each.points[0], x, y) for each in series}
    joined = " ".join(f"{places[name][0]:.1f},{places[name][1]:.1f}" for name in front)
    drawn = [_grid(x, y), f'<polyline class="front" points="{joined}"/>']
    taken: list[tuple[float, float, float]] = []
    for each in sorted(series, key=lambda one: -places[one.name][1]):
        px, py = places[each.name]
        bar = ""
        if each.interval is not None and all(map(math.isfinite, each.interval)):
            low, high = (_place((each.points[0][0], limit), x, y)[1] for limit in each.interval)
            bar = f'<line class="bar" x1="{px:.1f}" y1="{low:.1f}" x2="{px:.1f}" y2="{high:.1f}"/>'
        drawn.append(
            f'<g class="{each.style}"><title>{escape(each.name)}</title>{bar}'
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5"/>{_label(each.name, px, py, taken)}</g>'
        )
    return _svg(drawn, f"{y.title} over {x.title}")


def interval_bar(value: float, low: float, high: float, top: float, style: str) -> str:
    """Draw a value as a bar from 0 to `top` with its interval, for a cell of a table."""
    scale = 100 / top
    whisker = ""
    if math.isfinite(low) and math.isfinite(high):
        whisker = (
            f'<line x1="{low * scale:.1f}" y1="6" x2="{high * scale:.1f}" y2="6"/>'
            f'<line x1="{low * scale:.1f}" y1="3" x2="{low * scale:.1f}" y2="9"/>'
            f'<line x1="{high * scale:.1f}" y1="3" x2="{high * scale:.1f}" y2="9"/>'
        )
    return (
        f'<svg class="cell {style}" viewBox="0 0 100 12" preserveAspectRatio="none">'
        f'<rect width="{max(value * scale, 0):.1f}" height="12"/>{whisker}</svg>'
    )


def _label(name: str, x: float, y: float, taken: list[tuple[float, float, float]]) -> str:
    """Write a name beside a point, above those that are there: `taken` is (left, right, height)."""
    long = _LETTER * len(name)
    left = x + 9 if x + 9 + long < WIDTH else x - 9 - long
    height = min(y + 4, HEIGHT - _BOTTOM - 4)
    for other_left, other_right, other_height in taken:  # from below
        if left < other_right and other_left < left + long and abs(height - other_height) < _LINE:
            height = other_height - _LINE
    taken.append((left, left + long, height))
    return f'<text x="{left:.1f}" y="{height:.1f}">{escape(name)}</text>'


def _place(point: tuple[float, float], x: Axis, y: Axis) -> tuple[float, float]:
    across = _LEFT + x.share(point[0]) * (WIDTH - _LEFT - _RIGHT)
    return across, HEIGHT - _BOTTOM - y.share(point[1]) * (HEIGHT - _TOP - _BOTTOM)


def _grid(x: Axis, y: Axis) -> str:
    """Draw ticks, grid lines and titles."""
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = []
    for tick in x.ticks():
        px, _ = _place((tick, y.low), x, y)
        parts.append(f'<line x1="{px:.1f}" y1="{_TOP}" x2="{px:.1f}" y2="{bottom}"/>')
        label = escape(x.written(tick))
        parts.append(f'<text x="{px:.1f}" y="{bottom + 15}" text-anchor="middle">{label}</text>')
    for tick in y.ticks():
        _, py = _place((x.low, tick), x, y)
        parts.append(f'<line x1="{_LEFT}" y1="{py:.1f}" x2="{right}" y2="{py:.1f}"/>')
        label = escape(y.written(tick))
        parts.append(f'<text x="{_LEFT - 6}" y="{py + 4:.1f}" text-anchor="end">{label}</text>')
    middle = (_LEFT + right) / 2
    title = f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x.title)}</text>'
    return f'<g class="grid">{"".join(parts)}{title}</g>'


def _svg(parts: Sequence[str], label: str) -> str:
    return (
        f'<svg class="chart" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(parts)}</svg>'
    )
