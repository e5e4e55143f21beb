"""The arguments of one call, read, checked as far as JAX lets one look at numbers, and flattened to one batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linsat._senses import EQUAL, GREATER, LESS
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import expected_shape
from linsat.constraints.modelling import not_a_set
from linsat.constraints.statement import Statement
from linsat.errors import ConstraintError
from linsat.jax.plan import Numbers, Plan, flat, flat_statement, plan_of
from linsat.objectives import Entropy, Objective
from linsat.solvers import Newton

Array = Any  # a jax.Array, or a tracer that stands for one
Batch = tuple[int, ...]

_SENSE = {"A": LESS, "C": GREATER, "E": EQUAL, "b": LESS, "d": GREATER, "f": EQUAL}
_ON_FAILURE = ("raise", "warn", "nan", "ignore")
_DEFAULT_TAU = 0.1


@dataclass(frozen=True)
class Given:
    """What a user may replace in a call; None: as in the set."""

    b: Array = None
    d: Array = None
    f: Array = None
    A: Array = None
    C: Array = None
    E: Array = None
    lower: Array = None
    upper: Array = None
    price: Array = None

    def items(self) -> list[tuple[str, Array]]:
        return [(name, value) for name, value in vars(self).items() if value is not None]


@dataclass(frozen=True)
class Call:
    """One call, ready to be solved."""

    plan: Plan
    numbers: Numbers  # flattened
    own: dict[str, Array]  # numbers stated with the call, by the name of their argument, as given
    batch: Batch
    dtype: Any  # of the scores, and so of x
    restore: Any  # x (batch..., l) in the shape of the scores


def is_traced(*arrays: Any) -> bool:
    """Whether JAX only traces, so that values are unknown."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def read_objective(objective: Any, tau: Any) -> Objective:
    """The objective of a call: ``tau=`` is short for the paper's entropy at that temperature."""
    if objective is None:
        return Entropy(tau=_DEFAULT_TAU if tau is None else tau)
    if not isinstance(objective, Objective):
        raise ConstraintError(f"objective is {objective!r}; expected linsat.Entropy(...) or linsat.Euclidean(...).")
    if tau is not None:
        raise ConstraintError(
            "tau and objective were both given; tau belongs to the entropic objective. "
            "Fix: objective=linsat.Entropy(tau=...), or leave objective out."
        )
    return objective


def check_options(constraints: Any, solver: Any, on_failure: Any) -> None:
    if not isinstance(constraints, Constraints):
        raise not_a_set(constraints)
    if solver is not None and not isinstance(solver, Newton):
        raise ConstraintError(f"solver is {solver!r}; linsat.jax has linsat.Newton(...) only.")
    if on_failure not in _ON_FAILURE:
        raise ConstraintError(f"on_failure is {on_failure!r}; expected one of {', '.join(_ON_FAILURE)}.")


def read(
    y: Any, constraints: Constraints, objective: Objective, solver: Newton | None, start: Any, given: Given
) -> Call:
    """Everything a call says, or a `ConstraintError` that names the argument."""
    scores, restore = _read_scores(y, constraints)
    width = scores.shape[-1]
    if objective.finite_box and given.lower is None and given.upper is None:
        constraints.require_finite_box()
    plan = plan_of(constraints, width, objective, solver or Newton())
    stated = constraints.statement()
    own = {name: _floating(name, value) for name, value in given.items()}
    parts = _stated_anew(stated, own, width, constraints)
    batch = _joint_batch(scores, parts, stated)
    work = jax.dtypes.canonicalize_dtype(np.float64)
    numbers: Numbers = {"y": jnp.broadcast_to(scores, (*batch, width)).reshape(math.prod(batch), width).astype(work)}
    numbers |= _form(plan, stated, parts, width, batch, work)
    numbers |= _objective_numbers(objective, constraints, width, batch, work)
    if start is not None:
        numbers["start"] = _read_start(start, (*batch, len(stated.senses)), work)
    _check(numbers, own, batch)
    return Call(plan, numbers, own, batch, scores.dtype, restore)


def _read_scores(y: Any, constraints: Constraints) -> tuple[Array, Any]:
    """Scores as (batch..., l), and what puts x into their shape."""
    layout, width = constraints.layout, constraints.num_variables
    if isinstance(y, Mapping):
        if layout is None or not layout.variables[0].name:
            raise ConstraintError(f"y is a dict, but the set has no named variables. Fix: one array (..., {width}).")
        return _join(y, layout), lambda x: layout.restored(x, "by name")
    scores = jnp.asarray(y)
    if not jnp.issubdtype(scores.dtype, jnp.floating):
        raise ConstraintError(f"y has dtype {scores.dtype}; expected floating scores. Fix: y.astype(float).")
    if scores.ndim and (width is None or scores.shape[-1] == width):
        return scores, lambda x: x
    shaped = None if layout is None else layout.flattened(scores)
    if shaped is None:
        raise ConstraintError(f"y has shape {scores.shape}; expected {expected_shape(layout, width)}.")
    return shaped[0], lambda x: layout.restored(x, shaped[1])  # type: ignore[union-attr]


