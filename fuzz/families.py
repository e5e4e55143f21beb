"""Families of random rows, and the box they live in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
Rng = np.random.Generator

SENSES = ("<=", ">=", "==")


@dataclass
class Rows:
    """What a family draws: rows, a box, and a point that satisfies them once the sides are set."""

    matrix: Array
    senses: list[str]
    lower: Array
    upper: Array
    touching: float = 0.0  # share of inequality rows that hold with equality at the point
    corner: float = 0.0  # share of variables that sit at a bound at the point
    point: Array | None = None  # the same for all systems of the case, where the family needs that
    pull: Array | None = None  # the direction of the scores, where the family has one
    exact: bool = False  # other coefficients than these would make it another family


def feasible_sides(rng: Rng, rows: Rows, matrix: Array | None = None) -> tuple[Array, Array]:
    """A point, and right-hand sides that it satisfies; ``matrix`` in place of the family's coefficients."""
    matrix = rows.matrix if matrix is None else matrix
    width = rows.upper - rows.lower
    point = rows.point
    if point is None:
        share = rng.uniform(0.02, 0.98, len(width))
        at_bound = rng.random(len(width)) < rows.corner
        point = rows.lower + width * np.where(at_bound, rng.integers(0, 2, len(width)), share)
        point = np.clip(point, rows.lower, rows.upper)
    room = rng.exponential(0.1, len(rows.senses)) * (np.abs(matrix) @ width)
    room = np.where(rng.random(len(room)) < rows.touching, 0.0, room)
    sign = np.array([{"<=": 1.0, ">=": -1.0, "==": 0.0}[s] for s in rows.senses])
    return point, matrix @ point + sign * room


def _size(rng: Rng) -> tuple[int, int]:
    """Rows and variables; now and then several times as many."""
    times = 4 if rng.random() < 0.05 else 1
    return int(rng.integers(1, 8 * times + 1)), int(rng.integers(1, 24 * times + 1))


def _box(rng: Rng, l: int) -> tuple[Array, Array]:
    kind = rng.random()
    if kind < 0.6:
        return np.zeros(l), np.ones(l)
    lower = rng.uniform(-3, 3, l)
    width = rng.uniform(0.1, 4, l) if kind < 0.9 else 10.0 ** rng.uniform(-3, 5, l)
    return lower, lower + np.where(rng.random(l) < 0.05, 0.0, width)  # a width of zero fixes the variable


def _coefficients(rng: Rng, k: int, l: int, *, signed: bool) -> Array:
    kind = rng.random()
    matrix = rng.uniform(0.1, 2.0, (k, l)) if kind < 0.6 else rng.integers(1, 4, (k, l)).astype(float)
    matrix *= rng.random((k, l)) < rng.uniform(0.1, 1.0)
    if signed:
        matrix *= rng.choice([-1.0, 1.0], (k, l))
    empty = ~matrix.any(1)
    matrix[empty, rng.integers(0, l, int(empty.sum()))] = 1.0
    return matrix


