"""Decide from matches alone whether two pictures show the same place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from matcher.geometry.fits import Fit, Reason
from matcher.geometry.fitting import USUAL, fit_fundamental, fit_homography
from matcher.geometry.solvers import Estimator
from matcher.geometry.two_view import covered_area
from matcher.types import Matches, Matrix

MIN_INLIERS = 12  # fewer never decide, however neatly they agree
MAX_LOG_CHANCE = -8.0  # one false alarm in 10^8 pairs of random matches; real errors are not random


@dataclass(frozen=True)
class Verdict:
    """Whether two pictures show the same place, and on what grounds.

    Attributes:
        same_place: The decision.
        inliers: Matches that agree with one homography or fundamental matrix.
        inlier_ratio: Their share of all matches; 0 without matches.
        covered_area: Share of the image inside their convex hull, the smaller of the two images'.
        log10_chance: Logarithm of how many such agreements random matches would give in one pair.
        reason: `OK`; `TOO_FEW` matches or inliers; `FEW_INLIERS` where chance explains them.
    """

    same_place: bool
    inliers: int
    inlier_ratio: float
    covered_area: float
    log10_chance: float
    reason: Reason


def verify(
    matches: Matches, size0: tuple[int, int], size1: tuple[int, int], estimator: Estimator = USUAL
) -> Verdict:
    """Decide whether matched pictures show the same place.

    The rule: a homography and a fundamental matrix are fitted, and the one is taken whose inliers
    random matches would give least often. The place is the same where that number of false alarms
    is at most 10^-8 and there are at least 12 inliers. Ratio and area are reported and decide
    nothing: a few right matches among many wrong ones, or on a small thing, are evidence too.

    Args:
        matches: In pixels of the two images.
        size0: Height and width of image 0.
        size1: Height and width of image 1.
        estimator: How to fit; the seed decides the sampling.

    Source: Moisan and Stival, A probabilistic criterion to detect rigid point matches, IJCV 2004.
    """
    plane = fit_homography(matches.points0, matches.points1, estimator)
    views = fit_fundamental(matches.points0, matches.points1, estimator)
    return judge(matches, plane, views, size0, size1)


def judge(
    matches: Matches,
    plane: Fit[Matrix],
    views: Fit[Matrix],
    size0: tuple[int, int],
    size1: tuple[int, int],
) -> Verdict:
    """Decide as `verify` does, from fits that are there already.

    Args:
        matches: What was fitted.
        plane: From `fit_homography`.
        views: From `fit_fundamental`.
        size0: Height and width of image 0.
        size1: Height and width of image 1.
    """
    strip = 2 * _threshold(views) * np.hypot(*size1) / np.prod(size1)
    chances = (log10_chance_of_plane(plane, size1), _log10_chance(views, 7, float(strip), 3))
    chance, fit = min(zip(chances, (plane, views), strict=True), key=lambda both: both[0])
    inliers = int(fit.inliers.sum())
    reason = _reason(inliers, chance)
    chosen = matches.select(fit.inliers)
    return Verdict(
        same_place=reason is Reason.OK,
        inliers=inliers,
        inlier_ratio=inliers / max(len(matches), 1),
        covered_area=min(covered_area(chosen.points0, size0), covered_area(chosen.points1, size1)),
        log10_chance=chance,
        reason=reason,
    )


def log10_chance_of_plane(homography: Fit[Matrix], size1: tuple[int, int]) -> float:
    """Compute the logarithm of how many homographies random matches would agree with as well.

    Args:
        homography: As fitted to all matches.
        size1: Height and width of image 1, where points are compared.
    """
    disc = np.pi * _threshold(homography) ** 2 / np.prod(size1)
    return _log10_chance(homography, 4, float(disc), 1)


def _threshold(fit: Fit[Matrix]) -> float:
    return fit.estimator.threshold or 0.0


def _reason(inliers: int, log10_chance: float) -> Reason:
    if inliers < MIN_INLIERS:
        return Reason.TOO_FEW
    return Reason.OK if log10_chance <= MAX_LOG_CHANCE else Reason.FEW_INLIERS


def _log10_chance(fit: Fit[Matrix], sample: int, share: float, solutions: int) -> float:
    """Compute the logarithm of the number of false alarms of a fit.

    Args:
        fit: Its inliers among all usable matches.
        sample: Matches in a minimal sample.
        share: Probability that a random point of image 1 is within the threshold.
        solutions: Models that a minimal sample gives at most.
    """
    total, inliers = len(fit.inliers) - fit.dropped, int(fit.inliers.sum())
    if inliers <= sample or fit.reason is Reason.DEGENERATE:
        return 0.0
    ways = _log_choose(total, inliers) + _log_choose(inliers, sample)
    tests = np.log(solutions * (total - sample)) + ways
    return float((tests + (inliers - sample) * np.log(min(share, 1.0))) / np.log(10))


def _log_choose(n: int, k: int) -> float:
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
