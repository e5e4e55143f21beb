"""Writing constraints as formulas over named variables.

>>> X = Variable(3, 3, name="X")
>>> cons = subject_to(X.sum(0) == 1, X.sum(1) <= 1, (2 * X[0, 1] + X[1, 2] >= 0.5).named("corner"))
>>> cons.names[3], cons.row_text(0)
('corner', 'X[0, 0] + X[0, 1] + X[0, 2] <= 1')

`subject_to` lines the variables up, each flattened row by row, into the one vector that is projected; the set remembers
their names and shapes. Maxima (`abs`, `norm`, ...) become the `Terms` of the set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat.constraints.arrays import Array, read_constant, shown
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.expressions import Expression, Relation
from linsat.constraints.layout import Layout
from linsat.constraints.maxima import Maxima, maximum, minimum, norm, variables_of
from linsat.constraints.terms import Terms
from linsat.constraints.text import NAME_TERMS, row_text
from linsat.constraints.variables import NO_BOUND, Variable, check_variables
from linsat.errors import ConstraintError

__all__ = ["Expression", "Relation", "Variable", "maximum", "minimum", "norm", "subject_to"]

# sense -> the arguments of `Constraints` that take such rows, in the order in which `Constraints` stacks them
_BLOCKS = {"<=": ("A", "b"), ">=": ("C", "d"), "==": ("E", "f")}


def not_a_set(value: Any) -> ConstraintError:
    """The error for what was given in place of a constraint set, with the call that makes a set of it."""
    fix = "linsat.Constraints(A=A, b=b)"
    if callable(value):
        fix = f"call it, {getattr(value, '__name__', 'make_set')}(...)"
    elif isinstance(value, Relation):
        fix = "linsat.subject_to(relation)"
    elif isinstance(value, (list, tuple)) and value and all(isinstance(entry, Relation) for entry in value):
        fix = "linsat.subject_to(*relations)"
    elif hasattr(value, "shape"):
        fix += "; scores come first, project(y, constraints)"
    return ConstraintError(f"constraints is a {type(value).__name__}; expected linsat.Constraints. Fix: {fix}.")


def subject_to(
    *relations: Relation, variables: Sequence[Variable] | None = None, lower: float = 0.0, upper: float = 1.0
) -> Constraints:
    """The `Constraints` that hold where every relation holds.

    Args:
        relations: comparisons such as ``X.sum(0) == 1``, one row per entry, with ``abs(...)``, `linsat.maximum`,
            `linsat.norm` and the like where the set stays convex. A row without any variable is dropped if true.
        variables: the order in which variables are stacked; default is the order of first appearance.
        lower, upper: the box of variables that have no bounds of their own; ``-inf`` and ``inf`` for no bound.

    `linsat.project` and `linsat.LinSAT` take scores for the set in the shape of its variable, (batch..., 3, 4), or
    as a dict of several, ``{"X": (batch..., 3, 4), "slack": (batch...)}``, and return x likewise; or flat.

    Raises:
        ConstraintError: malformed input, or a relation that is false whatever the variables are.

    >>> X, slack = Variable(4, name="X"), Variable(name="slack", upper=5.0)
    >>> subject_to(X.sum() + slack == 3).num_variables
    5
    """
    for relation in relations:
        _check_relation(relation)
    order = _order(relations, variables)
    layout = Layout(tuple(variable.array for variable in order))
    arguments: dict[str, Any] = {
        "lower": _stacked_bound("lower", lower, order),
        "upper": _stacked_bound("upper", upper, order),
        "variables": layout,
    }
    maxima = list(dict.fromkeys(key for r in relations for key in r.difference.terms if isinstance(key, Maxima)))
    names: list[str | None] = []
    weights: list[sp.csr_array] = []
    for sense, (matrix, side) in _BLOCKS.items():
        blocks = [_rows(relation, order, maxima) for relation in relations if relation.sense == sense]
        blocks = [block for block in blocks if block[2]]
        if blocks:
            arguments[matrix] = sp.vstack([coefficients for coefficients, _, _, _ in blocks])
            arguments[side] = np.concatenate([right_side for _, right_side, _, _ in blocks])
            names += [name for _, _, block_names, _ in blocks for name in block_names]
            weights += [block[3] for block in blocks]
    if maxima and weights:
        arguments["terms"] = Terms.of_weights(sp.csr_array(sp.vstack(weights)), maxima, order)
    made = Constraints(**arguments, names=["" if name is None else name for name in names])
    if None in names:  # a row without a name is called by what it says
        made._names = tuple(row_text(made, i, None, NAME_TERMS) if n is None else n for i, n in enumerate(names))
    rounding = max((relation.rounding for relation in relations if relation.sense == "=="), default=0.0)
    return made._derived(sides={"f": made._right_sides["f"]}, rounding=rounding) if rounding else made


# ------------------------------------------------------------------ checks


def _check_relation(relation: Any) -> None:
    if isinstance(relation, Relation):
        return
    hint, what = "compare with <=, >= or ==", shown(relation)
    if isinstance(relation, bool | np.bool_):
        hint = "the comparison contains no Variable; leave it out"
    elif isinstance(relation, list | tuple):
        hint, what = "unpack the sequence, subject_to(*relations)", f"a {type(relation).__name__}"
    elif isinstance(relation, Constraints):
        hint, what = "join sets by &, cons & linsat.subject_to(relation)", "a Constraints"
    elif isinstance(relation, str):
        hint = "without quotes, in Python: X[0] + X[1] <= 1"
    raise ConstraintError(f"subject_to got {what}; expected a relation such as X.sum(0) == 1. Fix: {hint}.")


def _order(relations: Sequence[Relation], variables: Sequence[Variable] | None) -> list[Variable]:
    used = {variable: None for relation in relations for variable in variables_of(relation.difference)}
    if variables is None:
        if not used:
            raise ConstraintError("subject_to got no relation. Fix: pass relations, or variables=[X] for a box.")
        return check_variables(list(used))
    order = check_variables(variables)
    known = dict.fromkeys(order)
    missing = [variable.name for variable in used if variable not in known]
    if missing:
        raise ConstraintError(
            f"variables leaves out {', '.join(missing)}, used in the relations. Fix: list every variable."
        )
    return order


def _stacked_bound(side: str, default: Any, order: Sequence[Variable]) -> Array:
    scalar = read_constant(default, side, missing=NO_BOUND[side])
    if scalar.shape:
        raise ConstraintError(
            f"{side} has shape {scalar.shape}; expected one number for all variables. "
            f"Fix: give the variable its own, Variable(..., {side}=...)."
        )
    own = [variable.lower if side == "lower" else variable.upper for variable in order]
    return np.concatenate(
        [
            np.broadcast_to(scalar if bound is None else bound, variable.shape).reshape(-1)
            for bound, variable in zip(own, order, strict=True)
        ]
    )


# ------------------------------------------------------------------ rows and their names


def _rows(
    relation: Relation, order: Sequence[Variable], maxima: Sequence[Maxima]
) -> tuple[sp.csr_array, Array, list[str | None], sp.csr_array]:
    """Coefficients, right-hand sides, names and weights of maxima of one relation's rows that contain a variable."""
    difference, sense = relation.difference, relation.sense
    # Own arrays: they are worked on in place.
    coefficients, weights = (_side_by_side(difference, keys) for keys in (order, maxima))
    right_side = 0.0 - difference.constant
    filled = (np.diff(coefficients.indptr) > 0) | (np.diff(weights.indptr) > 0)
    names: list[str | None] = []
    for row in range(difference.size):
        label = "" if relation.names is None else relation.names[row]
        if filled[row]:
            names.append(label or None)
        elif not _holds(right_side[row], sense):
            raise ConstraintError(
                f"A row without variables is false: {label and label + ': '}0 {sense} {right_side[row]:g}. "
                f"Fix: correct or remove it."
            )
    return coefficients[filled], right_side[filled], names, weights[filled]


def _side_by_side(difference: Expression, keys: Sequence[Any]) -> sp.csr_array:
    """The coefficients of some variables or maxima, one beside the other, without zeros."""
    if not keys:
        return sp.csr_array((difference.size, 0))
    blocks = [difference.terms.get(key, sp.csr_array((difference.size, key.size))) for key in keys]
    whole = sp.csr_array(sp.hstack(blocks), copy=True)
    whole.sum_duplicates()
    whole.eliminate_zeros()
    return whole


def _holds(right_side: float, sense: str) -> bool:
    return bool({"<=": right_side >= 0, ">=": right_side <= 0, "==": right_side == 0}[sense])
