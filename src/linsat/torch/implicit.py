r"""Gradients: x and the duals as implicit functions of every number of the statement.

At the solution r(lambda, theta) = 0 on the rows F whose multiplier lies strictly inside its bounds; the others stay at
their bound. So for a loss L(x, lambda), with H the derivative of r and D = dx/du,

    H_FF q = (A D dL/dx + dL/dlambda)_F,       dL/dtheta = <dL/dx, dx/dtheta> - <q, dr/dtheta>   at lambda_F held.

A bound that depends on theta, the price of a soft row that is broken, takes its multiplier along: x, r and the duals
depend on it like on any other number.

Forward mode is the same linear map, transposed (`linsat.torch.rebuilt.push_forward`): one solve with H_FF as well.

No iterate is kept: memory is O(variables + rows^2) per instance, whatever the number of steps. The rule holds for
scores, coefficients, right-hand sides, bounds, prices and the numbers of the objective alike. The native core has it in
closed form (native/pull_back.h); here it is on arrays, and itself differentiable.

Kinks. Where a row is tight with dual zero, or a variable sits at a bound with u there, x has one-sided derivatives
only. The row then counts as idle and the variable as fixed: the derivative is the one on the side where both stay so.

An instance that was not solved has no gradient: its share of every gradient, and its tangent, is zero, so that a loss
which masks it trains on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from linsat._array_namespace import to_numpy
from linsat._transforms import transforming
from linsat.arrays.interior import quadratic
from linsat.arrays.linear_algebra import MOST_DENSE_ROWS, conjugate_gradients, is_dense, solve_refined
from linsat.arrays.problem import Curvature, Problem, Tensor
from linsat.arrays.saddle import explicit
from linsat.errors import ConstraintError
from linsat.native.batch import fits_dense
from linsat.objectives import Objective
from linsat.objectives.quadratic import Matrix
from linsat.plan import Numbers, Plan
from linsat.status import Status
from linsat.torch.call import tensors_of

_NUMBERS = len(Numbers._fields)
_STEPS_EXACT = 4000
_EXACT = 1e-13


@dataclass(frozen=True)
class Solved:
    """What a backward pass starts from."""

    plan: Plan
    kind: Objective  # the numbers are among the tensors
    tensors: tuple[Tensor, ...]  # scores, `Numbers`, and those of the objective
    duals: Tensor
    counts: Tensor  # (N,) codes, or (3, N), which begin with them
    decided: Tensor
    own: bool = False  # whether what was decided is each instance's own

    @property
    def numbers(self) -> Numbers:
        own = self.tensors[1 : 1 + _NUMBERS]
        if self.plan.numbers is not None:
            kept = tensors_of(self.plan, self.plan.numbers, own[0].device)
            # The plan knows its own numbers by identity, and what follows from them.
            if all(a is b for a, b in zip(own, kept, strict=True)):
                return kept
        return Numbers(*own)

    def objective(self) -> Objective:
        names = self.kind.parameters()
        own = dict(zip(names, self.tensors[1 + _NUMBERS :], strict=True))
        if all(given is names[name] for name, given in own.items()):
            return self.kind
        return replace(self.kind, **own)  # type: ignore[type-var]

    def problem(self) -> Problem:
        problem = self.plan.problem(self.numbers, self.tensors[0], self.objective(), self.decided, own=self.own)
        return problem.in_double()

    def usable(self) -> Solved:
        """With scores 0 where an instance was not solved: they may be NaN, and times a gradient of zero stay so."""
        scores, *others = self.tensors
        return replace(self, tensors=(torch.where(self._converged(), scores, 0.0), *others))

    def masked(self, gradient: Tensor) -> Tensor:
        """Zero for instances that were not solved; in float64."""
        return torch.where(self._converged(), gradient, 0.0).to(self.duals.dtype)

    def _converged(self) -> Tensor:
        codes = self.counts if self.counts.dim() == 1 else self.counts[0]
        return (codes == Status.CONVERGED.code)[:, None]

    def explicit(self, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x, residual and duals as functions of everything but the duals strictly inside their bounds."""
        here = replace(self, tensors=tensors).problem()
        mu = here.follow_prices(self.duals * here.scale)
        x = here.point(here.adjusted(mu))
        return x, here.residual(x, here.slack_shares(mu)), mu / here.scale


def on_arrays(
    solved: Solved, grad_duals: Tensor | None, grad_x: Tensor | None, needed: tuple[bool, ...]
) -> Sequence[Tensor | None]:
    """Gradients to every tensor where needed, in torch operations, each of which may be differentiated again."""
    solved = solved.usable()
    given = solved.masked(torch.zeros_like(solved.tensors[0]) if grad_x is None else grad_x)
    to_duals = torch.zeros_like(solved.duals) if grad_duals is None else solved.masked(grad_duals)
    if isinstance(solved.kind, Matrix):
        return _of_matrix(solved, solved.kind, given, to_duals, needed)
    q = adjoint(solved.problem(), solved.duals, given, to_duals)
    pull_back: Callable[..., Any] = torch.func.vjp(solved.explicit, *solved.tensors)[1]
    return pull_back((given, -q, to_duals))


