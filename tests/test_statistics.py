"""Bootstrap intervals: known distributions, repeats, pairing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import trapezoid

from matcher.evaluation import statistics
from matcher.evaluation.statistics import (
    auc_at,
    bootstrap_interval,
    mean,
    median,
    paired_bootstrap,
)


def trapezoid_auc(errors, threshold):
    """The convention of SuperGlue and LoFTR, written out with another tool."""
    ordered = np.sort(errors)
    recall = (np.arange(len(ordered)) + 1) / len(ordered)
    ordered, recall = np.r_[0, ordered], np.r_[0, recall]
    last = np.searchsorted(ordered, threshold)
    x, y = np.r_[ordered[:last], threshold], np.r_[recall[:last], recall[last - 1]]
    return trapezoid(y, x) / threshold


def test_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(0).normal(5, 2, 400)

    found = bootstrap_interval(values, resamples=4000)

    half = 1.96 * values.std() / 20
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.02)
    assert found.high == pytest.approx(values.mean() + half, abs=0.02)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    covered = []
    for seed in range(300):
        found = bootstrap_interval(generator.normal(0, 1, 60), resamples=300, seed=seed)
        covered.append(found.low <= 0 <= found.high)

    assert 0.90 <= np.mean(covered) <= 0.98


def test_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    values = np.random.default_rng(2).random(50)

    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3).low != bootstrap_interval(values, seed=4).low


def test_blocks_do_not_change_the_interval(monkeypatch) -> None:
    values = np.random.default_rng(2).random((50, 3))
    whole = bootstrap_interval(values)

    monkeypatch.setattr(statistics, "_BLOCK", 1000)

    assert bootstrap_interval(values) == whole


def test_repeats_of_a_pair_do_not_narrow_the_interval() -> None:
    values = np.random.default_rng(3).normal(size=100)

    once = bootstrap_interval(values, resamples=2000)
    often = bootstrap_interval(np.repeat(values[:, None], 5, axis=1), resamples=2000)

    assert often.high - often.low == pytest.approx(once.high - once.low, rel=1e-9)


def test_rows_of_errors_have_the_published_auc() -> None:
    generator = np.random.default_rng(4)
    errors = generator.exponential(4, (1000, 17))
    errors[generator.random(errors.shape) < 0.1] = np.inf

    found = auc_at(5)(errors)

    expected = [trapezoid_auc(row, 5) for row in errors]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("errors", "threshold", "expected"),
    [
        ([1, 3, 7, 30, np.inf], 5, 0.3),  # EVA-01
        ([1, 3, 7, 30, np.inf], 10, 0.45),
        ([1, 3, 7, 30, np.inf], 20, 0.525),
        ([np.inf] * 3, 5, 0.0),  # EVA-02
        ([0, 0, 0], 5, 1.0),
        ([5.0], 5, 0.0),
        ([0.5] * 4, 1, 0.5625),
        ([np.nan, 1], 5, 0.45),
    ],
)
def test_auc_has_the_values_worked_out_by_hand(errors, threshold, expected) -> None:
    assert auc_at(threshold)(np.array([errors]))[0] == pytest.approx(expected)


def test_paired_difference_is_narrower_than_two_intervals() -> None:
    generator = np.random.default_rng(5)
    hardness = generator.normal(0, 10, 80)
    values0, values1 = hardness + generator.normal(0, 0.5, 80), hardness + 1

    found = paired_bootstrap(values0, values1)

    alone = bootstrap_interval(values0)
    assert found.value == pytest.approx((values1 - values0).mean())
    assert found.high - found.low < 0.1 * (alone.high - alone.low)
    assert found.clear
    assert found.probability == 1


def test_a_method_compared_with_itself_is_neither_better_nor_worse() -> None:
    values = np.random.default_rng(6).random(30)

    found = paired_bootstrap(values, values, median)

    assert (found.value, found.low, found.high, found.probability) == (0, 0, 0, 0.5)
    assert not found.clear


def test_a_single_pair_says_nothing_of_others() -> None:
    found = bootstrap_interval([[3.0, 5.0]])

    assert found.value == 4
    assert np.isnan([found.low, found.high]).all()
    assert not paired_bootstrap([1.0], [2.0]).clear


def test_no_pairs_give_no_figure() -> None:
    assert np.isnan(bootstrap_interval([]).value)
    assert np.isnan(paired_bootstrap([], [], mean).probability)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"values must be \(N,\) or \(N, R\), not \(1, 1, 1\)"):
        bootstrap_interval([[[1.0]]])
    with pytest.raises(ValueError, match="values1 has 3 pairs, values0 has 2"):
        paired_bootstrap([1.0, 2.0], [1.0, 2.0, 3.0])
