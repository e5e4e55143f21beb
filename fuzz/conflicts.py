"""Random systems that no point satisfies, together with the multipliers that prove it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from fuzz.families import FAMILIES, Array, Rng, Rows, feasible_sides
from fuzz.structured import STRUCTURED
from fuzz.systems import ABOVE_LOWER, Case, dress, soften

EXCESSES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
# How rows come to contradict: a row against a combination of others, against another like it, several rows or a single
# one against the box.
_KINDS = ("cancelling", "twin", "box", "single")
_MOST_SIDES = 32


def draw_infeasible(seed: int, number: int) -> Case:
    """The case ``number`` of the run ``seed`` with at least one infeasible system: always the same.

    In three of four cases the instances have right-hand sides of their own, and half of them stay feasible.
    """
    rng = np.random.default_rng([seed, number, 2])
    families = {name: make for name, make in (FAMILIES | STRUCTURED).items() if name != "many rows"}
    family = list(families)[number % len(families)]
    excess = EXCESSES[(number // len(families)) % len(EXCESSES)]
    rows = families[family](rng)
    kind = _KINDS[rng.integers(len(_KINDS))]
    coarse = bool(rng.random() < 0.3)  # few digits, so that sums are exact and bounds may be infinite
    if coarse:
        rows.matrix = _few_digits(rows.matrix)
    rows, weights = _with_conflict(rng, rows, kind, coarse)
    shared = bool(rng.random() < 0.25)
    count = 1 if shared else int(rng.integers(2, _MOST_SIDES + 1))
    bad = np.ones(1, dtype=bool) if shared else rng.permutation(np.arange(count) < max(1, count // 2))
    drawn = [feasible_sides(rng, rows) for _ in range(count)]
    sides = [contradict(rows, s, weights, excess) if b else s for (_, s), b in zip(drawn, bad, strict=True)]
    points = [None if b else point for (point, _), b in zip(drawn, bad, strict=True)]
    case = dress(rng, family, rows, points, np.stack(sides), shared)
    case.weights, case.excess = weights, excess
    if np.isinf(case.lower).any() or np.isinf(case.upper).any() or (coarse and case.objective == "euclidean"):
        lower, upper = _open_where_proof_holds(rng, rows, weights)
        case.lower, case.upper = case.lower if case.objective in ABOVE_LOWER else lower, upper
    if rng.random() < 0.2:
        _add_soft(rng, case)
    return case


def _few_digits(matrix: Array) -> Array:
    """Ten bits of each coefficient."""
    unit = 2.0 ** (np.floor(np.log2(np.where(matrix == 0, 1.0, np.abs(matrix)))) - 9)
    return np.round(matrix / unit) * unit


def _open_where_proof_holds(rng: Rng, rows: Rows, weights: Array) -> tuple[Array, Array]:
    """The box without some of the bounds that the proof does not need."""
    lower, upper = rows.lower.copy(), rows.upper.copy()
    combined = exact_combination(rows.matrix, weights)
    for j in range(len(lower)):
        v = combined.get(j, Fraction(0))
        if v >= 0 and rng.random() < 0.7:
            upper[j] = np.inf
        if v <= 0 and rng.random() < 0.7:
            lower[j] = -np.inf
    return lower, upper


def _add_soft(rng: Rng, case: Case) -> None:
    """Make rows soft that the proof does not need; they may say anything."""
    sides = case.sides
    soften(rng, case)
    assert case.price is not None
    assert case.weights is not None
    soft = np.isfinite(case.price) & (case.weights == 0)
    case.sides = np.where(soft, case.sides, sides)
    case.price = np.where(soft, case.price, np.inf) if soft.any() else None


def _with_conflict(rng: Rng, rows: Rows, kind: str, coarse: bool = False) -> tuple[Rows, Array]:
    """Rows among which multipliers (rows,) can be made to prove a contradiction by moving right-hand sides.

    Multipliers are at least zero for <=, at most zero for >= and any for ==.
    """
    k = len(rows.matrix)
    picked = rng.choice(k, min(k, int(rng.integers(1, 5))), replace=False)
    weights = np.zeros(k)
    size = row_sizes(rows.matrix, rows.lower, rows.upper)[picked]
    sign = np.array([_sign(rng, rows.senses[i]) for i in picked])
    weights[picked] = sign * rng.uniform(0.3, 2.0, len(picked)) / size
    if coarse:
        weights = np.where(
            weights == 0, 0.0, np.sign(weights) * 2.0 ** np.round(np.log2(np.abs(weights) + (weights == 0)))
        )
    if kind == "twin":  # the same row again, the other way round
        weights = np.where(np.arange(k) == picked[0], weights, 0.0)
    if kind in ("cancelling", "twin"):
        new = -(weights @ rows.matrix)
        if new.any():
            sense = str(rng.choice(["<=", ">=", "=="]))
            flip = -1.0 if sense == ">=" else 1.0
            factor = float(2.0 ** rng.integers(-10, 11)) if coarse else float(10.0 ** rng.uniform(-3, 3))
            rows.matrix = np.vstack([rows.matrix, flip * factor * new])
            rows.senses = [*rows.senses, sense]
            return rows, np.append(weights, flip / factor)
    if kind == "single":
        weights = np.where(np.arange(k) == picked[0], weights, 0.0)
    return rows, weights


def contradict(rows: Rows, sides: Array, weights: Array, excess: float) -> Array:
    """Move the right-hand sides of the weighted rows until every point of the box violates one of them.

    Weighted, the rows say v x <= c. With c below the smallest v x of the box by excess * sum(|weight| * row size), some
    weighted row is violated by at least ``excess`` times its size wherever x is.
    """
    v = weights @ rows.matrix
    least = np.minimum(v * rows.lower, v * rows.upper).sum()
    size = row_sizes(rows.matrix, rows.lower, rows.upper)
    used = weights != 0
    budget = (np.abs(weights) * size)[used]
    short = weights @ sides - (least - excess * budget.sum())
    moved = sides.copy()
    moved[used] -= np.sign(weights[used]) * size[used] * short / budget.sum()
    return moved


def row_sizes(matrix: Array, lower: Array, upper: Array) -> Array:
    """Mean of |coefficient * width of its variable| over what is not zero; 1 for rows that cannot move."""
    reach = np.abs(matrix) * (upper - lower)
    count = (reach > 0).sum(1)
    return np.where(count > 0, reach.sum(1) / np.maximum(count, 1), 1.0)


def exact_gap(matrix: Array, sides: Array, senses: list[str], box: tuple[Array, Array], weights: Any) -> Fraction:
    """By how much multipliers refute rows, computed without rounding; positive: no point of the box satisfies them.

    The floats stand for themselves, so nothing has to be allowed for; multipliers may be fractions. A multiplier of the
    wrong sign proves nothing, nor does one that needs an infinite bound: the gap is then -1.
    """
    target = Fraction(0)
    for side, sense, weight in zip(sides, senses, weights, strict=True):
        if (sense == "<=" and weight < 0) or (sense == ">=" and weight > 0):
            return Fraction(-1)
        if not isinstance(weight, Fraction) and not np.isfinite(weight):
            return Fraction(-1)
        target += Fraction(weight) * Fraction(float(side))
    least = Fraction(0)
    for j, v in exact_combination(matrix, weights).items():
        bound = float(box[0][j] if v > 0 else box[1][j])
        if v != 0 and not np.isfinite(bound):
            return Fraction(-1)
        least += v * Fraction(bound) if v != 0 else 0
    return least - target


def exact_combination(matrix: Array, weights: Any) -> dict[int, Fraction]:
    """The weighted sum of the rows by variable, without rounding."""
    combined: dict[int, Fraction] = {}
    for row, weight in zip(matrix, weights, strict=True):
        exact = Fraction(weight)
        for j in np.flatnonzero(row):
            combined[int(j)] = combined.get(int(j), Fraction(0)) + exact * Fraction(float(row[j]))
    return combined


def _sign(rng: Rng, sense: str) -> float:
    return {"<=": 1.0, ">=": -1.0, "==": float(rng.choice([-1.0, 1.0]))}[sense]
