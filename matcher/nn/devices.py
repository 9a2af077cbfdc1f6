"""Choose the device that networks run on, and the precision of their products there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar, get_args

import torch

Precision: TypeAlias = Literal["float32", "float16", "bfloat16"]

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def choose_device(name: str = "auto") -> torch.device:
    """Turn a name into a device that is there.

    Args:
        name: "auto" takes CUDA, then MPS, then the CPU; or a torch device name ("cpu", "cuda:1").

    Raises:
        ValueError: The device is unknown, or not on this machine.
    """
    if name == "auto":
        return torch.device(
            "cuda"
            if torch.cuda.is_available()
            else "mps"
            if torch.backends.mps.is_available()
            else "cpu"
        )
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"no device {name!r}; there are auto, cpu, cuda, cuda:N, mps") from error
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(device.type, False):
        raise ValueError(
            f"device {name!r} is not on this machine; device='auto' takes the best that is"
        )
    return device


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """Turn "float32", "float16" or "bfloat16" into the type that products have on a device.

    CPUs have no fast products of float16: there it is float32, and the log says so.

    Raises:
        ValueError: There is no such precision.
    """
    check_precision(name)
    if name == "float16" and device.type == "cpu":
        _log.warning("precision float16 is for GPUs; products on the CPU stay float32")
        return torch.float32
    precision: torch.dtype = getattr(torch, name)
    return precision


def check_precision(name: str) -> None:
    """Refuse the name of a precision that there is not.

    Raises:
        ValueError: It is none of `Precision`.
    """
    if name not in get_args(Precision):
        raise ValueError(f"no precision {name!r}; there are {', '.join(get_args(Precision))}")


def products_in(precision: torch.dtype, device: torch.device) -> torch.autocast:
    """Make the context in which a network's products have a type; sums and norms stay float32."""
    return torch.autocast(device.type, precision, enabled=precision != torch.float32)


def with_smaller_blocks(work: Callable[[int], _Result], size: int) -> _Result:
    """Do some work block by block, in blocks of a quarter each time a GPU's memory runs out.

    Args:
        work: Takes the size of a block, in any unit, and begins anew at each call.
        size: That of the first try.

    Raises:
        MemoryError: Not even blocks of size 1 have room.
    """
    while True:
        try:
            return work(size)
        except torch.cuda.OutOfMemoryError as error:
            if size <= 1:
                raise MemoryError(
                    "the GPU's memory does not do even for the smallest blocks: take smaller images "
                    "or fewer points, free memory of other programs, or device='cpu'"
                ) from error
        size = max(1, size // 4)  # here, where the failed try and its tensors are gone
        _log.warning("the GPU is out of memory: trying again with blocks of %d", size)
