"""Where scores pull: the feasible polygon of two variables, and the vertex that small temperatures lead to."""

from __future__ import annotations

import numpy as np

from linsat.explorer.problem import Problem

_SAME_POINT = 1e-9  # corners closer than this share of the box are one


def polygon(problem: Problem) -> list[list[float]]:
    """Corners of the feasible set of two variables, in order around it; two for a segment, one for a point, or none.

    The box is clipped by one half-plane after another (an equality is two). Cost: O(rows^2) at worst.
    """
    (left, bottom), (right, top) = problem.lower, problem.upper
    corners = np.array([[left, bottom], [right, bottom], [right, top], [left, top]], dtype=float)
    size = max(right - left, top - bottom, 1e-9)
    for a, row in zip(problem.matrix(), problem.rows, strict=True):
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
    """The vertex with the largest sum of scores times x, by HiGHS; None where several are equally good.

    As the temperature falls, x tends to it. Two more programs look for another optimum: over the best face, some
    fixed direction is minimised and maximised. Cost: milliseconds.
    """
    from scipy.optimize import linprog

    sign = np.array([-1.0 if row.sense == ">=" else 1.0 for row in problem.rows])
    matrix = problem.matrix() * sign[:, None]
    rhs = np.array([row.rhs for row in problem.rows]) * sign
    equal = np.array([row.sense == "==" for row in problem.rows], dtype=bool)
    box = list(zip(problem.lower, problem.upper, strict=True))

    def best(direction: np.ndarray, more: np.ndarray | None = None, least: float = 0.0) -> np.ndarray | None:
        A, b = matrix[~equal], rhs[~equal]
        if more is not None:
            A, b = np.vstack([A, -more[None]]), np.append(b, -least)
        solved = linprog(
            -direction,
            A_ub=A if len(b) else None,
            b_ub=b if len(b) else None,
            A_eq=matrix[equal] if equal.any() else None,
            b_eq=rhs[equal] if equal.any() else None,
            bounds=box,
            method="highs",
        )
        return solved.x if solved.status == 0 else None

    first = best(scores)
    if first is None:
        return None
    value = float(scores @ first)
    direction = np.random.default_rng(0).standard_normal(len(scores))
    size = 1.0 + float(np.abs(scores) @ np.maximum(np.abs(problem.lower), np.abs(problem.upper)))
    for turn in (1.0, -1.0):
        other = best(turn * direction, scores, value - 1e-9 * size)
        if other is None or np.abs(other - first).max() > 1e-4 * (1.0 + np.abs(first).max()):
            return None
    return (first + 0.0).tolist()  # without -0.0
