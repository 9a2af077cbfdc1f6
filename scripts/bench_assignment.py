"""Time optimal transport against the plain loop on logarithms, and measure the memory of gradients.

    python scripts/bench_assignment.py time       ratios at 256 to 2048 points, 100 steps
    python scripts/bench_assignment.py memory     4096 x 4096 match with its gradient

Times are medians of runs that alternate between the two; memory is the growth of the peak of a
process of its own.
"""

from __future__ import annotations

import argparse
import functools
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from matcher.nn.assignment import sinkhorn, sinkhorn_log

DUSTBIN = torch.tensor(1.0)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["time", "memory", "peak"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=float, default=5.0, help="standard deviation of the scores")
    parser.add_argument("--form", choices=["implicit", "unrolled"], default="implicit")
    arguments = parser.parse_args()
    if arguments.what == "time":
        print_times(arguments.sizes, arguments.steps, arguments.repeats, arguments.scale)
    elif arguments.what == "memory":
        print_memory(arguments.steps)
    else:
        print(peak_growth(arguments.form, arguments.sizes[0], arguments.steps))


def print_times(sizes: list[int], steps: int, repeats: int, scale: float) -> None:
    """Print one line a size: both medians, their ratio, and how far the results lie apart."""
    threads = torch.get_num_threads()
    print(
        f"{steps} steps, scores of deviation {scale:g}, {threads} threads, torch {torch.__version__}"
    )
    print("points   logarithms   scalings   ratio   largest difference   share in the wrong row")
    for size in sizes:
        scores = planted_scores(size, scale)
        fast, slow = alternate(
            functools.partial(sinkhorn, scores, DUSTBIN, steps),
            functools.partial(sinkhorn_log, scores, DUSTBIN, steps),
            repeats,
        )
        with torch.no_grad():
            found = sinkhorn(scores, DUSTBIN, steps)
            wanted = sinkhorn_log(scores, DUSTBIN, steps).log_assignment.exp()
        apart = (found.log_assignment.exp() - wanted)[:, :-1, :-1].abs().max()
        print(
            f"{size:6d} {slow * 1e3:9.1f} ms {fast * 1e3:7.1f} ms {fast / slow:7.3f}"
            f" {float(apart):20.1e} {float(found.residual):24.1e}",
            flush=True,
        )


def planted_scores(size: int, scale: float) -> Tensor:
    """Make noise in which half of the points have a partner that stands out."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1, size, size, generator=generator)
    has_partner = torch.rand(size, generator=generator) < 0.5
    scores.diagonal(dim1=1, dim2=2).add_(5.0 * has_partner)
    return scores.mul_(scale)


def alternate(
    first: Callable[[], object], second: Callable[[], object], repeats: int
) -> tuple[float, float]:
    """Time two functions in turn, after one run of each that is not counted: medians in seconds."""
    times: list[list[float]] = [[], []]
    with torch.no_grad():
        for run in range(repeats + 1):
            for function, taken in zip((first, second), times, strict=True):
                start = time.perf_counter()
                function()
                if run:
                    taken.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def print_memory(steps: int) -> None:
    """Print the growth of the peak for both gradients, each in a process of its own."""
    print("4096 x 4096 float32 scores are 64 MiB; growth of the peak with the gradient, in MiB")
    runs = [("implicit", steps), ("implicit", 10), ("unrolled", 10), ("unrolled", 20)]
    for form, count in runs:
        command = [sys.executable, __file__, "peak", "--form", form]
        command += ["--sizes", "4096", "--steps", str(count)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(f"{form:9s} {count:4d} steps {int(output):8d} MiB", flush=True)


def peak_growth(form: str, size: int, steps: int) -> int:
    """Measure a match and its gradient in this process: MiB beyond what the scores took."""
    scores = planted_scores(size, 5.0).requires_grad_()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    transport = sinkhorn if form == "implicit" else sinkhorn_log
    loss = transport(scores, DUSTBIN, steps).log_scores.diagonal(dim1=1, dim2=2).sum()
    torch.autograd.grad(loss, scores)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024


if __name__ == "__main__":
    main()
