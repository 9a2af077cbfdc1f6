"""Check and time the package on a GPU, in minutes, with one command.

    python scripts/gpu_check.py                        # everything, on the GPU that is there
    python scripts/gpu_check.py --skip-tests           # without the test suite
    python scripts/gpu_check.py --device cpu --quick   # that this script itself works

Three parts, each printed and written as JSON as it ends: whether the CPU and the GPU find the same
matches; the test suite; and pairs a second by size, precision and batch, with memory and the share
of the machine's peak. The time limit is kept by leaving out what is still to come, which is said.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from matcher import datasets, images, methods
from matcher.benchmark.machine import measure_peak, median_seconds
from matcher.benchmark.work import count_flops
from matcher.evaluation.environment import Environment
from matcher.nn.devices import choose_device
from matcher.types import Description, Image, Matcher, Matches

METHODS = ("superglue", "loftr")
SIZES = ((480, 640), (1200, 1600))
PRECISIONS = ("float32", "float16", "bfloat16")
BATCHES = (1, 2, 4, 8, 16, 32)
TESTS = 0.7  # share of the time that the test suite may take


@dataclass(frozen=True)
class Speed:
    """One row of the table of speeds: seconds a pair, and what it takes."""

    method: str
    size: str
    precision: str
    batch: int
    describe_ms: float
    match_ms: float
    pairs_a_second: float
    memory_mib: float
    of_peak: float


def main() -> None:
    """Run the parts until the time is up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=6.0, help="begin nothing after so many")
    parser.add_argument("--skip-tests", action="store_true")
    parser.add_argument("--quick", action="store_true", help="smallest size and batch only")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check.json"))
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    device = choose_device(arguments.device)
    found: dict[str, Any] = {"environment": asdict(Environment.here())}
    print(found["environment"]["devices"], f"torch {torch.__version__}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for part, result in parts(arguments, device, end):
        found[part] = result
        arguments.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print("wrote", arguments.out)


def parts(
    arguments: argparse.Namespace, device: torch.device, end: float
) -> Iterator[tuple[str, Any]]:
    """Run and print one part after the other: its name and what it found."""
    parity = [compare_devices(name, device) for name in METHODS]
    print_rows(parity)
    yield "parity", parity
    if not arguments.skip_tests:  # they get what is sure to leave time for the rest
        tests = run_tests(TESTS * (end - time.monotonic()))
        print("tests:", tests, flush=True)
        yield "tests", tests
    speeds = [asdict(speed) for speed in measure(device, end, quick=arguments.quick)]
    print_rows(speeds)
    yield "speeds", speeds


def run_tests(seconds: float) -> str:
    """Run the test suite; its last line, or that time was up."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "tests"]
    root = Path(__file__).parent.parent
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return "stopped: time was up"
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    return lines[-1] if lines else f"ended with {done.returncode}"


def compare_devices(name: str, device: torch.device) -> dict[str, object]:
    """Match sample pairs on both devices: how many matches are the same?"""
    here, there = (methods.build(name, device=str(place)) for place in ("cpu", device))
    same = total = 0
    apart = 0.0
    for pair in datasets.sample_pairs()[:4]:
        pictures = [picture(path, SIZES[0]) for path in (pair.image0, pair.image1)]
        matches = [match(method, method.describe(pictures)) for method in (here, there)]
        common, farthest = overlap(*matches)
        same, total = same + common, total + max(map(len, matches))
        apart = max(apart, farthest)
    return {"method": name, "same": f"{same / max(total, 1):.2%}", "farthest_px": round(apart, 4)}


def measure(device: torch.device, end: float, *, quick: bool) -> Iterator[Speed]:
    """Time every combination, the usual ones first, until the time is up."""
    combinations = list(itertools.product(BATCHES, SIZES, PRECISIONS, METHODS))
    if quick:
        combinations = [each for each in combinations if each[:2] == (1, SIZES[0])]
    peaks = {
        name: measure_peak(device, getattr(torch, name)).flops
        for name in PRECISIONS
        if device.type != "cpu" or name != "float16"
    }
    for number, (batch, size, precision, name) in enumerate(combinations):
        if time.monotonic() > end:
            print(f"time is up: {len(combinations) - number} of {len(combinations)} left out")
            return
        if precision not in peaks:
            continue
        try:
            yield time_method(name, size, precision, batch, device, peaks[precision])
        except (MemoryError, torch.cuda.OutOfMemoryError):
            print(f"no memory for {name}, {size}, {precision}, batch {batch}", flush=True)


def time_method(
    name: str, size: tuple[int, int], precision: str, batch: int, device: torch.device, peak: float
) -> Speed:
    """Time descriptions and matches of a batch of pairs."""
    method = methods.build(name, device=str(device), precision=precision)
    pair = datasets.sample_pairs()[0]
    pictures = [picture(path, size) for path in (pair.image0, pair.image1)]
    described = method.describe(pictures)
    views = [(described[0], described[1])] * batch
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    describing = median_seconds(lambda: method.describe(pictures * batch), device)
    matching = median_seconds(lambda: method.match(views), device)
    work = count_flops(lambda: match(method, method.describe(pictures)))
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    seconds = (describing + matching) / batch
    return Speed(
        method=name,
        size=f"{size[1]} x {size[0]}",
        precision=precision,
        batch=batch,
        describe_ms=round(1e3 * describing / batch, 3),
        match_ms=round(1e3 * matching / batch, 3),
        pairs_a_second=round(1 / seconds, 1),
        memory_mib=round(memory / 2**20),
        of_peak=round(work / seconds / peak, 4),
    )


def picture(path: Path, size: tuple[int, int]) -> Image:
    """Read a grey picture at a size."""
    return images.resize(images.grey(images.read(path)), size)


def match(method: Matcher, described: Sequence[Description]) -> Matches:
    """Match one pair."""
    return method.match([(described[0], described[1])])[0]


def overlap(one: Matches, other: Matches) -> tuple[int, float]:
    """Count matches that lie within a pixel of one of the other, and their largest distance."""
    if not (len(one) and len(other)):
        return 0, 0.0
    places = [np.concatenate([each.points0, each.points1], axis=1) for each in (one, other)]
    gaps = np.abs(places[0][:, None] - places[1]).max(axis=2).min(axis=1)
    return int((gaps <= 1).sum()), float(gaps[gaps <= 1].max(initial=0))


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table in Markdown."""
    if rows:
        print("| " + " | ".join(rows[0]) + " |")
        print("|" + " --- |" * len(rows[0]))
        for row in rows:
            print("| " + " | ".join(str(value) for value in row.values()) + " |")


if __name__ == "__main__":
    main()
