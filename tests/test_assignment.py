"""Optimal transport with a dustbin, its gradient, dual softmax, mutual best."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from matcher.nn.assignment import (
    Assignment,
    dual_softmax,
    mutual_best,
    sinkhorn,
    sinkhorn_log,
)

BOTH = pytest.mark.parametrize("transport", [sinkhorn, sinkhorn_log])
ONE = torch.tensor(1.0)


def random_scores(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def textbook(scores: Tensor, dustbin: float, steps: int) -> Tensor:
    """The normalised form of the paper, in float64, one pair, written apart from ours."""
    M, N = scores.shape
    kernel = torch.full((M + 1, N + 1), dustbin, dtype=torch.float64)
    kernel[:M, :N] = scores
    total = math.log(M + N)
    rows = torch.tensor([0.0] * M + [math.log(N)], dtype=torch.float64) - total
    columns = torch.tensor([0.0] * N + [math.log(M)], dtype=torch.float64) - total
    u, v = torch.zeros_like(rows), torch.zeros_like(columns)
    for _ in range(steps):
        u = rows - torch.logsumexp(kernel + v, 1)
        v = columns - torch.logsumexp(kernel + u[:, None], 0)
    return kernel + u[:, None] + v + total


@BOTH
@pytest.mark.parametrize("steps", [1, 2, 20, 100])
def test_transport_is_that_of_the_paper(transport, steps: int) -> None:
    scores = random_scores(1, 12, 9, scale=4)

    found = transport(scores, ONE, steps)

    torch.testing.assert_close(
        found.log_assignment[0].double(), textbook(scores[0], 1.0, steps), rtol=0, atol=2e-5
    )


@BOTH
def test_uniform_scores_have_a_closed_form(transport) -> None:  # SNK-01
    found = transport(torch.zeros(1, 2, 3), torch.tensor(0.0), 100)

    wanted = torch.tensor([[0.2, 0.2, 0.2, 0.4], [0.2, 0.2, 0.2, 0.4], [0.6, 0.6, 0.6, 1.2]])
    torch.testing.assert_close(found.log_assignment[0].exp(), wanted, rtol=0, atol=1e-6)


@BOTH
@pytest.mark.parametrize(("M", "N"), [(1, 1), (1, 2), (5, 3), (40, 7)])
def test_uniform_scores_give_every_pair_one_over_all_points(transport, M: int, N: int) -> None:
    found = transport(torch.zeros(1, M, N), torch.tensor(0.0), 100)

    wanted = torch.full((M, N), 1 / (M + N))
    torch.testing.assert_close(found.log_scores[0].exp(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
def test_large_scores_and_half_precision_stay_finite(dtype, scale: float) -> None:  # SNK-02
    scores = random_scores(1, 20, 30, scale=scale).to(dtype)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = sinkhorn(scores, ONE.to(dtype), 100)

    wanted = textbook(scores[0].double(), 1.0, 100).exp().float()
    assignment = found.log_assignment[0].exp()
    rounding = 2 * scale * 4 * 2**-23  # of scores that large in float32
    assert found.log_assignment.dtype == torch.float32
    assert assignment.isfinite().all()
    torch.testing.assert_close(assignment, wanted, rtol=0, atol=1e-5 + rounding)
    torch.testing.assert_close(assignment.sum(0)[:-1], torch.ones(30), rtol=0, atol=1e-3)
    if scale == 1:
        torch.testing.assert_close(assignment.sum(1)[:-1], torch.ones(20), rtol=0, atol=1e-3)


@pytest.mark.parametrize("scale", [3.0, 30.0, 300.0])
def test_scalings_of_a_matrix_equal_steps_on_logarithms(scale: float) -> None:
    scores = random_scores(2, 60, 45, seed=3, scale=scale).double()

    fast, slow = (f(scores, ONE, 100) for f in (sinkhorn, sinkhorn_log))

    assert fast.log_assignment.dtype == torch.float64
    torch.testing.assert_close(
        fast.log_assignment.exp(), slow.log_assignment.exp(), rtol=0, atol=1e-9
    )


def test_scalings_survive_when_one_row_is_far_from_all_others() -> None:
    scores = random_scores(1, 30, 30)
    scores[0, 4] -= 3e3
    scores[0, :, 7] += 2e3

    fast, slow = (f(scores, ONE, 40).log_assignment for f in (sinkhorn, sinkhorn_log))

    assert fast.isfinite().all()
    torch.testing.assert_close(fast.exp(), slow.exp(), rtol=0, atol=1e-3)  # of scores of 3e3


@BOTH
@pytest.mark.parametrize(("M", "N"), [(0, 5), (5, 0), (0, 0)])
def test_an_empty_side_leaves_the_other_in_the_dustbin(transport, M: int, N: int) -> None:  # SNK-04
    found = transport(torch.zeros(1, M, N), ONE, 20)

    assignment = found.log_assignment[0].exp()
    assert assignment.shape == (M + 1, N + 1)
    assert not found.log_assignment.isnan().any()
    torch.testing.assert_close(assignment[:M, N], torch.ones(M))
    torch.testing.assert_close(assignment[M, :N], torch.ones(N))
    assert assignment.sum() == M + N
    assert found.residual == 0
    assert len(mutual_best(found.log_scores).scores) == 0


@BOTH
def test_an_empty_pair_in_a_batch_leaves_the_others_alone(transport) -> None:  # SNK-04
    scores = random_scores(3, 6, 4)
    mask0 = torch.tensor([[True] * 6, [False] * 6, [True] * 6])
    mask1 = torch.tensor([[True] * 4, [True] * 4, [False] * 4])

    found = transport(scores, ONE, 50, mask0, mask1).log_assignment

    alone = transport(scores[:1], ONE, 50).log_assignment
    torch.testing.assert_close(found[:1], alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1, 6].exp(), torch.tensor([1.0, 1, 1, 1, 0]))
    torch.testing.assert_close(found[2, :, 4].exp(), torch.tensor([1.0] * 6 + [0]))
    assert not found.isnan().any()


@BOTH
def test_the_residual_is_reported_and_falls(transport) -> None:  # SNK-05
    scores = random_scores(1, 5, 400, seed=5)

    found = [transport(scores, ONE, steps) for steps in (1, 2, 5, 20, 100)]

    residuals = [float(each.residual) for each in found]
    assert all(later <= earlier + 1e-7 for earlier, later in itertools.pairwise(residuals))
    assert residuals[-1] < 1e-6 < residuals[0]
    for each in found:
        sums = each.log_assignment.exp().sum(1)[0]
        torch.testing.assert_close(sums[:-1], torch.ones(400), rtol=0, atol=1e-5)
        torch.testing.assert_close(sums[-1], torch.tensor(5.0), rtol=1e-5, atol=1e-5)


@BOTH
def test_a_sure_diagonal_tends_to_one(transport) -> None:  # SNK-05
    scores = torch.eye(3)[None] * 1000

    after_100, after_1000 = (transport(scores, torch.tensor(0.0), n) for n in (100, 1000))

    diagonal = after_100.log_scores[0].diagonal().exp()
    torch.testing.assert_close(diagonal, torch.full((3,), 0.995), rtol=0, atol=1e-3)
    assert (after_1000.log_scores[0].diagonal().exp() > diagonal).all()
    assert not after_100.log_assignment.isnan().any()


@BOTH
@pytest.mark.parametrize("padding", [0.0, 1e3, math.inf, math.nan])
def test_padding_does_not_change_the_answer(transport, padding: float) -> None:  # SNK-06
    scores = torch.full((2, 7, 5), padding)
    scores[0, :3, :5], scores[1, :7, :2] = random_scores(3, 5), random_scores(7, 2, seed=1)
    mask0 = torch.arange(7) < torch.tensor([[3], [7]])
    mask1 = torch.arange(5) < torch.tensor([[5], [2]])

    found = transport(scores, ONE, 60, mask0, mask1).log_assignment

    for item, (M, N) in enumerate([(3, 5), (7, 2)]):
        alone = transport(scores[item : item + 1, :M, :N], ONE, 60).log_assignment[0]
        rows, columns = [*range(M), 7], [*range(N), 5]
        torch.testing.assert_close(found[item][rows][:, columns], alone, rtol=0, atol=1e-5)
    assert (found[0, 3:7] == -math.inf).all()
    assert (found[1, :, 2:5] == -math.inf).all()


def test_masked_points_may_stand_anywhere() -> None:  # SNK-06
    scores = random_scores(1, 5, 6)
    mask0 = torch.tensor([[True, False, True, True, False]])
    mask1 = torch.tensor([[False, True, True, False, True, True]])

    found = sinkhorn(scores, ONE, 60, mask0, mask1).log_assignment[0]

    alone = sinkhorn(scores[:, mask0[0]][:, :, mask1[0]], ONE, 60).log_assignment[0]
    rows, columns = torch.tensor([0, 2, 3, 5]), torch.tensor([1, 2, 4, 5, 6])
    torch.testing.assert_close(found[rows][:, columns], alone, rtol=0, atol=1e-5)


def test_permuting_the_points_permutes_the_assignment() -> None:
    scores = random_scores(1, 9, 6, scale=3)
    rows, columns = torch.randperm(9), torch.randperm(6)

    found = sinkhorn(scores, ONE, 30).log_scores
    permuted = sinkhorn(scores[:, rows][:, :, columns], ONE, 30).log_scores

    torch.testing.assert_close(permuted, found[:, rows][:, :, columns], rtol=0, atol=1e-5)


def test_a_dustbin_score_a_point_is_subtracted_from_the_scores() -> None:
    scores, d, e = random_scores(1, 4, 5), random_scores(1, 4, seed=1), random_scores(1, 5, seed=2)
    kernel = torch.zeros(5, 6, dtype=torch.float64)
    kernel[:4, :5], kernel[:4, 5], kernel[4, :5] = scores[0], d[0], e[0]
    u, v = torch.zeros(5, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    rows, columns = torch.tensor([1.0, 1, 1, 1, 5]), torch.tensor([1.0, 1, 1, 1, 1, 4])
    for _ in range(400):
        u = rows.log() - torch.logsumexp(kernel + v, 1)
        v = columns.log() - torch.logsumexp(kernel + u[:, None], 0)

    found = sinkhorn(scores - d[:, :, None] - e[:, None], torch.tensor(0.0), 400)

    wanted = (kernel + u[:, None] + v).exp().float()
    torch.testing.assert_close(found.log_assignment[0].exp(), wanted, rtol=0, atol=1e-4)


def test_a_cold_transport_is_the_best_one_to_one_assignment() -> None:
    scores = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(1))
    rows, columns = linear_sum_assignment(scores[0].numpy(), maximize=True)

    found = sinkhorn(scores / 2e-3, torch.tensor(-1e3), 2000)

    chosen = mutual_best(found.log_scores, 0.5)
    assert chosen.index0[chosen.index0.argsort()].tolist() == rows.tolist()
    assert chosen.index1[chosen.index0.argsort()].tolist() == columns.tolist()


@pytest.mark.parametrize("masked", [False, True])
def test_implicit_gradients_equal_unrolled_ones(masked: bool) -> None:
    scores, weights = random_scores(2, 12, 9, scale=2), random_scores(2, 13, 10, seed=1)
    masks: tuple[Tensor, ...] = ()
    if masked:
        masks = (
            torch.arange(12) < torch.tensor([[12], [5]]),
            torch.arange(9) < torch.tensor([[4], [9]]),
        )
    found = []
    for transport in (sinkhorn, sinkhorn_log):
        given, dustbin = scores.clone().requires_grad_(), torch.tensor(0.7, requires_grad=True)
        log_assignment = transport(given, dustbin, 300, *masks).log_assignment
        log_assignment.where(log_assignment > -math.inf, 0).mul(weights).sum().backward()
        found.append((given.grad, dustbin.grad))

    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-3)


@BOTH
def test_gradients_are_right(transport) -> None:
    scores = random_scores(2, 4, 3).double().requires_grad_()
    dustbin = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(
        lambda s, d: transport(s, d, 150).log_assignment, (scores, dustbin), atol=1e-5
    )


def test_gradients_of_padding_are_zero_and_never_nan() -> None:
    scores = random_scores(1, 5, 4)
    scores[0, 3:] = math.nan
    scores.requires_grad_()
    mask0 = torch.tensor([[True, True, True, False, False]])

    sinkhorn(scores, ONE, 30, mask0).log_scores[0, :3].sum().backward()

    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert (scores.grad[0, 3:] == 0).all()


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_loss_on_logarithms_never_overflows(transport, dtype) -> None:  # SNK-03
    far = 200.0 if dtype == torch.float32 else 30.0
    scores = torch.zeros(1, 2, 2, dtype=dtype)
    scores[0, 0, 0] = -far
    scores.requires_grad_()

    loss = -transport(scores, torch.tensor(0.0), 100).log_scores[0, 0, 0]
    loss.backward()

    assert far - 2 < loss.item() < far + 2
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_memory_of_the_implicit_gradient_does_not_grow_with_the_steps() -> None:
    saved: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        saved[-1] += tensor.numel()
        return tensor

    for steps in (5, 500):
        saved.append(0)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            sinkhorn(random_scores(1, 30, 20).requires_grad_(), ONE, steps)

    assert saved[0] == saved[1] <= 2 * 31 * 21


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3, 4), ONE, 5), r"scores must be \(B M N\), not \(3, 4\)"),
        ((torch.zeros(1, 3, 4), torch.zeros(1), 5), r"dustbin must be \(\), not \(1,\)"),
        ((torch.zeros(1, 3, 4), ONE, 0), "steps must be at least 1, not 0"),
        ((torch.zeros(1, 3, 4), ONE, 5, torch.ones(1, 4)), r"mask0 must be \(B M\)"),
        ((torch.zeros(1, 3, 4), ONE, 5, None, torch.ones(1, 3)), r"mask1 must be \(B N\)"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sinkhorn(*arguments)


def test_dual_softmax_is_the_product_of_two_softmaxes() -> None:
    scores = random_scores(2, 6, 5, scale=4)

    found = dual_softmax(scores)

    torch.testing.assert_close(found.exp(), scores.softmax(1) * scores.softmax(2))


@pytest.mark.parametrize("padding", [0.0, math.inf, math.nan])
def test_padding_does_not_change_the_dual_softmax(padding: float) -> None:
    scores = torch.full((2, 6, 5), padding)
    scores[0, :4, :3], scores[1, :2] = random_scores(4, 3), random_scores(2, 5, seed=1)
    mask0 = torch.arange(6) < torch.tensor([[4], [2]])
    mask1 = torch.arange(5) < torch.tensor([[3], [5]])

    found = dual_softmax(scores, mask0, mask1)

    torch.testing.assert_close(found[0, :4, :3], dual_softmax(scores[:1, :4, :3])[0])
    torch.testing.assert_close(found[1, :2], dual_softmax(scores[1:, :2])[0])
    assert (found[0, 4:] == -math.inf).all()
    assert (found[0, :, 3:] == -math.inf).all()


def test_dual_softmax_of_nothing_is_nothing() -> None:
    nobody = torch.zeros(1, 4, dtype=torch.bool)

    assert (dual_softmax(random_scores(1, 4, 3), nobody) == -math.inf).all()
    assert (dual_softmax(random_scores(1, 3, 4), mask1=nobody) == -math.inf).all()
    assert dual_softmax(torch.zeros(1, 0, 3)).shape == (1, 0, 3)
    assert dual_softmax(torch.zeros(1, 2, 2, dtype=torch.float16)).dtype == torch.float32


def test_mutual_best_keeps_pairs_that_choose_each_other_best_first() -> None:
    probabilities = torch.tensor([[[0.1, 0.7, 0.0], [0.2, 0.6, 0.1], [0.9, 0.0, 0.3]]])

    found = mutual_best(probabilities.log())

    assert found.index0.tolist() == [2, 0]
    assert found.index1.tolist() == [0, 1]
    torch.testing.assert_close(found.scores, torch.tensor([0.9, 0.7]))


def test_equal_scores_are_ordered_by_index_and_paired_once() -> None:
    found = mutual_best(torch.zeros(2, 3, 4))

    assert found.item.tolist() == [0, 1]
    assert found.index0.tolist() == [0, 0]
    assert found.index1.tolist() == [0, 0]
    ordered = mutual_best(torch.eye(50)[None].log())
    assert ordered.index0.tolist() == list(range(50))


def test_the_threshold_is_exclusive_and_masked_points_have_no_partner() -> None:
    log_scores = torch.eye(3).log()[None].repeat(2, 1, 1)

    assert len(mutual_best(log_scores, 1.0).scores) == 0
    mask0 = torch.tensor([[True, False, True], [True, True, True]])
    mask1 = torch.tensor([[True, True, True], [False, True, True]])
    indices, scores = mutual_best(log_scores, 0.5, mask0, mask1).of(0)
    assert indices.tolist() == [[0, 0], [2, 2]]
    assert scores.tolist() == [1, 1]
    assert mutual_best(log_scores, 0.5, mask0, mask1).of(1)[0].tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (0, 3, 3)])
def test_nothing_to_choose_from_gives_no_pairs(shape: tuple[int, ...]) -> None:
    assert len(mutual_best(torch.zeros(shape)).item) == 0


def test_swapping_the_images_swaps_the_matches() -> None:
    log_scores = sinkhorn(random_scores(1, 20, 30, scale=3), ONE, 50).log_scores

    forward, backward = mutual_best(log_scores).of(0), mutual_best(log_scores.mT).of(0)

    torch.testing.assert_close(backward[0].flip(1), forward[0])
    torch.testing.assert_close(backward[1], forward[1])


def test_an_assignment_gives_its_real_pairs() -> None:
    found = sinkhorn(random_scores(1, 3, 2), ONE, 5)

    assert isinstance(found, Assignment)
    assert found.log_scores.shape == (1, 3, 2)
