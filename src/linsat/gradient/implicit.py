r"""Gradients: x and the duals as implicit functions of every number of the problem.

At the solution r(mu, theta) = 0 on the rows F whose dual lies strictly inside its bounds; the other duals stay at their
bound. So for a loss L(x, mu), with H = dr/dmu the Hessian of the potential and D = dx/du,

    H_FF q = (A D dL/dx + dL/dmu)_F,          dL/dtheta = <dL/dx, dx/dtheta> - <q, dr/dtheta>   at mu_F held.

A bound that depends on theta, the price of a soft row that is broken, takes its dual along: x, r and the duals depend
on it like on any other number.

Forward mode is the same linear map, transposed (`linsat.gradient.rebuilt.push_forward`): one solve with H_FF as well.

No iterate is kept: memory is O(variables + rows^2) per instance, whatever the number of steps. The rule holds for
scores, coefficients, right-hand sides, bounds and the numbers of the objective alike, and is itself differentiable.

Kinks. Where a row is tight with dual zero, or a variable sits at a bound with u there, x has one-sided derivatives
only. The row then counts as idle and the variable as fixed: the derivative is the one on the side where both stay so.

An instance that was not solved has no gradient: its share of every gradient, and its tangent, is zero, so that a loss
which masks it trains on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from linsat._forks import one_thread_after_a_fork
from linsat._transforms import forward_mode, transforming
from linsat.backends.cpu_kernel import KernelBackend
from linsat.backends.cpu_kernel.backend import Pulled
from linsat.backends.triton import TritonBackend
from linsat.compile.problem import Presolved, Problem, StandardForm, Tensor
from linsat.gradient.exact_solve import solve_exactly
from linsat.gradient.operator import Arguments, apply
from linsat.gradient.options import describe
from linsat.objectives import Objective
from linsat.solvers.result import SolverResult
from linsat.solving import Solve
from linsat.status import Status

_FUSED = (KernelBackend(), TritonBackend())
_FORM = 8  # tensors of a standard form


@dataclass(frozen=True)
class Call:
    """What one projection needs besides tensors that may carry gradients."""

    form: StandardForm  # whose pattern (not numbers) is used
    objective: Objective  # likewise
    solve: Solve
    cache: dict[str, Any] | None = None  # of numbers that never change, see `Problem`

    def parts(self, tensors: tuple[Tensor, ...]) -> tuple[StandardForm, Tensor, Objective]:
        """Standard form, scores and objective from scores, tensors of the form and numbers of the objective."""
        if all(given is own for given, own in zip(tensors[1:], self.tensors(), strict=True)):
            return self.form, tensors[0], self.objective
        names = self.objective.parameters()
        own = dict(zip(names, tensors[1 + _FORM :], strict=True))
        objective = replace(self.objective, **own) if own else self.objective  # type: ignore[type-var]
        return self.form.with_tensors(tensors[1 : 1 + _FORM]), tensors[0], objective

    def tensors(self) -> tuple[Tensor, ...]:
        """Everything but the scores that may carry a gradient."""
        return *self.form.tensors(), *self.objective.parameters().values()

    def learned(self) -> tuple[int, ...]:
        """Positions among `tensors` of those that carry a gradient."""
        constant = self.cache is not None  # then the numbers of the form never change
        if constant and not any(number.requires_grad for number in self.objective.parameters().values()):
            return ()
        return tuple([i for i, tensor in enumerate(self.tensors()) if tensor.requires_grad])

    def arguments(self, scores: Tensor) -> Arguments:
        """The same call, as the operator takes it."""
        solve, rows, constraints = self.solve, self.form.rows, self.solve.compiled.constraints
        return Arguments(
            scores=_flat(scores),
            pattern=[rows.row, rows.col, solve.compiled.senses],
            form=list(self.form.tensors()),
            numbers=list(self.objective.parameters().values()),
            start=solve.start,
            options=describe(
                self.objective,
                solve.solver,
                on_failure=solve.on_failure,
                constant=self.cache is not None,
                names=constraints.given_names,
            ),
        )

    def problem(self, tensors: tuple[Tensor, ...], presolved: Presolved) -> Problem:
        form, scores, objective = self.parts(tensors)
        return form.problem(scores, objective, presolved, self.cache if form is self.form else None)


def point(call: Call, scores: Tensor, *, traced: bool = False) -> Tensor:
    """x for scores (batch..., l), in their shape and dtype, with gradients to every tensor that wants them."""
    if traced or transforming() or forward_mode():
        return _like(apply(call.arguments(scores)).x, scores)
    learned = call.learned() if torch.is_grad_enabled() else ()
    if learned or (scores.requires_grad and torch.is_grad_enabled()):
        tensors = call.tensors() if learned else ()
        return Projection.apply(call, (learned, None), scores, *(tensors[i] for i in learned))
    return _like(call.solve(call.form, _flat(scores), call.objective)[0].x, scores)


def point_and_duals(call: Call, scores: Tensor, *, traced: bool = False) -> SolverResult:
    """The same with the duals, which have gradients too, and how each instance ended; x as in `point`."""
    if traced or transforming() or forward_mode():
        found = apply(call.arguments(scores))
        return SolverResult(found.mu, found.x, torch.stack([found.codes, found.steps, found.solved_by]))
    learned = call.learned() if torch.is_grad_enabled() else ()
    if learned or (scores.requires_grad and torch.is_grad_enabled()):
        tensors = call.tensors()
        solved: list[SolverResult] = []
        solved_x, mu = Projection.apply(call, (learned, solved), scores, *(tensors[i] for i in learned))
        return replace(solved[0], x=solved_x, mu=mu)
    return call.solve(call.form, _flat(scores), call.objective)[0]


class Projection(torch.autograd.Function):
    """(scores, learned tensors) -> x and, if asked for, duals: outside of function transforms, where it costs least.

    Views and conversions of scores and x happen inside, where torch does not record them.
    """

    @staticmethod
    def forward(
        ctx: Any, call: Call, how: tuple[tuple[int, ...], list[SolverResult] | None], *given: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        ctx.learned, solved = how
        scores = given[0]
        result, ctx.problem = call.solve(call.form, _flat(scores), call.objective)
        ctx.call, ctx.presolved, ctx.counts = call, ctx.problem.presolved, result.counts
        ctx.save_for_backward(*given, result.mu)
        ctx.set_materialize_grads(False)
        x = _like(result.x, scores)
        if solved is None:
            return x
        solved.append(result)
        return x, result.mu

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        scores, *learned, mu = ctx.saved_tensors
        grad_x, grad_mu = grads if len(grads) == 2 else (grads[0], None)
        if torch.is_grad_enabled():
            if len(grads) == 1:  # for second derivatives the duals are functions of everything too
                known = (ctx.learned, ctx.presolved, ctx.counts, mu)
                mu = Duals.apply(ctx.call, known, scores, *learned)
        elif not learned and grad_mu is None and grad_x is not None and not transforming(grad_x):
            kernel = _kernel(ctx.problem)
            if kernel is not None:  # by far the most frequent case, with nothing in its way
                pulled = kernel.vjp(ctx.problem, mu, grad_x, codes=ctx.counts)
                return None, None, pulled.scores
        return _pull_back(ctx, (scores, *learned), mu, grad_x, grad_mu)


class Duals(torch.autograd.Function):
    """(scores, learned tensors) -> duals that are known already: `Projection` without solving."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, known: tuple[tuple[int, ...], Presolved, Tensor, Tensor], *given: Tensor
    ) -> Tensor:
        ctx.call, (ctx.learned, ctx.presolved, ctx.counts, mu) = call, known
        found = mu.clone()
        ctx.save_for_backward(*given, found)
        return found

    @staticmethod
    def backward(ctx: Any, grad_mu: Tensor) -> tuple[Tensor | None, ...]:
        *given, mu = ctx.saved_tensors
        return _pull_back(ctx, tuple(given), mu, None, grad_mu)


