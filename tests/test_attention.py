"""Attention: what every form of it promises, and what tells the forms apart."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from matcher.nn.attention import (
    Config,
    MultiHeadAttention,
    PooledAttention,
    attend,
    attend_linearly,
    read_out,
)
from matcher.nn.attention_scopes import (
    PredictedWindow,
    RelativeWindow,
    strided_table,
    window_table,
)
from matcher.nn.attention_scores import SCORES, Additive, Concat, General, Location, ScaledDot

SMALL = Config(channels=16, heads=2)
SCOPES = ("full", "linear", "window", "gaussian", "strided")
FORMS = [
    *(replace(SMALL, score=score) for score in SCORES),
    *(replace(SMALL, scope=scope, span=2) for scope in SCOPES[1:]),
]
EVERY_FORM = pytest.mark.parametrize("config", FORMS, ids=lambda c: f"{c.score}-{c.scope}")


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads_of(M: int = 5, N: int = 7, channels: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a batch of 2 with 3 heads."""
    return tokens(2, 3, M, channels), tokens(2, 3, N, channels, seed=1), tokens(2, 3, N, 4, seed=2)


@EVERY_FORM
def test_weights_of_every_form_sum_to_one(config: Config) -> None:
    attention, source = MultiHeadAttention(config), tokens(2, 9, 16)

    found = attention.explain(source, source)

    assert (found.weights >= 0).all()
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(2, 2, 9))


@EVERY_FORM
def test_what_is_explained_is_what_is_done(config: Config) -> None:
    attention, source = MultiHeadAttention(config), tokens(2, 9, 16)
    mask = torch.arange(9) < torch.tensor([[9], [6]])

    explained = attention.explain(source, source, mask).message

    wanted = attention.merge(explained.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(source, source, mask), wanted, rtol=1e-4, atol=1e-5)


@EVERY_FORM
def test_masked_tokens_do_not_matter_and_blind_queries_read_nothing(config: Config) -> None:
    attention, source = MultiHeadAttention(config), tokens(2, 9, 16)  # ATT-04
    mask = torch.arange(9) < torch.tensor([[6], [0]])
    asking = source if config.scope in ("window", "strided") else tokens(2, 4, 16)
    spoilt = source.clone().masked_fill(~mask[..., None], math.nan)

    found = attention.explain(asking.nan_to_num(), spoilt, mask)

    clean = attention.explain(asking, source, mask)
    torch.testing.assert_close(found.message, clean.message)
    assert found.message.isfinite().all()
    assert not found.message[1].any()
    assert not found.weights[1].any()


@EVERY_FORM
def test_gradients_of_every_form_are_right(config: Config) -> None:
    attention = MultiHeadAttention(replace(config, channels=4, span=1)).double()
    source = tokens(1, 5, 4).double().requires_grad_()
    mask = torch.tensor([[True, True, False, True, True]])

    assert torch.autograd.gradcheck(lambda t: attention(t, t, mask), (source,))


@pytest.mark.parametrize("score", [name for name in SCORES if name != "location"])
def test_the_order_of_keys_does_not_matter_and_queries_keep_theirs(score: str) -> None:
    attention = MultiHeadAttention(replace(SMALL, score=score))
    source, order = tokens(1, 9, 16), torch.randperm(9)

    found = attention(source, source)

    torch.testing.assert_close(attention(source[:, order], source[:, order]), found[:, order])
    torch.testing.assert_close(attention(source, source[:, order]), found)


@EVERY_FORM
def test_the_message_lies_in_the_convex_hull_of_the_values(config: Config) -> None:
    attention, source = MultiHeadAttention(config), tokens(2, 9, 16)

    message = attention.explain(source, source).message

    _, _, value = attention._split(source, source, None)
    directions = tokens(500, 8, seed=4).T  # a hull is all that no direction tells apart
    reached, limit = message @ directions, (value @ directions).amax(2, keepdim=True)
    assert (reached <= limit + 1e-5).all()


@pytest.mark.parametrize("channels", [4, 64, 1024])
def test_root_d_keeps_the_variance_of_scores_at_one(channels: int) -> None:
    query, key = tokens(10_000, 1, 1, channels), tokens(10_000, 1, 1, channels, seed=1)

    scores = ScaledDot()(query, key)

    assert scores.var().item() == pytest.approx(1, abs=0.06)  # 4 standard errors
    assert SCORES["dot"](channels, 1)(query, key).var().item() == pytest.approx(channels, rel=0.06)


def test_the_jacobian_of_softmax_is_that_of_the_article() -> None:
    scores = tokens(6).double()

    found = torch.autograd.functional.jacobian(
        lambda s: read_out(s[None, None, None], torch.eye(6).double()[None, None]).weights[0, 0, 0],
        scores,
    )

    a = scores.softmax(0)
    torch.testing.assert_close(found, torch.diag(a) - torch.outer(a, a))


