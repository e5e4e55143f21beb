"""Families of rows as models have them: flows, covers, chains, plans, degenerate vertices, big M, decades, ties."""

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


def _order(rng: Rng) -> Rows:
    """A sequence whose k-th differences have a sign, or stay within limits: order, convexity, smoothness."""
    length, degree = int(rng.integers(4, 40)), int(rng.integers(1, 4))
    matrix = np.diff(np.eye(length), n=min(degree, length - 1), axis=0)
    point = np.sort(rng.integers(0, 9, length)) / 8.0
    senses = [">="] * len(matrix)
    if degree > 1 or rng.random() < 0.3:
        matrix, senses = np.vstack([matrix, matrix]), [*senses, *["<="] * len(matrix)]
    touching = float(rng.choice([0.0, 0.5, 1.0])) if degree == 1 else 0.3
    pull = -np.linspace(-1, 1, length) if rng.random() < 0.5 else None  # against the order: everything ties
    return Rows(matrix, senses, np.zeros(length), np.ones(length), touching, point=point, pull=pull, exact=True)


def _commitment(rng: Rng) -> Rows:
    """Units that are on or off over periods: output between limits, ramps, starts, and demand."""
    units, periods = int(rng.integers(1, 5)), int(rng.integers(2, 8))
    size = units * periods
    most = rng.integers(2, 9, units).astype(float)
    least = np.floor(most / rng.integers(2, 5))
    on, output, start = (np.eye(size, 3 * size, way * size) for way in range(3))
    high, low = np.repeat(most, periods)[:, None], np.repeat(least, periods)[:, None]
    later = np.arange(size) % periods > 0
    before = np.maximum(np.arange(size) - 1, 0)
    step, turn = (output - output[before])[later], (on - on[before] - start)[later]
    demand = np.kron(np.ones((1, units)), np.eye(periods)) @ output
    matrix = np.vstack([output - high * on, output - low * on, step, -step, turn, demand])
    counts = ((size, "<="), (size, ">="), (2 * len(step), "<="), (len(turn), "<="), (periods, "=="))
    senses = [sense for count, sense in counts for _ in range(count)]
    state = (rng.random((units, periods)) < 0.6).astype(float)
    started = np.maximum(np.diff(state, axis=1, prepend=0.0), 0.0)
    point = np.concatenate([state.ravel(), (state * most[:, None]).ravel(), started.ravel()])
    upper = np.concatenate([np.ones(size), high.ravel(), np.ones(size)])
    pull = -np.concatenate([np.ones(size), 0.1 * np.ones(size), 2 * np.ones(size)])
    return Rows(matrix, senses, np.zeros(3 * size), upper, touching=0.3, point=point, pull=pull, exact=True)


def _crew(rng: Rng) -> Rows:
    """Every flight is in exactly one of the chosen pairings; bases have limits."""
    flights, extra = int(rng.integers(3, 16)), int(rng.integers(1, 30))
    order, parts = rng.permutation(flights), []
    while len(order):
        size = int(rng.integers(1, 4))
        parts.append(order[:size])
        order = order[size:]
    chosen = len(parts)
    parts += [rng.choice(flights, int(rng.integers(1, min(flights, 4) + 1)), replace=False) for _ in range(extra)]
    cover = np.zeros((flights, len(parts)))
    for j, part in enumerate(parts):
        cover[part, j] = 1.0
    base = np.eye(3)[rng.integers(0, 3, len(parts))].T
    base = base[base.any(1)]
    point = (np.arange(len(parts)) < chosen).astype(float)
    pull = -cover.sum(0) if rng.random() < 0.5 else None
    senses = ["=="] * flights + ["<="] * len(base)
    l = len(parts)
    return Rows(np.vstack([cover, base]), senses, np.zeros(l), np.ones(l), 0.5, point=point, pull=pull, exact=True)


