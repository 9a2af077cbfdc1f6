"""Score the matches of one pair against its truth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from matcher import images
from matcher.evaluation import metrics
from matcher.evaluation.records import Kind, Score
from matcher.evaluation.settings import (
    EPIPOLAR_LIMITS,
    LABELLED_PIXELS,
    PRECISION_PIXELS,
    Settings,
)
from matcher.evaluation.solvers import fit
from matcher.evaluation.truth import reprojection_errors, squared_epipolar_errors
from matcher.geometry.cameras import resize_homography, scale_intrinsics
from matcher.geometry.two_view import covered_area
from matcher.geometry.verification import verify
from matcher.types import (
    Floats,
    Homography,
    Labelled,
    Matches,
    Matrix,
    Placed,
    Truth,
    TwoView,
    Unrelated,
)

Size: TypeAlias = tuple[int, int]  # height, width

CORRECT_PIXELS = 3.0  # the middle one of the usual thresholds 1, 3 and 5
SCORE_BINS = 50


@dataclass(frozen=True)
class Frame:
    """The pixels in which a pair is measured, and those in which it was matched.

    Attributes:
        sizes: Height and width of both files.
        working_sizes: Height and width at which they were matched.
    """

    sizes: tuple[Size, Size]
    working_sizes: tuple[Size, Size]

    def to_original(self, matches: Matches) -> Matches:
        """Move matches to the pixels of the files."""
        return replace(
            matches,
            points0=images.resize_points(matches.points0, self.working_sizes[0], self.sizes[0]),
            points1=images.resize_points(matches.points1, self.working_sizes[1], self.sizes[1]),
        )

    def truth_when_resized(self, truth: Truth | None) -> Truth | None:
        """Move a truth to the pixels in which the pair was matched.

        Raises:
            ValueError: The truth is dense; it is measured in original pixels only.
        """
        if isinstance(truth, Homography):
            resized0, resized1 = (
                resize_homography(*sizes)
                for sizes in zip(self.sizes, self.working_sizes, strict=True)
            )
            return type(truth)(resized1 @ truth.pixels1_from_pixels0 @ np.linalg.inv(resized0))
        if isinstance(truth, Labelled):
            points0, points1 = (
                images.resize_points(points, size, working)
                for points, size, working in zip(
                    (truth.points0, truth.points1), self.sizes, self.working_sizes, strict=True
                )
            )
            return Labelled(points0, points1)
        if type(truth) is TwoView:
            return replace(
                truth,
                intrinsics0=scale_intrinsics(
                    truth.intrinsics0, self.sizes[0], self.working_sizes[0]
                ),
                intrinsics1=scale_intrinsics(
                    truth.intrinsics1, self.sizes[1], self.working_sizes[1]
                ),
            )
        if truth is None or isinstance(truth, Unrelated):
            return truth
        raise ValueError(f"{type(truth).__name__} is measured in original pixels only")


def score(
    matches: Matches, truth: Truth | None, frame: Frame, settings: Settings
) -> tuple[Score, float]:
    """Score matches.

    Args:
        matches: In the pixels in which the pair was matched.
        truth: In the pixels of the files.
        frame: Both sizes of both images.
        settings: How to measure and to fit.

    Returns:
        The score, and the seconds of one robust fit (0 where the truth needs none).
    """
    matches, truth, sizes = in_measured_pixels(matches, truth, frame, settings)
    found = _of_matches(matches, truth, failure_errors(Kind.of(truth), settings))
    if isinstance(truth, Unrelated):
        start = time.perf_counter()
        verdict = verify(matches, *sizes)
        found = replace(
            found,
            inliers=int(verdict.inliers),
            reason=str(verdict.reason),
            same_place=bool(verdict.same_place),
            area=verdict.covered_area,
        )
        return found, time.perf_counter() - start
    if not isinstance(truth, (Homography, Labelled, TwoView)):
        return replace(found, area=covered_area(matches.points0, sizes[0])), 0.0
    return _score_model(matches, truth, sizes, settings, found)


def in_measured_pixels(
    matches: Matches, truth: Truth | None, frame: Frame, settings: Settings
) -> tuple[Matches, Truth | None, tuple[Size, Size]]:
    """Move matches and truth to the pixels that the settings measure in, and tell the sizes."""
    if settings.measure == "original":
        return frame.to_original(matches), truth, frame.sizes
    return matches, frame.truth_when_resized(truth), frame.working_sizes


def failure_errors(kind: Kind, settings: Settings) -> tuple[tuple[float, ...], ...]:
    """Make the errors of a pair that has no model."""
    if kind not in (Kind.HOMOGRAPHY, Kind.PLACED, Kind.LABELLED, Kind.POSE):
        return ()
    thresholds, failure = rules_of(kind, settings)
    return ((failure,) * settings.repeats,) * len(thresholds)


def rules_of(kind: Kind, settings: Settings) -> tuple[tuple[float, ...], float]:
    """Tell the thresholds of a kind of model, and the error of a pair that has none."""
    if kind in (Kind.POSE, Kind.LABELLED):
        failure = settings.failure_degrees if kind is Kind.POSE else settings.failure_pixels
        return settings.pose_thresholds, failure
    return settings.homography_thresholds, settings.failure_pixels


def failure_score(kind: Kind, settings: Settings) -> Score:
    """Make the score of a pair that could not be matched: as bad as can be."""
    silent = kind in (Kind.UNKNOWN, Kind.LABELLED)  # of single matches
    return Score(
        precision=() if silent else (0.0,) * len(PRECISION_PIXELS),
        errors=failure_errors(kind, settings),
        epipolar=(0.0,) * len(EPIPOLAR_LIMITS) if kind is Kind.POSE else (),
        placed=(np.inf,) * 3 if kind is Kind.PLACED else (),
        labelled=(0.0,) * len(LABELLED_PIXELS) if kind is Kind.LABELLED else (),
    )


def _of_matches(
    matches: Matches, truth: Truth | None, errors: tuple[tuple[float, ...], ...]
) -> Score:
    """Measure what needs no model; `errors` are those of a pair without one."""
    if truth is None:
        return Score(len(matches))
    wrong = reprojection_errors(matches, truth)
    shares = metrics.precision(wrong, PRECISION_PIXELS)
    found = Score(
        matches=len(matches),
        precision=() if np.isnan(shares).any() else tuple(map(float, shares)),
        errors=errors,
        by_score=_by_score(matches.scores, wrong),
    )
    if isinstance(truth, TwoView):
        squared = squared_epipolar_errors(matches, truth)
        found = replace(
            found, epipolar=tuple(map(float, metrics.precision(squared, EPIPOLAR_LIMITS)))
        )
    bias = metrics.localisation_bias(matches, truth, CORRECT_PIXELS)
    return replace(found, bias=tuple(map(float, bias)) if np.isfinite(bias).all() else ())


def _by_score(scores: Floats, errors: Matrix) -> tuple[tuple[int, ...], ...]:
    """Count the matches of known truth, and those of them that are correct, by their score."""
    known = ~np.isnan(errors)
    bins = np.clip(scores[known] * SCORE_BINS, 0, SCORE_BINS - 1).astype(np.int64)
    counts = np.bincount(bins)
    right = np.bincount(bins[errors[known] < CORRECT_PIXELS], minlength=len(counts))
    return tuple(counts.tolist()), tuple(right.tolist())


def _score_model(
    matches: Matches,
    truth: Homography | Labelled | TwoView,
    sizes: tuple[Size, Size],
    settings: Settings,
    found: Score,
) -> tuple[Score, float]:
    """Fit with every threshold and seed, and measure each model."""
    thresholds, failure = rules_of(Kind.of(truth), settings)
    start = time.perf_counter()
    fits = [
        [fit(matches, truth, settings, threshold, repeat) for repeat in range(settings.repeats)]
        for threshold in thresholds
    ]
    seconds = (time.perf_counter() - start) / (len(thresholds) * settings.repeats)
    error = _error_of(truth, sizes[0], settings)
    errors = [[error(each.model) if each.success else failure for each in row] for row in fits]
    first = fits[0][0]
    scored = replace(
        found,
        inliers=int(first.inliers.sum()),
        reason=str(first.reason),
        errors=tuple(tuple(min(float(e), failure) for e in row) for row in errors),
        area=covered_area(matches.points0[first.inliers], sizes[0]),
    )
    models = [each.model if each.success else None for each in fits[0]]
    if isinstance(truth, Labelled):
        shares = [metrics.labelled_shares(model, truth, LABELLED_PIXELS) for model in models]
        return replace(scored, labelled=tuple(map(float, np.mean(shares, axis=0)))), seconds
    if isinstance(truth, Placed):
        placed = metrics.placement_error(models[0], truth, sizes[0])
        return replace(scored, placed=placed), seconds
    return scored, seconds


def _error_of(
    truth: Homography | Labelled | TwoView, size0: Size, settings: Settings
) -> Callable[[Any], float]:
    """Choose what a model of this truth is measured by."""
    if isinstance(truth, TwoView):
        return lambda model: float(getattr(metrics.pose_error(model, truth), settings.pose_error))
    if isinstance(truth, Labelled):
        return lambda model: float(np.median(metrics.labelled_errors(model, truth)))
    return lambda model: metrics.corner_error(model, truth, size0)
