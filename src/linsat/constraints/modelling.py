"""Writing constraints as formulas over named variables.

>>> X = Variable(3, 3, name="X")
>>> cons = subject_to(X.sum(0) == 1, X.sum(1) <= 1, (2 * X[0, 1] + X[1, 2] >= 0.5).named("corner"))
>>> cons.names[3]
'corner'

`subject_to` lines the variables up, each flattened row by row, into the one vector that is projected; `stack`
builds that vector from arrays shaped like the variables, and `unstack` cuts it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from linsat.constraints.constraint_set import Constraints
from linsat.constraints.expressions import Array, Expression, Relation, Shape, read_constant
from linsat.errors import ConstraintError

__all__ = ["Expression", "Relation", "Variable", "stack", "subject_to", "unstack"]

# sense -> the arguments of `Constraints` that take such rows, in the order in which `Constraints` stacks them
_BLOCKS = {"<=": ("A", "b"), ">=": ("C", "d"), "==": ("E", "f")}


class Variable(Expression):
    """An array of unknowns of the given shape: ``X = Variable(3, 4, name="X")``; ``Variable()`` is a scalar.

    Args:
        shape: one positive length per axis.
        name: how messages call it.
        lower, upper: its own box, a scalar or an array that broadcasts to the shape; default `subject_to`'s.

    >>> X = Variable(2, 3, name="X")
    >>> X.sum(0).shape, (2 * X[0, 1] + X[1, 2] >= 0.5).sense
    ((3,), '>=')
    """

    def __init__(self, *shape: int, name: str = "x", lower: Any = None, upper: Any = None) -> None:
        for length in shape:
            if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 1:
                raise ConstraintError(
                    f"shape contains {length!r}; expected positive integers. Fix: one length per axis, as in "
                    f"Variable(3, 4)."
                )
        if not isinstance(name, str) or not name:
            raise ConstraintError(f"name is {name!r}; expected a non-empty string. Fix: name='X'.")
        self.name = name
        plain = tuple(int(length) for length in shape)
        size = int(np.prod(plain))
        super().__init__(plain, {self: sp.csr_array(sp.eye(size))}, np.zeros(size))
        self.lower = self._read_bound("lower", lower)
        self.upper = self._read_bound("upper", upper)

    def _read_bound(self, side: str, value: Any) -> Array | None:
        if value is None:
            return None
        bound = read_constant(value, f"{side} of {self.name}")
        try:
            return np.broadcast_to(bound, self.shape)
        except ValueError:
            raise ConstraintError(
                f"{side} of {self.name} has shape {bound.shape}; expected a scalar or shape {self.shape}. "
                f"Fix: for bounds per instance use Constraints.with_bounds."
            ) from None

    def __repr__(self) -> str:
        return f"Variable({''.join(f'{length}, ' for length in self.shape)}name={self.name!r})"


def subject_to(
    *relations: Relation, variables: Sequence[Variable] | None = None, lower: float = 0.0, upper: float = 1.0
) -> Constraints:
    """The `Constraints` that hold where every relation holds.

    Args:
        relations: comparisons such as ``X.sum(0) == 1``, one row per entry. A row without any variable is
            dropped if true.
        variables: the order in which variables are stacked; default is the order of first appearance.
        lower, upper: the box of variables that have no bounds of their own.

    Raises:
        ConstraintError: malformed input, or a relation that is false whatever the variables are.

    >>> X, slack = Variable(4, name="X"), Variable(name="slack", upper=5.0)
    >>> subject_to(X.sum() + slack == 3).num_variables
    5
    """
    for relation in relations:
        _check_relation(relation)
    order = _order(relations, variables)
    arguments: dict[str, Any] = {
        "lower": _stacked_bound("lower", lower, order),
        "upper": _stacked_bound("upper", upper, order),
    }
    _check_box(arguments["lower"], arguments["upper"], order)
    names: list[str] = []
    for sense, (matrix, side) in _BLOCKS.items():
        blocks = [_rows(relation, order) for relation in relations if relation.sense == sense]
        blocks = [block for block in blocks if block[2]]
        if blocks:
            arguments[matrix] = sp.vstack([coefficients for coefficients, _, _ in blocks])
            arguments[side] = np.concatenate([right_side for _, right_side, _ in blocks])
            names += [name for _, _, block_names in blocks for name in block_names]
    return Constraints(**arguments, names=names)


def stack(values: Sequence[Any], variables: Sequence[Variable]) -> torch.Tensor:
    """One vector (batch..., variables) from one tensor (batch..., *shape) per variable, such as their scores.

    >>> stack([torch.zeros(7, 2, 3), torch.ones(4)], [Variable(2, 3), Variable(4)]).shape
    torch.Size([7, 10])
    """
    order = _check_variables(variables)
    if len(values) != len(order):
        raise ConstraintError(f"Got {len(values)} values for {len(order)} variables. Fix: pass one per variable.")
    flat = []
    for value, variable in zip(values, order, strict=True):
        tensor = torch.as_tensor(value)
        batch = tensor.dim() - variable.ndim
        if batch < 0 or tuple(tensor.shape[batch:]) != variable.shape:
            raise ConstraintError(
                f"The value of {variable.name} has shape {tuple(tensor.shape)}; expected {variable.shape} "
                f"after any batch dimensions. Fix: reshape it, or check the order of the variables."
            )
        flat.append(tensor.reshape(*tensor.shape[:batch], variable.size))
    try:
        shape = torch.broadcast_shapes(*(tensor.shape[:-1] for tensor in flat))
    except RuntimeError:
        listed = ", ".join(str(tuple(tensor.shape[:-1])) for tensor in flat)
        raise ConstraintError(f"The batch dimensions {listed} do not broadcast. Fix: give all the same.") from None
    return torch.cat([tensor.expand(*shape, -1) for tensor in flat], dim=-1)


def unstack(x: Any, variables: Sequence[Variable]) -> tuple[Any, ...]:
    """Cut a vector (batch..., variables) into one piece (batch..., *shape) per variable, differentiably.

    The order must be that of the constraint set: pass the same list to `subject_to` as ``variables``.

    >>> X, Y = Variable(2, 3), Variable(4)
    >>> [piece.shape for piece in unstack(torch.zeros(7, 10), [X, Y])]
    [torch.Size([7, 2, 3]), torch.Size([7, 4])]
    """
    order = _check_variables(variables)
    vector = x if isinstance(x, torch.Tensor) else np.asarray(x)
    total = sum(variable.size for variable in order)
    if vector.ndim == 0 or vector.shape[-1] != total:
        listed = ", ".join(f"{variable.name} {variable.shape}" for variable in order)
        raise ConstraintError(
            f"x has shape {tuple(vector.shape)}; expected (batch..., {total}) for {listed}. "
            f"Fix: pass all variables of the constraint set, in its order."
        )
    pieces, start = [], 0
    for variable in order:
        piece = vector[..., start : start + variable.size]
        pieces.append(piece.reshape((*vector.shape[:-1], *variable.shape)))
        start += variable.size
    return tuple(pieces)


# ------------------------------------------------------------------ checks


def _check_relation(relation: Any) -> None:
    if isinstance(relation, Relation):
        return
    hint = "compare with <=, >= or =="
    if isinstance(relation, bool | np.bool_):
        hint = "the comparison contains no Variable; leave it out"
    elif isinstance(relation, list | tuple):
        hint = "unpack the sequence, subject_to(*relations)"
    raise ConstraintError(f"subject_to got {relation!r}; expected a relation such as X.sum(0) == 1. Fix: {hint}.")


def _check_variables(variables: Any) -> list[Variable]:
    listed = list(variables) if isinstance(variables, list | tuple) else None
    if not listed or not all(isinstance(variable, Variable) for variable in listed):
        raise ConstraintError(f"variables is {variables!r}; expected a list of Variable. Fix: variables=[X, Y].")
    for variable in listed:
        if sum(variable is other for other in listed) > 1:
            raise ConstraintError(f"variables contains {variable.name} twice. Fix: list every variable once.")
    return listed


def _order(relations: Sequence[Relation], variables: Sequence[Variable] | None) -> list[Variable]:
    used = {variable: None for relation in relations for variable in relation.difference.terms}
    if variables is None:
        if not used:
            raise ConstraintError("subject_to got no relation. Fix: pass relations, or variables=[X] for a box.")
        return list(used)
    order = _check_variables(variables)
    known = dict.fromkeys(order)
    missing = [variable.name for variable in used if variable not in known]
    if missing:
        raise ConstraintError(
            f"variables leaves out {', '.join(missing)}, used in the relations. Fix: list every variable."
        )
    return order


def _stacked_bound(side: str, default: Any, order: Sequence[Variable]) -> Array:
    scalar = read_constant(default, side)
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


def _check_box(lower: Array, upper: Array, order: Sequence[Variable]) -> None:
    crossed = np.flatnonzero(lower > upper)
    if crossed.size:
        at = int(crossed[0])
        raise ConstraintError(
            f"lower = {lower[at]:g} is above upper = {upper[at]:g} at {_entry_text(order, at)}. "
            f"Fix: swap or widen them."
        )


# ------------------------------------------------------------------ rows and their names


def _rows(relation: Relation, order: Sequence[Variable]) -> tuple[sp.csr_array, Array, list[str]]:
    """Coefficients, right-hand sides and names of one relation's rows, without those that contain no variable."""
    difference, sense = relation.difference, relation.sense
    none = [sp.csr_array((difference.size, variable.size)) for variable in order]
    blocks = [difference.terms.get(variable, zero) for variable, zero in zip(order, none, strict=True)]
    coefficients = sp.csr_array(sp.hstack(blocks), copy=True)  # own arrays: the next two lines work in place
    coefficients.sum_duplicates()
    coefficients.eliminate_zeros()
    right_side = 0.0 - difference.constant
    filled = np.diff(coefficients.indptr) > 0
    names = []
    for row in range(difference.size):
        label = "" if relation.label is None else relation.label + _index_text(difference.shape, row)
        if filled[row]:
            names.append(label or f"{_row_text(coefficients, row, order)} {sense} {right_side[row]:g}")
        elif not _holds(right_side[row], sense):
            raise ConstraintError(
                f"A row without variables is false: {label and label + ': '}0 {sense} {right_side[row]:g}. "
                f"Fix: correct or remove it."
            )
    return coefficients[filled], right_side[filled], names


