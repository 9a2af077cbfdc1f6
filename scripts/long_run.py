"""Match pairs of ever new sizes in one process, and tell whether memory or time grow.

    python scripts/long_run.py --matches 50000

Every method whose weights are here takes turns on crops of the sample's pictures. Ten slices: the same
places, a pixel larger each time, so that every size is new and the work is alike. Of each: resident
memory at its end (Linux), mean time of a match on the processor, points found. A slice before them,
which does not count, loads what is loaded late.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import matcher
from matcher import datasets
from matcher.types import Image, Matcher

SLICES = 10
SIDES = 48, 256  # least and largest side of a crop, in pixels


def crops(count: int, seed: int, larger: int) -> Iterator[tuple[Image, Image]]:
    """Cut pairs of unlike sizes out of the sample's pairs.

    Args:
        count: Of the pairs.
        seed: The same parts of the same pictures for the same seed.
        larger: Pixels added to every side: other sizes, and about the same work.
    """
    chance = np.random.default_rng(seed)
    pairs = datasets.sample_pairs()
    for _ in range(count):
        pair = pairs[chance.integers(len(pairs))]
        height0, width0, height1, width1 = larger + chance.integers(*SIDES, 4)
        yield (
            _crop(matcher.read(pair.image0), height0, width0),
            _crop(matcher.read(pair.image1), height1, width1),
        )


def _crop(image: Image, height: int, width: int) -> Image:
    """Cut out a part that begins a quarter from the top and the left."""
    top, left = image.shape[0] // 4, image.shape[1] // 4
    return image[top : top + height, left : left + width]


def ready() -> dict[str, Matcher]:
    """Make every method that can be made here; the others are named."""
    methods = {}
    for name in matcher.list_methods():
        try:
            methods[name] = matcher.create(name, device="cpu")
        except (ImportError, FileNotFoundError) as error:
            print(f"without {name}: {str(error).splitlines()[0]}")
    return methods


def resident_mib() -> float:
    """Measure the memory that the process has now."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run(methods: dict[str, Matcher], turns: int, seed: int) -> list[tuple[float, float, int]]:
    """Match, and print a row a slice.

    Args:
        methods: Each matches every pair.
        turns: Pairs in a slice.
        seed: Of the crops.

    Returns:
        MiB, ms a match, and matches found of each slice.
    """
    rows = []
    for number in range(SLICES + 1):
        start, found = time.process_time(), 0
        for pair in crops(turns, seed, number):
            found += sum(len(matcher.match(method, *pair)) for method in methods.values())
        taken = (time.process_time() - start) * 1e3 / (turns * len(methods))
        rows.append((resident_mib(), taken, found))
        note = "" if number else " (not counted)"  # what is loaded late is loaded here
        print(f"| {number}{note} | {rows[-1][0]:.0f} | {taken:.1f} | {found} |", flush=True)
    return rows[1:]


def main() -> None:
    """Print a table and the ratios of the last slice to the first."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--matches", type=int, default=1000, help="pairs matched, by all methods")
    parser.add_argument("--seed", type=int, default=0, help="of the crops")
    arguments = parser.parse_args()
    methods = ready()
    turns = max(1, round(arguments.matches / (SLICES * len(methods))))
    print(f"{turns * SLICES * len(methods)} matches by {', '.join(methods)}")
    print("| slice | resident MiB | CPU ms a match | found |\n|---|---|---|---|")
    rows = run(methods, turns, arguments.seed)
    memory, taken = (rows[-1][column] / rows[0][column] for column in (0, 1))
    print(f"last / first: memory {memory:.3f}, time {taken:.3f}")


if __name__ == "__main__":
    main()
