r"""How far a point and duals are from optimal, by the numbers of the program, in extended precision where there is any.

    gap = sum_j [psi_j(u_j) + omega_j(x_j) - u_j x_j]  +  what rows add,      u = c - P x + A' duals

Every term is at least zero and written so that nothing cancels: a product of distances for quadratic columns, a
relative entropy for entropic ones, a Bregman divergence for those of Tsallis. x'Px / 2 stands on both sides of the gap,
with its slope P x in u in between. What an interior-point method measures in its scaled units may be small where this
is not: of duals of 1e9, what is left of stationarity relative to them is no small number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from linsat.arrays.interior.program import Program
from linsat.objectives import Tsallis
from linsat.verdict.feasibility import HOLDS

Array = np.ndarray

_EPS = float(np.finfo(np.float64).eps)
_EXTENDED = np.finfo(np.longdouble).eps < _EPS  # not on every platform
_ROUNDING = (4 if _EXTENDED else 64) * _EPS  # of u, relative to its terms
# A share this close to 0 or 1, and x as close to its bound, may be forced there: then no finite dual asks for it.
AT_END = 1e-9


class Gap(NamedTuple):
    """The parts of a gap, relative to 1 + the terms of the objective."""

    columns: float  # x is not what the duals ask for
    room: float  # rows that hold with room, times their duals
    rows: float  # rows that do not hold, times their duals


def duality_gap(
    program: Program, x: Array, duals: Array, soft: Array | None = None, tsallis: Tsallis | None = None
) -> Gap:
    """The gap at a point of the box and duals in the user's units, less what rounding may add; NaN beyond doubles.

    ``soft`` rows (k,) have columns of the program that take up what they lack: nothing of them is forgiven. With
    ``tsallis``, of numbers, quadratic columns have its cost, which no program can state.
    """
    with np.errstate(all="ignore"):
        return _gap(program, x, duals, np.zeros(len(duals), dtype=bool) if soft is None else soft, tsallis)


def _gap(program: Program, x: Array, duals: Array, soft: Array, tsallis: Tsallis | None) -> Gap:
    u = program.linear + program.matrix.T.astype(np.longdouble) @ duals.astype(np.longdouble)
    size = np.abs(program.linear) + abs(program.matrix).T @ np.abs(duals)
    if program.P is not None:
        u -= program.P.astype(np.longdouble) @ x.astype(np.longdouble)
        size += abs(program.P) @ np.abs(x)
    error = _ROUNDING * size
    terms, value = _columns(program, u, x, error, tsallis)
    slack, room, rows = _rows(program, x, duals, soft)
    lost = float((np.abs(x) * error).sum()) + _bent(program, x, error, tsallis)
    return Gap((float(terms.sum() + slack) - lost) / value, room / value, rows / value)


def _bent(program: Program, x: Array, error: Array, tsallis: Tsallis | None) -> float:
    """What an error in u may add by the curvature, beside x times it, which rounding of x may add too."""
    q = np.zeros_like(x) if tsallis is not None else program.quadratic
    steep = np.where(q > 0, 1 / np.where(q > 0, q, 1.0), 0.0)
    width, a = program.upper - program.lower, np.where(program.entropy > 0, program.entropy, 1.0)
    steep = np.where((program.entropy > 0) & (width > 0), width / (4 * a), steep)
    steep = np.where(program.one_sided, (x - program.lower) / a, steep)
    return float((steep * error * error / 2).sum())


def _columns(program: Program, u: Array, x: Array, error: Array, tsallis: Tsallis | None) -> tuple[Array, float]:
    """The term of each column, and 1 + the size of the objective."""
    q, lower, upper = program.quadratic, program.lower, program.upper
    curved = np.where(q > 0, q, 1.0)
    nearest = np.clip(u / curved, lower, upper)
    quadratic = np.abs(curved * (x - nearest) * (x + nearest - 2 * u / curved) / 2)
    costs = q * x * x / 2
    if tsallis is not None:
        quadratic, costs = _tsallis(tsallis, program, u, x, error)
    bound = np.where(u > 0, upper, lower)
    linear = np.abs(u) * np.where(np.isfinite(bound), np.abs(x - bound), np.abs(x))
    terms = np.where(q > 0, quadratic, linear)
    sizes = np.abs(program.linear * x) + costs
    if program.P is not None:
        sizes += np.abs(x * (program.P @ x)) / 2
    for pick, entropic in ((~program.one_sided, _two_sided), (program.one_sided, _one_sided)):
        which = np.flatnonzero(pick & (program.entropy > 0) & (upper > lower))
        if len(which):
            terms[which], entropy = entropic(program, which, u[which], x[which])
            sizes[which] += entropy
    terms = np.where(upper > lower, terms, 0.0)  # a fixed column is where it must be
    has_value = (q > 0) | (program.entropy > 0)  # soft rows lack what they lack, which may be any amount
    if program.P is not None:
        has_value |= program.P.diagonal() > 0
    return terms, 1.0 + float(sizes[has_value].sum())


def _tsallis(cost: Tsallis, program: Program, u: Array, x: Array, error: Array) -> tuple[Array, Array]:
    """omega(t) - omega(s) - omega'(s) (t - s) for the s that u asks for, and (omega'(s) - u)(t - s) where s is cut.

    Of the u that rounding cannot tell apart, that which x answers to best: near its bound x may follow u as steeply as
    it likes.
    """
    alpha, width, lower = cost.alpha, program.upper - program.lower, program.lower
    factor, t = cost.tau / (alpha * (alpha - 1)), np.maximum(x - lower, 0.0).astype(np.longdouble)

    def slope(t: Array) -> Array:
        return factor * (alpha * t ** (alpha - 1) - 1)

    u = np.clip(slope(t), u - error, u + error)
    v = np.maximum(u / factor + 1, 0.0) / alpha
    s = np.minimum(v ** (1 / np.longdouble(alpha - 1)), width)
    bregman = factor * (t**alpha - s**alpha - alpha * s ** (alpha - 1) * (t - s))
    cut = np.where((s <= 0) | (s >= width), (slope(s) - u) * (t - s), 0.0)
    return np.maximum(bregman, 0.0) + np.maximum(cut, 0.0), factor * np.abs(t**alpha - t)


def _two_sided(program: Program, which: Array, u: Array, x: Array) -> tuple[Array, Array]:
    a, lower, upper = program.entropy[which], program.lower[which], program.upper[which]
    width = upper - lower
    gap, entropy = _relative_entropy((x - lower) / width, u / a, _at_ends(lower, upper))
    return a * width * gap, a * width * entropy


def _one_sided(program: Program, which: Array, u: Array, x: Array) -> tuple[Array, Array]:
    """a [t log(t / s) - t + s] with s = prior exp(u / a); beyond the width w, s is that and the rest is linear."""
    assert program.prior is not None
    a, prior, lower = program.entropy[which], program.prior[which], program.lower[which]
    t, width = (x - lower).astype(np.longdouble), program.upper[which] - lower
    asked = u / a + np.log(prior)  # log s
    beyond = np.maximum(asked - np.log(width), 0.0)
    log_t = np.log(np.where(t > 0, t, 1.0))
    asked -= beyond
    gap = t * (log_t - asked) - t + np.exp(asked) + np.where(beyond > 0, beyond * (width - t), 0.0)
    return a * np.maximum(gap, 0.0), a * np.abs(t * (log_t - np.log(prior)) - t)


def _rows(program: Program, x: Array, duals: Array, soft: Array) -> tuple[float, float, float]:
    """What entropic slacks add that are not what the duals ask for, rows that hold with room, and rows that do not."""
    exact = program.matrix.astype(np.longdouble) @ x.astype(np.longdouble)
    outside = np.maximum(np.maximum(program.row_lower - exact, exact - program.row_upper), 0.0)
    width = program.row_upper - program.row_lower
    entropic = (program.row_entropy > 0) & (width > 0) & np.isfinite(width)
    side = np.where(duals > 0, program.row_lower, program.row_upper)
    short = np.where(np.isfinite(side) & ~entropic & (duals != 0), np.abs(exact - side), 0.0)
    # Optimal for a right-hand side within the tolerance of the row is optimal enough.
    size = np.maximum(1.0, abs(program.matrix) @ np.abs(x))
    tight = short <= np.where(soft, _ROUNDING, HOLDS) * size
    room = np.where(tight | (outside > 0), 0.0, np.abs(duals) * short)
    which = np.flatnonzero(entropic)
    low, high, a = program.row_lower[which], program.row_upper[which], program.row_entropy[which]
    slack, _ = _relative_entropy((exact[which] - low) / (high - low), -duals[which] / a, _at_ends(low, high))
    return float((a * (high - low) * slack).sum()), float(room.sum()), float((np.abs(duals) * outside).sum())


def _at_ends(lower: Array, upper: Array) -> tuple[Array, Array]:
    """Shares of the box below and above which a column may be forced to its bound."""
    width = upper - lower
    below, above = (AT_END * np.minimum(1.0, (1.0 + np.abs(bound)) / width) for bound in (lower, upper))
    return below, 1.0 - above


def _relative_entropy(share: Array, v: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
    """p log(p / s) + (1 - p) log((1 - p) / (1 - s)) with s = sigmoid(v), 0 beyond the ends; and the entropy of p."""
    p = np.clip(share, 0.0, 1.0).astype(np.longdouble)
    inside = (p > ends[0]) & (p < ends[1])
    p = np.where(inside, p, 0.5)
    entropy = -p * np.log(p) - (1 - p) * np.log1p(-p)
    gap = p * np.logaddexp(0, -v) + (1 - p) * np.logaddexp(0, v) - entropy
    return np.where(inside, np.maximum(gap, 0.0), 0.0), np.where(inside, entropy, 0.0)
