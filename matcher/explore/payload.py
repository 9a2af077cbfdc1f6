"""Write what the page asks for as JSON: numbers packed in base64, NaN as null, scores in a byte each."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher import __version__
from matcher.explore.opened import Fitted, Opened, Shown
from matcher.types import Floats, Points, ScoreMap

Json = dict[str, Any]
Point = tuple[float, float]


def encode(value: Json) -> bytes:
    """Write JSON that may stand inside a script element too: no tag can end it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text.encode()


def of_pair(opened: Opened) -> Json:
    """Tell what is open: both images, the methods, and whether the truth is known."""
    return {
        "version": __version__,
        "images": [_of_image(shown) for shown in opened.shown],
        "methods": list(opened.makers),
        "truth": opened.truth is not None,
    }


def _of_image(shown: Shown) -> Json:
    (height, width), (given_height, given_width) = shown.working_size, shown.size
    return {
        "name": shown.name,
        "width": width,
        "height": height,
        "givenWidth": given_width,
        "givenHeight": given_height,
    }


def of_matches(fitted: Fitted) -> Json:
    """Tell a method's tokens and matches, in pixels at working size."""
    asked, matches = fitted.probe, fitted.probe.matches
    return {
        "tokens0": _packed(asked.descriptions[0].points),
        "tokens1": _packed(asked.descriptions[1].points),
        "points0": _packed(matches.points0),
        "points1": _packed(matches.points1),
        "found1": _packed(asked.found.points1),
        "scores": _packed(matches.scores),
        "inliers": fitted.inliers.astype(int).tolist(),
        "errors": None if fitted.errors is None else _listed(fitted.errors),
        "model": fitted.model,
        "homography": None if fitted.homography is None else fitted.homography.ravel().tolist(),
        "layers": asked.layers,
        "heads": asked.heads,
        "assignment": asked.assignment,
        "untrained": matches.untrained,
        "milliseconds": [round(1000 * seconds, 1) for seconds in asked.seconds],
    }


def of_answer(fitted: Fitted, point0: Point, opened: Opened) -> Json:
    """Tell how a method's stages answer a point (x, y) of image 0."""
    answer = fitted.probe.answer(point0)
    points1 = fitted.probe.descriptions[1].points
    token = None
    if answer.token >= 0:
        token = fitted.probe.descriptions[0].points[answer.token].tolist()
    return {
        "token": token,
        "true": None if token is None else opened.true_place(token),
        "match": answer.match,
        "dustbin": answer.dustbin,
        "before": _scored(answer.before, points1),
        "attention": [[_scored(row, points1, True) for row in each] for each in answer.attention],
        "mean": [_scored(each.mean(0), points1, True) for each in answer.attention],
        "overall": _scored(_mean(answer.attention), points1, True),
        "after": _scored(answer.after, points1),
        "assignment": _scored(answer.assignment, points1, True),
    }


def of_pixels(score_map: ScoreMap, true: Point | None, most: int | None = None) -> Json:
    """Tell the NCC of every place of image 1.

    Args:
        score_map: On a grid.
        true: Where the point truly lies, if that is known.
        most: Columns to tell at most: each stands for the best of its block of places.
    """
    rows, columns = score_map.grid or (0, 0)
    scores = score_map.scores.reshape(rows, columns)
    step = 1 if most is None else -(-columns // most)
    shrunk = _block_maxima(scores, step)
    told = _scored(shrunk.ravel(), None) or {}
    return {
        **told,
        "peak": list(score_map.best),
        "columns": shrunk.shape[1],
        "rows": shrunk.shape[0],
        "step": step,
        "true": true,
    }


def _scored(scores: Floats | None, places: Points | None, root: bool = False) -> Json | None:
    """Tell (N,) scores: their best and its place, and of each a level of brightness.

    Levels rise from 0 (also for negative scores, where the best is positive) to 255; with the root
    of the score where `root` is set, so that the small of a sharp distribution are seen.
    """
    if scores is None or not len(scores):
        return None
    low, high = float(scores.min()), float(scores.max())
    floor = max(low, 0.0) if high > 0 else low
    shares = np.clip((scores - floor) / max(high - floor, 1e-12), 0, 1)
    levels = np.rint(255 * (np.sqrt(shares) if root else shares)).astype(np.uint8)
    told: Json = {"low": low, "high": high, "levels": base64.b64encode(levels.tobytes()).decode()}
    if places is not None:
        told["peak"] = places[int(scores.argmax())].tolist()
    return told


def _mean(attention: Floats) -> Floats | None:
    """Average the weights of all layers and heads."""
    return attention.mean((0, 1)) if len(attention) else None


def _block_maxima(scores: Floats, step: int) -> Floats:
    """Shrink (H, W) by a whole factor, keeping the best of each block."""
    rows, columns = scores.shape
    padded = np.pad(scores, ((0, -rows % step), (0, -columns % step)), mode="edge")
    blocks = padded.reshape(padded.shape[0] // step, step, padded.shape[1] // step, step)
    maxima: Floats = blocks.max((1, 3))
    return maxima


def _packed(values: Floats) -> str:
    """Pack numbers as little-endian float32 in base64."""
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode()


def _listed(values: NDArray[np.floating]) -> list[float | None]:
    """List numbers to a hundredth; null for what is not finite: NaN and infinite alike."""
    return [round(float(value), 2) if np.isfinite(value) else None for value in values]
