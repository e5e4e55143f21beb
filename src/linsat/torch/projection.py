"""`project` and `solve` of tensors."""

from __future__ import annotations

from typing import Any

import torch

from linsat._forks import one_thread_after_a_fork
from linsat._transforms import forward_mode, outside_graphs, recorded, tracing, transforming
from linsat.arrays.newton import Newton
from linsat.call import keep
from linsat.constraints.numbers import slots_given
from linsat.errors import ConstraintError
from linsat.native.batch import Answer
from linsat.plan import Solver
from linsat.request import Request, filled, key_of
from linsat.solution import Solution
from linsat.torch.call import Reading, numbers_in_graphs
from linsat.torch.implicit import flat_scores, point, point_and_duals
from linsat.torch.operator import Answers, Arguments, apply
from linsat.torch.options import describe


@recorded
@one_thread_after_a_fork
def project(y: Any, request: Request) -> Any:
    """See `linsat.project`."""
    constraints, given, plain = request.constraints, request.given, _plain()
    key = _key(y, request) if plain else None
    call = None if key is None else constraints._calls.get(key)
    if call is not None:
        return point(call.with_given(constraints, given) if given else call, y)
    slots = slots_given(constraints, given) if given and plain else None
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
    if key is None or type(y) is not torch.Tensor:
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
