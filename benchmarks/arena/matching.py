"""Matching with fairness: users to items under budgets and parity, and optimal transport with a few more rows.

    market      max <s, x>,  x >= 0,  every user at most one item,  every item at most its budget,  and for every kind
                of item the shares that two groups of users get differ by at most a point
    transport   min <C, P>,  P >= 0,  given sums of rows and columns,  little mass goes far,  one district sends little
                into another,  two groups travel about as far

The first is the form of large marketplaces: one simplex a user, and rows that all of them share. Scores are generated
as rating data look from afar: popularity falls by a power, tastes have low rank. At a small temperature the layer's x
is the linear program's.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

import linsat
from arena.tables import bars, table

Array = np.ndarray
HEADING = "Matching with fairness"
ITEMS, CANDIDATES, KINDS = 200, 20, 4
PARITY = 0.01  # largest difference of shares
BUDGET = 1.5  # times the even share
PATH = (0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5)  # temperatures, each from the duals of the last
TAUS = (0.1, 0.01, 1e-3, 1e-5)  # those in the table; the last stands for zero
USERS = (500, 5_000, 50_000)
MOST_USERS = 5_000  # to which a general solver is given the program
POINTS = (125, 250)
BLURS, ZERO = (0.05, 0.005), 1e-6  # temperatures of transport, whose costs are about 0.3, and the one that stands for 0


@dataclass(frozen=True)
class Program:
    """max <score, x> over x in [0, upper] with rows of ``matrix`` at most ``side``, the first ``equalities`` equal."""

    score: Array
    matrix: sp.csr_array
    side: Array
    equalities: int = 0
    upper: float = 1.0

    def constraints(self) -> linsat.Constraints:
        e = self.equalities
        rows: dict[str, Any] = {"A": self.matrix[e:], "b": self.side[e:], "upper": self.upper}
        return linsat.Constraints(**rows, **({"E": self.matrix[:e], "f": self.side[:e]} if e else {}))

    def violation(self, x: Array) -> float:
        """Of the worst row, in its own units, or bound."""
        over = self.matrix @ x - self.side
        over[: self.equalities] = np.abs(over[: self.equalities])
        return float(max(over.max(), -x.min(), (x - self.upper).max(), 0.0))

    def bound(self, duals: Array) -> float:
        """A value that no feasible point exceeds, from any multipliers: what is left of the scores goes to the box."""
        prices = -duals
        prices[self.equalities :] = np.maximum(prices[self.equalities :], 0.0)
        return float(self.side @ prices + self.upper * np.maximum(self.score - self.matrix.T @ prices, 0.0).sum())


# ------------------------------------------------------------------ markets


def market(users: int, seed: int = 0) -> Program:
    """Users with 20 candidates each of 200 items; budgets first, then users, then parity both ways."""
    rng = np.random.default_rng(seed)
    popularity = np.log(1 / np.arange(1, ITEMS + 1) ** 0.9)
    first = rng.random(users) < 0.3  # the smaller group of users, whose tastes are shifted
    kind = rng.integers(KINDS, size=ITEMS)
    tastes, traits = rng.normal(size=(users, 8)), rng.normal(size=(ITEMS, 8)) + 0.7 * rng.normal(size=(KINDS, 8))[kind]
    tastes[first] += rng.normal(size=8)
    items = np.empty((users, CANDIDATES), np.int64)
    for i in range(0, users, 4096):  # a draw without replacement, by popularity
        keys = popularity + rng.gumbel(size=(min(4096, users - i), ITEMS))
        items[i : i + 4096] = np.argpartition(-keys, CANDIDATES, axis=1)[:, :CANDIDATES]
    rating = np.einsum("uk,uck->uc", tastes, traits[items]) / 8**0.5 + 0.3 * popularity[items]
    score = 1 / (1 + np.exp(-rating - 0.3 * rng.normal(size=items.shape)))
    user, item, place = np.repeat(np.arange(users), CANDIDATES), items.ravel(), np.arange(items.size)
    ones = np.ones(items.size)
    budgets = sp.csr_array((ones, (item, place)), shape=(ITEMS, items.size))
    simplices = sp.csr_array((ones, (user, place)), shape=(users, items.size))
    share = np.where(first, 1 / first.sum(), -1 / (~first).sum())[user]
    parity = sp.csr_array((share, (kind[item], place)), shape=(KINDS, items.size))
    side = np.concatenate([np.full(ITEMS, BUDGET * users / ITEMS), np.ones(users), np.full(2 * KINDS, PARITY)])
    return Program(score.ravel(), sp.csr_array(sp.vstack([budgets, simplices, parity, -parity])), side)


def trade(users: int) -> dict[str, dict[str, Any]]:
    """Value, distance from the bound of the duals, violation and seconds by temperature; the same of rivals."""
    program = market(users)
    cons = program.constraints()
    result: dict[str, dict[str, Any]] = {"unfair": _without_parity(program, users)}
    linsat.project(program.score, cons, objective=linsat.KL(1.0))  # the first call arranges the rows
    start, seconds = None, 0.0
    for tau in PATH:
        begin = time.perf_counter()
        solution = linsat.solve(program.score, cons, objective=linsat.KL(tau), start=start, on_failure="raise")
        start, seconds = solution.duals, seconds + time.perf_counter() - begin
        bound = program.bound(np.array(start))
        result[f"linsat, tau {tau:g}"] = {**_judge(program, solution.x, seconds), "bound": bound}
    result["gradient"] = {"seconds": _both_ways(program, cons, 0.01)}
    for name, solver in SOLVERS.items():
        if users <= MOST_USERS:
            begin = time.perf_counter()
            x = solver(program)
            result[name] = _judge(program, x, time.perf_counter() - begin)
    begin = time.perf_counter()
    x = first_order(program, users, 0.01, 300)
    result["first order, 300 steps"] = _judge(program, x, time.perf_counter() - begin)
    return result


def _judge(program: Program, x: Array, seconds: float) -> dict[str, float]:
    return {"value": float(program.score @ x), "violation": program.violation(x), "seconds": seconds}


def _without_parity(program: Program, users: int) -> dict[str, float]:
    """What parity is about: how far the groups are apart where nothing is said of them, and the value there."""
    kept = ITEMS + users
    bare = Program(program.score, program.matrix[:kept], program.side[:kept])
    x = linsat.project(bare.score, bare.constraints(), objective=linsat.KL(1e-3))
    return {"value": float(bare.score @ x), "apart": float(np.abs(program.matrix[kept:] @ x).max())}


def _both_ways(program: Program, cons: linsat.Constraints, tau: float) -> float:
    """Seconds forward and backward, in torch, of the second call."""
    import torch

    torch.set_num_threads(1)
    score, seconds = torch.tensor(program.score, requires_grad=True), 0.0
    for _ in range(2):
        begin = time.perf_counter()
        x = linsat.project(score, cons, objective=linsat.KL(tau))
        (x.square().sum()).backward()
        seconds = time.perf_counter() - begin
    return seconds


def first_order(program: Program, users: int, smooth: float, steps: int) -> Array:
    """Accelerated gradient on the prices of shared rows; each user's simplex is projected onto (restated).

    As marketplaces solve it (ECLIPSE, DuaLip): x is the projection of (score - prices) / smooth, the slope of the dual
    is the residual of the shared rows. Rows are scaled to length one; steps by the largest eigenvalue over smooth.
    """
    shared = np.r_[0:ITEMS, ITEMS + users : len(program.side)]
    A, b = program.matrix[shared], program.side[shared]
    length = np.sqrt(A.multiply(A).sum(1))
    length[length == 0] = 1.0  # an item that nobody is offered
    A, b = sp.csr_array(sp.diags_array(1 / length) @ A), b / length
    step = smooth / sp.linalg.norm(A @ A.T, np.inf)
    price = before = np.zeros(len(b))
    for t in range(steps):
        ahead = price + t / (t + 3) * (price - before)
        x = _onto_simplices((program.score - A.T @ ahead).reshape(users, CANDIDATES) / smooth).ravel()
        before, price = price, np.maximum(ahead + step * (A @ x - b), 0.0)
    return x


def _onto_simplices(y: Array) -> Array:
    """The nearest points with x >= 0 and sums of rows of at most one."""
    clipped = np.maximum(y, 0.0)
    over = clipped.sum(1) > 1
    falling = -np.sort(-y[over], axis=1)
    levels = (np.cumsum(falling, axis=1) - 1) / np.arange(1, y.shape[1] + 1)
    last = (falling > levels).sum(1) - 1
    clipped[over] = np.maximum(y[over] - np.take_along_axis(levels, last[:, None], 1), 0.0)
    return clipped


def highs(program: Program) -> Array:
    from scipy.optimize import linprog

    e = program.equalities
    rows = {"A_ub": program.matrix[e:], "b_ub": program.side[e:]}
    rows |= {"A_eq": program.matrix[:e], "b_eq": program.side[:e]} if e else {}
    return linprog(-program.score, **rows, bounds=(0, program.upper), method="highs").x


def clarabel(program: Program) -> Array:
    import clarabel as package

    settings = package.DefaultSettings()
    settings.verbose, settings.max_threads = False, 1
    n, e = len(program.score), program.equalities
    rows = sp.csc_matrix(sp.vstack([program.matrix, -sp.eye_array(n)]))
    cones = [package.ZeroConeT(e)] * (e > 0) + [package.NonnegativeConeT(len(program.side) - e + n)]
    sides = np.concatenate([program.side, np.zeros(n)])
    solver = package.DefaultSolver(sp.csc_matrix((n, n)), -program.score, rows, sides, cones, settings)
    return np.asarray(solver.solve().x)


SOLVERS: dict[str, Callable[[Program], Array]] = {"HiGHS": highs, "Clarabel": clarabel}


# ------------------------------------------------------------------ transport


@dataclass(frozen=True)
class Haul:
    """Costs (n, n), marginals 1/n, and rows <extra_k, P> <= limit_k."""

    costs: Array
    extra: Array  # (rows, n, n)
    limits: Array

    def program(self) -> Program:
        n = len(self.costs)
        sums = sp.vstack([sp.kron(sp.eye_array(n), np.ones((1, n))), sp.kron(np.ones((1, n)), sp.eye_array(n))])
        matrix = sp.csr_array(sp.vstack([sums, sp.csr_array(self.extra.reshape(len(self.extra), -1))]))
        return Program(-self.costs.ravel(), matrix, np.concatenate([np.full(2 * n, 1 / n), self.limits]), 2 * n, 1 / n)

    def judge(self, P: Array, seconds: float) -> dict[str, float]:
        sums = max(np.abs(P.sum(axis) - 1 / len(P)).sum() for axis in (0, 1))
        over = max(0.0, float((np.einsum("kij,ij->k", self.extra, P) - self.limits).max()))
        return {"cost": float((self.costs * P).sum()), "marginals": float(sums), "rows": over, "seconds": seconds}


def haul(n: int, seed: int = 0) -> Haul:
    """From a heap to an even spread. At most 2 % of the mass goes far, at most 5 % from the west of the heap to the
    north-east; the mean costs of two groups of sources differ by at most 0.01."""
    rng = np.random.default_rng(seed)
    source, sink = 0.35 + 0.15 * rng.normal(size=(n, 2)), rng.random((n, 2))
    costs = ((source[:, None] - sink) ** 2).sum(-1)
    crossing = (source[:, 0] < 0.35)[:, None] & (sink > 0.5).all(-1)
    group = source[:, 1] < 0.35
    apart = np.where(group, 1 / group.mean(), -1 / (~group).mean())[:, None] * costs
    extra = np.stack([(costs > 0.3).astype(float), crossing.astype(float), apart, -apart])
    return Haul(costs, extra, np.array([0.02, 0.05, 0.01, 0.01]))


def carry(n: int) -> dict[str, dict[str, dict[str, float]]]:
    """Every way at every temperature; linsat at a small one beside the linear program."""
    given = haul(n)
    program = given.program()
    cons = program.constraints()
    result: dict[str, dict[str, dict[str, float]]] = {}
    linsat.project(program.score, cons, objective=linsat.KL(1.0))
    by_ott(given.costs, 1.0)
    for tau in (*BLURS, ZERO):
        ways = {"linsat": functools.partial(_by_linsat, program, cons)}
        if tau > ZERO:
            ways |= {name: functools.partial(way, given) for name, way in TRANSPORTS.items()}
        else:
            ways["HiGHS"] = lambda _: highs(program).reshape(n, n)
        for name, way in ways.items():
            begin = time.perf_counter()
            P = way(tau)
            result.setdefault(f"{tau:g}", {})[name] = given.judge(P, time.perf_counter() - begin)
    return result


def _by_linsat(program: Program, cons: linsat.Constraints, tau: float) -> Array:
    side = round(len(program.score) ** 0.5)
    return linsat.project(program.score, cons, objective=linsat.KL(tau)).reshape(side, side)


def by_pot(costs: Array, tau: float) -> Array:
    import ot

    even = np.full(len(costs), 1 / len(costs))
    return ot.sinkhorn(even, even, costs, reg=tau, stopThr=1e-7, numItermax=5_000, warn=False)


def by_ott(costs: Array, tau: float) -> Array:
    import jax

    jax.config.update("jax_enable_x64", True)
    return np.asarray(_ott_solve(len(costs))(costs, tau))


@functools.cache
def _ott_solve(n: int) -> Any:
    """Compiled for n points, before any clock starts if it is asked for then."""
    import jax
    from ott.geometry.geometry import Geometry
    from ott.solvers import linear

    def solve(costs: Any, tau: Any) -> Any:
        return linear.solve(Geometry(cost_matrix=costs, epsilon=tau), threshold=1e-7, max_iterations=5_000).matrix

    compiled = jax.jit(solve)
    compiled(np.ones((n, n)), 1.0)
    return compiled


def priced(sinkhorn: Callable[[Array, float], Array], given: Haul, tau: float) -> Array:
    """The further rows get prices, which L-BFGS-B raises; a whole Sinkhorn solve for each set of prices (restated)."""
    from scipy.optimize import minimize

    def slope(prices: Array) -> tuple[float, Array]:  # in units of the temperature, and so is the value
        costs = given.costs / tau + np.tensordot(prices, given.extra, 1)
        P = sinkhorn(costs, 1.0)
        inside = (costs * P).sum() + (P * np.log(np.maximum(P, 1e-300))).sum()
        return float(prices @ given.limits - inside), given.limits - np.einsum("kij,ij->k", given.extra, P)

    start = np.zeros(len(given.limits))
    found = minimize(
        slope, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(start), options={"maxiter": 30}
    )
    return sinkhorn(given.costs / tau + np.tensordot(found.x, given.extra, 1), 1.0)


def projected_sinkhorn(given: Haul, tau: float, rounds: int = 2000, near: float = 1e-7) -> Array:
    """Bregman projections onto rows, columns, and each half-space by Newton's method in its price (restated)."""
    n = len(given.costs)
    f, g, prices = np.zeros((n, 1)), np.zeros((1, n)), np.zeros(len(given.limits))
    base = -given.costs / tau
    for _ in range(rounds):
        f -= np.log(n * np.exp(base + f + g).sum(1, keepdims=True))
        g -= np.log(n * np.exp(base + f + g).sum(0, keepdims=True))
        for k, (row, limit) in enumerate(zip(given.extra, given.limits)):
            P = np.exp(base + f + g)
            for _ in range(20):
                over = (row * P).sum() - limit
                moved = max(over * tau / max((row**2 * P).sum(), 1e-300), -prices[k])
                if abs(moved) < 1e-12:
                    break
                prices[k] += moved
                base -= moved / tau * row
                P *= np.exp(-moved / tau * row)
        made = given.judge(np.exp(base + f + g), 0.0)
        if max(made["marginals"], made["rows"]) < near:
            break
    return np.exp(base + f + g)


