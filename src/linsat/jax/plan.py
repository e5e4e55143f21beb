"""What is constant in a computation: the rows of a set as arrays of the host, and what presolve decided of them."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from linsat._array_namespace import namespace
from linsat.compile.box import Box
from linsat.compile.diagnosis import diagnose, error_from
from linsat.compile.forced import presolve_by_program
from linsat.compile.presolve import everything_free, has_even_interior, propagate
from linsat.compile.problem import Presolved, Problem, StandardForm
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.statement import Statement
from linsat.errors import ConstraintError
from linsat.jax.rows import Pattern, PatternRows
from linsat.objectives import Objective
from linsat.solvers import Newton
from linsat.solvers.linear_solve import MOST_DENSE_ROWS

Array = Any
Numbers = dict[str, Array]

FORM = ("values", "lower", "upper", "rhs", "slack", "scale", "dual_lower", "dual_upper")
STATED = ("values", "lower", "upper", "rhs", "price")  # numbers of a call that change the standard form
PRESOLVED = tuple(f.name for f in fields(Presolved))


@dataclass(frozen=True, eq=False)
class Plan:
    """The constants of a projection; hashed by identity, as jit wants its static arguments."""

    pattern: Pattern
    senses: np.ndarray  # (k,)
    soft: np.ndarray  # (k,) bool: rows with a price
    objective: Objective  # its kind; the numbers come with each call
    solver: Newton
    box: Box | None  # None: the set has numbers for each instance
    form: StandardForm | None  # of the box
    presolved: Presolved | None  # of the form
    sides: np.ndarray | None = None  # (1, k) right-hand sides as given, of the form
    suspected: bool = False  # the rows of the set itself may contradict each other
    cleared: list[bool] = field(default_factory=list)  # not empty: looked at, and not proved

    def given_sides(self, numbers: Numbers) -> Array:
        """The right-hand sides as given, (., k), which an entropic slack rounds; from prepared numbers."""
        import jax.numpy as jnp

        return jnp.asarray(numbers.get("sides", self.sides), numbers["y"].dtype)

    def make_box(self, values: Array, lower: Array, upper: Array) -> Box:
        """From coefficients (., nnz) and bounds (., l)."""
        rows, col = PatternRows(self.pattern, values), self.pattern.col
        return Box.of(rows, lower, upper, self.objective, (lower[:, col], upper[:, col]))

    def prepare(self, numbers: Numbers) -> Numbers:
        """The numbers of a call, with standard form and presolve in place of rows and box that differ from the plan.

        Only bounds are propagated here: with traced numbers there is no linear program.
        """
        import jax
        import jax.numpy as jnp

        dtype = numbers["y"].dtype
        found = {name: array for name, array in numbers.items() if name not in STATED}
        if len(found) < len(numbers):
            box = self._box(numbers)
            kept = FORM if "values" in numbers else ("rhs", "slack", "dual_lower", "dual_upper")
            rhs, absent = finite_sides(box, numbers["rhs"])
            form = box.form(rhs, numbers.get("price"), jnp.asarray(self.senses), entropic=self.objective.entropic_slack)
            found |= {name: array for name, array in zip(FORM, form.tensors(), strict=True) if name in kept}
            decided = everything_free(form)
            if self.objective.interior:
                held = [jax.lax.stop_gradient(array) for array in form.tensors()]
                decided = propagate(form.with_tensors(tuple(held)), jnp.asarray(self.senses))
            decided = replace(decided, active=decided.active & ~absent)
            found |= {name: jnp.asarray(getattr(decided, name)) for name in PRESOLVED}
            found["sides"] = jax.lax.stop_gradient(numbers["rhs"])
        if "start" in found:
            scale = found.get("scale", None if self.form is None else self.form.scale)
            found["start"] = found["start"] * jax.lax.stop_gradient(jnp.asarray(scale, dtype))
        if "held" in found:
            found |= self._hold(found, found.pop("held"))
        return found

    def _hold(self, numbers: Numbers, held: Array) -> Numbers:
        """What presolve decides where the variables ``held`` (N, l) sit at their lower bounds.

        Slacks stay those of the whole box, so that x is the limit of ever smaller scores. An instance without such a
        variable keeps what was decided.
        """
        import jax
        import jax.numpy as jnp

        problem = self.problem(numbers)
        before, touched = problem.presolved, held.any(-1)
        wide = problem.upper > problem.lower
        at_upper = jnp.broadcast_to(before.at_upper & ~before.free, held.shape)
        free = before.free & ~held
        infeasible = before.infeasible | (held & at_upper & wide).any(-1)
        if self.objective.interior:  # what is held may force others

            def propagated() -> tuple[Array, Array, Array]:
                values, lower, upper, *rest = (jax.lax.stop_gradient(tensor) for tensor in problem.tensors())
                form = problem.with_tensors((values, lower, jnp.where(held, lower, upper), *rest))
                found = propagate(form, jnp.asarray(self.senses))
                return found.free, found.at_upper, found.infeasible

            nothing = (jnp.ones_like(held), jnp.zeros_like(held), jnp.zeros_like(touched))
            forced = jax.lax.cond(touched.any(), propagated, lambda: nothing)
            at_upper = at_upper | (forced[1] & before.free & touched[:, None])
            free = free & (forced[0] | ~touched[:, None])
            infeasible = infeasible | (forced[2] & touched)
        rows = problem.rows
        live = rows.row_sums((free[:, rows.col] & (rows.values != 0)).astype(rows.values.dtype)) > 0
        # Without an interior a row may be broken by what is fixed, and the solver is what proves it.
        active = before.active & (live | ~touched[:, None]) if self.objective.interior else before.active
        return {"free": free, "at_upper": at_upper, "active": active, "infeasible": infeasible}

    def require_consistent(self, constraints: Constraints) -> None:
        """Raise `InfeasibleError` where the rows of the set itself contradict each other; looked at once."""
        if self.suspected and not self.cleared:
            reject_infeasible(constraints)
            self.cleared.append(True)

    def _box(self, numbers: Numbers) -> Box:
        import jax.numpy as jnp

        dtype = numbers["y"].dtype
        if "values" in numbers or self.box is None:
            return self.make_box(numbers["values"], numbers["lower"], numbers["upper"])
        own = self.box
        arrays = {name: jnp.asarray(getattr(own, name), dtype) for name in ("lower", "upper", "least", "most", "scale")}
        return Box(rows=own.rows.to(dtype), signed=jnp.asarray(own.signed), **arrays)

    def problem(self, numbers: Numbers) -> Problem:
        """The problem on JAX arrays: constants, but for what the numbers of a call say."""
        import jax.numpy as jnp

        y = numbers["y"]
        own = () if self.form is None else self.form.tensors()
        constant = dict(zip(FORM, own, strict=False))
        tensors = [jnp.asarray(numbers.get(name, constant.get(name)), y.dtype) for name in FORM]
        own_rows = self.form is not None and "values" not in numbers
        rows = self.form.rows.to(y.dtype) if own_rows else PatternRows(self.pattern, tensors[0])  # type: ignore
        form = StandardForm(rows, *tensors[1:])  # type: ignore[arg-type]
        parameters = {name: numbers[name] for name in self.objective.parameters()}
        objective = replace(self.objective, **parameters) if parameters else self.objective  # type: ignore[type-var]
        decided = {name: numbers.get(name, getattr(self.presolved, name, None)) for name in PRESOLVED}
        presolved = Presolved(**{name: jnp.asarray(found) for name, found in decided.items()})
        presolved = replace(presolved, tight_share=presolved.tight_share.astype(y.dtype))
        return form.problem(y, objective, presolved)


_plans: weakref.WeakKeyDictionary[Constraints, dict[Any, Plan]] = weakref.WeakKeyDictionary()


def plan_of(constraints: Constraints, width: int, objective: Objective, solver: Newton) -> Plan:
    """The plan of a set, made once for each kind of objective and each solver."""
    kept = _plans.setdefault(constraints, {})
    key = (width, type(objective), objective.entropic_slack, tuple(objective.parameters()), solver)
    if key not in kept:
        kept[key] = _make(constraints, width, objective, solver)
    return kept[key]


def _make(constraints: Constraints, width: int, objective: Objective, solver: Newton) -> Plan:
    stated = constraints.statement()
    count = len(stated.senses)
    if count > MOST_DENSE_ROWS:
        raise ConstraintError(
            f"the set has {count} rows; linsat.jax solves with up to {MOST_DENSE_ROWS}. "
            f'Fix: backend="kernel", which calls the CPU, or linsat.project.'
        )
    parameters = dict.fromkeys(objective.parameters(), np.ones((1, 1)))
    kind = replace(objective, **parameters) if parameters else objective  # type: ignore[type-var]
    pattern = Pattern(stated.row, stated.col, (count, width))
    soft = np.zeros(count, dtype=bool) if stated.price is None else np.isfinite(stated.price).reshape(-1, count)[0]
    plan = Plan(pattern, stated.senses, soft, kind, solver, None, None, None)
    if stated.batch_shape:
        return plan
    numbers = [np.broadcast_to(np.asarray(part), (1, width)) for part in (stated.lower, stated.upper)]
    price = None if stated.price is None else stated.price[None]
    box = plan.make_box(stated.values[None], *numbers)
    rhs, absent = finite_sides(box, stated.rhs[None])
    form = box.form(rhs, price, stated.senses, entropic=kind.entropic_slack)
    found = _presolve(plan, form)
    suspected = bool(found.infeasible.any()) if kind.interior else not _surely_holds(form, stated.senses)
    # Not infeasible until that is proved.
    found = replace(found, active=found.active & ~absent, infeasible=np.zeros_like(found.infeasible))
    return replace(plan, box=box, form=form, presolved=found, sides=stated.rhs[None], suspected=suspected)


def finite_sides(box: Box, rhs: Array) -> tuple[Array, Array]:
    """Right-hand sides (., k), and which rows are absent: an infinite side becomes one that the whole box satisfies."""
    xp = namespace(rhs)
    absent = ~xp.isfinite(rhs)
    return xp.where(absent, xp.where(rhs > 0, box.most, box.least), rhs), absent


def _surely_holds(form: StandardForm, senses: np.ndarray) -> bool:
    """Whether it takes no linear program to see that the rows can hold."""
    return bool(np.isfinite(form.upper - form.lower).all()) and has_even_interior(form, senses)


def _presolve(plan: Plan, form: StandardForm) -> Presolved:
    """What the rows force, decided once: by bounds, and by a linear program where that may not be all."""
    if not plan.objective.interior:
        return everything_free(form)
    found = propagate(form, plan.senses)
    if not found.infeasible.any() and (not found.active.any() or has_even_interior(form, plan.senses)):
        return found
    if not found.infeasible.any():
        found = presolve_by_program(form, plan.senses, found, 0)
    return found


def reject_infeasible(constraints: Constraints, instance: int | None = None) -> None:
    """Raise `InfeasibleError` where the rows (of one instance) are proved to contradict each other."""
    found = diagnose(constraints, instance or 0)
    if found.verdict.kind == "infeasible":
        where = "" if instance is None else f" for instance {instance}"
        raise error_from(constraints, found, instance or 0, where=where)


def flat_statement(stated: Statement, width: int, batch: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The numbers of a set, shared ones as (1, .), those of each instance as (N, .)."""
    sizes = {"values": len(stated.row), "rhs": len(stated.senses), "lower": width, "upper": width}
    found = {name: getattr(stated, name) for name in sizes}
    if stated.price is not None:
        found["price"], sizes["price"] = stated.price, len(stated.senses)
    return {name: flat(array, sizes[name], batch) for name, array in found.items()}


def flat(array: Array, size: int, batch: tuple[int, ...]) -> Array:
    """Shared numbers as (1, size), those of each instance as (N, size)."""
    xp = np if isinstance(array, np.ndarray) else _jnp()
    if array.ndim <= 1:
        return xp.broadcast_to(array, (1, size))
    return xp.broadcast_to(array, (*batch, size)).reshape(math.prod(batch), size)


def _jnp() -> Any:
    import jax.numpy as jnp

    return jnp
