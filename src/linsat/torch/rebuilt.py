"""A call rebuilt from the arguments of the operator `linsat::project`, in this process or in the one that loads it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from linsat._forks import one_thread_after_a_fork
from linsat._recent import MadeFrom
from linsat._transforms import plain_tensors, transforms_allowed, unwrapped
from linsat.arrays.problem import Tensor
from linsat.constraints.coefficients import read_matrix
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.structure import BLOCKS, SparsityPattern
from linsat.objectives import Objective
from linsat.plan import Numbers, Plan
from linsat.torch.arrays import packed
from linsat.torch.call import TensorCall, as_tensors, tensors_of
from linsat.torch.implicit import Solved
from linsat.torch.operator import Answers, Arguments
from linsat.torch.options import Description, read
from linsat.torch.projection import gradients, solve_flat

_KEPT = 32  # patterns and sets
_patterns: MadeFrom[SparsityPattern] = MadeFrom(_KEPT)
_constant: MadeFrom[Plan] = MadeFrom(_KEPT)

Gradients = tuple[Tensor | None, Tensor | None]  # of x and of the duals


class Point(NamedTuple):
    """Where a backward pass starts from."""

    duals: Tensor
    codes: Tensor
    decided: Tensor


@one_thread_after_a_fork
def project(arguments: Arguments) -> Answers:
    """The operator itself; what it returns shares no memory with anything that is kept."""
    plan, objective, description = _plan(arguments)
    numbers, scores = plan.numbers or Numbers(*arguments.numbers), arguments.scores
    count, start = scores.shape[0], arguments.start
    call = TensorCall.of(
        plan,
        numbers,
        objective,
        scores.device,
        options=description.build_options(),
        start=None if start is None else start.contiguous(),
        batch_shape=(count,),
        arrangement="flat",
        owner=plan.owner,
    )
    answer = as_tensors(solve_flat(call, scores))
    decided = answer.decided
    if plan.known() is not None and bool(torch.isneginf(scores).any()):  # which the set as it is knows nothing of
        problem = plan.problem(call.tensors(), scores, objective, plan.decided())
        decided = packed(problem.presolved, count)
    return Answers(
        x=answer.x.to(scores.dtype).contiguous(),
        duals=answer.duals.contiguous(),
        codes=answer.counts[0].clone(),
        steps=answer.counts[1].clone(),
        solved_by=answer.counts[2].clone(),
        decided=decided.expand(arguments.decided_shape).clone(),
    )


def pull_back(arguments: Arguments, point: Point, grads: Gradients, needed: Sequence[bool]) -> list[Tensor]:
    """Gradients to scores, numbers and parameters, those that are needed."""
    with torch.no_grad(), transforms_allowed():
        pulled = gradients(_solved(arguments, point), grads[1], grads[0], tuple(needed))
    wanted = [(g, t) for g, t, wants in zip(pulled, _tensors(arguments), needed, strict=True) if wants]
    return [torch.zeros_like(t) if g is None else g.to(t.dtype).reshape(t.shape).contiguous() for g, t in wanted]


def pull_tangents_back(
    arguments: Arguments, point: Sequence[Tensor], grads: Gradients, needed: Sequence[bool]
) -> list[Tensor | None]:
    """As `pull_back`, None where not needed, in torch operations: each is itself differentiable in forward mode."""
    pulled = gradients(_solved(arguments, Point(*point)), grads[1], grads[0], tuple(needed))
    return [g if wants else None for g, wants in zip(pulled, needed, strict=True)]


def differentiate(
    arguments: Arguments, point: Point, grads: Gradients, needed: Sequence[bool], cotangents: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients to those of x and the duals, the duals and all tensors: `pull_back` in torch operations."""
    here = _solved(arguments, point)
    given = [g for g in grads if g is not None]

    def again(duals: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = iter(tensors)
        grad_x, grad_duals = (None if g is None else next(given) for g in grads)
        own = replace(here, tensors=tuple(given), duals=duals)
        pulled = gradients(own, grad_duals, grad_x, tuple(needed))
        return tuple(g for g, wants in zip(pulled, needed, strict=True) if wants and g is not None)

    inputs = (*given, *_tensors(arguments))
    to_duals, *others = torch.func.vjp(again, point.duals, *inputs)[1](tuple(cotangents))
    rest = iter(others)
    return [*(None if g is None else next(rest) for g in grads), to_duals, *rest]


def push_forward(arguments: Arguments, point: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Any:
    """The tangents of x and of the duals from those of scores, numbers and parameters, None where one does not move.

    The gradients J' w of a loss are linear in w, those of x and the duals, and the derivative of <v, J' w> in w is J v.
    So this costs one more solve with the same matrix, and agrees with reverse mode at kinks and where instances failed.
    """
    needed = [tangent is not None for tangent in tangents]

    def pulled(grad_x: Tensor, grad_duals: Tensor) -> tuple[Tensor | None, ...]:
        parts = pull_tangents_back(arguments, point, (grad_x, grad_duals), needed)
        return tuple(g for g in parts if g is not None)

    zeros = torch.zeros_like(arguments.scores), torch.zeros_like(point[0])
    return torch.func.vjp(pulled, *zeros)[1](tuple(tangent for tangent in tangents if tangent is not None))


def _tensors(arguments: Arguments) -> tuple[Tensor, ...]:
    return arguments.scores, *arguments.numbers, *arguments.parameters


def _solved(arguments: Arguments, point: Point) -> Solved:
    plan, objective, _ = _plan(arguments)
    tensors = _tensors(arguments)
    if plan.numbers is not None:  # which it knows by identity
        kept = tensors_of(plan, plan.numbers, arguments.scores.device)
        tensors = arguments.scores, *kept, *arguments.parameters
    return Solved(plan, objective, tensors, point.duals, point.codes, point.decided, own=True)


def _plan(arguments: Arguments) -> tuple[Plan, Objective, Description]:
    """The plan of a call; kept where its numbers are constant."""
    scores, pattern, numbers, parameters, _, text = arguments
    description = read(text)
    # A derivative may find constants wrapped by a function transform, which has nothing to say about them.
    pattern = [*map(unwrapped, pattern)]
    numbers = [*map(unwrapped, numbers)] if description.constant else numbers
    make = functools.partial(_new_plan, arguments._replace(pattern=pattern, numbers=numbers), description)
    objective = description.build_objective(parameters)
    if not description.constant:
        return make(), objective, description
    with plain_tensors():
        plan = _constant.get_or_make((text, scores.shape[1]), (*pattern, *numbers), make)
    return plan, objective, description


def _new_plan(arguments: Arguments, description: Description) -> Plan:
    """As `linsat.plan.plan_of`, from tensors."""
    row, col, senses = arguments.pattern
    width, kept = arguments.scores.shape[1], description.names

    def stacked() -> SparsityPattern:
        names = kept or [f"row {i}" for i in range(len(senses))]
        rows, columns, own = (part.cpu().numpy() for part in (row, col, senses))
        return SparsityPattern(len(own), width, rows, columns, own, tuple(names))

    with plain_tensors():
        pattern = _patterns.get_or_make((width, kept and tuple(kept)), arguments.pattern, stacked)
    numbers = Numbers(*arguments.numbers)
    owner = functools.lru_cache(functools.partial(_constraints, numbers, arguments.pattern, width, kept))
    objective, solver = description.build_objective(arguments.parameters), description.build_options().solver
    made = Plan(pattern, width, objective, solver, owner)
    if description.constant:
        made.numbers = Numbers(*(tensor.detach().cpu().numpy() for tensor in numbers))
    return made


def _constraints(numbers: Numbers, pattern: Sequence[Tensor], width: int, names: Sequence[str] | None) -> Constraints:
    """The set that numbers came from, for a message about rows that contradict each other, or about the numbers."""
    row, col, senses = pattern
    values, side, lower, upper, price = (tensor.detach() for tensor in numbers)
    hard = ~torch.isfinite(price).any(0)  # soft ones contradict nothing
    kept = None if names is None else [name for name, counts in zip(names, hard.tolist(), strict=True) if counts]
    arguments: dict[str, Any] = {"lower": lower.squeeze(0), "upper": upper.squeeze(0), "names": kept}
    for matrix_name, side_name, sense in BLOCKS:
        members = (senses == sense) & hard
        if not bool(members.any()):
            continue
        entries, place = members[row], members.cumsum(0) - 1
        own = values[:, entries]
        index = torch.stack([place[row[entries]], col[entries]])
        ones = torch.ones_like(own[0])
        shape = (int(members.sum()), width)
        places = torch.sparse_coo_tensor(index, ones, shape, device=ones.device, check_invariants=True)
        arguments[matrix_name] = read_matrix(matrix_name, places).with_stated(own.squeeze(0))
        arguments[side_name] = side[:, members].squeeze(0)
    return Constraints(**arguments)
