"""Compare the time of XFeat's front end here with kornia's, same weights, one image of 640 × 480.

python scripts/bench_xfeat.py [IMAGE]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from matcher import assets, features, images, weights
from matcher.extras import require

_ROUNDS = 25


def main(path: Path) -> None:
    """Print medians and their ratio, the two measured in turns."""
    image = images.resize(images.grey(images.read(path)), (480, 640))
    ours = features.build("xfeat", device="cpu")
    theirs = require("kornia", "the comparison").feature.XFeat().eval()
    theirs.net.load_state_dict(weights.state_dict("xfeat"))
    batch = torch.from_numpy(image)[None, None]

    here, there = _medians(lambda: ours.detect([image]), lambda: theirs.detectAndCompute(batch))

    print(f"threads {torch.get_num_threads()}, median of {_ROUNDS}")
    print(f"matcher {here * 1e3:.1f} ms  kornia {there * 1e3:.1f} ms  ratio {here / there:.2f}")


def _medians(*calls: Callable[[], object]) -> list[float]:
    """Time calls in turns, after a warm-up: medians in seconds."""
    times: list[list[float]] = [[] for _ in calls]
    for number in range(_ROUNDS + 3):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if number >= 3:
                taken.append(time.perf_counter() - start)
    return [float(np.median(taken)) for taken in times]


if __name__ == "__main__":
    found = sorted(assets.folder("data").rglob("*.jpg"))
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else found[0])
