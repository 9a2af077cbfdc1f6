"""The stages of a reconstruction in this process, in many, or on many machines with Ray.

Work is cut into blocks before it is handed out, so it does not depend on who does it: results are
the same for any number of workers. Every worker holds its own method and writes whole files into
the folder that all share. A worker that dies loses the block it was at, which another one does.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeAlias, TypeVar

import torch

from matcher.extras import require
from matcher.sfm.frontend import FrontEnd

_log = logging.getLogger(__name__)

Maker: TypeAlias = Callable[[], FrontEnd]  # such as functools.partial(FrontEnd, photos, folder)
Blocks: TypeAlias = Sequence[Sequence[Any]]
Item = TypeVar("Item")

ATTEMPTS = 3  # how often a block is given out before its failure counts


class Crew(Protocol):
    """Whoever does the work."""

    def run(self, stage: str, blocks: Blocks) -> Iterator[tuple[int, Any]]:
        """Call a function of `FrontEnd` with each block.

        Args:
            stage: Name of the function.
            blocks: What it takes, one call a block.

        Yields:
            Number of a block and what the function returned, as they are done.
        """
        ...


def cut(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Cut a list into blocks of at most so many."""
    return [items[start : start + size] for start in range(0, len(items), size)]


class Alone:
    """Works in this process."""

    def __init__(self, front_end: FrontEnd) -> None:
        self.front_end = front_end

    def run(self, stage: str, blocks: Blocks) -> Iterator[tuple[int, Any]]:
        """Do one block after the other; see `Crew`."""
        for number, block in enumerate(blocks):
            yield number, getattr(self.front_end, stage)(block)


class Processes:
    """Works in other processes of this machine; use it in a `with`."""

    def __init__(self, make: Maker, count: int) -> None:
        """Prepare the processes; they start with the first work.

        Args:
            make: Makes a front end in each process; must be picklable.
            count: Of the processes, which share the cores.

        Raises:
            ValueError: The count is less than 1.
        """
        if count < 1:
            raise ValueError(f"there must be at least 1 worker, not {count}")
        self._make, self._count = make, count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def run(self, stage: str, blocks: Blocks) -> Iterator[tuple[int, Any]]:
        """Do blocks at once, and those of a process that died again; see `Crew`.

        Raises:
            RuntimeError: Processes died again and again.
        """
        left = dict(enumerate(blocks))
        for attempt in range(ATTEMPTS):
            try:
                for number, result in self._round(stage, left):
                    yield number, result
                    del left[number]
                return
            except BrokenProcessPool:
                _log.warning("a worker died; attempt %d with %d blocks", attempt + 2, len(left))
                self._close()
        raise RuntimeError(f"workers died {ATTEMPTS} times at {stage}: is the memory too small?")

    def _round(self, stage: str, left: dict[int, Any]) -> Iterator[tuple[int, Any]]:
        if self._pool is None:
            threads = max(1, (os.cpu_count() or 1) // self._count)
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self._count, context, initializer=_start, initargs=(self._make, threads)
            )
        jobs: dict[Future[Any], int] = {
            self._pool.submit(_do, stage, block): number for number, block in left.items()
        }
        for job in as_completed(jobs):
            yield jobs[job], job.result()

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


_front_end: list[FrontEnd] = []  # of a worker process


def _start(make: Maker, threads: int) -> None:
    """Set a worker process up."""
    torch.set_num_threads(threads)
    _front_end.append(make())


def _do(stage: str, block: Sequence[Any]) -> Any:
    return getattr(_front_end[0], stage)(block)


class RayCrew:
    """Works in actors of a Ray cluster; use it in a `with`."""

    def __init__(
        self, make: Maker, count: int, address: str | None = None, gpus: float = 0
    ) -> None:
        """Connect and start the actors.

        Args:
            make: Makes a front end in each actor; its folders must be the same on all machines.
            count: Of the actors.
            address: Of the cluster; "auto" for the one of this machine, None starts one here.
            gpus: Of each actor; a half lets two share one.

        Raises:
            ImportError: Ray is not installed.
            ValueError: The count is less than 1.
            ConnectionError: There is no cluster at the address.
        """
        if count < 1:
            raise ValueError(f"there must be at least 1 worker, not {count}")
        self._ray = require("ray", "a cluster")
        self._owner = not self._ray.is_initialized()
        if self._owner:
            self._ray.init(address=address, log_to_driver=False, include_dashboard=False)
        actor = self._ray.remote(num_gpus=gpus, max_restarts=-1, max_task_retries=ATTEMPTS)(_Actor)
        self.actors = [actor.remote(make) for _ in range(count)]

    def __enter__(self) -> RayCrew:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self.actors:
            self._ray.kill(actor)
        if self._owner:
            self._ray.shutdown()

    def run(self, stage: str, blocks: Blocks) -> Iterator[tuple[int, Any]]:
        """Give each actor a block as soon as it is free; Ray restarts those that die. See `Crew`."""
        waiting = list(enumerate(blocks))[::-1]
        running: dict[Any, tuple[int, Any]] = {}
        idle = list(self.actors)
        while waiting or running:
            while waiting and idle:
                (number, block), actor = waiting.pop(), idle.pop()
                running[actor.do.remote(stage, block)] = number, actor
            done, _ = self._ray.wait(list(running), num_returns=1)
            number, actor = running.pop(done[0])
            idle.append(actor)
            yield number, self._ray.get(done[0])


class _Actor:
    """A worker on some machine."""

    def __init__(self, make: Maker) -> None:
        self._front_end = make()

    def do(self, stage: str, block: Sequence[Any]) -> Any:
        return getattr(self._front_end, stage)(block)
