"""Draw the pairs on which a method did worst and best, for the report of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image as PilImage

from matcher import storage
from matcher.evaluation.records import Kind, Outcome, Record
from matcher.evaluation.runner import Evaluation
from matcher.evaluation.scoring import in_measured_pixels
from matcher.evaluation.session import Method, Session, frame_of
from matcher.evaluation.settings import Settings, method_of
from matcher.evaluation.truth import reprojection_errors
from matcher.explore.plots import draw_matches
from matcher.types import Pair

FOLDER = "pictures"

_MOST = 300  # matches drawn in a picture: more hide the images
_WIDTH = 960  # pixels of a picture: a report holds dozens
_UNIT = {Kind.HOMOGRAPHY: "px", Kind.PLACED: "px", Kind.LABELLED: "px", Kind.POSE: "°"}


@dataclass(frozen=True)
class Extremes:
    """Where a method did worst and best.

    Attributes:
        worst: Records, the worst first.
        best: Records, the best first.
    """

    worst: tuple[Record, ...]
    best: tuple[Record, ...]


def extremes(records: Sequence[Record], worst: int = 2, best: int = 1) -> Extremes:
    """Choose records of one method by error, then by precision.

    Pairs without truth are left out, and unrelated ones that were not taken for the same place.
    """
    measured = [r for r in records if r.score.precision or r.score.errors]
    known = [r for r in measured if r.score.same_place is not False]
    ordered = sorted(known, key=_badness)
    return Extremes(tuple(ordered[::-1][:worst]), tuple(ordered[:best]))


def draw(
    evaluation: Evaluation, methods: Mapping[str, Method], pairs: Sequence[Pair], folder: Path
) -> list[Path]:
    """Match the worst and best pairs of every row again, and draw them.

    Args:
        evaluation: Of these methods on these pairs.
        methods: By label.
        pairs: All of the evaluation.
        folder: Pictures go to `pictures/KEY.jpg` in it; those that are there are kept.

    Returns:
        The pictures that are there now.
    """
    by_name = {pair.name: pair for pair in pairs}
    written = []
    for label, method in methods.items():
        session = Session(method, evaluation.settings)
        for row in (label + stage for stage in evaluation.settings.stages):
            found = extremes([r for r in evaluation.records if r.method == row])
            for record in dict.fromkeys((*found.worst, *found.best)):
                path = folder / FOLDER / f"{record.key}.jpg"
                if not path.exists() and record.outcome is Outcome.OK:
                    _draw(session, by_name[record.pair], record, path)
                written += [path] if path.exists() else []
    return written


def caption(record: Record) -> str:
    """Say in a line what a record is worth."""
    if record.outcome is not Outcome.OK:
        return f"{record.pair}: {record.outcome}, {record.detail}"
    words = [f"{record.pair}: {record.score.matches} matches"]
    if record.score.precision:
        words.append(f"{record.score.precision[1]:.0%} within 3 px")
    if record.score.errors:
        error = float(np.median(record.score.errors[0]))
        known = record.score.reason == "ok" and np.isfinite(error)
        words.append(f"error {error:.3g} {_UNIT[record.kind]}" if known else record.score.reason)
    return ", ".join(words)


def _badness(record: Record) -> tuple[float, float, float]:
    """Order by failure, by error, by precision."""
    error = float(np.median(record.score.errors[0])) if record.score.errors else 0.0
    if record.score.same_place:  # of unrelated pictures
        error = float("inf")
    failed = float(record.outcome is not Outcome.OK)
    return failed, error, -record.score.precision[1] if record.score.precision else 0.0


def _draw(session: Session, pair: Pair, record: Record, path: Path) -> None:
    described, stages = session.stages(pair)
    matches = next(
        matches
        for stage, (matches, _) in zip(session.settings.stages, stages, strict=True)
        if record.method == method_of(record.method) + stage
    )
    frame, settings = frame_of(described), Settings(long_side=None)
    matches, truth, _ = in_measured_pixels(matches, pair.truth, frame, settings)
    rows = np.linspace(0, len(matches) - 1, min(_MOST, len(matches))).astype(np.int64)
    shown = matches.select(rows)
    errors = None if truth is None else reprojection_errors(shown, truth).astype(np.float32)
    draw_matches(pair.image0, pair.image1, shown, path, errors=errors)
    with PilImage.open(path) as drawn:
        small = drawn.convert("RGB")
    small.thumbnail((_WIDTH, _WIDTH))
    binary = BytesIO()
    small.save(binary, "JPEG", quality=82)
    storage.write(path, binary.getvalue())
