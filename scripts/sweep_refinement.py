"""Change one option of the refinement at a time, and show what it does to accuracy.

    python scripts/sweep_refinement.py MANIFEST [METHOD ...]

MANIFEST is "sample" or a pairs.json; METHOD defaults to sift and xfeat-lighterglue. Every row is one evaluation
at the usual settings, of the same matches; the first two rows are the matches as found and refined by default.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from matcher import datasets, methods, refine
from matcher.evaluation.runner import evaluate
from matcher.evaluation.settings import Settings
from matcher.evaluation.tables import cells, table
from matcher.matching import match
from matcher.refinement import RefineOptions
from matcher.types import Image, Matches

USUAL = RefineOptions()
CHANGES: dict[str, RefineOptions | None] = {
    "as found": None,
    "refined": USUAL,
    "radius 5": replace(USUAL, radius=5),
    "radius 9": replace(USUAL, radius=9),
    "search 3": replace(USUAL, search=3),
    "search 7": replace(USUAL, search=7),
    "min_score 0.3": replace(USUAL, min_score=0.3),
    "min_score 0.6": replace(USUAL, min_score=0.6),
    "smooth 0": replace(USUAL, smooth=0.0),
    "smooth 0.8": replace(USUAL, smooth=0.8),
    "symmetric": replace(USUAL, symmetric=True),
}


def main(manifest: str, names: list[str]) -> None:
    """Print a table a method."""
    pairs = datasets.benchmark(manifest)
    for name in names:
        found = _remembered(name)
        changed = {label: _refined(found, options) for label, options in CHANGES.items()}
        rows = [cells(row) for row in table(evaluate(changed, pairs, Settings(refine="off")))]
        print(f"\n{name}\n" + "  ".join(rows[0]))
        for row in rows:
            print("  ".join(row.values()))


def _remembered(name: str) -> Callable[[Image, Image], Matches]:
    """Make a function that matches two images once, however often it is asked."""
    method = methods.build(name)
    known: dict[int, Matches] = {}

    def found(image0: Image, image1: Image) -> Matches:
        key = hash((image0.tobytes(), image1.tobytes()))
        if key not in known:
            known[key] = match(method, image0, image1)
        return known[key]

    return found


def _refined(
    found: Callable[[Image, Image], Matches], options: RefineOptions | None
) -> Callable[[Image, Image], Matches]:
    """Make a function that matches and refines."""

    def refined(image0: Image, image1: Image) -> Matches:
        matches = found(image0, image1)
        return matches if options is None else refine(matches, image0, image1, options)

    return refined


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or ["sift", "xfeat-lighterglue"])