def test_attention_is_the_nadaraya_watson_estimator() -> None:
    query, key, value = heads_of()

    found = attend(query, key, value)

    kernel = np.exp(np.einsum("bhmc,bhnc->bhmn", query, key) / math.sqrt(8))
    wanted = np.einsum("bhmn,bhnd->bhmd", kernel, value) / kernel.sum(-1, keepdims=True)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_temperature_goes_from_the_best_to_the_mean() -> None:
    scores, (_, _, value) = tokens(2, 3, 5, 7), heads_of()

    best = read_out(scores, value, how="best").message

    torch.testing.assert_close(read_out(scores * 1e5, value).message, best)
    mean = value.mean(2, keepdim=True).expand(-1, -1, 5, -1)
    torch.testing.assert_close(read_out(scores * 1e-7, value).message, mean, rtol=1e-4, atol=1e-5)


def test_relative_windows_make_a_convolution() -> None:
    features, kernel = tokens(1, 3, 6, 7), tokens(5, 3, 3, 3, seed=1)
    offsets = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 2)  # 9 heads, one a cell
    padded = F.pad(features, (1, 1, 1, 1))
    value = padded.flatten(2).mT[:, None].expand(-1, 9, -1, -1)  # (1, 9, 8*9, 3)

    bias = RelativeWindow(offsets, sharpness=200.0)(value, (8, 9))
    message = read_out(bias, value).message  # (1, 9, 72, 3)

    read = torch.einsum("bhnc,och->bon", message, kernel.flatten(2)).unflatten(2, (8, 9))
    wanted = F.conv2d(features, kernel, padding=1)
    torch.testing.assert_close(read[:, :, 1:-1, 1:-1], wanted, rtol=1e-4, atol=1e-5)


def test_the_additive_score_costs_a_tanh_layer_a_pair() -> None:
    score, dot = Additive(144, width=32), ScaledDot()
    query, key = tokens(1, 1, 10, 144), tokens(1, 1, 16, 144, seed=1)

    with FlopCounterMode(display=False) as additive_cost:
        score(query, key)
    with FlopCounterMode(display=False) as dot_cost:
        dot(query, key)

    assert sum(weight.numel() for weight in score.parameters()) == 9_248
    assert dot_cost.get_total_flops() == 2 * 10 * 16 * 144
    assert additive_cost.get_total_flops() == 2 * (10 * 144 * 32 + 16 * 144 * 32 + 10 * 16 * 32)


def test_the_additive_score_is_a_perceptron_of_query_and_key() -> None:
    score, (query, key, _) = Additive(8, heads=3, width=6), heads_of()

    found = score(query, key)

    hidden = torch.tanh(query[1, 2, 4] @ score.of_query[2] + key[1, 2, 3] @ score.of_key[2])
    torch.testing.assert_close(found[1, 2, 4, 3], hidden @ score.weight[2])


def test_concat_is_additive_with_one_matrix_and_general_begins_as_scaled_dot() -> None:
    query, key, _ = heads_of()
    concat, additive = Concat(8, 3, 6), Additive(8, 3, 6)
    additive.of_query.data, additive.of_key.data = concat.of_both.data.chunk(2, dim=1)
    additive.weight.data = concat.weight.data

    torch.testing.assert_close(concat(query, key), additive(query, key))
    torch.testing.assert_close(General(8, 3)(query, key), ScaledDot()(query, key))


def test_location_looks_at_the_query_alone() -> None:
    score, (query, key, _) = Location(8, 3, places=7), heads_of()

    torch.testing.assert_close(score(query, key), score(query, key + 1))
    with pytest.raises(ValueError, match="the location score knows 7 places, not 8"):
        score(query, tokens(2, 3, 8, 8))


def test_a_draw_follows_the_weights_and_knows_its_probability() -> None:
    scores = tokens(1, 1, 1, 4).expand(1, 1, 20_000, 4).clone().requires_grad_()
    value = torch.eye(4)[None, None]
    torch.manual_seed(0)

    found = read_out(scores, value, how="draw")

    weights = scores[0, 0, 0].softmax(0)
    torch.testing.assert_close(found.message[0, 0].mean(0), weights, rtol=0, atol=0.015)
    chance = (found.message[0, 0] * weights).sum(-1).log()
    torch.testing.assert_close(found.log_probability[0, 0], chance)
    found.log_probability[0, 0, 0].backward()
    wanted = found.message[0, 0, 0] - weights  # the score function of a categorical draw
    assert scores.grad is not None
    torch.testing.assert_close(scores.grad[0, 0, 0], wanted.detach())


