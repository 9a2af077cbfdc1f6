"""Compare exported methods with torch's on pairs: matches, accuracy, size and time, in one table.

    python scripts/bench_export.py                                 # the sample pairs
    python scripts/bench_export.py --pairs FOLDER/pairs.json       # others
    python scripts/bench_export.py --first 3 --methods loftr       # few pairs: for the times

A form that lies in the folder already is compared and not exported again. Both sides match as
given, without quarter turns and without refinement. Match sets are of the same descriptions: what
differs is `match`; accuracy is of the whole way from images. The last column is the largest change
of any AUC, in points; float32 beside float32 says what of it is chance.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from matcher import datasets, methods
from matcher.export.exporter import METHODS, PRECISIONS, export
from matcher.export.parity import Parity, compare
from matcher.methods._onnx import PARTS
from matcher.types import Pair

FIGURES = ("homography AUC@3", "pose AUC@5")


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", default="sample", help="sample, or a manifest")
    parser.add_argument("--first", type=int, help="only so many pairs")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--folder", type=Path, default=Path("runs/exported"))
    arguments = parser.parse_args()
    pairs = datasets.benchmark(arguments.pairs)[: arguments.first]
    print(f"{len(pairs)} pairs")
    forms = [
        (name, precision)
        for name in arguments.methods.split(",")
        for precision in arguments.precisions.split(",")
    ]
    for number, row in enumerate(rows(forms, pairs, arguments.folder)):
        if not number:
            print("| " + " | ".join(row) + " |\n|" + " --- |" * len(row))
        print("| " + " | ".join(row.values()) + " |", flush=True)


def rows(
    forms: Sequence[tuple[str, str]], pairs: Sequence[Pair], folder: Path
) -> Iterator[dict[str, str]]:
    """Compare one form after the other."""
    for name, precision in forms:
        place = folder / f"{name}-{precision}"
        yield row(name, precision, place, measured(name, precision, place, pairs))


def measured(name: str, precision: str, place: Path, pairs: Sequence[Pair]) -> Parity:
    """Compare a form that is there; export one that is not."""
    if not all((place / f"{part}.onnx").is_file() for part in PARTS):
        return export(name, place, precision=precision, pairs=pairs).parity
    exported = methods.build(name, device="cpu", backend="onnxruntime", weights=place)
    return compare(methods.build(name, device="cpu"), exported, pairs)


def row(name: str, precision: str, place: Path, parity: Parity) -> dict[str, str]:
    """Write one form as cells."""
    size = sum((place / f"{part}.onnx").stat().st_size for part in PARTS)
    changes = [after - before for before, after in parity.figures.values()]
    before, after = parity.milliseconds
    known = {figure: parity.figures[figure] for figure in FIGURES if figure in parity.figures}
    return {
        "method": name,
        "precision": precision,
        "MiB": f"{size / 2**20:.1f}",
        "same matches": f"{parity.identical:.0%} of pairs",
        "matches in both": f"{parity.common:.2%}",
        "farthest px": f"{parity.farthest:.2g}",
        "points in both": f"{parity.described:.2%}",
        "ms torch": f"{before:.0f}",
        "ms exported": f"{after:.0f}",
        **{figure: f"{first:.1f} to {second:.1f}" for figure, (first, second) in known.items()},
        "largest change": f"{max(changes, key=abs, default=0.0):+.1f}",
    }


if __name__ == "__main__":
    main()
