"""Memory that is used again: where a picture is large, fresh memory costs more than the sums in it.

It outlives a search, and so is the module's own: what a system does to give a page of fresh memory
takes as long as all that is computed in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_MOST = 128 << 20  # bytes that are kept in all; the tile of one thread takes 12 to 40 million


class Workspace:
    """Arrays that stay from one use to the next, by what they are for."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return sum(len(buffer) for buffer in self._buffers.values())

    def array(self, use: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of any values, which is overwritten when this use asks for the next."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size > len(self._buffers.get(use, ())):
            self._buffers[use] = np.empty(size, np.uint8)
        return self._buffers[use][:size].view(dtype).reshape(shape)


_idle: list[Workspace] = []  # lists pop and append in one step


@contextmanager
def workspace() -> Iterator[Workspace]:
    """Lend a workspace to one thread; it is kept for the next unless too much is kept already."""
    try:
        space = _idle.pop()
    except IndexError:
        space = Workspace()
    yield space
    if space.size + sum(other.size for other in tuple(_idle)) <= _MOST:
        _idle.append(space)
