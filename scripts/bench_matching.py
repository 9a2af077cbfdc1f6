"""Time `ncc` on a pair and the refinement of matches, beside OpenCV's SIFT on the same images.

    python scripts/bench_matching.py

One run, calls in turns, medians of 10. The pair is the sample's `facade` at 800 x 600: `ncc` takes 1,000 corners of
either image and compares all with all, at three scales; the refinement moves 1,500 matches.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

import matcher
from matcher import datasets, images, methods
from matcher.extras import require

ROUNDS = 10
SIZE = 600, 800


def main() -> None:
    """Print medians, quartiles, and ratios to SIFT."""
    pair = next(pair for pair in datasets.sample_pairs() if pair.name == "facade")
    image0, image1 = (
        images.resize(images.grey(images.read(path)), SIZE) for path in (pair.image0, pair.image1)
    )
    ncc = methods.build("ncc", max_keypoints=1000)
    found = matcher.match(methods.build("sift"), image0, image1)
    generator = np.random.default_rng(0)
    matches = found.select(generator.integers(0, len(found), 1500))

    times = _medians(
        {
            "OpenCV SIFT, both images": lambda: _sift(image0, image1),
            "ncc, pair of 1,000 corners": lambda: matcher.match(ncc, image0, image1),
            "refinement of 1,500 matches": lambda: matcher.refine(matches, image0, image1),
        }
    )

    reference = np.median(times["OpenCV SIFT, both images"])
    print(
        f"threads {torch.get_num_threads()}, {SIZE[1]} x {SIZE[0]}, median of {ROUNDS} (quartiles)"
    )
    for name, taken in times.items():
        low, middle, high = np.quantile(taken, [0.25, 0.5, 0.75]) * 1e3
        print(
            f"{name:30} {middle:7.1f} ms ({low:.1f} to {high:.1f})  {middle / reference / 1e3:.2f} of SIFT"
        )


def _sift(*pictures: NDArray[np.float32]) -> None:
    sift = require("cv2", "the comparison").SIFT_create(2048)
    for picture in pictures:
        sift.detectAndCompute((picture * 255).astype(np.uint8), None)


def _medians(calls: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Time calls in turns, after a warm-up: seconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if number >= 2:
                times[name].append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    main()
