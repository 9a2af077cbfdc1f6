"""Move a rough place of a template to its peak below the pixel and the degree."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import make_interp_spline

from matcher.correlation import Scene
from matcher.templates.poses import Aligner, Pose, Template, overlap
from matcher.templates.survey import Pyramid, Ranges, Survey
from matcher.types import Floats, Matrix

_CLIMBS = 4  # steps to the best place of a neighbourhood: an edge of a level has its peak far off
_REACH = 3  # pixels around a peak that its interpolation uses
_FINE = 10  # places a pixel that the interpolated peak is first looked for at
_ROUNDING = 1e-4  # more than scores of a whole scene's map differ from the exact ones
_GAIN = 1e-3  # of a score that makes another step worth while
_HOPELESS = 0.7  # share of the least score that a fit on a small level must reach
_CURVED = -1e-7  # a peak flatter than this has no place below the pixel


@dataclass(frozen=True)
class Settled:
    """Where a template was found.

    Attributes:
        pose: In pixels of the scene.
        score: NCC in [-1, 1].
        subpixel: (x, y) True where the axis could be refined below a pixel.
        detail: How well fine detail agrees, in [-1, 1].
    """

    pose: Pose
    score: float
    subpixel: tuple[bool, bool]
    detail: float = 1.0


class Settler:
    """Settles candidates of one template, found on a level that is smaller by a factor."""

    def __init__(
        self,
        template: Template,
        pyramid: Pyramid,
        ranges: Ranges,
        survey: Survey,
        most_overlap: float = 0.3,
    ) -> None:
        """Prepare what all candidates share.

        Args:
            template: At full size.
            pyramid: Of the scene.
            ranges: What was searched.
            survey: What it gave.
            most_overlap: What overlaps more than this is the same place: a candidate climbs no
                further, lest it be lost to another one.
        """
        self._pyramid, self._ranges, self._survey = pyramid, ranges, survey
        self._template, self._kernel, self._centre = template, template.kernel, template.centre
        self._most_overlap = most_overlap
        self._aligners: dict[int, Aligner] = {}
        factor = 0 if ranges.still else survey.factor
        while factor:  # of 4: 4, 2, 1
            smaller = template.shrink(factor)
            self._aligners[factor] = Aligner(smaller, ranges.freedom, ranges.contain)
            factor //= 2

    def __call__(self, pose: Pose, least: float) -> Settled:
        """Settle one candidate, or give up where a small level leaves no hope for a least score."""
        settle = self._settle_still if self._ranges.still else self._settle_free
        return settle(pose, least)

    def _settle_still(self, pose: Pose, least: float) -> Settled:
        """Climb from whole pixel to whole pixel, and interpolate about the best."""
        row, column = round(pose.y - self._centre[1]), round(pose.x - self._centre[0])
        slack = 0 if self._survey.factor == 1 else self._survey.factor
        for _ in range(_CLIMBS):
            start = row, column
            scores, top, left = self._scores_around(start, slack + _REACH)
            worth = np.abs(scores) if self._ranges.either else scores
            low, first = max(row - slack - top, 0), max(column - slack - left, 0)
            inner = worth[low : row + slack - top + 1, first : column + slack - left + 1]
            best = divmod(int(np.argmax(inner)), inner.shape[1])
            row, column = top + low + best[0], left + first + best[1]
            place = Pose(column + self._centre[0], row + self._centre[1])
            inside = max(abs(row - start[0]), abs(column - start[1])) < slack
            if inside or not slack or not self._same(pose, place):
                break
        peak = row - top, column - left
        (dy, dx), (fine_y, fine_x) = peak_offset(worth, peak)
        score = float(scores[peak])
        if self._survey.exact is not None and abs(abs(score) - least) < _ROUNDING:
            score = self._exact_score(row, column)
        return Settled(Pose(place.x + dx, place.y + dy), score, (fine_x, fine_y))

    def _same(self, pose: Pose, other: Pose) -> bool:
        """Tell whether two poses are one place, of which there is one hit."""
        return overlap(pose, other, self._template.size) > self._most_overlap

    def _exact_score(self, row: int, column: int) -> float:
        """Score one window by itself: a map of a whole scene has the rounding of all its pixels."""
        h, w = self._kernel.size
        window = self._pyramid.level(1)[row : row + h, column : column + w]
        return float(Scene(window).score_map(self._kernel)[0, 0])

    def _scores_around(self, corner: tuple[int, int], reach: int) -> tuple[Floats, int, int]:
        """Score the windows up to `reach` pixels around one; also return the first row and column."""
        top, left = (max(0, c - reach) for c in corner)
        if self._survey.exact is not None:
            around = slice(top, corner[0] + reach + 1), slice(left, corner[1] + reach + 1)
            return self._survey.exact[around], top, left
        (h, w), scene = self._kernel.size, self._pyramid.level(1)
        crop = scene[top : corner[0] + h + reach, left : corner[1] + w + reach]
        return Scene(crop).score_map(self._kernel), top, left

    def _settle_free(self, pose: Pose, least: float) -> Settled:
        """Fit the pose on ever larger levels; then climb while there is a better one beside it."""
        start, score = self._fit(pose, self._survey.factor, least)
        pose = start
        for _ in range(_CLIMBS if abs(score) >= least else 0):
            beside, level = self._best_beside(pose)
            other, found = self._fit(beside, level, least)
            gain = abs(found) - abs(score)
            if gain <= 0 or not self._same(start, other):
                break
            pose, score = other, found
            if gain < _GAIN:
                break
        turned = 180.0 - (180.0 - pose.angle_degrees) % 360.0  # into (-180, 180]
        return Settled(replace(pose, angle_degrees=turned), score, (True, True))

    def _fit(self, pose: Pose, factor: int, least: float) -> tuple[Pose, float]:
        """Fit on a level and all larger ones, unless a small one leaves no hope for a least score."""
        score = 0.0
        for level in [each for each in self._aligners if each <= factor]:
            picture = self._pyramid.level(level)
            fitted, score = self._aligners[level].fit(picture, pose.at_level(level))
            pose = fitted.at_level(1 / level)
            if abs(score) < _HOPELESS * least:
                break
        return pose, score

    def _best_beside(self, pose: Pose) -> tuple[Pose, int]:
        """Score all places that a pose's template overlaps: along an edge a fit does not get far.

        Returns:
            The best place, and the factor of the level that it was found on.
        """
        factor = max(1, self._survey.factor // 2)
        small, place = self._template.shrink(factor), pose.at_level(factor)
        kernel, level = small.posed(pose.angle_degrees, pose.scale), self._pyramid.level(factor)
        reach = round(min(small.size) * pose.scale / 2)
        row, column = (
            round(middle - (side - 1) / 2)
            for middle, side in zip((place.y, place.x), kernel.size, strict=True)
        )
        top, left = max(0, row - reach), max(0, column - reach)
        bottom, right = (
            first + side + reach for first, side in zip((row, column), kernel.size, strict=True)
        )
        crop = level[top:bottom, left:right]
        if any(c < k for c, k in zip(crop.shape, kernel.size, strict=False)):
            return pose, 1
        scores = Scene(crop).score_map(kernel)
        scores = np.abs(scores) if self._ranges.either else scores
        y, x = divmod(int(np.argmax(scores)), scores.shape[1])
        middle = (kernel.size[1] - 1) / 2, (kernel.size[0] - 1) / 2
        best = replace(place, x=left + x + middle[0], y=top + y + middle[1])
        return best.at_level(1 / factor), factor


def peak_offset(
    scores: Floats, peak: tuple[int, int]
) -> tuple[tuple[float, float], tuple[bool, bool]]:
    """Find the peak of a score map below the pixel, by splines through the scores around it.

    Args:
        scores: (rows, columns).
        peak: Row and column of the largest score in its neighbourhood.

    Returns:
        (dy, dx) from that pixel, each within half a pixel; and whether each axis could be refined.
        One at the border of the map, or without curvature, could not, and its offset is 0.
    """
    rows, columns = (slice(max(p - _REACH, 0), p + _REACH + 1) for p in peak)
    patch = scores[rows, columns].astype(np.float64)
    row, column = peak[0] - rows.start, peak[1] - columns.start
    fine = _curved(patch[:, column], row), _curved(patch[row], column)
    weights = [
        _spline_weights(length, place) if free else np.eye(length)[place : place + 1]
        for length, place, free in zip(patch.shape, (row, column), fine, strict=True)
    ]
    surface = weights[0] @ patch @ weights[1].T
    y, x = divmod(int(np.argmax(surface)), surface.shape[1])
    dy = _vertex(surface[:, x], y) if fine[0] else 0.0
    dx = _vertex(surface[y], x) if fine[1] else 0.0
    return (dy, dx), fine


def _curved(line: NDArray[np.float64], place: int) -> bool:
    """Tell whether a line of scores bends down on both sides of a place."""
    if not 0 < place < len(line) - 1:
        return False
    return bool(line[place - 1] - 2 * line[place] + line[place + 1] < _CURVED)


@functools.lru_cache(maxsize=64)
def _spline_weights(length: int, place: int) -> Matrix:
    """Return (2 * half + 1, length) weights of samples in a spline within half a pixel of a place."""
    degree = 5 if length > 5 else 3 if length > 3 else 2
    half = _FINE // 2
    at = place + np.arange(-half, half + 1) / _FINE
    return np.asarray(make_interp_spline(np.arange(length), np.eye(length), k=degree)(at))


def _vertex(line: NDArray[np.float64], place: int) -> float:
    """Return the offset in pixels of the parabola's top through the best fine sample."""
    offset = float(place - len(line) // 2)
    if 0 < place < len(line) - 1:
        before, here, after = line[place - 1 : place + 2]
        bend = before - 2 * here + after
        offset += 0.5 * (before - after) / bend if bend < 0 else 0.0
    return offset / _FINE
