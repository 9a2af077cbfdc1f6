"""How much work a stage is, and what bounds it: products, memory, small steps, or what is not torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from matcher.benchmark.machine import Peak, synchronise

_NEAR = 1 / 3  # share of a peak from which on it is what bounds
_MOST = 1 / 2  # share of the time


@dataclass(frozen=True)
class Work:
    """What PyTorch does in a stage.

    Attributes:
        gflops: Operations of products and convolutions, in 10^9.
        gbytes: What all steps read and write, in 10^9 bytes, as if nothing stayed in a cache.
        seconds: Inside of PyTorch's own steps; the rest of a stage is Python, numpy and others.
    """

    gflops: float
    gbytes: float
    seconds: float


@dataclass(frozen=True)
class Bound:
    """What bounds a stage.

    Attributes:
        of_flops: Share of the rate of a large product.
        of_bandwidth: Share of the rate of a large copy; above 1 where caches help.
        in_torch: Share of the time that is spent inside of PyTorch's own steps.
        by: "products", "memory", "small steps" of PyTorch, or "outside PyTorch".
    """

    of_flops: float
    of_bandwidth: float
    in_torch: float
    by: str


def bound(work: Work, seconds: float, peak: Peak) -> Bound:
    """Tell what bounds a stage that takes so many seconds."""
    flops = 1e9 * work.gflops / seconds / peak.flops
    bandwidth = 1e9 * work.gbytes / seconds / peak.bandwidth
    inside = min(1.0, work.seconds / seconds)
    if inside < _MOST:
        by = "outside PyTorch"
    elif max(flops, bandwidth) < _NEAR:
        by = "small steps"
    else:
        by = "products" if flops >= min(bandwidth, 1.0) else "memory"
    return Bound(flops, bandwidth, inside, by)


def count_flops(work: Callable[[], object]) -> int:
    """Count the operations of products and convolutions that PyTorch does in some work."""
    fused = {
        getattr(torch.ops.aten, f"_scaled_dot_product_{kind}"): _attention_flops
        for kind in ("flash_attention_for_cpu", "efficient_attention", "flash_attention")
    }
    with FlopCounterMode(display=False, custom_mapping=fused) as counter:
        work()
    return int(counter.get_total_flops())


def count_work(work: Callable[[], object], device: torch.device) -> Work:
    """Do some work twice: count its operations, then its bytes and the time of its steps."""
    flops = count_flops(work)
    with _Steps(device) as steps:
        work()
    return Work(flops / 1e9, steps.bytes / 1e9, steps.seconds)


class _Steps(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Adds up the bytes that steps read and write, and the seconds that they take."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.bytes = 0
        self.seconds = 0.0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Do one step."""
        synchronise(self.device)
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        synchronise(self.device)
        self.seconds += time.perf_counter() - start
        if not func.is_view:
            self.bytes += sum(map(_size, tree_leaves((args, kwargs, result))))
        return result


def _size(value: Any) -> int:
    """Tell the bytes of a tensor; 0 of anything else."""
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


def _attention_flops(query: Sequence[int], key: Sequence[int], *_: object, **__: object) -> int:
    """Count the two products of attention from (B, heads, M, C) and (B, heads, N, C)."""
    return 4 * math.prod(query) * key[2]
