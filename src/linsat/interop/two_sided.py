"""Rows as most solvers keep them, ``row_lower <= A x <= row_upper``, to `Constraints`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Layout
from linsat.errors import ConstraintError
from linsat.verdict.diagnosis import NamedBound

Array = np.ndarray
Box = tuple[float, float]


@dataclass(frozen=True)
class TwoSided:
    """Rows with two ends each, in a box that may be infinite; names for messages."""

    matrix: sp.csr_array  # (rows, variables)
    row_lower: Array  # (rows,)
    row_upper: Array
    lower: Array  # (variables,)
    upper: Array
    row_names: Sequence[str]
    layout: Layout | None  # of the variables, where they have names

    def variable(self, index: int) -> str:
        """A variable for messages."""
        return f"x[{index}]" if self.layout is None else self.layout.entry(index)

    def take(self, keep: Array) -> TwoSided:
        """The rows of a boolean mask."""
        return replace(
            self,
            matrix=self.matrix[np.flatnonzero(keep)],
            row_lower=self.row_lower[keep],
            row_upper=self.row_upper[keep],
            row_names=[name for name, kept in zip(self.row_names, keep, strict=True) if kept],
        )


def read_box(box: object) -> Box | None:
    """Check the pair (lower, upper) that stands in for infinite bounds."""
    if box is None:
        return None
    try:
        lower, upper = (float(end) for end in box)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise ConstraintError(
            f"box is {box!r}; expected two numbers (lower, upper). Fix: for example box=(0, 1)."
        ) from None
    if not (np.isfinite(lower) and np.isfinite(upper) and lower < upper):
        raise ConstraintError(
            f"box is ({lower}, {upper}); expected finite numbers, the lower one first. Fix: for example box=(0, 1)."
        )
    return lower, upper


def to_constraints(rows: TwoSided, box: Box | None) -> tuple[Constraints, list[str]]:
    """The same feasible set as `Constraints`, and what a user should know about the conversion.

    A row with two finite, different ends becomes two rows. For a finite box, a row with one coefficient supplies a
    bound that is missing (infinite) and then is no row any more, and ``box`` supplies what is still missing after that.
    The set knows where such bounds come from and names them in conflicts. Where no box is given and some bounds stay
    infinite all the same, rows stay rows. Rows without a finite end, and rows without coefficients that always hold,
    are dropped.

    Raises:
        ConstraintError: NaN, ends that cross, or a box that leaves a variable no room.
    """
    _check_numbers(rows)
    notes: list[str] = []
    named: list[NamedBound] = []
    rows = _without_empty_rows(rows, notes)
    absorbed = _bounds_from_single_coefficients(rows, named)
    if box is None and not (np.isfinite(absorbed.lower).all() and np.isfinite(absorbed.upper).all()):
        named.clear()
    else:
        rows = absorbed
    rows = _fill_box(rows, box, notes, named)
    lower_ends, upper_ends = np.isfinite(rows.row_lower), np.isfinite(rows.row_upper)
    equal = lower_ends & upper_ends & (rows.row_lower == rows.row_upper)
    twice = lower_ends & upper_ends & ~equal
    arguments: dict[str, Any] = {"lower": rows.lower, "upper": rows.upper}
    names: list[str] = []
    blocks = (
        ("A", "b", upper_ends & ~equal, rows.row_upper, " (at most)"),
        ("C", "d", lower_ends & ~equal, rows.row_lower, " (at least)"),
        ("E", "f", equal, rows.row_lower, ""),
    )
    for matrix, side, mask, ends, suffix in blocks:
        if mask.any():
            index = np.flatnonzero(mask)
            arguments |= {matrix: rows.matrix[index], side: ends[index]}
            names += [rows.row_names[i] + (suffix if twice[i] else "") for i in index.tolist()]
    if twice.any():
        notes.append(f"{int(twice.sum())} of the rows have two ends and count as two rows each")
    return Constraints(**arguments, names=names, variables=rows.layout)._with_named_bounds(named), notes


def _check_numbers(rows: TwoSided) -> None:
    bad = np.flatnonzero(~np.isfinite(rows.matrix.data))
    if len(bad):
        row = int(np.searchsorted(rows.matrix.indptr, bad[0], side="right")) - 1
        column = int(rows.matrix.indices[bad[0]])
        raise ConstraintError(
            f"row {rows.row_names[row]!r} has coefficient {rows.matrix.data[bad[0]]} for variable "
            f"{rows.variable(column)!r}; expected a finite number."
        )
    ends = (
        ("row", lambda i: rows.row_names[i], rows.row_lower, rows.row_upper),
        ("variable", rows.variable, rows.lower, rows.upper),
    )
    for kind, name, low, high in ends:
        wrong = np.flatnonzero(~(low <= high) | (low == np.inf) | (high == -np.inf))
        if len(wrong):
            i = int(wrong[0])
            raise ConstraintError(
                f"{kind} {name(i)!r} lies between {low[i]:g} and {high[i]:g}; expected a lower end that is not above "
                f"the upper one. Fix: correct the ends of this {kind}."
            )


def _without_empty_rows(rows: TwoSided, notes: list[str]) -> TwoSided:
    filled = np.zeros(len(rows.row_lower), dtype=bool)
    coefficients = rows.matrix.tocoo()
    filled[coefficients.row[coefficients.data != 0]] = True
    impossible = np.flatnonzero(~filled & ((rows.row_lower > 0) | (rows.row_upper < 0)))
    if len(impossible):
        i = int(impossible[0])
        raise ConstraintError(
            f"row {rows.row_names[i]!r} has no coefficient but must lie between {rows.row_lower[i]:g} and "
            f"{rows.row_upper[i]:g}. Fix: give the row coefficients or remove it."
        )
    bounded = np.isfinite(rows.row_lower) | np.isfinite(rows.row_upper)
    keep = filled & bounded
    if not keep.all():
        notes.append(f"{int((~keep).sum())} rows that hold everywhere (no coefficient, or no finite end) left out")
    return rows if keep.all() else rows.take(keep)


def _bounds_from_single_coefficients(rows: TwoSided, named: list[NamedBound]) -> TwoSided:
    if np.isfinite(rows.lower).all() and np.isfinite(rows.upper).all():
        return rows
    lower, upper = rows.lower.copy(), rows.upper.copy()
    matrix = rows.matrix.copy()
    matrix.eliminate_zeros()
    row_lower, row_upper = rows.row_lower.copy(), rows.row_upper.copy()
    for row in np.flatnonzero(np.diff(matrix.indptr) == 1).tolist():
        column, value = int(matrix.indices[matrix.indptr[row]]), float(matrix.data[matrix.indptr[row]])
        ends = sorted((row_lower[row] / value, row_upper[row] / value))
        low, high = float(ends[0]), float(ends[1])
        if low > upper[column] or high < lower[column]:
            continue  # it contradicts the box: as a row it will be named when the set is checked
        label, source = rows.variable(column), rows.row_names[row]
        if np.isfinite(low) and not np.isfinite(lower[column]):
            lower[column], low = low, -np.inf
            named.append(NamedBound("lower", column, label, source))
        if np.isfinite(high) and not np.isfinite(upper[column]):
            upper[column], high = high, np.inf
            named.append(NamedBound("upper", column, label, source))
        ends = sorted((low * value, high * value))
        row_lower[row], row_upper[row] = ends
    rows = replace(rows, lower=lower, upper=upper, row_lower=row_lower, row_upper=row_upper)
    return rows.take(np.isfinite(row_lower) | np.isfinite(row_upper))


def _fill_box(rows: TwoSided, box: Box | None, notes: list[str], named: list[NamedBound]) -> TwoSided:
    no_lower, no_upper = ~np.isfinite(rows.lower), ~np.isfinite(rows.upper)
    count = int((no_lower | no_upper).sum())
    if box is None or not count:
        if count:
            notes.append(f"{count} variables have an infinite bound")
        return rows
    filled = replace(rows, lower=np.where(no_lower, box[0], rows.lower), upper=np.where(no_upper, box[1], rows.upper))
    crossed = np.flatnonzero(filled.lower > filled.upper)
    if len(crossed):
        i = int(crossed[0])
        raise ConstraintError(
            f"box ({box[0]:g}, {box[1]:g}) leaves variable {rows.variable(i)!r} no room: its own bounds are "
            f"{rows.lower[i]:g} and {rows.upper[i]:g}. Fix: a box that contains every bound of the model."
        )
    for side, missing in (("lower", no_lower), ("upper", no_upper)):
        named += [NamedBound(side, i, rows.variable(i), None) for i in np.flatnonzero(missing).tolist()]
    notes.append(f"{count} variables without finite bounds put into the box [{box[0]:g}, {box[1]:g}]")
    return filled
