"""Measure what an evaluation costs beyond the work of the methods themselves.

    python scripts/bench_evaluation.py [PAIRS]

Runs a method whose matching takes no time on PAIRS pairs (1,000) of eleven images, and prints the
time a pair that is neither describing, matching, refining nor robust fitting; then the share of
reading results back and summing them up with their intervals.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image as PilImage

from matcher.evaluation.runner import Evaluation, evaluate, read_evaluation
from matcher.evaluation.settings import Settings
from matcher.evaluation.tables import table
from matcher.types import Homography, Image, Matches, Pair

MATCHES = 500


def identical(image0: Image, image1: Image) -> Matches:
    """Return matches at once."""
    del image1
    height, width = image0.shape[:2]
    points = np.random.default_rng(0).random((MATCHES, 2), np.float32) * np.float32(
        min(height, width)
    )
    return Matches(points, points, np.ones(MATCHES, np.float32))


def make_pairs(folder: Path, count: int) -> list[Pair]:
    """Write eleven noise images and pair the first with the others, again and again."""
    generator = np.random.default_rng(0)
    paths = [folder / f"{index:02}.jpg" for index in range(11)]
    for path in paths:
        PilImage.fromarray(generator.integers(0, 255, (480, 640), dtype=np.uint8)).save(path)
    truth = Homography(np.eye(3))
    return [
        Pair(f"pair {n}", paths[0], paths[1 + n % 10], truth, f"set {n % 4}") for n in range(count)
    ]


def timed(label: str, pairs: int, work: Callable[[], object]) -> float:
    """Run, print the milliseconds a pair, and return the seconds."""
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    print(f"{label:32} {1000 * seconds / pairs:8.3f} ms a pair")
    return seconds


def main() -> None:
    """Print the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as name:
        pairs = make_pairs(Path(name), count)
        results: list[Evaluation] = []

        def run() -> None:
            settings = Settings(long_side=640)
            results.append(evaluate({"identical": identical}, pairs, settings, out=name))

        whole = timed("evaluate, first time", count, run)
        work = sum(
            sum(asdict(record.seconds).values()) - record.seconds.describe
            for record in results[0].records
        )
        print(f"{'  of it matching and fitting':32} {1000 * work / count:8.3f} ms a pair")
        print(f"{'  overhead':32} {1000 * (whole - work) / count:8.3f} ms a pair")
        timed("evaluate, all results there", count, run)
        timed("read the results", count, lambda: read_evaluation(name))
        timed("table with intervals", count, lambda: table(results[0]))


if __name__ == "__main__":
    main()
