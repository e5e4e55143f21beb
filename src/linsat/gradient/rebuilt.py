"""A call rebuilt from the arguments of the operator `linsat::project`, in this process or in the one that loads it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from linsat._forks import one_thread_after_a_fork
from linsat._recent import MadeFrom
from linsat._transforms import plain, plain_tensors, unwrapped
from linsat.backends.run import presolve, settle
from linsat.compile.compiled import CompiledConstraints
from linsat.compile.presolve import everything_free, row_sides
from linsat.compile.problem import Presolved, StandardForm, Tensor
from linsat.compile.rows import RowMatrix
from linsat.compile.standard_form import forbid
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.structure import BLOCKS
from linsat.errors import ConstraintError
from linsat.gradient.implicit import Call, Solved, gradients
from linsat.gradient.operator import Answers, Arguments
from linsat.gradient.options import Options, forbidding, read
from linsat.objectives import Objective
from linsat.solving import ForbiddenVariables, Solve, check_lower, saying_what_is_forbidden

_KEPT = 32  # patterns and sets
_patterns: MadeFrom[dict[str, Any]] = MadeFrom(_KEPT)
_constant: MadeFrom[CompiledConstraints] = MadeFrom(_KEPT)

Gradients = tuple[Tensor | None, Tensor | None]  # of x and of the duals


class Point(NamedTuple):
    """Where a backward pass starts from."""

    mu: Tensor
    codes: Tensor
    decided: Tensor


@one_thread_after_a_fork
def project(arguments: Arguments) -> Answers:
    """The operator itself; what it returns shares no memory with anything that is kept."""
    call = _call(arguments)
    try:
        with torch.no_grad():
            result, problem = call.solve(call.form, arguments.scores, call.objective)
    except ForbiddenVariables:
        shape = arguments.decided_shape  # of the box as given; what was decided in the other is found again
        decided = torch.zeros(shape, dtype=torch.bool, device=arguments.scores.device)
        with saying_what_is_forbidden():
            return project(_Forbidding.of(arguments).arguments)._replace(decided=decided)
    return Answers(
        x=result.x.to(arguments.scores.dtype).contiguous(),
        mu=result.mu.contiguous(),
        codes=result.codes.clone(),
        steps=result.steps.clone(),
        solved_by=result.solved_by.clone(),
        decided=_pack(problem.presolved, arguments.decided_shape[0]),
    )


def pull_back(arguments: Arguments, point: Point, grads: Gradients, needed: Sequence[bool]) -> list[Tensor]:
    """Gradients to scores, form and numbers, those that are needed."""
    if _forbids(arguments):
        changes, others = _Forbidding.of(arguments), any(needed[1:])
        inner = pull_back(changes.arguments, point, grads, [True, *[others] * (len(needed) - 1)])
        if not others:
            return [inner[0].masked_fill(changes.variables, 0.0)]
        pull: Callable[..., Any] = torch.func.vjp(changes.change, *_tensors(arguments))[1]
        return [g.contiguous() for g, wants in zip(pull(tuple(inner)), needed, strict=True) if wants]
    call = _call(arguments)
    presolved = _decided(call, point, arguments)
    solved = Solved(call, (arguments.scores, *call.tensors()), point.mu, point.codes, presolved)
    with torch.no_grad():
        found = gradients(solved, grads[1], grads[0], tuple(needed))
    wanted = [(g, t) for g, t, wants in zip(found, _tensors(arguments), needed, strict=True) if wants]
    return [torch.zeros_like(t) if g is None else g.to(t.dtype).reshape(t.shape).contiguous() for g, t in wanted]


def differentiate(
    arguments: Arguments, point: Point, grads: Gradients, needed: Sequence[bool], cotangents: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients to those of x and the duals, the duals, scores, form and numbers: `pull_back` in torch operations."""
    changes = _Forbidding.of(arguments) if _forbids(arguments) else None
    here = arguments if changes is None else changes.arguments
    call = _call(here, known=True)
    presolved = _unpack(point.decided, arguments) if changes is None else _decided(call, point, here)
    given = [g for g in grads if g is not None]

    def again(mu: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = iter(tensors)
        grad_x, grad_mu = (None if g is None else next(given) for g in grads)
        own = tuple(given)
        if changes is None:
            found = gradients(Solved(call, own, mu, point.codes, presolved), grad_mu, grad_x, tuple(needed))
        else:
            moved: Any = torch.func.vjp(changes.change, *own)
            solved = Solved(call, moved[0], mu, point.codes, presolved)
            found = moved[1](gradients(solved, grad_mu, grad_x, (True,) * len(own)))
        return tuple(g for g, wants in zip(found, needed, strict=True) if wants and g is not None)

    inputs = (*given, *_tensors(arguments))
    to_mu, *others = torch.func.vjp(again, point.mu, *inputs)[1](tuple(cotangents))
    rest = iter(others)
    return [*(None if g is None else next(rest) for g in grads), to_mu, *rest]


def _tensors(arguments: Arguments) -> tuple[Tensor, ...]:
    return arguments.scores, *arguments.form, *arguments.numbers


def _decided(call: Call, point: Point, arguments: Arguments) -> Presolved:
    """What presolve decided in the forward pass."""
    if call.cache is not None:
        return settle(call.solve.compiled)
    if read(arguments.options).forbids:  # decided for each instance, and not kept
        with plain_tensors(), torch.no_grad():
            return presolve(call.solve.compiled, call.form)
    return _unpack(point.decided, arguments)


def _forbids(arguments: Arguments) -> bool:
    """Whether a variable is to stay at its lower bound: its score is -inf."""
    return bool(torch.isneginf(plain(arguments.scores)).any())


class _Forbidding(NamedTuple):
    """A call with scores of -inf as one without them: where these are, the upper bound is the lower one."""

    variables: Tensor  # (N, l) bool
    change: Callable[..., tuple[Tensor, ...]]  # of scores, form and numbers, differentiable
    arguments: Arguments

    @classmethod
    def of(cls, arguments: Arguments) -> _Forbidding:
        options, length = read(arguments.options), len(arguments.form)
        seen = Arguments(*tree_map_only(torch.Tensor, plain, tuple(arguments)))  # presolve looks at numbers
        if seen.scores.shape != arguments.scores.shape:
            raise ConstraintError(
                "y holds -inf, and torch.func.vmap maps over it: of such scores linsat has no second derivatives nor "
                "forward mode. Fix: pass the batch as it is, or forbid variables by constraints.with_bounds(upper=...)."
            )
        form, senses = _form(seen), seen.pattern[2]
        objective, shift = options.build_objective(seen.numbers), options.build_solver().gamma_shift
        with plain_tensors():  # forward mode asks within a function transform
            variables = torch.isneginf(seen.scores)
            open_below = variables & torch.isneginf(form.lower)
            if bool(open_below.any()):
                check_lower(open_below, _constraints(form, senses, options.names))

        def change(scores: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
            own = forbid(form.with_tensors(others[:length]), variables, senses, objective, gamma_shift=shift)
            return torch.where(variables, 0.0, scores), *own.tensors(), *others[length:]

        with plain_tensors(), torch.no_grad():
            scores, *changed = change(*_tensors(seen))
        given = {"scores": scores, "form": changed[:length], "numbers": changed[length:]}
        return cls(variables, change, seen._replace(**given, options=forbidding(arguments.options)))


def pull_tangents_back(
    arguments: Arguments, point: Sequence[Tensor], grads: Gradients, needed: Sequence[bool]
) -> list[Tensor | None]:
    """As `pull_back`, None where not needed, in torch operations: each is itself differentiable in forward mode."""
    at = Point(*point)
    changes = _Forbidding.of(arguments) if _forbids(arguments) else None
    here = arguments if changes is None else changes.arguments
    call = _call(here, known=True)
    if changes is None:
        presolved = _unpack(at.decided, arguments)
        solved = Solved(call, _tensors(arguments), at.mu, at.codes, presolved)
        found = gradients(solved, grads[1], grads[0], tuple(needed))
    else:
        moved: Any = torch.func.vjp(changes.change, *_tensors(arguments))
        solved = Solved(call, moved[0], at.mu, at.codes, _decided(call, at, here))
        found = moved[1](gradients(solved, grads[1], grads[0], (True,) * len(needed)))
    return [g if wants else None for g, wants in zip(found, needed, strict=True)]


def push_forward(arguments: Arguments, point: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Any:
    """The tangents of x and of the duals from those of scores, form and numbers, None where one does not move.

    The gradients J' w of a loss are linear in w, those of x and the duals, and the derivative of <v, J' w> in w is J v.
    So this costs one more solve with the same matrix, and agrees with reverse mode at kinks and where instances failed.
    """
    needed = [tangent is not None for tangent in tangents]

    def pulled(grad_x: Tensor, grad_mu: Tensor) -> tuple[Tensor | None, ...]:
        found = pull_tangents_back(arguments, point, (grad_x, grad_mu), needed)
        return tuple(g for g in found if g is not None)

    zeros = torch.zeros_like(arguments.scores), torch.zeros_like(point[0])
    return torch.func.vjp(pulled, *zeros)[1](tuple(tangent for tangent in tangents if tangent is not None))


def _call(arguments: Arguments, *, known: bool = False) -> Call:
    """The call; ``known`` says that its numbers have been looked at before, which a function transform may forbid."""
    scores, pattern, form, numbers, start, text = arguments
    options = read(text)
    # A derivative may find constants wrapped by a function transform, which has nothing to say about them.
    pattern = [*map(unwrapped, pattern)]
    form = [*map(unwrapped, form)] if options.constant else form
    make = functools.partial(_compile, arguments._replace(pattern=pattern, form=form), options, known)
    if options.constant:
        with plain_tensors():
            compiled = _constant.get_or_make((text, scores.shape[1]), (*pattern, *form), make)
    else:
        compiled = make()
    per_instance = options.forbids or any(tensor.shape[0] != 1 for tensor in form)
    solve = Solve(compiled, options.build_solver(), options.on_failure, start, lambda i: i if per_instance else 0)
    objective = options.build_objective(numbers)
    return Call(compiled.form, objective, solve, compiled.cache if options.constant else None)


def _form(arguments: Arguments) -> StandardForm:
    row, col, senses = arguments.pattern
    values, *others = arguments.form
    shape = (senses.shape[0], arguments.scores.shape[1])
    with plain_tensors():
        cache = _patterns.get_or_make(shape, (row, col), dict)
    return StandardForm(RowMatrix(row, col, values, shape, cache), *others)


def _compile(arguments: Arguments, options: Options, known: bool) -> CompiledConstraints:
    """As `linsat.compile.compiled`, from a standard form."""
    senses, form = arguments.pattern[2], _form(arguments)
    objective = options.build_objective(arguments.numbers).probe(form.lower)
    owner = functools.partial(_constraints, form, senses, options.names, options.forbids)
    if not known and not _usable(form, objective):
        found = owner()  # says what is wrong with which number
        if objective.finite_box:
            found.require_finite_box()
        raise ConstraintError("price holds a number that is not positive and finite; expected one per unit of a row.")
    compiled = CompiledConstraints(owner, form, senses, objective, None if options.presolves else everything_free(form))
    return replace(compiled, presolved=compiled.presolve(form)) if options.constant else compiled


def _usable(form: StandardForm, objective: Objective) -> bool:
    """Whether the numbers, which were unknown while the graph was traced, are those of a set."""
    good = torch.isfinite(form.rhs).all() & torch.isfinite(form.rows.values).all()
    good = good & (form.lower <= form.upper).all() & ((form.dual_lower < form.dual_upper) | form.absent).all()
    if objective.finite_box:
        good = good & torch.isfinite(form.lower).all() & torch.isfinite(form.upper).all()
    return bool(good)


def _constraints(form: StandardForm, senses: Tensor, names: Sequence[str] | None, batch: bool = False) -> Constraints:
    """The set that a standard form came from, for a message about rows that contradict each other.

    ``batch``: bounds of their own for all instances, also where there is only one.
    """
    rows, sides, hard = form.rows, row_sides(form, senses), ~form.soft[0]  # soft ones contradict nothing
    kept = None if names is None else [name for name, counts in zip(names, hard.tolist(), strict=True) if counts]
    upper = form.upper if batch else form.upper.squeeze(0)
    arguments: dict[str, Any] = {"lower": form.lower.squeeze(0), "upper": upper, "names": kept}
    coefficients = {}
    for matrix_name, side_name, sense in BLOCKS:
        members = (senses == sense) & hard
        if not bool(members.any()):
            continue
        entries, place = members[rows.row], members.cumsum(0) - 1
        values = rows.values[:, entries]
        index = torch.stack([place[rows.row[entries]], rows.col[entries]])
        shape = (int(members.sum()), rows.shape[1])
        ones = torch.ones_like(values[0])
        matrix = torch.sparse_coo_tensor(index, ones, shape, device=ones.device, check_invariants=True)
        arguments[matrix_name] = matrix
        arguments[side_name] = sides[:, members].squeeze(0)
        coefficients[matrix_name] = values.squeeze(0)
    found = Constraints(**arguments)
    return found.with_coefficients(**coefficients) if coefficients else found


def _pack(presolved: Presolved, instances: int) -> Tensor:
    """Everything presolve decided as one tensor (1 or N, .)."""
    p = presolved
    parts = (p.free, p.at_upper, p.active, p.tight, p.tight_share > 0, p.infeasible[:, None])
    return torch.cat([part.expand(instances, -1) for part in parts], -1)


def _unpack(decided: Tensor, arguments: Arguments) -> Presolved:
    l, k = arguments.scores.shape[1], arguments.pattern[2].shape[0]
    free, at_upper, active, tight, share, infeasible = decided.split([l, l, k, k, k, 1], -1)
    return Presolved(free, at_upper, active, tight, share.to(torch.float64), infeasible[:, 0])
