"""Write traced programs as ONNX files that say what they are."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from matcher import storage
from matcher.export.plans import Part
from matcher.export.quiet import quiet
from matcher.extras import require
from matcher.methods._onnx import KEY, Facts

_FOLDED = 1 << 30  # bytes
OPSET = 20  # the first with cubic GridSample, LayerNormalization and Gelu


def write_graph(program: ExportedProgram, part: Part, facts: Facts, path: Path) -> None:
    """Translate a program to ONNX, name its axes and write the facts into the file.

    Args:
        program: Of the part.
        part: Names its inputs, outputs and axes.
        facts: What a runner needs to know.
        path: The file to write.
    """
    onnx = require("onnx", "matcher export")
    optimizer = require("onnxscript", "matcher export").optimizer
    with quiet("torch.onnx._internal.exporter._registration"):  # which misses torchvision
        translated = torch.onnx.export(
            program,
            (),
            kwargs=dict(part.inputs),
            input_names=list(part.inputs),
            output_names=list(part.outputs),
            opset_version=OPSET,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
        # Weights are transposed and put in order here, once, however large they are.
        limits = {"input_size_limit": _FOLDED, "output_size_limit": _FOLDED}
        optimizer.optimize_ir(translated.model, **limits)  # type: ignore[union-attr]
        model = translated.model_proto  # type: ignore[union-attr]
    _name_axes(model.graph, part)
    onnx.helper.set_model_props(model, {KEY: json.dumps(asdict(facts))})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))


def write_program(program: ExportedProgram, path: Path) -> None:
    """Write a program for `torch.export.load`: it needs torch, but not this package."""
    file = io.BytesIO()
    with quiet(""):
        torch.export.save(program, file)
    storage.write(path, file.getvalue())


def _name_axes(graph: Any, part: Part) -> None:
    """Give the open axes the names of the plan instead of the tracer's, throughout the graph."""
    known = [*zip(graph.input, part.axes.values(), strict=True)]
    known += zip(graph.output, part.outputs.values(), strict=True)
    names = {
        dimension.dim_param: name
        for value, axes in known
        for dimension, name in zip(value.type.tensor_type.shape.dim, axes, strict=True)
        if dimension.dim_param
    }
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in names:
                dimension.dim_param = names[dimension.dim_param]
