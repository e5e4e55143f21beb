"""Answers from outside linsat: entropic and Euclidean programs in Clarabel, linear ones in HiGHS, feasible systems.

Nothing here imports linsat's solver; rows are plain numpy, and the slack masses are written out again from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import clarabel
import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

SENSES = ("<=", ">=", "==")
TIGHT = (1e-12, 1e-11, 1e-10)  # tolerances of Clarabel, which finds penalties harder than rows


@dataclass
class System:
    """Rows over a box as plain numpy, with a point that satisfies them."""

    matrix: np.ndarray  # (k, l)
    senses: list[str]
    rhs: np.ndarray  # (k,)
    point: np.ndarray  # (l,)
    lower: np.ndarray = field(default=None)  # type: ignore[assignment]
    upper: np.ndarray = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        l = self.matrix.shape[1]
        self.lower = np.zeros(l) if self.lower is None else self.lower
        self.upper = np.ones(l) if self.upper is None else self.upper

    def arguments(self) -> dict:
        """Keyword arguments of linsat.Constraints."""
        found: dict = {"lower": self.lower, "upper": self.upper}
        for sense, matrix, side in (("<=", "A", "b"), (">=", "C", "d"), ("==", "E", "f")):
            pick = [i for i, s in enumerate(self.senses) if s == sense]
            if pick:
                found |= {matrix: self.matrix[pick], side: self.rhs[pick]}
        return found

    def violation(self, x: np.ndarray) -> float:
        gap = self.matrix @ x - self.rhs
        rows = [max(g, 0) if s == "<=" else max(-g, 0) if s == ">=" else abs(g) for g, s in zip(gap, self.senses)]
        return float(max([*rows, (self.lower - x).max(), (x - self.upper).max(), 0.0]))


def random_system(rng: np.random.Generator, kind: str, *, largest: int = 200, rows: int = 40) -> System:
    """A feasible system: ``positive``, ``signed``, or ``boundary`` (its known point touches bounds and rows)."""
    l, k = int(rng.integers(1, largest + 1)), int(rng.integers(1, rows + 1))
    point = rng.uniform(0.02, 0.98, l)
    if kind == "boundary":
        point = np.where(rng.random(l) < 0.3, rng.integers(0, 2, l), point)
    matrix = rng.uniform(0.1, 2.0, (k, l)) * (rng.random((k, l)) < rng.uniform(0.05, 0.9))
    if kind == "signed" or (kind == "boundary" and rng.random() < 0.5):
        matrix *= rng.choice([-1.0, 1.0], (k, l))
    empty = ~matrix.any(1)
    matrix[empty, rng.integers(0, l, empty.sum())] = 1.0
    senses = list(rng.choice(SENSES, k))
    slack = rng.exponential(0.06, k) * np.abs(matrix).sum(1)
    if kind == "boundary":
        slack *= rng.random(k) < 0.5
    sign = np.array([{"<=": 1.0, ">=": -1.0, "==": 0.0}[s] for s in senses])
    return System(matrix, senses, matrix @ point + sign * slack, point)


def soft_system(rng: np.random.Generator, *, contradictory: bool, **size: int) -> tuple[System, np.ndarray]:
    """A system and the price of each row, infinite where it is hard: the hard rows can hold.

    All of them can, unless ``contradictory``: then the right-hand sides of the soft rows go away from the known point
    until HiGHS finds no point.
    """
    while True:
        system = random_system(rng, str(rng.choice(["positive", "signed", "boundary"])), **size)
        soft = rng.random(len(system.rhs)) < rng.choice([0.3, 0.7, 1.0])
        soft[rng.integers(len(soft))] = True
        price = np.where(soft, 10 ** rng.uniform(-2, 2, len(soft)), np.inf)
        if not contradictory:
            return system, price
        tighter = [{"<=": -1.0, ">=": 1.0, "==": rng.choice([-1.0, 1.0])}[s] for s in system.senses]
        step = soft * tighter * rng.uniform(0.0, 0.2, len(soft)) * np.abs(system.matrix).sum(1)
        for _ in range(6):
            system.rhs = system.rhs + step
            if not is_feasible(system):
                return system, price


def elastic(system: System, price: np.ndarray | None) -> tuple[System, np.ndarray]:
    """The system with columns e >= 0 that take up what soft rows are broken by, behind the others, and their cost."""
    if price is None:
        return system, np.zeros(0)
    ways = [(i, way) for i, (s, p) in enumerate(zip(system.senses, price)) if np.isfinite(p)
            for way in {"<=": [-1.0], ">=": [1.0], "==": [-1.0, 1.0]}[s]]  # fmt: skip
    columns = np.zeros((len(price), len(ways)))
    for j, (i, way) in enumerate(ways):
        columns[i, j] = way
    none, most = np.zeros(len(ways)), np.full(len(ways), np.inf)
    added = System(
        np.hstack([system.matrix, columns]),
        system.senses,
        system.rhs,
        np.append(system.point, none),
        np.append(system.lower, none),
        np.append(system.upper, most),
    )
    return added, np.array([price[i] for i, _ in ways])


def entropic_optimum(
    system: System, scores: np.ndarray, tau: float, price: np.ndarray | None = None
) -> np.ndarray | None:
    """min -<y, x> + tau * entropies of shares and slack shares, by Clarabel, on the rows as the paper encodes them.

    Rows of finite price are a penalty on what they are broken by, without any slack. None where Clarabel itself does
    not vouch for its answer.
    """
    width = system.upper - system.lower
    least = np.minimum(system.matrix * system.lower, system.matrix * system.upper).sum(1)
    most = np.maximum(system.matrix * system.lower, system.matrix * system.upper).sum(1)
    rows: list[tuple[int, str, float, float]] = []  # which, sense, mass of its slack, side
    weights = []  # of the entropies of slack shares
    price = np.full(len(system.rhs), np.inf) if price is None else price
    for i, (a, sense, b) in enumerate(zip(system.matrix, system.senses, system.rhs)):
        if sense == "==" or np.isfinite(price[i]):
            rows.append((i, sense, 0.0, b))
            continue
        if (sense == "<=" and b >= most[i]) or (sense == ">=" and b <= least[i]):
            continue  # holds on the whole box
        if sense == "<=":
            mass, total = b - least[i], b
        elif (a >= 0).all():
            need = b - least[i]
            mass = np.floor((most[i] - least[i]) / need + 1e-12) * need
            total = b + mass
        else:
            mass, total = most[i] - b, most[i]
        reach = np.abs(a) * width
        scale = reach[reach > 0].mean()
        if mass <= 1e-12 * scale:  # no room but rounding: the row is an equation, and its slack has no entropy
            mass = 0.0
        else:
            weights.append(tau * mass / scale)
        rows.append((i, "==", mass, total))
    kept, masses = [i for i, *_ in rows], np.array([mass for _, _, mass, _ in rows])
    matrix = np.hstack([system.matrix[kept], np.diag(masses)[:, masses > 0]])
    whole = System(
        matrix,
        [sense for _, sense, _, _ in rows],
        np.array([side for *_, side in rows]),
        np.zeros(matrix.shape[1]),
        np.append(system.lower, np.zeros(len(weights))),
        np.append(system.upper, np.ones(len(weights))),
    )
    weights = np.append(np.full(len(scores), tau), weights)
    found = _by_shares(whole, np.append(scores, np.zeros(matrix.shape[1] - len(scores))), weights, price[kept])
    return None if found is None else found[: len(scores)]


def open_system(rng: np.random.Generator, kind: str, *, largest: int = 40, rows: int = 15) -> System:
    """A feasible system of a kind of `random_system`, or ``unbounded`` (some bounds are infinite) or ``dependent``."""
    plain = kind in ("positive", "signed", "boundary")
    system = random_system(rng, kind if plain else "signed", largest=largest, rows=rows)
    k, l = system.matrix.shape
    if kind == "unbounded":
        system.lower = np.where(rng.random(l) < 0.5, -np.inf, system.lower)
        system.upper = np.where(rng.random(l) < 0.5, np.inf, system.upper)
    if kind == "dependent":  # sums of equalities and multiples of any row
        equal = [i for i, sense in enumerate(system.senses) if sense == "=="]
        mix = np.zeros((len(equal) // 2 + 1, k))
        mix[:, equal] = rng.normal(size=(len(mix), len(equal)))
        again = rng.integers(0, k, 2)
        scale = rng.uniform(0.5, 2.0, (2, 1))
        system.matrix = np.vstack([system.matrix, mix @ system.matrix, scale * system.matrix[again]])
        system.rhs = np.concatenate([system.rhs, mix @ system.rhs, scale[:, 0] * system.rhs[again]])
        system.senses = [*system.senses, *["=="] * len(mix), *[system.senses[i] for i in again]]
    return system


def _row_cones(system: System) -> tuple[sp.csc_array, np.ndarray, list]:
    """Rows and bounds as Clarabel wants them, G x + s = h with s in cones; equalities first."""
    l = system.matrix.shape[1]
    senses = np.array(system.senses)
    equal, least = senses == "==", senses == ">="
    sign = np.where(least, -1.0, 1.0)
    matrix, rhs = system.matrix * sign[:, None], system.rhs * sign
    low, high = np.isfinite(system.lower), np.isfinite(system.upper)
    unit = np.eye(l)
    G = np.vstack([matrix[equal], matrix[~equal], -unit[low], unit[high]])
    h = np.concatenate([rhs[equal], rhs[~equal], -system.lower[low], system.upper[high]])
    count = int(equal.sum())
    return sp.csc_array(G), h, [clarabel.ZeroConeT(count), clarabel.NonnegativeConeT(len(h) - count)]


def _clarabel(
    P: sp.csc_array,
    q: np.ndarray,
    G: sp.csc_array,
    h: np.ndarray,
    cones: list,
    tolerances: tuple[float, ...] = (1e-12,),
) -> np.ndarray | None:
    """As tight as Clarabel can: tolerances at which it does not vouch for its answer are followed by looser ones."""
    for tol in tolerances:
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tol
        found = clarabel.DefaultSolver(sp.csc_matrix(P), q, sp.csc_matrix(G), h, cones, settings).solve()
        if found.status == clarabel.SolverStatus.Solved:
            return np.asarray(found.x)
    return None


def nearest_point(
    system: System, scores: np.ndarray, weights: np.ndarray | float = 1.0, price: np.ndarray | None = None
) -> np.ndarray | None:
    """min sum_j q_j (x_j - y_j)^2 / 2 over the rows and the box, by Clarabel; None where it does not vouch for it.

    Rows of finite ``price`` are a penalty.
    """
    weights = np.broadcast_to(weights, scores.shape)
    return quadratic_optimum(system, weights * scores, sp.diags_array(weights), price)


def quadratic_optimum(system: System, linear: np.ndarray, P: Any, price: np.ndarray | None = None) -> np.ndarray | None:
    """min x'Px / 2 - <linear, x> over the rows and the box, likewise."""
    whole, cost = elastic(system, price)
    G, h, cones = _row_cones(whole)
    P = sp.triu(sp.block_diag([P, sp.csc_array((len(cost), len(cost)))]), format="csc")
    found = _clarabel(P, np.append(-linear, cost), G, h, cones, TIGHT if len(cost) else TIGHT[:1])
    return None if found is None else found[: len(linear)]


