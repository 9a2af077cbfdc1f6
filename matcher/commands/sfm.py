"""The commands `matcher sfm …`: from images or a video to a model, and what belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from matcher import terminal
from matcher.options import Device, Method, OptionItems, Weights, fields_from, weights_from

if TYPE_CHECKING:
    from matcher.sfm.mapping import Model
    from matcher.sfm.pipeline import Result


class _MapByDefault(typer.core.TyperGroup):
    """`matcher sfm IMAGES …` is `matcher sfm map IMAGES …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named or not args else ["map", *args])


app = typer.Typer(
    cls=_MapByDefault,
    help="Structure from motion: `matcher sfm IMAGES --out DIR` makes a model.",
    no_args_is_help=True,
)


class Mapper(StrEnum):
    """How models are made."""

    INCREMENTAL = "incremental"
    GLOBAL = "global"
    NONE = "none"


class Schema(StrEnum):
    """Of COLMAP's database."""

    V3 = "3"
    V4 = "4"


class Form(StrEnum):
    """What tie points are exported as."""

    HLOC = "hloc"
    KAPTURE = "kapture"
    TEXT = "text"
    NPZ = "npz"


ImageFolder = Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Image folder.")]
TurnsAsked = Annotated[
    bool, typer.Option(help="Try quarter turns of image 1 where a pair does not match.")
]
Database = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A database.")]


@app.command("map")
def make_map(
    images: Annotated[Path, typer.Argument(exists=True, help="Image folder, or a video.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for all results.")],
    method: Method = "superglue",
    every: Annotated[int, typer.Option(min=1, help="Of so many frames of a video, take one.")] = 10,
    pairs: Annotated[
        str,
        typer.Option(
            help="auto, exhaustive, sequential, retrieval, gps, a list, a model's folder (by its "
            "poses), or covisible:FOLDER (by its points)."
        ),
    ] = "auto",
    long_side: Annotated[int, typer.Option(min=0, help="In pixels; 0 keeps sizes.")] = 1600,
    partners: Annotated[
        int, typer.Option(min=1, help="Most an image chooses by look, place or pose.")
    ] = 20,
    mapper: Annotated[Mapper, typer.Option(help="How models are made.")] = Mapper.INCREMENTAL,
    camera_model: Annotated[str, typer.Option(help="Of unknown cameras.")] = "SIMPLE_RADIAL",
    masks: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Masks, NAME.png.")
    ] = None,
    schema: Annotated[Schema, typer.Option(help="Of the database: COLMAP 3 or 4.")] = Schema.V4,
    workers: Annotated[int, typer.Option(min=1, help="Processes, or actors of a cluster.")] = 1,
    cluster: Annotated[
        str, typer.Option(help="Address of a Ray cluster; local starts one here.")
    ] = "",
    gpus: Annotated[float, typer.Option(min=0, help="Of each actor.")] = 0,
    device: Device = "auto",
    weights: Weights = "default",
    turns: TurnsAsked = False,
    option: OptionItems = [],  # noqa: B006  typer copies it
) -> None:
    """Match images or frames and make a model of them; a second run goes on where one stopped."""
    from matcher.sfm.choosing import PairChoice
    from matcher.sfm.frontend import MethodChoice
    from matcher.sfm.mapping import MapOptions
    from matcher.sfm.pipeline import Settings, reconstruct
    from matcher.sfm.video import write_frames

    if images.is_file():
        with terminal.working(f"taking frames of {images.name}"):
            images = write_frames(images, out / "images", every)
        pairs = "sequential" if pairs == "auto" else pairs
    fields: dict[str, Any] = {"weights": weights_from(weights), **fields_from(option)}
    mapping = None if mapper is Mapper.NONE else MapOptions(mapper.value)
    settings = Settings(
        MethodChoice(method, fields, device, turns),
        long_side or None,
        PairChoice(pairs, partners=partners),
        camera_model=camera_model,
        mapping=mapping,
        schema=schema.value,
        workers=workers,
        cluster=cluster,
        gpus=gpus,
    )
    with _bars() as progress:
        result = reconstruct(images, out, settings, masks=masks, progress=progress)
    _show(result, out)


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    """Show one bar a stage; yields a function of (stage, done, total)."""
    current: list[Any] = ["", None]
    with ExitStack() as stack:

        def advance(stage: str, done: int, total: int) -> None:
            if stage != current[0]:
                stack.close()
                current[:] = stage, stack.enter_context(terminal.bar(stage))
            current[1](done, total)

        yield advance


def _show(result: Result, out: Path) -> None:
    """Print why pairs were rejected and what the models are; draw the largest."""
    from matcher.sfm import pictures

    reasons: dict[str, int] = {}
    for report in result.reports:
        reasons[report.reason or "verified"] = reasons.get(report.reason or "verified", 0) + 1
    pairs = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    terminal.print_line(f"pairs: {pairs}; mean track length {result.track_length:.2f}")
    terminal.print_table([_row(number, model) for number, model in enumerate(result.models)])
    written = [result.database]
    if result.models:
        written.append(pictures.draw_model(result.models[0], out / "model.png", out.name))
        written.append(pictures.write_ply(result.models[0], out / "model.ply"))
    total = len(result.tie_points.names)
    placed = len(result.models[0].views) if result.models else 0
    terminal.finish(f"{placed} of {total} images in the largest model", written)


def _row(number: int, model: Model) -> dict[str, str]:
    numbers = {key: f"{value:.3f}".rstrip("0").rstrip(".") for key, value in model.summary.items()}
    return {"model": str(number), **numbers}


@app.command()
def check(database: Database) -> None:
    """Explain why a mapper would refuse a database; exit with 1 if it would."""
    from matcher.sfm.checking import check_database

    report = check_database(database)
    terminal.print_table([{name: str(rows) for name, rows in report.rows.items()}])
    for finding in report.findings:
        style = "red" if finding.severity == "error" else ""
        terminal.print_line(f"{finding.severity}: {finding.message}. {finding.remedy}", style)
    terminal.finish("a mapper can start" if report.usable else "a mapper would refuse it")
    raise typer.Exit(not report.usable)


@app.command()
def export(
    database: Database,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the files.")],
    form: Annotated[
        Form, typer.Option(help="hloc's h5, kapture's folder, COLMAP's text, or npz.")
    ] = Form.HLOC,
) -> None:
    """Write the tie points of a database as files for other programs."""
    from matcher.sfm import exports, hloc, kapture
    from matcher.sfm.database import read_database

    writers = {
        Form.HLOC: hloc.write_hloc,
        Form.KAPTURE: kapture.write_kapture,
        Form.TEXT: exports.write_text,
        Form.NPZ: exports.write_npz,
    }
    tie_points = read_database(database)
    written = writers[form](out, tie_points)
    count = len(tie_points.verified() or tie_points.pairs)
    terminal.finish(f"{len(tie_points.names)} images, {count} pairs", written)


@app.command()
def show(
    model: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A model's folder.")],
    picture: Annotated[Path | None, typer.Option(help="Draw .png, .pdf, .svg.")] = None,
    ply: Annotated[Path | None, typer.Option(help="Write .ply for viewers.")] = None,
    recording: Annotated[Path | None, typer.Option(help="Write .rrd for rerun.")] = None,
) -> None:
    """Print what a model holds; draw it."""
    from matcher.sfm import pictures
    from matcher.sfm import recording as recordings
    from matcher.sfm.mapping import read_model

    found = read_model(model)
    terminal.print_table([_row(0, found)])
    written = []
    if picture is not None:
        written.append(pictures.draw_model(found, picture, model.name))
    if ply is not None:
        written.append(pictures.write_ply(found, ply))
    if recording is not None:
        written.append(recordings.write_recording(found, recording, model.name))
    terminal.finish(f"{len(found.views)} images", written)


@app.command()
def locate(
    model: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A model's folder.")],
    images: ImageFolder,
    query: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The new image.")],
    method: Method = "superglue",
    views: Annotated[int, typer.Option(min=1, help="Images of the model to match with.")] = 20,
    device: Device = "auto",
    turns: TurnsAsked = False,
    option: OptionItems = [],  # noqa: B006  typer copies it
) -> None:
    """Find where a new image was taken; exit with 1 if that cannot be told."""
    from matcher import images as pictures
    from matcher.sfm.cameras import cameras_of
    from matcher.sfm.frontend import MethodChoice
    from matcher.sfm.localisation import best_views, localise
    from matcher.sfm.mapping import read_model
    from matcher.sfm.photos import Photo

    known = read_model(model)
    names = best_views(known, views)
    (camera,), _ = cameras_of([Photo(query.name, query)])
    with terminal.working(f"matching with {len(names)} images"):
        made = MethodChoice(method, fields_from(option), device, turns).build()
        loaded = {name: pictures.grey(pictures.read(images / name)) for name in names}
        new = pictures.grey(pictures.read(query))
        found = localise(made, new, camera, known, loaded)
    if found.pose is not None:
        place = found.pose.inverse.translation.tolist()
        terminal.print_table(
            [{axis: f"{value:.4f}" for axis, value in zip("xyz", place, strict=True)}]
        )
    count = f"{int(found.inliers.sum())} of {len(found.points)} matches with points agree"
    terminal.finish(found.reason or count)
    raise typer.Exit(found.pose is None)
