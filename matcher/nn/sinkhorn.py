"""Assign by optimal transport: Sinkhorn's iterations, with a dustbin for points without partner.

The scores of M × N pairs get one more row and column, the dustbin, whose every score is one learned
number. The assignment is the one matrix P = exp(scores + f + g), f a number a row and g a number a
column, in which each real row and column sums to 1, the dustbin's row to N and its column to M: a
point has a partner or lies in the dustbin.

`sinkhorn` is the one to use: it scales one matrix, and its gradient is that of the fixed point.
`sinkhorn_log` is the plain reference, differentiable through all its steps.

Source: Sarlin et al., SuperGlue, CVPR 2020, section 3.2; Cuturi, Sinkhorn Distances, NeurIPS 2013;
Schmitzer, SIAM J. Sci. Comput. 41(3), 2019 (absorption); Luise et al., NeurIPS 2018 (gradient).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from matcher.shapes import check_shape

LOWEST = -1e30  # stands for log 0 where arithmetic goes on: unlike -inf it never makes a NaN
SPAN = 10  # scaling steps between two looks at the range: a look waits for the GPU
SAFE_LOG = 20.0  # scalings stay within exp(-20) and exp(20), so sums within 1e-9 and 1e9
TINY = 1e-30  # of the matrix, what is left out: invisible in such sums
NEGLIGIBLE_LOG = -80.0  # below the logarithm of that: what is less, is computed as this
SOLVER_STEPS = 200  # at most, for the linear system of the gradient


@dataclass(frozen=True, eq=False)
class Assignment:
    """How much of each point of image 0 goes to each point of image 1, or to the dustbin.

    Attributes:
        log_assignment: (B, M + 1, N + 1) natural logarithm of P, the dustbins last; -inf in rows
            and columns that are masked. float32, or float64 where the scores were.
        log_rows: (B, M + 1) logarithm of the sums that the rows should have: 0 for real points,
            LOWEST where masked.
    """

    log_assignment: Tensor
    log_rows: Tensor

    @property
    def log_scores(self) -> Tensor:
        """The (B, M, N) real pairs, without dustbins."""
        return self.log_assignment[:, :-1, :-1]

    @property
    def residual(self) -> Tensor:
        """The (B,) share of all mass that lies in the wrong row; columns, scaled last, are exact.

        It falls with every step and is 0 at convergence.
        """
        wanted = self.log_rows.exp()
        error = (self.log_assignment.exp().sum(2) - wanted).abs().sum(1)
        return error / 2 / wanted.sum(1).clamp_min(1)  # misplaced, it lacks somewhere else too


@dataclass(frozen=True, eq=False)
class _Problem:
    """Scores with dustbins, and the logarithms of the sums; LOWEST marks what takes no part."""

    log_kernel: Tensor  # (B, M + 1, N + 1)
    log_rows: Tensor  # (B, M + 1)
    log_columns: Tensor  # (B, N + 1)


def sinkhorn(
    scores: Tensor,
    dustbin: Tensor,
    steps: int,
    mask0: Tensor | None = None,
    mask1: Tensor | None = None,
) -> Assignment:
    """Assign points to points by optimal transport with a dustbin.

    A score a point for lying in the dustbin, d (B, M) and e (B, N), needs nothing more: subtract
    `d[:, :, None] + e[:, None]` from the scores and let the dustbin be 0. A number added to a whole
    row or column does not change the assignment.

    The gradient is that of the converged assignment, exact for the sums that were reached; after
    too few steps (see `Assignment.residual`) it differs from the gradient of the steps. It is found
    from the result alone, so memory does not depend on the number of steps.

    Args:
        scores: (B, M, N) similarities; half precision is computed in float32. M or N may be 0.
        dustbin: () score of lying in the dustbin.
        steps: How often rows, then columns, are scaled to their sums.
        mask0: (B, M), True for real points, False for padding, whose scores are ignored, even NaN.
        mask1: (B, N) likewise for image 1.

    Returns:
        The assignment. A side without points leaves all of the other in the dustbin.

    Raises:
        ValueError: A shape is wrong or there is no step.
    """
    _check(scores, dustbin, steps, mask0, mask1)
    with torch.autocast(scores.device.type, enabled=False):
        problem = _problem(scores.detach(), dustbin.detach(), mask0, mask1)
        log_assignment: Tensor = _Sinkhorn.apply(scores, dustbin, problem, steps)  # type: ignore[no-untyped-call]
        return _finish(log_assignment, problem)


def sinkhorn_log(
    scores: Tensor,
    dustbin: Tensor,
    steps: int,
    mask0: Tensor | None = None,
    mask1: Tensor | None = None,
) -> Assignment:
    """Do what `sinkhorn` does by the plain iteration on logarithms: slow, the reference.

    Its gradient is that of the steps, all of which are held in memory.
    """
    _check(scores, dustbin, steps, mask0, mask1)
    with torch.autocast(scores.device.type, enabled=False):
        problem = _problem(scores, dustbin, mask0, mask1)
        columns = torch.zeros_like(problem.log_columns)
        rows, columns = _log_steps(problem, columns, steps)
        return _finish(_assign(problem.log_kernel, rows, columns), problem)


def _check(
    scores: Tensor, dustbin: Tensor, steps: int, mask0: Tensor | None, mask1: Tensor | None
) -> None:
    sizes = check_shape("scores", scores, "B M N")
    check_shape("dustbin", dustbin, "")
    if mask0 is not None:
        check_shape("mask0", mask0, "B M", sizes)
    if mask1 is not None:
        check_shape("mask1", mask1, "B N", sizes)
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")


def _problem(
    scores: Tensor, dustbin: Tensor, mask0: Tensor | None, mask1: Tensor | None
) -> _Problem:
    """Add the dustbins and count the points."""
    B, M, N = scores.shape
    dtype = torch.promote_types(scores.dtype, torch.float32)
    everyone = scores.new_ones(B, max(M, N), dtype=torch.bool)
    real0 = everyone[:, :M] if mask0 is None else mask0
    real1 = everyone[:, :N] if mask1 is None else mask1
    count0, count1 = real0.sum(1, keepdim=True), real1.sum(1, keepdim=True)
    there0 = torch.cat([real0, count1 > 0], 1)  # (B, M+1); a dustbin with nothing to hold is absent
    there1 = torch.cat([real1, count0 > 0], 1)  # (B, N+1)
    kernel = dustbin.to(scores.device, dtype).expand(B, M + 1, N + 1).clone()
    kernel[:, :M, :N] = scores.to(dtype)
    if not (there0.all() and there1.all()):
        kernel = kernel.masked_fill(~(there0[:, :, None] & there1[:, None]), LOWEST)
    return _Problem(kernel, _log_sums(there0, count1, dtype), _log_sums(there1, count0, dtype))


def _log_sums(there: Tensor, dustbin_sum: Tensor, dtype: torch.dtype) -> Tensor:
    """Give real points the sum 1, the dustbin its own: (B, M + 1) logarithms."""
    real = torch.zeros_like(there[:, :-1], dtype=dtype)
    return torch.cat([real, dustbin_sum.to(dtype).log()], 1).masked_fill(~there, LOWEST)


def _finish(log_assignment: Tensor, problem: _Problem) -> Assignment:
    """Write -inf where nothing takes part."""
    absent0, absent1 = problem.log_rows == LOWEST, problem.log_columns == LOWEST
    if absent0.any() or absent1.any():
        absent = absent0[:, :, None] | absent1[:, None]
        log_assignment = log_assignment.masked_fill(absent, -torch.inf)
    return Assignment(log_assignment, problem.log_rows)


def _assign(log_kernel: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return (log_kernel + rows[:, :, None]).add_(columns[:, None])  # (B, M+1, N+1)


def _log_steps(problem: _Problem, columns: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Scale rows, then columns, `steps` times: potentials f (B, M + 1) and g (B, N + 1)."""
    rows = torch.zeros_like(problem.log_rows)
    for _ in range(steps):
        rows = _potential(problem.log_rows, problem.log_kernel + columns[:, None], 2)
        columns = _potential(problem.log_columns, problem.log_kernel + rows[:, :, None], 1)
    return rows, columns