def _holds(right_side: float, sense: str) -> bool:
    return bool({"<=": right_side >= 0, ">=": right_side <= 0, "==": right_side == 0}[sense])


def _index_text(shape: Shape, flat: int) -> str:
    return f"[{', '.join(str(i) for i in np.unravel_index(flat, shape))}]" if shape else ""


def _entry_text(order: Sequence[Variable], column: int) -> str:
    """The variable and index behind one entry of the stacked vector."""
    for variable in order:
        if column < variable.size:
            break
        column -= variable.size
    return variable.name + _index_text(variable.shape, column)


def _row_text(coefficients: sp.csr_array, row: int, order: Sequence[Variable]) -> str:
    """The left side in the user's names, shortened beyond four terms: X[0, 1] + X[1, 1] + ... + X[9, 1]."""
    here = range(coefficients.indptr[row], coefficients.indptr[row + 1])
    text = ""
    for position in here if len(here) <= 4 else (here[0], here[1], here[-1]):
        value = float(coefficients.data[position])
        skipped = "+ ... " if len(here) > 4 and position == here[-1] else ""
        sign = f" {skipped}{'-' if value < 0 else '+'} " if text else ("-" if value < 0 else "")
        size = "" if abs(value) == 1 else f"{abs(value):g} "
        text += sign + size + _entry_text(order, int(coefficients.indices[position]))
    return text
