"""Where scores pull: the feasible polygon of two variables, and the vertex that small temperatures lead to."""

from __future__ import annotations

from typing import Any

import numpy as np

from linsat_tools.explorer.problem import Problem

_SAME_POINT = 1e-9  # corners closer than this share of the box are one


def polygon(problem: Problem) -> list[list[float]]:
    """Corners of the feasible set of two variables, in order around it; two for a segment, one for a point, or none.

    Soft rows do not limit it. The box is clipped by one half-plane after another (an equality is two). Cost: O(rows^2)
    at worst.
    """
    (left, bottom), (right, top) = problem.lower, problem.upper
    corners = np.array([[left, bottom], [right, bottom], [right, top], [left, top]], dtype=float)
    size = max(right - left, top - bottom, 1e-9)
    for a, row in zip(problem.matrix(), problem.rows, strict=True):
        if row.price is not None:
            continue
        for sign in {"<=": (1.0,), ">=": (-1.0,), "==": (1.0, -1.0)}[row.sense]:
            corners = _clip(corners, sign * a, sign * row.rhs, _SAME_POINT * size * float(np.abs(a).sum()))
    kept: list[np.ndarray] = []
    for corner in corners:
        if all(np.abs(corner - other).max() > _SAME_POINT * size for other in kept):
            kept.append(corner)
    return [corner.tolist() for corner in kept]


def _clip(corners: np.ndarray, a: np.ndarray, b: float, tolerance: float) -> np.ndarray:
    """The part of a convex polygon (corners in order) with a x <= b."""
    kept: list[np.ndarray] = []
    excess = corners @ a - b
    for i in range(len(corners)):
        here, there = excess[i - 1], excess[i]
        if (here > tolerance) != (there > tolerance):
            share = here / (here - there)
            kept.append(corners[i - 1] + share * (corners[i] - corners[i - 1]))
        if there <= tolerance:
            kept.append(corners[i])
    return np.array(kept).reshape(-1, 2)


def best_vertex(problem: Problem, scores: np.ndarray) -> list[float] | None:
    """The vertex with the largest sum of scores times x less the prices paid, by HiGHS; None where several are best.

    As the temperature falls, x tends to it. Two more programs look for another optimum: over the best face, some
    fixed direction is minimised and maximised. Cost: milliseconds.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    rows, variables = len(problem.rows), len(scores)
    prices = np.array([0.0 if row.price is None else row.price for row in problem.rows])
    # Columns: x, then what each row is exceeded by and falls short by, both 0 for a hard row.
    matrix = np.hstack([problem.matrix(), -np.eye(rows), np.eye(rows)])
    slack = np.tile([np.inf if row.price is not None else 0.0 for row in problem.rows], 2)
    low: Any = [row.rhs if row.sense != "<=" else -np.inf for row in problem.rows]  # Any: scipy has no types
    high: Any = [row.rhs if row.sense != ">=" else np.inf for row in problem.rows]
    lower: Any = np.append(problem.lower, np.zeros(2 * rows))
    upper: Any = np.append(problem.upper, slack)
    box = Bounds(lower, upper)
    value = np.concatenate([scores, -prices, -prices])
    stated = [LinearConstraint(matrix, low, high)] if rows else []

    def best(objective: np.ndarray, more: list[LinearConstraint]) -> np.ndarray | None:
        solved = milp(-objective, constraints=[*stated, *more], bounds=box)
        return solved.x if solved.status == 0 else None

    first = best(value, [])
    if first is None:
        return None
    direction = np.append(np.random.default_rng(0).standard_normal(variables), np.zeros(2 * rows))
    size = 1.0 + float(np.abs(scores) @ np.maximum(np.abs(problem.lower), np.abs(problem.upper)))
    face = LinearConstraint(value[None], float(value @ first) - 1e-9 * size, np.inf)
    for turn in (1.0, -1.0):
        other = best(turn * direction, [face])
        if other is None or np.abs(other - first)[:variables].max() > 1e-4 * (1.0 + np.abs(first[:variables]).max()):
            return None
    return (first[:variables] + 0.0).tolist()  # without -0.0
