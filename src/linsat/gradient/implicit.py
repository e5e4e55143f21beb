r"""Gradients: x and the duals as implicit functions of every number of the statement.

At the solution r(lambda, theta) = 0 on the rows F whose multiplier lies strictly inside its bounds; the others stay at
their bound. So for a loss L(x, lambda), with H the derivative of r and D = dx/du,

    H_FF q = (A D dL/dx + dL/dlambda)_F,       dL/dtheta = <dL/dx, dx/dtheta> - <q, dr/dtheta>   at lambda_F held.

A bound that depends on theta, the price of a soft row that is broken, takes its multiplier along: x, r and the duals
depend on it like on any other number.

Forward mode is the same linear map, transposed (`linsat.gradient.rebuilt.push_forward`): one solve with H_FF as well.

No iterate is kept: memory is O(variables + rows^2) per instance, whatever the number of steps. The rule holds for
scores, coefficients, right-hand sides, bounds, prices and the numbers of the objective alike. The native core has it in
closed form (native/pull_back.h); here it is on arrays, and itself differentiable.

Kinks. Where a row is tight with dual zero, or a variable sits at a bound with u there, x has one-sided derivatives
only. The row then counts as idle and the variable as fixed: the derivative is the one on the side where both stay so.

An instance that was not solved has no gradient: its share of every gradient, and its tangent, is zero, so that a loss
which masks it trains on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from linsat._forks import one_thread_after_a_fork
from linsat._transforms import forward_mode, transforming
from linsat.backends.triton import TritonBackend
from linsat.call import Call
from linsat.compile.problem import Problem, Tensor
from linsat.gradient.exact_solve import solve_exactly
from linsat.gradient.operator import Arguments, apply
from linsat.gradient.options import describe
from linsat.native import tensors as native
from linsat.native.layout import NativeLayout
from linsat.objectives import Objective
from linsat.plan import Answer, Numbers, Plan
from linsat.status import Status

_TRITON = TritonBackend()
_NUMBERS = len(Numbers._fields)


def point(call: Call, scores: Tensor) -> Tensor:
    """x for scores (batch..., l), in their shape and dtype, with gradients to every tensor that wants them."""
    if call.traced or transforming() or forward_mode():
        return _like(apply(_arguments(call, scores)).x, scores)
    learned = _learned(call) if torch.is_grad_enabled() else ()
    if learned or (scores.requires_grad and torch.is_grad_enabled()):
        tensors = _tensors(call) if learned else ()
        return Projection.apply(call, (learned, None), scores, *(tensors[i] for i in learned))
    return _like(call.solve(_flat(scores)).x, scores)


def point_and_duals(call: Call, scores: Tensor) -> Answer:
    """The same with the duals, which have gradients too, and how each instance ended; x as in `point`."""
    if call.traced or transforming() or forward_mode():
        found = apply(_arguments(call, scores))
        return Answer(found.x, found.duals, torch.stack([found.codes, found.steps, found.solved_by]), found.decided)
    learned = _learned(call) if torch.is_grad_enabled() else ()
    if learned or (scores.requires_grad and torch.is_grad_enabled()):
        tensors = _tensors(call)
        solved: list[Answer] = []
        x, duals = Projection.apply(call, (learned, solved), scores, *(tensors[i] for i in learned))
        return replace(solved[0], x=x, duals=duals)
    return call.solve(_flat(scores))


def _tensors(call: Call) -> tuple[Tensor, ...]:
    """Everything but the scores that may carry a gradient."""
    return *call.numbers, *call.objective.parameters().values()


def _learned(call: Call) -> tuple[int, ...]:
    """Positions among these of those that carry a gradient."""
    if call.plan.constant and not any(number.requires_grad for number in call.objective.parameters().values()):
        return ()
    return tuple([i for i, tensor in enumerate(_tensors(call)) if tensor.requires_grad])


def _arguments(call: Call, scores: Tensor) -> Arguments:
    """The call, as the operator takes it."""
    plan = call.plan
    text = describe(
        call.objective,
        plan.solver,
        on_failure=call.on_failure,
        constant=plan.constant,
        names=plan.constraints.given_names,
    )
    pattern = [*plan.pattern.on(plan.device)]
    numbers, parameters = [*call.numbers], [*call.objective.parameters().values()]
    return Arguments(_flat(scores), pattern, numbers, parameters, call.start, text)


class Projection(torch.autograd.Function):
    """(scores, learned tensors) -> x and, if asked for, duals: outside of function transforms, where it costs least.

    Views and conversions of scores and x happen inside, where torch does not record them.
    """

    @staticmethod
    def forward(
        ctx: Any, call: Call, how: tuple[tuple[int, ...], list[Answer] | None], *given: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        ctx.learned, solved = how
        scores = given[0]
        answer = call.solve(_flat(scores))
        ctx.call, ctx.decided, ctx.counts, ctx.stated = call, answer.decided, answer.counts, answer.stated
        ctx.save_for_backward(*given, answer.duals)
        ctx.set_materialize_grads(False)
        x = _like(answer.x, scores)
        if solved is None:
            return x
        solved.append(answer)
        return x, answer.duals

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        scores, *learned, duals = ctx.saved_tensors
        grad_x, grad_duals = grads if len(grads) == 2 else (grads[0], None)
        if ctx.stated is not None and not torch.is_grad_enabled() and not _transformed(grad_x, grad_duals):
            # By far the most frequent case, with nothing in its way: the core has the numbers already.
            wanted: list[Tensor | None] = [None] * (_NUMBERS + len(ctx.call.objective.parameters()))
            for position, tensor, wants in zip(ctx.learned, learned, ctx.needs_input_grad[3:], strict=True):
                wanted[position] = tensor if wants else None
            layout = ctx.call.plan.layout()
            to_scores, others = native.pull_back(
                layout, ctx.stated, _flat(scores), duals, ctx.counts, ctx.decided, grad_x, grad_duals, wanted
            )
            return None, None, to_scores.view(scores.shape), *(others[i] for i in ctx.learned)
        if torch.is_grad_enabled() and len(grads) == 1:  # for second derivatives the duals are functions of all too
            known = (ctx.learned, ctx.decided, ctx.counts, duals)
            duals = Duals.apply(ctx.call, known, scores, *learned)
        return _pull_back(ctx, (scores, *learned), duals, grad_x, grad_duals)


class Duals(torch.autograd.Function):
    """(scores, learned tensors) -> duals that are known already: `Projection` without solving."""

    @staticmethod
    def forward(ctx: Any, call: Call, known: tuple[tuple[int, ...], Tensor, Tensor, Tensor], *given: Tensor) -> Tensor:
        ctx.call, (ctx.learned, ctx.decided, ctx.counts, duals) = call, known
        copy = duals.clone()
        ctx.save_for_backward(*given, copy)
        return copy

    @staticmethod
    def backward(ctx: Any, grad_duals: Tensor) -> tuple[Tensor | None, ...]:
        *given, duals = ctx.saved_tensors
        return _pull_back(ctx, tuple(given), duals, None, grad_duals)


def _pull_back(
    ctx: Any, given: tuple[Tensor, ...], duals: Tensor, grad_x: Tensor | None, grad_duals: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients to (call, how, scores, learned tensors)."""
    call: Call = ctx.call
    scores, *learned = given
    tensors = [_flat(scores), *_tensors(call)]
    needed = [ctx.needs_input_grad[2], *[False] * (len(tensors) - 1)]
    for position, tensor, wants in zip(ctx.learned, learned, ctx.needs_input_grad[3:], strict=True):
        tensors[1 + position], needed[1 + position] = tensor, wants
    solved = Solved(call.plan, call.objective, tuple(tensors), duals, ctx.counts, ctx.decided)
    found = gradients(solved, grad_duals, None if grad_x is None else _flat(grad_x), tuple(needed))
    to_scores = None if found[0] is None else found[0].reshape(scores.shape)
    return None, None, to_scores, *(found[1 + i] for i in ctx.learned)


