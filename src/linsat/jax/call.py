"""The arguments of a call that JAX traces: shapes are checked, numbers are left to the solver and its status."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linsat.arrays.newton import Newton
from linsat.arrays.presolve import has_even_interior
from linsat.call import SLOT_OF
from linsat.constraints.arrays import not_numbers, reject_lost, side_by_side
from linsat.constraints.by_name import right_sides_by_name
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Arrangement, flatten
from linsat.constraints.numbers import slots_given, slots_of
from linsat.errors import ConstraintError
from linsat.jax.core import operands_of, solve, unavailable
from linsat.jax.operands import Answers, Kind, Operands
from linsat.jax.single import change
from linsat.objectives import Objective
from linsat.plan import Numbers, Plan, plan_of
from linsat.request import Request, joint_batch, read_start
from linsat.verdict.diagnosis import reject_infeasible

Array = Any  # a jax.Array, or a tracer that stands for one
_BLOCKS = {"A": "b", "C": "d", "E": "f"}


@dataclass(frozen=True)
class TracedCall:
    """One call, ready to be solved."""

    kind: Kind
    operands: Operands
    adjusted: Array  # (batch...) the largest relative change that freed right-hand sides of rounding
    batch: tuple[int, ...]
    dtype: Any  # of the scores, and so of x
    arrangement: Arrangement
    request: Request

    def solve(self) -> Answers:
        return solve(self.kind, self.operands)

    def restored(self, x: Array) -> Any:
        """x (N, l) in the shape (or dict of shapes) and dtype of the scores."""
        x = x.reshape(*self.batch, x.shape[-1]).astype(self.dtype)
        layout = self.request.constraints._layout
        return x if layout is None or self.arrangement == "flat" else layout.restored(x, self.arrangement)


def check(request: Request) -> None:
    """Reject what is no set of constants, no solver for JAX, and unknown ways to handle failure."""
    request.check()
    constraints, solver = request.constraints, request.options.solver
    if not constraints._fixed:
        constraints.statement()  # says why such a set cannot be a constant of the computation
    if solver is not None and not isinstance(solver, Newton):
        raise ConstraintError(f"solver is {solver!r}; linsat.jax has linsat.Newton only. Fix: leave solver out.")
    if solver is not None and solver.backend not in ("auto", "kernel", "arrays"):
        raise ConstraintError(
            f"backend is {solver.backend!r}; linsat.jax has 'auto', 'kernel' and 'arrays'. Fix: leave backend out."
        )


def by_kind(request: Request) -> Request:
    """The same with the right-hand sides of rows by their names as those of all rows of a kind."""
    given = dict(request.given)
    if "rhs" not in given:
        return request
    sides, t = right_sides_by_name(request.constraints, given.pop("rhs"), floating, given)
    return request._replace(given=given | sides | ({} if t is None else {"t": t}))


def read(y: Any, request: Request) -> TracedCall:
    """Everything a call says, or a `ConstraintError` that names the argument."""
    constraints, given, objective, _, start = request
    check(request)
    scores, arrangement = flatten("y", y, constraints._layout, constraints.num_variables, _scores)
    numbers = {name: floating(name, value) for name, value in given.items()}
    adjusted, freed = constraints._adjustment(), None
    if "f" in numbers:
        dtype = _known(jnp.asarray, given["f"]).dtype
        freed, adjusted = change(jnp.atleast_1d(numbers["f"]), dtype, None if "E" in numbers else constraints)
    slots = slots_of_call(constraints, numbers, scores.shape[-1])
    if not {"lower", "upper"} & slots.keys():
        objective.check_bounds(constraints)
    batch = joint_batch(scores.shape[:-1], constraints.batch_shape)
    for name, slot in slots.items():
        stated = " and ".join(given for given in numbers if Numbers._fields[SLOT_OF[given]] == name)
        batch = _joint(batch, slot.shape[:-1], stated)
    width = scores.shape[-1]
    objective = objective.read(constraints._layout, batch, width)
    plan = plan_of(constraints, objective, request.solver, width, given=bool(slots))
    if plan.constant:
        _require_consistent(plan, constraints)
    own = slots_of(constraints, width, batch if constraints.batch_shape or slots else (), slots)
    parameters = objective.spread(batch, width).parameters().values()
    kind = _kind(plan, objective, own, slots)
    mine = Numbers(*(None if kept is not None else array for kept, array in zip(kind.constants, own, strict=True)))
    count, work = math.prod(batch), jax.dtypes.canonicalize_dtype(np.float64)
    flat = jnp.broadcast_to(scores, (*batch, width)).reshape(count, width)
    flat = flat if flat.dtype in (np.float32, np.float64) else flat.astype(np.float32)
    begin = read_start(start, batch, constraints, lambda s: floating("start", s), look=False)
    begin = None if begin is None else jax.lax.stop_gradient(begin)
    rest = _rest_of_sides(constraints, numbers, freed, batch) if "side" in slots else None
    operands = operands_of(kind, flat, mine, [jnp.asarray(number, work) for number in parameters], begin, rest)
    adjusted = jnp.broadcast_to(adjusted, batch)
    return TracedCall(kind, operands, adjusted, batch, scores.dtype, arrangement, request)


def _rest_of_sides(
    constraints: Constraints, given: Mapping[str, Array], change: Array | None, batch: tuple[int, ...]
) -> Array | None:
    """Of sides some of which are ``given``, what JAX does not hold: their change, and what rounds the set's own."""
    parts: list[Any] = []
    for name, side in constraints._consistent_sides().items():
        if name not in given:
            wide = np.asarray(side, np.float64)
            with np.errstate(all="ignore"):
                parts.append(np.nan_to_num(wide - wide.astype(jax.dtypes.canonicalize_dtype(np.float64)), posinf=0.0))
        elif name == "f" and change is not None:
            parts.append(change)
        else:
            parts.append(np.zeros(side.shape[-1]))
    if all(isinstance(part, np.ndarray) and not part.any() for part in parts):
        return None
    whole = jnp.asarray(side_by_side(parts), jax.dtypes.canonicalize_dtype(np.float64))
    shape = (1,) if whole.ndim == 1 else batch
    return jnp.broadcast_to(whole, (*shape, whole.shape[-1])).reshape(math.prod(shape), whole.shape[-1])


