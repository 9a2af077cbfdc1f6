"""Measure template search against OpenCV's matchTemplate, in one run: medians, ratios, errors.

python scripts/bench_templates.py [exhaustive] [many] [pyramid] [turned] [stages]
"""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates

from matcher.correlation import Scene, score_map
from matcher.correlation.kernel import make_kernel
from matcher.correlation.sums import sliding_products
from matcher.correlation.tiles import in_threads, make_plan
from matcher.correlation.window_norms import WindowNorms
from matcher.correlation.workspace import Workspace
from matcher.templates import find
from matcher.templates.poses import Pose

Picture = NDArray[Any]
RUNS = 10


def texture(height: int, width: int, seed: int, sigma: float = 1.5) -> Picture:
    """Make smoothed noise, 0 to 255."""
    noise = np.random.default_rng(seed).normal(size=(height, width)).astype(np.float32)
    smooth = gaussian_filter(noise, sigma, mode="wrap")
    low, high = smooth.min(), smooth.max()
    picture: Picture = ((smooth - low) / (high - low) * 255).astype(np.uint8)
    return picture


def milliseconds(*calls: Callable[[], object], runs: int = RUNS) -> list[float]:
    """Time calls in turn, after a warm-up; medians."""
    times = np.zeros((runs + 1, len(calls)))
    for row in times:
        for number, call in enumerate(calls):
            start = time.perf_counter()
            call()
            row[number] = time.perf_counter() - start
    return [float(t) for t in np.median(times[1:], axis=0) * 1e3]


def opencv(template: Picture, scene: Picture) -> Picture:
    """Score with OpenCV."""
    return np.asarray(cv2.matchTemplate(scene, template, cv2.TM_CCOEFF_NORMED), np.float32)


def exhaustive() -> None:
    """Compare whole score maps."""
    scene = texture(1080, 1920, 0)
    print("exhaustive 1920 x 1080     template  opencv ms  ours ms  ratio  largest difference")
    for kind in (np.uint8, np.float32):
        picture = scene.astype(kind)
        for side in (32, 64, 128, 256):
            part = picture[300 : 300 + side, 500 : 500 + side].copy()
            theirs, ours = milliseconds(
                partial(opencv, part, picture), partial(score_map, part, picture)
            )
            apart = np.abs(opencv(part, picture) - score_map(part, picture)).max()
            print(
                f"  {kind.__name__:24} {side:8} {theirs:10.1f} {ours:8.1f} {ours / theirs:6.2f}"
                f"  {apart:.0e}"
            )
    small = texture(240, 320, 1)
    part = small[40:120, 50:130].copy()
    theirs, ours = milliseconds(lambda: opencv(part, small), lambda: score_map(part, small))
    print(f"  320 x 240                {80:8} {theirs:10.1f} {ours:8.1f} {ours / theirs:6.2f}")


def many() -> None:
    """Compare 50 templates in one scene."""
    scene = texture(1080, 1920, 0)
    print("50 templates               sides     opencv ms  ours ms  ratio  our own loop ms  gain")
    for name, sides in (
        ("64", [64] * 50),
        ("32 to 128", list(np.linspace(32, 128, 50, dtype=int))),
    ):
        parts = [scene[8 * s : 9 * s, 10 * s : 11 * s].copy() for s in sides]

        calls = [partial(call, parts, scene) for call in (_opencv_loop, _together, _own_loop)]
        theirs, ours, loop = milliseconds(*calls, runs=3)
        print(
            f"  {name:24} {'':8} {theirs:10.0f} {ours:8.0f} {ours / theirs:6.2f}"
            f" {loop:16.0f} {loop / ours:5.1f}"
        )


def _opencv_loop(parts: list[Picture], scene: Picture) -> None:
    for part in parts:
        opencv(part, scene)


def _own_loop(parts: list[Picture], scene: Picture) -> None:
    for part in parts:
        score_map(part, scene)


def _together(parts: list[Picture], scene: Picture) -> None:
    """Score as `find` does: one scene, a template a thread."""
    prepared = Scene(scene)

    def score(number: int) -> None:
        prepared.score_map(make_kernel(parts[number]))

    in_threads(score, len(parts))


