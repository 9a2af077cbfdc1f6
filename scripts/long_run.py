"""Match pairs of ever new sizes in one process, and tell whether memory or time grow.

    python scripts/long_run.py --matches 50000

Every method whose weights are here takes turns on crops of the sample's pictures. Ten slices: the same
places, a pixel higher and narrower each time, so that every size is new and the work is alike. Of each: resident
memory at its end (Linux with glibc), mean time of a match on the processor, points found. A slice
before them, which does not count, loads what is loaded late. The second figure of memory is what is
left when the allocator gives back the room that it keeps for later: a leak shows in it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
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


def crops(count: int, seed: int, taller: int) -> Iterator[tuple[Image, Image]]:
    """Cut pairs of unlike sizes out of the sample's pairs.

    Args:
        count: Of the pairs.
        seed: The same parts of the same pictures for the same seed.
        taller: Pixels that heights gain and widths lose: other sizes, and about the same work.
    """
    chance = np.random.default_rng(seed)
    pairs = datasets.sample_pairs()
    for _ in range(count):
        pair = pairs[chance.integers(len(pairs))]
        heights, widths = chance.integers(*SIDES, (2, 2))
        yield (
            _crop(matcher.read(pair.image0), heights[0] + taller, widths[0] - taller),
            _crop(matcher.read(pair.image1), heights[1] + taller, widths[1] - taller),
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


def used_mib() -> float:
    """Measure the same without what is free already but kept by the allocator."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return resident_mib()


def run(methods: dict[str, Matcher], turns: int, seed: int) -> list[tuple[float, float, float]]:
    """Match, and print a row a slice.

    Args:
        methods: Each matches every pair.
        turns: Pairs in a slice.
        seed: Of the crops.

    Returns:
        MiB resident, MiB in use and ms a match of each slice.
    """
    rows = []
    for number in range(SLICES + 1):
        start, found = time.process_time(), 0
        for pair in crops(turns, seed, number):
            found += sum(len(matcher.match(method, *pair)) for method in methods.values())
        taken = (time.process_time() - start) * 1e3 / (turns * len(methods))
        rows.append((resident_mib(), used_mib(), taken))
        note = "" if number else " (not counted)"  # what is loaded late is loaded here
        memory = f"{rows[-1][0]:.0f} | {rows[-1][1]:.0f}"
        print(f"| {number}{note} | {memory} | {taken:.1f} | {found} |", flush=True)
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
    print("| slice | resident MiB | in use MiB | CPU ms a match | found |\n|---|---|---|---|---|")
    rows = run(methods, turns, arguments.seed)
    ratios = (f"{last / first:.3f}" for last, first in zip(rows[-1], rows[0], strict=True))
    print("last / first: resident {}, in use {}, time {}".format(*ratios))


if __name__ == "__main__":
    main()
