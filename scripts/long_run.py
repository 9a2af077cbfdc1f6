"""Match pairs of ever new sizes in one process, and tell whether memory or time grow.

    python scripts/long_run.py --matches 50000 --minutes 90

Every method whose weights are here takes turns on crops of the sample's pictures, whose places and
sides are drawn anew for each pair. A row every hundred pairs: resident memory (Linux with glibc),
what is left of it when the allocator gives back the room that it keeps for later, mean time of a
match on the processor, points found. The end compares the last tenth of the rows with the second:
in the first, what is loaded late is loaded, and the caches of libraries fill up (oneDNN keeps what
it compiled for the last 1,024 shapes, or as many as ONEDNN_PRIMITIVE_CACHE_CAPACITY says).
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

ROW = 100  # pairs
Row = tuple[float, float, float]  # MiB resident, MiB in use, ms a match
SIDES = 40, 160  # least and largest side of a crop, in pixels


def crops(chance: np.random.Generator) -> Iterator[tuple[Image, Image]]:
    """Cut pairs of unlike sizes out of the sample's pairs, without end."""
    pairs = datasets.sample_pairs()
    while True:
        pair = pairs[chance.integers(len(pairs))]
        yield _crop(matcher.read(pair.image0), chance), _crop(matcher.read(pair.image1), chance)


def _crop(image: Image, chance: np.random.Generator) -> Image:
    """Cut out a part of any size, anywhere."""
    height, width = chance.integers(*SIDES, 2)
    top = chance.integers(max(1, image.shape[0] - height))
    left = chance.integers(max(1, image.shape[1] - width))
    return image[top : top + height, left : left + width]


def ready(names: list[str]) -> dict[str, Matcher]:
    """Make every method that can be made here; the others are named."""
    methods = {}
    for name in names:
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


def run(methods: dict[str, Matcher], matches: int, minutes: float, seed: int) -> list[Row]:
    """Match until there are enough or the time is over, and print a row every hundred pairs.

    Args:
        methods: Each matches every pair.
        matches: How many, by all methods.
        minutes: The most to take.
        seed: Of the crops.

    Returns:
        What was printed.
    """
    rows: list[Row] = []
    pairs, end = crops(np.random.default_rng(seed)), time.monotonic() + 60 * minutes
    while len(rows) * ROW * len(methods) < matches and time.monotonic() < end:
        start, found = time.process_time(), 0
        for _, pair in zip(range(ROW), pairs, strict=False):
            found += sum(len(matcher.match(method, *pair)) for method in methods.values())
        taken = (time.process_time() - start) * 1e3 / (ROW * len(methods))
        rows.append((resident_mib(), used_mib(), taken))
        done = len(rows) * ROW * len(methods)
        memory = f"{rows[-1][0]:.0f} | {rows[-1][1]:.0f}"
        print(f"| {done} | {memory} | {taken:.1f} | {found} |", flush=True)
    return rows


def main() -> None:
    """Print a table and the ratios of its last tenth to its second."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--matches", type=int, default=20_000, help="by all methods")
    parser.add_argument("--minutes", type=float, default=1e9, help="the most to take")
    parser.add_argument("--methods", default="", help="such as ncc,loftr; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the crops")
    arguments = parser.parse_args()
    methods = ready(arguments.methods.split(",") if arguments.methods else matcher.list_methods())
    print(f"{len(methods)} methods: {', '.join(methods)}")
    print("| matches | resident MiB | in use MiB | CPU ms a match | found |\n|---|---|---|---|---|")
    rows = run(methods, arguments.matches, arguments.minutes, arguments.seed)
    tenth = max(1, len(rows) // 10)
    last, second = np.mean(rows[-tenth:], 0), np.mean(rows[tenth : 2 * tenth] or rows, 0)
    ratios = (f"{ratio:.3f}" for ratio in last / second)
    print(f"{len(rows) * ROW * len(methods)} matches, last tenth / second tenth:", end=" ")
    print("resident {}, in use {}, time {}".format(*ratios))


if __name__ == "__main__":
    main()
