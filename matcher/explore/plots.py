"""Pictures on photographs: matches, keypoints, epipolar lines, warps, score maps, template hits.

Each function writes one file and draws without a display. None fails for want of something to draw:
a picture without matches is the images and the words "0 matches".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike, NDArray
from PIL import Image as PilImage

from matcher import images
from matcher.explore.canvas import (
    BLUE,
    BRIGHT,
    GREY,
    VERMILION,
    Colours,
    Legend,
    by_score,
    counted,
    draw_points,
    label,
    one_colour,
    one_image,
    ring,
    save_page,
    shown,
    two_images,
)
from matcher.geometry.cameras import homogeneous
from matcher.types import Floats, Image, Mask, Matches, Matrix, Points, ScoreMap, TemplateHit

_CORRECT_PIXELS = 3.0  # the middle one of the usual thresholds 1, 3 and 5
_LABELS = 60  # more of them hide the picture
_EPIPOLAR_LINES = 40  # more of them hide the picture


def draw_matches(  # noqa: PLR0913 - three of them are options of the drawing
    image0: object,
    image1: object,
    matches: Matches,
    path: str | Path,
    *,
    inliers: Mask | None = None,
    errors: Floats | None = None,
    title: str = "",
) -> Path:
    """Draw two images side by side at one height, with a line for every match.

    Args:
        image0: Anything that `matcher.read` takes.
        image1: Likewise, of any size.
        matches: Any number of them.
        path: Where to write; missing folders are made.
        inliers: (N,) True for matches that a model explains: blue, the others vermilion.
        errors: (N,) distances from the truth in pixels: blue up to 3, vermilion beyond, grey where
            NaN. They take the place of `inliers`; without both, colours show the scores.
        title: A line above the picture.

    Returns:
        The path.

    Raises:
        ValueError: `inliers` or `errors` are not one a match.
    """
    colours, legend = _match_colours(matches, inliers, errors)
    page, axes, placed0, placed1 = two_images(image0, image1, title)
    ends = np.stack([placed0.at(matches.points0), placed1.at(matches.points1)], axis=1)
    _draw_lines(axes, ends, colours)
    return save_page(page, path, legend)


def draw_keypoints(
    image: object,
    points: Points,
    path: str | Path,
    *,
    scores: Floats | None = None,
    title: str = "",
) -> Path:
    """Draw (N, 2) keypoints of an image, coloured by their scores where those are given."""
    page, axes, placed = one_image(image, title)
    words = counted(len(points), "keypoint")
    if scores is None:
        colours, legend = one_colour(BLUE, len(points)), (BLUE, words)
    else:
        colours, legend = by_score(scores), (BRIGHT, f"{words}, the brighter the better")
    draw_points(axes, placed.at(points), colours, ink=8000)
    return save_page(page, path, [legend])


def draw_score_map(
    image0: object,
    image1: object,
    point0: tuple[float, float],
    score_map: ScoreMap,
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Draw a point (x, y) of image 0 and, over image 1, how well each place of it answers.

    The best place is ringed like the point. Images are as `matcher.read` takes them.
    """
    page, axes, placed0, placed1 = two_images(image0, image1, title)
    places = placed1.at(score_map.points1)
    _draw_scores(axes, places, score_map)
    ring(axes, placed0.at(point0)[0])
    words = f"{score_map.kind}: no places"
    if len(places):
        ring(axes, places[int(np.argmax(score_map.scores))])
        low, high = score_map.scores.min(), score_map.scores.max()
        words = f"{score_map.kind}: {low:.3g} dark, {high:.3g} bright, best place ringed"
    return save_page(page, path, [(VERMILION, words)])


def draw_hits(
    scene: object, hits: Sequence[TemplateHit], path: str | Path, *, title: str = ""
) -> Path:
    """Outline where templates were found, with their scores; a stroke shows the upper edge."""
    page, axes, placed = one_image(scene, title)
    casing = [withStroke(linewidth=2.6, foreground="white")]
    for hit in hits:
        corners = placed.at(hit.corners)
        outline = np.concatenate([corners, corners[:1]])
        upward = np.stack([corners.mean(axis=0), corners[:2].mean(axis=0)])
        axes.plot(*outline.T, color=BLUE, linewidth=1.3, path_effects=casing)
        axes.plot(*upward.T, color=VERMILION, linewidth=1.1, path_effects=casing)
        if len(hits) <= _LABELS:
            label(axes, corners[corners[:, 1].argmin()], f"{hit.score:.2f}")
    return save_page(page, path, [(BLUE, counted(len(hits), "detection"))])


