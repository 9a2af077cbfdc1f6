"""Evaluate methods on benchmarks, and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from matcher import terminal
from matcher.commands.building import build
from matcher.options import (
    DEFAULT_METHODS,
    FINDER,
    Device,
    Measured,
    RefineChoice,
    method_from,
)

if TYPE_CHECKING:
    from matcher.evaluation.benchmarks import Benchmark
    from matcher.evaluation.session import Method


def evaluate_methods(
    benchmark: Annotated[
        str,
        typer.Argument(help="sample, synthetic, a protocol, or a list of pairs: .json .toml .txt."),
    ],
    methods_: Measured = DEFAULT_METHODS,
    refine: Annotated[RefineChoice, typer.Option(help="Score matches refined.")] = RefineChoice.ON,
    grow: Annotated[bool, typer.Option(help="Score them with what grows from them too.")] = True,
    root: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder of the benchmark's data.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Take what is there of a protocol's pairs.")
    ] = False,
    resize: Annotated[
        int | None, typer.Option(min=0, help="Long side, 640 if not given; 0 keeps sizes.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Robust fits a pair, pooled; 1 if not given.")
    ] = None,
    device: Device = "auto",
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder for the report; a rerun resumes.")
    ] = None,
) -> None:
    """Run methods over the pairs of a benchmark, print their figures and write a report."""
    from matcher.evaluation import benchmarks, pictures, report, runner, tables

    chosen = benchmarks.find(
        benchmark, root, partial=partial, long_side=resize, repeats=repeats
    ).refined(refine.value, grow and refine is not RefineChoice.OFF)
    made = _made(methods_, device, chosen)
    with terminal.bar("evaluating") as advance:
        evaluation = runner.evaluate(
            made,
            chosen.pairs,
            chosen.settings,
            out=out,
            progress=lambda done, of, _: advance(done, of),
            protocol=chosen.protocol,
        )
    terminal.print_table([tables.cells(row) for row in tables.table(evaluation)])
    written: list[Path] = []
    if out is not None:
        with terminal.working("drawing the worst and best pairs"):
            pictures.draw(evaluation, made, chosen.pairs, out)
        written = report.write_report(evaluation, out)
    failed = [record for record in evaluation.records if record.outcome != "ok"]
    for record in failed:
        terminal.fail(f"{record.method}, {record.pair}: {record.detail}", 1)
    count = f"{len(chosen.pairs)} pairs, {len(made)} methods, {len(failed)} failed"
    terminal.finish(count, written)
    raise typer.Exit(bool(failed))


def _made(names: str, device: str, chosen: Benchmark) -> dict[str, Method]:
    """Make the methods by label, and the template finder where it is named."""
    from matcher.evaluation.searching import TemplateFinder

    made: dict[str, Method] = {}
    for label in names.split(","):
        name, fields = method_from(label)
        if name == FINDER:
            made[label] = TemplateFinder(**fields)
        else:
            made |= build(label, device, turns=chosen.turns, keypoints=chosen.keypoints)
    return made


def write_report(
    folders: Annotated[
        list[Path], typer.Argument(exists=True, file_okay=False, help="From evaluate --out.")
    ],
    readme: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Put the results between its markers."),
    ] = None,
) -> None:
    """Write the reports of stored evaluations again, or their results into a document."""
    from matcher.evaluation import readme as document
    from matcher.evaluation import report, runner

    found = {folder: runner.read_evaluation(folder) for folder in folders}
    if readme is not None:
        written = [document.update(readme, {path.name: each for path, each in found.items()})]
    else:
        written = [path for folder in found for path in report.write_report(found[folder], folder)]
    terminal.finish(f"{len(found)} {'evaluation' if len(found) == 1 else 'evaluations'}", written)
