"""What this machine can do at best: the rates that times are compared with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_SIDE = {"cpu": 1024, "cuda": 8192}  # of the product that is timed
_BYTES = {"cpu": 1 << 27, "cuda": 1 << 31}  # of the copy that is timed: far more than caches hold
_REPEATS = 5


@dataclass(frozen=True)
class Peak:
    """The best rates that were measured.

    Attributes:
        flops: Operations a second of a large product of matrices, in the type of the networks.
        bandwidth: Bytes a second read and written by a large copy.
    """

    flops: float
    bandwidth: float


def measure_peak(device: torch.device, dtype: torch.dtype = torch.float32) -> Peak:
    """Time a product of matrices and a copy."""
    side = _SIDE.get(device.type, _SIDE["cpu"])
    left, right = torch.ones(2, side, side, device=device, dtype=dtype)
    source = torch.ones(_BYTES.get(device.type, _BYTES["cpu"]), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    product = median_seconds(lambda: left @ right, device)
    copy = median_seconds(lambda: target.copy_(source), device)
    return Peak(2 * side**3 / product, 2 * len(source) / copy)


def median_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Time some work that has been done once before, until the device has finished it."""
    taken = []
    for _ in range(_REPEATS + 1):
        synchronise(device)
        start = time.perf_counter()
        work()
        synchronise(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