def test_the_best_key_is_read_alone_and_gives_no_gradient_to_scores() -> None:
    scores, (_, _, value) = tokens(2, 3, 5, 7).requires_grad_(), heads_of()

    found = read_out(scores, value.requires_grad_(), how="best")
    found.message.sum().backward()

    wanted = torch.take_along_dim(value, scores.argmax(-1, keepdim=True), 2)
    torch.testing.assert_close(found.message, wanted)
    assert scores.grad is None
    assert not found.log_probability.any()


@pytest.mark.parametrize("how", ["mean", "best", "draw"])
def test_a_query_that_sees_no_key_reads_nothing(how: str) -> None:
    scores, (_, _, value) = tokens(2, 3, 5, 7), heads_of()
    mask = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    mask[:, :, 3] = False
    mask[:, :, 4, :3] = False

    found = read_out(scores, value, mask, how)

    assert not found.message[:, :, 3].any()
    assert not found.log_probability[:, :, 3].any()
    assert not found.weights[:, :, 4, :3].any()
    assert found.message.isfinite().all()


def test_entropy_is_greatest_where_all_keys_answer_alike() -> None:
    _, _, value = heads_of()

    even = read_out(torch.zeros(2, 3, 5, 7), value).entropy

    torch.testing.assert_close(even, torch.full((2, 3, 5), math.log(7)))
    assert (read_out(tokens(2, 3, 5, 7), value).entropy < math.log(7)).all()


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)],
)
@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_kernels_agree_and_a_blind_row_is_zero(kernel, dtype, tolerance: float) -> None:  # ATT-04
    query, key, value = (each.to(dtype) for each in heads_of(M=9, channels=8))
    value = torch.cat([value, value], -1)  # flash wants as many channels as keys have
    mask = torch.ones(2, 9, 7, dtype=torch.bool)
    mask[:, 3] = False
    mask[:, 5, ::2] = False

    with sdpa_kernel(kernel):
        found = attend(query, key, value, mask)

    scores = (query.float() @ key.float().mT) / 8**0.5
    wanted = read_out(scores, value.float(), mask[:, None]).message
    assert found.dtype == dtype
    assert not found[:, :, 3].any()
    torch.testing.assert_close(found.float(), wanted, rtol=0, atol=tolerance)


def test_gradients_of_blind_rows_are_zero_and_never_nan() -> None:  # ATT-04
    query, key, value = (each.requires_grad_() for each in heads_of())
    mask = torch.ones(2, 5, 7, dtype=torch.bool)
    mask[0, 3] = False

    attend(query, key, value, mask).sum().backward()

    assert all(each.grad is not None and each.grad.isfinite().all() for each in (query, key, value))
    assert query.grad is not None
    assert not query.grad[0, :, 3].any()


