"""`project` and `solve` of numpy arrays by the native core; neither torch nor JAX is needed."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from linsat._array_namespace import to_numpy
from linsat._optional import torch_installed
from linsat.arrays.interior.instances import unsupported
from linsat.arrays.newton import Newton
from linsat.call import Call, keep
from linsat.constraints.arrays import is_jax, read_any
from linsat.constraints.layout import flatten
from linsat.constraints.numbers import slots_given, slots_of
from linsat.errors import ConstraintError
from linsat.native.batch import Answer
from linsat.plan import Numbers, Plan, plan_of
from linsat.request import Request, check_range, joint_batch, key_of, read_start, with_numbers
from linsat.solution import Solution, bound_duals

Array = np.ndarray


class NotHere(Exception):  # noqa: N818 - no error: the call goes to another door
    """The native core does not take the call; the text says why."""


def project(y: Any, request: Request) -> Any:
    """See `linsat.project`.

    Raises:
        NotHere: before anything was solved.
    """
    key, constraints, given = _key(y, request), request.constraints, request.given
    kept = None if key is None else constraints._calls.get(key)
    if kept is not None:
        x = np.empty_like(y)
        (kept.with_given(constraints, given) if given else kept).solve(_flat(y), _flat(x))
        return x
    call, scores = _read(y, request)
    x = _solve(call, scores).x
    plain = key is not None and call.arrangement == "flat" and call.batch_shape == y.shape[:-1] and x.dtype == y.dtype
    if plain:
        keep(constraints, key, call, given)
    return restored(call, x, scores.dtype)


def _key(y: Any, request: Request) -> Any:
    """What a call depends on besides the numbers in y and those given, where all of that is plain; else None."""
    key = key_of(request)
    if key is None or type(y) is not np.ndarray or not y.flags.c_contiguous:
        return None
    key = y.shape, y.dtype, *key
    for name, value in request.given.items():
        if type(value) is not np.ndarray:
            return None
        key += name, value.shape, value.dtype
    return key


def solve(y: Any, request: Request) -> Solution:
    """See `linsat.solve`; takes and raises what `project` does."""
    call, answer, scores = attempt(y, request)
    codes, steps, solver_codes = (count.reshape(call.batch_shape) for count in answer.counts)
    duals = answer.duals.reshape(*call.batch_shape, answer.duals.shape[-1])
    x = restored(call, answer.x, scores.dtype)

    def of_bounds() -> Array:
        pattern, flat = call.plan.pattern, answer.duals
        places = pattern.row, pattern.col
        z = bound_duals(call.objective, call.numbers, places, scores, answer.x.astype(scores.dtype), flat)
        return z.reshape(*call.batch_shape, z.shape[-1])

    return Solution(x, steps, duals, codes, solver_codes, call.constraints, of_bounds)


def attempt(y: Any, request: Request) -> tuple[Call, Answer, Array]:
    """The call, its answer, and the scores (N, l) as they came."""
    call, scores = _read(y, request)
    return call, _solve(call, scores), scores


def _flat(scores: Array) -> Array:
    """(batch..., l) as (N, l)."""
    return scores if scores.ndim == 2 else scores.reshape(math.prod(scores.shape[:-1]), scores.shape[-1])


def _read(y: Any, request: Request) -> tuple[Call, Array]:
    """The call, and the scores (N, l) in the dtype in which they came."""
    constraints, given, objective, options, start = request
    request.check()
    solver = request.solver
    if objective.native is None or not isinstance(solver, Newton):
        raise NotHere(f"{type(objective).__name__} with {type(solver).__name__} runs on torch operations")
    like, arrangement = flatten("y", y, constraints._layout, constraints.num_variables, read_scores)
    if like.dtype.itemsize < 8:
        check_range(like.dtype, float(np.finfo(like.dtype).max), constraints)
    slots = slots_given(constraints, given) if given else {}
    if slots is None:
        constraints, slots = with_numbers(constraints, given), {}
    own = constraints.batch_shape
    if slots:
        own = np.broadcast_shapes(own, *(slot.shape[:-1] for slot in slots.values()))
    width = like.shape[-1]
    batch = joint_batch(like.shape[:-1], own)
    objective = objective.read(constraints._layout, batch, width)
    plan = plan_of(constraints, objective, solver, width, given=bool(slots))
    core = _by_core(plan)
    numbers = plan.numbers
    if numbers is None:
        numbers = Numbers(*map(to_numpy, slots_of(constraints, width, batch if own else (), slots)))
    count = math.prod(batch)
    objective = objective.spread(batch, width)
    call = Call(
        plan=plan,
        stated=numbers,
        objective=objective,
        options=options,
        start=read_start(start, batch, constraints, _floats),
        batch_shape=batch,
        arrangement=arrangement,
        owner=functools.partial(with_numbers, constraints, given if slots else {}),
        statement=plan.state(numbers, tuple(objective.parameters().values()), count) if core else None,
    )
    if like.shape[:-1] != batch:
        like = np.broadcast_to(like, (*batch, width))
    return call, like.reshape(count, width)


def _by_core(plan: Plan) -> bool:
    """Whether the core solves it; else the interior-point method can, which is the way for large sparse rows.

    Raises:
        NotHere: torch has more to offer.
    """
    if plan.native() or plan.objective.couples:
        return plan.native()
    here = isinstance(plan.solver, Newton) and plan.solver.backend == "auto" and unsupported(plan.objective) is None
    if not here or not (plan.rows.sparse or not torch_installed()):
        raise NotHere("the native core does not take the set, or the solver asks for another back end")
    return False


def _solve(call: Call, scores: Array) -> Answer:
    """Scores (N, l) solved; x in float32 or float64."""
    dtype = scores.dtype if scores.dtype in (np.float32, np.float64) else np.dtype(np.float32)
    readable = np.ascontiguousarray(scores, dtype)
    answer = call.solve(readable, np.empty_like(readable))
    if dtype != scores.dtype:
        with np.errstate(over="ignore"):
            narrow = answer.x.astype(scores.dtype)
        if call.mark_beyond(answer.codes, narrow):
            call.report(answer, scores)
    return answer


def restored(call: Call, x: Array, dtype: np.dtype) -> Any:
    """x (N, l) in the shape (or dict of shapes) and dtype of the scores."""
    x = x.reshape(*call.batch_shape, x.shape[-1]).astype(dtype, copy=False)
    layout = None if call.arrangement == "flat" else call.constraints._layout
    return x if layout is None else layout.restored(x, call.arrangement)


def read_scores(name: str, y: Any) -> Array:
    """Scores as a floating array of native byte order."""
    if is_jax(y):
        raise ConstraintError(
            f"{name} is an array of JAX; expected numpy or a tensor of torch. Fix: linsat.jax.project, which JAX "
            f"traces and differentiates; or numpy.asarray({name})."
        )
    array = read_any(name, y, "floating scores")
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        fix = f"{name}.astype(float)" if hasattr(y, "astype") else f"numpy.array({name}, float)"
        raise ConstraintError(
            f"{name} has dtype {array.dtype}; expected floating scores of at most 64 bits. Fix: {fix}."
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _floats(value: Any) -> Array:
    return np.array(to_numpy(value), dtype=np.float64)