def slack_free_optimum(
    system: System, scores: np.ndarray, tau: float, price: np.ndarray | None = None
) -> np.ndarray | None:
    """max <y, x> + tau * entropies of the shares, rows as inequalities, by Clarabel; None where it does not vouch.

    Rows of finite ``price`` are a penalty.
    """
    return _by_shares(system, scores, np.full(len(scores), tau), price)


def _by_shares(system: System, scores: np.ndarray, weights: np.ndarray, price: np.ndarray | None) -> np.ndarray | None:
    """max <y, x> + entropies of the shares of x in the box, each with its weight.

    In the shares p: t >= p log p is (-t, p, 1) in the exponential cone, and likewise of 1 - p.
    """
    l = len(scores)
    width = system.upper - system.lower
    shares = System(
        system.matrix * width, system.senses, system.rhs - system.matrix @ system.lower, np.zeros(l)
    )  # the same rows over [0, 1]
    whole, cost = elastic(shares, price)
    G, h, cones = _row_cones(whole)
    none = sp.csc_array((len(h), 2 * l))
    m = l + len(cost)  # shares, then what soft rows are broken by, then the epigraphs t of both entropies
    blocks, sides = [sp.hstack([G, none])], [h]
    for offset, sign, share in ((m, -1.0, 0.0), (m + l, 1.0, 1.0)):  # p, then 1 - p
        # Row 3 j + i of an exponential block is entry i of the cone of variable j: (-t, share, 1).
        rows = 3 * np.arange(l)
        entries = (
            np.r_[np.ones(l), np.full(l, sign)],
            (np.r_[rows, rows + 1], np.r_[offset + np.arange(l), np.arange(l)]),
        )
        blocks.append(sp.csc_array(entries, shape=(3 * l, m + 2 * l)))
        sides.append(np.tile([0.0, share, 1.0], l))
        cones = [*cones, *[clarabel.ExponentialConeT()] * l]
    q = np.concatenate([-scores * width, cost, weights, weights])
    G, h = sp.csc_array(sp.vstack(blocks)), np.concatenate(sides)
    found = _clarabel(sp.csc_array((len(q), len(q))), q, G, h, cones, TIGHT if len(cost) else TIGHT[:2])
    return None if found is None else system.lower + width * found[:l]