def test_fast_kernels_are_chosen_without_a_word() -> None:  # ATT-05
    query, key, value = heads_of()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = attend(query, key, value)

    assert not said
    wanted = read_out(ScaledDot()(query, key), value).message
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("M", "N"), [(0, 4), (4, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("scope", ["full", "linear", "gaussian"])
def test_attention_without_tokens_reads_nothing(scope, M: int, N: int) -> None:
    attention = MultiHeadAttention(replace(SMALL, scope=scope))

    message = attention.explain(tokens(1, M, 16), tokens(1, N, 16)).message

    assert attention(tokens(1, M, 16), tokens(1, N, 16)).shape == (1, M, 16)
    assert message.shape == (1, 2, M, 8)
    assert message.isfinite().all()


def test_linear_attention_is_that_of_loftr() -> None:
    twins = pytest.importorskip("kornia.feature.loftr.loftr_module.linear_attention")
    query, key, value = heads_of()
    value = torch.cat([value, value], -1)
    mask = torch.arange(7) < torch.tensor([[7], [3]])

    found = attend_linearly(query, key, value, mask)

    wanted = twins.LinearAttention()(
        *(each.transpose(1, 2) for each in (query, key, value)), kv_mask=mask
    ).transpose(1, 2)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_linear_attention_stays_in_range_of_half_precision() -> None:
    query, key = torch.full((1, 1, 4, 8), 30.0), torch.full((1, 1, 6000, 8), 30.0)

    found = attend_linearly(query.half(), key.half(), torch.full((1, 1, 6000, 2), 20.0).half())

    torch.testing.assert_close(found, torch.full((1, 1, 4, 2), 20.0).half(), rtol=0.02, atol=0)


def test_a_window_holds_the_neighbours_on_the_grid() -> None:
    table = window_table((3, 4), 1)

    assert table.shape == (12, 9)
    assert sorted(table[5].tolist()) == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert sorted(set(table[0].tolist())) == [-1, 0, 1, 4, 5]
    assert window_table((5,), 1)[4].tolist() == [3, 4, -1]


def test_any_two_tokens_are_two_strided_steps_apart() -> None:
    count, stride = 23, 5
    table = strided_table(count, stride)
    near = torch.zeros(count, count + 1, dtype=torch.bool)
    near.scatter_(1, table.where(table >= 0, count), True)
    step = near[:, :count].float()

    assert all(
        len(set(row)) == len(row) for row in ([i for i in r if i >= 0] for r in table.tolist())
    )
    assert table.shape[1] <= stride + math.ceil(count / stride)
    assert ((step @ step @ step) > 0).all()
    full = strided_table(25, 5)
    step = torch.zeros(25, 26).scatter_(1, full.where(full >= 0, 25), 1)[:, :25]
    assert ((step @ step) > 0).all()


def test_a_window_reads_what_full_attention_reads_under_its_mask() -> None:
    windowed = MultiHeadAttention(replace(SMALL, scope="window", span=1))
    source = tokens(2, 12, 16)
    table = window_table((3, 4), 1)
    mask = torch.zeros(12, 13, dtype=torch.bool).scatter_(1, table.where(table >= 0, 12), True)

    found = windowed.explain(source, source, grid=(3, 4)).message

    query, key, value = windowed._split(source, source, None)
    wanted = attend(query, key, value, mask[:, :12].expand(2, -1, -1))
    torch.testing.assert_close(found, wanted)


def test_a_predicted_window_is_a_gaussian_inside_the_grid() -> None:
    window, query = PredictedWindow(8, heads=3, deviation=2.0, axes=2), tokens(2, 3, 5, 8)

    bias, centres = window(query, (6, 9)), window.centres(query, (6, 9))

    assert ((centres >= 0) & (centres <= torch.tensor([5.0, 8.0]))).all()
    row, column = centres[1, 2, 3].unbind()
    wanted = -((4 - row) ** 2 + (7 - column) ** 2) / (2 * 2.0**2)
    torch.testing.assert_close(bias[1, 2, 3, 4 * 9 + 7], wanted)


def test_pooled_attention_keeps_the_size_of_any_map() -> None:
    pooled = PooledAttention(SMALL, stride=4)
    map0, map1 = tokens(2, 16, 13, 10), tokens(2, 16, 9, 17, seed=1)

    found = pooled(map0, map1)

    assert found.shape == map0.shape
    mask = torch.zeros(2, 9, 17, dtype=torch.bool)
    mask[0, :8, :8] = True
    spoilt = map1.masked_fill(~mask[:, None], math.nan)
    torch.testing.assert_close(pooled(map0, spoilt, mask)[:1], pooled(map0, map1[..., :8, :8])[:1])
    assert pooled(map0, spoilt, mask).isfinite().all()


def test_pooled_attention_of_stride_one_is_full_attention() -> None:
    pooled = PooledAttention(SMALL, stride=1)
    torch.nn.init.ones_(pooled.pool.weight)
    map0, map1 = tokens(1, 16, 3, 4), tokens(1, 16, 5, 2, seed=1)

    found = pooled(map0, map1)

    wanted = pooled.attention(map0.flatten(2).mT, map1.flatten(2).mT)
    torch.testing.assert_close(found.flatten(2).mT, wanted)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"channels": 10, "heads": 4}, r"channels \(10\) must be a multiple of heads \(4\)"),
        ({"score": "cosine"}, "no score 'cosine'; there are dot, scaled-dot, general"),
        ({"scope": "near"}, "no scope 'near'; there are full, linear, window"),
        ({"read_out": "hard"}, "no read_out 'hard'; there are mean, best, draw"),
        ({"span": 0}, "span must be at least 1, not 0"),
        ({"scope": "linear", "score": "dot"}, "linear attention has its own score"),
    ],
)
def test_wrong_configurations_are_refused(fields, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**fields)


def test_wrong_tokens_are_refused() -> None:
    attention, source = MultiHeadAttention(SMALL), tokens(1, 6, 16)
    near = MultiHeadAttention(replace(SMALL, scope="window"))

    with pytest.raises(ValueError, match=r"tokens must be \(B M C\) with C=16, not \(1, 6, 8\)"):
        attention(tokens(1, 6, 8), source)
    with pytest.raises(ValueError, match=r"source must be \(B N C\)"):
        attention(source, tokens(2, 6, 16))
    with pytest.raises(ValueError, match=r"mask must be \(B N\)"):
        attention(source, source, torch.ones(1, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"grid \(2, 2\) does not hold 6 tokens"):
        attention.explain(source, source, grid=(2, 2))
    with pytest.raises(ValueError, match="a window needs one grid, not 6 and 5"):
        near(source, tokens(1, 5, 16))
    with pytest.raises(ValueError, match="no read-out 'all'; there are mean, best, draw"):
        read_out(tokens(1, 1, 2, 2), tokens(1, 1, 2, 2), how="all")
