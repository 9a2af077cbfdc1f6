"""The command `matcher train`."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from matcher import terminal
from matcher.options import Device

if TYPE_CHECKING:
    from matcher.synthesis.views import TwoViews
    from matcher.training.models import Model
    from matcher.training.samples import Samples
    from matcher.training.validation import Figures

_ENDINGS = {".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp"}
_HELD_OUT = 10  # every tenth photograph is for validation
_LOOK_PAIRS = 48  # of the looks during the run; the first and the last take all
_VALIDATION_SEED = 10_000


def train(
    model: Annotated[str, typer.Argument(help="A model's name, or a folder with recipe.toml.")],
    photos: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Photographs.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; a run that stopped goes on.")],
    names: Annotated[str, typer.Option(help="Which files of PHOTOS, such as 'free_*'.")] = "*",
    real: Annotated[
        Path | None, typer.Option(exists=True, help="Pairs made by `matcher mine`.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Budget; else the recipe's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Else the recipe's.")] = None,
    again: Annotated[
        bool, typer.Option(help="Start where the model once started, not from its weights.")
    ] = False,
    validation_pairs: Annotated[int, typer.Option(help="Synthetic ones.")] = 500,
    device: Device = "auto",
) -> None:
    """Train a model on photographs, and write it as a folder that `weights=FOLDER` loads."""
    from matcher.nn.devices import choose_device
    from matcher.training import models
    from matcher.training.loop import Run

    with terminal.working("reading photographs"):
        made = models.load(model, again=again, minutes=minutes, seed=seed)
        place = choose_device(device)
        made.objective.to(place)
        learning, checking = _samples(made, photos, names, real, place)
    before = _figures(made, checking, validation_pairs)
    terminal.print_line(f"before: {_words(before)}")
    with terminal.bar("training") as advance:

        def report(line: dict[str, Any]) -> None:
            advance(round(1000 * line["share"]), 1000)
            if "validation" in line:
                terminal.print_line(f"step {line['step']}  {_words(line['validation'])}")

        run = Run(
            made.objective, learning, out, lambda _: _measured(made, checking, _LOOK_PAIRS), report
        )
        progress = run.go()
    after = _figures(made, checking, validation_pairs)
    how = {
        "steps": progress.step,
        "minutes": round(progress.seconds / 60, 1),
        "skipped_steps": progress.skipped,
        "photographs": len(learning.photographs),
        "machine": f"{place.type}, {platform.machine()}",
        "validation_pairs": validation_pairs,
        "before": before,
        "after": after,
    }
    models.write(made, out, how)
    terminal.finish(f"after: {_words(after)}", [out / "weights.safetensors", out / "recipe.toml"])


def _samples(
    model: Model, photos: Path, names: str, real: Path | None, device: Any
) -> tuple[Samples, Samples]:
    """Make the samples to learn from, and those of other photographs to look at."""
    from matcher.mining.real_pairs import RealPairs
    from matcher.synthesis.photographs import Photographs
    from matcher.training.samples import Samples

    paths = sorted(path for path in photos.glob(names) if path.suffix.lower() in _ENDINGS)
    if len(paths) < 2:
        raise ValueError(f"{photos} has {len(paths)} photographs named {names!r}; 2 are the least")
    learning = [path for number, path in enumerate(paths) if number % _HELD_OUT]
    checking = paths[::_HELD_OUT]
    real_learning, real_checking = (
        None if real is None else RealPairs(real, held_out=held_out, device=device)
        for held_out in (False, True)
    )
    return (
        Samples(Photographs.read(learning).to(device), model.settings, real_learning),
        Samples(Photographs.read(checking).to(device), model.settings, real_checking),
    )


def _figures(model: Model, samples: Samples, pairs: int) -> dict[str, float]:
    """Measure, with progress."""
    with terminal.working(f"looking at {pairs} validation pairs"):
        return {
            name: round(value, 4)
            for name, value in asdict(_measured(model, samples, pairs)).items()
        }


def _measured(model: Model, samples: Samples, pairs: int) -> Figures:
    """Measure a model on the first validation pairs, always the same ones."""
    from matcher.training import validation

    batches = _fixed(samples, -(-pairs // model.settings.batch))
    return validation.measure(model.objective, batches, model.reach, model.threshold)


def _fixed(samples: Samples, count: int) -> Iterator[TwoViews]:
    """Draw batches from the seed of the validation."""
    from matcher.training.samples import with_seed

    fixed, random = with_seed(samples, _VALIDATION_SEED)
    for _ in range(count):
        yield fixed.draw(random)


def _words(figures: dict[str, float]) -> str:
    """Say figures on a line."""
    parts: Sequence[str] = [
        f"{name} {value:.3f}" for name, value in figures.items() if name != "pairs"
    ]
    return "  ".join(parts)
