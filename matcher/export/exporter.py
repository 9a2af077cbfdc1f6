"""Write a method's networks as ONNX graphs that run without this package, and check that they agree.

    from matcher.export.exporter import export

    exported = export("loftr", "loftr-onnx")
    method = matcher.create("loftr", backend="onnxruntime", weights="loftr-onnx")

Two graphs, `describe.onnx` and `match.onnx`, with sizes and counts left open; `matcher.export.graphs`
says what goes in and out. Stopping early and dropping points (`adaptive`) are decisions in Python
and are not exported: every pair takes every layer.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matcher import methods, storage
from matcher.datasets import sample_pairs
from matcher.export.files import write_graph, write_program
from matcher.export.parity import Parity, compare
from matcher.export.plans import METHODS, make_plan
from matcher.export.precision import PRECISIONS, lower
from matcher.extras import require
from matcher.methods._onnx import Facts, default_folder
from matcher.types import Pair

__all__ = ["METHODS", "PRECISIONS", "Exported", "Parity", "export"]


@dataclass(frozen=True)
class Exported:
    """What an export made.

    Attributes:
        folder: Holds `describe.onnx`, `match.onnx` and `parity.json`.
        facts: What the files say of themselves.
        parity: How the exported method compares with torch's.
    """

    folder: Path
    facts: Facts
    parity: Parity


def export(
    name: str,
    folder: str | Path | None = None,
    *,
    precision: str = "float32",
    pairs: Sequence[Pair] | None = None,
    programs: bool = False,
    **options: Any,
) -> Exported:
    """Export a method and compare it with itself on real pairs.

    Args:
        name: "loftr" (preset "light") or "superglue" (XFeat's keypoints, modern layers).
        folder: Where to; None for the place in which `matcher.create` looks unasked.
        precision: "float16" products for GPUs, or "int8" weights for small files. Softmax, norms,
            transport and coordinates stay float32.
        pairs: To compare on; None for the sample pairs.
        programs: Write the `torch.export` programs too, `describe.pt2` and `match.pt2`.
        **options: What `matcher.create` takes for the method, `weights` included.

    Raises:
        ValueError: The method or the precision cannot be exported, or in float32 the result does
            not agree with torch's.
        ImportError: onnx, onnxscript or onnxruntime is missing.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"no precision {precision!r}; there are {', '.join(PRECISIONS)}")
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require(package, "matcher export")
    chosen = sample_pairs() if pairs is None else list(pairs)
    plan = make_plan(name, precision, options)
    target = default_folder(name, precision) if folder is None else Path(folder).expanduser()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        for part in plan.parts:
            path = Path(scratch) / f"{part.name}.onnx"
            program = part.program()
            write_graph(program, part, plan.facts, path)
            lower(path, precision)
            path.replace(target / path.name)
            if programs:
                write_program(program, target / f"{part.name}.pt2")
    exported = methods.build(name, device="cpu", backend="onnxruntime", weights=target)
    parity = compare(plan.method, exported, chosen)
    storage.write(target / "parity.json", json.dumps(asdict(parity), indent=1).encode())
    if precision == "float32" and not parity.agrees:
        raise ValueError(f"the exported {name} does not agree with torch's: {parity.summary}")
    return Exported(target, plan.facts, parity)
