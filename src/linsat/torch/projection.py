"""`project` and `solve` of tensors, and the node of autograd between scores and x.

Forward and first derivatives are the native core's where it takes the call; `linsat.torch.implicit` has the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from linsat._forks import one_thread_after_a_fork
from linsat._transforms import forward_mode, outside_graphs, recorded, tracing, transforming
from linsat.arrays.newton import Newton
from linsat.arrays.problem import Tensor
from linsat.call import keep
from linsat.constraints.arrays import is_jax
from linsat.constraints.numbers import slots_given
from linsat.errors import ConstraintError
from linsat.native import batch as native
from linsat.native.batch import Answer, NativeLayout, dense
from linsat.plan import Numbers, Plan, Solver
from linsat.request import Request, filled, key_of
from linsat.solution import Solution
from linsat.torch.call import Reading, TensorCall, as_tensors, numbers_in_graphs
from linsat.torch.implicit import Solved, on_arrays
from linsat.torch.operator import Answers, Arguments, apply
from linsat.torch.options import describe

_NUMBERS = len(Numbers._fields)
_READ = (torch.float64, torch.float32)  # by the native core


@recorded
@one_thread_after_a_fork
def project(y: Any, request: Request) -> Any:
    """See `linsat.project`."""
    constraints, given, plain = request.constraints, request.given, _plain()
    key = _key(y, request) if plain else None
    call = None if key is None else constraints._calls.get(key)
    if call is not None:
        return point(call.with_given(constraints, given) if given else call, y)
    slots = slots_given(constraints, given) if given and plain and not any(map(is_jax, given.values())) else None
    reading = Reading.of(y, filled(request) if slots is None else request, slots)
    scores = reading.scores
    if _unrolls(reading.solver):
        return reading.answer(_unrolled(reading).x)
    if not plain or tracing(scores):
        return reading.answer(apply(arguments_of(reading)).x)
    call = reading.call()
    x = point(call, scores)
    if key is not None and scores is y:
        keep(constraints, key, call, given)
    return reading.answer(x)


@recorded
@one_thread_after_a_fork
def solve(y: Any, request: Request) -> Solution:
    """See `linsat.solve`."""
    reading = Reading.of(y, filled(request))
    answer: Answers | Answer
    if _unrolls(reading.solver):
        answer = _unrolled(reading)
    elif not _plain() or tracing(reading.scores):
        solved = apply(arguments_of(reading))
        return reading.solution(solved.x, solved.duals, (solved.codes, solved.steps, solved.solved_by))
    else:
        answer = point_and_duals(reading.call(), reading.scores)
    return reading.solution(answer.x, answer.duals, tuple(answer.counts))


def _plain() -> bool:
    """Whether neither a graph, nor a function transform, nor forward mode is at work."""
    return not (tracing() or transforming() or forward_mode() or torch._C._is_tracing())


def arguments_of(reading: Reading) -> Arguments:
    """The call, as the operator takes it."""
    constraints, scores = reading.constraints, reading.scores
    text = describe(
        reading.objective,
        reading.request.options,
        constant=constraints._fixed and not constraints.batch_shape,
        names=constraints._names,
    )
    numbers = numbers_in_graphs(reading)
    pattern = [*constraints._structure.on(numbers.values.device)]
    parameters = [*reading.objective.parameters().values()]
    return Arguments(flat_scores(scores), pattern, [*numbers], parameters, reading.request.start, text)


def _key(y: Any, request: Request) -> Any:
    """What a call depends on besides the numbers in y and those given, where all of that is plain; else None."""
    key = key_of(request)
    if key is None or type(y) is not torch.Tensor or y.is_nested:
        return None
    key = y.shape, y.dtype, y.device, y.layout, *key
    for name, value in request.given.items():
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_neg():
            return None
        key += name, value.shape, value.dtype, value.device
    return key


def _unrolls(solver: Solver) -> bool:
    return not isinstance(solver, Newton) and solver.gradient == "unrolled"


@outside_graphs
def _unrolled(reading: Reading) -> Answer:
    if tracing(reading.scores):
        raise ConstraintError(
            "Sinkhorn(gradient='unrolled') looks at numbers to know when to stop, and a graph has none. "
            "Fix: gradient='implicit', or linsat.Newton()."
        )
    from linsat.torch.arrays import unrolled

    return unrolled(reading.call(), flat_scores(reading.scores))


# ------------------------------------------------------------------ forward


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


# ------------------------------------------------------------------ backward


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
        duals, counts, decided = (dense(part).numpy() for part in (solved.duals, solved.counts, solved.decided))
        wanted = {at: tensor for at, tensor in enumerate(own) if needed[1 + at]}
        answer = Answer(None, duals, counts, decided, False, statement)
        to_scores, others = _by_core(plan, answer, scores, grad_x, grad_duals, wanted)
        return to_scores, *map(others.get, range(len(own)))
    return on_arrays(solved, grad_duals, grad_x, needed)


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
    given = None if grad_x is None else dense(_in(flat_scores(grad_x), readable.dtype))
    to_duals = None if grad_duals is None else dense(_in(grad_duals, torch.float64))
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
    return dense(scores if scores.dtype in _READ else scores.to(torch.float32))
