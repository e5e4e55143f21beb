"""Proofs of infeasibility: multipliers of rows, made and checked in exact arithmetic."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from linsat.verdict.programs import linear_program
from linsat.verdict.system import Array, Deadline, LinearSystem

Multiplier = float | Fraction

_NEGLIGIBLE = 1e-11  # multipliers below this share of the largest (weighted by its row) are rounding
# Shares of its terms below which an entry of A'v counts as zero but for rounding, in the order in which they are tried.
_ROUNDING = (1e-9, 1e-12, 1e-6)
_NUDGE = 1e-3  # by how much a sign has to come out right, relative to the largest entry that is only rounding
_LARGEST = 2_000_000  # entries of a dense matrix whose columns are chosen among: about a second
_LARGEST_TO_CANCEL = 250_000
_SMALL_CHANGE = 0.5  # of a multiplier, relative, that keeps what it says
_EXACT = 2**53  # whole numbers below are floats
_ONE = -1  # stands for the number 1 among the unknowns of an equation
_ZERO = Fraction(0)
_DEPENDENT = 1e-10  # pivot share below which columns count as linearly dependent but for rounding


@dataclass(frozen=True)
class Certificate:
    """Multipliers that refute some rows over the box, proved by `exact_gap`.

    Attributes:
        rows: the rows with a multiplier, ascending.
        multipliers: one for each of them, positive for the upper end of a row and negative for the lower end; floats
            where floats prove it, else fractions.
    """

    rows: tuple[int, ...]
    multipliers: tuple[Multiplier, ...]


def exact_gap(system: LinearSystem, rows: Sequence[int], multipliers: Sequence[Multiplier]) -> Fraction | None:
    """By how much multipliers refute rows over a box: positive is a proof that no point satisfies them.

    A positive multiplier stands for ``a x <= row_upper``, a negative one for ``a x >= row_lower``. Weighted by them the
    rows say ``v x <= c``, with ``v = A' multipliers``. The gap is the smallest ``v x`` of the box less c. None where
    nothing follows: a row end is infinite, or ``v x`` has no smallest value because a bound is infinite. Floats are
    taken as the fractions they are, so no rounding has to be allowed for. Cost: see `weighted`.
    """
    least, most = least_in_box(system, rows, multipliers), allowed(system, rows, multipliers)
    return None if least is None or most is None else least - most


def allowed(system: LinearSystem, rows: Sequence[int], multipliers: Sequence[Multiplier]) -> Fraction | None:
    """What the rows say that their weighted sum is at most; None where an end is infinite."""
    used = [(row, m) for row, m in zip(rows, multipliers, strict=True) if m]
    weights, unit = _whole_numbers([m for _, m in used])
    total = _exact_sum(weights, [float(system.row_upper[i] if m > 0 else system.row_lower[i]) for i, m in used])
    return None if total is None else total * unit


def least_in_box(system: LinearSystem, rows: Sequence[int], multipliers: Sequence[Multiplier]) -> Fraction | None:
    """The smallest value in the box of the weighted sum of rows; None where there is none."""
    columns, sums, unit = weighted(system, rows, multipliers)
    bounds = [float(system.lower[j] if v > 0 else system.upper[j]) for j, v in zip(columns, sums, strict=True)]
    total = _exact_sum(sums, bounds)
    return None if total is None else total * unit


def weighted(
    system: LinearSystem, rows: Sequence[int], multipliers: Sequence[Multiplier]
) -> tuple[list[int], list[int], Fraction]:
    """The weighted sum of rows: its columns, and its coefficients as whole multiples of a number.

    Cost: about a microsecond a coefficient, far less where 53 bits hold all sums: coefficients and multipliers that are
    small whole numbers, or multiples of one power of two.
    """
    weights, factor = _whole_numbers(multipliers)
    part = system.matrix[np.array(rows, dtype=np.int64)]
    values, exponent = _whole_floats(part.data)
    owners = np.repeat(np.arange(len(weights)), np.diff(part.indptr))
    largest = float(np.abs(values).max(initial=0.0))
    if largest < _EXACT and max(map(abs, weights), default=0) * int(largest) * len(weights) < _EXACT:
        sums = np.bincount(part.indices, np.array(weights, dtype=np.float64)[owners] * values)
        columns = np.flatnonzero(sums)
        return columns.tolist(), [int(v) for v in sums[columns].tolist()], factor * Fraction(2) ** exponent
    numbers, unit = _whole_numbers(part.data.tolist())
    combined: dict[int, int] = {}
    for owner, j, value in zip(owners.tolist(), part.indices.tolist(), numbers, strict=True):
        combined[j] = combined.get(j, 0) + weights[owner] * value
    present = [(j, v) for j, v in combined.items() if v]
    return [j for j, _ in present], [v for _, v in present], factor * unit


def _exact_sum(weights: list[int], values: list[float]) -> Fraction | None:
    """The sum of products; None where a value is infinite."""
    if not all(map(math.isfinite, values)):
        return None
    numbers, unit = _whole_numbers(values)
    return sum(map(operator.mul, weights, numbers)) * unit


def _whole_floats(values: Array) -> tuple[Array, int]:
    """Floats as whole numbers, themselves floats, times one power of two; they may be infinite, the power too small."""
    mantissa, exponent = np.frexp(values)
    bits = (np.abs(mantissa) * 2.0**53).astype(np.int64)
    lowest = exponent - 53 + np.log2(np.maximum(bits & -bits, 1)).astype(np.int64)  # the last bit that is set
    least = int(lowest[bits != 0].min(initial=0)) if len(values) else 0
    with np.errstate(over="ignore"):
        return np.ldexp(values, -least), least


def certify(system: LinearSystem, multipliers: Array, deadline: Deadline) -> Certificate | None:
    """Turn approximate multipliers (k,) into a proof; None where they prove nothing exactly or time ran out.

    Tried as they are first. Where that fails, entries of ``A'v`` that are zero but for rounding are made exactly zero
    by solving for the multipliers in rational numbers: infinite bounds need that, and wide ones profit.
    """
    kept, weights = _support(system, multipliers)
    if len(kept) == 0:
        return None
    rows = kept.tolist()
    if _proves(system, rows, weights.tolist()):
        return Certificate(tuple(rows), tuple(weights.tolist()))
    tried: list[Array] = []
    for share in _ROUNDING:
        part = system.matrix[kept].tocsc()
        combined, terms = part.T @ weights, abs(part).T @ np.abs(weights)
        zero = np.flatnonzero((np.abs(combined) <= share * terms) & (terms > 0))  # but for rounding
        if any(np.array_equal(zero, other) for other in tried):
            continue
        if len(kept) * len(zero) > _LARGEST or deadline.passed:
            break
        tried.append(zero)
        solved_for = zero[_independent(part[:, zero], weights)]
        weights = _cancelled(part[:, solved_for], weights)
        exact = _solve(part, solved_for, weights, deadline)
        if exact is None:
            break
        if not _proves(system, rows, exact):
            targets = _tiny_targets(system, part, solved_for, np.setdiff1d(zero, solved_for), exact, deadline)
            exact = None if targets is None else _solve(part, solved_for, weights, deadline, targets)
        if exact is not None and _proves(system, rows, exact):
            used = [(row, weight) for row, weight in zip(rows, exact, strict=True) if weight]
            return _in_floats(system, Certificate(tuple(r for r, _ in used), tuple(w for _, w in used)))
    return None


def _proves(system: LinearSystem, rows: Sequence[int], multipliers: Sequence[Multiplier]) -> bool:
    gap = exact_gap(system, rows, multipliers)
    return gap is not None and gap > 0


def _in_floats(system: LinearSystem, certificate: Certificate) -> Certificate:
    """The certificate with floats in place of fractions, where these prove it too."""
    largest = max(abs(Fraction(m)) for m in certificate.multipliers)
    floats = tuple(float(Fraction(m) / largest) for m in certificate.multipliers)
    plain = Certificate(certificate.rows, floats)
    return plain if all(floats) and _proves(system, plain.rows, plain.multipliers) else certificate


def _support(system: LinearSystem, multipliers: Array) -> tuple[Array, Array]:
    """The rows whose multiplier is more than rounding, and these multipliers in a common scale near 1."""
    size = np.abs(multipliers) * system.row_sizes()
    kept = np.flatnonzero(size > _NEGLIGIBLE * size.max(initial=0.0))
    weights = multipliers[kept]
    return kept, weights / 2.0 ** round(math.log2(np.abs(weights).max())) if len(kept) else weights


def _equation(part: Any, column: int, target: Fraction = _ZERO) -> dict[int, int]:
    """A column as an equation for the multipliers, in whole numbers; the constant stands with the unknown `_ONE`."""
    here = slice(part.indptr[column], part.indptr[column + 1])
    values, _ = _whole_numbers([*part.data[here].tolist(), -target])
    return {i: value for i, value in zip([*part.indices[here].tolist(), _ONE], values, strict=True) if value}


def _solve(
    part: Any, columns: Array, weights: Array, deadline: Deadline, targets: list[Fraction] | None = None
) -> list[Fraction] | None:
    """Multipliers near ``weights`` with ``(A'v)_j`` exactly zero (or ``targets``) in these independent columns.

    The multipliers of a vertex of the dual program are determined by those equations up to a factor; so are they here,
    by sparse elimination in whole numbers. Multipliers that the equations leave free keep their value.
    """
    equations = []
    for position, j in enumerate(columns.tolist()):
        target = Fraction(0) if targets is None else targets[position]
        equations.append(_equation(part, j, target))
    pivots = _eliminate(equations, np.abs(weights).tolist(), deadline)
    if pivots is None:
        return None
    solved: dict[int, Fraction] = {_ONE: Fraction(1)}
    free = set(range(len(weights))) - {variable for variable, _ in pivots}
    for variable in free:
        # One free multiplier is only a factor: 1 keeps the numbers short.
        weight = float(weights[variable])
        short = len(free) == 1 and targets is None
        solved[variable] = Fraction(int(math.copysign(1, weight))) if short else Fraction(weight)
    for variable, equation in reversed(pivots):
        if deadline.passed:
            return None
        rest = sum((value * solved[i] for i, value in equation.items() if i != variable), Fraction(0))
        solved[variable] = -rest / equation[variable]
    return [solved[i] for i in range(len(weights))]


def _tiny_targets(
    system: LinearSystem, part: Any, columns: Array, others: Array, exact: list[Fraction], deadline: Deadline
) -> list[Fraction] | None:
    """Values in place of exact zeros, of the size of rounding, that give the other columns the sign they need.

    ``others`` depend on ``columns`` in the numbers that were meant but not in the floats that were given, so their
    entries of ``A'v`` come out as rounding of either sign. Entries of ``columns`` may move away from zero where their
    bounds allow it, and the others with them: a small linear program, scaled up. None: nothing helps.
    """
    wanted = np.array([j for j in others.tolist() if np.isinf(system.lower[j]) or np.isinf(system.upper[j])], dtype=int)
    values = []
    for j in wanted.tolist():
        here = slice(part.indptr[j], part.indptr[j + 1])
        terms = zip(part.indices[here].tolist(), part.data[here].tolist(), strict=True)
        values.append(sum((exact[i] * Fraction(value) for i, value in terms), Fraction(0)))
    scale = max((abs(value) for value in values), default=Fraction(0))
    if not scale or not len(columns):
        return None
    row_scale = np.array([abs(float(v)) or 1.0 for v in exact])[:, None]
    basis, dependent = part[:, columns].toarray() * row_scale, part[:, wanted].toarray() * row_scale
    sizes = np.maximum(np.abs(basis).max(0), 1e-300)
    effect = np.linalg.lstsq(basis / sizes, dependent, rcond=None)[0] / sizes[:, None]  # (columns, wanted)
    now = np.array([float(value / scale) for value in values])
    up, down = np.isinf(system.upper[wanted]), np.isinf(system.lower[wanted])  # must be >= 0, must be <= 0
    bounds = [
        (None if np.isfinite(system.upper[j]) else 0.0, None if np.isfinite(system.lower[j]) else 0.0)
        for j in columns.tolist()
    ]
    cost = [float(high is None) - float(low is None) for low, high in bounds]  # stay near zero
    solved = linear_program(
        np.array(cost),
        deadline,
        A_ub=np.vstack([-effect.T[up], effect.T[down]]),
        b_ub=np.concatenate([now[up], -now[down]]) - _NUDGE,
        bounds=bounds,
    )
    if solved.status != 0 or solved.x is None:
        return None
    return [Fraction(float(x)) * scale for x in solved.x]


def _cancelled(part: Any, weights: Array) -> Array:
    """Weights whose entries of ``A'v`` are zero up to rounding, each changed by a small share of itself."""
    if not 0 < part.shape[0] * part.shape[1] <= _LARGEST_TO_CANCEL:
        return weights
    terms = part.toarray() * weights[:, None]
    change = np.linalg.lstsq(terms.T, -terms.sum(0), rcond=None)[0]
    return weights * (1.0 + change) if np.abs(change).max() < _SMALL_CHANGE else weights


def _independent(part: Any, weights: Array) -> Array:
    """Columns that are linearly independent also when rounding is allowed for.

    Others follow from these in the numbers that were meant, though often not in the numbers as floats: as equations
    they would leave zero as the only solution.
    """
    scaled = part.toarray() * weights[:, None]
    scaled = scaled / np.maximum(np.abs(scaled).max(0, initial=0.0), 1e-300)
    if scaled.shape[1] == 0:
        return np.zeros(0, dtype=np.int64)
    from scipy.linalg import qr

    triangle, order = qr(scaled, mode="r", pivoting=True, check_finite=False)
    sizes = np.abs(np.diag(triangle))
    return order[: int((sizes > _DEPENDENT * sizes[0]).sum())]


def _eliminate(
    equations: list[dict[int, int]], sizes: list[float], deadline: Deadline
) -> list[tuple[int, dict[int, int]]] | None:
    """Gaussian elimination of homogeneous equations in whole numbers, shortest equation first.

    Returns the pivots in order, each with its equation, which holds no earlier pivot. Stops when one variable is left:
    equations that still remain either follow or have no solution but zero, and the exact check of the result decides.
    """
    left = {number: equation for number, equation in enumerate(equations) if equation}
    holders: dict[int, set[int]] = {}
    for number, equation in left.items():
        for variable in equation:
            holders.setdefault(variable, set()).add(number)
    pivots: list[tuple[int, dict[int, int]]] = []
    while left and len(pivots) < len(sizes) - 1:
        if deadline.passed:
            return None
        number = min(left, key=lambda n: len(left[n]))
        equation = left.pop(number)
        unknown = [i for i in equation if i != _ONE]
        if not unknown:
            return None  # the constants contradict each other
        fewest = min(len(holders[i]) for i in unknown)
        variable = max((i for i in unknown if len(holders[i]) <= 2 * fewest), key=lambda i: sizes[i])
        for i in equation:
            holders[i].discard(number)
        pivots.append((variable, equation))
        for other in list(holders[variable]):
            combined = _combine(left[other], equation, variable)
            for i in left[other].keys() - combined.keys():
                holders[i].discard(other)
            for i in combined.keys() - left[other].keys():
                holders[i].add(other)
            if combined:
                left[other] = combined
            else:
                del left[other]
    return pivots


def _combine(equation: dict[int, int], pivot: dict[int, int], variable: int) -> dict[int, int]:
    """A positive multiple of the equation, without ``variable`` and common factors, by adding the pivot equation."""
    divisor = math.gcd(equation[variable], pivot[variable]) * (1 if pivot[variable] > 0 else -1)
    own, other = pivot[variable] // divisor, equation[variable] // divisor
    combined = {i: own * value for i, value in equation.items()}
    for i, value in pivot.items():
        combined[i] = combined.get(i, 0) - other * value
    combined = {i: value for i, value in combined.items() if value}
    common = math.gcd(*combined.values()) if combined else 1
    return {i: value // common for i, value in combined.items()} if common > 1 else combined


def _whole_numbers(values: Sequence[Multiplier]) -> tuple[list[int], Fraction]:
    """The numbers as whole multiples, without a common factor, of a positive one."""
    ratios = [value.as_integer_ratio() for value in values]
    denominator = math.lcm(*{d for _, d in ratios})
    whole = [n * (denominator // d) for n, d in ratios]
    common = math.gcd(*whole) or 1
    return [value // common for value in whole], Fraction(common, denominator)
