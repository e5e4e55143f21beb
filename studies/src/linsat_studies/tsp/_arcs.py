"""The program over arcs behind ``solvers.mip_tours``: one canonical instance (start 0, priority 1, end n - 1)."""

from __future__ import annotations

import time

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array, csr_array, vstack
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

# Capacities of the minimum cuts are integers: shares of an arc in steps of a millionth.
_STEPS = 1_000_000


def solve(D: np.ndarray, latest: int | None, seconds: float) -> tuple[np.ndarray | None, bool]:
    """A shortest tour, or the best one in ``seconds``, or None; and whether it is proved to be the shortest.

    Variables: one per arc (i, j) that a path from 0 to n - 1 can use, then the position of each inner city.
    """
    stop = time.perf_counter() + seconds
    n = len(D)
    tails, heads = np.nonzero(~np.eye(n, dtype=bool))
    useful = (heads != 0) & (tails != n - 1) & ~((tails == 0) & (heads == n - 1))
    tails, heads = tails[useful], heads[useful]
    arcs = len(tails)
    cost = np.concatenate([D[tails, heads], np.zeros(n - 2)])
    lower = np.concatenate([np.zeros(arcs), np.ones(n - 2)])
    upper = np.concatenate([np.ones(arcs), np.full(n - 2, n - 2.0)])
    if latest is not None:
        upper[arcs] = latest
    degrees = _degrees(tails, heads, n)
    order, order_right = _position_rows(tails, heads, n)
    while True:
        if stop <= time.perf_counter():
            return None, False
        relaxed = linprog(
            cost,
            A_ub=order,
            b_ub=order_right,
            A_eq=degrees,
            b_eq=np.ones(degrees.shape[0]),
            bounds=np.stack([lower, upper], axis=1),
            method="highs",
            options={"time_limit": max(stop - time.perf_counter(), 1e-3)},
        )
        cuts = _broken_subtours(relaxed.x[:arcs], tails, heads, n) if relaxed.status == 0 else None
        if cuts is None or not cuts.shape[0]:
            break
        order = vstack([order, cuts], format="csr")
        order_right = np.concatenate([order_right, -np.ones(cuts.shape[0])])
    left = stop - time.perf_counter()
    if left <= 0:
        return None, False
    result = milp(
        cost,
        integrality=np.concatenate([np.ones(arcs), np.zeros(n - 2)]),
        bounds=Bounds(lower, upper),
        constraints=[LinearConstraint(degrees, 1, 1), LinearConstraint(order, -np.inf, order_right)],
        options={"time_limit": left, "mip_rel_gap": 0.0},
    )
    if result.x is None:
        return None, False
    follows = {int(tails[a]): int(heads[a]) for a in np.flatnonzero(result.x[:arcs] > 0.5)}
    tour = [0]
    while tour[-1] != n - 1:
        tour.append(follows[tour[-1]])
    return np.array(tour), result.status == 0


def _degrees(tails: np.ndarray, heads: np.ndarray, n: int) -> csr_array:
    """Every city but the last is left once, every city but the first is reached once."""
    arcs = np.arange(len(tails))
    rows = np.concatenate([tails, n - 2 + heads])
    ones = np.ones(2 * len(tails))
    return csr_array(coo_array((ones, (rows, np.tile(arcs, 2))), shape=(2 * n - 2, len(tails) + n - 2)))


def _position_rows(tails: np.ndarray, heads: np.ndarray, n: int) -> tuple[csr_array, np.ndarray]:
    """u[i] - u[j] + (n - 2) x[i, j] + (n - 4) x[j, i] <= n - 3 for inner cities: an arc raises the position by one."""
    number = {(int(i), int(j)): a for a, (i, j) in enumerate(zip(tails, heads))}
    pairs = [(i, j) for i in range(1, n - 1) for j in range(1, n - 1) if i != j]
    rows = np.repeat(np.arange(len(pairs)), 4)
    columns = [(len(tails) + i - 1, len(tails) + j - 1, number[i, j], number[j, i]) for i, j in pairs]
    values = np.tile([1.0, -1.0, n - 2.0, n - 4.0], len(pairs))
    shape = (len(pairs), len(tails) + n - 2)
    matrix = csr_array(coo_array((values, (rows, np.ravel(columns))), shape=shape))
    return matrix, np.full(len(pairs), n - 3.0)


def _broken_subtours(shares: np.ndarray, tails: np.ndarray, heads: np.ndarray, n: int) -> csr_array:
    """Rows -(arcs into S) <= -1 for sets S of cities that less than one arc enters: minimum cuts from the start."""
    capacity = csr_array(
        (np.rint(np.clip(shares, 0, 1) * _STEPS).astype(np.int32), (tails, heads)), shape=(n, n), dtype=np.int32
    )
    entering: set[tuple[int, ...]] = set()
    for city in range(1, n - 1):
        flow = maximum_flow(capacity, 0, city)
        # A thousandth of slack: a row that is broken by less is not worth a round.
        if flow.flow_value >= 0.999 * _STEPS:
            continue
        residual = csr_array(capacity - flow.flow)
        residual.eliminate_zeros()
        reached = np.zeros(n, dtype=bool)
        reached[breadth_first_order(residual, 0, return_predecessors=False)] = True
        entering.add(tuple(np.flatnonzero(reached[tails] & ~reached[heads])))
    rows = np.repeat(np.arange(len(entering)), [len(arcs) for arcs in entering])
    columns = np.array([a for arcs in entering for a in arcs], dtype=np.int64)
    return csr_array((-np.ones(len(columns)), (rows, columns)), shape=(len(entering), len(tails) + n - 2))
