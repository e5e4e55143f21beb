"""Whether an instance has converged, on arrays; the native core has the same formulas, native/verdict.h.

    every hard row as stated   violation at x <= tol max(1, sum_j |a_ij x_j|)
    the duality gap            at the end of Newton's method `optimal`; at any other point `arrays.interior.duality_gap`

Solvers stop by rules of their own, of which these are a part, and say why they stopped (`Stop`); the kernels of Triton
have `optimal` in their own words (triton/forward.py). Who is said to have arrived has converged where its rows hold at
x as it is returned, which `decide` alone says. In single precision JAX sums them in two floats, and takes what is left
up to 1e-6 for rounding (jax/single.py). Where formulas have pieces to choose, `linsat.formulas` says in addition
whether the choice is right; the rows that it makes are judged here or in the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from linsat._array_namespace import Tensor, namespace
from linsat.arrays import newton as constants
from linsat.arrays.problem import Problem
from linsat.arrays.result import Claim, SolverResult, Stop
from linsat.arrays.step import FAR, Setting, State
from linsat.status import Status

if TYPE_CHECKING:
    from linsat.arrays.newton import Newton
    from linsat.arrays.sinkhorn import Sinkhorn


def decide(problem: Problem, claim: Claim, solver: Newton | Sinkhorn, holds: Tensor | None = None) -> SolverResult:
    """The status of every instance: `Status.CONVERGED` where one has arrived and its rows hold, else why it stopped.

    ``holds`` (N,) says whether they do where x is no longer that of the claim.
    """
    xp = namespace(problem.rhs)
    if holds is None:
        x = xp.constant(claim.x)
        holds = problem.violation(xp.cast(x, problem.rhs)) <= solver.holds + xp.eps(x)
    seen = xp.where(holds, Status.CONVERGED.code, Status.STALLED.code)
    codes = xp.where(claim.stops == Stop.ARRIVED, seen, claim.stops)
    return SolverResult(claim.mu, claim.x, xp.stack([codes, *claim.counts[1:]]))


def optimal(setting: Setting, state: State, tol: float) -> Tensor:
    """Whether rows hold relative to their size at x, and the duality gap is small."""
    problem, at, xp = setting.problem, state.at, setting.xp
    size = xp.at_least(problem.row_sizes(at.x), 1.0)
    moved = abs(setting.moved(state.mu, at.residual))
    strictness = xp.at_least(problem.scale / size, 1.0)
    value = abs(problem.objective.linear(problem.scores) * at.x).sum(-1)
    # A row that holds but for r costs |mu r|; where the dual has a bound that r pulls it to, of an inequality with room
    # or of a soft row broken at its price, what it lacks to that bound, times r. No less of a soft row, which is no row
    # that holds to tolerance: only what rounding leaves of r is forgiven, as times a high price that is no small gap.
    bound = xp.where(at.residual > 0, setting.low, setting.high)
    way = abs(state.mu - xp.where(xp.isfinite(bound), bound, 0.0))
    off = abs(at.residual)
    lost = constants.SUM_ROUNDING * xp.eps(off) * (size + abs(problem.rhs)) / problem.scale
    off = xp.where(problem.soft, xp.at_least(off - lost, 0.0), off)
    gap = constants.GAP * tol * (1.0 + value)
    if setting.precision.residual:
        rounding = setting.rounding(state)
        strictness = xp.minimum(strictness, tol / xp.at_least(rounding, 1 / FAR))
        gap = gap + (way * rounding).sum(-1)
    return (setting.largest(moved * strictness) <= tol) & ((way * off).sum(-1) <= gap)