def _transformed(*tensors: Tensor | None) -> bool:
    return any(tensor is not None and transforming(tensor) for tensor in tensors)


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
        kept = self.plan.numbers
        # The plan knows its own numbers by identity, and what follows from them.
        if kept is not None and all(a is b for a, b in zip(own, kept, strict=True)):
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


@one_thread_after_a_fork
def gradients(
    solved: Solved, grad_duals: Tensor | None, grad_x: Tensor | None, needed: tuple[bool, ...]
) -> Sequence[Tensor | None]:
    """Gradients to scores, `Numbers` and the numbers of the objective, where needed, from those of duals and of x."""
    scores = solved.tensors[0]
    parts = grad_x, grad_duals, solved.duals
    if not torch.is_grad_enabled() and not _transformed(*parts):
        objective = solved.objective()
        core = solved.plan.native(objective, scores)
        if core is not None:
            layout, count = solved.plan.layout(), scores.shape[0]
            assert isinstance(layout, NativeLayout)
            stated = solved.plan.stated(solved.numbers, objective, count)
            wanted = [t if wants else None for t, wants in zip(solved.tensors[1:], needed[1:], strict=True)]
            to_scores, others = native.pull_back(
                layout, stated, scores, solved.duals, solved.counts, solved.decided, grad_x, grad_duals, wanted
            )
            return to_scores, *others
    return _on_arrays(solved.usable(), grad_duals, grad_x, needed)


def _on_arrays(
    solved: Solved, grad_duals: Tensor | None, grad_x: Tensor | None, needed: tuple[bool, ...]
) -> Sequence[Tensor | None]:
    """The same in torch operations, each of which may be differentiated again."""
    problem = solved.problem()
    given = solved.masked(torch.zeros_like(problem.scores) if grad_x is None else grad_x)
    to_duals = torch.zeros_like(solved.duals) if grad_duals is None else solved.masked(grad_duals)
    plain = not torch.is_grad_enabled() and not any(map(transforming, (given, to_duals, solved.duals)))
    if plain and _TRITON.supports(problem) is None:
        codes = solved.counts if solved.counts.dim() == 1 else solved.counts[0]
        scaled = None if grad_duals is None else to_duals / problem.scale
        q = _TRITON.vjp(problem, solved.duals * problem.scale, given, codes=codes, grad_mu=scaled).q
    else:
        q = adjoint(problem, solved.duals, given, to_duals)
    pull_back: Callable[..., Any] = torch.func.vjp(solved.explicit, *solved.tensors)[1]
    return pull_back((given, -q, to_duals))


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
