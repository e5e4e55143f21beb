"""From a relaxed point x to a discrete one: rounding, top-k, matchings, k for each item within capacities, repair.

Every decoder puts each variable on one of the two ends of its box, keeps the batch dimensions, library, dtype
and device of x, and says per instance whether the rows of the constraint set hold. Nothing here has a
gradient. A set with per-instance numbers broadcasts its batch dimensions with those of x.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linsat._array_namespace import to_numpy
from linsat._optional import is_tensor
from linsat.assignment import assigned
from linsat.constraints.arrays import read_numbers
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Arrangement, flatten
from linsat.constraints.numbers import present
from linsat.constraints.structure import EQUAL, GREATER
from linsat.errors import ConstraintError

Array = np.ndarray


@dataclass(frozen=True)
class Decoded:
    """A discrete point with the verdict on the rows; tensors, or numpy arrays when x was one.

    ``feasible`` and ``violation`` describe x exactly as returned. Without a constraint set there is nothing
    to judge and both are None: a decoder's own structure (k chosen, a matching) holds by construction.
    """

    x: Any  # in the shape (or dict of shapes) of the relaxed point, every entry on the lower or upper end of its box
    feasible: Any  # (...) bool: every hard row holds to tol in units of its mean |coefficient|; None without a set
    violation: Any  # (...) float64: as `Constraints.violation` measures it; None without a set

    def __repr__(self) -> str:
        named = self.x.items() if isinstance(self.x, Mapping) else [("x", self.x)]
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named)
        if self.feasible is None:
            return f"Decoded({shapes})"
        count, total = int(self.feasible.sum()), int(np.prod(self.feasible.shape))
        worst = f"; worst violation {float(self.violation.max()):.1e}" if total else ""
        return f"Decoded({shapes}: {count} of {total} feasible{worst})"


def rounding(x: Any, cons: Constraints, *, tol: float = 1e-6) -> Decoded:
    """Each variable to the nearer end of its box; the middle goes up.

    Args:
        x: relaxed point (..., variables), in the units of the box.
        cons: the constraint set; its box tells the two ends.
        tol: a row holds when violated by at most this, in units of its mean |coefficient|.
    """
    point, form = _read_point(x, cons, tol)
    nearer, _, _ = _round(point, cons)
    return form.decoded(nearer, cons, tol)


def top_k(x: Any, k: Any, cons: Constraints | None = None, *, tol: float = 1e-6) -> Decoded:
    """The k largest entries to the upper end, the others to the lower; equal entries by the lower index.

    Args:
        x: relaxed point (..., variables).
        k: how many, an int or one per instance (...).
        cons: the constraint set; without it the box is [0, 1] and no verdict is given.
        tol: a row holds when violated by at most this, in units of its mean |coefficient|.
    """
    point, form = _read_point(x, cons, tol, optional=True)
    count = _read_counts("k", k, point, most=point.shape[-1])
    ranks = np.argsort(np.argsort(-point, axis=-1, kind="stable"), axis=-1)
    lower, upper = _box(point, cons)
    return form.decoded(np.where(ranks < count[..., None], upper, lower), cons, tol)


def hungarian(
    x: Any,
    cons: Constraints | None = None,
    *,
    shape: tuple[int, int] | None = None,
    keep: Any = None,
    tol: float = 1e-6,
) -> Decoded:
    """The matching of n1 with n2 items of the largest total score: its pairs to the upper end, the rest down.

    Args:
        x: scores of all pairs, (..., n1, n2) or, row by row, (..., n1 * n2).
        cons: the constraint set; without it the box is [0, 1] and no verdict is given.
        shape: (n1, n2); min(n1, n2) pairs are matched. Default: that of the set's variable, without a set that of x.
        keep: keep only this many pairs of the matching, those of the highest score (equal ones by the lower
            index); an int or one per instance (...). Default all.
        tol: a row holds when violated by at most this, in units of its mean |coefficient|.
    """
    from scipy.optimize import linear_sum_assignment  # half a second to import, and only this decoder needs it

    point, form, (n1, n2) = _read_pairs(x, cons, tol, shape)
    most = min(n1, n2)
    count = _read_counts("keep", most if keep is None else keep, point, most=most)
    scores = point.reshape(-1, n1, n2)
    chosen = np.zeros((len(scores), n1 * n2), dtype=bool)
    for instance, kept in enumerate(count.reshape(-1).tolist()):
        row, col = linear_sum_assignment(scores[instance], maximize=True)
        best = np.argsort(-scores[instance, row, col], kind="stable")[:kept]
        chosen[instance, row[best] * n2 + col[best]] = True
    lower, upper = _box(point, cons)
    return form.decoded(np.where(chosen.reshape(point.shape), upper, lower), cons, tol)


def assign(
    x: Any,
    cons: Constraints | None = None,
    *,
    k: Any,
    capacity: Any,
    shape: tuple[int, int] | None = None,
    tol: float = 1e-6,
) -> Decoded:
    """k of n2 places for each of n1 items, at most ``capacity`` items in each: a router's tokens and experts.

    The pairs of the largest total score go to the upper end, the rest down: a minimum-cost flow, by prices for places
    and then shortest chains of moves between them. Meant for many items and few places.

    Args:
        x: scores of all pairs, (..., n1, n2) or, row by row, (..., n1 * n2).
        cons: the constraint set; without it the box is [0, 1] and no verdict is given. Pairs whose box is a single
            point are not chosen.
        k: places for each item, an int or (..., n1).
        capacity: most items in each place, an int or (..., n2).
        shape: (n1, n2). Default: that of the set's variable, without a set that of x.
        tol: a row holds when violated by at most this, in units of its mean |coefficient|.

    Raises:
        ConstraintError: capacities that do not hold all items.
    """
    point, form, (n1, n2) = _read_pairs(x, cons, tol, shape)
    batch, (lower, upper) = point.shape[:-1], _box(point, cons)
    wanted = _read_counts("k", k, point, most=n2, each=n1).reshape(-1, n1)
    places = _read_counts("capacity", capacity, point, most=2**31, each=n2).reshape(-1, n2)
    scores = np.where(upper > lower, point, -np.inf).reshape(-1, n1, n2)
    chosen = [assigned(*one) for one in zip(scores, wanted, np.minimum(places, n1), strict=True)]
    return form.decoded(np.where(np.reshape(chosen, (*batch, n1 * n2)), upper, lower), cons, tol)


def greedy_repair(x: Any, cons: Constraints, *, max_flips: int | None = None, tol: float = 1e-6) -> Decoded:
    """Round, then move one variable at a time to its other end while that reduces the violation of the rows.

    Each flip is the one that most reduces the sum of all row violations (in units of the row's mean
    |coefficient|); among equals the one x is least sure of (nearest the middle of its box), then the lower
    index. It stops when the rows hold, when no single flip reduces the sum by more than tol, or after
    max_flips; ``feasible`` tells whether the rows hold in the end.

    Args:
        x: relaxed point (..., variables), in the units of the box.
        cons: the constraint set.
        max_flips: most flips per instance; default the number of variables.
        tol: a row holds when violated by at most this, in units of its mean |coefficient|.
    """
    point, form = _read_point(x, cons, tol)
    if max_flips is not None and (not isinstance(max_flips, (int, np.integer)) or max_flips < 0):
        raise ConstraintError(f"max_flips is {max_flips}; expected an integer >= 0. Fix: leave it out.")
    most = point.shape[-1] if max_flips is None else int(max_flips)
    starts, others, certainties = (part.reshape(-1, point.shape[-1]) for part in _round(point, cons))
    each = _Rows.of(cons, point.shape[:-1])
    for start, other, certainty, rows in zip(starts, others, certainties, each, strict=True):
        _flip(start, other, certainty, rows, most, tol)
    return form.decoded(starts.reshape(point.shape), cons, tol)


# ---------------------------------------------------------------------- the repair of one instance


@dataclass(frozen=True)
class _Rows:
    """All rows in numpy, each divided by its mean |coefficient|."""

    row: np.ndarray  # (nnz,)
    col: np.ndarray  # (nnz,)
    values: np.ndarray  # (nnz,)
    senses: np.ndarray  # (rows,)
    rhs: np.ndarray  # (rows,)

    @staticmethod
    def of(cons: Constraints, batch: tuple[int, ...]) -> Iterator[_Rows]:
        """The rows of each instance of a batch."""
        cons._require_linear("linsat.decode.greedy_repair")
        structure, numbers = cons._structure, present(cons)
        scale = _row_scale(cons)
        parts = (numbers.values / scale[..., structure.row], numbers.rhs / scale)
        spread = [np.broadcast_to(part, (*batch, part.shape[-1])) for part in parts]
        for index in np.ndindex(*batch):
            yield _Rows(structure.row, structure.col, spread[0][index], structure.senses, spread[1][index])

    def activity(self, x: np.ndarray) -> np.ndarray:
        return np.bincount(self.row, self.values * x[self.col], minlength=len(self.senses))


def _gap(excess: np.ndarray, senses: np.ndarray) -> np.ndarray:
    """Violation from ``activity - right-hand side``."""
    signed = np.where(senses == GREATER, -excess, np.where(senses == EQUAL, np.abs(excess), excess))
    return np.maximum(signed, 0.0)


def _flip(
    now: np.ndarray,
    other: np.ndarray,
    certainty: np.ndarray,
    rows: _Rows,
    max_flips: int,
    tol: float,
) -> None:
    """Greedy flips of one instance, in place; each exchanges ``now[j]`` and ``other[j]``."""
    for _ in range(max_flips):
        activity = rows.activity(now)
        gap = _gap(activity - rows.rhs, rows.senses)  # (rows,)
        if gap.max(initial=0.0) <= tol:
            return
        # A flip touches only the rows of its variable: one pass over the non-zeros prices all flips.
        moved = activity[rows.row] + rows.values * (other - now)[rows.col]  # (nnz,)
        change = _gap(moved - rows.rhs[rows.row], rows.senses[rows.row]) - gap[rows.row]
        gain = -np.bincount(rows.col, change, minlength=len(now))  # (variables,)
        best = gain.max()
        if best <= tol:
            return
        equals = np.flatnonzero((gain >= best - tol) & (gain > tol))
        flipped = equals[np.argmin(certainty[equals])]
        now[flipped], other[flipped] = other[flipped], now[flipped]


# ---------------------------------------------------------------------- shared: box, verdict, the way back


def _box(point: Array, cons: Constraints | None) -> tuple[Array, Array]:
    """Both ends of the box in the shape of the point, in float64."""
    if cons is None:
        return np.zeros_like(point), np.ones_like(point)
    numbers = present(cons)
    endless = ~(np.isfinite(numbers.lower) & np.isfinite(numbers.upper))
    if endless.any():
        at = np.argwhere(np.broadcast_to(endless, point.shape))[0, -1]
        raise ConstraintError(
            f"{cons._variable_name(int(at))} has an infinite bound; a decoder puts every variable on one of the two "
            f"ends of its box. Fix: finite bounds, cons.with_bounds(lower=0, upper=1)."
        )
    return np.broadcast_to(numbers.lower, point.shape), np.broadcast_to(numbers.upper, point.shape)


def _round(point: Array, cons: Constraints) -> tuple[Array, Array, Array]:
    """The nearer end of each box, the other end, and the distance from the middle in widths of the box."""
    lower, upper = _box(point, cons)
    middle, width = (lower + upper) / 2, np.where(upper > lower, upper - lower, 1.0)
    up = point >= middle
    return np.where(up, upper, lower), np.where(up, lower, upper), np.abs(point - middle) / width


def _row_scale(cons: Constraints) -> Array:
    """(batch..., rows) mean |coefficient| over the non-zeros of each row; 1 for a row without any."""
    values, row = np.abs(present(cons).values), cons._structure.row
    flat = values.reshape(math.prod(values.shape[:-1]), values.shape[-1])
    total = np.array([np.bincount(row, one, minlength=len(cons)) for one in flat])
    count = np.array([np.bincount(row, one != 0, minlength=len(cons)) for one in flat])
    return np.where(total > 0, total / np.maximum(count, 1.0), 1.0).reshape(*values.shape[:-1], len(cons))


@dataclass(frozen=True)
class _Form:
    """How the relaxed point came: as which tensor or array, and in which arrangement."""

    like: Any
    arrangement: Arrangement
    pairs: tuple[int, ...] = ()  # (n1, n2) where x came as matrices that the set knows nothing of

    def decoded(self, point: Array, cons: Constraints | None, tol: float) -> Decoded:
        """The point in the form of the input, and the verdict on exactly that point."""
        x, feasible, violation = self._as_given(point), None, None
        if cons is not None:
            exact = _in_double(x)
            gap = np.where(cons._soft_mask(), 0.0, to_numpy(cons.row_violation(exact)))  # soft rows may be broken
            parts: Any = (gap / _row_scale(cons) <= tol).all(-1), to_numpy(cons.violation(exact))
            if is_tensor(x):
                import torch

                parts = (torch.from_numpy(np.asarray(part)).to(x.device) for part in parts)
            feasible, violation = parts
            x = x if cons._layout is None else cons._layout.restored(x, self.arrangement)
        return Decoded(x.reshape(*x.shape[:-1], *self.pairs) if self.pairs else x, feasible, violation)

    def _as_given(self, point: Array) -> Any:
        if is_tensor(self.like):
            import torch

            dtype = self.like.dtype if self.like.is_floating_point() else torch.float64
            return torch.from_numpy(np.array(point)).to(self.like.device, dtype)
        return point.astype(self.like.dtype) if self.like.dtype.kind == "f" else point


def _in_double(x: Any) -> Array:
    return to_numpy(x.double()) if is_tensor(x) else x.astype(np.float64)


# ---------------------------------------------------------------------- reading the input


def _read_point(x: Any, cons: Constraints | None, tol: float, *, optional: bool = False) -> tuple[Array, _Form]:
    """x in float64, detached, flat and broadcast to the batch dimensions of the constraint set; and how it came."""
    if not (isinstance(cons, Constraints) or (optional and cons is None)):
        raise ConstraintError(f"cons is of type {type(cons).__name__}. Fix: pass linsat.Constraints.")
    if not (math.isfinite(tol) and tol >= 0):
        raise ConstraintError(f"tol is {tol}; expected a finite number >= 0. Fix: pass 1e-6, for example.")
    layout, width = (None, None) if cons is None else (cons._layout, cons.num_variables)
    given, arrangement = flatten("x", x, layout, width, _read_array)
    point = _in_double(given)
    bad = np.argwhere(~np.isfinite(point))
    if len(bad):
        at = tuple(int(i) for i in bad[0])
        raise ConstraintError(f"x{list(at)} is {float(point[at])}; expected a finite number. Fix: check its source.")
    return (point if cons is None else _fit_to_set(point, cons)), _Form(given, arrangement)


def _read_array(name: str, x: Any) -> Any:
    """A tensor, or an array of numpy; floats as they come."""
    numbers = read_numbers(name, x)
    if is_tensor(x):
        return x
    array = np.asarray(x)
    plain = array.dtype.kind == "f" and array.dtype.itemsize <= 8
    return array.astype(array.dtype.newbyteorder("=")) if plain else to_numpy(numbers)


def _fit_to_set(point: Array, cons: Constraints) -> Array:
    try:
        batch = np.broadcast_shapes(point.shape[:-1], tuple(cons.batch_shape))
    except ValueError:
        raise ConstraintError(
            f"x has batch dimensions {tuple(point.shape[:-1])} and cons {tuple(cons.batch_shape)}, which do "
            f"not fit together. Fix: one instance of x for each of cons, or a single one."
        ) from None
    return np.broadcast_to(point, (*batch, point.shape[-1]))


def _read_counts(name: str, value: Any, point: Array, *, most: int, each: int | None = None) -> Array:
    """A number of variables or pairs for each instance, (...) int64; with ``each`` for each item, (..., each)."""
    counts = to_numpy(read_numbers(name, value))
    bad = ~((counts >= 0) & (counts <= most) & (counts == np.floor(counts)))
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        where = f"{name}{list(at)}" if at else name
        raise ConstraintError(
            f"{where} is {float(counts[at]):g}; expected an integer from 0 to {most}. Fix: stay in range."
        )
    whole = point.shape[:-1] if each is None else (*point.shape[:-1], each)
    try:
        return np.broadcast_to(counts.astype(np.int64), whole)
    except ValueError:
        raise ConstraintError(
            f"{name} has shape {tuple(counts.shape)}; expected an int or one per {'item' if each else 'instance'}, "
            f"{whole}. Fix: match the leading dimensions of x."
        ) from None


def _read_pairs(x: Any, cons: Constraints | None, tol: float, shape: Any) -> tuple[Array, _Form, tuple[int, int]]:
    """As `_read_point`, of scores of pairs, which may come as matrices; and (n1, n2)."""
    pairs: tuple[int, ...] = ()
    if getattr(cons, "_layout", None) is None and not isinstance(x, Mapping):
        x = _read_array("x", x)
        last = tuple(x.shape[-2:])
        if shape is None and cons is None and len(last) == 2:
            shape = last
        if isinstance(shape, Sequence) and last == tuple(shape) and last[-1] != math.prod(last):
            x, pairs = x.reshape(*x.shape[:-2], math.prod(last)), last
    point, form = _read_point(x, cons, tol, optional=True)
    return point, replace(form, pairs=pairs), _read_shape(shape, point, cons)


def _read_shape(shape: Any, point: Array, cons: Constraints | None) -> tuple[int, int]:
    if shape is None and cons is not None and cons._layout is not None and len(cons._layout.shape or ()) == 2:
        return cons._layout.shape  # type: ignore[return-value]
    if shape is None:
        raise ConstraintError(
            f"shape is missing, and neither x, {tuple(point.shape)}, nor a variable of a set has two axes. Fix: "
            f"shape=(n1, n2)."
        )
    shape = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    whole = len(shape) == 2 and all(isinstance(n, (int, np.integer)) and n >= 1 for n in shape)
    if not whole or shape[0] * shape[1] != point.shape[-1]:
        raise ConstraintError(
            f"shape is {shape}; expected (n1, n2) with n1 * n2 = {point.shape[-1]}, the entries "
            f"of x. Fix: pass the size of the score matrix that x flattens."
        )
    return int(shape[0]), int(shape[1])
