"""`Variable`: an array of unknowns with a name, a shape, labels on its axes and its own box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat.constraints.arrays import Array, read_constant, shown
from linsat.constraints.checks import check_bounds
from linsat.constraints.expressions import Expression
from linsat.constraints.layout import Layout, NamedArray
from linsat.errors import ConstraintError


class Variable(Expression):
    """An array of unknowns: ``X = Variable(3, 4, name="X")``; ``Variable()`` is a scalar.

    Args:
        axes: for each axis its length, or the labels of its entries, a list of texts. Labels appear in every message,
            also in the names of rows, and index like numbers: ``works["Ann", "Mon"]``, ``works[:, ["Sat", "Sun"]]``.
        name: how messages, files and dicts of scores call it; `subject_to` wants another for each variable.
        lower, upper: its own box, a scalar or an array that broadcasts to the shape; default `subject_to`'s. ``-inf``
            for lower and ``inf`` for upper stand for no bound, which `linsat.Euclidean` takes.

    >>> X = Variable(2, 3, name="X")
    >>> X.sum(0).shape, (2 * X[0, 1] + X[1, 2] >= 0.5).sense
    ((3,), '>=')
    >>> works = Variable(["Ann", "Bob"], ["Mon", "Tue"], name="works")
    >>> works.shape, works["Bob"].labels
    ((2, 2), (('Mon', 'Tue'),))
    """

    def __init__(self, *axes: int | Sequence[str], name: str = "x", lower: Any = None, upper: Any = None) -> None:
        if not isinstance(name, str) or not name:
            raise ConstraintError(f"name is {name!r}; expected a non-empty string. Fix: name='X'.")
        self.name = name
        labels = tuple(None if isinstance(axis, int | np.integer) else _read_labels(axis) for axis in axes)
        shape = tuple(
            _read_length(axis) if words is None else len(words) for axis, words in zip(axes, labels, strict=True)
        )
        size = int(np.prod(shape))
        super().__init__(shape, {self: sp.csr_array(sp.eye(size))}, np.zeros(size), labels)
        self.lower = self._read_bound("lower", lower)
        self.upper = self._read_bound("upper", upper)
        if self.lower is not None and self.upper is not None:
            check_bounds(self.lower.reshape(-1), self.upper.reshape(-1), Layout((self.array,)))

    @property
    def array(self) -> NamedArray:
        """What a set remembers of it."""
        return NamedArray(self.name, self.shape, self.labels)

    def _read_bound(self, side: str, value: Any) -> Array | None:
        if value is None:
            return None
        bound = read_constant(value, f"{side} of {self.name}", missing=NO_BOUND[side])
        try:
            return np.broadcast_to(bound, self.shape)
        except ValueError:
            raise ConstraintError(
                f"{side} of {self.name} has shape {bound.shape}; expected a scalar or shape {self.shape}. "
                f"Fix: for bounds per instance use Constraints.with_bounds."
            ) from None

    def __repr__(self) -> str:
        return f"Variable({''.join(f'{length}, ' for length in self.shape)}name={self.name!r})"


NO_BOUND = {"lower": -np.inf, "upper": np.inf}


def _read_length(length: Any) -> int:
    if isinstance(length, bool) or length < 1:
        raise ConstraintError(
            f"shape contains {length!r}; expected positive integers. Fix: one length, or one list of labels, per axis, "
            f"as in Variable(3, 4)."
        )
    return int(length)


def _read_labels(axis: Any) -> tuple[str, ...]:
    listed = list(axis) if isinstance(axis, Sequence | np.ndarray) and not isinstance(axis, str) else []
    if not listed or not all(isinstance(label, str) for label in listed):
        fix = "Variable(3, 4), or Variable(['Ann', 'Bob'], 4)"
        fix += f"; a name is given by name={axis!r}" if isinstance(axis, str) else ""
        raise ConstraintError(
            f"shape contains {shown(axis)}; expected for each axis a positive integer or a list of texts. Fix: {fix}."
        )
    for position, label in enumerate(listed):
        if not label or "[" in label or "]" in label:
            raise ConstraintError(f"label {label!r} is empty or has brackets; expected plain text. Fix: rename it.")
        if label in listed[:position]:
            raise ConstraintError(f"label {label!r} occurs twice on one axis. Fix: a different label for each entry.")
    return tuple(str(label) for label in listed)


def check_variables(variables: Any) -> list[Variable]:
    """A list of variables, each once and each with another name."""
    listed = list(variables) if isinstance(variables, list | tuple) else None
    if not listed or not all(isinstance(variable, Variable) for variable in listed):
        fix = f"variables=[{variables.name}]" if isinstance(variables, Variable) else "variables=[X, Y]"
        raise ConstraintError(f"variables is {shown(variables)}; expected a list of Variable. Fix: {fix}.")
    names: set[str] = set()
    for position, variable in enumerate(listed):
        if any(variable is other for other in listed[:position]):
            raise ConstraintError(f"variables contains {variable.name} twice. Fix: list every variable once.")
        if variable.name in names:
            raise ConstraintError(
                f"Two variables are named {variable.name!r}; expected different names. Fix: Variable(..., name='Y')."
            )
        names.add(variable.name)
    return listed


def read_layout(variables: Any) -> Layout | None:
    """What `Constraints` accepts as variables: a list of `Variable`, or one name per variable."""
    if variables is None or isinstance(variables, Layout):
        return variables
    names = list(variables) if isinstance(variables, list | tuple) else []
    if names and all(isinstance(name, str) for name in names):
        if "" in names or len(set(names)) < len(names):
            again = next(name for name in names if not name or names.count(name) > 1)
            raise ConstraintError(f"variables names {again!r} twice, or not at all. Fix: one name per variable.")
        return Layout.of_names(names)
    return Layout(tuple(variable.array for variable in check_variables(variables)))
