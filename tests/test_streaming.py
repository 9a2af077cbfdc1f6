"""Streamed assignment equals the dense one, in any number of strips."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from matcher.nn.sinkhorn import sinkhorn_log
from matcher.nn.streaming import Scores, Similarity, dual_softmax, sinkhorn

ROW = 2 * 4  # bytes that one entry of a strip takes


def tokens(count0: int, count1: int, channels: int = 16, seed: int = 0, spread: float = 2.0):
    random = torch.Generator().manual_seed(seed)
    tokens0 = torch.randn(count0, channels, generator=random) * spread
    tokens1 = torch.randn(count1, channels, generator=random) * spread
    shared = min(count0, count1) // 2
    tokens1[:shared] = tokens0[:shared] + 0.1 * torch.randn(shared, channels, generator=random)
    return tokens0, tokens1


def dense_dual_softmax(tokens0, tokens1, scale: float):
    similarity = tokens0 @ tokens1.T * scale
    return similarity.softmax(0) * similarity.softmax(1)


def dense_mutual(probability, threshold: float):
    """Pairs by brute force: (row, column) -> probability."""
    best = {}
    for row in range(probability.shape[0]):
        column = int(probability[row].argmax())
        if int(probability[:, column].argmax()) == row and probability[row, column] > threshold:
            best[row, column] = float(probability[row, column])
    return best


def as_table(found):
    return {
        (int(row), int(column)): float(score)
        for row, column, score in zip(found.rows, found.columns, found.scores, strict=True)
    }


@pytest.mark.parametrize(
    "budget", [1, 5 * 40 * ROW, 2**24]
)  # one row, five rows, everything at once
def test_dual_softmax_equals_the_dense_one(budget):  # CTF-09
    tokens0, tokens1 = tokens(30, 40)

    scores = dual_softmax(Similarity(tokens0, tokens1, 0.5, budget))

    torch.testing.assert_close(
        scores.rows(torch.arange(30)).exp(),
        dense_dual_softmax(tokens0, tokens1, 0.5),
        atol=1e-6,
        rtol=1e-4,
    )
    expected = dense_mutual(dense_dual_softmax(tokens0, tokens1, 0.5), 0.01)
    assert len(expected) > 10
    assert as_table(scores.mutual_best(0.01)) == pytest.approx(expected, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 400), st.integers(0, 99))
def test_strips_never_change_the_answer(count0, count1, budget, seed):
    tokens0, tokens1 = tokens(count0, count1, seed=seed)

    whole = dual_softmax(Similarity(tokens0, tokens1, 1.0))
    strips = dual_softmax(Similarity(tokens0, tokens1, 1.0, budget))

    torch.testing.assert_close(whole.bias0, strips.bias0, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(whole.bias1, strips.bias1, atol=1e-5, rtol=1e-5)
    assert as_table(whole.mutual_best(0.0)) == pytest.approx(
        as_table(strips.mutual_best(0.0)), abs=1e-5
    )


def test_scores_far_beyond_the_range_of_exp_stay_right():
    tokens0, tokens1 = tokens(20, 25, spread=40.0)

    scores = dual_softmax(Similarity(tokens0, tokens1, 1.0, 3 * 25 * ROW))

    expected = dense_dual_softmax(tokens0.double(), tokens1.double(), 1.0)
    assert (tokens0 @ tokens1.T).abs().max() > 1e4
    torch.testing.assert_close(
        scores.rows(torch.arange(20)).exp().double(), expected, atol=1e-2, rtol=0
    )
    assert as_table(scores.mutual_best(0.5)).keys() == dense_mutual(expected, 0.5).keys()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_the_matches(dtype):  # CTF-08
    tokens0, tokens1 = (t.to(dtype) for t in tokens(3600, 3600, 32))

    half = dual_softmax(Similarity(tokens0, tokens1, 1.0)).mutual_best(0.2)
    full = dual_softmax(Similarity(tokens0.float(), tokens1.float(), 1.0)).mutual_best(0.2)

    assert len(full.rows) > 1000
    assert torch.isfinite(half.scores).all()
    kept = as_table(half).keys() & as_table(full).keys()
    assert len(kept) >= 0.99 * len(full.rows)
    torch.testing.assert_close(half.scores, full.scores, atol=2e-3, rtol=0)


def test_a_match_is_less_likely_where_a_token_has_no_partner():
    tokens0, tokens1 = tokens(12, 9)
    logits0, logits1 = torch.linspace(-2, 2, 12), torch.linspace(3, -3, 9)

    scores = dual_softmax(Similarity(tokens0, tokens1, 0.3), logits0, logits1)

    expected = (
        dense_dual_softmax(tokens0, tokens1, 0.3) * logits0.sigmoid()[:, None] * logits1.sigmoid()
    )
    torch.testing.assert_close(scores.rows(torch.arange(12)).exp(), expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("budget", [1, 7 * 40 * ROW, 2**24])
@pytest.mark.parametrize("steps", [1, 3, 50])
def test_streamed_sinkhorn_equals_the_log_domain_form(budget, steps):
    tokens0, tokens1 = tokens(30, 40)
    dustbin = torch.tensor(1.5)

    scores = sinkhorn(Similarity(tokens0, tokens1, 0.2, budget), dustbin, steps)

    dense = sinkhorn_log((tokens0 @ tokens1.T * 0.2)[None], dustbin, steps).log_assignment[0]
    torch.testing.assert_close(scores.rows(torch.arange(30)), dense[:-1, :-1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(scores.floor0, dense[:-1, -1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(scores.floor1, dense[-1, :-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("count0", "count1"), [(1, 1), (1, 7), (7, 1)])
def test_streamed_sinkhorn_of_single_tokens_is_the_dense_one(count0, count1):
    tokens0, tokens1 = tokens(count0, count1)

    scores = sinkhorn(Similarity(tokens0, tokens1, 0.2), torch.tensor(0.5), 30)

    found = torch.cat([strip.clone() for _, strip in scores.strips()])
    dense = sinkhorn_log((tokens0 @ tokens1.T * 0.2)[None], torch.tensor(0.5), 30).log_assignment[0]
    torch.testing.assert_close(found, dense[:-1, :-1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(scores.floor0, dense[:-1, -1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(scores.floor1, dense[-1, :-1], atol=1e-4, rtol=1e-4)


def test_a_token_that_prefers_its_dustbin_has_no_match():
    tokens0, tokens1 = tokens(30, 40)

    found = sinkhorn(Similarity(tokens0, tokens1, 0.2), torch.tensor(8.0), 20).mutual_best(0.0)

    dense = sinkhorn_log((tokens0 @ tokens1.T * 0.2)[None], torch.tensor(8.0), 20).log_assignment[0]
    chosen = {
        (row, column)
        for row, column in dense_mutual(dense[:-1, :-1].exp(), 0.0)
        if dense[row].argmax() == column and dense[:, column].argmax() == row
    }
    assert 0 < len(chosen) < len(dense_mutual(dense[:-1, :-1].exp(), 0.0))
    assert as_table(found).keys() == chosen


@pytest.mark.parametrize("seed", range(4))
def test_each_image_s_dustbins_take_what_scores_less(seed):
    random = torch.Generator().manual_seed(seed)
    tokens0, tokens1 = tokens(30, 40, seed=seed)
    bias0, bias1 = torch.randn(30, generator=random), torch.randn(40, generator=random)
    similarity = Similarity(tokens0, tokens1, 0.2, budget=7 * 40 * ROW)
    dense = similarity.tokens0 @ similarity.tokens1.T * 1.5 + bias0[:, None] + bias1
    mutual = dense_mutual(dense.exp(), 0.0)
    floor0 = dense.amax(1) + torch.randn(30, generator=random)
    floor1 = dense.amax(0) + torch.randn(40, generator=random)

    for floors in ((None, None), (floor0, None), (None, floor1), (floor0, floor1)):
        found = Scores(similarity, 1.5, bias0, bias1, *floors).mutual_best(0.0)

        low0, low1 = (torch.full((40,), -math.inf) if each is None else each for each in floors)
        above = {(i, j) for i, j in mutual if dense[i, j] >= max(low0[i], low1[j])}
        assert as_table(found).keys() == above
        assert (len(above) < len(mutual)) == (floors != (None, None))


def test_sums_are_those_asked_for():
    tokens0, tokens1 = tokens(20, 30)

    scores = sinkhorn(Similarity(tokens0, tokens1, 0.05), torch.tensor(1.0), 200)

    matched = scores.rows(torch.arange(20)).exp()
    torch.testing.assert_close(
        matched.sum(1) + scores.floor0.exp(), torch.ones(20), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        matched.sum(0) + scores.floor1.exp(), torch.ones(30), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize(("count0", "count1"), [(0, 5), (5, 0), (0, 0)])
def test_an_empty_side_has_no_matches(count0, count1):
    similarity = Similarity(torch.zeros(count0, 4), torch.zeros(count1, 4), 1.0)

    for scores in (dual_softmax(similarity), sinkhorn(similarity, torch.tensor(1.0), 3)):
        assert len(scores.mutual_best(0.0).rows) == 0


def test_no_score_passes_a_threshold_above_one():  # CTF-04
    tokens0, tokens1 = tokens(10, 10)

    assert len(dual_softmax(Similarity(tokens0, tokens1, 1.0)).mutual_best(1.1).scores) == 0


def test_of_equal_tokens_the_first_wins_and_each_is_used_once():
    same = torch.ones(6, 4)

    found = dual_softmax(Similarity(same, same, 1.0, 2 * 6 * ROW)).mutual_best(0.0)

    assert as_table(found) == {(0, 0): pytest.approx(1 / 36)}


def test_swapping_the_images_swaps_the_matches():
    tokens0, tokens1 = tokens(30, 40)

    forward = dual_softmax(Similarity(tokens0, tokens1, 0.5)).mutual_best(0.0)
    backward = dual_softmax(Similarity(tokens1, tokens0, 0.5)).mutual_best(0.0)

    swapped = {(column, row): score for (row, column), score in as_table(backward).items()}
    assert as_table(forward) == pytest.approx(swapped, abs=1e-5)


def test_strips_keep_to_the_budget():
    similarity = Similarity(torch.zeros(1000, 4), torch.zeros(500, 4), 1.0, budget=10**6)

    sizes = [strip.numel() * strip.element_size() for _, strip in similarity.strips()]

    assert max(sizes) * 2 <= 10**6
    assert sum(sizes) == 1000 * 500 * 4
    assert len(sizes) == math.ceil(1000 / similarity.height)


@pytest.mark.parametrize(("count0", "count1"), [(5, 0), (0, 5), (5, 300)])
def test_a_budget_of_one_byte_is_one_row_at_a_time(count0, count1):
    similarity = Similarity(torch.zeros(count0, 4), torch.zeros(count1, 4), 1.0, budget=1)

    assert similarity.height == 1
    assert len(list(similarity.strips())) == (count0 if count1 else 0)


def test_mistakes_are_refused_by_name():
    with pytest.raises(ValueError, match=r"tokens1 must be \(N C\) with C=4, not \(3, 5\)"):
        Similarity(torch.zeros(2, 4), torch.zeros(3, 5), 1.0)
    with pytest.raises(ValueError, match="budget must be a positive number of bytes, not 0"):
        Similarity(torch.zeros(2, 4), torch.zeros(3, 4), 1.0, budget=0)
