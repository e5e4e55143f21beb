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
from linsat.jax.numbers import unusable
from linsat.jax.plan import Numbers, Plan, flat, flat_statement, plan_of
from linsat.jax.rounded import consistent
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
    own: dict[str, Array]  # numbers stated with the call, by the name of their argument, freed of rounding
    adjusted: Array  # (batch...) the largest relative change that took
    batch: Batch
    dtype: Any  # of the scores, and so of x
    restore: Any  # x (batch..., l) in the shape of the scores


def is_traced(*arrays: Any) -> bool:
    """Whether JAX only traces, so that values are unknown."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def _eagerly(function: Any, value: Any) -> Any:
    """function(value), worked out now where the value is known, also while JAX traces something else."""
    if is_traced(*jax.tree.leaves(value)):
        return function(value)
    with jax.ensure_compile_time_eval():
        return function(value)


def _may_hold(which: Any, array: Any) -> bool:
    """Whether some number is as ``which`` says, or may be because JAX only traces it."""
    return is_traced(array) or bool(_eagerly(lambda array: which(array).any(), array))


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
    y: Any,
    constraints: Constraints,
    objective: Objective,
    solver: Newton | None,
    start: Any,
    given: Given,
    on_failure: str,
) -> Call:
    """Everything a call says, or a `ConstraintError` that names the argument."""
    scores, restore = _read_scores(y, constraints)
    width = scores.shape[-1]
    if given.lower is None and given.upper is None:
        objective.check_bounds(constraints)
    plan = plan_of(constraints, width, objective, solver or Newton())
    stated = constraints.statement()
    own = {name: _floating(name, value) for name, value in given.items()}
    adjusted = constraints.adjustment()
    if "f" in own:
        dtype = _eagerly(jnp.asarray, given.f).dtype
        own["f"], adjusted = _eagerly(lambda f: consistent(f, dtype, None if "E" in own else constraints), own["f"])
    parts = _stated_anew(stated, own, width, constraints)
    if not own:
        plan.require_consistent(constraints)
    batch = _joint_batch(scores, parts, stated)
    check = _Check(plan, stands_alone=on_failure in ("nan", "ignore"))
    check.scores(scores, parts["box"].get("lower", stated.lower))
    check.rows_and_box(parts, stated)
    work = jax.dtypes.canonicalize_dtype(np.float64)
    numbers: Numbers = _flat_scores(scores, batch, work)
    numbers |= _form(plan, stated, parts, width, batch, work)
    numbers |= _objective_numbers(objective, constraints, width, batch, check)
    if start is not None:
        numbers["start"] = _read_start(start, (*batch, len(stated.senses)), work)
    return Call(plan, numbers, own, jnp.broadcast_to(adjusted, batch), batch, scores.dtype, restore)


def _flat_scores(scores: Array, batch: Batch, dtype: Any) -> Numbers:
    """y (N, l); where a score is or may be -inf, 0 and a mark: x is held at its lower bound there."""
    shape = (math.prod(batch), scores.shape[-1])
    flat_scores = jnp.broadcast_to(scores, (*batch, shape[1])).reshape(shape).astype(dtype)
    if not _may_hold(jnp.isneginf, scores):
        return {"y": flat_scores}
    held = jnp.isneginf(flat_scores)
    return {"y": jnp.where(held, 0.0, flat_scores), "held": held}


def _read_scores(y: Any, constraints: Constraints) -> tuple[Array, Any]:
    """Scores as (batch..., l), and what puts x into their shape."""
    layout, width = constraints.layout, constraints.num_variables
    if isinstance(y, Mapping):
        if layout is None or not layout.variables[0].name:
            raise ConstraintError(f"y is a dict, but the set has no named variables. Fix: one array (..., {width}).")
        return _eagerly(lambda parts: _join(parts, layout), dict(y)), lambda x: layout.restored(x, "by name")
    scores = _eagerly(jnp.asarray, y)
    if not jnp.issubdtype(scores.dtype, jnp.floating):
        raise ConstraintError(f"y has dtype {scores.dtype}; expected floating scores. Fix: y.astype(float).")
    if scores.ndim and (width is None or scores.shape[-1] == width):
        return scores, lambda x: x
    shaped = None if layout is None else _eagerly(layout.flattened, scores)
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
        array = _eagerly(jnp.asarray, value)
    except (TypeError, ValueError):
        raise ConstraintError(f"{name} is a {type(value).__name__}; expected an array of numbers.") from None
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ConstraintError(f"{name} has dtype {array.dtype}; expected real numbers.")
    return _eagerly(lambda array: array.astype(jax.dtypes.canonicalize_dtype(np.float64)), array)


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
        return array if array.ndim else _eagerly(lambda array: jnp.broadcast_to(array, (width,)), array)
    shaped = None if constraints.layout is None else _eagerly(constraints.layout.flattened, array)
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
    return _eagerly(lambda array: jnp.broadcast_to(array, (count,)), array) if array.ndim == 0 else array


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
            if _may_hold(lambda array: jnp.where(outside, array, 0.0) != 0, array):
                raise ConstraintError(
                    f"{name} may have non-zeros where the set has zeros. Fix: give the {count} values of the set's "
                    f"non-zeros, row by row, (..., {count}); or state the set with numbers everywhere."
                )
        return _eagerly(lambda array: array[..., row, col], array)
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


def _objective_numbers(
    objective: Objective, constraints: Constraints, width: int, batch: Batch, check: _Check
) -> Numbers:
    found = {}
    for name, value in objective.parameters().items():
        array = _floating(name, value)
        check.objective(name, array)
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


@dataclass(frozen=True)
class _Check:
    """Rejects numbers that the host can see; those of tracers are unknown, and the status reports them."""

    plan: Plan
    stands_alone: bool  # the status reports those of single instances too, so that one does not stop a batch

    def scores(self, scores: Array, lower: Array) -> None:
        if self.stands_alone:
            return
        if self._wrong("y", scores):
            raise ConstraintError(
                "y holds NaN or infinity; expected finite scores, or -inf for x at its lower bound. "
                'Fix: mend the scores, or on_failure="nan", which gives NaN for such instances alone.'
            )
        if is_traced(scores, lower) or not _may_hold(jnp.isneginf, scores):
            return
        if _may_hold(lambda y: jnp.isneginf(y) & jnp.isneginf(lower), scores):
            raise ConstraintError(
                "y is -inf, which puts x at its lower bound, where lower is -inf too. Fix: a finite lower= there."
            )

    def rows_and_box(self, parts: dict[str, dict[str, Array]], stated: Statement) -> None:
        for kind, group in parts.items():
            for name, array in group.items():
                if not (self.stands_alone and array.ndim > 1):
                    self._number(name, array, name if kind in ("box", "price") else kind)
        low, high = (parts["box"].get(name, getattr(stated, name)) for name in ("lower", "upper"))
        alone = self.stands_alone and max(low.ndim, high.ndim) > 1
        if parts["box"] and not alone and not is_traced(low, high) and _may_hold(lambda low: low > high, low):
            raise ConstraintError("lower exceeds upper for some variable. Fix: lower <= upper everywhere.")

    def _number(self, name: str, array: Array, kind: str) -> None:
        senses = _SENSE[name] if kind == "rhs" else self.plan.senses
        if not self._wrong(kind, array, senses):
            return
        if kind == "price":
            raise ConstraintError(
                "price holds a number that is not positive and finite; expected the price of one unit of each soft "
                "row. Fix: for example price=10.0."
            )
        if kind == "rhs" and name != "f":
            open_end = "inf" if name == "b" else "-inf"
            raise ConstraintError(
                f"{name} holds NaN or infinity; expected finite numbers, or {open_end} for a row that is absent. "
                f"Fix: mend them."
            )
        if kind in ("lower", "upper"):
            objective = type(self.plan.objective).__name__
            also = f" {objective} works inside finite bounds." if self.plan.objective.finite_box else ""
            raise ConstraintError(f"{name} holds NaN or infinity; expected bounds.{also} Fix: give finite numbers.")
        raise ConstraintError(f"{name} holds NaN or infinity; expected finite numbers. Fix: mend them.")

    def objective(self, name: str, array: Array) -> None:
        alone = self.stands_alone and array.ndim > (0 if name == "tau" else 1)
        if alone or not self._wrong(name, array):
            return
        numbers = np.asarray(array)
        first = numbers[~(np.isfinite(numbers) & (numbers > 0))][0]
        expected = "a positive, finite temperature. Fix: for example tau=0.1."
        if name != "tau":
            expected = "positive, finite numbers. Fix: for example weights=1.0."
        raise ConstraintError(f"{name} is {first}; expected {expected}")

    def _wrong(self, kind: str, array: Array, senses: Any = 0) -> bool:
        """Whether some number is seen to be unusable."""
        soft, finite_box = self.plan.soft, self.plan.objective.finite_box
        return not is_traced(array) and _may_hold(lambda it: unusable(kind, it, senses, soft, finite_box), array)
