"""Time and memory of the LoFTR-style method, beside kornia's LoFTR with the same weights.

    python scripts/bench_loftr.py published      # one 640 x 480 pair: time and peak memory
    python scripts/bench_loftr.py curve          # time and peak memory over image sizes
    python scripts/bench_loftr.py collection     # all pairs of a collection, described once
    python scripts/bench_loftr.py light          # the light default in two precisions, and its share of the peak
    python scripts/bench_loftr.py choice         # accuracy of the light network by layers and cells

Weights are random (the same in both), so the threshold is 0 and every mutual best goes through the
fine stage. Times are medians of runs in turn; peak memory is the growth of a fresh process's
resident set over what it holds with the network loaded.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from matcher import methods
from matcher.datasets import load_pairs, sample_pairs
from matcher.evaluation.runner import evaluate
from matcher.evaluation.settings import Settings
from matcher.evaluation.tables import markdown
from matcher.extras import require
from matcher.methods.loftr import Loftr, Options
from matcher.nn import loftr_light
from matcher.nn.loftr import LoFTR, published_state
from matcher.types import Image, Matcher, Matches
from matcher.weights import load_strict, state_dict

SIZES = ((240, 320), (480, 640), (720, 960), (960, 1280), (1200, 1600), (1536, 2048))


def main() -> None:
    """Run the part that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "part", choices=("published", "curve", "collection", "light", "choice", "peak")
    )
    parser.add_argument("--manifest", help="of choice; else the sample pairs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--size", type=int, nargs=2, default=(480, 640), metavar=("H", "W"))
    parser.add_argument("--images", type=int, default=30, help="of the collection")
    parser.add_argument("--sample", type=int, default=6, help="pairs timed of the collection")
    parser.add_argument(
        "--sizes", type=int, default=len(SIZES), help="how many of the curve's sizes"
    )
    parser.add_argument(
        "--whose", choices=("ours", "kornia", "light"), default="ours", help="of peak"
    )
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {arguments.size}")
    {
        "published": published,
        "curve": curve,
        "collection": collection,
        "light": light,
        "choice": choice,
        "peak": peak,
    }[arguments.part](arguments)


def published(arguments: argparse.Namespace) -> None:
    """Compare one pair with kornia."""
    ours, other = same_weights()
    pair = [picture(arguments.size, seed) for seed in (0, 1)]
    times = in_turn(
        [lambda: whole(ours, pair), lambda: kornia_matches(other, pair)], arguments.repeats
    )
    counts = len(whole(ours, pair)), len(kornia_matches(other, pair))
    memory = [peak_of(whose, arguments.size) for whose in ("ours", "kornia")]
    row("", "seconds", "peak MiB", "matches")
    row("ours", *map(figure, (times[0], memory[0])), counts[0])
    row("kornia", *map(figure, (times[1], memory[1])), counts[1])
    row("ratio", *map(figure, (times[0] / times[1], memory[0] / memory[1])))