def _join(y: Mapping[str, Any], layout: Any) -> Array:
    names = [variable.name for variable in layout.variables]
    if sorted(y) != sorted(names):
        raise ConstraintError(f"y has the entries {', '.join(y)}; expected one array for each of {', '.join(names)}.")
    parts = []
    for variable in layout.variables:
        part = jnp.asarray(y[variable.name])
        batch = part.ndim - len(variable.shape)
        if batch < 0 or part.shape[batch:] != variable.shape or not jnp.issubdtype(part.dtype, jnp.floating):
            raise ConstraintError(
                f"y[{variable.name!r}] is {part.dtype} of shape {part.shape}; expected floating scores of shape "
                f"{variable.shape} after any batch dimensions."
            )
        parts.append(part.reshape(*part.shape[:batch], variable.size))
    shape = np.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return jnp.concatenate([jnp.broadcast_to(part, (*shape, part.shape[-1])) for part in parts], -1)


def _floating(name: str, value: Any) -> Array:
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        raise ConstraintError(f"{name} is a {type(value).__name__}; expected an array of numbers.") from None
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ConstraintError(f"{name} has dtype {array.dtype}; expected real numbers.")
    return array.astype(jax.dtypes.canonicalize_dtype(np.float64))


def _stated_anew(
    stated: Statement, own: dict[str, Array], width: int, constraints: Constraints
) -> dict[str, dict[str, Array]]:
    """The numbers of a call by what they replace: values and rhs of blocks, bounds, prices; shapes checked."""
    found: dict[str, dict[str, Array]] = {"values": {}, "rhs": {}, "box": {}, "price": {}}
    for name, array in own.items():
        if name in ("lower", "upper"):
            found["box"][name] = _read_bound(name, array, width, constraints)
        elif name == "price":
            found["price"][name] = _read_price(array, stated)
        else:
            rows = int((stated.senses == _SENSE[name]).sum())
            if not rows:
                raise ConstraintError(f"{name} was given but the set has no rows of that kind. Fix: leave {name} out.")
            if name in "bdf":
                if array.ndim == 0 or array.shape[-1] != rows:
                    raise ConstraintError(
                        f"{name} has shape {array.shape}; expected (..., {rows}), one right-hand side per row."
                    )
                found["rhs"][name] = array
            else:
                found["values"][name] = _read_coefficients(name, array, stated, rows, width)
    return found


def _read_bound(name: str, array: Array, width: int, constraints: Constraints) -> Array:
    if array.ndim == 0 or array.shape[-1] == width:
        return array if array.ndim else jnp.broadcast_to(array, (width,))
    shaped = None if constraints.layout is None else constraints.layout.flattened(array)
    if shaped is None:
        raise ConstraintError(
            f"{name} has shape {array.shape}; expected a number or {expected_shape(constraints.layout, width)}."
        )
    return shaped[0]


def _read_price(array: Array, stated: Statement) -> Array:
    count = len(stated.senses)
    if stated.price is None:
        raise ConstraintError("price was given but no row of the set is soft. Fix: cons.soften(rows, price=10.0).")
    if array.ndim and array.shape[-1] != count:
        raise ConstraintError(
            f"price has shape {array.shape}; expected a number or (..., {count}), one per row of the set; those of "
            f"hard rows are not used."
        )
    return jnp.broadcast_to(array, (count,)) if array.ndim == 0 else array


def _read_coefficients(name: str, array: Array, stated: Statement, rows: int, width: int) -> Array:
    """The values (..., nnz of the block), from those or from a matrix (..., rows, l)."""
    members = stated.senses[stated.row] == _SENSE[name]
    count = int(members.sum())
    if array.ndim >= 2 and array.shape[-2:] == (rows, width):
        first = int(np.flatnonzero(stated.senses == _SENSE[name])[0])
        row, col = stated.row[members] - first, stated.col[members]
        if count < rows * width:
            outside = np.ones((rows, width), dtype=bool)
            outside[row, col] = False
            if is_traced(array) or bool(jnp.any(jnp.where(outside, array, 0.0) != 0)):
                raise ConstraintError(
                    f"{name} may have non-zeros where the set has zeros. Fix: give the {count} values of the set's "
                    f"non-zeros, row by row, (..., {count}); or state the set with numbers everywhere."
                )
        return array[..., row, col]
    if array.ndim and array.shape[-1] == count:
        return array
    raise ConstraintError(
        f"{name} has shape {array.shape}; expected (..., {rows}, {width}), or (..., {count}): one value for each "
        f"non-zero of the set, row by row."
    )


