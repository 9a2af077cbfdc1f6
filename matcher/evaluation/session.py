"""One method at work: it describes each image once, matches pairs, and its failures are results."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matcher import images
from matcher.evaluation.environment import PeakMemory
from matcher.evaluation.metrics import recall
from matcher.evaluation.records import Kind, Outcome, Record, Seconds
from matcher.evaluation.scoring import CORRECT_PIXELS, Frame, failure_score, score
from matcher.evaluation.settings import FOUND, GROWN, REFINED, Settings
from matcher.evaluation.turns import matches_turned_back
from matcher.growth import grow
from matcher.quarter_turns import turned, turned_back
from matcher.refinement import refine
from matcher.types import Description, Image, Matcher, Matches, Pair, Truth

Method: TypeAlias = Matcher | Callable[[Image, Image], Any]
Stage: TypeAlias = tuple[Matches, Seconds]

CACHE_BYTES = 2**30  # of described images of one method


@dataclass(frozen=True, eq=False)
class Described:
    """An image at working size, turned, with its description where the method makes one."""

    image: Image
    size: tuple[int, int]
    description: Description | None
    seconds: float
    turns: int = 0

    @property
    def working_size(self) -> tuple[int, int]:
        """Height and width at which it is matched, before it is turned."""
        height, width = self.image.shape[:2]
        return (width, height) if self.turns % 2 else (height, width)

    @property
    def points(self) -> NDArray[np.floating[Any]]:
        """(N, 2) described points, in pixels of the working size; none without a description."""
        if self.description is None:
            return np.zeros((0, 2))
        return turned_back(self.description.points, self.turns, self.working_size)

    @property
    def bytes(self) -> int:
        """Memory that it holds."""
        arrays: list[NDArray[Any]] = [self.image]
        if self.description is not None:
            arrays += [v for v in vars(self.description).values() if isinstance(v, np.ndarray)]
            arrays += list(self.description.maps.values())
        return sum(array.nbytes for array in arrays)


class UnreadableError(Exception):
    """An image file that cannot be read: no fault of the method."""


class Session:
    """One method at work: describes each image once, as long as the descriptions fit in memory."""

    def __init__(self, method: Method, settings: Settings) -> None:
        self.method = method
        self.settings = settings
        self._described: OrderedDict[tuple[Path, int], Described] = OrderedDict()

    def run(self, pair: Pair, rows: Mapping[str, str]) -> list[Record]:
        """Match a pair and score its rows.

        Args:
            pair: The pair.
            rows: Keys of the records by label, in the order of `_stages`.
        """
        kind = Kind.of(pair.truth)
        worst = failure_score(kind, self.settings)
        known = 0 if hasattr(self.method, "describe") else None
        blanks = [
            Record(key, row, pair.name, pair.group, kind, Outcome.OK, worst, pair.level, known)
            for row, key in rows.items()
        ]
        try:
            with PeakMemory() as peak:
                described, stages = self.stages(pair)
        except Exception as error:  # whatever is raised is this pair's result
            unreadable = isinstance(error, UnreadableError)
            outcome = Outcome.UNREADABLE if unreadable else Outcome.FAILED
            detail = str(error) if unreadable else f"{type(error).__name__}: {error}"
            return [replace(blank, outcome=outcome, detail=detail) for blank in blanks]
        return [
            self._scored(replace(blank, peak_mib=round(peak.mib, 1)), pair, described, stage)
            for blank, stage in zip(blanks, stages, strict=True)
        ]

    def stages(self, pair: Pair) -> tuple[tuple[Described, Described], list[Stage]]:
        """Describe and match a pair: as found, refined, grown, as the settings say.

        Raises:
            UnreadableError: An image is missing or none; and whatever the method raises.
        """
        described = (
            self.describe(pair.image0, pair.turns[0]),
            self.describe(pair.image1, pair.turns[1]),
        )
        return described, self._stages(*described)

    def describe(self, path: Path, turns: int = 0) -> Described:
        """Read, shrink, turn and describe an image, or find it among those that were.

        Raises:
            UnreadableError: The file is missing or no image.
        """
        key = path, turns
        if key in self._described:
            self._described.move_to_end(key)
            return self._described[key]
        try:
            picture = images.read(path)
        except (OSError, ValueError) as error:
            raise UnreadableError(str(error)) from error
        self._described[key] = describe(self.method, picture, self.settings, turns)
        while sum(each.bytes for each in self._described.values()) > CACHE_BYTES:
            if len(self._described) <= 2:  # those of the pair at hand
                break
            self._described.popitem(last=False)
        return self._described[key]

    def _stages(self, described0: Described, described1: Described) -> list[Stage]:
        """Match as found, refined, grown, as the settings say."""
        describing = described0.seconds + described1.seconds
        start = time.perf_counter()
        found = match_described(self.method, described0, described1)
        if self.settings.max_matches is not None:
            found = found.sorted().select(slice(self.settings.max_matches))
        matching = time.perf_counter() - start
        pictures = images.grey(described0.image), images.grey(described1.image)
        stages = {FOUND: (found, Seconds(describing, matching))}
        for stage, finish in ((REFINED, refine), (GROWN, grow)):
            if stage in self.settings.stages:
                start = time.perf_counter()
                finished = finish(found, *pictures)
                refining = time.perf_counter() - start
                stages[stage] = finished, Seconds(describing, matching, refining)
        turns = described0.turns, described1.turns
        sizes = described0.working_size, described1.working_size
        chosen = (stages[stage] for stage in self.settings.stages)
        return [(matches_turned_back(matches, turns, sizes), spent) for matches, spent in chosen]

    def _scored(
        self, blank: Record, pair: Pair, described: tuple[Described, Described], stage: Stage
    ) -> Record:
        matches, seconds = stage
        frame = frame_of(described)
        found, fitting = score(matches, pair.truth, frame, self.settings)
        keypoints = [each.points for each in described]
        if pair.truth is not None:
            found = replace(found, recall=self._recall(matches, pair.truth, frame, keypoints))
        return replace(
            blank,
            score=found,
            keypoints0=None if described[0].description is None else len(keypoints[0]),
            sizes=frame.sizes,
            working_sizes=frame.working_sizes,
            untrained=matches.untrained,
            seconds=replace(seconds, fit=fitting),
        )

    def _recall(
        self, matches: Matches, truth: Truth, frame: Frame, keypoints: Sequence[NDArray[Any]]
    ) -> float | None:
        """Measure recall among the described points; None where it has no meaning."""
        if self.settings.measure != "original" or not (len(keypoints[0]) and len(keypoints[1])):
            return None
        points0, points1 = (
            images.resize_points(own, working, size)
            for own, working, size in zip(keypoints, frame.working_sizes, frame.sizes, strict=True)
        )
        share = recall(frame.to_original(matches), truth, points0, points1, CORRECT_PIXELS)
        return None if np.isnan(share) else share


def frame_of(described: tuple[Described, Described]) -> Frame:
    """Tell both sizes of both images."""
    one, other = described
    return Frame((one.size, other.size), (one.working_size, other.working_size))


def describe(method: Method, picture: Image, settings: Settings, turns: int = 0) -> Described:
    """Resize an image as the settings say, turn it, and describe it.

    Args:
        method: The method; a function describes nothing by itself.
        picture: (H, W) or (H, W, 3).
        settings: Their `working_size` is that of the image that is described.
        turns: Quarter turns, counter-clockwise, after the resize.
    """
    size = picture.shape[0], picture.shape[1]
    picture = turned(images.resize(picture, settings.working_size(size)), turns)
    start = time.perf_counter()
    describing = getattr(method, "describe", None)
    description = None if describing is None else describing([picture])[0]
    return Described(picture, size, description, time.perf_counter() - start, turns)


def match_described(method: Method, described0: Described, described1: Described) -> Matches:
    """Match two images at working size, by a method or by a function of two images."""
    if described0.description is not None and described1.description is not None:
        pair = (described0.description, described1.description)
        return method.match([pair])[0]  # type: ignore[union-attr]
    found = method(described0.image, described1.image)  # type: ignore[operator]
    if isinstance(found, Matches):
        return found
    points0, points1 = found
    return Matches(points0, points1, np.ones(len(points0), np.float32))
