"""Score the matches of one pair against its truth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from matcher import images
from matcher.evaluation import metrics
from matcher.evaluation.records import Kind, Score
from matcher.evaluation.settings import PRECISION_PIXELS, Settings
from matcher.evaluation.truth import reprojection_errors
from matcher.geometry import fitting
from matcher.geometry.cameras import resize_homography, scale_intrinsics
from matcher.geometry.fits import Fit
from matcher.geometry.verification import verify
from matcher.types import Homography, Matches, Truth, TwoView, Unrelated

Size = tuple[int, int]  # height, width


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
            return Homography(resized1 @ truth.pixels1_from_pixels0 @ np.linalg.inv(resized0))
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
    if settings.measure == "original":
        matches, sizes = frame.to_original(matches), frame.sizes
    else:
        truth, sizes = frame.truth_when_resized(truth), frame.working_sizes
    kind = Kind.of(truth)
    found = Score(len(matches), _precision(matches, truth), errors=failure_errors(kind, settings))
    if isinstance(truth, Unrelated):
        start = time.perf_counter()
        verdict = verify(matches, *sizes)
        found = replace(
            found,
            inliers=int(verdict.inliers),
            reason=str(verdict.reason),
            same_place=bool(verdict.same_place),
        )
        return found, time.perf_counter() - start
    if not isinstance(truth, (Homography, TwoView)):
        return found, 0.0
    return _score_model(matches, truth, sizes, settings, found)


def failure_errors(kind: Kind, settings: Settings) -> tuple[tuple[float, ...], ...]:
    """Make the errors of a pair that has no model."""
    thresholds = settings.homography_thresholds
    failure = settings.failure_pixels
    if kind is Kind.POSE:
        thresholds, failure = settings.pose_thresholds, settings.failure_degrees
    elif kind is not Kind.HOMOGRAPHY:
        return ()
    return ((failure,) * settings.repeats,) * len(thresholds)


def failure_score(kind: Kind, settings: Settings) -> Score:
    """Make the score of a pair that could not be matched: as bad as can be."""
    known = kind is not Kind.UNKNOWN
    precision = (0.0,) * len(PRECISION_PIXELS) if known else ()
    return Score(precision=precision, errors=failure_errors(kind, settings))


def _precision(matches: Matches, truth: Truth | None) -> tuple[float, ...]:
    if truth is None:
        return ()
    shares = metrics.precision(reprojection_errors(matches, truth), PRECISION_PIXELS)
    return () if np.isnan(shares).any() else tuple(map(float, shares))


def _score_model(
    matches: Matches,
    truth: Homography | TwoView,
    sizes: tuple[Size, Size],
    settings: Settings,
    found: Score,
) -> tuple[Score, float]:
    """Fit with every threshold and seed, and measure each model."""
    pose = isinstance(truth, TwoView)
    thresholds = settings.pose_thresholds if pose else settings.homography_thresholds
    failure = settings.failure_degrees if pose else settings.failure_pixels
    start = time.perf_counter()
    fits = [
        [_fit(matches, truth, settings, threshold, repeat) for repeat in range(settings.repeats)]
        for threshold in thresholds
    ]
    seconds = (time.perf_counter() - start) / (len(thresholds) * settings.repeats)
    error: Callable[[Any], float] = (
        (lambda model: getattr(metrics.pose_error(model, truth), settings.pose_error))
        if isinstance(truth, TwoView)
        else (lambda model: metrics.corner_error(model, truth, sizes[0]))
    )
    errors = [[error(fit.model) if fit.success else failure for fit in row] for row in fits]
    first = fits[0][0]
    scored = replace(
        found,
        inliers=int(first.inliers.sum()),
        reason=str(first.reason),
        errors=tuple(tuple(min(float(e), failure) for e in row) for row in errors),
    )
    return scored, seconds


def _fit(
    matches: Matches, truth: Homography | TwoView, settings: Settings, threshold: float, repeat: int
) -> Fit[Any]:
    estimator = settings.estimator
    estimator = replace(estimator, threshold=threshold, seed=estimator.seed + repeat)
    if isinstance(truth, Homography):
        return fitting.fit_homography(matches.points0, matches.points1, estimator)
    return fitting.fit_pose(
        matches.points0, matches.points1, truth.intrinsics0, truth.intrinsics1, estimator
    )