def _joint_batch(scores: Array, parts: dict[str, dict[str, Array]], stated: Statement) -> Batch:
    batch = scores.shape[:-1]
    named = [("the constraint set", stated.batch_shape)]
    named += [(name, array.shape[:-1]) for group in parts.values() for name, array in group.items()]
    for name, shape in named:
        try:
            batch = tuple(np.broadcast_shapes(batch, shape))
        except ValueError:
            raise ConstraintError(
                f"the batch dimensions {tuple(shape)} of {name} do not broadcast with {batch}. "
                f"Fix: one per instance, or shared."
            ) from None
    return batch


def _form(
    plan: Plan, stated: Statement, parts: dict[str, dict[str, Array]], width: int, batch: Batch, dtype: Any
) -> Numbers:
    """The numbers of rows and box that differ from the plan; by name, flat."""
    if not any(parts.values()) and plan.box is not None:
        return {}
    own: dict[str, Array] = flat_statement(stated, width, batch)
    for name, group, at in (("values", "ACE", stated.senses[stated.row]), ("rhs", "bdf", stated.senses)):
        if parts[name]:
            given = {key: flat(array, array.shape[-1], batch) for key, array in parts[name].items()}
            own[name] = _side_by_side([given.get(key, own[name][:, at == _SENSE[key]]) for key in group])
    for name, array in parts["box"].items():
        own[name] = flat(array, width, batch)
    if parts["price"]:
        own["price"] = jnp.where(plan.soft, flat(parts["price"]["price"], len(stated.senses), batch), jnp.inf)
    if plan.box is not None and not parts["values"] and not parts["box"]:
        own = {name: own[name] for name in ("rhs", "price") if name in own}
    return {name: jnp.asarray(array, dtype) for name, array in own.items()}


def _side_by_side(pieces: list[Array]) -> Array:
    """Numbers of the blocks, (1 or N, .) each, in one array."""
    count = max(len(piece) for piece in pieces)
    return jnp.concatenate([jnp.broadcast_to(piece, (count, piece.shape[-1])) for piece in pieces], -1)


def _objective_numbers(objective: Objective, constraints: Constraints, width: int, batch: Batch, dtype: Any) -> Numbers:
    found = {}
    for name, value in objective.parameters().items():
        array = _floating(name, value).astype(dtype)
        if name == "tau":
            try:
                found[name] = jnp.broadcast_to(array, batch).reshape(math.prod(batch), 1)
            except ValueError:
                raise ConstraintError(
                    f"tau has shape {array.shape}; expected a scalar or the batch shape {batch}."
                ) from None
        else:
            array = _read_bound(name, array, width, constraints)
            try:
                found[name] = flat(array, width, batch)
            except ValueError:
                raise ConstraintError(
                    f"{name} has shape {array.shape}; expected ({width},) or the batch shape {batch} and {width}."
                ) from None
    return found


def _read_start(start: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    array = _floating("start", start).astype(dtype)
    if array.shape != shape:
        raise ConstraintError(
            f"start has shape {array.shape}; expected duals of shape {shape}. "
            f"Fix: pass Solution.duals of a solve with the same rows and batch shape."
        )
    return jax.lax.stop_gradient(array.reshape(math.prod(shape[:-1]), shape[-1]))


def _check(numbers: Numbers, own: dict[str, Array], batch: Batch) -> None:
    """Reject numbers that the host can see; those of tracers are unknown, and the status reports them."""
    for name, array in {"y": numbers["y"], **own}.items():
        if is_traced(array):
            continue
        finite = jnp.isfinite(array) | (jnp.isinf(array) if name in ("lower", "upper", "price") else False)
        if not bool(finite.all()):
            raise ConstraintError(f"{name} holds NaN or infinity; expected finite numbers.")
    for name in ("tau", "weights"):
        if name in numbers and not is_traced(numbers[name]):
            array = np.asarray(numbers[name])
            wrong = ~np.isfinite(array) | (array <= 0)
            if wrong.any():
                expected = (
                    "a positive, finite temperature. Fix: for example tau=0.1."
                    if name == "tau"
                    else "positive numbers."
                )
                raise ConstraintError(f"{name} is {array[wrong][0]}; expected {expected}")
    if "price" in own and not is_traced(own["price"]) and not bool((own["price"] > 0).all()):
        raise ConstraintError("price holds a number that is not positive; expected a price per unit of a row.")
    low, high = numbers.get("lower"), numbers.get("upper")
    if low is not None and not is_traced(low, high) and bool((low > high).any()):
        raise ConstraintError("lower exceeds upper for some variable. Fix: lower <= upper everywhere.")
