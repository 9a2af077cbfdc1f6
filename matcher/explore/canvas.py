"""What every picture is made of: pages, images on them, colours, marks, legends, files.

Colours are told apart by colour-blind eyes too: blue for right, vermilion for wrong, grey for
unknown, the map plasma for scores; photographs are muted. Files appear whole or not at all; the
ending of the name chooses the format (png, jpg, pdf, svg).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike, NDArray

from matcher import images
from matcher.storage import write_figure
from matcher.types import Floats, Image

BLUE, VERMILION, GREY, INK = "#1f9bff", "#ff5c1c", "#a8a8a8", "#222222"
BRIGHT = "#fdb42f"  # upper end of the colours of scores
_WIDTH, _BAND, _DPI = 10.0, 0.34, 160  # inches, inches, dots an inch

Colours: TypeAlias = NDArray[np.float64]  # (N, 4) RGBA
Legend: TypeAlias = list[tuple[str, str]]  # colour and words


@dataclass(frozen=True, eq=False)
class Placed:
    """An image on the page: pixels p lie at (p + 0.5) * scale + (left, 0).

    Attributes:
        scale: Units of the page a pixel.
        left: Where its left edge is.
        size: Height and width of the image in pixels.
    """

    scale: float
    left: float
    size: tuple[int, int]

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top edge on the page."""
        height, width = self.size
        return (self.left, self.left + width * self.scale, height * self.scale, 0.0)

    def at(self, points: ArrayLike) -> NDArray[np.float64]:
        """Move (N, 2) pixels to the page."""
        return (np.asarray(points, np.float64).reshape(-1, 2) + 0.5) * self.scale + [self.left, 0.0]


def one_image(source: object, title: str) -> tuple[Figure, Axes, Placed]:
    """Place one image on a page of its own."""
    image = shown(source)
    height, width = image.shape[:2]
    page, axes = new_page(width, height, title)
    return page, axes, _place(axes, image, 0.0, height)


def two_images(source0: object, source1: object, title: str) -> tuple[Figure, Axes, Placed, Placed]:
    """Place two images side by side, the lower one enlarged to the height of the other."""
    image0, image1 = shown(source0), shown(source1)
    height = max(len(image0), len(image1))
    left1 = image0.shape[1] * height / len(image0) + 0.01 * height
    page, axes = new_page(left1 + image1.shape[1] * height / len(image1), height, title)
    return page, axes, _place(axes, image0, 0.0, height), _place(axes, image1, left1, height)


def shown(source: object) -> Image:
    """Read an image; numbers of no defined range are stretched, NaN becomes black."""
    try:
        return images.read(source)
    except images.ImageError:
        numbers = np.asarray(images.values(source), np.float64)
    known = numbers[np.isfinite(numbers)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    filled = np.nan_to_num(numbers, nan=low, posinf=high, neginf=low)
    return ((filled - low) / (high - low or 1.0)).astype(np.float32)


def new_page(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """Make a white page with room for the picture, a line above it and a line below.

    A picture of any shape keeps it: the axes run from 0 to width and, downwards, from 0 to height.
    """
    tall = float(np.clip(_WIDTH * height / width, 1.0, 10.0)) + 2 * _BAND
    page = Figure(figsize=(_WIDTH, tall), dpi=_DPI, facecolor="white")
    band = _BAND / tall
    axes = page.add_axes((0.0, band, 1.0, 1 - 2 * band), autoscale_on=False)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.set_axis_off()
    page.text(0.008, 1 - band / 2, title, color=INK, size=10, weight="bold", va="center")
    return page, axes


def chart(title: str, height: float = 4.5) -> tuple[Figure, Axes]:
    """Make a white page for a diagram: axes with room for their labels and for the legend below."""
    page = Figure(figsize=(_WIDTH, height), dpi=_DPI, facecolor="white")
    axes = page.add_axes((0.08, 1.0 / height, 0.9, 1 - 1.45 / height))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", size=10, weight="bold", color=INK)
    return page, axes


def _place(axes: Axes, image: Image, left: float, height: float) -> Placed:
    placed = Placed(height / len(image), left, (image.shape[0], image.shape[1]))
    axes.imshow(_muted(image), cmap="gray", vmin=0, vmax=1, extent=placed.extent, aspect="equal")
    return placed


def _muted(image: Image) -> Image:
    """Take most of the colour out of a picture, so that what is drawn on it stands out."""
    if image.ndim == 2:
        return image
    grey = images.grey(image)[:, :, None]
    return np.asarray(0.35 * image + 0.65 * grey, np.float32)


def one_colour(colour: str, count: int) -> Colours:
    """Repeat a colour for so many rows."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return np.tile([red, green, blue, 1.0], (count, 1))


def by_score(scores: Floats) -> Colours:
    """Spread the scores that occur over the upper part of a colour map, the best brightest."""
    low, high = (scores.min(), scores.max()) if len(scores) else (0.0, 1.0)
    return np.asarray(colormaps["plasma"](0.25 + 0.7 * (scores - low) / max(high - low, 1e-6)))


def draw_points(
    axes: Axes, places: NDArray[np.float64], colours: Colours, ink: float = 1500
) -> None:
    """Draw dots that share one amount of ink, the first rows on top."""
    size = float(np.clip(ink / max(len(places), 1), 2.0, 18.0))
    x, y = places[::-1].T
    axes.scatter(x, y, size, c=colours[::-1], edgecolors="white", linewidths=size**0.5 / 10)


def ring(axes: Axes, place: NDArray[np.float64]) -> None:
    """Draw a ring that shows on any ground."""
    casing = [withStroke(linewidth=3.2, foreground="white")]
    axes.plot(
        *place, "o", ms=13, mfc="none", mec=VERMILION, mew=1.8, path_effects=casing, clip_on=False
    )


def label(axes: Axes, place: NDArray[np.float64], words: str) -> None:
    """Write above a place, on a ground of its own."""
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.2}
    axes.annotate(
        words,
        (place[0], place[1]),
        (0, 4),
        textcoords="offset points",
        size=7,
        color=INK,
        ha="center",
        bbox=box,
    )


def counted(count: int, one: str, many: str = "") -> str:
    """Write a number with its noun: "1 match", "2,000 matches"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def save_page(page: Figure, path: str | Path, legend: Legend) -> Path:
    """Write the legend below the picture, then the file."""
    dots = [Line2D([], [], color=colour, marker="o", linestyle="") for colour, _ in legend]
    page.legend(
        dots,
        [words for _, words in legend],
        loc="lower left",
        ncols=len(legend),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        borderaxespad=0.2,
        handletextpad=0.1,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from ")  # in titles
        return write_figure(path, page)