def _potential(log_sums: Tensor, log_terms: Tensor, axis: int) -> Tensor:
    """Find what to add so that the terms sum as they should; 0 for what takes no part."""
    missing = log_sums - _log_sum_exp(log_terms, axis)
    return missing.masked_fill(log_sums == LOWEST, 0)


def _log_sum_exp(log_terms: Tensor, axis: int) -> Tensor:
    """Do what `torch.logsumexp` does without denormals, which take it ten times as long."""
    top = log_terms.detach().amax(axis, keepdim=True)
    sums = (log_terms - top).clamp_min(NEGLIGIBLE_LOG).exp().sum(axis)
    return sums.log() + top.squeeze(axis)


class _Kernel:
    """The matrix exp(scores + f + g), its potentials f and g absorbed, and its further scaling."""

    def __init__(self, problem: _Problem, rows: Tensor, columns: Tensor) -> None:
        scaled = _assign(problem.log_kernel, rows, columns)
        self.matrix = _flushed(scaled.clamp_min_(NEGLIGIBLE_LOG).exp_())
        self.absent0 = (problem.log_rows == LOWEST).to(self.matrix)[..., None]
        self.absent1 = (problem.log_columns == LOWEST).to(self.matrix)[..., None]
        self.sums0 = problem.log_rows.exp()[..., None] + self.absent0
        self.sums1 = problem.log_columns.exp()[..., None] + self.absent1

    def scale(self, scale1: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Scale rows, then columns, `steps` times, from a scaling of the columns (B, N + 1).

        What is absent has the sum 1 and the product 1: its scaling stays 1.
        """
        scale1 = scale1[..., None]
        for _ in range(steps):
            scale0 = self.sums0 / torch.baddbmm(self.absent0, self.matrix, scale1)
            scale1 = self.sums1 / torch.baddbmm(self.absent1, self.matrix.mT, scale0)
        return scale0[..., 0], scale1[..., 0]


def _scaling_steps(problem: _Problem, steps: int) -> tuple[Tensor, Tensor]:
    """Do what `_log_steps` does from zero with matrix-vector products on one matrix.

    The matrix absorbs potentials; the scalings of its rows and columns are what is new since. When
    these leave the range in which floats are safe, the span is done again on logarithms, and
    absorbed.
    """
    rows, columns = _log_steps(problem, torch.zeros_like(problem.log_columns), 1)
    kernel = _Kernel(problem, rows, columns)
    log_scale0, log_scale1 = torch.zeros_like(rows), torch.zeros_like(columns)
    for done in range(1, steps, SPAN):
        span = min(SPAN, steps - done)
        new0, new1 = (scale.log() for scale in kernel.scale(log_scale1.exp(), span))
        if _is_safe(new0) and _is_safe(new1):
            log_scale0, log_scale1 = new0, new1
            continue
        rows, columns = _log_steps(problem, columns + log_scale1, span)
        kernel = _Kernel(problem, rows, columns)
        log_scale0, log_scale1 = torch.zeros_like(rows), torch.zeros_like(columns)
    return rows + log_scale0, columns + log_scale1


def _flushed(matrix: Tensor) -> Tensor:
    """Write 0 for what is left out, in place: denormals are ten times slower to multiply."""
    return matrix.masked_fill_(matrix < TINY, 0)


def _is_safe(log_scale: Tensor) -> bool:
    """Say whether scalings are finite and moderate; NaN is neither."""
    return bool((log_scale.abs() < SAFE_LOG).all())


class _Sinkhorn(torch.autograd.Function):
    """The scaling form, with the gradient of its fixed point."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, dustbin: Tensor, problem: _Problem, steps: int) -> Tensor:
        rows, columns = _scaling_steps(problem, steps)
        log_assignment = _assign(problem.log_kernel, rows, columns)
        ctx.save_for_backward(log_assignment)
        ctx.dtypes = scores.dtype, dustbin.dtype
        return log_assignment

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (log_assignment,) = ctx.saved_tensors
        with torch.autocast(gradient.device.type, enabled=False):
            inner = _implicit_gradient(_flushed(log_assignment.exp()), gradient)  # (B, M+1, N+1)
        of_dustbin = inner[:, -1].sum() + inner[:, :-1, -1].sum()
        return inner[:, :-1, :-1].to(ctx.dtypes[0]), of_dustbin.to(ctx.dtypes[1]), None, None


def _implicit_gradient(assignment: Tensor, gradient: Tensor) -> Tensor:
    """Pull a gradient of log P back to the scores, dustbins included, at the fixed point.

    With log P = scores + f + g and the sums of P held, a change of the scores changes f and g by
    the solution of a linear system. Its adjoint is: gradient - P * (x + y), where x and y solve
    sums0 * x + P y = the row sums of the gradient, Pᵀ x + sums1 * y = its column sums.
    """
    inverse0, inverse1 = _inverse(assignment.sum(2)), _inverse(assignment.sum(1))
    wanted0, wanted1 = gradient.sum(2), gradient.sum(1)
    y = _solve(assignment, inverse0, inverse1, wanted1 - _times(assignment.mT, inverse0 * wanted0))
    x = inverse0 * (wanted0 - _times(assignment, y))
    inner = torch.addcmul(gradient, assignment, x[:, :, None], value=-1)
    return inner.addcmul_(assignment, y[:, None], value=-1)


def _solve(assignment: Tensor, inverse0: Tensor, inverse1: Tensor, wanted: Tensor) -> Tensor:
    """Solve (sums1 - Pᵀ P / sums0) y = wanted by conjugate gradients, scaled by 1 / sums1.

    The matrix is singular: all y (B, N + 1) may grow by one number, and x shrinks by it. The share
    of the system that is left unsolved goes with the type's precision: 2e-5 for float32.
    """
    tolerance = torch.finfo(wanted.dtype).eps ** (4 / 3)  # of squares
    sums1 = assignment.sum(1)
    y, rest = torch.zeros_like(wanted), wanted
    direction = inverse1 * rest
    size = start = (rest * direction).sum(1, keepdim=True)  # (B, 1)
    for _ in range(SOLVER_STEPS):
        active = size > tolerance * start  # (B, 1)
        if not active.any():
            break
        image = sums1 * direction - _times(assignment.mT, inverse0 * _times(assignment, direction))
        bend = (direction * image).sum(1, keepdim=True)
        stride = torch.where(active & (bend > 0), size / bend, 0)
        y, rest = y + stride * direction, rest - stride * image
        scaled = inverse1 * rest
        previous, size = size, torch.where(active, (rest * scaled).sum(1, keepdim=True), size)
        direction = scaled + torch.where(active, size / previous, 0) * direction
    return y


def _inverse(sums: Tensor) -> Tensor:
    return torch.where(sums > 0, 1 / sums, 0)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.bmm(matrix, vector[..., None])[..., 0]