def kl_optimum(
    system: System, scores: np.ndarray, tau: float, price: np.ndarray | None = None, prior: np.ndarray | float = 1.0
) -> np.ndarray | None:
    """max <y, x> - tau KL(x - lower | prior) by Clarabel; None where it does not vouch.

    s >= t log t is (-s, t, 1) in the exponential cone.
    """
    linear = scores + tau * (1.0 + np.log(np.broadcast_to(prior, scores.shape)))
    places = [(0, "cost", 1.0), (1, "share", -1.0)]
    return _above_lower(system, linear, tau, price, places, [0.0, 0.0, 1.0], clarabel.ExponentialConeT())


def tsallis_optimum(
    system: System, scores: np.ndarray, tau: float, price: np.ndarray | None = None, alpha: float = 1.5
) -> np.ndarray | None:
    """max <y, x> - tau sum (t^alpha - t) / (alpha (alpha - 1)), t = x - lower, by Clarabel.

    None where it does not vouch. s >= t^alpha is (s, 1, t) in the power cone of 1 / alpha.
    """
    share = tau / (alpha * (alpha - 1))
    places = [(0, "cost", -1.0), (2, "share", -1.0)]
    return _above_lower(system, scores + share, share, price, places, [0.0, 1.0, 0.0], clarabel.PowerConeT(1 / alpha))


