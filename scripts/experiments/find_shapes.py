"""Look for a shape by its template: raw dot product against scores that are trained.

    python scripts/experiments/find_shapes.py --out FOLDER

The article's first experiment. A clean template asks 16 cells of a noisy scene; attention's weights
answer. Only the score is trained, by the cross-entropy of the weights, for 600 steps of Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import typer
from scenes import TEMPLATES, Scenes, draw
from torch import Tensor, nn

from matcher import terminal
from matcher.explore.canvas import BLUE, GREY, chart, save_page
from matcher.nn.attention import read_out
from matcher.nn.attention_scores import Additive, Dot, ScaledDot

CHANNELS, WIDTH, STEPS, BATCH, RATE = TEMPLATES.shape[1], 32, 600, 64, 3e-3
SEEDS, TEST_SEED, TEST_SCENES = (0, 1, 2), 100, 1000
# (score, seed): % of scenes with the largest weight on the target, mean weight on the target
ARTICLE = {
    ("raw", 0): (36.0, 0.367),
    ("additive", 0): (99.5, 0.976),
    ("additive", 1): (99.3, 0.975),
    ("additive", 2): (99.3, 0.974),
    ("scaled dot", 0): (93.7, 0.914),
    ("scaled dot", 1): (93.3, 0.909),
    ("scaled dot", 2): (94.0, 0.910),
}


class ProjectedDot(nn.Module):
    """The scaled dot product of learned projections: (W_q q) · (W_k k) / √width."""

    def __init__(self, channels: int = CHANNELS, width: int = WIDTH) -> None:
        super().__init__()
        self.of_query = nn.Parameter(torch.zeros(channels, width))
        self.of_key = nn.Parameter(torch.zeros(channels, width))
        self.compare = ScaledDot()

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score every pair."""
        scores: Tensor = self.compare(query @ self.of_query, key @ self.of_key)
        return scores


SCORES: dict[str, Callable[[], nn.Module]] = {
    "raw": Dot,
    "additive": lambda: Additive(CHANNELS, width=WIDTH),
    "scaled dot": ProjectedDot,
}


def ask(score: nn.Module, scenes: Scenes) -> Tensor:
    """Compare each scene's template with its cells: (S, 16) scores."""
    query = torch.from_numpy(TEMPLATES[scenes.wanted])[:, None, None]  # (S, 1, 1, 144)
    key = torch.from_numpy(scenes.tokens)[:, None]  # (S, 1, 16, 144)
    scores: Tensor = score(query, key)[:, 0, 0]
    return scores


@torch.inference_mode()
def weigh(score: nn.Module, scenes: Scenes) -> Tensor:
    """Find the (S, 16) weights of attention."""
    scores = ask(score, scenes)[:, None, None]
    return read_out(scores, torch.ones(len(scores), 1, 16, 1)).weights[:, 0, 0]


def train(name: str, seed: int) -> nn.Module:
    """Make a score and train it; the raw one has nothing to train."""
    score, random = SCORES[name](), np.random.default_rng(seed)
    if not list(score.parameters()):
        return score
    for weight in score.parameters():  # the article writes W q: (width, channels)
        inputs = CHANNELS if CHANNELS in weight.shape else WIDTH
        drawn = random.normal(0, inputs**-0.5, weight.shape[::-1])
        weight.data = torch.from_numpy(drawn.T.copy()).float()
    optimiser = torch.optim.Adam(score.parameters(), RATE)
    for _ in range(STEPS):
        scenes = draw(random, BATCH)
        loss = F.cross_entropy(ask(score, scenes), torch.from_numpy(scenes.targets))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return score


def measure(score: nn.Module, scenes: Scenes) -> tuple[float, float]:
    """Find the percentage of scenes whose largest weight is right, and the mean weight there."""
    weights, targets = weigh(score, scenes), torch.from_numpy(scenes.targets)
    right = (weights.argmax(1) == targets).float().mean()
    return 100 * float(right), float(weights.gather(1, targets[:, None]).mean())


def main(out: Annotated[Path, typer.Option(help="Folder of the plot.")]) -> None:
    """Train all scores, print a table, draw it."""
    test, rows, bars = draw(np.random.default_rng(TEST_SEED), TEST_SCENES), [], []
    for (name, seed), (article_right, article_weight) in ARTICLE.items():
        score = train(name, seed)
        right, weight = measure(score, test)
        bars.append((f"{name}\nseed {seed}", right, article_right))
        rows.append(
            {
                "score": name,
                "seed": f"{seed}",
                "parameters": f"{sum(each.numel() for each in score.parameters()):,}",
                "argmax right %": f"{right:.1f}",
                "article's": f"{article_right:.1f}",
                "mean weight": f"{weight:.3f}",
                "the article's": f"{article_weight:.3f}",
            }
        )
    terminal.print_table(rows)
    terminal.finish(f"{TEST_SCENES} scenes", [_plot(bars, out / "find_shapes.png")])


def _plot(bars: list[tuple[str, float, float]], path: Path) -> Path:
    page, axes = chart("Largest weight on the right cell, % of scenes")
    labels, ours, article = zip(*bars, strict=True)
    places = np.arange(len(labels))
    axes.bar(places - 0.19, ours, 0.36, color=BLUE)
    axes.bar(places + 0.19, article, 0.36, color=GREY)
    axes.set_xticks(places, labels)
    return save_page(page, path, [(BLUE, "here"), (GREY, "the article")])


if __name__ == "__main__":
    typer.run(main)
