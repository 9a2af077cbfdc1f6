"""Show where three scores look on one scene when the disk is asked for.

python scripts/experiments/look_at_scene.py --out FOLDER
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from find_shapes import SCORES, train, weigh
from scenes import CELL, CELLS, CENTRES, SHAPES, TEMPLATES, Scenes, draw
from torch import nn

from matcher import terminal
from matcher.explore import charts, plots
from matcher.types import Floats, ScoreMap

SCENE_SEED = 7
# score: weights of the cells (row, column) that the article names
ARTICLE = {
    "raw": {(2, 2): 0.899, (3, 0): 0.071, (2, 0): 0.03},
    "additive": {(2, 0): 0.989},
    "scaled dot": {(2, 0): 0.501, (2, 2): 0.466},
}


def scene() -> Scenes:
    """Draw the article's scene, in which the disk is wanted."""
    drawn = draw(np.random.default_rng(SCENE_SEED), 1)
    return Scenes(drawn.tokens, drawn.cells, np.array([SHAPES.index("disk")]))


def look(score: nn.Module) -> Floats:
    """Weigh the 16 cells of the scene."""
    weights: Floats = weigh(score, scene())[0].numpy()
    return weights


def main(out: Annotated[Path, typer.Option(help="Folder of the pictures.")]) -> None:
    """Print the weights that the article names beside ours; draw them all."""
    found = {name: look(train(name, seed=0)) for name in SCORES}
    shown, rows = scene(), []
    for name, published in ARTICLE.items():
        for cell, weight in published.items():
            inside = np.flatnonzero(shown.cells[0] == CELLS.index(cell))
            rows.append(
                {
                    "score": name,
                    "cell": f"{cell}",
                    "shape": SHAPES[int(inside[0])],
                    "weight": f"{found[name][CELLS.index(cell)]:.3f}",
                    "the article's": f"{weight:.3f}",
                }
            )
    terminal.print_table(rows)
    terminal.finish("query: disk", _draw(shown, found, out))


def _draw(shown: Scenes, found: dict[str, Floats], out: Path) -> list[Path]:
    """Draw the table of weights, and the scene under the additive score's."""
    keys = [f"{row},{column}" for row, column in CELLS]
    names, title = list(found), "Weights of the cells (row, column) for the query disk"
    table = np.stack(list(found.values()))
    weights = charts.draw_attention(
        table, out / "look_at_scene.png", queries=names, keys=keys, title=title
    )
    return [weights, _draw_scene(shown, found["additive"], out / "scene.png")]


def _draw_scene(shown: Scenes, weights: Floats, path: Path) -> Path:
    """Draw the template with its middle asked about, and the scene with the cells' weights."""
    template = TEMPLATES[shown.wanted[0]].reshape(CELL, CELL)
    middle = ((CELL - 1) / 2,) * 2
    centres = (CENTRES[:, ::-1] - 0.5).astype(np.float32)  # pixels are counted from their centres
    answers = ScoreMap(centres, weights, (4, 4), "weight, additive score")
    return plots.draw_score_map(
        template, shown.images[0].clip(0, 1), middle, answers, path, title="query and scene"
    )


if __name__ == "__main__":
    typer.run(main)
