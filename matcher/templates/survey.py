"""Score every pose of a template on one level of the scene's pyramid, and settle the peaks."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from matcher import images
from matcher.correlation import Scene, quick_score_map
from matcher.correlation.kernel import Pixels, make_kernel
from matcher.correlation.sums import opencv
from matcher.templates.poses import Freedom, Pose, Template, shrink, shrink_bytes
from matcher.types import Floats

_STRIDE = 1.4  # pixels of the level that a corner moves from one pose to the next
_LEAST_SIDE = 10  # pixels of a template's shorter side on the level that is searched
_LEAST_TURNED = (
    16  # the same for templates that may turn or grow, of which a level shows more lookalikes
)
_ANGLE_SLACK = 3.0  # degrees that a fit may end outside of the angles that were asked for
_SCALE_SLACK = 1.05  # the same for scales, as a factor
_LEAST_PHASE = 0.4  # score that a template must keep when the level's grid is half a pixel off
_WINDOWS = 40_000  # that are scored in the time in which one peak of a small level is settled
_LEAST_CONTRAST = 4.0  # standard deviation in bytes of a template that may be rounded to bytes


class Pyramid:
    """A scene and its smaller versions, each made when first needed and kept; for many threads."""

    def __init__(self, pixels: Pixels) -> None:
        """Take the pixels of a scene, (H, W) or (H, W, C)."""
        self._levels = {1: pixels}
        self._bytes: dict[int, NDArray[np.uint8]] = {}
        self._scenes: dict[int, Scene] = {}
        self._grey: Pyramid | None = None
        self._lock = threading.RLock()

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the scene in pixels."""
        height, width = self._levels[1].shape[:2]
        return height, width

    def level(self, factor: int) -> Pixels:
        """Return the pixels, smaller by a factor."""
        with self._lock:
            if factor not in self._levels:
                self._levels[factor] = shrink(self._levels[1], factor)
            return self._levels[factor]

    def bytes(self, factor: int) -> NDArray[np.uint8] | None:
        """Return the pixels, smaller and rounded to bytes; None where the scene does not hold bytes."""
        if self._levels[1].dtype != np.uint8:
            return None
        with self._lock:
            if factor not in self._bytes:
                self._bytes[factor] = shrink_bytes(self._levels[1], factor)
            return self._bytes[factor]

    def scene(self, factor: int) -> Scene:
        """Return a level made ready for correlation."""
        with self._lock:
            if factor not in self._scenes:
                self._scenes[factor] = Scene(self.level(factor))
            return self._scenes[factor]

    def grey(self) -> Pyramid:
        """Return the pyramid of the scene in grey."""
        if self._levels[1].ndim == 2:
            return self
        with self._lock:
            if self._grey is None:
                self._grey = Pyramid(grey(self._levels[1]))
            return self._grey


def grey(pixels: Pixels) -> Pixels:
    """Weigh colours to grey in floating point, (H, W, 3) to (H, W)."""
    return images.grey(pixels.astype(np.result_type(pixels.dtype, np.float32)))


@dataclass(frozen=True)
class Ranges:
    """Which poses to search: see `matcher.templates.FindOptions`."""

    angles: tuple[float, float]
    scales: tuple[float, float]
    either: bool

    @property
    def freedom(self) -> Freedom:
        """Tell what a fit may change besides the place."""
        return Freedom(self.angles[0] < self.angles[1], self.scales[0] < self.scales[1])

    @property
    def still(self) -> bool:
        """Tell whether the template is searched as it is, neither turned nor scaled."""
        return self.angles == (0.0, 0.0) and self.scales == (1.0, 1.0)

    def contain(self, pose: Pose) -> bool:
        """Tell whether a fitted pose is one that was looked for, or just beyond."""
        low, high = self.angles
        beyond = (pose.angle_degrees - low + _ANGLE_SLACK) % 360.0  # from the lower end on
        turned = beyond <= high - low + 2 * _ANGLE_SLACK
        return (
            turned and self.scales[0] / _SCALE_SLACK <= pose.scale <= self.scales[1] * _SCALE_SLACK
        )

    def poses(self, size: tuple[int, int]) -> list[tuple[float, float]]:
        """List (angle, scale) so that from one to the next no corner moves far.

        Scales are a geometric row; angles are evenly spaced, closer for larger scales.
        """
        reach = math.hypot(*size) / 2
        low, high = self.scales
        count = math.ceil(math.log(high / low) / (_STRIDE / (reach * math.sqrt(low * high))))
        scales = np.geomspace(low, high, count + 1) if count else np.array([low])
        return [(a, float(s)) for s in scales for a in self._angles(reach * float(s))]

    def _angles(self, reach: float) -> list[float]:
        low, high = self.angles
        span = high - low
        count = math.ceil(math.radians(min(span, 360.0)) * reach / _STRIDE)
        if span >= 360.0:  # a full circle ends where it began
            return [low + 360.0 * i / count for i in range(count)]
        return [low + span * i / count for i in range(count + 1)] if count else [low]


