"""Read a place off attention: mean, best or a draw, where two shapes answer alike.

    python scripts/experiments/two_disks.py --out FOLDER

The article's second experiment: a scene with two disks, the trained additive score, and the middles
of the cells, in pixels, as values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from find_shapes import ask, train
from numpy.typing import NDArray
from scenes import CELLS, CENTRES, SHAPES, Scenes, draw
from torch import Tensor, nn

from matcher import terminal
from matcher.explore.canvas import BLUE, GREY, VERMILION, chart, save_page
from matcher.nn.attention import read_out

CONTENT = ("disk", "square", "disk", "cross")
SCENES, SCENE_SEED, DRAWS = 30, 10, 10_000
VALUES = torch.from_numpy(CENTRES).float()  # (16, 2) pixels (row, column)


def scene(seed: int) -> Scenes:
    """Draw a scene with two disks, of which any is wanted."""
    drawn = draw(np.random.default_rng(seed), 1, CONTENT)
    return Scenes(drawn.tokens, drawn.cells, np.array([SHAPES.index("disk")]))


def location(scores: Tensor, how: str, draws: int = 1) -> Tensor:
    """Read the (draws, 2) pixels (row, column) off the (16,) scores."""
    rows = scores.expand(1, 1, draws, -1)
    message: Tensor = read_out(rows, VALUES[None, None], how=how).message[0, 0]
    return message


def derivative(scores: Tensor, cell: int, how: str) -> float:
    """Differentiate the column of the location by one cell's score, in pixels per unit."""
    scores = scores.detach().clone().requires_grad_()
    column = location(scores, how)[0, 1]
    if not column.requires_grad:  # the best is a constant almost everywhere
        return 0.0
    return float(torch.autograd.grad(column, scores)[0][cell])


def shares(score: nn.Module) -> NDArray[np.float64]:
    """Find the (30,) shares of the weight that the two disks get, in as many scenes."""
    found = []
    for seed in range(SCENES):
        shown = scene(seed)
        weights = ask(score, shown)[0].softmax(0)
        found.append(float(weights[shown.cells[0, [0, 2]]].detach().sum()))
    return np.array(found)


@torch.no_grad()
def _rows(scores: Tensor, disks: NDArray[np.int64]) -> list[tuple[str, str, str]]:
    """Describe one scene: what, here, in the article."""
    torch.manual_seed(0)
    weights, drawn = scores.softmax(0), location(scores, "draw", DRAWS)
    picked = [float((drawn == VALUES[disk]).all(1).float().mean()) for disk in disks]
    soft, mean, best = location(scores, "mean")[0], drawn.mean(0), location(scores, "best")[0]
    return [
        ("cells of the disks", _words([CELLS[disk] for disk in disks]), "(2, 2) (0, 3)"),
        ("weights of the disks", _numbers(weights[disks], 3), "0.524 0.475"),
        ("soft location, row column", _numbers(soft, 1), "18.6 35.7"),
        ("location of the best", _numbers(best, 0), "30 30"),
        (f"shares of {DRAWS:,} draws", _numbers(torch.tensor(picked), 3), "0.523 0.476"),
        ("mean of the draws", _numbers(mean, 1), "18.6 35.7"),
    ]


def main(out: Annotated[Path, typer.Option(help="Folder of the plot.")]) -> None:
    """Train the score, print our figures beside the article's, draw the locations."""
    score, shown = train("additive", seed=0), scene(SCENE_SEED)
    scores, disks = ask(score, shown)[0].detach(), shown.cells[0, [0, 2]]
    found = shares(score)
    slopes = [derivative(scores, int(disks[1]), how) for how in ("mean", "best")]
    table = [
        ("weight on both disks", f"{found.min():.3f} to {found.max():.3f}", "0.722 to 1.000"),
        *_rows(scores, disks),
        ("px of column per unit of score, soft and best", "{:.2f} {:.2f}".format(*slopes),
         "3.00 0.00"),
    ]  # fmt: skip
    terminal.print_table([{"what": a, "here": b, "the article": c} for a, b, c in table])
    terminal.finish(f"{SCENES} scenes", [_plot(shown, scores, out / "two_disks.png")])


def _words(cells: list[tuple[int, int]]) -> str:
    return " ".join(str(cell) for cell in cells)


def _numbers(values: Tensor, digits: int) -> str:
    return " ".join(f"{value:.{digits}f}" for value in values.tolist())


def _plot(shown: Scenes, scores: Tensor, path: Path) -> Path:
    """Draw the scene with the three locations."""
    page, axes = chart(f"Scene {SCENE_SEED}: where the disk is said to be", 6.0)
    axes.grid(visible=False)
    axes.imshow(shown.images[0], cmap="gray", extent=(0, 48, 48, 0))
    drawn = location(scores, "draw", 200)
    for places, colour, size in (
        (drawn, GREY, 260),
        (location(scores, "best"), BLUE, 110),
        (location(scores, "mean"), VERMILION, 110),
    ):
        axes.scatter(places[:, 1], places[:, 0], size, color=colour, edgecolors="white")
    legend = [(VERMILION, "mean"), (BLUE, "best"), (GREY, "draws")]
    return save_page(page, path, legend)


if __name__ == "__main__":
    typer.run(main)
