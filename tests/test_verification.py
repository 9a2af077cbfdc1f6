"""The verdict on two pictures: exact numbers of false alarms, and the limits that decide."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from math import comb, hypot, log10, pi

import numpy as np
import pytest

from matcher.geometry.fits import Fit, Reason
from matcher.geometry.solvers import Estimator
from matcher.geometry.verification import judge, log10_chance_of_plane
from matcher.types import Matches

SIZE = 90, 120  # of image 1
NO_FIT = Fit(None, np.zeros(60, bool), Reason.FEW_INLIERS, Estimator(threshold=1.0))


def fit(inliers: int, total: int = 60, threshold: float = 1.5, **how) -> Fit:
    """A fit with which the first so many matches agree."""
    reason = how.pop("reason", Reason.OK)
    agree = np.arange(total) < inliers
    return Fit(np.eye(3), agree, reason, Estimator(threshold=threshold), **how)


def false_alarms(inliers: int, total: int, share: float, sample: int, solutions: int) -> float:
    """The formula of Moisan and Stival in whole numbers, as a logarithm to base 10."""
    tests = solutions * (total - sample) * comb(total, inliers) * comb(inliers, sample)
    return log10(tests) + (inliers - sample) * log10(share)


def verdict_on(plane: Fit = NO_FIT, views: Fit = NO_FIT, size0=(60, 80), count: int = 60):
    points = np.random.default_rng(0).uniform(0, 50, (count, 2))
    return judge(Matches(points, points, np.ones(count)), plane, views, size0, SIZE)


@pytest.mark.parametrize("inliers", [5, 6, 12, 40, 60])
@pytest.mark.parametrize("threshold", [0.5, 3.0])
def test_the_chance_of_a_plane_is_that_of_the_paper(inliers, threshold):
    found = log10_chance_of_plane(fit(inliers, threshold=threshold), SIZE)

    share = pi * threshold**2 / (90 * 120)
    assert found == pytest.approx(false_alarms(inliers, 60, share, 4, 1), abs=1e-9)


@pytest.mark.parametrize("inliers", [8, 12, 40])
def test_the_chance_of_two_views_is_that_of_the_paper(inliers):
    verdict = verdict_on(views=fit(inliers, threshold=0.7))

    share = 2 * 0.7 * hypot(90, 120) / (90 * 120)
    assert verdict.log10_chance == pytest.approx(
        min(0.0, false_alarms(inliers, 60, share, 7, 3)), abs=1e-9
    )


def test_matches_that_were_left_out_do_not_count():
    found = log10_chance_of_plane(fit(20, dropped=15), SIZE)

    assert found == pytest.approx(false_alarms(20, 45, pi * 1.5**2 / (90 * 120), 4, 1), abs=1e-9)


def test_a_threshold_as_large_as_the_image_proves_nothing():
    assert log10_chance_of_plane(fit(60, threshold=1e4), SIZE) == pytest.approx(
        false_alarms(60, 60, 1.0, 4, 1)
    )


@pytest.mark.parametrize("weak", [fit(4), fit(0), fit(60, reason=Reason.DEGENERATE)])
def test_what_a_minimal_sample_explains_has_no_chance(weak):
    assert log10_chance_of_plane(weak, SIZE) == 0


@pytest.mark.parametrize(("inliers", "reason"), [(11, Reason.TOO_FEW), (12, Reason.OK)])
def test_twelve_inliers_decide(inliers, reason):
    verdict = verdict_on(plane=fit(inliers, threshold=0.01))

    assert verdict.log10_chance < -20
    assert (verdict.reason, verdict.inliers) == (reason, inliers)
    assert verdict.same_place == (reason is Reason.OK)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [(-7.99, Reason.FEW_INLIERS), (-8.01, Reason.OK), (-8.9, Reason.OK)],
)
def test_one_false_alarm_in_ten_to_the_eighth_decides(wanted, reason):
    ways = false_alarms(20, 60, 1.0, 4, 1)  # with all of the image within the threshold
    threshold = (10 ** ((wanted - ways) / 16) * 90 * 120 / pi) ** 0.5

    verdict = verdict_on(plane=fit(20, threshold=threshold))

    assert verdict.log10_chance == pytest.approx(wanted)
    assert verdict.reason is reason


def test_the_less_likely_of_the_two_fits_counts():
    plane, precise = fit(30), fit(25, threshold=1e-4)

    both = verdict_on(plane, precise)

    assert both.inliers == 25
    assert both.log10_chance == verdict_on(views=precise).log10_chance
    assert both.log10_chance < verdict_on(plane).log10_chance
    assert verdict_on(plane, fit(25, threshold=5.0)).inliers == 30


def test_the_grounds_are_those_of_the_inliers_and_cannot_be_changed():
    points0 = np.array([[0, 0], [40, 0], [40, 30], [0, 30]] * 5 + [[79, 59], [0, 59], [79, 0]])
    points1 = np.array([[0, 0], [60, 0], [60, 60], [0, 60]] * 5 + [[0, 89]] * 3)
    agreed = fit(20, total=23)

    verdict = judge(Matches(points0, points1, np.ones(23)), agreed, NO_FIT, (60, 80), SIZE)

    assert verdict.inlier_ratio == pytest.approx(20 / 23)
    assert verdict.covered_area == pytest.approx(40 * 30 / (60 * 80))
    with pytest.raises(FrozenInstanceError):
        verdict.inliers = 3


def test_no_matches_are_no_place():
    none = Fit(None, np.zeros(0, bool), Reason.TOO_FEW, Estimator(threshold=1.0))

    verdict = judge(
        Matches(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0)), none, none, SIZE, SIZE
    )

    assert (verdict.same_place, verdict.inliers, verdict.inlier_ratio) == (False, 0, 0)
    assert (verdict.covered_area, verdict.log10_chance) == (0, 0)
