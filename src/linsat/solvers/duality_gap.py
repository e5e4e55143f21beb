r"""How far a point and duals are from optimal, by the numbers of the program, in extended precision where there is any.

    gap = sum_j [psi_j(u_j) + omega_j(x_j) - u_j x_j]  +  what rows add,      u = c + A' duals

Every term is at least zero and written so that nothing cancels: a product of distances for quadratic columns, a
relative entropy for entropic ones. What an interior-point method measures in its scaled units may be small where this
is not: of duals of 1e9, what is left of stationarity relative to them is no small number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from linsat.compile.feasibility import HOLDS
from linsat.solvers.program import Program

Array = np.ndarray

_EPS = float(np.finfo(np.float64).eps)
_EXTENDED = np.finfo(np.longdouble).eps < _EPS  # not on every platform
_ROUNDING = (4 if _EXTENDED else 64) * _EPS  # of u, relative to its terms
# A share this close to 0 or 1, and x as close to its bound, may be forced there: then no finite dual asks for it.
_AT_END = 1e-9


class Gap(NamedTuple):
    """The parts of a gap, relative to 1 + the terms of the objective."""

    columns: float  # x is not what the duals ask for
    room: float  # rows that hold with room, times their duals
    rows: float  # rows that do not hold, times their duals


def duality_gap(program: Program, x: Array, duals: Array, soft: Array | None = None) -> Gap:
    """The gap at a point of the box and duals in the user's units, less what rounding may add; NaN beyond doubles.

    ``soft`` rows (k,) have columns of the program that take up what they lack: nothing of them is forgiven.
    """
    with np.errstate(all="ignore"):
        return _gap(program, x, duals, np.zeros(len(duals), dtype=bool) if soft is None else soft)


def _gap(program: Program, x: Array, duals: Array, soft: Array) -> Gap:
    u = program.linear + program.matrix.T.astype(np.longdouble) @ duals.astype(np.longdouble)
    terms, value = _columns(program, u, x)
    size = np.abs(program.linear) + abs(program.matrix).T @ np.abs(duals)
    lost = _lost(program, x, _ROUNDING * size)
    slack, room, rows = _rows(program, x, duals, soft)
    return Gap((float(terms.sum() + slack) - lost) / value, room / value, rows / value)


def _lost(program: Program, x: Array, error: Array) -> float:
    """What an error in u, and the rounding of x, may add: to first order x times it, to second the curvature."""
    steep = np.where(program.quadratic > 0, 1 / np.where(program.quadratic > 0, program.quadratic, 1.0), 0.0)
    width = program.upper - program.lower
    has_entropy = (program.entropy > 0) & (width > 0)
    steep = np.where(has_entropy, width / (4 * np.where(has_entropy, program.entropy, 1.0)), steep)
    return float((np.abs(x) * error + steep * error * error / 2).sum())


def _columns(program: Program, u: Array, x: Array) -> tuple[Array, float]:
    """The term of each column, and 1 + the size of the objective."""
    q, a, lower, upper = program.quadratic, program.entropy, program.lower, program.upper
    curved = np.where(q > 0, q, 1.0)
    nearest = np.clip(u / curved, lower, upper)
    quadratic = np.abs(curved * (x - nearest) * (x + nearest - 2 * u / curved) / 2)
    bound = np.where(u > 0, upper, lower)
    linear = np.abs(u) * np.where(np.isfinite(bound), np.abs(x - bound), np.abs(x))
    has_entropy = (a > 0) & (upper > lower)
    width, a = np.where(has_entropy, upper - lower, 1.0), np.where(has_entropy, a, 1.0)
    low = np.where(has_entropy, lower, 0.0)
    entropic, entropy = _relative_entropy((x - low) / width, u / a, _at_ends(low, low + width))
    terms = np.where(q > 0, quadratic, np.where(has_entropy, a * width * entropic, linear))
    terms = np.where(upper > lower, terms, 0.0)  # a fixed column is where it must be
    has_value = (q > 0) | (program.entropy > 0)  # soft rows lack what they lack, which may be any amount
    sizes = np.abs(program.linear * x) + q * x * x / 2 + np.where(has_entropy, a * width * entropy, 0.0)
    return terms, 1.0 + float(sizes[has_value].sum())


def _rows(program: Program, x: Array, duals: Array, soft: Array) -> tuple[float, float, float]:
    """What entropic slacks add that are not what the duals ask for, rows that hold with room, and rows that do not."""
    exact = program.matrix.astype(np.longdouble) @ x.astype(np.longdouble)
    outside = np.maximum(np.maximum(program.row_lower - exact, exact - program.row_upper), 0.0)
    width = program.row_upper - program.row_lower
    entropic = (program.row_entropy > 0) & (width > 0) & np.isfinite(width)
    width = np.where(entropic, width, 1.0)
    side = np.where(duals > 0, program.row_lower, program.row_upper)
    short = np.where(np.isfinite(side) & ~entropic & (duals != 0), np.abs(exact - side), 0.0)
    # Optimal for a right-hand side within the tolerance of the row is optimal enough.
    size = np.maximum(1.0, abs(program.matrix) @ np.abs(x))
    tight = short <= np.where(soft, _ROUNDING, HOLDS) * size
    room = np.where(tight | (outside > 0), 0.0, np.abs(duals) * short)
    low = np.where(entropic, program.row_lower, 0.0)
    a = np.where(entropic, program.row_entropy, 1.0)
    found = _relative_entropy((exact - low) / width, -duals / a, _at_ends(low, low + width))[0]
    slack = np.where(entropic, a * width * found, 0.0)
    return float(slack.sum()), float(room.sum()), float((np.abs(duals) * outside).sum())


def _at_ends(lower: Array, upper: Array) -> tuple[Array, Array]:
    """Shares of the box below and above which a column may be forced to its bound."""
    width = upper - lower
    below, above = (_AT_END * np.minimum(1.0, (1.0 + np.abs(bound)) / width) for bound in (lower, upper))
    return below, 1.0 - above


def _relative_entropy(share: Array, v: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
    """p log(p / s) + (1 - p) log((1 - p) / (1 - s)) with s = sigmoid(v), 0 beyond the ends; and the entropy of p."""
    p = np.clip(share, 0.0, 1.0).astype(np.longdouble)
    inside = (p > ends[0]) & (p < ends[1])
    p = np.where(inside, p, 0.5)
    entropy = -p * np.log(p) - (1 - p) * np.log1p(-p)
    found = p * np.logaddexp(0, -v) + (1 - p) * np.logaddexp(0, v) - entropy
    return np.where(inside, np.maximum(found, 0.0), 0.0), np.where(inside, entropy, 0.0)
