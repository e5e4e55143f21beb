"""Single precision: rows that hold to rounding, by residuals that are summed in two floats.

A row summed in float32 is wrong by about 1e-7 times the sum of its terms, which is all that Newton's method can see.
Here each product and each sum keeps its rounding error in a second float, so that the residual of x as it is can be
seen, and x corrected by D A' (A D A')^-1 times that. Sides given with a call that contradict each other by no more than
their rounding are freed of it (`linsat.constraints.rounded`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linsat._senses import EQUAL, GREATER, LESS
from linsat.arrays.linear_algebra import solve_refined
from linsat.arrays.problem import Problem
from linsat.arrays.result import Claim
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.rounded import EXACT, EXPLAINED, keep_dependencies
from linsat.plan import Plan

Array = Any

_CORRECTIONS = 3
_HOLDS = 1e-6  # relative violation of a row in single precision that counts as rounding
_UPPER_HALF = 0xFFFFF000  # sign, exponent and the upper 11 bits of a float32


def refine(problem: Problem, plan: Plan, claim: Claim, sides: Array) -> tuple[Array, Array]:
    """x corrected to satisfy the hard rows with sides as given, and whether it does; kept where a correction helps."""
    x = claim.x
    u = problem.adjusted(claim.mu)
    worst, gaps = _gaps(problem, plan, x, sides)
    for _ in range(_CORRECTIONS):
        used = problem.presolved.active & ((gaps != 0) | (plan.pattern.senses == EQUAL))
        curvature = problem.curvature(u, jnp.zeros_like(gaps), problem.objective, used)
        q = solve_refined(curvature.dense(), -gaps * curvature.inverse) * curvature.inverse
        trial = jnp.clip(x + curvature.weights * problem.rows.rmatvec(q), problem.lower, problem.upper)
        trial_worst, trial_gaps = _gaps(problem, plan, trial, sides)
        better = trial_worst < worst
        x = jnp.where(better[:, None], trial, x)
        worst, gaps = jnp.where(better, trial_worst, worst), jnp.where(better[:, None], trial_gaps, gaps)
    return x, worst <= max(plan.solver.tol, _HOLDS)


def _gaps(problem: Problem, plan: Plan, x: Array, sides: Array) -> tuple[Array, Array]:
    """The worst violation of any hard row, relative to its size, (N,), and by how much each is violated, (N, k)."""
    residual, size = residuals(plan, problem.rows.values, x, sides)
    gaps = jnp.where(plan.pattern.senses == LESS, jnp.maximum(residual, 0.0), residual)
    gaps = jnp.where(plan.pattern.senses == GREATER, jnp.minimum(gaps, 0.0), gaps)
    gaps = jnp.where(problem.soft, 0.0, gaps)
    relative = abs(gaps) / jnp.maximum(size, 1.0)
    return relative.max(-1, initial=0.0), gaps


def residuals(plan: Plan, values: Array, x: Array, sides: Array) -> tuple[Array, Array]:
    """A x - sides and sum_j |a_ij x_j|, (N, k) each; summed in two floats. Sides of absent rows are infinite."""
    table, columns = _padded(plan)
    padded = jnp.concatenate([values, jnp.zeros((len(values), 1), values.dtype)], -1)[:, table]  # (., k, m)
    high, low = exact_product(padded, x[:, columns])
    size = abs(high).sum(-1)
    absent = jnp.isinf(sides)
    last = jnp.broadcast_to(jnp.where(absent, 0.0, -sides), size.shape)[:, :, None]
    high, low = jnp.concatenate([high, last], -1), jnp.concatenate([low, jnp.zeros_like(last)], -1)
    return jnp.where(absent, -sides, exact_sum(high, low)), size


def _padded(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the coefficients of each row, (k, m), padded with one behind the last; and their variables."""
    cache, row, col = plan.rows.cache, plan.pattern.row, plan.pattern.col
    if "padded" not in cache:
        counts = np.bincount(row, minlength=plan.pattern.num_rows)
        table = np.full((len(counts), max(1, int(counts.max(initial=1)))), len(row), np.int32)
        order = np.argsort(row, kind="stable")
        within = np.arange(len(order)) - (np.cumsum(counts) - counts)[row[order]]
        table[row[order], within] = order
        cache["padded"] = table, np.append(col, 0).astype(np.int32)[table]
    return cache["padded"]


def exact_sum(high: Array, low: Array) -> Array:
    """The sum over the last axis of numbers that are two floats each, rounded once."""
    while high.shape[-1] > 1:
        half = (high.shape[-1] + 1) // 2
        rest = [(0, 0)] * (high.ndim - 1) + [(0, 2 * half - high.shape[-1])]
        high, low = jnp.pad(high, rest), jnp.pad(low, rest)
        total, lost = _sum(high[..., :half], high[..., half:])
        high, low = _sum(total, lost + (low[..., :half] + low[..., half:]))
    return (high + low)[..., 0]


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b, and exactly what rounding took from it."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def exact_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a b, and exactly what rounding took from it."""
    total = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return total, ((a_high * b_high - total) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(a: Array) -> tuple[Array, Array]:
    """a as the sum of two floats of half as many digits, whose products are exact."""
    bits = jax.lax.bitcast_convert_type(a, jnp.uint32) & jnp.uint32(_UPPER_HALF)
    high = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return high, a - high


def change(f: Array, given: Any, constraints: Constraints | None) -> tuple[Array | None, Array]:
    """What frees sides (batch..., rows of E) of rounding, or None; and their largest relative change, (batch...).

    Args:
        f: the sides in the precision of JAX.
        given: their dtype as they were given; those in float64 never change.
        constraints: the set, if its own coefficients are used: of others no dependencies are known.
    """
    narrow = jnp.issubdtype(given, jnp.floating) and given.itemsize < 8
    matrix = None if constraints is None else constraints._matrices.get("E")
    N = None if matrix is None or not narrow else getattr(matrix.kept, keep_dependencies(matrix))
    if N is None or not N.shape[1] or f.shape[-1] != len(N):
        return None, jnp.zeros(f.shape[:-1], f.dtype)
    now, basis = jax.lax.stop_gradient(f), jnp.asarray(N, f.dtype)
    gram = basis.T @ (now[..., :, None] ** 2 * basis)
    solved = (jnp.linalg.pinv(gram, hermitian=True) @ _missing(now, N)[..., None])[..., 0]
    share = -now * (solved @ basis.T)  # relative change of each side
    largest = abs(share).max(-1)
    meant = (largest > EXACT) & (largest <= EXPLAINED * float(jnp.finfo(given).eps))
    return jnp.where(meant[..., None], now * share, 0.0), jnp.where(meant, largest, 0.0)


def _missing(f: Array, N: np.ndarray) -> Array:
    """f' N, (batch..., p), in which most digits cancel: in single precision summed in two floats."""
    if f.dtype == np.float64:
        return f @ jnp.asarray(N)
    high = N.astype(np.float32)
    low = (N - high).astype(np.float32)
    products, lost = exact_product(jnp.asarray(high.T), f[..., None, :])  # (batch..., p, rows)
    return exact_sum(products, lost + low.T * f[..., None, :])