def _kind(plan: Plan, objective: Objective, numbers: list[Any], slots: Mapping[str, Any]) -> Kind:
    """What is static in the call; the same object for calls of one kind, by which JAX knows what it has compiled."""
    names = Numbers._fields
    constants = tuple(None if name in slots else array for name, array in zip(names, numbers, strict=True))
    stated = objective.kind()
    key = "jax", stated, tuple(map(id, constants))
    if key not in plan.kept:
        plan.kept[key] = Kind(plan, stated, constants, plan.native() and _core_serves(plan.solver))
    return plan.kept[key]


def _core_serves(solver: Any) -> bool:
    reason = unavailable()
    if reason is not None and solver.backend == "kernel":
        raise ConstraintError(f"backend='kernel' cannot be used here: {reason}. Fix: leave backend out.")
    return reason is None


def _require_consistent(plan: Plan, constraints: Constraints) -> None:
    """Raise `InfeasibleError` where the rows of the set itself contradict each other; looked at once."""
    if "consistent" in plan.kept:
        return
    assert plan.numbers is not None
    plan.decided()
    form = plan.form(plan.numbers)
    bounded = bool(np.isfinite(form.upper - form.lower).all())
    if not (bounded and has_even_interior(form, plan.senses(form.rows))):
        reject_infeasible(constraints)
    plan.kept["consistent"] = True


# ------------------------------------------------------------------ single arguments