def curve(arguments: argparse.Namespace) -> None:
    """Measure pairs of growing size; one dense matrix of scores would take the last column."""
    ours, _ = same_weights()
    row("size", "describe s", "match s", "peak MiB", "estimate MiB", "dense MiB")
    for size in SIZES[: arguments.sizes]:
        pair = [picture(size, seed) for seed in (0, 1)]
        described = ours.describe(pair)
        works: list[Callable[[], object]] = [
            partial(ours.describe, pair[:1]),
            partial(ours.match, [(described[0], described[1])]),
        ]
        times = in_turn(works, arguments.repeats if size[0] < 700 else 1)
        cells = (size[0] // 8) * (size[1] // 8)
        row(
            f"{size[1]} x {size[0]}",
            *map(
                figure,
                (
                    *times,
                    peak_of("ours", size),
                    ours.memory(size, size) / 2**20,
                    cells**2 * 4 / 2**20,
                ),
            ),
        )


def collection(arguments: argparse.Namespace) -> None:
    """Compare describing every image once with running the whole network for every pair."""
    ours, _ = same_weights()
    pictures = [picture(arguments.size, seed) for seed in range(2)]
    described = ours.describe(pictures)
    match, network = in_turn(
        [lambda: ours.match([(described[0], described[1])]), lambda: whole(ours, pictures)],
        arguments.sample,
    )
    describe = in_turn([lambda: ours.describe(pictures[:1])], arguments.sample)[0]
    pairs = len(list(itertools.combinations(range(arguments.images), 2)))
    once, every = arguments.images * describe + pairs * match, pairs * network
    row("images", "pairs", "describe s", "match s", "once s", "every s", "gain")
    row(arguments.images, pairs, *map(figure, (describe, match, once, every, every / once)))


def light(arguments: argparse.Namespace) -> None:
    """Time the light default beside kornia's LoFTR, and count its operations."""
    pair = [picture(arguments.size, seed) for seed in (0, 1)]
    _, other = same_weights()
    works: dict[tuple[str, str], Callable[[], object]] = {}
    for precision in ("float32", "bfloat16"):
        method = methods.build("loftr", device="cpu", precision=precision)
        described = method.describe(pair)
        works[precision, "describe"] = partial(method.describe, pair[:1])
        works[precision, "match"] = partial(method.match, [(described[0], described[1])])
    timed: list[Callable[[], object]] = [*works.values(), partial(kornia_matches, other, pair)]
    *ours, kornia = in_turn(timed, arguments.repeats)
    seconds = dict(zip(works, ours, strict=True))
    top = gemm_peak()
    row("", "", "ms", "GFLOP", "of GEMM peak")
    for (precision, name), work in works.items():
        taken, operations = seconds[precision, name], flops(work)
        share = f"{operations / taken / top:.0%}" if precision == "float32" else ""
        row(precision, name, figure(taken * 1e3), figure(operations / 1e9), share)
    for precision in ("float32", "bfloat16"):
        taken = 2 * seconds[precision, "describe"] + seconds[precision, "match"]
        row(precision, "pair", figure(taken * 1e3), "kornia / pair", figure(kornia / taken))


def choice(arguments: argparse.Namespace) -> None:
    """Evaluate the light network with fewer or more layers and cells, as found and refined."""
    pairs = load_pairs(arguments.manifest) if arguments.manifest else sample_pairs()
    tried = {
        f"{layers} layers, {tokens} cells": light_with(layers, tokens)
        for layers in (2, 3, 4, 6)
        for tokens in (800, 900, 1000, 1600)
    }
    print(markdown(evaluate(tried, pairs, Settings(refine="both"))))


def light_with(layers: int, tokens: int) -> Loftr:
    """Make the light network with other numbers than its recipe's."""
    network = loftr_light.LoftrLight(loftr_light.Config(layers=layers))
    state = loftr_light.start(state_dict("xfeat"), state_dict("lighterglue"), layers)
    load_strict(network, state, "loftr-light")
    return Loftr(network.prepare(), Options(tokens=tokens), torch.device("cpu"), untrained=False)


def peak(arguments: argparse.Namespace) -> None:
    """Print by how many MiB this fresh process's resident set grew over one pair."""
    pair = [picture(arguments.size, seed) for seed in (0, 1)]
    ours, other = same_weights()
    works: dict[str, Callable[[], object]] = {
        "ours": lambda: whole(ours, pair),
        "kornia": lambda: kornia_matches(other, pair),
        "light": lambda: whole(light_method, pair),
    }
    light_method = methods.build("loftr", device="cpu")
    before = status("VmRSS")
    works[arguments.whose]()
    print(status("VmHWM") - before)


def same_weights() -> tuple[Loftr, nn.Module]:
    """Make our network and kornia's with the same random weights and no threshold."""
    kornia = require("kornia", "the comparison").feature.loftr.loftr
    config = copy.deepcopy(kornia.default_cfg)
    config["match_coarse"]["thr"] = 0.0
    other = kornia.LoFTR(pretrained=None, config=config).eval()
    network = LoFTR()
    network.load_state_dict(published_state(other.state_dict(), network.config))
    options = Options(preset="official-outdoor", threshold=0.0)
    return Loftr(network.prepare(), options, torch.device("cpu"), untrained=True), other


@torch.inference_mode()
def kornia_matches(network: nn.Module, pair: Sequence[Image]) -> torch.Tensor:
    """Run kornia's network on one pair."""
    image0, image1 = (torch.from_numpy(image)[None, None] for image in pair)
    confidence: torch.Tensor = network({"image0": image0, "image1": image1})["confidence"]
    return confidence


def whole(method: Matcher, pair: Sequence[Image]) -> Matches:
    """Describe and match one pair."""
    description0, description1 = method.describe(pair)
    return method.match([(description0, description1)])[0]


def picture(size: Sequence[int], seed: int) -> Image:
    """Make noise smoothed over a few pixels."""
    coarse = np.random.default_rng(seed).random((1, 1, size[0] // 4, size[1] // 4), np.float32)
    return nn.functional.interpolate(torch.from_numpy(coarse), size=tuple(size), mode="bilinear")[
        0, 0
    ].numpy()


def in_turn(works: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Time works in turn, after one run of each to warm up: their medians in seconds."""
    times: list[list[float]] = [[] for _ in works]
    for number in range(repeats + 1):
        for work, taken in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            if number:
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def peak_of(whose: str, size: Sequence[int]) -> float:
    """Measure the peak memory of one pair in a process of its own, in MiB."""
    command = [sys.executable, __file__, "peak", "--whose", whose, "--size", *map(str, size)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(answer.stdout.split()[-1])


def status(name: str) -> float:
    """Read one of Linux's counts of this process's memory, in MiB: its own, not its parent's."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith(name))


def gemm_peak() -> float:
    """Measure the operations a second of a large float32 matrix product."""
    left, right = torch.randn(2, 2048, 2048)
    return 2 * 2048**3 / in_turn([lambda: left @ right], 5)[0]


def flops(work: Callable[[], object]) -> int:
    """Count the operations of one run."""
    fused = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops}
    with FlopCounterMode(display=False, custom_mapping=fused) as counter:
        work()
    return int(counter.get_total_flops())


def attention_flops(query: Sequence[int], key: Sequence[int], *_: object, **__: object) -> int:
    """Count the two products of fused attention from (B, heads, M, C) and (B, heads, N, C)."""
    return 4 * math.prod(query) * key[2]


def figure(value: float) -> str:
    """Write a number with three figures."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def row(*columns: object) -> None:
    """Print one line of a table."""
    print("".join(f"{column!s:>16}" for column in columns))


if __name__ == "__main__":
    main()
