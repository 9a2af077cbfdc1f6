"""Count and time what full, linear, windowed and pooled attention cost as tokens grow.

    python scripts/experiments/cost.py --out FOLDER

Self-attention of square maps. Operations are those of matrix products and convolutions; times are
medians of runs in turns, told against full attention of the same map, as machines differ.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from matcher import terminal
from matcher.explore.canvas import BLUE, GREY, INK, VERMILION, chart, save_page
from matcher.nn.attention import Config, MultiHeadAttention, PooledAttention

CHANNELS, SIDES, RUNS = 64, (16, 24, 32, 48), 5
COLOURS = {"full": INK, "linear": BLUE, "window": VERMILION, "pooled": GREY}
Form = Callable[[Tensor], Tensor]


def forms(channels: int = CHANNELS) -> dict[str, Form]:
    """Make functions of (1, C, H, W) maps, by name."""
    full, linear = (
        MultiHeadAttention(Config(channels, scope=scope)) for scope in ("full", "linear")
    )
    window = MultiHeadAttention(Config(channels, scope="window", span=2, axes=2))
    pooled = PooledAttention(Config(channels), stride=4)
    return {
        "full": lambda map0: full(_tokens(map0), _tokens(map0)),
        "linear": lambda map0: linear(_tokens(map0), _tokens(map0)),
        "window": lambda map0: window(_tokens(map0), _tokens(map0), grid=tuple(map0.shape[2:])),
        "pooled": lambda map0: pooled(map0, map0),
    }


def _tokens(map0: Tensor) -> Tensor:
    return map0.flatten(2).mT  # (1, H*W, C)


@torch.inference_mode()
def operations(form: Form, side: int) -> int:
    """Count multiplications and additions on a map of `side` x `side` tokens."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        form(torch.zeros(1, CHANNELS, side, side))
    return int(counter.get_total_flops())


@torch.inference_mode()
def seconds(made: dict[str, Form], side: int, runs: int = RUNS) -> dict[str, float]:
    """Time all forms in turns: the median of each."""
    map0 = torch.randn(1, CHANNELS, side, side)
    taken: dict[str, list[float]] = {name: [] for name in made}
    for run in range(runs + 1):
        for name, form in made.items():
            start = time.perf_counter()
            form(map0)
            if run:  # the first warms up
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def exponent(counts: list[int], sides: tuple[int, ...] = SIDES) -> float:
    """Fit the power of the number of tokens with which a cost grows, between the largest two."""
    tokens = np.array(sides[-2:], float) ** 2
    return float(np.diff(np.log(counts[-2:]))[0] / np.diff(np.log(tokens))[0])


def main(out: Annotated[Path, typer.Option(help="Folder of the plot.")]) -> None:
    """Print and draw costs by the number of tokens."""
    made = forms()
    counts = {name: [operations(form, side) for side in SIDES] for name, form in made.items()}
    times = [seconds(made, side) for side in SIDES]
    rows = []
    for name, found in counts.items():
        row = {"attention": name}
        for side, count, taken in zip(SIDES, found, times, strict=True):
            share = taken[name] / taken["full"]
            row[f"{side**2} tokens"] = f"{count / 1e6:.0f} Mop, {share:.2f} of full's time"
        rows.append(row | {"grows as tokens to the power": f"{exponent(found):.2f}"})
    terminal.print_table(rows)
    page, axes = chart("Operations of attention by the number of tokens")
    for name, found in counts.items():
        axes.loglog([side**2 for side in SIDES], found, "o-", color=COLOURS[name])
    axes.set(xlabel="tokens", ylabel="operations")
    legend = [(colour, name) for name, colour in COLOURS.items()]
    terminal.finish("self-attention", [save_page(page, out / "cost.png", legend)])


if __name__ == "__main__":
    typer.run(main)
