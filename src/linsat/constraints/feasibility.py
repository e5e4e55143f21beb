"""Linear programmes (HiGHS) about one constraint set: can it hold, what does it force, which rows conflict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat.constraints.structure import EQUAL, GREATER

Array = np.ndarray

# Beyond this many coefficients and variables the programmes take minutes; callers then go without and say so.
LARGEST_PROGRAMME = 200_000
_TIGHT_OPTIONS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
_INFEASIBLE_BY = 1e-9  # total normalised violation that counts as infeasible
_THICKNESS_SCALE = 1e6  # how far the cone of `implied` may be stretched to show a thin interior
_FORCED_BELOW = 1e-3  # stretched share below which a variable (or slack) counts as forced to its end


@dataclass(frozen=True)
class Rows:
    """One instance in the unit box: ``matrix`` p (sense) ``side``, 0 <= p <= 1, rows of comparable size."""

    matrix: sp.csr_array  # (k, l)
    side: Array  # (k,)
    senses: Array  # (k,) LESS, EQUAL, GREATER

    @property
    def size(self) -> int:
        return int(self.matrix.nnz + sum(self.matrix.shape))

    def take(self, index: Array) -> Rows:
        return Rows(self.matrix[index], self.side[index], self.senses[index])


@dataclass(frozen=True)
class Implied:
    """What every feasible point has in common."""

    at_lower: Array  # (l,) bool: share 0 everywhere
    at_upper: Array  # (l,) bool: share 1 everywhere
    tight: Array  # (k,) bool: inequality rows that always hold with equality


def _solve(cost: Array, **programme: Any) -> Any:
    """One linear programme by HiGHS."""
    from scipy.optimize import linprog  # half a second to import, and most sets never need it

    return linprog(cost, method="highs", options=_TIGHT_OPTIONS, **programme)


# scipy 1.11 has neither eye_array nor diags_array.
def _diagonal(entries: Array) -> Any:
    return sp.csr_array(sp.diags(entries))


def _identity(size: int) -> Any:
    return _diagonal(np.ones(size))


def least_violation(rows: Rows) -> tuple[float, Array]:
    """The smallest possible sum of row violations in the box, and the dual weight of each row."""
    k, l = rows.matrix.shape
    sign = np.where(rows.senses == GREATER, -1.0, 1.0)
    flipped = _diagonal(sign) @ rows.matrix
    equal = rows.senses == EQUAL
    # Inequalities: sign (a p - b) <= e.  Equalities: a p + e_minus - e_plus = b.
    upper = sp.hstack([flipped[~equal], -_identity(k)[~equal], sp.csr_array(((~equal).sum(), k))])
    eye = _identity(k)[equal]
    exact = sp.hstack([rows.matrix[equal], -eye, eye])
    cost = np.concatenate([np.zeros(l), np.ones(2 * k)])
    bounds = [(0.0, 1.0)] * l + [(0.0, None)] * (2 * k)
    solved = _solve(
        cost,
        A_ub=upper if (~equal).any() else None,
        b_ub=(sign * rows.side)[~equal] if (~equal).any() else None,
        A_eq=exact if equal.any() else None,
        b_eq=rows.side[equal] if equal.any() else None,
        bounds=bounds,
    )
    if solved.status != 0:  # the programme is always feasible and bounded, so this is HiGHS giving up
        return float("nan"), np.ones(k)
    weights = np.zeros(k)
    if (~equal).any():
        weights[~equal] = solved.ineqlin.marginals
    if equal.any():
        weights[equal] = solved.eqlin.marginals
    return float(solved.fun), weights


def is_feasible(rows: Rows) -> bool:
    """Whether some point of the box satisfies all rows."""
    return not least_violation(rows)[0] > _INFEASIBLE_BY


def multipliers(rows: Rows) -> Array:
    """Weights of the rows that come closest to refuting them: >= 0 for <=, <= 0 for >=, any for ==.

    Those of the least total violation, so the gap they prove is that violation, up to rounding.
    """
    _, weights = least_violation(rows)
    sign = np.where(rows.senses == GREATER, -1.0, 1.0)
    # The marginal of a right side is minus its multiplier; rounding must not leave a sign that proves nothing.
    return np.where(rows.senses == EQUAL, -weights, sign * np.maximum(-weights, 0.0))


def find_conflicts(rows: Rows, *, at_most: int = 3) -> list[list[int]]:
    """Minimal sets of rows of an infeasible set that cannot hold together; up to ``at_most`` different ones.

    Drop any row of a minimal set and the rest of that set can hold. Where the whole set stays infeasible without a row
    of the first conflict, another conflict remains and is found too.
    """
    everything = np.arange(len(rows.side))
    found = [_minimal_conflict(rows, everything)]
    for row in found[0]:
        rest = everything[everything != row]
        if len(found) < at_most and not is_feasible(rows.take(rest)):
            other = _minimal_conflict(rows, rest)
            if other not in found:
                found.append(other)
    return found


def _minimal_conflict(rows: Rows, candidates: Array) -> list[int]:
    """Rows with dual weight in `least_violation` conflict; a deletion filter drops those it can do without."""
    _, weights = least_violation(rows.take(candidates))
    kept = candidates[np.abs(weights) > 1e-9]
    if is_feasible(rows.take(kept)):
        kept = candidates
    for row in list(kept):
        rest = kept[kept != row]
        if not is_feasible(rows.take(rest)):
            kept = rest
    return [int(i) for i in kept]


def implied(rows: Rows) -> Implied | None:
    """Variables that every feasible point has at an end of the box, and rows it holds with equality; None: infeasible.

    Over the cone of scaled points (P, alpha), P = alpha p, as many distances to the ends as possible are raised to one
    at once: max sum t, t <= P, t <= alpha - P, t <= alpha b - a P, 0 <= t <= 1, alpha >= 1. What stays zero is forced.
    """
    k, l = rows.matrix.shape
    equal = rows.senses == EQUAL
    loose = np.flatnonzero(~equal)
    sign = np.where(rows.senses == GREATER, -1.0, 1.0)
    eye, none = _identity(l), sp.csr_array((l, l))
    ones = sp.csr_array(np.ones((l, 1)))
    blank = sp.csr_array((l, len(loose)))
    # Columns: P (l), alpha (1), t_lower (l), t_upper (l), t_row (len(loose)).
    to_lower = sp.hstack([-eye, sp.csr_array((l, 1)), eye, none, blank])
    to_upper = sp.hstack([eye, -ones, none, eye, blank])
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
    solved = _solve(
        np.concatenate([np.zeros(l + 1), -np.ones(distances)]),
        A_ub=upper,
        b_ub=np.zeros(upper.shape[0]),
        A_eq=exact if equal.any() else None,
        b_eq=np.zeros(int(equal.sum())) if equal.any() else None,
        bounds=[(0.0, None)] * l + [(1.0, _THICKNESS_SCALE)] + [(0.0, 1.0)] * distances,
    )
    if solved.status != 0:
        return None if not is_feasible(rows) else Implied(*(np.zeros(n, dtype=bool) for n in (l, l, k)))
    distance = solved.x[l + 1 :]
    tight = np.zeros(k, dtype=bool)
    tight[loose] = distance[2 * l :] < _FORCED_BELOW
    return Implied(distance[:l] < _FORCED_BELOW, distance[l : 2 * l] < _FORCED_BELOW, tight)
