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
from matcher.benchmark.machine import count_flops, synchronise
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
        gflops: Operations by stage, in 10^9, of products and convolutions that PyTorch does.
        matches: How many it found; None where it does not say.
        peak_mib: Largest growth of resident memory in the first run.
        trained: False where the weights are random.
    """

    name: str
    size: Size
    seconds: Mapping[str, Sequence[float]]
    gflops: Mapping[str, float]
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
    first = [_warm_up(each, pictures, device) for each in contenders]
    taken: list[list[dict[str, float]]] = [[] for _ in contenders]
    for number in range(repeats):
        for each, runs in zip(contenders, taken, strict=True):
            clock = _Clock(device)
            clock.take("read", lambda: [images.grey(images.read(path)) for path in paths])
            _run(each, pictures, clock)
            runs.append(clock.seconds)
        if progress is not None:
            progress(number + 1, repeats)
    return [
        Timing(
            name=each.name,
            size=size,
            seconds={stage: [run[stage] for run in runs] for stage in runs[0]},
            gflops=_work(each, pictures),
            matches=None if found is None else len(found),
            peak_mib=peak,
            trained=each.trained,
        )
        for each, runs, (found, peak) in zip(contenders, taken, first, strict=True)
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
    contender: Contender, pictures: Sequence[Image], device: torch.device
) -> tuple[Matches | None, float]:
    """Run once: what it finds, and its peak of memory in MiB."""
    with PeakMemory() as peak:
        found = _run(contender, pictures, _Clock(device))
    return found, peak.mib


def _run(contender: Contender, pictures: Sequence[Image], clock: _Clock) -> Matches | None:
    """Go through the stages of one pair."""
    described = clock.take("describe", lambda: contender.describe(pictures))
    found: Matches | None = clock.take("match", lambda: contender.match(described))
    if found is None:
        return None
    matches = found
    if contender.refines:
        matches = clock.take("refine", lambda: matcher.refine(found, pictures[0], pictures[1]))
    clock.take("fit", lambda: fit_fundamental(matches.points0, matches.points1))
    return matches


def _work(contender: Contender, pictures: Sequence[Image]) -> dict[str, float]:
    """Count the operations of the networks' stages."""
    described = contender.describe(pictures)
    counted = {
        "describe": count_flops(lambda: contender.describe(pictures)),
        "match": count_flops(lambda: contender.match(described)),
    }
    return {stage: flops / 1e9 for stage, flops in counted.items() if flops}
