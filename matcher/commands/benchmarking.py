"""The command `matcher bench`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from matcher import terminal
from matcher.options import Device, OutFolder, method_from

if TYPE_CHECKING:
    from matcher.benchmark.contenders import Contender
    from matcher.benchmark.machine import Peak
    from matcher.benchmark.timing import Timing

_SIDES = (320, 640, 1280)  # long sides of the curve
_COUNTS = (256, 512, 1024, 2048)  # keypoints of the curve


def bench(
    methods_: Annotated[
        str,
        typer.Option("--methods", "-m", help="Methods and peers with commas between."),
    ] = "ncc,superglue,loftr",
    peers: Annotated[
        str, typer.Option(help="Others to compare with: 'installed', names, or ''.")
    ] = "installed",
    image0: Annotated[Path | None, typer.Option(exists=True, help="Default: a sample.")] = None,
    image1: Annotated[Path | None, typer.Option(exists=True, help="Default: a sample.")] = None,
    size: Annotated[tuple[int, int], typer.Option(help="Width and height.")] = (640, 480),
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; medians are taken.")] = 10,
    curves: Annotated[bool, typer.Option(help="Also let images and keypoints grow.")] = True,
    refine: Annotated[bool, typer.Option(help="Time the refinement too.")] = True,
    device: Device = "auto",
    out: OutFolder = Path("runs/bench"),
) -> None:
    """Time methods and peers on one pair: stages, memory, shares of the machine's peak, growth."""
    from matcher.benchmark.machine import measure_peak
    from matcher.benchmark.timing import time_pair
    from matcher.evaluation.environment import Environment
    from matcher.nn.devices import choose_device

    paths = _sample() if image0 is None or image1 is None else (image0, image1)
    place = choose_device(device)
    labels = [*methods_.split(","), *_peers(peers)]
    with terminal.working("loading"):
        contenders = _contenders(labels, device, refine)
    with terminal.bar("timing") as advance:
        timings = time_pair(
            contenders, paths, (size[1], size[0]), place, repeats=repeats, progress=advance
        )
    peak = measure_peak(place)
    terminal.print_table([_row(each, timings[0]) for each in timings])
    terminal.print_table([row for each in timings for row in _bounds(each, peak)])
    environment = Environment.here()
    terminal.print_line(
        f"{size[0]} x {size[1]}, medians of {repeats} (quartiles); {environment.devices}; peak "
        f"{peak.flops / 1e9:.0f} GFLOP/s, {peak.bandwidth / 1e9:.1f} GB/s; * random weights"
    )
    grown = _grow(methods_.split(","), device, paths) if curves else {}
    written = _write(timings, grown, peak, asdict(environment), out)
    terminal.finish(f"{len(timings)} timed", written)


def _peers(words: str) -> list[str]:
    """List the peers asked for; of "installed", those whose package is here."""
    from importlib.util import find_spec

    if words != "installed":
        return [word for word in words.split(",") if word]
    needs = {
        "cv2": ("sift", "orb"),
        "kornia": ("xfeat-lighterglue", "aliked-lightglue", "kornia-loftr"),
        "transformers": ("transformers-superglue", "transformers-eloftr"),
    }
    return [name for package, names in needs.items() if find_spec(package) for name in names]


def _contenders(
    labels: Sequence[str], device: str, refine: bool, fields: Mapping[str, Any] | None = None
) -> list[Contender]:
    """Make contenders; only this package's own methods are refined."""
    from matcher.benchmark.contenders import contender

    made = []
    for label in labels:
        name, own = method_from(label)
        refines = refine and name in ("ncc", "superglue", "loftr")
        made.append(contender(label, name, {**(fields or {}), **own}, device, refines))
    return made


def _grow(
    labels: Sequence[str], device: str, paths: tuple[Path, Path]
) -> dict[str, dict[int, list[Timing]]]:
    """Time over growing images, and over growing numbers of keypoints or cells."""
    from matcher.benchmark.timing import growth
    from matcher.nn.devices import choose_device

    place = choose_device(device)
    limits = {"loftr": "tokens"}

    def at(count: int) -> list[Contender]:
        made = []
        for label in labels:
            field = limits.get(method_from(label)[0], "max_keypoints")
            made += _contenders([label], device, False, {field: count})
        return made

    fixed = _contenders(labels, device, False)
    sides = [(side, (side * 3 // 4, side)) for side in _SIDES]
    counts = [(count, (960, 1280)) for count in _COUNTS]
    with terminal.working("growing images"):
        by_side = growth(lambda _: fixed, paths, sides, place)
    with terminal.working("growing numbers of points"):
        by_count = growth(at, paths, counts, place)
    return {"long side, pixels": by_side, "points an image": by_count}


def _row(timing: Timing, first: Timing) -> dict[str, str]:
    """Write one contender as cells."""
    from matcher.benchmark.timing import STAGES

    low, high = timing.quartiles
    cells = {
        "method": timing.name + ("" if timing.trained else " *"),
        "ms": f"{1e3 * timing.median:.1f}",
        "quartiles": f"{1e3 * low:.1f} to {1e3 * high:.1f}",
        f"of {first.name}": f"{timing.median / first.median:.2f}",
    }
    for stage in STAGES:
        seconds = timing.seconds.get(stage)
        middle = None if seconds is None else statistics.median(seconds)
        cells[f"{stage} ms"] = "" if middle is None else f"{1e3 * middle:.1f}"
    cells["matches"] = "" if timing.matches is None else str(timing.matches)
    cells["pairs/s"] = f"{1 / timing.median:.1f}"
    cells["peak MiB"] = f"{timing.peak_mib:.0f}"
    return cells


def _bounds(timing: Timing, peak: Peak) -> Iterator[dict[str, str]]:
    """Write what bounds each stage of one contender as cells."""
    from matcher.benchmark.work import bound

    for stage, seconds in timing.seconds.items():
        work, middle = timing.work[stage], statistics.median(seconds)
        found = bound(work, middle, peak)
        yield {
            "method": timing.name,
            "stage": stage,
            "ms": f"{1e3 * middle:.1f}",
            "GFLOP": f"{work.gflops:.2f}",
            "of peak": f"{found.of_flops:.0%}",
            "GB": f"{work.gbytes:.2f}",
            "of bandwidth": f"{found.of_bandwidth:.0%}",
            "in PyTorch": f"{found.in_torch:.0%}",
            "bound by": found.by,
        }


def _write(
    timings: Sequence[Timing],
    grown: Mapping[str, Mapping[int, Sequence[Timing]]],
    peak: Peak,
    environment: Mapping[str, Any],
    out: Path,
) -> list[Path]:
    """Write bench.json and growth.png."""
    from matcher import storage
    from matcher.benchmark.plot import draw_growth

    content = {
        "environment": environment,
        "peak": asdict(peak),
        "timings": [asdict(timing) for timing in timings],
        "growth": {
            axis: {str(step): [asdict(each) for each in found] for step, found in steps.items()}
            for axis, steps in grown.items()
        },
    }
    storage.write(out / "bench.json", json.dumps(content, indent=1).encode())
    pictures = [draw_growth(grown, out / "growth.png")] if grown else []
    return [out / "bench.json", *pictures]


def _sample() -> tuple[Path, Path]:
    from matcher.datasets import sample_pairs

    pair = sample_pairs()[0]
    return pair.image0, pair.image1
