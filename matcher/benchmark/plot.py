"""Draw how times grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from matcher.benchmark.timing import Timing
from matcher.storage import write_figure


def draw_growth(curves: Mapping[str, Mapping[int, Sequence[Timing]]], path: Path) -> Path:
    """Draw the median times of contenders over what grows, both axes logarithmic.

    Args:
        curves: One panel each: its axis ("long side, pixels"), and timings by its values.
        path: The picture to write.

    Returns:
        The path.
    """
    figure = Figure(figsize=(5 * len(curves), 4), layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for panel, (title, steps) in zip(panels, curves.items(), strict=True):
        names = list(dict.fromkeys(each.name for timings in steps.values() for each in timings))
        for name in names:
            points = [
                (step, 1e3 * each.median)
                for step, timings in steps.items()
                for each in timings
                if each.name == name
            ]
            panel.plot(*zip(*points, strict=True), marker="o", label=name)
        panel.set(xscale="log", yscale="log", xlabel=title, ylabel="milliseconds a pair")
        panel.set_xticks(list(steps), [str(step) for step in steps])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].legend()
    return write_figure(path, figure)
