"""The results of an evaluation, one line of JSON for each method and pair, written as they come.

Lines are appended whole, so a killed run loses at most its last line and two runs may share a file.
A line is found again by its key: a hash of the method, the pair with its files, the settings and
the code. Results of anything else are never mistaken for it.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from matcher.types import DenseMap, Homography, Labelled, Placed, Truth, TwoView, Unrelated


class Outcome(StrEnum):
    """What became of a pair before any fit."""

    OK = "ok"
    UNREADABLE = "unreadable image"
    FAILED = "method failed"


class Kind(StrEnum):
    """What the truth of a pair lets one measure."""

    PLACED = "template"
    LABELLED = "labelled points"
    HOMOGRAPHY = "homography"
    POSE = "pose"
    DENSE = "dense"
    UNRELATED = "unrelated"
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, truth: Truth | None) -> Kind:
        """Name the kind of a truth."""
        for kind, truths in (
            (cls.PLACED, Placed),
            (cls.LABELLED, Labelled),
            (cls.HOMOGRAPHY, Homography),
            (cls.POSE, TwoView),
            (cls.DENSE, DenseMap),
            (cls.UNRELATED, Unrelated),
        ):
            if isinstance(truth, truths):
                return kind
        return cls.UNKNOWN


@dataclass(frozen=True)
class Score:
    """What the matches of one pair are worth.

    Attributes:
        matches: Their number.
        precision: Share of them within each of `PRECISION_PIXELS` of the truth, among those whose
            truth is known; 0 where there are none (empty without truth).
        inliers: Of the first fit.
        reason: Of the first fit: "ok", or why there is no model.
        errors: Of the fitted models, by threshold and repeat: corner error in pixels, pose error in
            degrees, or median epipolar distance of the labelled points in pixels; empty where the
            truth allows no model.
        same_place: Verdict on the pair, only for unrelated ones, where yes is wrong.
        epipolar: Share of the matches below each of `EPIPOLAR_LIMITS`, for poses only.
        area: Share of image 0 inside the hull of the inliers, in [0, 1].
        bias: Median offset (x, y) in pixels of the correct matches; empty where the truth has no
            places, or nothing is correct.
        recall: Share of the described points that could be matched which were, within 3 pixels;
            None where the method describes no points or the truth has no places.
        by_score: Number of matches whose truth is known, and of those correct within 3 pixels, by
            score: bins of equal width over [0, 1], without the empty ones at the top.
        placed: How far the template's place is off: pixels of its centre, degrees of its turn, and
            the factor of its size; only for templates.
        labelled: Share of the labelled points within each of `LABELLED_PIXELS` of the fitted
            epipolar geometry, over all repeats; only for those.
    """

    matches: int = 0
    precision: tuple[float, ...] = ()
    inliers: int = 0
    reason: str = ""
    errors: tuple[tuple[float, ...], ...] = ()
    same_place: bool | None = None
    epipolar: tuple[float, ...] = ()
    area: float = 0.0
    bias: tuple[float, ...] = ()
    recall: float | None = None
    by_score: tuple[tuple[int, ...], ...] = ()
    placed: tuple[float, ...] = ()
    labelled: tuple[float, ...] = ()


@dataclass(frozen=True)
class Seconds:
    """Time of each stage; `describe` is of both images, whenever they were described."""

    describe: float = 0.0
    match: float = 0.0
    refine: float = 0.0
    fit: float = 0.0


@dataclass(frozen=True)
class Record:
    """The result of one method on one pair.

    Attributes:
        key: What the line is found by.
        method: Label of the row in the table.
        pair: Name of the pair.
        group: Its data set.
        level: Its place on what the group varies, if that is one thing.
        kind: What its truth lets one measure.
        outcome: Whether there are matches to score.
        keypoints0: Points that the method described in image 0; None for a function.
        detail: The message of a failure.
        sizes: Height and width of both files; empty where they cannot be read.
        working_sizes: Height and width at which they were matched.
        score: What the matches are worth; that of no match after a failure.
        seconds: Time of each stage.
        untrained: Whether a network with random weights made the matches; they mean nothing then.
        peak_mib: Growth of resident memory while matching (and describing what was not yet).
    """

    key: str
    method: str
    pair: str
    group: str
    kind: Kind
    outcome: Outcome
    score: Score
    level: float | None = None
    keypoints0: int | None = None
    detail: str = ""
    sizes: tuple[tuple[int, int], ...] = ()
    working_sizes: tuple[tuple[int, int], ...] = ()
    seconds: Seconds = field(default_factory=Seconds)
    untrained: bool = False
    peak_mib: float = 0.0

    def line(self) -> str:
        """Write as one line of JSON; an infinite error is null."""
        return json.dumps(finite(asdict(self)), allow_nan=False) + "\n"

    @classmethod
    def of_line(cls, line: str) -> Record:
        """Read what `line` wrote.

        Raises:
            ValueError: It is not a whole record.
        """
        try:
            values = json.loads(line)
            if set(values) != {f.name for f in fields(cls)}:
                raise ValueError("other keys")
            values["kind"], values["outcome"] = Kind(values["kind"]), Outcome(values["outcome"])
            values["score"] = Score(**{k: _tuples(v) for k, v in values["score"].items()})
            values["seconds"] = Seconds(**values["seconds"])
            for name in ("sizes", "working_sizes"):
                values[name] = _tuples(values[name])
            return _checked(cls(**values))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"no record: {line[:80]!r}: {error}") from error


class RecordFile:
    """Records by key, kept in a file where there is one.

    Args:
        path: The file; None keeps them in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.records: dict[str, Record] = {}
        if path is not None and path.exists():
            self.records = {record.key: record for record in _read_lines(path)}

    def done(self, key: str) -> bool:
        """Whether the result is there; failures are tried again."""
        return key in self.records and self.records[key].outcome is Outcome.OK

    def add(self, record: Record) -> None:
        """Keep a record and append its line in one write, on a line of its own."""
        self.records[record.key] = record
        if self.path is None:
            return
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        descriptor = os.open(self.path, flags, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size:
                os.lseek(descriptor, size - 1, os.SEEK_SET)
            torn = size and os.read(descriptor, 1) != b"\n"  # what a killed run left
            data = (b"\n" if torn else b"") + record.line().encode()
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        finally:
            os.close(descriptor)


def _read_lines(path: Path) -> list[Record]:
    """Read the whole records of a file: a torn line is a pair that runs again."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(Record.of_line(line))
        except ValueError:
            continue
    return found


def _checked(record: Record) -> Record:
    """Refuse a record whose values are of other types than its fields.

    Raises:
        ValueError: One is.
    """
    for part in (record, record.score, record.seconds):
        for name, hint in _HINTS[type(part)].items():
            if not _fits(getattr(part, name), hint):
                raise ValueError(f"{name} must be {hint}")
    return record


_HINTS = {part: get_type_hints(part) for part in (Record, Score, Seconds)}


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a value is of an annotated type; whole numbers are floats too."""
    choices = get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, choices[0]) for item in value)
    if choices:
        return any(_fits(value, choice) for choice in choices)
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, hint)


def finite(value: Any) -> Any:
    """Replace infinite and unknown numbers, which JSON does not have, by None."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tuples(value: Any) -> Any:
    """Undo `finite` for the lists of a record."""
    if isinstance(value, list):
        return tuple(math.inf if item is None else _tuples(item) for item in value)
    return value