def _senses(rng: Rng, matrix: Array) -> list[str]:
    """Any senses, with fewer equalities than variables so that the set is not a point by accident."""
    k, l = matrix.shape
    found = [str(s) for s in rng.choice(SENSES, k)]
    equal = [i for i, s in enumerate(found) if s == "=="]
    for i in equal[max(1, l // 2) :]:
        found[i] = "<="
    return found


def _plain(rng: Rng, *, signed: bool) -> Rows:
    k, l = _size(rng)
    matrix = _coefficients(rng, k, l, signed=signed)
    return Rows(matrix, _senses(rng, matrix), *_box(rng, l))


def _scaled(rng: Rng) -> Rows:
    """Rows from 1e-6 to 1e6, and in half of them coefficients that differ by as much among themselves."""
    rows = _plain(rng, signed=bool(rng.random() < 0.5))
    shape = rows.matrix.shape if rng.random() < 0.5 else (rows.matrix.shape[0], 1)
    rows.matrix = rows.matrix * 10.0 ** rng.uniform(-6, 6, shape)
    return rows


def _parallel(rng: Rng) -> Rows:
    """Rows beside copies of themselves turned by 1e-9 to 1e-2."""
    rows = _plain(rng, signed=bool(rng.random() < 0.7))
    turn = 10.0 ** rng.uniform(-9, -2)
    near = rows.matrix * (1 + turn * rng.uniform(-1, 1, rows.matrix.shape))
    rows.matrix = np.vstack([rows.matrix, near * rng.uniform(0.5, 2, (len(near), 1))])
    rows.senses = rows.senses + _inequalities(rng, len(near))
    rows.touching = float(rng.choice([0.0, 0.5]))
    return rows


def _duplicate(rng: Rng) -> Rows:
    """Rows given twice, some of them under another factor or sense."""
    rows = _plain(rng, signed=bool(rng.random() < 0.5))
    picked = rng.integers(0, len(rows.matrix), int(rng.integers(1, 5)))
    factor = rng.choice([1.0, 1.0, 2.0, 1e3, 1e-3], (len(picked), 1))
    rows.matrix = np.vstack([rows.matrix, factor * rows.matrix[picked]])
    rows.senses = rows.senses + [rows.senses[i] for i in picked]
    return rows


def _dependent(rng: Rng) -> Rows:
    """Equalities of which some are combinations of the others."""
    l = int(rng.integers(2, 24))
    basis = _coefficients(rng, int(rng.integers(1, max(2, l // 2))), l, signed=bool(rng.random() < 0.5))
    mix = rng.uniform(-1, 1, (int(rng.integers(1, 4)), len(basis)))
    matrix = np.vstack([basis, mix @ basis])
    return Rows(matrix, ["=="] * len(matrix), *_box(rng, l), corner=float(rng.choice([0.0, 0.3])))


def _single_point(rng: Rng) -> Rows:
    """One point only: as many equalities as variables, or inequalities that meet in a corner of the box."""
    l = int(rng.integers(1, 13))
    lower, upper = _box(rng, l)
    if rng.random() < 0.5:
        matrix = np.eye(l) + 0.3 * _coefficients(rng, l, l, signed=True)
        return Rows(matrix, ["=="] * l, lower, upper)
    corner = rng.integers(0, 2, l)
    matrix = rng.uniform(0.2, 2.0, (int(rng.integers(1, 4)), l)) * np.where(corner, -1.0, 1.0)
    point = np.where(corner, upper, lower)  # where every row is at its smallest
    return Rows(matrix, ["<="] * len(matrix), lower, upper, touching=1.0, point=point)


def _empty_interior(rng: Rng) -> Rows:
    """Pairs of inequalities that leave a plane, or a point at bounds where rows touch."""
    rows = _plain(rng, signed=bool(rng.random() < 0.5))
    if rng.random() < 0.5:
        picked = rng.integers(0, len(rows.matrix), int(rng.integers(1, 3)))
        rows.matrix = np.vstack([rows.matrix, rows.matrix[picked], rows.matrix[picked]])
        rows.senses = [*rows.senses, *["<="] * len(picked), *[">="] * len(picked)]
    rows.touching, rows.corner = 1.0, 0.3
    return rows


def _many_rows(rng: Rng) -> Rows:
    """Hundreds to thousands of sparse rows."""
    k = int(rng.integers(2000, 3000)) if rng.random() < 0.1 else int(10.0 ** rng.uniform(2.3, 3.0))
    l = int(rng.integers(50, 400))
    matrix = np.zeros((k, l))
    for i in range(k):
        support = rng.integers(0, l, int(rng.integers(2, 6)))
        matrix[i, support] = rng.uniform(0.2, 2.0, len(support)) * rng.choice([-1.0, 1.0, 1.0], len(support))
    return Rows(matrix, _inequalities(rng, k), np.zeros(l), np.ones(l))


def _one_variable(rng: Rng) -> Rows:
    k = int(rng.integers(1, 6))
    matrix = rng.choice([-1.0, 1.0], (k, 1)) * 10.0 ** rng.uniform(-6, 6, (k, 1))
    senses = [str(s) for s in rng.choice(SENSES, k, p=[0.4, 0.4, 0.2])]
    return Rows(matrix, senses, *_box(rng, 1), corner=float(rng.choice([0.0, 0.5])), touching=0.2)


def _tiny(rng: Rng) -> Rows:
    """Few rows over few variables, as many instances of which fill the lanes of a vector."""
    k, l = int(rng.integers(1, 13)), int(rng.integers(1, 9))
    matrix = _coefficients(rng, k, l, signed=bool(rng.random() < 0.7))
    return Rows(matrix, _senses(rng, matrix), *_box(rng, l), corner=float(rng.choice([0.0, 0.3])), touching=0.1)


def _inequalities(rng: Rng, count: int) -> list[str]:
    return [str(s) for s in rng.choice(SENSES[:2], count)]


FAMILIES: dict[str, Callable[[Rng], Rows]] = {
    "positive": lambda rng: _plain(rng, signed=False),
    "signed": lambda rng: _plain(rng, signed=True),
    "mixed scales": _scaled,
    "nearly parallel": _parallel,
    "duplicate": _duplicate,
    "dependent equalities": _dependent,
    "single point": _single_point,
    "empty interior": _empty_interior,
    "many rows": _many_rows,
    "one variable": _one_variable,
    "tiny": _tiny,
}
