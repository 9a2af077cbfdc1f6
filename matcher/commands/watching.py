"""The command `matcher watch`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from matcher import terminal
from matcher.options import Device, Method, OptionItems, fields_from

if TYPE_CHECKING:
    from matcher.tracking.tracker import Tracked
    from matcher.types import Image

_COLOURS = {"started": (255, 200, 0), "tracked": (80, 220, 80), "recovered": (0, 200, 255)}
_LOST = (230, 60, 60)
_PER_SECOND = 20  # frames of a written video


def watch(
    source: Annotated[str, typer.Argument(help="Folder of images, video file, or camera number.")],
    method: Method = "superglue",
    budget: Annotated[
        float | None, typer.Option(help="Milliseconds a frame; size and keypoints adapt.")
    ] = None,
    intrinsics: Annotated[
        tuple[float, float, float, float] | None,
        typer.Option(help="fx fy cx cy in pixels: poses instead of homographies."),
    ] = None,
    distortion: Annotated[str, typer.Option(help="k1,k2,p1,p2,k3 of the lens.")] = "",
    video: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a video.")] = None,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write a line of JSON a frame.")
    ] = None,
    window: Annotated[bool, typer.Option(help="Show a window; q closes it.")] = False,
    frames_: Annotated[
        int | None, typer.Option("--frames", min=1, help="Stop after so many.")
    ] = None,
    device: Device = "auto",
    option: OptionItems = [],  # noqa: B006  typer copies it
) -> None:
    """Follow points over a camera, a video or a folder of images."""
    from itertools import islice

    from matcher import matching
    from matcher.tracking.frames import frames
    from matcher.tracking.tracker import Camera, Options, Tracker

    camera = None
    if intrinsics is not None:
        fx, fy, cx, cy = intrinsics
        lens = [float(word) for word in distortion.split(",") if word]
        camera = Camera(np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]]), lens)
    with terminal.working(f"loading {method}"):
        made = matching.create(method, device=device, **fields_from(option))
    tracker = Tracker(made, Options(budget_ms=budget), camera=camera)
    counts: Counter[str] = Counter()
    seconds = []
    with _screen(video, window) as show, _lines(out) as write:
        for frame in islice(frames(source), frames_):
            tracked = tracker.track(frame)
            counts[tracked.health] += 1
            seconds.append(tracked.seconds)
            write(tracked)
            if not show(frame, tracked):
                break
    ordered = ", ".join(f"{count} {health}" for health, count in counts.most_common())
    middle, slow = np.quantile(seconds or [0.0], [0.5, 0.95]) * 1e3
    written = [path for path in (video, out) if path is not None]
    terminal.finish(
        f"{len(seconds)} frames: {ordered}; median {middle:.0f} ms, 95 % within {slow:.0f} ms",
        written,
    )


@contextmanager
def _lines(path: Path | None) -> Iterator[Any]:
    """Write one line of JSON a frame, or nothing."""
    if path is None:
        yield lambda _: None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        yield lambda tracked: print(json.dumps(record(tracked)), file=file)


def record(tracked: Tracked) -> dict[str, Any]:
    """Make what JSON can hold of a frame."""
    model = None if tracked.fit is None else tracked.fit.model
    pose = None
    if model is not None and hasattr(model, "rotation"):
        pose = {"rotation": model.rotation.tolist(), "translation": model.translation.tolist()}
    return {
        "frame": tracked.number,
        "health": tracked.health,
        "anchor": tracked.anchor,
        "renewed": tracked.renewed,
        "ids": tracked.ids.tolist(),
        "points": np.round(tracked.points, 3).tolist(),
        "homography": model.tolist() if isinstance(model, np.ndarray) else None,
        "pose": pose,
        "reason": None if tracked.fit is None else tracked.fit.reason,
        "long_side": tracked.level.long_side,
        "milliseconds": round(1e3 * tracked.seconds, 2),
    }


@contextmanager
def _screen(video: Path | None, window: bool) -> Iterator[Any]:
    """Show frames in a window, in a video, in both or in none; False from it asks to stop."""
    if video is None and not window:
        yield lambda *_: True
        return
    from matcher.extras import require

    cv2 = require("cv2", "--video or --window")
    writer = None

    def show(frame: Image, tracked: Tracked) -> bool:
        nonlocal writer
        picture = _drawn(cv2, frame, tracked)
        if video is not None:
            if writer is None:
                video.parent.mkdir(parents=True, exist_ok=True)
                code = cv2.VideoWriter_fourcc(*("mp4v" if video.suffix == ".mp4" else "MJPG"))
                size = picture.shape[1], picture.shape[0]
                writer = cv2.VideoWriter(str(video), code, _PER_SECOND, size)
            writer.write(picture)
        if window:
            cv2.imshow("matcher watch", picture)
            return bool((cv2.waitKey(1) & 0xFF) != ord("q"))
        return True

    try:
        yield show
    finally:
        if writer is not None:
            writer.release()
        if window:
            cv2.destroyAllWindows()


def _drawn(cv2: Any, frame: Image, tracked: Tracked) -> Any:
    """Draw the points, each with the way from where the anchor saw it, and the health."""
    picture = (frame * 255).astype(np.uint8)
    colour = cv2.COLOR_GRAY2BGR if picture.ndim == 2 else cv2.COLOR_RGB2BGR
    picture = cv2.cvtColor(picture, colour)
    ink = _COLOURS.get(tracked.health, _LOST)[::-1]
    for start, end in zip(tracked.matches.points0, tracked.matches.points1, strict=True):
        cv2.line(picture, *(tuple(map(round, place.tolist())) for place in (start, end)), ink, 1)
    for point in tracked.points:
        cv2.circle(picture, tuple(map(round, point.tolist())), 2, ink, -1)
    words = (
        f"{tracked.number} {tracked.health} {len(tracked)} points {1e3 * tracked.seconds:.0f} ms"
    )
    cv2.putText(picture, words, (8, 20), cv2.FONT_HERSHEY_SIMPLEX, 0.5, ink, 1, cv2.LINE_AA)
    return picture
