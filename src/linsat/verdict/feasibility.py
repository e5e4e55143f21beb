"""Whether rows can hold within a box: a point, a proof of the contrary, or neither.

The quickest questions come first, and each answer is checked before it counts: a point by the rows, multipliers in
exact arithmetic.

    the same share of every box     a point of most ready-made sets
    implied bounds                  single rows against the box, and chains of rows
    networks                        a maximum flow or a cut, for the rows that form one
    linear programs                 any point; the least violation, whose multipliers may refute the rows
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from linsat.verdict.certificate import Certificate, certify, exact_gap
from linsat.verdict.enclosure import refutes_rounded
from linsat.verdict.implied_bounds import refuted_by_bounds
from linsat.verdict.networks import point_or_cuts
from linsat.verdict.programs import LeastViolation, any_point, interior_multipliers, least_violation
from linsat.verdict.system import Array, Deadline, LinearSystem

HOLDS = 1e-9  # relative violation at which a row holds; see LinearSystem.violation
CLEAN = 1e-15  # relative violation that is only rounding of the numbers as given: no need to look closer
_MAGNIFY = 2.0**20  # how much closer each further look is
_LOOKS = 3
_SECONDS_TO_LOOK = 0.5  # closer at a point that holds to 1e-9, besides as long as it took to find it
_MANY_ROWS = 2000  # from which the sum of the violations is minimised before their largest
_FEW = 500  # coefficients: exact arithmetic on so few takes less time than to look for structure
_TIGHT, _INSIDE = 1e-6, 1e-9  # relative: a row at its end, a variable inside its bounds
_CORRECTIONS, _STEPS = 5, 1000  # of a point, and of least squares each, from the tolerance of HiGHS to rounding


@dataclass(frozen=True)
class Verdict:
    """What is known about a system.

    Attributes:
        kind: "feasible" comes with a ``point`` that satisfies every row to 1e-9 (relative to ``max(1, sum_j |a_ij
            x_j|)``) and lies in the box, and no proof of the contrary was found; "infeasible" comes with a
            ``certificate`` checked in exact arithmetic; "unknown" claims nothing.
        reason: for "unknown", why.
    """

    kind: Literal["feasible", "infeasible", "unknown"]
    point: Array | None = None
    certificate: Certificate | None = None
    reason: str = ""


def judge(system: LinearSystem, *, seconds: float | None = None, deadline: Deadline | None = None) -> Verdict:
    """Decide whether some point of the box satisfies all rows, within ``seconds`` (or a shared ``deadline``).

    A point that satisfies the rows up to rounding (1e-15) settles it. Otherwise the proof comes first: rows that miss
    each other by less than the tolerance of any solver are still infeasible, where exact arithmetic says so. A point
    that violates rows by more than rounding is looked at again, magnified around that point, before it counts. Cost:
    little for networks and chains; else a linear program, a second one for a proof, and more in close cases.
    """
    limit = Deadline(seconds) if deadline is None else deadline
    if system.num_rows == 0:
        return Verdict("feasible", point=system.clip(np.zeros(len(system.lower))))
    if limit.passed:
        return Verdict("unknown", reason="time ran out")
    verdict = _by_structure(system, limit)
    if verdict is None and limit.passed:
        return Verdict("unknown", reason="time ran out")
    return verdict or _by_programs(system, limit)


def refuted(system: LinearSystem, hint: Array, *, seconds: float) -> bool:
    """Whether the rows are proved to contradict each other, by multipliers (k,) near the hint or by their structure.

    No linear program is solved; False proves nothing. Cost for a few dozen rows: a millisecond where the hint is good,
    some ten where structure has to be searched.
    """
    limit = Deadline(seconds)
    possible = np.where(hint > 0, np.isfinite(system.row_upper), np.isfinite(system.row_lower)) & np.isfinite(hint)
    multipliers = np.where(possible, hint, 0.0)
    if refutes_rounded(system, multipliers):
        return True
    few = system.matrix.nnz <= _FEW
    proof = certify(system, multipliers, limit) if few else None
    if proof is not None and _is_clear(system, proof):
        return True
    verdict = _by_structure(system, limit)
    if verdict is not None:
        return verdict.kind == "infeasible"
    return proof is not None or (not few and certify(system, multipliers, limit) is not None)


def _by_structure(system: LinearSystem, limit: Deadline) -> Verdict | None:
    """The verdict where it takes no linear program."""
    even = _even_point(system)
    if even is not None and system.violation(even) <= CLEAN:
        return Verdict("feasible", point=even)
    implied = refuted_by_bounds(system, limit)
    proof = None if implied is None else certify(system, implied, limit)
    if proof is None:
        point, cuts = point_or_cuts(system, limit)
        if point is not None and system.violation(point) <= CLEAN:
            return Verdict("feasible", point=point)
        proof = next((p for p in (certify(system, cut, limit) for cut in cuts) if p is not None), None)
    return Verdict("infeasible", certificate=proof) if proof is not None and _is_clear(system, proof) else None


def _is_clear(system: LinearSystem, proof: Certificate) -> bool:
    """Whether rows miss each other by more than rounding: else a point that satisfies them up to that comes first."""
    gap = exact_gap(system, proof.rows, proof.multipliers)
    rows, weights = list(proof.rows), np.abs(np.array([float(m) for m in proof.multipliers]))
    ends = np.stack([system.row_lower[rows], system.row_upper[rows]])
    sizes = np.maximum(1.0, np.abs(np.where(np.isfinite(ends), ends, 0.0)).max(0))
    return gap is not None and float(gap) > CLEAN * float(weights @ sizes)


def _by_programs(system: LinearSystem, limit: Deadline) -> Verdict:
    """The verdict by linear programs: any point, then the least violation, then the same in close cases, magnified."""
    start, worst = Deadline(), np.inf
    best = any_point(system, limit)
    if best is not None:
        best = _corrected(system, best)
        worst = system.violation(best)
        if worst <= CLEAN:
            return Verdict("feasible", point=best)
    close = limit.within(_SECONDS_TO_LOOK + start.used) if worst <= HOLDS else limit
    zoomed, origin, factor = system, np.zeros(len(system.lower)), 1.0
    for _ in range(_LOOKS):
        least = _least_violation(zoomed, close)
        if least is None:
            break
        point = system.clip(origin + least.point / factor)
        violation = system.violation(point)
        if violation <= CLEAN:
            return Verdict("feasible", point=point)
        proof = _prove(system, least.multipliers, least.amount / factor, close)
        if proof is not None:
            return Verdict("infeasible", certificate=proof)
        if best is None or violation < worst:
            best, worst = point, violation
        origin, factor = best, factor * _MAGNIFY
        zoomed = _magnified(system, origin, factor)
    if best is not None and worst <= HOLDS:
        return Verdict("feasible", point=best)
    if limit.passed:
        return Verdict("unknown", reason="time ran out")
    return Verdict(
        "unknown", reason="no point was found that satisfies the rows, and no exact proof that there is none"
    )


def _even_point(system: LinearSystem) -> Array | None:
    """The point with one share of every variable's box, in the middle of what the rows allow; None: there is none."""
    width = system.upper - system.lower
    if not np.isfinite(width).all():
        return None
    reach, base = system.matrix @ width, system.matrix @ system.lower
    moves = reach != 0
    one, other = ((end[moves] - base[moves]) / reach[moves] for end in (system.row_lower, system.row_upper))
    least, most = np.minimum(one, other).max(initial=0.0), np.maximum(one, other).min(initial=1.0)
    return system.clip(system.lower + 0.5 * (least + most) * width) if least <= most + HOLDS else None