TRANSPORTS: dict[str, Callable[[Haul, float], Array]] = {
    "projected Sinkhorn": projected_sinkhorn,
    "POT, rows priced": functools.partial(priced, by_pot),
    "OTT, rows priced": functools.partial(priced, by_ott),
    "POT, without the rows": lambda given, tau: by_pot(given.costs, tau),
    "OTT, without the rows": lambda given, tau: by_ott(given.costs, tau),
}


# ------------------------------------------------------------------ the page


def units(quick: bool) -> dict[str, Callable[[], Any]]:
    users, points = ((100,), (60,)) if quick else (USERS, POINTS)
    made: dict[str, Callable[[], Any]] = {f"matching/market/{n}": functools.partial(trade, n) for n in users}
    return made | {f"matching/transport/{n}": functools.partial(carry, n) for n in points}


def section(results: dict[str, Any]) -> list[str]:
    return [
        f"""
## {HEADING}

**A market**: {ITEMS} items, {CANDIDATES} candidates for each user, drawn by a popularity that falls as a power of the
rank; scores of rank 8 through a logistic function. Every user gets at most one item, every item has a budget of
{BUDGET:g} times the even share, and of each of {KINDS} kinds of items two groups of users (30 % and 70 %, of different
tastes) get shares that differ by at most {100 * PARITY:g} point. *Short of the optimum*: at most, relative, by a bound
from linsat's duals that holds for any duals and is computed with numpy. *Violation*: of the worst row, in its units.
linsat's seconds are all those from tau {PATH[0]:g} down to the row's, {len(PATH)} solves to the last, each started from
the duals of the one before.
""",
        *_markets(results),
        """
**Transport with four rows more**: n sources in a heap, n sinks over the unit square, squared distances. At most 2 % of
the mass goes further than the root of 0.3, at most 5 % goes from the west of the heap to the north-east, mean costs of
two groups of sources differ by at most 0.01 (two rows). Marginals are off by their sum, rows by the worst.
""",
        *_transports(results),
        _bars(results),
        """
![A market before and after](assets/arena/matching.png)

`python examples/flagships/matching.py` draws the picture.

**What this shows.** That one layer reaches from a smooth plan with a gradient to the vertex of the linear program, by
its temperature alone; that its time grows with the variables where the rows that all users share stay as many; what
rows beyond the marginals do to a Sinkhorn iteration.

**What it does not show.** A market: scores are generated, nothing in them was fitted to rating data, and no user
answers. Fairness: parity of shares is one notion of many, and its limit is ours. With more items the dense factor of
the shared rows takes over, as their cube; marketplaces have millions of users on many machines, which the first-order
method is made for (it is restated by us, without their preconditioning, with a fixed number of steps). General solvers
were not given 10^6 variables: there the bound alone says how near the value is. Projected Sinkhorn and the pricing of
rows around POT's and OTT's solvers are restated by us too; each Sinkhorn solve begins anew. Where no rows are asked
for, Sinkhorn is faster than linsat. A small temperature from a cold start is not always cheap: where Newton's method
declines, the interior point takes over, which takes longer; at 10^6 variables the way down from a warm one avoids it.
""",
    ]