def draw_epipolar_lines(
    image0: object,
    image1: object,
    matches: Matches,
    fundamental: ArrayLike,
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Draw matches with the lines on which a fundamental matrix wants them, in both images.

    Args:
        image0: Anything that `matcher.read` takes.
        image1: Likewise, of any size.
        matches: Any number of them; lines are drawn for the best 40.
        fundamental: (3, 3), pixel1 @ fundamental @ pixel0 = 0.
        path: Where to write.
        title: A line above the picture.

    Raises:
        ValueError: The matrix is not (3, 3).
    """
    matrix = np.asarray(fundamental, np.float64)
    if matrix.shape != (3, 3):
        raise ValueError(f"fundamental must be (3, 3), not {matrix.shape}")
    best = matches.select(slice(_EPIPOLAR_LINES))
    page, axes, *placed = two_images(image0, image1, title)
    lines = homogeneous(best.points1) @ matrix, homogeneous(best.points0) @ matrix.T
    colours = by_score(np.linspace(1, 0, len(best), dtype=np.float32))
    for place, line, points in zip(placed, lines, (best.points0, best.points1), strict=True):
        ends = place.at(_chords(line, place.size)).reshape(-1, 2, 2)
        there = np.isfinite(ends).all((1, 2))
        axes.add_collection(
            LineCollection(list(ends[there]), colors=colours[there], linewidths=0.9)
        )
        draw_points(axes, place.at(points), colours)
    words = f"{counted(len(best), 'match', 'matches')} with the lines of their partners"
    return save_page(page, path, [(BRIGHT, words)])


def draw_overlay(
    image0: object,
    image1: object,
    pixels1_from_pixels0: ArrayLike,
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Draw image 0, warped by a homography, over image 1: red over cyan, grey where they agree.

    Args:
        image0: Anything that `matcher.read` takes.
        image1: Likewise, of any size; the picture has its frame.
        pixels1_from_pixels0: (3, 3) homography.
        path: Where to write.
        title: A line above the picture.

    Raises:
        ValueError: The matrix is not (3, 3), or has no inverse.
    """
    matrix = np.asarray(pixels1_from_pixels0, np.float64)
    if matrix.shape != (3, 3) or not abs(np.linalg.det(matrix)) > 0:
        raise ValueError(
            f"pixels1_from_pixels0 must be (3, 3) with an inverse, not {matrix.tolist()}"
        )
    grey0, grey1 = (images.grey(shown(source)) for source in (image0, image1))
    warped, inside = _warped(grey0, matrix, (grey1.shape[0], grey1.shape[1]))
    red = np.where(inside, warped, grey1)
    page, axes, placed = one_image(grey1, title)
    axes.imshow(np.stack([red, grey1, grey1], 2).clip(0, 1), extent=placed.extent, aspect="equal")
    covered = f"{inside.mean():.0%} of image 1 covered"
    return save_page(
        page, path, [("#e00000", f"image 0, warped: {covered}"), ("#00a6a6", "image 1")]
    )


def _match_colours(
    matches: Matches, inliers: Mask | None, errors: Floats | None
) -> tuple[Colours, Legend]:
    """Choose a colour for every match, and say what the colours mean."""
    for name, given in (("inliers", inliers), ("errors", errors)):
        if given is not None and len(given) != len(matches):
            raise ValueError(f"{name} has {len(given)} values for {len(matches)} matches")
    if errors is not None:
        unknown = np.isnan(errors)
        right = ~unknown & (errors <= _CORRECT_PIXELS)
        names = (f"within {_CORRECT_PIXELS:g} px", "beyond")
    elif inliers is not None:
        unknown, right = np.zeros(len(matches), bool), np.asarray(inliers, bool)
        names = ("inliers", "outliers")
    else:
        words = counted(len(matches), "match", "matches") + ", the brighter the better"
        return by_score(matches.scores), [(BRIGHT, words)]
    colours = one_colour(VERMILION, len(matches))
    colours[right], colours[unknown] = one_colour(BLUE, 1), one_colour(GREY, 1)
    wrong = len(matches) - int(right.sum()) - int(unknown.sum())
    legend = [(BLUE, f"{right.sum():,} {names[0]}"), (VERMILION, f"{wrong:,} {names[1]}")]
    return colours, legend + ([(GREY, f"{unknown.sum():,} unknown")] if unknown.any() else [])


def _draw_lines(axes: Axes, ends: NDArray[np.float64], colours: Colours) -> None:
    """Draw (N, 2, 2) lines, thinner and fainter the more there are, the last rows first."""
    count = max(len(ends), 1)
    width = float(np.clip(4.0 / count**0.35, 0.35, 1.4))
    faint = colours.copy()
    faint[:, 3] = np.clip(7.0 / count**0.5, 0.06, 0.9)
    axes.add_collection(LineCollection(list(ends[::-1]), colors=faint[::-1], linewidths=width))
    for side in (0, 1):
        draw_points(axes, ends[:, side], colours)


def _draw_scores(axes: Axes, places: NDArray[np.float64], score_map: ScoreMap) -> None:
    """Lay a grid of scores over image 1 as a picture, scores of single points as dots."""
    if score_map.grid is None or min(score_map.grid) < 2:
        order = np.argsort(score_map.scores)
        draw_points(axes, places[order][::-1], by_score(score_map.scores)[order][::-1])
        return
    rows, columns = score_map.grid
    (left, top), (right, bottom) = places[0], places[-1]
    half_x, half_y = (right - left) / (columns - 1) / 2, (bottom - top) / (rows - 1) / 2
    extent = (left - half_x, right + half_x, bottom + half_y, top - half_y)
    grid = score_map.scores.reshape(rows, columns)
    axes.imshow(grid, cmap="inferno", alpha=0.72, extent=extent, aspect="equal")


def _chords(lines: Matrix, size: tuple[int, int]) -> Matrix:
    """Cut (N, 3) lines off at the edges of an image: (N, 2, 2) pixels, NaN where one misses it."""
    height, width = size
    a, b, c = lines.T[:, :, None]  # (N, 1)
    xs, ys = np.array([-0.5, width - 0.5]), np.array([-0.5, height - 0.5])
    with np.errstate(divide="ignore", invalid="ignore"):
        upright = np.stack([np.broadcast_to(xs, (len(lines), 2)), -(c + a * xs) / b], 2)
        level = np.stack([-(c + b * ys) / a, np.broadcast_to(ys, (len(lines), 2))], 2)
    crossings = np.concatenate([upright, level], 1)  # (N, 4, 2)
    inside: Mask = np.asarray(
        (crossings >= -0.5001) & (crossings <= np.array([width, height]) - 0.4999)
    )
    kept = np.where(inside.all(2, keepdims=True), crossings, np.nan)
    return _farthest(kept)


def _farthest(crossings: Matrix) -> Matrix:
    """Take the two of each (N, 4, 2) points, some of them NaN, that are farthest apart: (N, 2, 2)."""
    gaps = np.linalg.norm(crossings[:, :, None] - crossings[:, None], axis=3)  # (N, 4, 4)
    pair = np.nan_to_num(gaps, nan=-1.0).reshape(-1, 16).argmax(1)
    rows = np.arange(len(crossings))
    return np.stack([crossings[rows, pair // 4], crossings[rows, pair % 4]], 1)


def _warped(image: Image, matrix: Matrix, size: tuple[int, int]) -> tuple[Image, Mask]:
    """Carry an image (H, W) into the frame of another, bilinearly; and tell where it lies there."""
    inverse = np.linalg.inv(matrix)
    centres = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])  # PIL counts from pixels' corners
    backward = np.linalg.inv(centres) @ inverse @ centres
    if not backward[2, 2]:
        backward[2, 2] = np.finfo(np.float64).tiny
    numbers = tuple((backward / backward[2, 2]).ravel()[:8])
    layers = [
        PilImage.fromarray(np.ascontiguousarray(layer)).transform(
            size[::-1], PilImage.Transform.PERSPECTIVE, numbers, PilImage.Resampling.BILINEAR
        )
        for layer in (image, np.ones_like(image))
    ]
    warped, there = (np.asarray(layer, np.float32) for layer in layers)
    return warped, there > 0.5
