r"""Gradients: x and the duals as implicit functions of every number of the problem.

At the solution r(mu, theta) = 0 on the rows F whose dual lies strictly inside its bounds; the other duals stay at their
bound. So for a loss L(x, mu), with H = dr/dmu the Hessian of the potential and D = dx/du,

    H_FF q = (A D dL/dx + dL/dmu)_F,          dL/dtheta = <dL/dx, dx/dtheta> - <q, dr/dtheta>   at mu held.

No iterate is kept: memory is O(variables + rows^2) per instance, whatever the number of steps. The rule holds for
scores, coefficients, right-hand sides, bounds and the numbers of the objective alike, and is itself differentiable.

Kinks. Where a row is tight with dual zero, or a variable sits at a bound with u there, x has one-sided derivatives only.
The row then counts as idle and the variable as fixed: the derivative is the one on the side where both stay so.

An instance that was not solved has no gradient: its share of every gradient is zero, so that a loss which masks it
trains on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from linsat._transforms import transforming
from linsat.backends.cpu_kernel import KernelBackend
from linsat.compile.problem import Presolved, Problem, StandardForm, Tensor
from linsat.objectives import Objective
from linsat.solvers.linear_solve import solve_exactly
from linsat.solvers.result import SolverResult
from linsat.status import Status

_KERNEL = KernelBackend()
_FORM = 8  # tensors of a standard form
_RESULT = tuple(f.name for f in fields(SolverResult))


@dataclass(frozen=True)
class Call:
    """What one projection needs besides tensors that may carry gradients."""

    form: StandardForm  # whose pattern (not numbers) is used
    objective: Objective  # likewise
    solve: Callable[[StandardForm, Tensor, Objective], tuple[SolverResult, Presolved]]

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

    def problem(self, tensors: tuple[Tensor, ...], presolved: Presolved) -> Problem:
        form, scores, objective = self.parts(tensors)
        return form.problem(scores, objective, presolved)


def differentiable(call: Call, scores: Tensor) -> tuple[SolverResult, Presolved]:
    """Solve for scores (N, l), with gradients of x and the duals to every tensor that wants them."""
    found = Projection.apply(call, scores, *call.tensors())
    return SolverResult(*found[: len(_RESULT)]), Presolved(*found[len(_RESULT) :])


class Projection(torch.autograd.Function):
    """(scores, standard form, objective) -> fields of the result, fields of what presolve decided."""

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        result, presolved = call.solve(*call.parts(tensors))
        return *vars(result).values(), *vars(presolved).values()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        call, *tensors = inputs
        mu, _, codes = output[:3]
        ctx.call = call
        ctx.save_for_backward(*tensors, mu, codes, *output[len(_RESULT) :])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[2:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        count = 1 + _FORM + len(ctx.call.objective.parameters())
        saved = ctx.saved_tensors
        tensors, mu, codes, presolved = saved[:count], saved[count], saved[count + 1], Presolved(*saved[count + 2 :])
        problem = ctx.call.problem(tensors, presolved)
        grad_mu, grad_x = grads[0], grads[1]
        if grad_x is not None and not torch.is_grad_enabled() and _kernel_takes(problem, grad_x, grad_mu):
            found = _by_kernel(problem, (mu, codes), grad_x, grad_mu, ctx.needs_input_grad[2:])
            if found is not None:
                return None, *found
        solved = (codes == Status.CONVERGED.code)[:, None]
        grad_x = torch.zeros_like(problem.scores) if grad_x is None else torch.where(solved, grad_x, 0.0)
        grad_mu = None if grad_mu is None else torch.where(solved, grad_mu, 0.0)
        q = adjoint(problem, mu, grad_x, grad_mu)
        scores_only = grad_mu is None and not any(ctx.needs_input_grad[2:])
        if scores_only and not torch.is_grad_enabled() and not transforming(grad_x):
            return None, _to_scores(problem, mu, grad_x, q), *[None] * (count - 1)

        def explicit(*tensors: Tensor) -> tuple[Tensor, Tensor]:
            """x and residual as functions of everything but the duals."""
            here = ctx.call.problem(tensors, presolved)
            x = here.point(here.adjusted(mu))
            return x, here.residual(x, here.slack_shares(mu))

        pull_back: Callable[..., Any] = torch.func.vjp(explicit, *tensors)[1]
        return None, *pull_back((grad_x, -q))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Call, *tensors: Tensor) -> tuple[Any, Any]:
        """Mapped instances join the ordinary batch: the solver sees one batch of mapped x instances."""
        _, *dims = in_dims
        mapped = info.batch_size
        count = (tensors[0] if dims[0] is None else tensors[0].movedim(dims[0], 0)[0]).shape[0]

        def join(tensor: Tensor, dim: int | None) -> Tensor:
            if dim is None and tensor.shape[0] == 1 and tensor is not tensors[0]:
                return tensor
            front = tensor.expand(mapped, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            return front.expand(mapped, count, *front.shape[2:]).reshape(mapped * count, *front.shape[2:])

        outputs = Projection.apply(call, *(join(t, dim) for t, dim in zip(tensors, dims, strict=True)))
        whole = mapped * count
        split = [t.reshape(mapped, count, *t.shape[1:]) if t.shape[0] == whole else t for t in outputs]
        return tuple(split), tuple(0 if t.shape[0] == whole else None for t in outputs)


# Positions of what has a closed form among the tensors behind the scores.
_RHS, _SLACK, _PARAMETER = 3, 4, _FORM
_CLOSED = {_RHS, _SLACK, _PARAMETER}


def _kernel_takes(problem: Problem, grad_x: Tensor, grad_mu: Tensor | None) -> bool:
    return _KERNEL.supports(problem) is None and not transforming(grad_x) and not transforming(grad_mu)


def _by_kernel(
    problem: Problem, solved: tuple[Tensor, Tensor], grad_x: Tensor, grad_mu: Tensor | None, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...] | None:
    """The gradients by the kernel, where only scores, right-hand sides, slacks and the objective's number need them."""
    wanted = {i for i, wants in enumerate(needed) if wants}
    if not wanted <= _CLOSED:
        return None
    mu, codes = solved
    pulled = _KERNEL.vjp(problem, mu, grad_x, codes=codes, grad_mu=grad_mu, parameter=_PARAMETER in wanted)
    found: list[Tensor | None] = [None] * (1 + len(needed))
    found[0] = pulled.scores
    if _RHS in wanted or _SLACK in wanted:
        to_rhs = pulled.q / problem.scale
        found[1 + _RHS] = _sum_to(to_rhs, problem.rhs)
        if _SLACK in wanted:
            found[1 + _SLACK] = _sum_to(-to_rhs * problem.slack_shares(mu), problem.slack)
    if pulled.parameter is not None:
        found[1 + _PARAMETER] = _sum_to(pulled.parameter, next(iter(problem.objective.parameters().values())))
    return tuple(found)


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


def _to_scores(problem: Problem, mu: Tensor, grad_x: Tensor, q: Tensor) -> Tensor:
    """dL/dy alone, by two products."""
    u = problem.adjusted(mu)
    slope = torch.where(problem.presolved.free, problem.objective.slope(u, problem.lower, problem.upper), 0.0)
    found = slope * (grad_x - problem.rows.rmatvec(q / problem.scale))
    return problem.objective.linear(found)
