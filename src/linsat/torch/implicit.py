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

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from linsat._forks import one_thread_after_a_fork
from linsat._transforms import transforming
from linsat.arrays.problem import Problem, Tensor
from linsat.native import batch as native
from linsat.native.batch import Answer
from linsat.native.layout import NativeLayout
from linsat.objectives import Objective
from linsat.objectives.quadratic import Matrix
from linsat.plan import Numbers, Plan
from linsat.status import Status
from linsat.torch import saddle
from linsat.torch.call import TensorCall, as_tensors, tensors_of
from linsat.torch.exact_solve import solve_exactly

_NUMBERS = len(Numbers._fields)
_dense = TensorCall.dense
_READ = (torch.float64, torch.float32)  # by the native core


def solve_flat(call: TensorCall, scores: Tensor) -> Answer:
    """Scores (N, l) solved, without gradients; x in their dtype, or in float32 where the core does not read it."""
    if call.statement is None and not call.objective.couples:
        from linsat.torch.arrays import solve  # which brings every back end along

        return solve(call, scores)
    readable = _readable(scores)
    try:
        x = torch.empty_like(readable)
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        raise native.too_large(scores.shape[0], scores.shape[1], call.plan.pattern.num_rows) from None
    answer = call.solve(readable, x)
    if call.statement is None:  # solved on the host
        answer = as_tensors(answer)
        duals, counts, decided = (part.to(scores.device) for part in (answer.duals, answer.counts, answer.decided))
        x = torch.as_tensor(answer.x).to(scores.device)
        answer = Answer(x, duals, counts, decided, answer.solved)
    if readable.dtype is not scores.dtype and call.mark_beyond(torch.as_tensor(answer.codes), x.to(scores.dtype)):
        call.report(answer, readable.numpy())  # of codes that share their memory
    return answer


def point(call: TensorCall, scores: Tensor) -> Tensor:
    """x for scores (batch..., l), in their shape and dtype, with gradients to every tensor that wants them."""
    if torch.is_grad_enabled():
        learned = _learned(call)
        if learned or scores.requires_grad:
            return Projection.apply(call, (tuple(learned), None), scores, *learned.values())
    return _like(solve_flat(call, flat_scores(scores)).x, scores)


def point_and_duals(call: TensorCall, scores: Tensor) -> Answer:
    """The same with the duals, which have gradients too, and how each instance ended; all as tensors."""
    learned = _learned(call) if torch.is_grad_enabled() else {}
    if learned or (scores.requires_grad and torch.is_grad_enabled()):
        solved: list[Answer] = []
        x, duals = Projection.apply(call, (tuple(learned), solved), scores, *learned.values())
        return replace(as_tensors(solved[0]), x=x, duals=duals)
    return as_tensors(solve_flat(call, flat_scores(scores)))


def _learned(call: TensorCall) -> dict[int, Tensor]:
    """What carries a gradient besides the scores, by its position among numbers and parameters, as it came."""
    return {at: tensor for at, tensor in (*call.given.items(), *call.others) if tensor.requires_grad}