@dataclass(frozen=True)
class Candidate:
    """A peak of the survey: where the template may be, in pixels of the scene, and its score."""

    pose: Pose
    score: float


@dataclass(frozen=True, eq=False)
class Survey:
    """Best scores over all poses on one level.

    Attributes:
        scores: (rows, columns) score of the best pose, its size where either contrast is wanted.
        chosen: (rows, columns) number of that pose; None where there is one pose only.
        poses: (angle, scale) by number.
        origin: (x, y) of the first score in pixels of the level.
        factor: How many times smaller the level is than the scene.
        loss: How much less than in the end a template may score on the level.
        threshold: Least final score that is looked for.
        exact: (rows, columns) NCC of the template as it is at every pixel of the scene; else None.
    """

    scores: Floats
    chosen: NDArray[np.int32] | None
    poses: list[tuple[float, float]]
    origin: tuple[float, float]
    factor: int
    loss: float
    threshold: float
    exact: Floats | None = None

    @functools.cached_property
    def peaks(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows and columns of peaks whose final score may reach the threshold, best first."""
        return peaks(self.scores, self.threshold * (1 - self.loss))

    def candidates(self) -> Iterator[Candidate]:
        """Yield the peaks, best first, ties in reading order; the best score where there are none."""
        rows, columns = self.peaks
        if not len(rows):  # one for the report
            rows, columns = np.divmod([np.argmax(self.scores)], self.scores.shape[1])
        for row, column in zip(rows, columns, strict=True):
            yield Candidate(self._pose(int(row), int(column)), float(self.scores[row, column]))

    def best_outside(self, pose: Pose, size: tuple[float, float]) -> float:
        """Find the best score at places further from a pose than half a template in x or in y."""
        near = pose.at_level(self.factor)
        x, y = near.x - self.origin[0], near.y - self.origin[1]
        reach_y, reach_x = (side * pose.scale / self.factor / 2 for side in size)
        top, bottom = max(0, math.ceil(y - reach_y)), max(0, math.floor(y + reach_y) + 1)
        left, right = max(0, math.ceil(x - reach_x)), max(0, math.floor(x + reach_x) + 1)
        middle = self.scores[top:bottom]
        parts = self.scores[:top], self.scores[bottom:], middle[:, :left], middle[:, right:]
        return max((float(part.max()) for part in parts if part.size), default=0.0)

    def _pose(self, row: int, column: int) -> Pose:
        number = 0 if self.chosen is None else int(self.chosen[row, column])
        place = Pose(self.origin[0] + column, self.origin[1] + row, *self.poses[number])
        return place.at_level(1 / self.factor)


def make_survey(
    template: Template,
    pyramid: Pyramid,
    ranges: Ranges,
    mode: Literal["exhaustive", "pyramid"],
    threshold: float,
) -> Survey | None:
    """Score all poses of a template on the level that suits it; None where none fits the scene.

    Where a small level leaves more peaks than are worth following, every pixel is scored instead.
    """
    factor, phase = (1, 1.0) if mode == "exhaustive" else choose_factor(template, ranges)
    if ranges.still:
        if any(t > s for t, s in zip(template.size, pyramid.size, strict=True)):
            return None
        survey = _survey_still(template, pyramid, ranges, factor, phase, threshold)
        crowded = len(survey.peaks[0]) > 1 + math.prod(pyramid.size) / _WINDOWS
        if factor > 1 and crowded:
            survey = _survey_still(template, pyramid, ranges, 1, 1.0, threshold)
        return survey
    small = template.shrink(factor)
    scene, poses = pyramid.scene(factor), ranges.poses(small.size)
    scores = np.full(scene.size, -2, np.float32)
    chosen = np.zeros(scene.size, np.int32)
    for number, (angle, scale) in enumerate(poses):
        kernel = small.posed(angle, scale)
        if all(k <= s for k, s in zip(kernel.size, scene.size, strict=True)):
            _keep_best(scores, chosen, scene.score_map(kernel), number, ranges.either)
    if scores.max() < -1:
        return None
    return Survey(scores, chosen, poses, (0.0, 0.0), factor, 1 - 0.6 * phase, threshold)


def _survey_still(
    template: Template,
    pyramid: Pyramid,
    ranges: Ranges,
    factor: int,
    phase: float,
    threshold: float,
) -> Survey:
    """Score a template as it is: exactly on the scene itself, which nothing scores again.

    On a small level of bytes OpenCV's own score does: its peaks are scored again, and it is the
    fastest.
    """
    if factor == 1:
        exact = pyramid.scene(1).score_map(template.kernel)
        scores = np.abs(exact) if ranges.either else exact
        return Survey(scores, None, [(0.0, 1.0)], template.centre, 1, 0.0, threshold, exact)
    small, level = template.shrink(factor), None
    if opencv() and not small.masked and small.pixels.std((0, 1)).max() >= _LEAST_CONTRAST:
        level = pyramid.bytes(factor)
    if level is None:
        scores = pyramid.scene(factor).score_map(small.kernel)
    else:
        scores = quick_score_map(_stretched(small.pixels), level)
    scores = np.abs(scores) if ranges.either else scores
    loss = 1 - 0.8 * phase
    return Survey(scores, None, [(0.0, 1.0)], small.centre, factor, loss, threshold)


def _stretched(pixels: Pixels) -> NDArray[np.uint8]:
    """Bring pixels of any range to bytes, which changes no score but by rounding."""
    low, high = pixels.min(), pixels.max()
    return np.asarray(np.rint((pixels - low) * (255 / (high - low))), np.uint8)


def _keep_best(
    scores: Floats, chosen: NDArray[np.int32], found: Floats, number: int, either: bool
) -> None:
    """Enter one pose's scores, which lie in the middle of the level, where they are the best."""
    found = np.abs(found) if either else found
    top, left = ((s - f) // 2 for s, f in zip(scores.shape, found.shape, strict=True))
    place = slice(top, top + found.shape[0]), slice(left, left + found.shape[1])
    better = found > scores[place]
    np.copyto(scores[place], found, where=better)
    np.copyto(chosen[place], number, where=better)


def choose_factor(template: Template, ranges: Ranges) -> tuple[int, float]:
    """Choose how much smaller a level shows the template well enough.

    Returns:
        The factor, and the score that the template keeps there when it lies as far off the level's
        grid as it can, both ways: fine texture is lost on a small level.
    """
    least = _LEAST_SIDE if ranges.still else _LEAST_TURNED
    for factor in (4, 3, 2):
        if min(template.size) < factor * least:
            continue
        phase = _phase_score(template, factor)
        if phase >= _LEAST_PHASE:
            return factor, phase
    return 1, 1.0


def _phase_score(template: Template, factor: int) -> float:
    """Score a template on a level against itself, moved by half a pixel of the level or nearly so."""
    half = factor // 2
    h, w = (side // factor * factor - factor for side in template.size)
    a, b = (shrink(template.pixels[i : i + h, i : i + w], factor) for i in (0, half))
    weights = shrink(template.weights[:h, :w], factor) if template.masked else None
    return float((make_kernel(a, weights).pattern * make_kernel(b, weights).spread).sum())


def peaks(scores: Floats, least: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Find scores of at least some value that no neighbour exceeds.

    Returns:
        Rows and columns, best first; scores that agree to 1e-5 are in reading order.
    """
    height, width = scores.shape
    rows, columns = np.divmod(np.flatnonzero(scores.ravel() >= least), width)
    values, top = scores[rows, columns], np.ones(len(rows), np.bool_)
    for y in (rows, np.maximum(rows - 1, 0), np.minimum(rows + 1, height - 1)):
        for x in (columns, np.maximum(columns - 1, 0), np.minimum(columns + 1, width - 1)):
            top &= values >= scores[y, x]
    order = np.argsort(-np.round(values[top], 5), kind="stable")
    return rows[top][order], columns[top][order]