def _markets(results: dict[str, Any]) -> list[str]:
    rows, growth = [], {}
    for users in USERS:
        made = results.get(f"matching/market/{users}", {})
        if "unfair" not in made:
            continue
        label = f"{users * CANDIDATES:,}"
        for name, r in made.items():
            shown = not name.startswith("linsat") or name in [f"linsat, tau {tau:g}" for tau in TAUS]
            if "value" not in r or name == "unfair" or not shown:
                continue
            above = f"{(r['bound'] - r['value']) / r['value']:.0e}" if "bound" in r else ""
            rows.append((label, name, f"{r['value']:.6f}", above, f"{r['violation']:.0e}", f"{r['seconds']:.3g}"))
        for tau in TAUS:
            growth.setdefault(f"tau {tau:g}", []).append(made[f"linsat, tau {tau:g}"]["seconds"] / users)
        growth.setdefault("forward and backward, tau 0.01", []).append(made["gradient"]["seconds"] / users)
        apart = made["unfair"]
        last = (
            f"Without parity the groups are {100 * apart['apart']:.1f} points apart at {label} variables, and parity "
            f"costs {100 * (1 - made['linsat, tau 0.001']['value'] / apart['value']):.2f} % of the value."
        )
    if not rows:
        return []
    grown = "; ".join(
        f"{name}: {', '.join(f'{1e6 * s / CANDIDATES:.2g}' for s in seconds)}" for name, seconds in growth.items()
    )
    head = ("variables", "", "value", "short of the optimum", "violation", "seconds")
    return [table(head, rows), last, f"Microseconds a variable, by size: {grown}."]


