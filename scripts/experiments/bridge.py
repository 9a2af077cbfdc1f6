"""Ask pixels, features and features in context for the same points: whose top is the true place?

    python scripts/experiments/bridge.py --out FOLDER

The bridge from template matching to attention, on the sample pairs. The same points of image 0 are
looked for in all of image 1 by the NCC of their patches, by the similarity of the CNN's descriptors, and
by their similarity after attention has put both images into context. Points are told apart by what
is round them: weak texture (the least contrast of a pair), repeated (another place of image 0 looks
alike), or neither. Where only the epipolar geometry is known, a top counts if it lies near the line.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from matcher import datasets, images, methods, terminal
from matcher.evaluation.truth import reprojection_errors
from matcher.explore.canvas import BLUE, GREY, VERMILION, chart, save_page
from matcher.explore.opened import Opened, open_pair
from matcher.explore.probe import Probe
from matcher.types import Image, Matches, Pair, Points, ScoreMap, Unrelated

NEAR, RADIUS = 8.0, 7  # pixels: a cell of the feature map; half a patch
ALIKE, APART, WEAK = 0.8, 16.0, 0.25  # NCC and pixels of a twin; share of points with weak texture
LARGEST = 1000  # pixels: no sample is larger, so none is shrunk
EVERY_TOKEN: dict[str, dict[str, Any]] = {
    "loftr": {"tokens": 100_000},
    "superglue": {"max_keypoints": 4096},
}
ASKED = ("pixels (NCC)", "CNN", "in context")
TEXTURES = ("distinct", "repeated", "weak")


class Asked(NamedTuple):
    """What became of the points of one pair.

    Attributes:
        right: (K, 3) True where the top of pixels, CNN and context is the true place.
        textures: (K,) numbers of `TEXTURES`.
    """

    right: NDArray[np.bool_]
    textures: NDArray[np.int64]


def ask(pair: Pair, method: str, count: int, seed: int = 0) -> Asked:
    """Ask about some tokens of image 0 that have a place in image 1.

    Args:
        pair: With a truth.
        method: One with context: superglue, loftr.
        count: Points at most.
        seed: Which of them.

    Raises:
        ValueError: Nothing is known of the pair, or the method has no context.
    """
    if method not in EVERY_TOKEN:
        raise ValueError(f"method {method!r} has no context; there are {', '.join(EVERY_TOKEN)}")
    if (truth := pair.truth) is None:
        raise ValueError(f"pair {pair.name!r} has no truth")
    maker = partial(methods.build, method, device="cpu", **EVERY_TOKEN[method])
    opened = open_pair(pair, {method: maker}, LARGEST)
    asked = opened.fitted(method).probe
    points = _choose(opened, asked.descriptions[0].points, count, np.random.default_rng(seed))
    tops = np.stack([_tops(opened, asked, point) for point in points])  # (K, 3, 2)
    scores = np.ones(len(points), np.float32)
    right = [
        reprojection_errors(Matches(points, tops[:, column], scores), truth) <= NEAR
        for column in range(len(ASKED))
    ]
    return Asked(np.stack(right, 1), _textures(opened, points))


def _choose(opened: Opened, points: Points, count: int, random: np.random.Generator) -> Points:
    """Choose some points, all of whose patches lie in image 0 and whose true places in image 1."""
    rows, columns = opened.shown[0].working_size
    inner = (points >= RADIUS) & (points < np.array([columns, rows]) - RADIUS)
    known = np.array([_stays(opened, point) for point in points])
    possible = np.flatnonzero(inner.all(1) & known)
    chosen = random.choice(possible, min(count, len(possible)), replace=False)
    chosen_points: Points = points[np.sort(chosen)]
    return chosen_points


def _stays(opened: Opened, point: NDArray[np.float32]) -> bool:
    """Tell whether a point has its place inside image 1, or none is known."""
    place = opened.true_place(point.tolist())
    height, width = opened.shown[1].working_size
    return place is None or (0 <= place[0] < width and 0 <= place[1] < height)


def _tops(opened: Opened, asked: Probe, point: NDArray[np.float32]) -> Points:
    """Find the best place of image 1 for a point: (3, 2) by pixels, CNN, context."""
    x, y = point.tolist()
    answer, places = asked.answer((x, y)), asked.descriptions[1].points
    after = answer.before if answer.after is None else answer.after
    best = [opened.pixels((x, y)).best, places[answer.before.argmax()], places[after.argmax()]]
    return np.array(best, np.float32)


def _textures(opened: Opened, points: Points) -> NDArray[np.int64]:
    """Tell the texture round (K, 2) points of image 0: numbers of `TEXTURES`."""
    grey = images.grey(opened.shown[0].image)
    contrast = np.array([_contrast(grey, point) for point in points])
    itself = replace(opened, shown=(opened.shown[0], opened.shown[0]))
    twins = np.array([twin(itself.pixels(tuple(point.tolist())), point) for point in points])
    found = np.where(twins >= ALIKE, TEXTURES.index("repeated"), TEXTURES.index("distinct"))
    return np.where(contrast < np.quantile(contrast, WEAK), TEXTURES.index("weak"), found)


def twin(answers: ScoreMap, point: NDArray[np.float32]) -> float:
    """Find the best score of places that are not near a point; -1 where there is none."""
    apart = np.abs(answers.points1 - point).max(1) >= APART
    return float(answers.scores[apart].max(initial=-1.0))


def _contrast(grey: Image, point: NDArray[np.float32]) -> float:
    """Measure the deviation of the patch round a point."""
    x, y = np.rint(point).astype(int)
    return float(grey[y - RADIUS : y + RADIUS + 1, x - RADIUS : x + RADIUS + 1].std())


def main(
    out: Annotated[Path, typer.Option(help="Folder of the plot.")],
    method: Annotated[str, typer.Option(help="One with context: superglue, loftr.")] = "loftr",
    points: Annotated[int, typer.Option(min=1, help="Of each pair.")] = 60,
    names: Annotated[str, typer.Option(help="Pairs, with commas; all if empty.")] = "",
) -> None:
    """Print and draw how often each top is the true place, by pair and by texture."""
    known = [p for p in datasets.sample_pairs() if not isinstance(p.truth, Unrelated | None)]
    pairs = [pair for pair in known if not names or pair.name in names.split(",")]
    found = {}
    with terminal.bar("asking") as advance:
        for number, pair in enumerate(pairs, 1):
            found[f"pair {pair.name}"] = ask(pair, method, points)
            advance(number, len(pairs))
    every = Asked(*(np.concatenate(parts) for parts in zip(*found.values(), strict=True)))
    for number, texture in enumerate(TEXTURES):
        chosen = every.textures == number
        found[f"texture {texture}"] = Asked(every.right[chosen], every.textures[chosen])
    found["all"] = every
    terminal.print_table([_row(name, each) for name, each in found.items()])
    terminal.finish(f"{len(every.right)} points", [_plot(found, method, out / "bridge.png")])


def _row(name: str, asked: Asked) -> dict[str, str]:
    right = dict(zip(ASKED, asked.right.T, strict=True))
    shares = {
        title: f"{100 * each.mean():.1f} %" if len(each) else "" for title, each in right.items()
    }
    return {"points of": name, "count": f"{len(asked.right)}", **shares}


def _plot(found: dict[str, Asked], method: str, path: Path) -> Path:
    page, axes = chart(f"Tops within {NEAR:.0f} px of the true place, %, {method}")
    shown = {name: each.right for name, each in found.items() if len(each.right)}
    colours, places = (GREY, VERMILION, BLUE), np.arange(len(shown))
    for column, colour in enumerate(colours):
        heights = [100 * right[:, column].mean() for right in shown.values()]
        axes.bar(places + 0.27 * (column - 1), heights, 0.25, color=colour)
    axes.set_xticks(places, [name.replace(" ", "\n") for name in shown], size=7)
    return save_page(page, path, list(zip(colours, ASKED, strict=True)))


if __name__ == "__main__":
    typer.run(main)