def _staircase(rng: Rng) -> Rows:
    """Periods that share rows with the next one only."""
    periods, k, l = int(rng.integers(2, 9)), int(rng.integers(1, 4)), int(rng.integers(2, 6))
    matrix = np.zeros((periods * k, periods * l))
    for t in range(periods):
        rows = slice(t * k, (t + 1) * k)
        matrix[rows, t * l : (t + 1) * l] = rng.integers(-3, 4, (k, l))
        if t:
            matrix[rows, (t - 1) * l : t * l] = rng.integers(-2, 3, (k, l))
    matrix[~matrix.any(1), 0] = 1.0
    senses = [str(s) for s in rng.choice(["<=", "=="], len(matrix), p=[0.6, 0.4])]
    upper = np.full(periods * l, float(rng.choice([1.0, 10.0, 1e3])))
    return Rows(matrix, senses, np.zeros(periods * l), upper, touching=0.2, corner=0.2)


def _commodities(rng: Rng) -> Rows:
    """Several goods flow through one network, whose arcs they share."""
    nodes, goods = int(rng.integers(3, 7)), int(rng.integers(2, 4))
    tail, head = np.nonzero((rng.random((nodes, nodes)) < 0.5) & ~np.eye(nodes, dtype=bool))
    tail, head = np.append(tail, np.arange(nodes)), np.append(head, (np.arange(nodes) + 1) % nodes)
    arcs = len(tail)
    balance = np.zeros((nodes, arcs))
    np.add.at(balance, (tail, np.arange(arcs)), 1.0)
    np.add.at(balance, (head, np.arange(arcs)), -1.0)
    matrix = np.vstack([np.kron(np.eye(goods), balance), np.kron(np.ones((1, goods)), np.eye(arcs))])
    point = rng.integers(0, 6, goods * arcs) * (rng.random(goods * arcs) < 0.5) / 1.0
    upper = np.full(goods * arcs, float(rng.choice([5.0, 50.0])))
    senses = ["=="] * (goods * nodes) + ["<="] * arcs
    pull = None if rng.random() < 0.5 else -np.ones(goods * arcs)
    return Rows(matrix, senses, np.zeros(goods * arcs), upper, 0.5, point=point, pull=pull, exact=True)


def _turnover(rng: Rng) -> Rows:
    """A portfolio that is reached from another by purchases and sales, of which there may not be many."""
    assets = int(rng.integers(3, 20))
    held = rng.dirichlet(np.ones(assets)) * (rng.random(assets) < 0.7)
    held = held / held.sum() if held.any() else np.full(assets, 1 / assets)
    eye, none = np.eye(assets), np.zeros((1, assets))
    matrix = np.vstack([
        np.hstack([eye, -eye, eye]),
        np.hstack([none + 1, none, none]),
        np.hstack([none, none + 1, none + 1]),
    ])  # fmt: skip
    senses = ["=="] * (assets + 1) + ["<="]
    point = np.concatenate([held, np.zeros(2 * assets)])
    pull = np.concatenate([rng.normal(size=assets), np.full(2 * assets, -0.01)])
    touching = float(rng.choice([0.0, 1.0]))
    return Rows(matrix, senses, np.zeros(3 * assets), np.ones(3 * assets), touching, point=point, pull=pull, exact=True)


def _forbidden(rng: Rng) -> Rows:
    """Assignment in which many cells are forbidden, so that others are forced."""
    size = int(rng.integers(2, 9))
    plan = np.eye(size)[rng.permutation(size)]
    if rng.random() < 0.5:
        plan = (plan + np.eye(size)[rng.permutation(size)]) / 2
    allowed = (plan > 0) | (rng.random((size, size)) < rng.choice([0.0, 0.2, 0.5]))
    matrix = np.vstack([np.kron(np.eye(size), np.ones(size)), np.kron(np.ones(size), np.eye(size))])
    upper = allowed.ravel().astype(float)
    return Rows(matrix, ["=="] * (2 * size), np.zeros(size * size), upper, point=plan.ravel(), exact=True)


STRUCTURED: dict[str, Callable[[Rng], Rows]] = {
    "network flow": _flow,
    "set cover": _cover,
    "inventory chain": _chain,
    "degenerate vertex": _vertex,
    "big M": _big_m,
    "nine decades": _decades,
    "equal-cost transport": _transport,
    "order and differences": _order,
    "unit commitment": _commitment,
    "crew": _crew,
    "staircase": _staircase,
    "multi-commodity flow": _commodities,
    "turnover": _turnover,
    "forbidden cells": _forbidden,
}
