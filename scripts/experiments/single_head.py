"""Check what the article states of one head of attention.

    python scripts/experiments/single_head.py --out FOLDER

Six tokens of 16 channels, a head of 8, numpy's generator with seed 0: rows of weights sum to one,
the order of tokens does not matter, softmax has the Jacobian that is stated, and the variance of
q · k grows with its d unless it is divided by √d.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor

from matcher import terminal
from matcher.explore import charts
from matcher.nn.attention import Attended, read_out
from matcher.nn.attention_scores import SCORES

TOKENS, CHANNELS, HEAD = 6, 16, 8
SAMPLES, DIMENSIONS = 10_000, (4, 64, 1024)


def head(random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw (6, 16) tokens and the (3, 16, 8) matrices of queries, keys and values."""
    tokens = random.normal(size=(TOKENS, CHANNELS))
    matrices = random.normal(0, CHANNELS**-0.5, (3, CHANNELS, HEAD))
    return torch.from_numpy(tokens), torch.from_numpy(matrices)


def attend(tokens: Tensor, matrices: Tensor) -> Attended:
    """Let the tokens read from each other."""
    query, key, value = (tokens @ matrices)[:, None, None]  # (1, 1, 6, 8) each
    return read_out(SCORES["scaled-dot"](HEAD, 1)(query, key), value)


def jacobian_error(scores: Tensor) -> float:
    """Compare the derivative of softmax with a_i (δ_ij - a_j), the largest difference."""
    found: Tensor = torch.func.jacrev(lambda s: s.softmax(0))(scores)
    weights = scores.softmax(0)
    stated = torch.diag(weights) - torch.outer(weights, weights)
    return float((found - stated).abs().max())


def variance(score: str, channels: int, random: np.random.Generator) -> float:
    """Measure the variance of a score over queries and keys of unit variance."""
    query, key = torch.from_numpy(random.normal(size=(2, SAMPLES, 1, 1, channels)))
    scores: Tensor = SCORES[score](channels, 1)(query, key)
    return float(scores.var())


def main(out: Annotated[Path, typer.Option(help="Folder of the plot.")]) -> None:
    """Print what is stated beside what is measured; draw the weights."""
    random = np.random.default_rng(0)
    tokens, matrices = head(random)
    found, order = attend(tokens, matrices), torch.from_numpy(random.permutation(TOKENS))
    moved = attend(tokens[order], matrices).message - found.message[:, :, order]
    table = [
        ("largest |sum of a row - 1|", "0", f"{(found.weights.sum(-1) - 1).abs().max():.1e}"),
        ("largest |Attn(PX) - P Attn(X)|", "0", f"{moved.abs().max():.1e}"),
        ("largest error of softmax's Jacobian", "0", f"{jacobian_error(tokens[0]):.1e}"),
    ]
    for channels in DIMENSIONS:
        for score, stated in (("dot", channels), ("scaled-dot", 1)):
            measured = variance(score, channels, np.random.default_rng(0))
            table.append((f"variance, {score}, d = {channels}", f"{stated}", f"{measured:.2f}"))
    terminal.print_table([{"what": a, "the article": b, "here": c} for a, b, c in table])
    names = [f"token {number}" for number in range(TOKENS)]
    path, title = out / "single_head.png", "Weights of a head: queries down, keys across"
    charts.draw_attention(found.weights[0, 0], path, queries=names, keys=names, title=title)
    terminal.finish("one head", [path])


if __name__ == "__main__":
    typer.run(main)
