"""Time contenders stage by stage, in turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import matcher
from matcher import images
from matcher.benchmark.contenders import Contender
from matcher.benchmark.machine import synchronise
from matcher.benchmark.work import Work, count_work
from matcher.evaluation.environment import PeakMemory
from matcher.geometry.fitting import fit_fundamental
from matcher.types import Image, Matches

STAGES = ("read", "describe", "match", "refine", "fit")

Size = tuple[int, int]  # height, width
Progress = Callable[[int, int], None]  # done, of how many


@dataclass(frozen=True)
class Timing:
    """One contender on one pair.

    Attributes:
        name: The contender's.
        size: Height and width of both images.
        seconds: Of each run, by stage; stages that it has not are missing.
        work: What PyTorch does in each stage.
        matches: How many it found; None where it does not say.
        peak_mib: Largest growth of resident memory in the first run; on a GPU, the most
            that PyTorch had there.
        trained: False where the weights are random.
    """

    name: str
    size: Size
    seconds: Mapping[str, Sequence[float]]
    work: Mapping[str, Work]
    matches: int | None
    peak_mib: float
    trained: bool

    @property
    def totals(self) -> list[float]:
        """Seconds of each run, all stages but reading."""
        stages = [taken for stage, taken in self.seconds.items() if stage != "read"]
        return [sum(run) for run in zip(*stages, strict=True)]

    @property
    def median(self) -> float:
        """Median of the totals in seconds."""
        return statistics.median(self.totals)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Quartiles of the totals in seconds."""
        low, high = np.quantile(self.totals, [0.25, 0.75])
        return float(low), float(high)


@dataclass
class _Clock:
    """Takes the times of one run's stages."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)

    def take(self, stage: str, work: Callable[[], Any]) -> Any:
        """Do some work and note how long it took."""
        synchronise(self.device)
        start = time.perf_counter()
        result = work()
        synchronise(self.device)
        self.seconds[stage] = time.perf_counter() - start
        return result


@dataclass
class _Counter:
    """Counts the work of one run's stages."""

    device: torch.device
    work: dict[str, Work] = field(default_factory=dict)

    def take(self, stage: str, work: Callable[[], Any]) -> Any:
        """Do some work, and count it in further runs."""
        self.work[stage] = count_work(work, self.device)
        return work()


def time_pair(
    contenders: Sequence[Contender],
    paths: tuple[Path, Path],
    size: Size,
    device: torch.device,
    *,
    repeats: int = 10,
    progress: Progress | None = None,
) -> list[Timing]:
    """Time contenders on one pair of files, all in each round.

    Args:
        contenders: Whom.
        paths: Both images; reading them is timed too.
        size: Height and width to which they are brought.
        device: To wait for.
        repeats: Rounds, after one to warm up.
        progress: Called after each round.

    Raises:
        ValueError: There are no contenders or rounds.
    """
    if not contenders or repeats < 1:
        raise ValueError("a benchmark needs a contender and a round at least")
    pictures = [images.resize(images.grey(images.read(path)), size) for path in paths]
    first = [_warm_up(each, paths, pictures, device) for each in contenders]
    taken: list[list[dict[str, float]]] = [[] for _ in contenders]
    for number in range(repeats):
        for each, runs in zip(contenders, taken, strict=True):
            clock = _Clock(device)
            _run(each, paths, pictures, clock)
            runs.append(clock.seconds)
        if progress is not None:
            progress(number + 1, repeats)
    counters = [_Counter(device) for _ in contenders]
    for each, counter in zip(contenders, counters, strict=True):
        _run(each, paths, pictures, counter)
    return [
        Timing(
            name=each.name,
            size=size,
            seconds={stage: [run[stage] for run in runs] for stage in runs[0]},
            work=counter.work,
            matches=None if found is None else len(found),
            peak_mib=peak,
            trained=each.trained,
        )
        for each, runs, counter, (found, peak) in zip(
            contenders, taken, counters, first, strict=True
        )
    ]


def growth(
    make: Callable[[int], Sequence[Contender]],
    paths: tuple[Path, Path],
    steps: Sequence[tuple[int, Size]],
    device: torch.device,
    repeats: int = 3,
) -> dict[int, list[Timing]]:
    """Time contenders over growing images or numbers of keypoints.

    Args:
        make: Makes the contenders of a step.
        paths: Both images.
        steps: What grows, and the size of the images then.
        device: To wait for.
        repeats: Rounds of each step.
    """
    return {
        step: time_pair(make(step), paths, size, device, repeats=repeats) for step, size in steps
    }


def _warm_up(
    contender: Contender, paths: tuple[Path, Path], pictures: Sequence[Image], device: torch.device
) -> tuple[Matches | None, float]:
    """Run once: what it finds, and its peak of memory in MiB."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with PeakMemory() as peak:
        found = _run(contender, paths, pictures, _Clock(device))
    if device.type == "cuda":
        return found, torch.cuda.max_memory_allocated(device) / 2**20
    return found, peak.mib


def _run(
    contender: Contender,
    paths: tuple[Path, Path],
    pictures: Sequence[Image],
    clock: _Clock | _Counter,
) -> Matches | None:
    """Go through the stages of one pair."""
    clock.take("read", lambda: [images.grey(images.read(path)) for path in paths])
    described = clock.take("describe", lambda: contender.describe(pictures))
    found: Matches | None = clock.take("match", lambda: contender.match(described))
    if found is None:
        return None
    matches = found
    if contender.refines:
        matches = clock.take("refine", lambda: matcher.refine(found, pictures[0], pictures[1]))
    clock.take("fit", lambda: fit_fundamental(matches.points0, matches.points1))
    return matches
