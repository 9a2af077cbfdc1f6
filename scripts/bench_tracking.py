"""Follow a camera over thousands of frames: memory, budget, and whether losses are told right.

    python scripts/bench_tracking.py                    # 10,000 frames of 320 x 240
    python scripts/bench_tracking.py --frames 300 --clock wall     # the budget, on idle cores

The camera wanders over a photograph by a known path. Every 100th frame is blank; of every 500 the
frames 250 to 253 show another photograph, too briefly for a new start, and of every 1,000 the
frames 720 to 739, long enough for one. What the tracker says of each frame, and where it says that
the camera is, is compared with that; a frame that shows what it does not say is printed.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.ndimage import affine_transform

import matcher
from matcher import assets, images, matching
from matcher.tracking.tracker import Health, Options, Tracked
from matcher.types import Image

PHOTOS = ("china.jpg", "flower.jpg")
AWAY = 1e4  # pixels between the two photographs, as if they lay side by side
WRONG = 3.0  # pixels: a camera that is told to be farther off is told wrong
CLOCKS = {"process": time.process_time, "wall": time.perf_counter}


@dataclass(frozen=True, eq=False)
class Frame:
    """A picture, where its top-left pixel lies in the photograph, and what it shows."""

    image: Image
    corner: np.ndarray
    kind: str  # "seen", "blank" or "elsewhere"


@dataclass
class Judge:
    """Compares what the tracker says with what is known.

    Attributes:
        corners: Places of the anchors, by frame.
        lost: Frames since one was tied to an anchor, as it should be.
        waits: Frames that it took to find the scene again, each time that it was lost.
        counts: Frames by what they show and what was said of them.
        wrong: Frames of which the wrong thing was said, by what it was.
        errors: Distances of the camera from where it was told to be, pixels.
    """

    patience: int
    corners: dict[int, np.ndarray] = field(default_factory=dict)
    lost: int = 0
    waits: list[int] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    errors: list[float] = field(default_factory=list)

    def judge(self, tracked: Tracked, frame: Frame) -> None:
        """Take note of one frame."""
        self.counts[frame.kind, tracked.health] += 1
        fault = self._fault(tracked, frame)
        if fault:
            self.wrong[fault] += 1
            print(f"frame {tracked.number}: {frame.kind}, {tracked.health}: {fault}")
        if tracked.health in (Health.LOST, Health.BLIND):
            self.lost += 1
            return
        if self.lost and tracked.health is Health.RECOVERED:
            self.waits.append(self.lost)
        self.lost = 0
        if tracked.renewed:
            self.corners[tracked.number] = frame.corner

    def _fault(self, tracked: Tracked, frame: Frame) -> str:
        """Name what is wrong with what was said of a frame; empty if nothing is."""
        health = tracked.health
        if frame.kind == "blank":
            return "" if health is Health.BLIND else "a blank frame was seen"
        if health in (Health.TRACKED, Health.RECOVERED):
            error = self._error(tracked, frame)
            self.errors += [error] if error <= WRONG else []
            if error > WRONG:
                return "tied to a wrong place"
            right = Health.RECOVERED if self.lost else Health.TRACKED
            return "" if health is right else "lost and tracked confused"
        if health is Health.STARTED:
            unknown = frame.kind == "elsewhere" and self.lost >= self.patience
            return "" if unknown or tracked.number == 0 else "started afresh where it was known"
        return "" if frame.kind == "elsewhere" else "lost where it was known"

    def _error(self, tracked: Tracked, frame: Frame) -> float:
        """Measure how far points have moved from where the known motion takes them, in pixels."""
        shift = self.corners[tracked.anchor] - frame.corner
        moved = tracked.matches.points1 - tracked.matches.points0
        return float(np.abs(np.median(moved, axis=0) - shift).max())


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
    parser.add_argument(
        "--clock", choices=CLOCKS, default="process", help="wall only where nothing else runs"
    )
    arguments = parser.parse_args()
    method = matching.create(arguments.method, refine=False, turns=False)
    options = Options(budget_ms=arguments.budget_ms, level=arguments.level)
    tracker = matcher.Tracker(method, options, clock=CLOCKS[arguments.clock])
    judge = Judge(options.patience)
    levels: Counter[int] = Counter()
    seconds, memory = [], []
    for number, frame in enumerate(walk(arguments.frames, tuple(arguments.size))):
        tracked = tracker.track(frame.image)
        judge.judge(tracked, frame)
        seconds.append(tracked.seconds)
        memory.append(resident())
        levels[tracked.level.long_side] += 1
        if (number + 1) % max(1, arguments.frames // 10) == 0:
            print(f"{number + 1:6} frames  {memory[-1]:7.1f} MiB", flush=True)
    print("long sides looked at:", dict(sorted(levels.items())))
    report_memory(np.array(memory))
    report_time(np.array(seconds), arguments.budget_ms, arguments.clock)
    report_losses(judge)


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
        elif 250 <= number % 500 < 254 or 720 <= number % 1000 < 740:
            other = np.array([50.0 + number % 10, 40.0])
            yield Frame(cut(there, other, size), other + AWAY, "elsewhere")
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


def report_memory(memory: np.ndarray) -> None:
    """Print the mean resident memory of each tenth of the way."""
    tenths = [part.mean() for part in np.array_split(memory, 10)]
    print("MiB, mean of each tenth:", " ".join(f"{mean:.1f}" for mean in tenths))
    print(f"last tenth / second tenth: {tenths[-1] / tenths[1]:.3f}")


def report_time(seconds: np.ndarray, budget_ms: float, clock: str) -> None:
    """Print the times of frames, and the share that keeps the budget."""
    middle, slow = 1e3 * np.quantile(seconds, [0.5, 0.99])
    print(f"median {middle:.1f} ms, 99 % within {slow:.1f} ms ({clock} clock)")
    print(f"within {budget_ms:g} ms: {np.mean(1e3 * seconds <= budget_ms):.2%}")


def report_losses(judge: Judge) -> None:
    """Print what was said of the frames, and what of it was wrong."""
    for (kind, health), count in sorted(judge.counts.items()):
        print(f"{kind:10} {health:10} {count}")
    total = judge.counts.total()
    print(f"told right {total - judge.wrong.total()} of {total}; wrong: {dict(judge.wrong)}")
    print(f"found again {len(judge.waits)} times")
    errors = np.array(judge.errors)
    print(f"error against the anchor: median {np.median(errors):.3f}, 99 % within "
          f"{np.quantile(errors, 0.99):.3f}, largest {errors.max():.3f} px")  # fmt: skip


if __name__ == "__main__":
    main()
