"""Every picture: matches, keypoints, score maps and template hits, written without a display.

Colours are told apart by colour-blind eyes too: blue for right, vermilion for wrong, grey for
unknown, the map plasma for scores; photographs are muted. Files appear whole or not at all; the
ending of the name chooses the format (png, jpg, pdf, svg).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike, NDArray

from matcher import images
from matcher.storage import write
from matcher.types import Floats, Image, Mask, Matches, Points, ScoreMap, TemplateHit

_BLUE, _VERMILION, _GREY, _INK = "#1f9bff", "#ff5c1c", "#a8a8a8", "#222222"
_BRIGHT = "#fdb42f"  # upper end of the colours of scores
_CORRECT_PIXELS = 3.0  # the middle one of the usual thresholds 1, 3 and 5
_WIDTH, _BAND, _DPI = 10.0, 0.34, 160  # inches, inches, dots an inch

Colours: TypeAlias = NDArray[np.float64]  # (N, 4) RGBA
Legend: TypeAlias = list[tuple[str, str]]  # colour and words


@dataclass(frozen=True, eq=False)
class _Placed:
    """An image on the page: pixels p lie at (p + 0.5) * scale + (left, 0)."""

    scale: float
    left: float

    def at(self, points: ArrayLike) -> NDArray[np.float64]:
        """Move (N, 2) pixels to the page."""
        return (np.asarray(points, np.float64).reshape(-1, 2) + 0.5) * self.scale + [self.left, 0.0]


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
    page, axes, placed0, placed1 = _two_images(image0, image1, title)
    ends = np.stack([placed0.at(matches.points0), placed1.at(matches.points1)], axis=1)
    _draw_lines(axes, ends, colours)
    return _save(page, path, legend)


def draw_keypoints(
    image: object,
    points: Points,
    path: str | Path,
    *,
    scores: Floats | None = None,
    title: str = "",
) -> Path:
    """Draw (N, 2) keypoints of an image, coloured by their scores where those are given."""
    page, axes, placed = _one_image(image, title)
    words = _count(len(points), "keypoint")
    if scores is None:
        colours, legend = _one_colour(_BLUE, len(points)), (_BLUE, words)
    else:
        colours, legend = _by_score(scores), (_BRIGHT, f"{words}, the brighter the better")
    _draw_points(axes, placed.at(points), colours, ink=8000)
    return _save(page, path, [legend])


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
    page, axes, placed0, placed1 = _two_images(image0, image1, title)
    places = placed1.at(score_map.points1)
    _draw_scores(axes, places, score_map)
    _ring(axes, placed0.at(point0)[0])
    words = f"{score_map.kind}: no places"
    if len(places):
        _ring(axes, places[int(np.argmax(score_map.scores))])
        low, high = score_map.scores.min(), score_map.scores.max()
        words = f"{score_map.kind}: {low:.3g} dark, {high:.3g} bright, best place ringed"
    return _save(page, path, [(_VERMILION, words)])


def draw_hits(
    scene: object, hits: Sequence[TemplateHit], path: str | Path, *, title: str = ""
) -> Path:
    """Outline where templates were found, with their scores; a stroke shows the upper edge."""
    page, axes, placed = _one_image(scene, title)
    casing = [withStroke(linewidth=2.6, foreground="white")]
    for hit in hits:
        corners = placed.at(hit.corners)
        outline = np.concatenate([corners, corners[:1]])
        upward = np.stack([corners.mean(axis=0), corners[:2].mean(axis=0)])
        axes.plot(*outline.T, color=_BLUE, linewidth=1.3, path_effects=casing)
        axes.plot(*upward.T, color=_VERMILION, linewidth=1.1, path_effects=casing)
        if len(hits) <= _LABELS:
            _label(axes, corners[corners[:, 1].argmin()], f"{hit.score:.2f}")
    return _save(page, path, [(_BLUE, _count(len(hits), "detection"))])


_LABELS = 60  # more of them hide the picture


def _one_image(source: object, title: str) -> tuple[Figure, Axes, _Placed]:
    image = _shown(source)
    height, width = image.shape[:2]
    page, axes = _page(width, height, title)
    return page, axes, _place(axes, image, 0.0, height)


def _two_images(
    source0: object, source1: object, title: str
) -> tuple[Figure, Axes, _Placed, _Placed]:
    """Place two images side by side, the lower one enlarged to the height of the other."""
    image0, image1 = _shown(source0), _shown(source1)
    height = max(len(image0), len(image1))
    left1 = image0.shape[1] * height / len(image0) + 0.01 * height
    page, axes = _page(left1 + image1.shape[1] * height / len(image1), height, title)
    return page, axes, _place(axes, image0, 0.0, height), _place(axes, image1, left1, height)


def _shown(source: object) -> Image:
    """Read an image; numbers of no defined range are stretched, NaN becomes black."""
    try:
        return images.read(source)
    except images.ImageError:
        numbers = np.asarray(images.values(source), np.float64)
    known = numbers[np.isfinite(numbers)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    filled = np.nan_to_num(numbers, nan=low, posinf=high, neginf=low)
    return ((filled - low) / (high - low or 1.0)).astype(np.float32)


def _page(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """Make a white page with room for the picture, a line above it and a line below."""
    tall = float(np.clip(_WIDTH * height / width, 1.0, 10.0)) + 2 * _BAND
    page = Figure(figsize=(_WIDTH, tall), dpi=_DPI, facecolor="white")
    band = _BAND / tall
    axes = page.add_axes((0.0, band, 1.0, 1 - 2 * band), autoscale_on=False)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.set_axis_off()
    page.text(0.008, 1 - band / 2, title, color=_INK, size=10, weight="bold", va="center")
    return page, axes


def _place(axes: Axes, image: Image, left: float, height: float) -> _Placed:
    scale = height / len(image)
    extent = (left, left + image.shape[1] * scale, height, 0.0)
    axes.imshow(_muted(image), cmap="gray", vmin=0, vmax=1, extent=extent, aspect="equal")
    return _Placed(scale, left)


def _muted(image: Image) -> Image:
    """Take most of the colour out of a picture, so that what is drawn on it stands out."""
    if image.ndim == 2:
        return image
    grey = images.grey(image)[:, :, None]
    return np.asarray(0.35 * image + 0.65 * grey, np.float32)


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
        words = _count(len(matches), "match", "matches") + ", the brighter the better"
        return _by_score(matches.scores), [(_BRIGHT, words)]
    colours = _one_colour(_VERMILION, len(matches))
    colours[right], colours[unknown] = _one_colour(_BLUE, 1), _one_colour(_GREY, 1)
    wrong = len(matches) - int(right.sum()) - int(unknown.sum())
    legend = [(_BLUE, f"{right.sum():,} {names[0]}"), (_VERMILION, f"{wrong:,} {names[1]}")]
    return colours, legend + ([(_GREY, f"{unknown.sum():,} unknown")] if unknown.any() else [])


def _one_colour(colour: str, count: int) -> Colours:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return np.tile([red, green, blue, 1.0], (count, 1))


def _by_score(scores: Floats) -> Colours:
    """Spread the scores that occur over the upper part of a colour map, the best brightest."""
    low, high = (scores.min(), scores.max()) if len(scores) else (0.0, 1.0)
    return np.asarray(colormaps["plasma"](0.25 + 0.7 * (scores - low) / max(high - low, 1e-6)))


def _draw_lines(axes: Axes, ends: NDArray[np.float64], colours: Colours) -> None:
    """Draw (N, 2, 2) lines, thinner and fainter the more there are, the last rows first."""
    count = max(len(ends), 1)
    width = float(np.clip(4.0 / count**0.35, 0.35, 1.4))
    faint = colours.copy()
    faint[:, 3] = np.clip(7.0 / count**0.5, 0.06, 0.9)
    axes.add_collection(LineCollection(list(ends[::-1]), colors=faint[::-1], linewidths=width))
    for side in (0, 1):
        _draw_points(axes, ends[:, side], colours)


def _draw_points(
    axes: Axes, places: NDArray[np.float64], colours: Colours, ink: float = 1500
) -> None:
    """Draw dots that share one amount of ink, the first rows on top."""
    size = float(np.clip(ink / max(len(places), 1), 2.0, 18.0))
    x, y = places[::-1].T
    axes.scatter(x, y, size, c=colours[::-1], edgecolors="white", linewidths=size**0.5 / 10)


def _draw_scores(axes: Axes, places: NDArray[np.float64], score_map: ScoreMap) -> None:
    """Lay a grid of scores over image 1 as a picture, scores of single points as dots."""
    if score_map.grid is None or min(score_map.grid) < 2:
        order = np.argsort(score_map.scores)
        _draw_points(axes, places[order][::-1], _by_score(score_map.scores)[order][::-1])
        return
    rows, columns = score_map.grid
    (left, top), (right, bottom) = places[0], places[-1]
    half_x, half_y = (right - left) / (columns - 1) / 2, (bottom - top) / (rows - 1) / 2
    extent = (left - half_x, right + half_x, bottom + half_y, top - half_y)
    grid = score_map.scores.reshape(rows, columns)
    axes.imshow(grid, cmap="inferno", alpha=0.72, extent=extent, aspect="equal")


def _ring(axes: Axes, place: NDArray[np.float64]) -> None:
    casing = [withStroke(linewidth=3.2, foreground="white")]
    axes.plot(
        *place, "o", ms=13, mfc="none", mec=_VERMILION, mew=1.8, path_effects=casing, clip_on=False
    )


def _label(axes: Axes, place: NDArray[np.float64], words: str) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.2}
    axes.annotate(
        words,
        (place[0], place[1]),
        (0, 4),
        textcoords="offset points",
        size=7,
        color=_INK,
        ha="center",
        bbox=box,
    )


def _count(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _save(page: Figure, path: str | Path, legend: Legend) -> Path:
    """Write the legend below the picture, then the file."""
    dots = [Line2D([], [], color=colour, marker="o", linestyle="") for colour, _ in legend]
    page.legend(
        dots,
        [words for _, words in legend],
        loc="lower left",
        ncols=len(legend),
        frameon=False,
        fontsize=9,
        labelcolor=_INK,
        borderaxespad=0.2,
        handletextpad=0.1,
    )
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from ")  # in titles
        page.savefig(drawn, format=Path(path).suffix[1:] or "png")
    return write(path, drawn.getvalue())
