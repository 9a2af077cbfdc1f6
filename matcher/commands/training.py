"""The commands `matcher train` and `matcher samples`."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from matcher import terminal
from matcher.options import Device

if TYPE_CHECKING:
    from matcher.mining.real_pairs import RealPairs
    from matcher.synthesis.views import TwoViews
    from matcher.training.models import Model
    from matcher.training.samples import Samples
    from matcher.training.validation import Figures

_ENDINGS = {".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp"}
_HELD_OUT = 10  # every tenth photograph is for validation
_LOOK_PAIRS = 48  # of the looks during the run; the first and the last take all
_MINED_SHARE = 0.4  # of the pairs, where those of the photographs themselves are mined
_VALIDATION_SEED = 10_000


def train(
    model: Annotated[str, typer.Argument(help="A model's name, or a folder with recipe.toml.")],
    photos: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Photographs.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; a run that stopped goes on.")],
    names: Annotated[str, typer.Option(help="Which files of PHOTOS, such as 'free_*'.")] = "*",
    real: Annotated[
        Path | None, typer.Option(exists=True, help="Pairs made by `matcher mine`.")
    ] = None,
    mine: Annotated[
        bool, typer.Option(help="Mine pairs of PHOTOS first, and learn from them too.")
    ] = False,
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

    with terminal.working(f"loading {model}"):
        made = models.load(model, again=again, minutes=minutes, seed=seed)
        place = choose_device(device)
        made.objective.to(place)
        paths = _photographs(photos, names)
    if mine:
        real = _mined(photos, names, out)
        made = models.with_real(made, _MINED_SHARE)
    elif real is None:
        made = models.with_real(made, 0.0)
    with terminal.working("reading photographs"):
        learning = _samples(made, paths[1], real, place)
        checks = _checks(made, paths[0], real, place)
    before = _figures(made, checks, validation_pairs)
    with terminal.bar("training") as advance:

        def report(line: dict[str, Any]) -> None:
            advance(round(1000 * line["share"]), 1000)
            if "validation" in line:
                terminal.print_line(f"step {line['step']}  {_words(line['validation'])}")

        look = checks["synthetic"]
        run = Run(
            made.objective, learning, out, lambda _: _measured(made, look, _LOOK_PAIRS), report
        )
        progress = run.go()
    after = _figures(made, checks, validation_pairs)
    how = {
        "steps": progress.step,
        "minutes": round(progress.seconds / 60, 1),
        "skipped_steps": progress.skipped,
        "photographs": len(learning.photographs),
        "real_pairs": len(learning.real) if learning.real else 0,
        "machine": f"{place.type}, {platform.machine()}",
        "before": before,
        "after": after,
    }
    models.write(made, out, how)
    terminal.finish("trained", [out / "weights.safetensors", out / "recipe.toml"])


def samples(
    model: Annotated[str, typer.Argument(help="A model's name, or a folder with recipe.toml.")],
    photos: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Photographs.")],
    out: Annotated[Path, typer.Option(help="The picture.")],
    names: Annotated[str, typer.Option(help="Which files of PHOTOS, such as 'free_*'.")] = "*",
    real: Annotated[
        Path | None, typer.Option(exists=True, help="Pairs made by `matcher mine`.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Else the recipe's.")] = None,
) -> None:
    """Draw a picture of pairs that a model would be trained on, with some of their true places."""
    import torch

    from matcher.training import models
    from matcher.training.samples import with_seed
    from matcher.training.sheet import draw_sheet

    made = models.load(model, seed=seed)
    if real is None:
        made = models.with_real(made, 0.0)
    paths = _photographs(photos, names)[1]
    drawn, random = with_seed(_samples(made, paths, real, torch.device("cpu")), made.settings.seed)
    terminal.finish("samples", [draw_sheet(drawn, random, out)])


def _mined(photos: Path, names: str, out: Path) -> Path:
    """Mine pairs of the photographs, once a run, by the method that needs no fetched weights."""
    from matcher.commands.mining import mine

    path = out / "pairs.npz"
    if not path.is_file():
        mine([photos], path, names, teacher="superglue", held_out=10)
    return path


def _photographs(folder: Path, names: str) -> tuple[list[Path], list[Path]]:
    """List the photographs to look at, every tenth, and those to learn from."""
    paths = sorted(path for path in folder.glob(names) if path.suffix.lower() in _ENDINGS)
    if len(paths) < 2:
        raise ValueError(f"{folder} has {len(paths)} photographs named {names!r}; 2 are the least")
    learning = [path for number, path in enumerate(paths) if number % _HELD_OUT]
    return paths[::_HELD_OUT], learning


def _samples(model: Model, paths: Sequence[Path], real: Path | None, device: Any) -> Samples:
    """Make the samples to learn from."""
    from matcher.synthesis.photographs import Photographs
    from matcher.training.samples import Samples

    pairs = None if real is None else _real(real, device, held_out=False)
    return Samples(Photographs.read(paths).to(device), model.settings, pairs)


def _checks(
    model: Model, paths: Sequence[Path], real: Path | None, device: Any
) -> dict[str, Samples]:
    """Make the pairs to look at: synthetic ones of other photographs, and real ones kept aside."""
    from matcher.synthesis.photographs import Photographs
    from matcher.training.samples import Samples

    photographs = Photographs.read(paths).to(device)
    mix, settings = model.settings.mix, model.settings
    checks = {"synthetic": Samples(photographs, replace(settings, mix=replace(mix, real=0.0)))}
    if real is not None:
        only = replace(settings, mix=replace(mix, scenes=0.0, unrelated=0.0, real=1.0))
        checks["real"] = Samples(photographs, only, _real(real, device, held_out=True))
    return checks


def _real(path: Path, device: Any, *, held_out: bool) -> RealPairs:
    """Read the pairs of a collection."""
    from matcher.mining.real_pairs import RealPairs

    return RealPairs(path, held_out=held_out, device=device)


def _figures(model: Model, checks: dict[str, Samples], pairs: int) -> dict[str, dict[str, float]]:
    """Measure and print, with progress: so many synthetic pairs, or one look at each real one."""
    found: dict[str, dict[str, float]] = {}
    for kind, drawn in checks.items():
        count = len(drawn.real) if drawn.real else pairs
        with terminal.working(f"looking at {count} {kind} pairs"):
            measured = asdict(_measured(model, drawn, count))
        found[kind] = {name: round(value, 4) for name, value in measured.items()}
        terminal.print_line(f"{kind}: {_words(found[kind])}")
    return found


def _measured(model: Model, drawn: Samples, pairs: int) -> Figures:
    """Measure a model on the first validation pairs, always the same ones."""
    from matcher.training import validation

    batches = _fixed(drawn, -(-pairs // model.settings.batch))
    return validation.measure(model.objective, batches, model.reach, model.threshold)


def _fixed(drawn: Samples, count: int) -> Iterator[TwoViews]:
    """Draw batches from the seed of the validation."""
    from matcher.training.samples import with_seed

    fixed, random = with_seed(drawn, _VALIDATION_SEED)
    for _ in range(count):
        yield fixed.draw(random)


def _words(figures: dict[str, float]) -> str:
    """Say figures on a line."""
    parts: Sequence[str] = [
        f"{name} {value:.3f}" for name, value in figures.items() if name != "pairs"
    ]
    return "  ".join(parts)