def _pull_back(
    ctx: Any, given: tuple[Tensor, ...], mu: Tensor, grad_x: Tensor | None, grad_mu: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients to (call, how, scores, learned tensors)."""
    scores, *learned = given
    tensors = [_flat(scores), *ctx.call.tensors()]
    needed = [ctx.needs_input_grad[2], *[False] * (len(tensors) - 1)]
    for position, tensor, wants in zip(ctx.learned, learned, ctx.needs_input_grad[3:], strict=True):
        tensors[1 + position], needed[1 + position] = tensor, wants
    solved = Solved(ctx.call, tuple(tensors), mu, ctx.counts[0], ctx.presolved)
    found = gradients(solved, grad_mu, None if grad_x is None else _flat(grad_x), tuple(needed))
    to_scores = None if found[0] is None else found[0].reshape(scores.shape)
    return None, None, to_scores, *(found[1 + i] for i in ctx.learned)


def _like(x: Tensor, scores: Tensor) -> Tensor:
    """x (N, l) in the shape and dtype of the scores."""
    if x.dim() != scores.dim():
        x = x.view(scores.shape)
    return x if x.dtype is scores.dtype else x.to(scores.dtype)


def _flat(tensor: Tensor) -> Tensor:
    """(batch..., l) as (N, l)."""
    if tensor.dim() == 2:
        return tensor
    return tensor[None] if tensor.dim() == 1 else tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


@dataclass(frozen=True)
class Solved:
    """What a backward pass starts from."""

    call: Call
    tensors: tuple[Tensor, ...]  # scores and `Call.tensors`
    mu: Tensor
    codes: Tensor
    presolved: Presolved

    def problem(self) -> Problem:
        return self.call.problem(self.tensors, self.presolved)

    def usable(self) -> Solved:
        """With scores 0 where an instance was not solved: they may be NaN, and times a gradient of zero stay so."""
        scores, *others = self.tensors
        return replace(self, tensors=(torch.where(self._converged(), scores, 0.0), *others))

    def masked(self, gradient: Tensor) -> Tensor:
        """Zero for instances that were not solved; in float64."""
        return torch.where(self._converged(), gradient, 0.0).to(self.mu.dtype)

    def _converged(self) -> Tensor:
        return (self.codes == Status.CONVERGED.code)[:, None]

    def explicit(self, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x, residual and duals as functions of everything but the duals strictly inside their bounds."""
        here = self.call.problem(tensors, self.presolved).in_double()
        mu = here.follow_prices(self.mu)
        x = here.point(here.adjusted(mu))
        return x, here.residual(x, here.slack_shares(mu)), mu


@one_thread_after_a_fork
def gradients(
    solved: Solved, grad_mu: Tensor | None, grad_x: Tensor | None, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients to scores and `Call.tensors`, where needed, from those of the duals and of x."""
    solved = solved.usable()
    problem = solved.problem()
    if grad_x is None:
        grad_x = torch.zeros_like(problem.scores)
    wanted = {i for i, wants in enumerate(needed[1:]) if wants}
    plain = not torch.is_grad_enabled() and not any(map(transforming, (grad_x, grad_mu, solved.mu)))
    kernel = _kernel(problem) if plain else None
    if kernel is not None:
        pulled = kernel.vjp(
            problem, solved.mu, grad_x, codes=solved.codes, grad_mu=grad_mu, parameter=_PARAMETER in wanted
        )
        q, grad_x = pulled.q, solved.masked(grad_x)
    else:
        pulled, grad_x = None, solved.masked(grad_x)
        q = adjoint(problem.in_double(), solved.mu, grad_x, None if grad_mu is None else solved.masked(grad_mu))
    if plain and wanted <= (_CLOSED if pulled is None else _CLOSED | {_PARAMETER}):
        to_duals = None if grad_mu is None else solved.masked(grad_mu)
        found = _closed_forms(problem.in_double(), solved.mu, grad_x, q, wanted, pulled, to_duals)
        return tuple(found.get(i - 1) for i in range(len(needed)))
    pull_back: Callable[..., Any] = torch.func.vjp(solved.explicit, *solved.tensors)[1]
    return pull_back((grad_x, -q, torch.zeros_like(solved.mu) if grad_mu is None else solved.masked(grad_mu)))


def _kernel(problem: Problem) -> KernelBackend | TritonBackend | None:
    """The fused kernel that takes the problem."""
    return next((kernel for kernel in _FUSED if kernel.supports(problem) is None), None)


# Positions among `Call.tensors` of what has a short closed form; of the objective's number the kernel knows one.
_SCORES, _VALUES, _RHS, _SLACK, _SCALE, _PARAMETER = -1, 0, 3, 4, 5, _FORM
_CLOSED = {_VALUES, _RHS, _SLACK, _SCALE}


def _closed_forms(
    problem: Problem,
    mu: Tensor,
    grad_x: Tensor,
    q: Tensor,
    wanted: set[int],
    pulled: Pulled | None,
    grad_mu: Tensor | None,
) -> dict[int, Tensor]:
    """Gradients to scores, coefficients, right-hand sides, slacks, scales and the objective's number, by position.

    With u = linear(y) + A' mu / rho, r = (A x + S z - B) / rho, which is 0 where q is not, and w = q / rho:
    dL/du = D (dL/dx - A' w), dL/dA_ij = mu_i / rho_i (dL/du)_j - w_i x_j, dL/drho_i = -mu_i / rho_i^2 (A dL/du)_i.
    The dual of a row at its price grows with rho, so that mu / rho stays.
    """
    found: dict[int, Tensor] = {}
    own = q / problem.scale
    if pulled is None or wanted & {_VALUES, _SCALE}:
        u, pushed = problem.adjusted(mu), mu / problem.scale
        to_u = _to_u(problem, u, grad_x, own)
        found[_SCORES] = problem.objective.linear(to_u)
        if _VALUES in wanted:
            found[_VALUES] = problem.rows.outer(pushed, to_u) - problem.rows.outer(own, problem.point(u))
        if _SCALE in wanted:
            moving = moving_rows(problem, mu)
            to_scale = torch.where(moving, -pushed / problem.scale * problem.rows.matvec(to_u), 0.0)
            if grad_mu is not None:
                to_scale = to_scale + torch.where(moving, 0.0, grad_mu * pushed)
            found[_SCALE] = _sum_to(to_scale, problem.scale)
    if _RHS in wanted:
        found[_RHS] = _sum_to(own, problem.rhs)
    if _SLACK in wanted:
        found[_SLACK] = _sum_to(-own * problem.slack_shares(mu), problem.slack)
    if pulled is not None:
        found[_SCORES] = pulled.scores
        if pulled.parameter is not None:
            found[_PARAMETER] = _sum_to(pulled.parameter, next(iter(problem.objective.parameters().values())))
    return found


def _sum_to(gradient: Tensor, like: Tensor) -> Tensor:
    """Summed over the instances where they share the number."""
    return gradient if gradient.shape[0] == like.shape[0] else gradient.sum(0, keepdim=True)


def moving_rows(problem: Problem, mu: Tensor) -> Tensor:
    """F: the rows whose dual lies strictly inside its bounds, (N, k)."""
    low, high = problem.dual_bounds()
    return problem.presolved.active & (mu > low) & (mu < high)


def adjoint(problem: Problem, mu: Tensor, grad_x: Tensor, grad_mu: Tensor | None) -> Tensor:
    """q, (N, k), zero outside F; differentiable in the problem and both gradients."""
    u, z = problem.adjusted(mu), problem.slack_shares(mu)
    moving = moving_rows(problem, mu)
    curvature = problem.curvature(u, z, problem.objective, moving)
    rhs = curvature.inverse * problem.rows.matvec(curvature.weights * grad_x)
    if grad_mu is not None:
        rhs = rhs + torch.where(moving, grad_mu, 0.0)
    return torch.where(moving, solve_exactly(curvature, rhs), 0.0)


def _to_u(problem: Problem, u: Tensor, grad_x: Tensor, own: Tensor) -> Tensor:
    """dL/du, with ``own`` the adjoint duals of the rows as written."""
    slope = torch.where(problem.presolved.free, problem.objective.slope(u, problem.lower, problem.upper), 0.0)
    return slope * (grad_x - problem.rows.rmatvec(own))
