"""Families of rows as models have them: flows, covers, chains, degenerate vertices, big M, nine decades, ties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuzz.families import Rng, Rows


def _flow(rng: Rng) -> Rows:
    """Balance at every node of a network; arcs have capacities, and the known flow is a sum of paths."""
    nodes = int(rng.integers(3, 13))
    tail, head = np.nonzero(rng.random((nodes, nodes)) < rng.uniform(0.2, 0.6))
    chain = np.arange(nodes - 1)
    tail, head = np.append(tail, chain), np.append(head, chain + 1)
    tail, head = tail[tail != head], head[tail != head]
    arcs = len(tail)
    matrix = np.zeros((nodes, arcs))
    matrix[tail, np.arange(arcs)] += 1.0
    matrix[head, np.arange(arcs)] -= 1.0
    capacity = rng.integers(1, 20, arcs).astype(float)
    point = np.minimum(rng.integers(0, 20, arcs), capacity).astype(float)
    pull = None if rng.random() < 0.5 else -np.ones(arcs)
    return Rows(matrix, ["=="] * nodes, np.zeros(arcs), capacity, point=point, pull=pull, exact=True)


def _cover(rng: Rng) -> Rows:
    """Each element is covered by at least one of the sets that hold it; sets cost much the same."""
    sets, elements = int(rng.integers(4, 40)), int(rng.integers(2, 25))
    matrix = (rng.random((elements, sets)) < rng.uniform(0.1, 0.5)).astype(float)
    matrix[np.arange(elements), rng.integers(0, sets, elements)] = 1.0
    point = (rng.random(sets) < 0.5).astype(float)
    missed = np.flatnonzero(matrix @ point < 1)
    for i in missed:
        point[np.flatnonzero(matrix[i])[0]] = 1.0
    rows = Rows(matrix, [">="] * elements, np.zeros(sets), np.ones(sets), touching=1.0, point=point, exact=True)
    rows.pull = -np.ones(sets)
    return rows


def _chain(rng: Rng) -> Rows:
    """Inventory over periods: stock follows from stock, production and demand; production may not jump."""
    periods = int(rng.integers(3, 25))
    l = 2 * periods  # production, then stock
    balance = np.zeros((periods, l))
    for t in range(periods):
        balance[t, t], balance[t, periods + t] = 1.0, -1.0
        if t:
            balance[t, periods + t - 1] = 1.0
    ramp = np.zeros((periods - 1, l))
    ramp[np.arange(periods - 1), np.arange(1, periods)] = 1.0
    ramp[np.arange(periods - 1), np.arange(periods - 1)] = -1.0
    matrix = np.vstack([balance, ramp, -ramp])
    senses = ["=="] * periods + ["<="] * (2 * (periods - 1))
    upper = np.concatenate([np.full(periods, 10.0), np.full(periods, float(rng.choice([5.0, 50.0, 1e4])))])
    return Rows(matrix, senses, np.zeros(l), upper, touching=float(rng.choice([0.0, 0.3])), exact=True)


def _vertex(rng: Rng) -> Rows:
    """Many more rows than variables through one point, and scores that ask for that point."""
    l = int(rng.integers(2, 12))
    k = int(rng.integers(l, 6 * l))
    matrix = rng.integers(-3, 4, (k, l)).astype(float)
    matrix[~matrix.any(1), 0] = 1.0
    point = rng.integers(0, 3, l) / 2.0
    pull = rng.exponential(1.0, k) @ matrix
    return Rows(
        matrix, ["<="] * k, np.zeros(l), np.ones(l), touching=1.0, point=point, pull=pull / np.abs(pull).max(initial=1)
    )


def _big_m(rng: Rng) -> Rows:
    """x <= M z: switches that turn quantities on, with a budget for the switches and demand for the quantities."""
    count = int(rng.integers(1, 12))
    M = 10.0 ** rng.uniform(1, 6)
    matrix = np.zeros((count + 2, 2 * count))
    matrix[np.arange(count), np.arange(count)] = 1.0
    matrix[np.arange(count), count + np.arange(count)] = -M
    matrix[count, count:] = 1.0
    matrix[count + 1, :count] = 1.0
    senses = ["<="] * (count + 1) + [">="]
    upper = np.concatenate([np.full(count, M if rng.random() < 0.5 else 10.0), np.ones(count)])
    return Rows(matrix, senses, np.zeros(2 * count), upper, touching=float(rng.choice([0.0, 0.5])))


def _decades(rng: Rng) -> Rows:
    """Coefficients over nine decades: of every entry, or of rows and columns, the box in step with the columns."""
    k, l = int(rng.integers(1, 9)), int(rng.integers(2, 25))
    matrix = rng.uniform(0.1, 2.0, (k, l)) * (rng.random((k, l)) < 0.6) * rng.choice([-1.0, 1.0], (k, l))
    matrix[~matrix.any(1), 0] = 1.0
    senses = [str(s) for s in rng.choice(["<=", ">=", "=="], k, p=[0.4, 0.4, 0.2])]
    upper = np.ones(l)
    if rng.random() < 0.5:
        matrix = matrix * 10.0 ** rng.uniform(-4.5, 4.5, (k, l))
    else:
        columns = 10.0 ** rng.uniform(-2.5, 2.5, l)
        matrix, upper = matrix * columns * 10.0 ** rng.uniform(-2, 2, (k, 1)), 1 / columns
    return Rows(matrix, senses, np.zeros(l), upper)


def _transport(rng: Rng) -> Rows:
    """Supplies to demands at equal costs: every plan is as good as any other, and one row follows from the others."""
    sources, sinks = int(rng.integers(2, 8)), int(rng.integers(2, 8))
    plan = rng.integers(0, 6, (sources, sinks)).astype(float) * (rng.random((sources, sinks)) < 0.6)
    plan[~plan.any(1), 0] = 1.0
    matrix = np.vstack([np.kron(np.eye(sources), np.ones(sinks)), np.kron(np.ones(sources), np.eye(sinks))])
    upper = np.full(sources * sinks, float(rng.choice([5.0, 100.0, 1e4])))
    senses = ["=="] * (sources + sinks) if rng.random() < 0.6 else ["<="] * sources + [">="] * sinks
    return Rows(
        matrix,
        senses,
        np.zeros(sources * sinks),
        upper,
        touching=1.0,
        point=plan.ravel(),
        pull=-np.ones(sources * sinks),
        exact=True,
    )


STRUCTURED: dict[str, Callable[[Rng], Rows]] = {
    "network flow": _flow,
    "set cover": _cover,
    "inventory chain": _chain,
    "degenerate vertex": _vertex,
    "big M": _big_m,
    "nine decades": _decades,
    "equal-cost transport": _transport,
}
