"""The command `matcher export`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from matcher import terminal
from matcher.options import OptionItems, Weights, fields_from, weights_from


class Method(StrEnum):
    """What can be exported."""

    LOFTR = "loftr"
    SUPERGLUE = "superglue"


class Precision(StrEnum):
    """Of the products."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"


def export(
    method: Annotated[Method, typer.Argument(help="What to export.")],
    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder; by default where backend=onnxruntime looks."),
    ] = None,
    precision: Annotated[
        Precision, typer.Option(help="Of the products; float16 is for GPUs.")
    ] = Precision.FLOAT32,
    programs: Annotated[bool, typer.Option(help="Write torch.export programs too.")] = False,
    benchmark: Annotated[
        str, typer.Option(help="To compare on: sample, or a manifest (pairs.json, pairs.txt).")
    ] = "sample",
    weights: Weights = "default",
    option: OptionItems = [],  # noqa: B006  typer copies it
) -> None:
    """Write a method's networks as ONNX, and compare them with torch's on real pairs."""
    from matcher import datasets
    from matcher.export import exporter

    pairs = datasets.benchmark(benchmark)
    with terminal.working(f"exporting {method}"):
        made = exporter.export(
            method.value,
            out,
            precision=precision.value,
            pairs=pairs,
            programs=programs,
            weights=weights_from(weights),
            **fields_from(option),
        )
    parity = made.parity
    terminal.print_table(
        [
            {"figure": name, "torch": f"{before:.1f}", "exported": f"{after:.1f}"}
            for name, (before, after) in parity.figures.items()
        ]
        + [
            {
                "figure": "ms a pair",
                "torch": f"{parity.milliseconds[0]:.0f}",
                "exported": f"{parity.milliseconds[1]:.0f}",
            }
        ]
    )
    terminal.finish(parity.summary, sorted(made.folder.iterdir()))