def _of_matrix(
    solved: Solved, objective: Matrix, grad_x: Tensor, grad_duals: Tensor, needed: tuple[bool, ...]
) -> Sequence[Tensor | None]:
    """Gradients of full quadratics: on arrays that torch follows, or once, in numpy."""
    plan, tensors = solved.plan, solved.tensors
    if objective.sparsity is None and fits_dense(plan.pattern.num_rows, plan.width):

        def solution(*own: Tensor) -> tuple[Tensor, Tensor]:
            here = objective.changed(lambda _: own[-1])
            assert isinstance(here, Matrix)
            point = solved.duals, solved.decided, solved._converged()
            return explicit(plan, here, own[0], Numbers(*own[1:-1]), *point)

        pull_back: Callable[..., Any] = torch.func.vjp(solution, *tensors)[1]
        return pull_back((grad_x.to(torch.float64), grad_duals.to(torch.float64)))
    if torch.is_grad_enabled():
        raise ConstraintError(
            "second derivatives and function transforms need dense factors of P, which this set is too large for. "
            "Fix: call backward or torch.autograd.grad once, without create_graph."
        )
    arrays = [to_numpy(tensor) for tensor in tensors]
    problem = plan.problem(Numbers(*arrays[1:-1]), arrays[0].astype("float64"), objective.probe(arrays[3]), None)
    own = objective.changed(lambda _: arrays[-1])
    assert isinstance(own, Matrix)
    shapes = [tuple(tensor.shape) if wants else None for tensor, wants in zip(tensors[1:], needed[1:], strict=True)]
    duals, decided = to_numpy(solved.duals), to_numpy(solved.decided)
    x = quadratic.point(problem, own, duals, decided)
    to_scores, others = quadratic.pull_back(
        problem, own, x, duals, decided, to_numpy(grad_x), to_numpy(grad_duals), shapes
    )
    return [
        None if array is None else torch.from_numpy(array).to(like.device, like.dtype)
        for array, like in zip([to_scores, *others], tensors, strict=True)
    ]


def moving_rows(problem: Problem, duals: Tensor) -> Tensor:
    """F: the rows whose multiplier lies strictly inside its bounds, (N, k)."""
    p = problem.presolved
    inside = (duals > problem.dual_lower) & (duals < problem.dual_upper)
    return p.active & (inside | p.tight)


def adjoint(problem: Problem, duals: Tensor, grad_x: Tensor, grad_duals: Tensor) -> Tensor:
    """q, (N, k) of the scaled rows, zero outside F; differentiable in the problem and both gradients."""
    mu = duals * problem.scale
    u, z = problem.adjusted(mu), problem.slack_shares(mu)
    moving = moving_rows(problem, duals)
    curvature = problem.curvature(u, z, problem.objective, moving)
    rhs = curvature.inverse * (problem.rows.matvec(curvature.weights * grad_x) + grad_duals)
    return torch.where(moving, solve_exactly(curvature, rhs), 0.0)


def solve_exactly(curvature: Curvature, rhs: Tensor) -> Tensor:
    """H^{-1} rhs for rhs (N, k) in the range of H; differentiable in the problem and rhs."""
    num_rows = rhs.shape[-1]
    if is_dense(num_rows):
        return solve_refined(curvature.dense(), rhs)
    if transforming(rhs):
        raise ConstraintError(
            f"function transforms (vmap, jacrev) and forward mode (jvp, jacfwd) need a dense Hessian, which {num_rows} "
            f"rows are too many for (limit: {MOST_DENSE_ROWS}). "
            f"Fix: call backward or torch.autograd.grad once per output."
        )
    with torch.no_grad():
        solution = _by_iteration(curvature, rhs)
    return solution + _Correction.apply(rhs - curvature.product(solution), curvature)


class _Correction(torch.autograd.Function):
    """H^{-1} of a residual that is zero, and so zero; but its derivative, H^{-1} of the residual's, is not."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, curvature: Curvature) -> Tensor:
        ctx.curvature = curvature
        return torch.zeros_like(residual)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _by_iteration(ctx.curvature, grad), None


def _by_iteration(curvature: Curvature, rhs: Tensor) -> Tensor:
    tol = torch.full_like(rhs[:, 0], _EXACT)
    return conjugate_gradients(curvature.product, curvature.diagonal(), rhs, tol, _STEPS_EXACT)
