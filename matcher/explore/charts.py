"""Diagrams of what matching did: attention, Sinkhorn's convergence, pruning, the graph of the pairs.

Like the pictures on photographs, each is one file, drawn without a display, and none fails for want
of something to draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from matcher.explore.canvas import BLUE, BRIGHT, GREY, INK, VERMILION, chart, counted, save_page
from matcher.types import Matrix

_WRITTEN = 20  # rows and columns whose weights are written out
_SHARP = 600  # rows or columns that a picture shows one by one
_NAMED = 60  # images whose names are legible round a circle
_COLOURS = (BLUE, VERMILION, "#00a6a6", "#8f5bd6", BRIGHT, INK)


def draw_attention(
    weights: ArrayLike,
    path: str | Path,
    *,
    queries: Sequence[str] = (),
    keys: Sequence[str] = (),
    title: str = "",
) -> Path:
    """Draw the weights of attention as a table of colours, queries down and keys across.

    Args:
        weights: (M, N); of more than 600 rows or columns the largest of a block stands for it.
        path: Where to write.
        queries: Names of the rows, or none.
        keys: Names of the columns, or none.
        title: A line above the picture.

    Raises:
        ValueError: The weights are not (M, N), or names are not one a row or column.
    """
    table = np.asarray(weights, np.float64)
    if table.ndim != 2:
        raise ValueError(f"weights must be (M, N), not {table.shape}")
    for name, given, size in zip(("queries", "keys"), (queries, keys), table.shape, strict=True):
        if given and len(given) != size:
            raise ValueError(f"{name} has {len(given)} names for {size}")
    page, axes = chart(
        title, 4.5 if not table.size else float(np.clip(9 * len(table) / table.shape[1], 3, 9))
    )
    axes.grid(visible=False)
    axes.set(xlabel="keys", ylabel="queries")
    if table.size:
        extent = (-0.5, table.shape[1] - 0.5, len(table) - 0.5, -0.5)
        shown = _block_maxima(table, _SHARP)
        axes.imshow(shown, cmap="inferno", vmin=0, extent=extent, aspect="auto")
        _write_weights(axes, table)
    for axis, names in ((axes.yaxis, queries), (axes.xaxis, keys)):
        if names:
            axis.set_ticks(range(len(names)), names, size=8)
    words = f"{counted(len(table), 'query', 'queries')}, {counted(table.shape[1], 'key')}"
    most = f", up to {table.max():.3g} bright" if table.size else ""
    return save_page(page, path, [(BRIGHT, words + most)])


def draw_convergence(
    residuals: Mapping[str, ArrayLike], path: str | Path, *, title: str = ""
) -> Path:
    """Draw how the sums of a transport come right with each step of Sinkhorn's iteration.

    Args:
        residuals: By label, (S,) shares of the mass that lie in the wrong row after 1, 2, … steps:
            `Assignment.residual` of `matcher.nn.sinkhorn`.
        path: Where to write.
        title: A line above the picture.
    """
    page, axes = chart(title)
    lines = {label: np.asarray(values, np.float64).ravel() for label, values in residuals.items()}
    for (_, values), colour in zip(lines.items(), _cycle(len(lines)), strict=True):
        steps = np.arange(1, len(values) + 1)
        axes.plot(steps, np.maximum(values, 1e-16), "o-", color=colour, markersize=3, linewidth=1.4)
    axes.set(xlabel="steps", ylabel="share of the mass in the wrong row")
    if any(len(values) for values in lines.values()):
        axes.set_yscale("log")
    words = [
        f"{label}: {values[-1]:.2g} after {counted(len(values), 'step')}"
        if len(values)
        else f"{label}: no steps"
        for label, values in lines.items()
    ]
    legend = list(zip(_cycle(len(lines)), words, strict=True))
    return save_page(page, path, legend or [(GREY, "no transports")])


def draw_pruning(points: ArrayLike, path: str | Path, *, title: str = "") -> Path:
    """Draw how many points of either image are still at work in each layer.

    Args:
        points: (L, 2) counts of image 0 and image 1 in layers 1, 2, …; layers after an early stop
            are not listed.
        path: Where to write.
        title: A line above the picture.

    Raises:
        ValueError: They are not (L, 2).
    """
    counts = np.asarray(points, np.int64)
    counts = counts.reshape(0, 2) if counts.size == 0 else counts
    if counts.ndim != 2 or counts.shape[1] != 2:
        raise ValueError(f"points must be (L, 2), not {counts.shape}")
    page, axes = chart(title)
    layers = np.arange(1, len(counts) + 1)
    for side, colour in enumerate((BLUE, VERMILION)):
        axes.bar(layers + 0.38 * (side - 0.5), counts[:, side], 0.36, color=colour)
    axes.set(xlabel="layer", ylabel="points at work", xticks=layers[:: max(1, len(layers) // 16)])
    words = [
        f"image {side}: {counts[0, side]:,} to {counts[-1, side]:,}" if len(counts) else "no layers"
        for side in (0, 1)
    ]
    return save_page(page, path, list(zip((BLUE, VERMILION), words, strict=True)))


def draw_pair_graph(
    names: Sequence[str],
    pairs: ArrayLike,
    counts: ArrayLike,
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Draw which images are matched with which: images round a circle, a line for each pair.

    Args:
        names: Of the images; written where there are at most 60.
        pairs: (P, 2) numbers of the images of each pair.
        counts: (P,) matches of each pair, or inliers; the more, the stronger the line. A pair of
            none joins nothing.
        path: Where to write.
        title: A line above the picture.

    Raises:
        ValueError: A pair is of images that are not there, or the counts are not one a pair.
    """
    ends = np.asarray(pairs, np.int64).reshape(-1, 2)
    strengths = np.asarray(counts, np.float64).ravel()
    if len(strengths) != len(ends):
        raise ValueError(f"counts has {len(strengths)} values for {len(ends)} pairs")
    if ends.size and not 0 <= ends.min() <= ends.max() < len(names):
        raise ValueError(f"pairs must be of images 0 to {len(names) - 1}, not {ends.max()}")
    ends, strengths = ends[strengths > 0], strengths[strengths > 0]
    page, axes = chart(title, 9.0)
    axes.set_axis_off()
    axes.set(xlim=(-1.5, 1.5), ylim=(-1.3, 1.3), aspect="equal")
    angles = np.pi / 2 - 2 * np.pi * np.arange(len(names)) / max(len(names), 1)
    places = np.stack([np.cos(angles), np.sin(angles)], 1)
    _draw_edges(axes, places[ends], strengths)
    groups, alone = _components(len(names), ends)
    size = float(np.clip(1500 / max(len(names), 1), 4, 60))
    x, y = places.T
    axes.scatter(x, y, size, c=np.where(alone, VERMILION, INK), zorder=3)
    if len(names) <= _NAMED:
        _write_names(axes, names, places, angles)
    words = (
        f"{counted(len(names), 'image')}, {counted(len(ends), 'pair')}, {counted(groups, 'group')}"
    )
    return save_page(page, path, [(BRIGHT, words), (VERMILION, f"{alone.sum():,} alone")])