def pyramid(scenes: int = 100) -> None:
    """Compare pyramid search with the best place of OpenCV's map, in random scenes.

    Once in turn, where each finds the processor's caches full of what the other left, and once in
    blocks of ten scenes, each by itself.
    """
    print(
        f"pyramid, {scenes} scenes        template  opencv ms  ours ms  ratio  same peak (0.5 px)"
        "  in turn: opencv ms  ours ms  ratio"
    )
    for side in (32, 64, 128, 256):
        generator = np.random.default_rng(side)
        base = texture(1080, 1920, side)
        cases = [
            (generator.integers(0, 1000, 2), generator.integers(0, (1080 - side, 1920 - side)))
            for _ in range(scenes)
        ]
        agree, medians = 0, []
        for block in (RUNS, 1):
            times: list[list[float]] = [[], []]
            for first in range(0, scenes, block):
                some = [_cut(base, *case, side) for case in cases[first : first + block]]
                places = []
                for method, spent in zip((_best_place, _pyramid_place), times, strict=True):
                    for part, scene in some:
                        start = time.perf_counter()
                        places.append(method(part, scene))
                        spent.append(time.perf_counter() - start)
                agree += sum(
                    np.abs(np.subtract(theirs, ours)).max() <= 0.5
                    for theirs, ours in zip(places[: len(some)], places[len(some) :], strict=True)
                )
            medians += [np.median(each) * 1e3 for each in times]
        print(
            f"  {'':24} {side:8} {medians[0]:10.1f} {medians[1]:8.1f} {medians[1] / medians[0]:6.2f}"
            f"  {agree} of {2 * scenes:<17} {medians[2]:9.1f} {medians[3]:8.1f}"
            f" {medians[3] / medians[2]:6.2f}"
        )


def _cut(base: Picture, shift: Picture, corner: Picture, side: int) -> tuple[Picture, Picture]:
    """Return a template and its scene."""
    scene, (y, x) = np.roll(base, shift, (0, 1)), corner
    return scene[y : y + side, x : x + side].copy(), scene


def _best_place(part: Picture, scene: Picture) -> tuple[float, float]:
    """Find the first pixel of the best window with OpenCV."""
    _, _, _, (x, y) = cv2.minMaxLoc(opencv(part, scene))
    return x, y


def _pyramid_place(part: Picture, scene: Picture) -> tuple[float, float]:
    """Find it by pyramid search; infinity where nothing is found."""
    hits = find(part, scene, mode="pyramid", max_hits=1)
    half = (len(part) - 1) / 2
    return (hits[0].x - half, hits[0].y - half) if hits else (math.inf, math.inf)


def turned(trials: int = 50) -> None:
    """Search the full circle for a 64-pixel template in a 640 x 480 scene."""
    generator = np.random.default_rng(0)
    errors, times = [], []
    for seed in range(trials):
        scene = texture(480, 640, seed).astype(np.float32)
        centre, angle = generator.uniform((60, 60), (580, 420)), generator.uniform(-180, 180)
        linear = Pose(0, 0, angle).scene_from_template
        y, x = np.indices((64, 64)) - 31.5
        places = np.einsum("ij,jhw->ihw", linear, np.stack([x, y])) + centre[:, None, None]
        part = map_coordinates(scene, places[::-1], order=3)
        start = time.perf_counter()
        hits = find(part, scene, angles=(-180, 180))
        times.append(time.perf_counter() - start)
        if hits:
            off = abs((hits[0].angle_degrees - angle + 180) % 360 - 180)
            errors.append((off, np.hypot(hits[0].x - centre[0], hits[0].y - centre[1])))
    worst = np.max(errors, axis=0)
    print(
        f"full circle, 64 px in 640 x 480: {np.median(times) * 1e3:.0f} ms median, "
        f"{np.max(times) * 1e3:.0f} ms worst; found {len(errors)} of {trials}; "
        f"worst errors {worst[0]:.3f} degrees, {worst[1]:.3f} px"
    )


def stages() -> None:
    """Show where an exhaustive search spends its time."""
    pixels = texture(1080, 1920, 0)
    for side in (32, 64, 128, 256):
        kernel = make_kernel(pixels[300 : 300 + side, 500 : 500 + side])
        plan = make_plan(pixels.shape, kernel.size)
        tile = pixels[plan.inputs(0)]
        deviations = tile.astype(np.float32) - 128
        pattern = kernel.pattern[0].astype(np.float32)
        names = ["norms", "products", "whole"]
        times = milliseconds(
            partial(_norms, tile, kernel.size),
            partial(sliding_products, deviations, pattern),
            partial(lambda k: Scene(pixels).score_map(k), kernel),
        )
        print(
            f"stages, {side:3} px, {plan.count} tiles of {tile.shape}, one of them: "
            + ", ".join(f"{n} {t:.1f} ms" for n, t in zip(names, times, strict=True))
        )


def _norms(tile: Picture, size: tuple[int, int]) -> Picture:
    return WindowNorms(tile[None], size, Workspace())[:]


def main() -> None:
    """Run the parts that are named, or all."""
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} threads; OpenCV {cv2.__version__}, torch {torch.__version__}"
    )
    cv2.setNumThreads(torch.get_num_threads())
    parts = {f.__name__: f for f in (exhaustive, many, pyramid, turned, stages)}
    for name in sys.argv[1:] or parts:
        parts[name]()


if __name__ == "__main__":
    main()
