"""Minimal sets of rows that cannot hold together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linsat.verdict.certificate import Certificate, certify
from linsat.verdict.feasibility import judge
from linsat.verdict.networks import minimal_cut
from linsat.verdict.programs import least_violation
from linsat.verdict.system import Array, Deadline, LinearSystem

_HOLDS = 1e-13  # relative violation at which a point counts as one, without a closer check
_CLEAR = 1e-6  # violation of scaled rows from which a conflict is beyond doubt while rows are being tried
_INSIDE = 1e-9  # distance from its bounds, relative to its size, of a variable that may move either way
_LARGEST = 400_000  # entries of the dense matrix that is inverted for points without one row each
_CORRECTIONS = 3  # of these points


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
    """Shrink the rows of a certificate until each is needed: by flows where they are a network, else a deletion filter.

    A row goes when the others conflict without it, and with it every row that their multipliers do not use. It stays
    when a point satisfies the others. Such points are computed for all rows at once (`_needed_at_once`); what they do
    not show takes a linear program for each row. What is left is proved in exact arithmetic at the end. Where that
    fails (columns that depend on each other only up to rounding, in infinite bounds), the rows are tried in other
    orders; last, only what is proved goes. When time runs out, the smallest set proved so far is returned and does not
    count as minimal.
    """
    limit = Deadline(seconds) if deadline is None else deadline
    cut = _cut(system, certificate, limit)
    if cut.minimal:
        return cut
    best, rng = cut.certificate, np.random.default_rng(0)
    listed = list(best.rows)
    for rows in (listed[::-1], listed, *(rng.permutation(listed).tolist() for _ in range(4))):
        filtered = _filter(system, rows, limit)
        if limit.passed:
            break
        proof = _proof(system, filtered.rows, limit)
        if proof is None:
            continue
        best = min(best, proof, key=lambda c: len(c.rows))
        if filtered.decided and len(proof.rows) == len(filtered.rows):
            return Conflict(proof, minimal=True)
    return _proved_filter(system, best, limit)


def _cut(system: LinearSystem, certificate: Certificate, limit: Deadline) -> Conflict:
    """A conflict among rows that are a network; of other rows the one that is known."""
    part = system.take(np.array(certificate.rows, dtype=np.int64))
    cut = None if limit.passed else minimal_cut(part, limit)
    proof = None if cut is None else certify(part, cut[0], limit)
    if cut is None or proof is None:
        return Conflict(certificate, minimal=False)
    rows = tuple(certificate.rows[i] for i in proof.rows)
    all_needed = cut[1] and len(rows) == int(np.count_nonzero(cut[0]))
    return Conflict(Certificate(rows, proof.multipliers), minimal=all_needed)


@dataclass(frozen=True)
class _Filtered:
    rows: list[int]  # ascending
    decided: bool  # each row was seen to be needed


def _filter(system: LinearSystem, rows: list[int], limit: Deadline) -> _Filtered:
    """The deletion filter that takes the word of HiGHS for a clear conflict, and exact arithmetic in close cases."""
    first = _look(system, rows, limit)
    kept = [row for row in rows if row in first.used] if first.conflict else list(rows)
    needed, decided = set(first.needed), True
    while not limit.passed:
        candidate = next((row for row in kept if row not in needed), None)
        if candidate is None:
            return _Filtered(sorted(kept), decided)
        rest = [row for row in kept if row != candidate]
        look = _look(system, rest, limit)
        if look.conflict:
            kept = [row for row in rest if row in look.used or row in needed]
            needed |= look.needed
        else:
            needed.add(candidate)
            decided = decided and look.conflict is False
    return _Filtered(sorted(kept), decided=False)


@dataclass(frozen=True)
class _Look:
    conflict: bool | None  # None: not known
    used: frozenset[int] = frozenset()  # the rows that conflict
    needed: frozenset[int] = frozenset()  # those of them without which the others can hold, as far as seen


def _look(system: LinearSystem, rows: list[int], limit: Deadline) -> _Look:
    """Whether some rows conflict."""
    part = system.take(np.array(rows, dtype=np.int64))
    least = least_violation(part, limit)
    if least is not None and least.amount > _CLEAR:
        used = np.flatnonzero(least.multipliers)
        shown = _needed_at_once(part.take(used), least.point, least.multipliers[used])
        return _Look(True, frozenset(rows[i] for i in used), frozenset(rows[i] for i in used[shown]))
    if least is not None and part.violation(least.point) <= _HOLDS:
        return _Look(False)
    verdict = judge(part, deadline=limit)
    if verdict.certificate is not None:
        return _Look(True, frozenset(rows[i] for i in verdict.certificate.rows))
    return _Look(False if verdict.kind == "feasible" else None)


def _needed_at_once(system: LinearSystem, point: Array, weights: Array) -> Array:
    """(k,) rows without which the others can hold, of rows that all have a weight in the program `point` comes from.

    At that point every row is violated alike. With v the weights and B the coefficients of variables inside their
    bounds, v'B = 0, and that is all that keeps the rows B d = -violation from being solvable: without row i, a d exists
    that mends all others. One pseudo-inverse gives it for every i; whether the bounds allow it is looked up.
    """
    k, matrix = system.num_rows, system.matrix
    away = _INSIDE * np.maximum(1.0, np.abs(point))
    inside = (point - system.lower > away) & (system.upper - point > away)
    free = np.flatnonzero(inside & (np.diff(matrix.tocsc().indptr) > 0))
    if k * len(free) > _LARGEST:
        return np.zeros(k, dtype=bool)
    scale = np.maximum(abs(matrix).max(axis=1).toarray().ravel(), np.finfo(float).tiny)[:, None]
    coefficients = matrix[:, free].toarray() / scale
    held = np.where(inside, 0.0, point)
    fixed, sizes = (matrix @ held)[:, None] / scale, (abs(matrix) @ np.abs(held))[:, None] / scale
    low, high = system.row_lower[:, None] / scale - fixed, system.row_upper[:, None] / scale - fixed
    aims, weights = np.where(weights[:, None] > 0, high, low), weights * scale[:, 0]
    inverse = np.linalg.pinv(coefficients)
    points = np.repeat(point[free][:, None], k, axis=1)  # one for each row that is left out
    diagonal, needed = np.arange(k), np.zeros(k, dtype=bool)
    for _ in range(_CORRECTIONS):
        lacks = aims - coefficients @ points
        lacks[diagonal, diagonal] -= weights @ lacks / weights
        points = np.clip(points + inverse @ lacks, system.lower[free, None], system.upper[free, None])
        activity = coefficients @ points
        size = np.maximum(1.0 / scale, sizes + np.abs(coefficients) @ np.abs(points))
        off = np.maximum(low - activity, activity - high) / size
        off[diagonal, diagonal] = 0.0
        needed |= off.max(axis=0) <= _HOLDS
        if needed.all():
            break
    return needed


def _proof(system: LinearSystem, rows: list[int], limit: Deadline) -> Certificate | None:
    """Multipliers of few digits where a linear program has them, else as they come."""
    part = system.take(np.array(rows, dtype=np.int64))
    least = least_violation(part, limit)
    proof = None if least is None or not least.amount > 0 else certify(part, least.multipliers, limit)
    proof = proof or judge(part, deadline=limit).certificate
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
    others: list[Conflict] = []
    seen = {tuple(first)}
    everything = np.arange(system.num_rows)
    for row in first:
        if len(others) >= at_most or deadline.passed:
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
            others.append(Conflict(Certificate(rows, conflict.certificate.multipliers), conflict.minimal))
    return others
