"""Constraint sets from and to what users already have: cvxpy, scipy.optimize, HiGHS.

Reached as `Constraints.from_cvxpy`, `Constraints.from_scipy` and `Constraints.to_highs`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat._optional import require
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Layout, NamedArray, index_text
from linsat.constraints.numbers import present
from linsat.errors import ConstraintError, LinSATWarning
from linsat.interop.two_sided import Box, TwoSided, read_box, to_constraints
from linsat.verdict.diagnosis import linear_system

# What a cvxpy variable may be declared as, and the bounds it means; anything else must be off.
_CVXPY_BOUNDS = {
    "nonneg": (0.0, np.inf),
    "pos": (0.0, np.inf),
    "nonpos": (-np.inf, 0.0),
    "neg": (-np.inf, 0.0),
    "boolean": (0.0, 1.0),
    "integer": (-np.inf, np.inf),
}


def from_scipy(constraints: Any, bounds: Any = None, *, box: Box | None = None) -> Constraints:
    """Rows of ``scipy.optimize.LinearConstraint`` in ``scipy.optimize.Bounds``; see `Constraints.from_scipy`."""
    from scipy import optimize

    given = list(constraints) if isinstance(constraints, (list, tuple)) else [constraints]
    blocks: list[sp.csr_array] = []
    lows: list[np.ndarray] = []
    highs: list[np.ndarray] = []
    names: list[str] = []
    for position, constraint in enumerate(given):
        if not isinstance(constraint, optimize.LinearConstraint):
            raise ConstraintError(
                f"constraints[{position}] is {type(constraint).__name__}; expected scipy.optimize.LinearConstraint. "
                f"Fix: LinearConstraint(A, lb, ub); other kinds of constraints are not linear rows."
            )
        matrix = sp.csr_array(np.atleast_2d(constraint.A) if not sp.issparse(constraint.A) else constraint.A)
        blocks.append(matrix.astype(np.float64))
        for name, ends, into in (("lb", constraint.lb, lows), ("ub", constraint.ub, highs)):
            into.append(_spread(f"constraints[{position}].{name}", ends, matrix.shape[0]))
        whole = f"constraint {position}"
        names += [whole] if matrix.shape[0] == 1 else [f"{whole}[{i}]" for i in range(matrix.shape[0])]
    if bounds is not None and not isinstance(bounds, optimize.Bounds):
        raise ConstraintError(
            f"bounds is {type(bounds).__name__}; expected scipy.optimize.Bounds or None. Fix: Bounds(lower, upper)."
        )
    widths = {block.shape[1] for block in blocks}
    if bounds is not None and max(np.size(bounds.lb), np.size(bounds.ub)) > 1:
        widths.add(max(np.size(bounds.lb), np.size(bounds.ub)))
    if len(widths) != 1:
        raise ConstraintError(
            f"constraints and bounds are over {sorted(widths) or 'no'} variables; expected one number of variables."
        )
    count = widths.pop()
    lower = _spread("bounds.lb", -np.inf if bounds is None else bounds.lb, count)
    upper = _spread("bounds.ub", np.inf if bounds is None else bounds.ub, count)
    stacked = sp.csr_array(sp.vstack(blocks)) if blocks else sp.csr_array((0, count))
    none: list[np.ndarray] = [np.zeros(0)]
    rows = TwoSided(stacked, np.concatenate(lows or none), np.concatenate(highs or none), lower, upper, names, None)
    return to_constraints(rows, read_box(box))[0]


def from_cvxpy(constraints: Any, variable: Any, *, box: Box | None = None) -> Constraints:
    """The affine constraints of a cvxpy problem over one variable; see `Constraints.from_cvxpy`."""
    cp = require("cvxpy", extra="cvxpy", purpose="Constraints.from_cvxpy")
    if not isinstance(variable, cp.Variable):
        raise ConstraintError(f"variable is {type(variable).__name__}; expected a cvxpy.Variable.")
    given = list(constraints) if isinstance(constraints, (list, tuple)) else [constraints]
    lower, upper = _cvxpy_bounds(variable)
    # cvxpy counts the entries of a matrix down its columns, linsat along its rows.
    columns = np.arange(variable.size).reshape(variable.shape, order="F").ravel(order="C")
    parts = [_cvxpy_rows(cp, position, constraint, variable) for position, constraint in enumerate(given)]
    matrices = [matrix[:, columns] for matrix, *_ in parts]
    none: list[np.ndarray] = [np.zeros(0)]
    rows = TwoSided(
        sp.csr_array(sp.vstack(matrices)) if matrices else sp.csr_array((0, variable.size)),
        np.concatenate([low for _, low, _, _ in parts] or none),
        np.concatenate([high for _, _, high, _ in parts] or none),
        lower.ravel(order="C"),
        upper.ravel(order="C"),
        [name for *_, names in parts for name in names],
        Layout((NamedArray(variable.name(), tuple(variable.shape), (None,) * variable.ndim),)),
    )
    return to_constraints(rows, read_box(box))[0]


def to_highs(constraints: Constraints, *, scores: Any = None) -> Any:
    """A ``highspy.Highs`` model with the rows and the box of a set; see `Constraints.to_highs`."""
    highspy = require("highspy", extra="highs", purpose="Constraints.to_highs")
    if constraints.batch_shape or constraints.num_variables is None:
        what = f"batch {tuple(constraints.batch_shape)}" if constraints.batch_shape else "any number of variables"
        raise ConstraintError(
            f"constraints have {what}; expected one instance over a fixed number of variables. "
            f"Fix: with_coefficients, with_rhs and with_bounds with one instance's numbers."
        )
    constraints._require_linear("Constraints.to_highs")
    price, system = present(constraints).price, linear_system(constraints)
    if price is not None:
        row = constraints.names[int(np.isfinite(price).argmax())]
        raise ConstraintError(
            f"row {row!r} is soft; LP, MPS and HiGHS models hold hard rows only. Fix: save as .json or .npz, or leave "
            f"soften out."
        )
    count = constraints.num_variables
    cost = np.zeros(count)
    if scores is not None:
        cost = np.array(scores.tolist() if hasattr(scores, "tolist") else scores, dtype=np.float64)
        if cost.shape != (count,) or not np.isfinite(cost).all():
            raise ConstraintError(f"scores have shape {cost.shape}; expected {count} finite numbers, one per variable.")
    matrix = system.matrix
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = count, len(constraints)
    lp.col_cost_ = cost
    lp.sense_ = highspy.ObjSense.kMaximize if scores is not None else highspy.ObjSense.kMinimize
    lp.col_lower_, lp.col_upper_ = system.lower, system.upper
    lp.row_lower_, lp.row_upper_ = system.row_lower, system.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = count, len(constraints)
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
    layout = constraints._layout
    lp.col_names_ = [f"x{i}" for i in range(count)] if layout is None else _solver_names(layout.entries(), "x")
    lp.row_names_ = _solver_names(constraints.names, "row")
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    if highs.passModel(lp) == highspy.HighsStatus.kError:
        raise ConstraintError("HiGHS does not take these constraints. Fix: rows and bounds of ordinary size.")
    return highs


def _solver_names(names: Sequence[str], otherwise: str) -> list[str]:
    """Names that LP and MPS files can hold: letters, digits, point and underscore, not like a number, each once."""
    taken: dict[str, None] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_.]+", "_", name).strip("_") or otherwise
        plain = f"{otherwise[0]}_{plain}" if re.match(r"[0-9.]|[eE][0-9]", plain) else plain
        unique, number = plain, 1
        while unique in taken:
            number += 1
            unique = f"{plain}_{number}"
        taken[unique] = None
    return list(taken)


def _spread(name: str, ends: Any, count: int) -> np.ndarray:
    try:
        return np.broadcast_to(np.asarray(ends, dtype=np.float64), (count,)).copy()
    except (TypeError, ValueError):
        raise ConstraintError(f"{name} has shape {np.shape(ends)}; expected a number or {count} of them.") from None


def _cvxpy_bounds(variable: Any) -> tuple[np.ndarray, np.ndarray]:
    """The box that the attributes of a cvxpy variable mean, in its shape."""
    lower, upper = np.full(variable.shape, -np.inf), np.full(variable.shape, np.inf)
    for attribute, value in variable.attributes.items():
        if value is None or (isinstance(value, (bool, list, tuple)) and not value):
            continue
        if attribute == "bounds":
            ends = [np.asarray(getattr(end, "value", end), dtype=np.float64) for end in value]
            lower, upper = np.maximum(lower, ends[0]), np.minimum(upper, ends[1])
        elif attribute in _CVXPY_BOUNDS:
            low, high = _CVXPY_BOUNDS[attribute]
            # boolean and integer may be a list of the entries that are.
            where: Any = ... if value is True else tuple(np.asarray(value).T) if attribute == "boolean" else None
            if where is not None:
                lower[where], upper[where] = np.maximum(lower[where], low), np.minimum(upper[where], high)
            if attribute in ("boolean", "integer"):
                warnings.warn(
                    f"variable {variable.name()!r} is {attribute}: relaxed, it may take any value within its bounds.",
                    LinSATWarning,
                    stacklevel=4,
                )
        else:
            raise ConstraintError(
                f"variable {variable.name()!r} is declared {attribute}; expected none of its kind, because that is no "
                f"row of the layer. Fix: a plain variable, with the condition written as affine constraints."
            )
    return lower, upper


def _cvxpy_rows(
    cp: Any, position: int, constraint: Any, variable: Any
) -> tuple[sp.csr_array, np.ndarray, np.ndarray, Sequence[str]]:
    """One cvxpy constraint as rows low <= A x <= high in cvxpy's order of variables, rows counted along rows."""
    kind = type(constraint).__name__
    place = f"constraints[{position}]"
    senses = {"Equality": "==", "Zero": "==", "Inequality": "<=", "NonPos": "<=", "NonNeg": ">="}
    if not isinstance(constraint, cp.constraints.constraint.Constraint) or kind not in senses:
        raise ConstraintError(
            f"{place} is {kind}; expected an affine equality or inequality (==, <=, >=, Zero, NonPos, NonNeg). "
            f"Fix: leave it out or replace it by linear rows."
        )
    expression = constraint.expr
    if not expression.is_affine():
        raise ConstraintError(
            f"{place} is not affine: {str(constraint)[:100]}. Fix: leave it out or replace it by linear rows."
        )
    others = [other.name() for other in expression.variables() if other.id != variable.id]
    if others:
        raise ConstraintError(
            f"{place} uses variable {others[0]!r} besides {variable.name()!r}; expected constraints on one variable. "
            f"Fix: make both entries of one cvxpy variable."
        )
    for parameter in expression.parameters():
        if parameter.value is None:
            raise ConstraintError(f"{place} uses parameter {parameter.name()!r} without a value. Fix: set its value.")
    before = variable.value
    variable.save_value(np.zeros(variable.shape))  # without the check against its attributes: 0 may be out of bounds
    try:
        constant = np.asarray(expression.value, dtype=np.float64)
        gradient = expression.grad.get(variable)
    finally:
        variable.save_value(before)
    size = int(np.prod(expression.shape, dtype=np.int64))
    if gradient is None:
        matrix = sp.csr_array((size, variable.size))
    else:
        matrix = sp.csr_array(sp.coo_array(np.atleast_2d(gradient) if not sp.issparse(gradient) else gradient).T)
    order = np.arange(size).reshape(expression.shape, order="F").ravel(order="C")
    side = -constant.ravel(order="C")
    matrix = matrix[order]
    low = side if senses[kind] in ("==", ">=") else np.full(size, -np.inf)
    high = side if senses[kind] in ("==", "<=") else np.full(size, np.inf)
    # cvxpy keeps a >= b as b - a <= 0; a row without a positive coefficient is turned back to how a user writes it.
    turned = np.where((matrix > 0).sum(1) == 0, -1.0, 1.0)
    matrix = sp.csr_array(sp.csr_array(sp.diags(turned)) @ matrix)
    low, high = np.where(turned < 0, -high, low), np.where(turned < 0, -low, high)
    labels = (None,) * expression.ndim
    names = [f"constraint {position}" + index_text(index, labels) for index in np.ndindex(*expression.shape)]
    return matrix, low, high, names
