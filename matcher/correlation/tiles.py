"""Cut a scene into overlapping tiles that make the transforms of a template search cheap."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy.fft import next_fast_len

_LONGEST = 2048  # side of a tile, unless even the shortest that make sense are longer


@dataclass(frozen=True)
class Plan:
    """How a scene is cut into overlapping tiles.

    Attributes:
        tile: Height and width of a tile, lengths that transform fast.
        step: Rows and columns of scores that a tile yields.
        grid: Rows and columns of tiles.
    """

    tile: tuple[int, int]
    step: tuple[int, int]
    grid: tuple[int, int]

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return self.grid[0] * self.grid[1]

    @property
    def pairs(self) -> int:
        """How many complex transforms hold them."""
        return (self.count + 1) // 2

    def inputs(self, index: int) -> tuple[slice, slice]:
        """Locate a tile's pixels in the scene; the last tiles stick out of it."""
        y, x = self._origin(index)
        return slice(y, y + self.tile[0]), slice(x, x + self.tile[1])

    def outputs(self, index: int, size: tuple[int, ...]) -> tuple[slice, slice]:
        """Locate a tile's scores in the map of this size."""
        y, x = self._origin(index)
        return slice(y, min(y + self.step[0], size[0])), slice(x, min(x + self.step[1], size[1]))

    def _origin(self, index: int) -> tuple[int, int]:
        row, column = divmod(index, self.grid[1])
        return row * self.step[0], column * self.step[1]


@functools.lru_cache(maxsize=64)
def make_plan(scene: tuple[int, int], template: tuple[int, int]) -> Plan:
    """Choose the tiles that make the transforms of a search cheapest.

    Template sizes are rounded up to four steps an octave, so that templates of about one size share a plan.
    """
    sides = [min(_round_up(t), s) for s, t in zip(scene, template, strict=True)]
    options = [_axis_options(s, t) for s, t in zip(scene, sides, strict=True)]
    lengths = [np.array([tile for tile, _ in option], np.float64) for option in options]
    counts = [np.array([count for _, count in option]) for option in options]
    area = lengths[0][:, None] * lengths[1]
    pairs = (counts[0][:, None] * counts[1] + 1) // 2
    # n log n, and a penalty for tiles that leave the cache, fitted to measured times of MKL
    cost = pairs * area * np.log2(area + 1) * (1 + area / 5e5)
    row, column = np.unravel_index(int(np.argmin(cost)), cost.shape)
    tile = options[0][row][0], options[1][column][0]
    step = tile[0] - sides[0] + 1, tile[1] - sides[1] + 1
    outs = scene[0] - template[0] + 1, scene[1] - template[1] + 1
    return Plan(tile, step, (-(-outs[0] // step[0]), -(-outs[1] // step[1])))


def _round_up(side: int) -> int:
    """Round up to a multiple of a quarter of the power of two below."""
    return _multiple(side, max(1, (1 << (side.bit_length() - 1)) // 4))


def _axis_options(scene: int, side: int) -> list[tuple[int, int]]:
    """List (length of a tile, tiles) for one axis, from few long tiles to many short ones."""
    outs = scene - side + 1
    most = max(1, min(outs // max(side // 4, 16), 64))
    lengths = {_fast_length(-(-outs // count) + side - 1) for count in range(1, most + 1)}
    allowed = [n for n in lengths if n <= _LONGEST] or [min(lengths)]
    return [(n, -(-outs // (n - side + 1))) for n in allowed]


def _fast_length(length: int) -> int:
    """Find the next length that transforms fast: short factors, and whole vector registers."""
    if length <= 64:
        return length
    return 16 * cast(int, next_fast_len(-(-length // 16), real=True))


def _multiple(length: int, side: int) -> int:
    return -(-length // side) * side
