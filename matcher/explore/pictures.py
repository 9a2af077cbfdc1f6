"""Every picture of one pair under one method, in a folder: what `matcher draw` writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from matcher.explore import charts, plots
from matcher.explore.opened import Fitted, Opened
from matcher.explore.probe import Probe
from matcher.geometry import fitting
from matcher.types import Floats, ScoreMap

_ROWS = 40  # matches in the picture of the attention between them


def draw_pair(opened: Opened, label: str, folder: str | Path) -> list[Path]:
    """Draw all that there is to see of a pair.

    Args:
        opened: The pair, at working size.
        label: Of the method.
        folder: Where to write; missing folders are made.

    Returns:
        The files: matches by confidence, by agreement and, where the truth is known, by error;
        epipolar lines and warp where the matches have such models; keypoints; how each stage
        answers the best match; attention and points at work where there are such layers.
    """
    fitted, folder = opened.fitted(label), Path(folder)
    return [
        *_of_matches(opened, fitted, label, folder),
        *_of_models(opened, fitted, label, folder),
        *_of_stages(opened, fitted.probe, label, folder),
        *_of_layers(fitted.probe, label, folder),
    ]


def _of_matches(opened: Opened, fitted: Fitted, label: str, folder: Path) -> Iterator[Path]:
    sources = opened.shown[0].image, opened.shown[1].image
    matches = fitted.probe.matches
    yield plots.draw_matches(*sources, matches, folder / "matches.png", title=label)
    yield plots.draw_matches(
        *sources, matches, folder / "inliers.png", inliers=fitted.inliers, title=label
    )
    if fitted.errors is not None:
        errors = fitted.errors.astype(np.float32)
        path = folder / "truth.png"
        yield plots.draw_matches(*sources, matches, path, errors=errors, title=label)
    for side, described in enumerate(fitted.probe.descriptions):
        path, scores = folder / f"keypoints-{side}.png", described.scores
        yield plots.draw_keypoints(
            sources[side], described.points, path, scores=scores, title=label
        )


def _of_models(opened: Opened, fitted: Fitted, label: str, folder: Path) -> Iterator[Path]:
    sources = opened.shown[0].image, opened.shown[1].image
    matches = fitted.probe.matches
    views = fitting.fit_fundamental(matches.points0, matches.points1)
    if views.success and views.model is not None:
        agreeing = matches.select(views.inliers)
        path = folder / "epipolar.png"
        yield plots.draw_epipolar_lines(*sources, agreeing, views.model, path, title=label)
    if fitted.homography is not None:
        path = folder / "overlay.png"
        yield plots.draw_overlay(*sources, fitted.homography, path, title=label)


def _of_stages(opened: Opened, asked: Probe, label: str, folder: Path) -> Iterator[Path]:
    """Draw how each stage answers the point of the best match."""
    if not len(asked.matches):
        return
    sources = opened.shown[0].image, opened.shown[1].image
    x, y = asked.matches.points0[0].round()
    point0 = float(x), float(y)
    answer = asked.answer(point0)
    looked = answer.attention.mean((0, 1)) if len(answer.attention) else None
    maps = [("pixels", opened.pixels(point0))]
    for name, kind, scores in (
        ("before", "cosine of the descriptors", answer.before),
        ("attention", "cross-attention, mean of layers and heads", looked),
        ("after", "similarity in context", answer.after),
        ("assignment", asked.assignment, answer.assignment),
    ):
        if scores is not None:
            maps.append((name, _score_map(asked, scores, kind)))
    for number, (name, score_map) in enumerate(maps, 1):
        path = folder / f"stage-{number}-{name}.png"
        yield plots.draw_score_map(*sources, point0, score_map, path, title=label)


def _score_map(asked: Probe, scores: Floats, kind: str) -> ScoreMap:
    return ScoreMap(asked.descriptions[1].points, scores, kind=kind)


def _of_layers(asked: Probe, label: str, folder: Path) -> Iterator[Path]:
    """Draw what the layers of attention did, where there are such."""
    if not asked.at_work:
        return
    yield charts.draw_pruning(asked.at_work, folder / "layers.png", title=label)
    indices = asked.found.indices
    if indices is None or not asked.layers:
        return
    rows, columns = indices[:_ROWS].T
    weights = asked.attention(asked.layers, rows).mean(0)[:, columns]
    title = f"{label}: last cross-attention between the best matches, image 0 down, image 1 across"
    yield charts.draw_attention(weights, folder / "attention.png", title=title)
