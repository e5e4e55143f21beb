"""What every feasible point has in common: a linear program (HiGHS) over the unit box, for presolve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat._senses import EQUAL, GREATER, LESS
from linsat.compile.programs import least_violation, linear_program
from linsat.compile.system import Deadline, LinearSystem

Array = np.ndarray

# Beyond this many coefficients and variables the program takes minutes; callers then go without and say so.
LARGEST_PROGRAM = 200_000
_INFEASIBLE_BY = 1e-9  # violation of scaled rows that counts as infeasible
_THICKNESS_SCALE = 1e6  # how far the cone of `implied` may be stretched to show a thin interior
_FORCED_BELOW = 1e-3  # stretched share below which a variable (or slack) counts as forced to its end
_MOST_PROGRAMS = 20  # what these have not shown to be forced counts as free
SECONDS = 10.0  # for all of them together; after that nothing counts as forced


@dataclass(frozen=True)
class Rows:
    """One instance in the unit box: ``matrix`` p (sense) ``side``, 0 <= p <= 1, rows of comparable size.

    An end of the unit box that is no bound of the variable is none of p either.
    """

    matrix: sp.csr_array  # (k, l)
    side: Array  # (k,)
    senses: Array  # (k,) LESS, EQUAL, GREATER
    has_lower: Array  # (l,) bool
    has_upper: Array  # (l,) bool

    @property
    def size(self) -> int:
        return int(self.matrix.nnz + sum(self.matrix.shape))


@dataclass(frozen=True)
class Implied:
    """What every feasible point has in common."""

    at_lower: Array  # (l,) bool: share 0 everywhere
    at_upper: Array  # (l,) bool: share 1 everywhere
    tight: Array  # (k,) bool: inequality rows that always hold with equality


# scipy 1.11 has neither eye_array nor diags_array.
def _diagonal(entries: Array) -> Any:
    return sp.csr_array(sp.diags(entries))


def _identity(size: int) -> Any:
    return _diagonal(np.ones(size))


def is_feasible(rows: Rows, deadline: Deadline) -> bool:
    """Whether some point of the box satisfies all rows, up to rounding; True also where HiGHS gives no answer."""
    low = np.where(rows.senses == LESS, -np.inf, rows.side)
    high = np.where(rows.senses == GREATER, np.inf, rows.side)
    box = np.where(rows.has_lower, 0.0, -np.inf), np.where(rows.has_upper, 1.0, np.inf)
    found = least_violation(LinearSystem(rows.matrix, low, high, *box), deadline)
    return found is None or not found.amount > _INFEASIBLE_BY


def implied(rows: Rows) -> Implied | None:
    """Variables that every feasible point has at an end of the box, and rows it holds with equality; None: infeasible.

    Over the cone of scaled points (P, alpha), P = alpha p, as many distances to the ends as possible are raised to one
    at once: max sum t, t <= P, t <= alpha - P, t <= alpha b - a P, 0 <= t <= 1, alpha >= 1. What stays zero may be
    forced, or may have lost a row's little room to others: it is asked again without them, until nothing new is raised.
    The points found so far have a mean, in which everything is off its end that was so in one of them.
    """
    deadline = Deadline(SECONDS)
    k, l = rows.matrix.shape
    equal = rows.senses == EQUAL
    loose = np.flatnonzero(~equal)
    sign = np.where(rows.senses == GREATER, -1.0, 1.0)
    eye, none = _identity(l), sp.csr_array((l, l))
    ones = sp.csr_array(np.ones((l, 1)))
    blank = sp.csr_array((l, len(loose)))
    # Columns: P (l), alpha (1), t_lower (l), t_upper (l), t_row (len(loose)).
    to_lower = sp.csr_array(sp.hstack([-eye, sp.csr_array((l, 1)), eye, none, blank]))[rows.has_lower]
    to_upper = sp.csr_array(sp.hstack([eye, -ones, none, eye, blank]))[rows.has_upper]
    flipped = (_diagonal(sign) @ rows.matrix)[loose]
    side = sp.csr_array(-(sign * rows.side)[loose][:, None])
    to_row = sp.hstack([flipped, side, sp.csr_array((len(loose), 2 * l)), _identity(len(loose))])
    upper = sp.vstack([to_lower, to_upper, to_row]) if len(loose) else sp.vstack([to_lower, to_upper])
    exact = sp.hstack(
        [
            rows.matrix[equal],
            sp.csr_array(-rows.side[equal][:, None]),
            sp.csr_array((equal.sum(), 2 * l + len(loose))),
        ]
    )
    distances = 2 * l + len(loose)
    forced = np.concatenate([rows.has_lower, rows.has_upper, np.ones(len(loose), dtype=bool)])
    ends = [(0.0 if has else None, None) for has in rows.has_lower]
    for _ in range(_MOST_PROGRAMS):
        solved = linear_program(
            np.concatenate([np.zeros(l + 1), -forced.astype(float)]),
            deadline,
            A_ub=upper,
            b_ub=np.zeros(upper.shape[0]),
            A_eq=exact if equal.any() else None,
            b_eq=np.zeros(int(equal.sum())) if equal.any() else None,
            bounds=ends + [(1.0, _THICKNESS_SCALE)] + [(0.0, 1.0)] * distances,
        )
        if solved.status != 0:
            return None if not is_feasible(rows, deadline) else Implied(*(np.zeros(n, dtype=bool) for n in (l, l, k)))
        raised = forced & (solved.x[l + 1 :] >= _FORCED_BELOW)
        forced &= ~raised
        if not raised.any() or not forced.any():
            break
    else:
        forced[:] = False
    tight = np.zeros(k, dtype=bool)
    tight[loose] = forced[2 * l :]
    return Implied(forced[:l], forced[l : 2 * l], tight)
