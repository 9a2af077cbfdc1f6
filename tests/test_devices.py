"""Which device and which precision networks run in, and that no module assumes one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

import matcher
from matcher.nn.devices import (
    choose_device,
    choose_precision,
    products_in,
    with_smaller_blocks,
)

CPU = torch.device("cpu")


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_auto_is_the_cpu_where_there_is_nothing_else(no_gpu) -> None:  # DEV-01
    assert choose_device("auto") == choose_device("cpu") == CPU


@pytest.mark.parametrize(("cuda", "mps", "best"), [(True, True, "cuda"), (False, True, "mps")])
def test_auto_is_the_best_there_is(monkeypatch, cuda, mps, best) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    assert choose_device("auto").type == best
    if cuda:
        assert choose_device("cuda:0") == torch.device("cuda", 0)
        with pytest.raises(ValueError, match="device 'cuda:1' is not on this machine"):
            choose_device("cuda:1")


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps", "meta"])
def test_a_device_that_is_not_there_is_refused(no_gpu, name) -> None:  # DEV-01
    with pytest.raises(
        ValueError, match=f"device '{name}' is not on this machine; device='auto' takes the best"
    ):
        choose_device(name)
    with pytest.raises(ValueError, match="no device 'gpu'; there are auto, cpu, cuda, cuda:N, mps"):
        choose_device("gpu")


@pytest.mark.parametrize("name", [name for name in matcher.list_methods() if name != "orb"])
def test_every_method_refuses_a_device_that_is_not_there(no_gpu, name) -> None:  # DEV-01
    try:
        with pytest.raises(ValueError, match="device 'cuda' is not on this machine"):
            matcher.create(name, device="cuda")
    except (ImportError, FileNotFoundError) as error:
        pytest.skip(str(error))


def test_half_precision_on_the_cpu_is_float32_with_a_notice(caplog) -> None:  # DEV-01
    with caplog.at_level(logging.WARNING):
        chosen = choose_precision("float16", CPU)

    assert chosen == torch.float32
    assert caplog.messages == ["precision float16 is for GPUs; products on the CPU stay float32"]


@pytest.mark.parametrize("device", [CPU, torch.device("cuda"), torch.device("mps")])
def test_other_precisions_are_those_asked_for(device, caplog) -> None:
    assert choose_precision("float32", device) == torch.float32
    assert choose_precision("bfloat16", device) == torch.bfloat16
    if device != CPU:
        assert choose_precision("float16", device) == torch.float16
    assert not caplog.messages


def test_products_have_the_type_asked_for_and_no_context_changes_float32() -> None:
    left = torch.randn(3, 3)

    for precision in (torch.float32, torch.bfloat16):
        with products_in(precision, CPU):
            assert (left @ left).dtype == precision


def test_a_precision_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        ValueError, match="no precision 'half'; there are float32, float16, bfloat16"
    ):
        choose_precision("half", CPU)


def test_no_module_assumes_a_device_or_copies_without_waiting() -> None:  # ATT-13, DEV-01, DEV-02
    for path in Path(matcher.__file__).parent.rglob("*.py"):
        text = path.read_text("utf-8")
        for word in (".cuda()", 'autocast("', "non_blocking", '.to("cuda', 'device="cuda'):
            assert word not in text, path


def room_for(most: int):
    """Work that needs as many bytes as its block has, on a GPU that has so many."""

    def work(size: int) -> int:
        if size > most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return size

    return work


def test_work_that_has_room_is_done_at_the_first_try(caplog) -> None:
    assert with_smaller_blocks(room_for(100), 100) == 100
    assert not caplog.records


def test_blocks_shrink_until_they_have_room_and_the_log_says_so(caplog) -> None:
    assert with_smaller_blocks(room_for(10), 100) == 6

    assert [record.getMessage() for record in caplog.records] == [
        "the GPU is out of memory: trying again with blocks of 25",
        "the GPU is out of memory: trying again with blocks of 6",
    ]


def test_no_room_for_the_smallest_block_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(MemoryError, match="take smaller images or fewer points") as caught:
        with_smaller_blocks(room_for(0), 100)

    assert isinstance(caught.value.__cause__, torch.cuda.OutOfMemoryError)
