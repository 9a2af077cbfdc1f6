"""Turn softmax from template matching's peak into the mean by its temperature.

    python scripts/experiments/temperature.py --out FOLDER

A template asks the cells of one scene by the raw dot product; the scores are divided by more and
more before softmax. Cold, all weight is on the best cell; hot, the location is the mean of all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
import typer
from scenes import CENTRES, SHAPES, TEMPLATES, draw
from torch import Tensor

from matcher import terminal
from matcher.explore.canvas import BLUE, VERMILION, chart, save_page
from matcher.nn.attention import read_out
from matcher.nn.attention_scores import Dot

TEMPERATURES = np.logspace(-3, 3, 25)
SCENE_SEED, QUERY = 7, SHAPES.index("disk")
VALUES = torch.from_numpy(CENTRES)[None, None]  # (1, 1, 16, 2)


class Read(NamedTuple):
    """What attention reads at a temperature.

    Attributes:
        largest: The largest weight.
        cells: Cells that share the weight: the exponential of the entropy, 1 to 16.
        location: (2,) mean location, pixels (row, column).
    """

    largest: float
    cells: float
    location: Tensor


def scores() -> Tensor:
    """Compare the template with the cells of the scene: (1, 1, 1, 16)."""
    tokens = torch.from_numpy(draw(np.random.default_rng(SCENE_SEED), 1).tokens).double()
    query = torch.from_numpy(TEMPLATES[QUERY]).double().expand(1, 1, 1, -1)
    found: Tensor = Dot()(query, tokens[:, None])
    return found


def read(compared: Tensor, temperature: float) -> Read:
    """Read the location at a temperature."""
    found = read_out(compared / temperature, VALUES)
    largest, entropy = float(found.weights.max()), float(found.entropy[0, 0, 0])
    return Read(largest, float(np.exp(entropy)), found.message[0, 0, 0])


def main(out: Annotated[Path, typer.Option(help="Folder of the plot.")]) -> None:
    """Print and draw what is read at rising temperatures."""
    compared = scores()
    found = [read(compared, float(temperature)) for temperature in TEMPERATURES]
    best = read_out(compared, VALUES, how="best").message[0, 0, 0]
    mean = VALUES[0, 0].mean(0)
    terminal.print_table(
        [
            {
                "temperature": f"{temperature:.3g}",
                "largest weight": f"{each.largest:.3f}",
                "cells that share": f"{each.cells:.2f}",
                "px to the best": f"{(each.location - best).norm():.2f}",
                "px to the mean": f"{(each.location - mean).norm():.2f}",
            }
            for temperature, each in zip(TEMPERATURES[::4], found[::4], strict=True)
        ]
    )
    page, axes = chart("What attention reads, by temperature")
    axes.semilogx(TEMPERATURES, [(each.location - best).norm() for each in found], color=BLUE)
    axes.semilogx(TEMPERATURES, [(each.location - mean).norm() for each in found], color=VERMILION)
    axes.set(xlabel="temperature", ylabel="pixels")
    legend = [(BLUE, "from the best cell"), (VERMILION, "from the mean of all cells")]
    terminal.finish("one scene", [save_page(page, out / "temperature.png", legend)])


if __name__ == "__main__":
    typer.run(main)
