"""Cut a scene into overlapping tiles that fit a processor's cache, one thread each."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

_MOST = 544, 2048  # rows and columns of scores of a tile, or twice the template's if that is more
ROWS = 128  # of a tile that are worked on at once: fewer wait for each other, more for memory
_WORTH = 200_000  # scores for which a second thread is worth its start
_here = threading.local()


@dataclass(frozen=True)
class Plan:
    """How a scene is cut into overlapping tiles.

    Attributes:
        template: Height and width of the template.
        step: Rows and columns of scores that a tile yields.
        grid: Rows and columns of tiles.
    """

    template: tuple[int, int]
    step: tuple[int, int]
    grid: tuple[int, int]

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return self.grid[0] * self.grid[1]

    def inputs(self, index: int) -> tuple[slice, slice]:
        """Locate a tile's pixels in the scene; the last tiles stick out of it."""
        rows, columns = (
            slice(o, o + s + t - 1)
            for o, s, t in zip(self._origin(index), self.step, self.template, strict=True)
        )
        return rows, columns

    def outputs(self, index: int) -> tuple[slice, slice]:
        """Locate a tile's scores in the map; the last tiles stick out of it."""
        rows, columns = (
            slice(o, o + s) for o, s in zip(self._origin(index), self.step, strict=True)
        )
        return rows, columns

    def _origin(self, index: int) -> tuple[int, int]:
        row, column = divmod(index, self.grid[1])
        return row * self.step[0], column * self.step[1]


def make_plan(scene: tuple[int, int], template: tuple[int, int]) -> Plan:
    """Share the scores of a search out evenly among tiles of a good size."""
    outs = scene[0] - template[0] + 1, scene[1] - template[1] + 1
    parts = [
        -(-out // max(most, 2 * side))
        for out, most, side in zip(outs, _MOST, template, strict=True)
    ]
    worth = outs[0] * outs[1] > _WORTH and outs[0] > template[0] and _threads() > 1
    if parts == [1, 1] and worth:
        parts[0] = 2
    step = -(-outs[0] // parts[0]), -(-outs[1] // parts[1])
    return Plan(template, step, (-(-outs[0] // step[0]), -(-outs[1] // step[1])))


def in_threads(task: Callable[[int], None], count: int) -> None:
    """Do a task for every number below a count, as many at a time as there are threads.

    A task that does so itself does it in its own thread.
    """
    numbers, helpers = iter(range(count)), min(count, _threads()) - 1

    def work() -> None:
        before = _is_busy()
        _here.busy = before or helpers > 0
        try:
            for number in numbers:
                task(number)
        finally:
            _here.busy = before

    if helpers < 1:
        work()
        return
    with ThreadPoolExecutor(helpers) as pool:
        helping = [pool.submit(work) for _ in range(helpers)]
        work()
    for helped in helping:
        helped.result()  # raises what the task raised


def _is_busy() -> bool:
    """Tell whether this thread does one of several tasks."""
    return getattr(_here, "busy", False)


def _threads() -> int:
    """Count as PyTorch does where it is loaded, else as OMP_NUM_THREADS says, else the cores."""
    if _is_busy():
        return 1
    torch = sys.modules.get("torch")
    if torch is not None:
        return cast(int, torch.get_num_threads())
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdigit() and int(wanted) else os.cpu_count() or 1