def _bars(results: dict[str, Any]) -> str:
    """Values beside the solvers', and the exponent with which seconds grow from the smallest to the largest market."""
    markets = {users: made for users in USERS if (made := results.get(f"matching/market/{users}"))}
    zero = f"linsat, tau {TAUS[-1]:g}"
    off = [abs(made[n]["value"] / made[zero]["value"] - 1) for made in markets.values() for n in SOLVERS if n in made]
    hauls = [ways for n in POINTS if (ways := results.get(f"matching/transport/{n}", {}).get(f"{ZERO:g}"))]
    off += [abs(ways["linsat"]["cost"] / ways["HiGHS"]["cost"] - 1) for ways in hauls]
    found = []
    if off:
        words = f"{max(off):.0e} at worst, in markets and transport"
        found.append(("value within 1e-6 of HiGHS and Clarabel as tau goes to 0", words, max(off) <= 1e-6))
    if len(markets) > 1:
        few, many = min(markets), max(markets)
        exponents = {}
        for tau in TAUS:
            first, last = (markets[users][f"linsat, tau {tau:g}"]["seconds"] for users in (few, many))
            exponents[f"{tau:g}"] = math.log(last / first) / math.log(many / few)
        words = f"exponents {', '.join(f'{power:.2f} at tau {tau}' for tau, power in exponents.items())}"
        asked = f"linear growth to {many * CANDIDATES:,} variables: an exponent of at most 1.1"
        found.append((asked, words, max(exponents.values()) <= 1.1))
    return bars(found) if found else ""


def _transports(results: dict[str, Any]) -> list[str]:
    made = {n: results.get(f"matching/transport/{n}", {}) for n in POINTS}
    made = {n: r for n, r in made.items() if r}
    rows, parts = [], []
    for tau, ways in made.get(250, {}).items():
        for name, r in ways.items():
            blur = "0" if name == "HiGHS" else tau
            figures = (f"{r['cost']:.6f}", f"{r['marginals']:.0e}", f"{r['rows']:.0e}", f"{r['seconds']:.3g}")
            rows.append((blur, name, *figures))
    if rows:
        head = ("tau", "n = 250", "cost", "marginals off", "rows off", "seconds")
        parts.append(table(head, rows))
    seconds = []
    for tau in BLURS:
        for name in ("linsat", *TRANSPORTS):
            if not name.endswith("without the rows"):
                of_way = ", ".join(f"{r[f'{tau:g}'][name]['seconds']:.2g}" for r in made.values())
                seconds.append(f"{name}, tau {tau:g}: {of_way}")
    if made:
        parts.append(f"Seconds at n = {', '.join(map(str, made))}: {'; '.join(seconds)}.")
    return parts
