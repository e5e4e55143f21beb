"""A verdict on a constraint set in the user's words: which rows conflict, and with which bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from linsat._senses import GREATER, LESS
from linsat.constraints.names import families
from linsat.constraints.numbers import of_instance, present
from linsat.constraints.terms import lifted
from linsat.constraints.text import named_row_text
from linsat.errors import InfeasibleError
from linsat.verdict import (
    Certificate,
    Conflict,
    Deadline,
    LinearSystem,
    Verdict,
    judge,
    minimal_conflict,
    other_conflicts,
)
from linsat.verdict.certificate import allowed, exact_gap, least_in_box, weighted

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints

Array = np.ndarray
Number = float | Fraction

SECONDS = 60.0  # for a verdict, unless the caller says otherwise
_SECONDS_FOR_CONFLICT = 3.0  # for a minimal conflict, besides as long as the verdict took
_SECONDS_FOR_OTHERS = 0.5  # for conflicts beside the first one
_SHOWN = 8  # bounds, or rows, that a message lists one by one
_SHOWN_OF_FAMILY = 2  # rows of each name where there are more than that
_GROUPS = 5  # names that the words of a certificate mention
_DENOMINATOR = 1000  # of multipliers that are fractions of each other
_MANY = 100  # rows of a conflict beside which others say little


@dataclass(frozen=True)
class NamedBound:
    """A bound that was not given as one: it comes from a row with one coefficient, or from a box."""

    side: str  # "lower" or "upper"
    variable: int
    label: str  # the variable as a user knows it
    row: str | None  # name of the row; None: the box

    def text(self, value: float) -> str:
        source = "the box" if self.row is None else f"row {self.row}"
        return f"{self.label} {'>=' if self.side == 'lower' else '<='} {value:g} (from {source})"


@dataclass(frozen=True)
class Diagnosis:
    """What is known about one instance of a constraint set.

    Attributes:
        verdict: feasible, infeasible or unknown.
        rows: of an infeasible set, rows that cannot hold together, as positions in the set.
        bounds: bounds with a source that the conflict needs, each with its value.
        minimal: established that any of these rows dropped, or any of these bounds lifted, the rest can hold.
        multipliers: one for each of ``rows``; they refute the rows over the box, in exact arithmetic.
        others: further conflicts (rows only) that remain after that.
    """

    verdict: Verdict
    rows: tuple[int, ...] = ()
    bounds: tuple[tuple[NamedBound, float], ...] = ()
    minimal: bool = False
    multipliers: tuple[Number, ...] = ()
    others: tuple[tuple[int, ...], ...] = ()

    @property
    def absorbed_rows(self) -> list[str]:
        """Names of the rows that some of the bounds come from, each once."""
        return list(dict.fromkeys(bound.row for bound, _ in self.bounds if bound.row is not None))


def linear_system(
    constraints: Constraints, instance: int = 0, *, width: int | None = None, all_hard: bool = False
) -> LinearSystem:
    """The numbers of one instance as plain arrays, in the user's units; soft rows have no ends, unless ``all_hard``.

    ``width``: how many variables there are, for sets that fit any number.
    """
    stated, width = present(constraints), width or constraints.num_variables or 1
    batch, count = stated.batch_shape, len(constraints)

    def of(numbers: Array, size: int) -> Array:
        spread = np.broadcast_to(numbers, (*numbers.shape[:-1], size))
        return of_instance(spread, batch, instance if batch else 0).copy()

    values = of(stated.values, len(stated.row))
    matrix = sp.csr_array((values, (stated.row, stated.col)), shape=(count, width))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    side, senses = of(stated.rhs, count), stated.senses
    soft = np.zeros(count, dtype=bool)
    if stated.price is not None and not all_hard:
        soft = np.isfinite(of(stated.price, count))
    return LinearSystem(
        matrix,
        np.where(soft | (senses == LESS), -np.inf, side),
        np.where(soft | (senses == GREATER), np.inf, side),
        of(stated.lower, width),
        of(stated.upper, width),
    )


def diagnose(
    constraints: Constraints, instance: int = 0, *, seconds: float | None = SECONDS, others: int = 2
) -> Diagnosis:
    """Judge one instance within its own bounds; an infeasible one gets a minimal conflict, as time allows.

    Args:
        others: how many further conflicts to look for.
    """
    if constraints._terms is not None:
        return _of_formulas(constraints, instance, seconds)
    deadline = Deadline(seconds)
    system = linear_system(constraints, instance)
    verdict = judge(system, deadline=deadline)
    if verdict.certificate is None:
        return Diagnosis(verdict)
    named = _named_bounds(constraints, system)
    whole, proof, used = _bounds_as_rows(system, verdict.certificate, named)
    conflict = minimal_conflict(whole, proof, deadline=deadline.within(_SECONDS_FOR_CONFLICT + deadline.used))
    count = system.num_rows
    rows = tuple(i for i in conflict.rows if i < count)
    further: list[Conflict] = []
    if others and conflict.minimal and 0 < len(rows) <= _MANY:
        further = other_conflicts(system, rows, at_most=others, deadline=deadline.within(_SECONDS_FOR_OTHERS))
    return Diagnosis(
        verdict,
        rows=rows,
        bounds=tuple(
            (bound, float((system.lower if bound.side == "lower" else system.upper)[bound.variable]))
            for bound in (used[i - count] for i in conflict.rows if i >= count)
        ),
        minimal=conflict.minimal,
        multipliers=conflict.certificate.multipliers[: len(rows)],
        others=tuple(other.rows for other in further),
    )


def _of_formulas(constraints: Constraints, instance: int, seconds: float | None) -> Diagnosis:
    """The same of a set with maxima, by way of its linear rows, whose conflicts are those of the formulas."""
    whole, owner = lifted(constraints)
    diagnosis = diagnose(whole._with_named_bounds(constraints._named_bounds), instance, seconds=seconds, others=0)
    return replace(diagnosis, rows=tuple(dict.fromkeys(owner[list(diagnosis.rows)].tolist())), multipliers=())


def _named_bounds(constraints: Constraints, system: LinearSystem) -> list[NamedBound]:
    """The bounds with a source that are finite here."""
    ends = {"lower": system.lower, "upper": system.upper}
    return [bound for bound in constraints._named_bounds if np.isfinite(ends[bound.side][bound.variable])]


def _bounds_as_rows(
    system: LinearSystem, certificate: Certificate, named: list[NamedBound]
) -> tuple[LinearSystem, Certificate, list[NamedBound]]:
    """The system with bounds that have a source as rows behind the others, where they can matter; its certificate.

    Only rows of the certificate are looked at from here on, so bounds of variables outside them stay bounds.
    """
    present = set(system.matrix[list(certificate.rows)].indices.tolist())
    used = [bound for bound in named if bound.variable in present]
    if not used:
        return system, certificate, used
    variables, sums, unit = weighted(system, certificate.rows, certificate.multipliers)
    combined = dict(zip(variables, sums, strict=True))
    lower, upper = system.lower.copy(), system.upper.copy()
    columns = np.array([bound.variable for bound in used])
    is_lower = np.array([bound.side == "lower" for bound in used])
    low, high = np.where(is_lower, lower[columns], -np.inf), np.where(is_lower, np.inf, upper[columns])
    lower[columns[is_lower]], upper[columns[~is_lower]] = -np.inf, np.inf
    units = sp.csr_array((np.ones(len(used)), (np.arange(len(used)), columns)), shape=(len(used), len(lower)))
    whole = LinearSystem(
        sp.csr_array(sp.vstack([system.matrix, units])),
        np.append(system.row_lower, low),
        np.append(system.row_upper, high),
        lower,
        upper,
    )
    all_rows, weights = list(certificate.rows), list(certificate.multipliers)
    for position, bound in enumerate(used):
        v = combined.get(bound.variable, 0) * unit
        if (v > 0 and bound.side == "lower") or (v < 0 and bound.side == "upper"):
            all_rows.append(system.num_rows + position)
            weights.append(-v)
    return whole, Certificate(tuple(all_rows), tuple(weights)), used


def reject_infeasible(constraints: Constraints, instance: int | None = None) -> None:
    """Raise `InfeasibleError` where the rows (of one instance) are proved to contradict each other."""
    if constraints._mapped:  # the numbers of an instance are out of reach, inside a function transform
        return
    diagnosis = diagnose(constraints, instance or 0)
    if diagnosis.verdict.kind == "infeasible":
        where = "" if instance is None else f" for instance {instance}"
        raise error_from(constraints, diagnosis, instance or 0, where=where)


def error_from(
    constraints: Constraints, diagnosis: Diagnosis, instance: int = 0, *, where: str = ""
) -> InfeasibleError:
    """An infeasible diagnosis as an error: what `explained` says, further conflicts, the fix."""
    names = constraints.names
    one = len(diagnosis.rows) + len(diagnosis.bounds) == 1
    subject = "The row cannot hold" if one else "These rows cannot hold together"
    lines = [f"{subject} within the bounds{where}:", *explained(constraints, diagnosis, instance)]
    if diagnosis.others:
        # Where rows are only counted, conflicts may read alike; one that reads like the one just shown is left out.
        texts = dict.fromkeys(listed_names(constraints, rows) for rows in diagnosis.others)
        texts.pop(listed_names(constraints, diagnosis.rows), None)
        lines.append(
            f"Further conflicts remain after that: {' | '.join(texts)}."
            if texts
            else "Further conflicts among other rows of these names remain after that."
        )
    lines.append(_fix(diagnosis))
    return InfeasibleError(
        "\n".join(lines),
        rows=[*(names[i] for i in diagnosis.rows), *diagnosis.absorbed_rows],
        indices=diagnosis.rows,
        minimal=diagnosis.minimal,
        certificate=diagnosis.multipliers,
        bounds=[bound.text(value) for bound, value in diagnosis.bounds],
    )


def explained(constraints: Constraints, diagnosis: Diagnosis, instance: int = 0) -> list[str]:
    """A conflict in lines: its rows, the bounds that it needs, and the certificate in words."""
    lines = row_lines(constraints, diagnosis.rows, instance)
    if diagnosis.bounds:
        lines += ["together with these bounds:", *_listed([bound.text(value) for bound, value in diagnosis.bounds])]
    if constraints._terms is not None:  # the certificate is one of rows that the user has not written
        return lines
    words = certificate_words(constraints, linear_system(constraints, instance), diagnosis.rows, diagnosis.multipliers)
    return [*lines, words] if words else lines


def _fix(diagnosis: Diagnosis) -> str:
    soft = "or let rows be broken at a price: constraints.soften(rows, price=10.0)."
    if not diagnosis.minimal:
        return f"Fix: loosen some of them (it was not established that the conflict needs each of them), {soft}"
    if len(diagnosis.rows) + len(diagnosis.bounds) == 1:
        return f"Fix: change it, widen the bounds, {soft}"
    return f"Fix: drop or loosen any one of them, {soft}"


def _listed(entries: list[str]) -> list[str]:
    shown = [f"  {entry}" for entry in entries[:_SHOWN]]
    return shown + ([f"  and {len(entries) - _SHOWN} more"] if len(entries) > _SHOWN else [])


# ------------------------------------------------------------------ in words


def row_lines(constraints: Constraints, rows: Sequence[int], instance: int) -> list[str]:
    """The rows of an instance, one a line and those of one name together; of many rows the first ones of each name."""
    groups = families([constraints.names[row] for row in rows])
    each = len(rows) if len(rows) <= _SHOWN else _SHOWN_OF_FAMILY
    lines: list[str] = []
    shown = 0
    for name, places in list(groups.items())[:_SHOWN]:
        lines += [f"  {named_row_text(constraints, rows[p], instance=instance)}" for p in places[:each]]
        if len(places) > each:
            left = len(places) - each
            lines.append(f"  and {left} more {'row' if left == 1 else 'rows'} '{name}'")
        shown += len(places)
    return lines + ([f"  and {len(rows) - shown} more"] if shown < len(rows) else [])


def counted_names(constraints: Constraints, rows: Sequence[int]) -> str:
    """The rows by name, those of one name counted: ``4 rows 'at most 2', budget``."""
    groups = list(families([constraints.names[row] for row in rows]).items())
    parts = [
        constraints.names[rows[places[0]]] if len(places) == 1 else f"{len(places)} rows '{name}'"
        for name, places in groups[:_SHOWN]
    ]
    return ", ".join(parts) + (f" and {len(groups) - _SHOWN} more names" if len(groups) > _SHOWN else "")


def listed_names(constraints: Constraints, rows: Sequence[int]) -> str:
    """The rows by name, one by one where they are few, else as `counted_names` does."""
    if len(rows) > _SHOWN_OF_FAMILY * 2:
        return counted_names(constraints, rows)
    return ", ".join(constraints.names[row] for row in rows)


def certificate_words(
    constraints: Constraints, system: LinearSystem, rows: Sequence[int], multipliers: Sequence[Number]
) -> str:
    """What the multipliers prove, as a sum: ``10 rows 'staffed' need 10; 4 rows 'at most 2' allow 8``.

    Rows with negative multipliers say that a sum is at least something, those with positive ones that a sum is at most
    something; the bounds allow the rest, and it does not suffice.
    """
    if not multipliers:
        return ""
    given = {row: Fraction(m) for row, m in zip(rows, multipliers, strict=True)}
    weights = _simple(system, given)
    least = least_in_box(system, list(weights), list(weights.values()))
    assert least is not None  # or they would prove nothing
    bounds = -least  # what the bounds add to what rows allow
    needs = _Side([row for row in rows if weights[row] < 0], max(-bounds, Fraction(0)))
    allows = _Side([row for row in rows if weights[row] > 0], max(bounds, Fraction(0)))
    totals = [side.total(system, weights) for side in (needs, allows)]
    digits = next((d for d in (6, 9, 12, 17) if _text(totals[0], d) != _text(totals[1], d)), 17)
    parts = needs.words(constraints, system, weights, ("needs", "need"), digits)
    parts += allows.words(constraints, system, weights, ("allows", "allow"), digits)
    text = "; ".join(parts)
    if len(parts) > 2:
        text += f": {_text(totals[0], digits)} needed, {_text(totals[1], digits)} allowed"
    return text[0].upper() + text[1:] + "."


def _simple(system: LinearSystem, multipliers: dict[int, Fraction]) -> dict[int, Fraction]:
    """The multipliers in units of the usual one; freed of rounding, in whole numbers, where that proves as much."""
    usual = Counter(float(f"{abs(float(m)):.9g}") for m in multipliers.values()).most_common(1)[0][0]
    scaled = {m: m / Fraction(usual) for m in set(multipliers.values())}
    near = {m: share.limit_denominator(_DENOMINATOR) for m, share in scaled.items()}
    common = math.lcm(*(share.denominator for share in near.values()))
    simple = {row: near[m] * (common if common <= _DENOMINATOR else 1) for row, m in multipliers.items()}
    gap = exact_gap(system, list(simple), list(simple.values())) if all(near.values()) else None
    return simple if gap is not None and gap > 0 else {row: scaled[m] for row, m in multipliers.items()}


class _Side:
    """The rows that need something, or those that allow something, and the share of the bounds."""

    def __init__(self, rows: list[int], bounds: Fraction) -> None:
        self.rows, self.bounds = rows, bounds

    def total(self, system: LinearSystem, weights: dict[int, Fraction]) -> Fraction:
        return self.bounds + _amount(system, self.rows, weights)

    def words(
        self,
        constraints: Constraints,
        system: LinearSystem,
        weights: dict[int, Fraction],
        verbs: tuple[str, str],
        digits: int,
    ) -> list[str]:
        """One phrase per name of rows, and one for the bounds."""
        parts: list[str] = []
        groups = families([constraints.names[row] for row in self.rows])
        for name, places in list(groups.items())[:_GROUPS]:
            rows = [self.rows[p] for p in places]
            amount = _amount(system, rows, weights)
            sizes = {abs(weights[row]) for row in rows}
            factor = "" if sizes == {1} else f" (times {_text(min(sizes), 6)})" if len(sizes) == 1 else " (weighted)"
            subject = f"row '{constraints.names[rows[0]]}'" if len(rows) == 1 else f"{len(rows)} rows '{name}'"
            if len(weights) == 1:  # which has just been shown
                subject = "it"
            parts.append(f"{subject}{factor} {verbs[len(rows) > 1]} {_text(amount, digits)}")
        if len(groups) > _GROUPS:
            parts.append(f"rows of {len(groups) - _GROUPS} more names")
        if self.bounds:
            parts.append(f"the bounds {verbs[1]} {_text(self.bounds, digits)}")
        return parts


def _amount(system: LinearSystem, rows: Sequence[int], weights: dict[int, Fraction]) -> Fraction:
    """What the rows of one side allow, or need, together."""
    total = allowed(system, rows, [weights[row] for row in rows])
    assert total is not None  # or they would prove nothing
    return -total if any(weights[row] < 0 for row in rows[:1]) else total


def _text(value: Fraction, digits: int) -> str:
    return f"{float(value):.{digits}g}"