def _corrected(system: LinearSystem, point: Array) -> Array:
    """The point moved by least squares so that rows it is close to hold as well as rounding allows."""
    from scipy.sparse.linalg import lsmr

    for _ in range(_CORRECTIONS):
        if system.violation(point) <= CLEAN:
            break
        activity, size = system.matrix @ point, np.maximum(1.0, abs(system.matrix) @ np.abs(point))
        lacks = system.lacks(point)
        near = np.minimum(np.abs(activity - system.row_lower), np.abs(activity - system.row_upper)) <= _TIGHT * size
        rows = np.flatnonzero(near | (lacks != 0))
        room = np.minimum(point - system.lower, system.upper - point)
        inside = np.flatnonzero(room > _INSIDE * np.maximum(1.0, np.abs(point)))
        moved = lsmr(system.matrix[rows][:, inside], lacks[rows], atol=1e-8, btol=1e-8, maxiter=_STEPS)[0]
        corrected = point.copy()
        corrected[inside] += moved
        corrected = system.clip(corrected)
        if not system.violation(corrected) < system.violation(point):
            break
        point = corrected
    return point


def _least_violation(system: LinearSystem, limit: Deadline) -> LeastViolation | None:
    """The linear program for multipliers; of many rows the sum comes first, which leaves few for the largest one."""
    if system.num_rows <= _MANY_ROWS:
        return least_violation(system, limit) or least_violation(system, limit, method="highs-ipm")
    of_sum = least_violation(system, limit, of_all=True)
    if of_sum is None:
        return None
    used = np.flatnonzero(of_sum.multipliers)
    if not 0 < len(used) <= system.num_rows // 2:
        return of_sum
    few = least_violation(system.take(used), limit)
    if few is None or not few.amount > 0:
        return of_sum
    multipliers = np.zeros(system.num_rows)
    multipliers[used] = few.multipliers
    return LeastViolation(few.amount, of_sum.point, multipliers)


def _prove(system: LinearSystem, multipliers: Array, amount: float, limit: Deadline) -> Certificate | None:
    """A certificate from the multipliers of a linear program, or from others that rounding spares; None without."""
    if not amount > 0:
        return None
    proof = certify(system, multipliers, limit)
    if proof is not None:
        return proof
    for rows in (np.flatnonzero(multipliers), np.arange(system.num_rows)):
        if len(rows) == 0 or limit.passed:
            return None
        part = system.take(rows)
        interior = interior_multipliers(part, amount, limit)
        proof = None if interior is None else certify(part, interior, limit)
        if proof is not None:
            return Certificate(tuple(int(rows[i]) for i in proof.rows), proof.multipliers)
    return None


def _magnified(system: LinearSystem, origin: Array, factor: float) -> LinearSystem:
    """The system in the variables ``factor * (x - origin)``: violations become visible that were below tolerance."""
    activity = np.asarray(system.matrix.astype(np.longdouble) @ origin.astype(np.longdouble))
    return replace(
        system,
        row_lower=(factor * (system.row_lower - activity)).astype(np.float64),
        row_upper=(factor * (system.row_upper - activity)).astype(np.float64),
        lower=factor * (system.lower - origin),
        upper=factor * (system.upper - origin),
    )
