"""Follow a camera over thousands of frames: memory, budget, and whether losses are told right.

    python scripts/bench_tracking.py                    # 10,000 frames of 320 x 240
    python scripts/bench_tracking.py --frames 500 --budget-ms 50

The camera wanders over a photograph by a known path. Every 100th frame is blank, and of every 500
the frames 250 to 253 show another photograph: what the tracker says of them is compared with that.
Prints resident memory at every tenth of the way, the share of frames within the budget by the time
of the process (other work on the machine does not count), and the drift of the points.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.ndimage import affine_transform

import matcher
from matcher import assets, images, matching
from matcher.tracking.tracker import Health, Options, Tracked
from matcher.types import Image

PHOTOS = ("china.jpg", "flower.jpg")


@dataclass(frozen=True, eq=False)
class Frame:
    """A picture, where its top-left pixel lies in the photograph, and what it shows."""

    image: Image
    corner: np.ndarray
    kind: str  # "seen", "blank" or "elsewhere"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--budget-ms", type=float, default=200.0)
    parser.add_argument("--method", default="superglue")
    parser.add_argument("--size", type=int, nargs=2, default=(240, 320), metavar=("H", "W"))
    parser.add_argument("--level", type=int, default=5, help="where the tracker begins")
    arguments = parser.parse_args()
    method = matching.create(arguments.method, refine=False, turns=False)
    options = Options(budget_ms=arguments.budget_ms, level=arguments.level)
    tracker = matcher.Tracker(method, options, clock=time.process_time)
    found: Counter[tuple[str, str]] = Counter()
    seconds, errors = [], []
    corners: dict[int, np.ndarray] = {}  # of the anchors
    for number, frame in enumerate(walk(arguments.frames, tuple(arguments.size))):
        tracked = tracker.track(frame.image)
        found[frame.kind, tracked.health] += 1
        seconds.append(tracked.seconds)
        errors += error(tracked, frame, corners)
        if (number + 1) % max(1, arguments.frames // 10) == 0:
            print(
                f"{number + 1:6} frames  {resident():7.1f} MiB  level {tracked.level}", flush=True
            )
    report(found, np.array(seconds), np.array(errors), arguments.budget_ms)


def error(tracked: Tracked, frame: Frame, corners: dict[int, np.ndarray]) -> list[float]:
    """Measure how far the points have moved from where the known motion takes them, in pixels."""
    if tracked.renewed:
        corners[tracked.number] = frame.corner
    if frame.kind != "seen" or not len(tracked.matches):
        return []
    shift = corners[tracked.anchor] - frame.corner
    moved = tracked.matches.points1 - tracked.matches.points0
    return [float(np.abs(np.median(moved, axis=0) - shift).max())]


def walk(count: int, size: tuple[int, int]) -> Iterator[Frame]:
    """Make the frames one by one."""
    here, there = (images.grey(images.read(assets.folder("data") / "photos" / p)) for p in PHOTOS)
    low = np.array([2.0, 0.4 * here.shape[0]])  # above it is sky, where there is nothing to follow
    room = np.maximum(np.array(here.shape[::-1]) - size[::-1] - 4 - low, 0)
    for number in range(count):
        phase = np.array([number / 97, number / 61])
        corner = low + room * (0.5 + 0.5 * np.sin(phase))
        if number % 100 == 99:
            yield Frame(np.full(size, 0.4, np.float32), corner, "blank")
        elif 250 <= number % 500 < 254:
            yield Frame(cut(there, np.array([50.0, 40.0]), size), corner, "elsewhere")
        else:
            yield Frame(cut(here, corner, size), corner, "seen")


def cut(photo: Image, corner: np.ndarray, size: tuple[int, int]) -> Image:
    """Cut a frame whose top-left pixel is at (x, y) of a photograph."""
    frame = affine_transform(photo, [1, 1], corner[::-1], output_shape=size, order=1)
    return np.asarray(np.clip(frame, 0, 1), np.float32)


def resident() -> float:
    """Read this process's resident memory in MiB."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def report(
    found: Counter[tuple[str, str]], seconds: np.ndarray, errors: np.ndarray, budget_ms: float
) -> None:
    """Print the figures."""
    for (kind, health), count in sorted(found.items()):
        print(f"{kind:10} {health:10} {count}")
    fine = {("blank", Health.BLIND), ("elsewhere", Health.LOST)}
    fine |= {("seen", each) for each in (Health.TRACKED, Health.RECOVERED, Health.STARTED)}
    right = sum(count for each, count in found.items() if each in fine)
    middle, slow = 1e3 * np.quantile(seconds, [0.5, 0.99])
    print(f"told right {right} of {found.total()}")
    print(f"median {middle:.1f} ms, 99 % within {slow:.1f} ms of the process's time")
    print(f"within {budget_ms:g} ms: {np.mean(1e3 * seconds <= budget_ms):.2%}")
    print(f"error against the anchor: median {np.median(errors):.3f}, 99 % within "
          f"{np.quantile(errors, 0.99):.3f} px")  # fmt: skip


if __name__ == "__main__":
    main()