def _known(function: Any, value: Any) -> Any:
    """function(value), worked out now where the value is known, also while JAX traces something else."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
        return function(value)
    with jax.ensure_compile_time_eval():
        return function(value)


def _scores(name: str, y: Any) -> Array:
    reject_lost(name, y)
    try:
        scores = _known(jnp.asarray, y)
    except (TypeError, ValueError):
        raise not_numbers(name, y, "floating scores") from None
    if not jnp.issubdtype(scores.dtype, jnp.floating):
        raise ConstraintError(f"{name} has dtype {scores.dtype}; expected floating scores. Fix: {name}.astype(float).")
    return scores


def floating(name: str, value: Any) -> Array:
    """A number of a call in the precision of JAX."""
    reject_lost(name, value)
    try:
        array = _known(jnp.asarray, value)
    except (TypeError, ValueError):
        raise ConstraintError(
            f"{name} is a {type(value).__name__}; expected an array of numbers. Fix: jnp.asarray of numbers."
        ) from None
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ConstraintError(f"{name} has dtype {array.dtype}; expected real numbers. Fix: {name}.real.")
    return array.astype(jax.dtypes.canonicalize_dtype(np.float64))


def slots_of_call(constraints: Constraints, numbers: dict[str, Array], width: int) -> dict[str, Array]:
    """The numbers of a call by what they replace, shapes checked."""
    if not numbers:
        return {}
    numbers = {name: _in_shape(constraints, name, array, width) for name, array in numbers.items()}
    slots = slots_given(constraints, numbers)
    assert slots is not None  # shapes fit
    return dict(slots)


def _in_shape(constraints: Constraints, name: str, array: Array, width: int) -> Array:
    """An array as `slots_given` takes it: for each row, for each variable, or for each coefficient of the set."""
    if name in ("lower", "upper"):
        if array.ndim == 0:
            return jnp.broadcast_to(array, (width,))
        return flatten(name, array, constraints._layout, width, lambda _, whole: whole)[0]
    if name == "price":
        return _price(constraints, array)
    block = name if name in _BLOCKS else next(matrix for matrix, side in _BLOCKS.items() if side == name)
    if block not in constraints._matrices:
        raise ConstraintError(f"{name} was given but the set has no rows of that kind. Fix: leave {name} out.")
    matrix = constraints._matrices[block]
    rows, count = matrix.shape[0], len(matrix.row)
    if name != block:
        if array.ndim == 0:
            return jnp.broadcast_to(array, (rows,))
        if array.shape[-1] != rows:
            raise ConstraintError(
                f"{name} has shape {array.shape}; expected (..., {rows}). Fix: one right-hand side per row."
            )
        return array
    whole = matrix.is_whole(array.shape)
    if whole and not matrix.full:
        matrix.reject_whole(array.shape, known=False)
    if not whole and not (array.ndim and array.shape[-1] == count):
        raise ConstraintError(
            f"{name} has shape {array.shape}; expected (..., {rows}, {matrix.shape[1]}), or (..., {count}): one value "
            f"for each non-zero of the set, row by row."
        )
    return array if whole or not matrix.full or matrix.sparse else array.reshape(*array.shape[:-1], *matrix.shape)


def _price(constraints: Constraints, price: Array) -> Array:
    """Prices (batch..., soft rows or all rows)."""
    rows, count = len(constraints), int(constraints._soft_mask().sum())
    if not count:
        raise ConstraintError("price was given but no row of the set is soft. Fix: cons.soften(rows, price=10.0).")
    if price.ndim and price.shape[-1] not in (1, rows, count):
        raise ConstraintError(
            f"price has shape {price.shape}; expected a number, (..., {count}) for the soft rows, or (..., {rows}) for "
            f"all rows, where those of hard rows are not used. Fix: one price per soft row."
        )
    return jnp.broadcast_to(price, (*price.shape[:-1], count)) if not price.ndim or price.shape[-1] == 1 else price


def _joint(batch: tuple[int, ...], shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(batch, shape)
    except ValueError:
        raise ConstraintError(
            f"the batch dimensions {tuple(shape)} of {name} do not broadcast with {batch}. "
            f"Fix: one per instance, or shared."
        ) from None
