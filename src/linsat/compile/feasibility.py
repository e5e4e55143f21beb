"""Whether rows can hold within a box: a point, a proof of the contrary, or neither."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from linsat.compile.certificate import Certificate, certify
from linsat.compile.programs import interior_multipliers, least_violation
from linsat.compile.system import Array, Deadline, LinearSystem

HOLDS = 1e-9  # relative violation at which a row holds; see LinearSystem.violation
CLEAN = 1e-15  # relative violation that is only rounding of the numbers as given: no need to look closer
_MAGNIFY = 2.0**20  # how much closer each further look is
_LOOKS = 3


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
    one linear program; more in close cases.
    """
    limit = Deadline(seconds) if deadline is None else deadline
    if system.num_rows == 0:
        return Verdict("feasible", point=system.clip(np.zeros(len(system.lower))))
    best: Array | None = None
    worst = np.inf
    zoomed, origin, factor = system, np.zeros(len(system.lower)), 1.0
    for _ in range(_LOOKS):
        if limit.passed:
            break
        found = least_violation(zoomed, limit) or least_violation(zoomed, limit, method="highs-ipm")
        if found is None:
            break
        point = system.clip(origin + found.point / factor)
        violation = system.violation(point)
        if violation <= CLEAN:
            return Verdict("feasible", point=point)
        proof = _prove(system, found.multipliers, found.amount / factor, limit)
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
        found = interior_multipliers(part, amount, limit)
        proof = None if found is None else certify(part, found, limit)
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
