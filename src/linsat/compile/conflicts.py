"""Minimal sets of rows that cannot hold together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linsat.compile.certificate import Certificate
from linsat.compile.feasibility import judge
from linsat.compile.programs import least_violation
from linsat.compile.system import Deadline, LinearSystem

_HOLDS = 1e-13  # relative violation of a point that needs no second look
_CLEAR = 1e-6  # violation of scaled rows from which a conflict is beyond doubt while rows are being tried


@dataclass(frozen=True)
class Conflict:
    """Rows that cannot hold together within the bounds.

    Attributes:
        certificate: proves it; its rows are those of the conflict.
        minimal: established that any row dropped, the others can hold.
    """

    certificate: Certificate
    minimal: bool

    @property
    def rows(self) -> tuple[int, ...]:
        return self.certificate.rows


def minimal_conflict(
    system: LinearSystem, certificate: Certificate, *, seconds: float | None = None, deadline: Deadline | None = None
) -> Conflict:
    """Shrink the rows of a certificate until each is needed: a deletion filter, one linear program per row.

    A row goes when the others conflict without it, and with it every row that their multipliers do not use. It stays
    when a point satisfies the others. What is left is proved in exact arithmetic at the end. Where that fails (columns
    that depend on each other only up to rounding, in infinite bounds), the rows are tried in other orders; last, only
    what is proved goes. When time runs out, the smallest set proved so far is returned and does not count as minimal.
    """
    limit = Deadline(seconds) if deadline is None else deadline
    best = certificate
    for rows in _orders(certificate.rows):
        found = _filter(system, rows, limit)
        if limit.passed:
            break
        proof = _proof(system, found.rows, limit)
        if proof is None:
            continue
        best = min(best, proof, key=lambda c: len(c.rows))
        if found.decided and len(proof.rows) == len(found.rows):
            return Conflict(proof, minimal=True)
    return _proved_filter(system, best, limit)


def _orders(rows: Sequence[int]) -> list[list[int]]:
    """Orders in which rows are tried; the last ones at random, the same each time."""
    rng = np.random.default_rng(0)
    return [list(rows)[::-1], list(rows), *(rng.permutation(list(rows)).tolist() for _ in range(4))]


@dataclass(frozen=True)
class _Filtered:
    rows: list[int]  # ascending
    decided: bool  # each row was seen to be needed


def _filter(system: LinearSystem, rows: list[int], limit: Deadline) -> _Filtered:
    """The deletion filter that takes the word of HiGHS for a clear conflict, and exact arithmetic in close cases."""
    kept, needed, decided = list(rows), set[int](), True
    while not limit.passed:
        candidate = next((row for row in kept if row not in needed), None)
        if candidate is None:
            return _Filtered(sorted(kept), decided)
        rest = [row for row in kept if row != candidate]
        part = system.take(np.array(rest, dtype=np.int64))
        found = least_violation(part, limit)
        if found is not None and found.amount > _CLEAR:
            used = {rest[i] for i in np.flatnonzero(found.multipliers).tolist()} | needed
            kept = [row for row in rest if row in used]
            continue
        if found is not None and part.violation(found.point) <= _HOLDS:
            needed.add(candidate)
            continue
        verdict = judge(part, deadline=limit)
        if verdict.certificate is not None:
            used = {rest[i] for i in verdict.certificate.rows} | needed
            kept = [row for row in rest if row in used]
        else:
            needed.add(candidate)
            decided = decided and verdict.kind == "feasible"
    return _Filtered(sorted(kept), decided=False)


def _proof(system: LinearSystem, rows: list[int], limit: Deadline) -> Certificate | None:
    proof = judge(system.take(np.array(rows, dtype=np.int64)), deadline=limit).certificate
    return None if proof is None else Certificate(tuple(rows[i] for i in proof.rows), proof.multipliers)


def _proved_filter(system: LinearSystem, certificate: Certificate, limit: Deadline) -> Conflict:
    """The deletion filter that drops a row only when the others are proved to conflict without it."""
    needed: set[int] = set()
    decided = True
    while not limit.passed:
        candidate = next((row for row in certificate.rows if row not in needed), None)
        if candidate is None:
            return Conflict(certificate, minimal=decided)
        rest = [row for row in certificate.rows if row != candidate]
        verdict = judge(system.take(np.array(rest, dtype=np.int64)), deadline=limit)
        if verdict.certificate is not None:
            proof = verdict.certificate
            certificate = Certificate(tuple(rest[i] for i in proof.rows), proof.multipliers)
        else:
            needed.add(candidate)
            decided = decided and verdict.kind == "feasible"
    return Conflict(certificate, minimal=False)


def other_conflicts(system: LinearSystem, first: Sequence[int], *, at_most: int, deadline: Deadline) -> list[Conflict]:
    """Conflicts that remain when a row of the first one is dropped; as many as time allows, none of them twice."""
    found: list[Conflict] = []
    seen = {tuple(first)}
    everything = np.arange(system.num_rows)
    for row in first:
        if len(found) >= at_most or deadline.passed:
            break
        rest = everything[everything != row]
        part = system.take(rest)
        verdict = judge(part, deadline=deadline)
        if verdict.certificate is None:
            continue
        conflict = minimal_conflict(part, verdict.certificate, deadline=deadline)
        rows = tuple(int(rest[i]) for i in conflict.rows)
        if rows not in seen:
            seen.add(rows)
            found.append(Conflict(Certificate(rows, conflict.certificate.multipliers), conflict.minimal))
    return found