class Projection(torch.autograd.Function):
    """(scores, learned tensors) -> x and, if asked for, duals: outside of function transforms, where it costs least.

    Views and conversions of scores and x happen inside, where torch does not record them.
    """

    @staticmethod
    def forward(
        ctx: Any, call: TensorCall, how: tuple[tuple[int, ...], list[Answer] | None], *given: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        ctx.learned, solved = how
        scores = given[0]
        answer = solve_flat(call, flat_scores(scores))
        x = _in(answer.x, scores.dtype).contiguous()
        if x.shape != scores.shape:
            x = x.resize_(scores.shape)  # and no view, which nobody could write to
        answer.x = None  # a node that holds its own outputs would wait for the garbage collector
        ctx.call, ctx.answer = call, answer
        ctx.set_materialize_grads(False)
        if solved is None:
            ctx.save_for_backward(*given)
            return x
        solved.append(answer)
        duals = as_tensors(answer).duals
        ctx.answer = replace(answer, duals=None if duals is answer.duals else answer.duals)
        ctx.save_for_backward(*given, duals)  # as an output, so that second derivatives reach it
        return x, duals

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        scores, *learned = ctx.saved_tensors
        grad_x, grad_duals = grads if len(grads) == 2 else (grads[0], None)
        duals = learned.pop() if len(grads) == 2 else None
        call, answer = ctx.call, ctx.answer
        if answer.statement is not None and not torch.is_grad_enabled() and not _transformed(grad_x, grad_duals):
            # By far the most frequent case, with nothing in its way: the core has the numbers already.
            needed = zip(ctx.learned, learned, ctx.needs_input_grad[3:], strict=True)
            wanted = {position: tensor for position, tensor, wants in needed if wants}
            to_scores, others = _by_core(call.plan, answer, flat_scores(scores), grad_x, grad_duals, wanted)
            return None, None, _like(to_scores, scores), *map(others.get, ctx.learned)
        if duals is None and torch.is_grad_enabled():  # for second derivatives the duals are functions of all too
            duals = Duals.apply(call, (ctx.learned, answer), scores, *learned)
        elif duals is None:
            duals = as_tensors(answer).duals
        return _pull_back(ctx, (scores, *learned), duals, grad_x, grad_duals)


class Duals(torch.autograd.Function):
    """(scores, learned tensors) -> duals that are known already: `Projection` without solving."""

    @staticmethod
    def forward(ctx: Any, call: TensorCall, known: tuple[tuple[int, ...], Answer], *given: Tensor) -> Tensor:
        ctx.call, (ctx.learned, ctx.answer) = call, known
        ctx.save_for_backward(*given)
        return as_tensors(ctx.answer).duals.clone()

    @staticmethod
    def backward(ctx: Any, grad_duals: Tensor) -> tuple[Tensor | None, ...]:
        return _pull_back(ctx, ctx.saved_tensors, as_tensors(ctx.answer).duals, None, grad_duals)


def _by_core(
    plan: Plan,
    answer: Answer,
    scores: Tensor,
    grad_x: Tensor | None,
    grad_duals: Tensor | None,
    wanted: Mapping[int, Tensor],
) -> tuple[Tensor, dict[int, Tensor]]:
    """The gradient to scores (N, l), and those like the tensors ``wanted``, by the native core."""
    layout, readable = plan.layout(), _readable(scores)
    assert isinstance(layout, NativeLayout)
    given = None if grad_x is None else _dense(_in(flat_scores(grad_x), readable.dtype))
    to_duals = None if grad_duals is None else _dense(_in(grad_duals, torch.float64))
    to_scores = torch.empty_like(readable)
    others = {at: _room(like) for at, like in wanted.items()}
    native.pull_back(layout, answer, readable, to_scores, given, to_duals, others)
    for at, like in wanted.items():
        if like.dtype is not torch.float64 or not like.is_cpu:
            others[at] = others[at].to(like.device, like.dtype)
    return _in(to_scores, scores.dtype), others


def _room(like: Tensor) -> Tensor:
    """A contiguous tensor of its shape, in float64 on the CPU."""
    if like.dtype is torch.float64 and like.is_cpu and like.is_contiguous():
        return torch.empty_like(like)  # which takes half the time
    return torch.empty(like.shape, dtype=torch.float64)


def _pull_back(
    ctx: Any, given: tuple[Tensor, ...], duals: Tensor, grad_x: Tensor | None, grad_duals: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients to (call, how, scores, learned tensors)."""
    call: TensorCall = ctx.call
    scores, *learned = given
    tensors = [flat_scores(scores), *call.tensors(), *call.objective.parameters().values()]
    needed = [ctx.needs_input_grad[2], *[False] * (len(tensors) - 1)]
    for position, tensor, wants in zip(ctx.learned, learned, ctx.needs_input_grad[3:], strict=True):
        tensors[1 + position], needed[1 + position] = tensor.reshape(tensors[1 + position].shape), wants
    counts, decided = (as_tensors(ctx.answer).counts, as_tensors(ctx.answer).decided)
    solved = Solved(call.plan, call.objective, tuple(tensors), duals, counts, decided)
    gradient = gradients(solved, grad_duals, None if grad_x is None else flat_scores(grad_x), tuple(needed))
    to_scores = None if gradient[0] is None else gradient[0].reshape(scores.shape)
    others = [gradient[1 + i] for i in ctx.learned]
    pairs = zip(others, learned, strict=True)
    return None, None, to_scores, *(None if g is None else g.reshape(like.shape) for g, like in pairs)


def _transformed(*tensors: Tensor | None) -> bool:
    return any(tensor is not None and transforming(tensor) for tensor in tensors)


def _like(x: Tensor, scores: Tensor) -> Tensor:
    """x (N, l) in the shape and dtype of the scores."""
    if x.dim() != scores.dim():
        x = x.view(scores.shape)
    return _in(x, scores.dtype)


def _in(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def flat_scores(tensor: Tensor) -> Tensor:
    """(batch..., l) as (N, l)."""
    if tensor.dim() == 2:
        return tensor
    return tensor[None] if tensor.dim() == 1 else tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def _readable(scores: Tensor) -> Tensor:
    """The scores as the core reads them; float32 holds every shorter dtype exactly."""
    return _dense(scores if scores.dtype in _READ else scores.to(torch.float32))


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


@one_thread_after_a_fork
def gradients(
    solved: Solved, grad_duals: Tensor | None, grad_x: Tensor | None, needed: tuple[bool, ...]
) -> Sequence[Tensor | None]:
    """Gradients to scores, `Numbers` and the numbers of the objective, where needed, from those of duals and of x."""
    plan, scores = solved.plan, solved.tensors[0]
    by_core = not torch.is_grad_enabled() and not _transformed(grad_x, grad_duals, solved.duals)
    if by_core and plan.native(scores.device.type):
        own = solved.tensors[1:]
        statement = plan.state(Numbers(*own[:_NUMBERS]), own[_NUMBERS:], scores.shape[0])
        duals, counts, decided = (_dense(part).numpy() for part in (solved.duals, solved.counts, solved.decided))
        wanted = {at: tensor for at, tensor in enumerate(own) if needed[1 + at]}
        answer = Answer(None, duals, counts, decided, False, statement)
        to_scores, others = _by_core(plan, answer, scores, grad_x, grad_duals, wanted)
        return to_scores, *map(others.get, range(len(own)))
    return _on_arrays(solved.usable(), grad_duals, grad_x, needed)


def _on_arrays(
    solved: Solved, grad_duals: Tensor | None, grad_x: Tensor | None, needed: tuple[bool, ...]
) -> Sequence[Tensor | None]:
    """The same in torch operations, each of which may be differentiated again."""
    if isinstance(solved.kind, Matrix):
        return _of_matrix(solved, grad_duals, grad_x, needed)
    problem = solved.problem()
    given = solved.masked(torch.zeros_like(problem.scores) if grad_x is None else grad_x)
    to_duals = torch.zeros_like(solved.duals) if grad_duals is None else solved.masked(grad_duals)
    q = adjoint(problem, solved.duals, given, to_duals)
    pull_back: Callable[..., Any] = torch.func.vjp(solved.explicit, *solved.tensors)[1]
    return pull_back((given, -q, to_duals))


def _of_matrix(
    solved: Solved, grad_duals: Tensor | None, grad_x: Tensor | None, needed: tuple[bool, ...]
) -> Sequence[Tensor | None]:
    assert isinstance(solved.kind, Matrix)
    given = solved.masked(torch.zeros_like(solved.tensors[0]) if grad_x is None else grad_x)
    to_duals = torch.zeros_like(solved.duals) if grad_duals is None else solved.masked(grad_duals)
    point = solved.duals, solved.decided, solved._converged()
    return saddle.gradients(solved.plan, solved.kind, solved.tensors, *point, given, to_duals, needed)


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