def _block_maxima(table: Matrix, most: int) -> Matrix:
    """Shrink a table to at most so many rows and columns; a peak stays a peak."""
    for axis in (0, 1):
        edges = np.unique(np.linspace(0, table.shape[axis], most + 1).astype(np.int64))[:-1]
        if table.shape[axis] > most:
            table = np.maximum.reduceat(table, edges, axis=axis)
    return table


def _write_weights(axes: Axes, table: Matrix) -> None:
    """Write small tables out, dark on bright."""
    if max(table.shape) > _WRITTEN:
        return
    for (row, column), weight in np.ndenumerate(table):
        colour = INK if weight > 0.6 * table.max() else "white"
        axes.text(column, row, f"{weight:.2f}", ha="center", va="center", size=7, color=colour)


def _draw_edges(axes: Axes, ends: Matrix, strengths: Matrix) -> None:
    """Draw (P, 2, 2) lines, the strong on top; by logarithm, for counts spread over decades."""
    order = np.argsort(strengths)
    shares = np.log1p(strengths[order]) / np.log1p(strengths.max()) if len(strengths) else strengths
    colours = colormaps["plasma"](0.1 + 0.75 * shares)
    colours[:, 3] = np.clip(30 / max(len(shares), 1) ** 0.7, 0.08, 0.9)
    axes.add_collection(
        LineCollection(list(ends[order]), colors=colours, linewidths=0.4 + 2 * shares)
    )


def _components(count: int, ends: NDArray[np.int64]) -> tuple[int, NDArray[np.bool_]]:
    """Count the groups of images that pairs join, and tell which images are in no pair."""
    if not count:
        return 0, np.zeros(0, np.bool_)
    joined = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(count, count))
    groups = int(connected_components(joined, directed=False)[0])
    return groups, ~np.isin(np.arange(count), ends)


def _write_names(axes: Axes, names: Sequence[str], places: Matrix, angles: Matrix) -> None:
    """Write names outwards from the circle."""
    for name, (x, y), angle in zip(names, places, angles, strict=True):
        left = np.cos(angle) < -1e-9
        axes.text(
            1.04 * x,
            1.04 * y,
            name,
            rotation=float(np.degrees(angle)) + (180 if left else 0),
            rotation_mode="anchor",
            ha="right" if left else "left",
            va="center",
            size=7,
            color=INK,
            parse_math=False,
        )


def _cycle(count: int) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(count)]