def _above_lower(
    system: System,
    linear: np.ndarray,
    factor: float,
    price: np.ndarray | None,
    places: list[tuple[int, str, float]],
    side: list[float],
    cone: object,
) -> np.ndarray | None:
    """max <linear, t> - factor sum s over x = lower + t in the system, (s, t) of each variable in a cone of three."""
    l = len(linear)
    shifted = System(
        system.matrix,
        system.senses,
        system.rhs - system.matrix @ system.lower,
        np.zeros(l),
        np.zeros(l),
        system.upper - system.lower,
    )
    whole, cost = elastic(shifted, price)
    G, h, cones = _row_cones(whole)
    m = l + len(cost)
    columns = {"share": np.arange(l), "cost": m + np.arange(l)}
    rows = np.concatenate([3 * np.arange(l) + place for place, _, _ in places])
    values = np.concatenate([np.full(l, sign) for _, _, sign in places])
    block = sp.csc_array((values, (rows, np.concatenate([columns[of] for _, of, _ in places]))), shape=(3 * l, m + l))
    G = sp.csc_array(sp.vstack([sp.hstack([G, sp.csc_array((len(h), l))]), block]))
    q = np.concatenate([-linear, cost, np.full(l, factor)])
    h = np.append(h, np.tile(side, l))
    found = _clarabel(sp.csc_array((len(q), len(q))), q, G, h, [*cones, *[cone] * l], TIGHT)
    return None if found is None else system.lower + found[:l]


def linear_optimum(system: System, scores: np.ndarray) -> float:
    """max <y, x> over the rows and the box, by HiGHS."""
    solved = _by_highs(system, -scores)
    assert solved.status == 0, solved.message
    return -float(solved.fun)


def is_feasible(system: System) -> bool:
    """Whether the rows can hold in the box, by HiGHS."""
    return len(system.rhs) == 0 or _by_highs(system, np.zeros(system.matrix.shape[1])).status == 0


def _by_highs(system: System, cost: np.ndarray) -> Any:
    """min <cost, x> over the rows and the box."""
    sign = np.array([-1.0 if s == ">=" else 1.0 for s in system.senses])
    loose = np.array([s != "==" for s in system.senses], dtype=bool)
    matrix, rhs = system.matrix * sign[:, None], system.rhs * sign
    return linprog(
        cost,
        A_ub=matrix[loose] if loose.any() else None,
        b_ub=rhs[loose] if loose.any() else None,
        A_eq=matrix[~loose] if (~loose).any() else None,
        b_eq=rhs[~loose] if (~loose).any() else None,
        bounds=list(zip(system.lower, system.upper)),
        method="highs",
    )
