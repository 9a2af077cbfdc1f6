"""Scenes of four shapes on a grid of cells: what the experiments with templates look at.

A scene has 4 x 4 cells of 12 x 12 pixels. Its four shapes lie in cells of their own, somewhat off
the middle, of random size and brightness, under noise. The 16 cells are the tokens; the query is a
clean template of a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

ACROSS, CELL = 4, 12  # cells along a side, pixels along a cell
SHAPES = ("square", "disk", "triangle", "cross")
CELLS = [divmod(cell, ACROSS) for cell in range(ACROSS**2)]  # (row, column)
CENTRES = CELL * (np.array(CELLS, np.float64) + 0.5)  # (16, 2) pixels (row, column)

_TEMPLATE_SIZE, _NOISE = 8.0, 0.1
# vertical and horizontal offset from the cell's middle, brightness, size: in the order of the draws
_LOW, _HIGH = np.array([-1, -1, 0.6, 6]), np.array([1, 1, 1.0, 9])


@dataclass(frozen=True, eq=False)
class Scenes:
    """Some scenes, and what to look for in each.

    Attributes:
        tokens: (S, 16, 144) brightness of the cells' pixels.
        cells: (S, 4) the cell of each shape, in the order asked for.
        wanted: (S,) which of the shapes to look for.
    """

    tokens: NDArray[np.float32]
    cells: NDArray[np.int64]
    wanted: NDArray[np.int64]

    @property
    def targets(self) -> NDArray[np.int64]:
        """The (S,) cells of the shapes to look for."""
        return self.cells[np.arange(len(self.cells)), self.wanted]

    @property
    def images(self) -> NDArray[np.float32]:
        """The (S, 48, 48) scenes as pictures."""
        blocks = self.tokens.reshape(-1, ACROSS, ACROSS, CELL, CELL)
        return blocks.swapaxes(2, 3).reshape(-1, ACROSS * CELL, ACROSS * CELL)


def mask(shape: str, centre: ArrayLike, size: ArrayLike) -> NDArray[np.bool_]:
    """Tell which pixel centres of a cell a shape covers.

    Args:
        shape: One of `SHAPES`.
        centre: (..., 2) its middle (row, column), from the middle of the cell.
        size: (...) its height, in pixels.

    Returns:
        (..., 12, 12)

    Raises:
        ValueError: There is no such shape.
    """
    offsets = np.arange(CELL) - (CELL - 1) / 2
    row, column = np.moveaxis(np.asarray(centre, np.float64), -1, 0)[..., None, None]
    dy, dx = offsets[:, None] - row, np.abs(offsets - column)
    r = np.asarray(size, np.float64)[..., None, None] / 2
    across, down = dx <= r, np.abs(dy) <= r
    inside: dict[str, NDArray[np.bool_]] = {
        "square": across & down,
        "disk": dy**2 + dx**2 <= r**2,
        "triangle": down & (dx <= (dy + r) / 2),
        "cross": (across & (np.abs(dy) <= r / 3)) | (down & (dx <= r / 3)),
    }
    if shape not in inside:
        raise ValueError(f"no shape {shape!r}; there are {', '.join(SHAPES)}")
    return inside[shape]


TEMPLATES = np.stack([mask(shape, (0, 0), _TEMPLATE_SIZE).ravel() for shape in SHAPES]).astype(
    np.float32
)  # (4, 144)


def draw(random: np.random.Generator, count: int, shapes: Sequence[str] = SHAPES) -> Scenes:
    """Draw scenes, one after the other, each with a shape to look for.

    Args:
        random: Where chance comes from.
        count: How many.
        shapes: Four, which may repeat.
    """
    cells, placed = np.empty((count, 4), np.int64), np.empty((count, 4, 4))
    wanted, side = np.empty(count, np.int64), ACROSS * CELL
    noise = np.empty((count, side, side))
    for scene in range(count):
        cells[scene] = random.choice(ACROSS**2, 4, replace=False)
        placed[scene] = random.random((4, 4))
        noise[scene] = random.normal(0, _NOISE, (side, side))
        wanted[scene] = random.integers(4)
    blocks = noise.reshape(count, ACROSS, CELL, ACROSS, CELL).swapaxes(2, 3)
    tokens = blocks.reshape(count, ACROSS**2, CELL, CELL)
    placed = _LOW + (_HIGH - _LOW) * placed
    for number, shape in enumerate(shapes):
        y, x, brightness, size = placed[:, number].T
        drawn = brightness[:, None, None] * mask(shape, np.stack([y, x], 1), size)
        tokens[np.arange(count), cells[:, number]] += drawn
    return Scenes(tokens.reshape(count, ACROSS**2, CELL**2).astype(np.float32), cells, wanted)
