"""Networks: rows between which variables flow. A maximum flow gives a point of theirs, or a cut that refutes them.

Rows are a network where no variable is in more than two of them and factors r exist that make its coefficients cancel,
r_i a_ij + r_k a_kj = 0: assignment, transport, capacities with sizes, balances of stocks and flows. In units
z_j = r_i a_ij x_j every variable is an arc from node k to node i, or from the ground where it is in one row only; and
the value of row i, times r_i, is an arc from node i to the ground:

    what arrives at a node = what leaves it,      every arc within its bounds

From any point within the bounds, what has piled up at some nodes is sent to those that lack it, through the room that
arcs have in either direction. What cannot be sent is stuck at nodes S that no arc with room leaves. The rows of S,
weighted by r, then allow less than the bounds let arrive: Farkas multipliers (Hoffman's circulation theorem), which
`linsat.compile.certificate` proves in exact arithmetic; so the arithmetic here may round. The maximum flow is scipy's
(Dinic), in whole numbers: amounts are scaled by a power of two and rounded down; what is left goes on a finer scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from linsat.compile.system import Array, Deadline, LinearSystem

_UNITS = 2.0**29  # into which what is to be sent is divided; scipy counts in 32 bits
_SCALES = 6  # on which it is sent, one finer than the other
_ROUNDING = 1e-15  # of what has piled up at a node, relative to what passes through it
_CANCELS = 1e-14  # relative: coefficients that cancel but for rounding
# A flow takes about as many passes over the arcs as the longest of its paths has arcs, and scipy's has no time limit:
# what is long and has many arcs (a stock over 10,000 periods) is left to linear programs, which keep theirs.
_MOST_VISITS = 300_000_000
_MOST_ROWS = 50_000  # among which a network is looked for, one by one
_PATHS = (1, 2, 4, 8)  # that share no arc, to show that a row is needed


@dataclass
class Network:
    """Nodes and arcs: row i is node i, the last node is the ground."""

    factor: Array  # (k,) r
    columns: Array  # (n,) the variables that are arcs
    unit: Array  # (n,) z / x
    tail: Array  # (n + k,) of the arcs: variables, then rows
    head: Array  # (n + k,)
    low: Array  # (n + k,)
    high: Array  # (n + k,)
    flow: Array  # (n + k,) changed by `send`
    pairs: Array  # (p,) tail and head of arcs as one number, ascending, the smaller node first
    pair: Array  # (n + k,) which of them an arc belongs to

    @classmethod
    def of(cls, system: LinearSystem) -> Network | None:
        """The rows as a network; None where they are none, or one whose flows would take long."""
        matrix = sp.csc_array(system.matrix)
        entries = np.diff(matrix.indptr)
        if not matrix.nnz or entries.max() > 2:
            return None
        k, rows, values = matrix.shape[0], matrix.indices.astype(np.int64), matrix.data
        columns, double = np.flatnonzero(entries), np.flatnonzero(entries == 2)
        first, second = matrix.indptr[columns], matrix.indptr[double] + 1
        factor = _factors(rows[second - 1], values[second - 1], rows[second], values[second], k, len(columns) + k)
        if factor is None:
            return None
        unit = factor[rows[first]] * values[first]
        tail = np.full(matrix.shape[1], k)
        tail[double] = rows[second]
        tail, head = np.append(tail[columns], np.arange(k)), np.append(rows[first], np.full(k, k))
        ends = np.append(unit * system.lower[columns], factor * system.row_lower)
        other = np.append(unit * system.upper[columns], factor * system.row_upper)
        pairs, pair = np.unique(np.minimum(tail, head) * (k + 1) + np.maximum(tail, head), return_inverse=True)
        low, high = np.minimum(ends, other), np.maximum(ends, other)
        made = cls(factor, columns, unit, tail, head, low, high, np.clip(0.0, low, high), pairs, pair)
        made.flow[len(columns) :] = 0.0
        made.flow[len(columns) :] = np.clip(made.piled()[:k], low[len(columns) :], high[len(columns) :])
        return made

    @property
    def nodes(self) -> int:
        return len(self.factor) + 1

    def piled(self) -> Array:
        """(nodes,) what arrives less what leaves, 0 where that is rounding."""
        arrives, leaves = (np.bincount(end, self.flow, minlength=self.nodes) for end in (self.head, self.tail))
        passes = sum(np.bincount(end, np.abs(self.flow), minlength=self.nodes) for end in (self.head, self.tail))
        return np.where(np.abs(arrives - leaves) > _ROUNDING * passes, arrives - leaves, 0.0)

    def point(self, system: LinearSystem) -> Array:
        """The flow as x, in the box."""
        x = np.zeros(len(system.lower))
        x[self.columns] = self.flow[: len(self.columns)] / self.unit
        return system.clip(x)

    def reversed(self) -> Network:
        """The same rows with every arc turned round: what was lacking has piled up."""
        return replace(self, factor=-self.factor, tail=self.head, head=self.tail)

    # ------------------------------------------------------------------ sending

    def settle(self, deadline: Deadline) -> None:
        """Send what has piled up to where it is lacking, as far as it goes."""
        piled = self.piled()
        self.send(np.maximum(piled, 0.0), np.maximum(-piled, 0.0), deadline)

    def send(self, supply: Array, demand: Array, deadline: Deadline) -> Array:
        """Send as much as possible from node to node, (nodes,) each; what is left of the supply."""
        for scale in range(_SCALES):
            total = min(supply.sum(), demand.sum())
            if not total > 0.0 or deadline.passed:
                break
            if scale:  # a search is quicker than a flow of nothing
                starts, stops, _ = self.arcs(total / _UNITS)
                if not demand[self.reach(starts, stops, np.flatnonzero(supply))].any():
                    break
            gone, come = self._send(supply, demand, total)
            supply, demand = np.maximum(supply - gone, 0.0), np.maximum(demand - come, 0.0)
        return supply

    def _send(self, supply: Array, demand: Array, total: float) -> tuple[Array, Array]:
        """One maximum flow in units of a share of the total: what has gone from each node, and come to it."""
        from scipy.sparse.csgraph import maximum_flow

        scale = 2.0 ** math.floor(math.log2(_UNITS / total))

        def whole(amounts: Array) -> Array:
            return np.floor(np.minimum(amounts, total) * scale)

        forward, backward = whole(self.high - self.flow), whole(self.flow - self.low)
        onward = self.tail < self.head  # along its pair
        with_pair, against = np.where(onward, forward, backward), np.where(onward, backward, forward)
        one, other = np.divmod(self.pairs, self.nodes)
        everyone = np.arange(self.nodes)
        source, sink = np.full(self.nodes, self.nodes), np.full(self.nodes, self.nodes + 1)
        starts, stops = np.concatenate([one, other, source, everyone]), np.concatenate([other, one, everyone, sink])
        rooms = [np.bincount(self.pair, room, minlength=len(self.pairs)) for room in (with_pair, against)]
        room = np.minimum(np.concatenate([*rooms, whole(supply), whole(demand)]), _UNITS).astype(np.int32)
        used, size = np.flatnonzero(room), self.nodes + 2
        graph = sp.csr_matrix((room[used], (starts[used], stops[used])), shape=(size, size))
        sent = maximum_flow(graph, self.nodes, self.nodes + 1, method="dinic").flow.tocoo()
        row, col, amount = sent.row.astype(np.int64), sent.col.astype(np.int64), sent.data.astype(np.float64)
        gone, come = np.zeros(self.nodes), np.zeros(self.nodes)
        leaving, arriving = row == self.nodes, col == self.nodes + 1
        gone[col[leaving]], come[row[arriving]] = amount[leaving], amount[arriving]
        inside = (row < col) & (col < self.nodes) & (amount != 0)
        along = np.zeros(len(self.pairs))
        along[np.searchsorted(self.pairs, row[inside] * self.nodes + col[inside])] = amount[inside]
        # Arcs of one pair take their share one after the other.
        sign = np.sign(along)[self.pair]
        spare = np.where(sign > 0, with_pair, against)
        order = np.argsort(self.pair, kind="stable")
        before = np.cumsum(spare[order]) - spare[order]
        start = np.searchsorted(self.pair[order], np.arange(len(self.pairs)))
        taken = np.empty_like(spare)
        taken[order] = np.clip(np.abs(along)[self.pair[order]] - (before - before[start][self.pair[order]]), 0.0, None)
        change = sign * np.where(onward, 1.0, -1.0) * np.minimum(taken, spare) / scale
        self.flow = np.clip(self.flow + change, self.low, self.high)
        return gone / scale, come / scale

    # ------------------------------------------------------------------ what is stuck

    def rooms(self) -> tuple[Array, Array]:
        """(p,) how much more each pair can carry from its smaller node to the larger one, and back."""
        forward, backward = self.high - self.flow, self.flow - self.low
        onward = self.tail < self.head
        both = np.where(onward, forward, backward), np.where(onward, backward, forward)
        with_pair, against = (np.bincount(self.pair, room, minlength=len(self.pairs)) for room in both)
        return with_pair, against

    def reach(self, starts: Array, stops: Array, begin: Array) -> Array:
        """(nodes,) whether arcs lead to a node from one of those in ``begin``, which count too."""
        from scipy.sparse.csgraph import breadth_first_order

        starts, stops = np.append(starts, np.full(len(begin), self.nodes)), np.append(stops, begin)
        graph = sp.csr_matrix((np.ones(len(starts)), (starts, stops)), shape=(self.nodes + 1, self.nodes + 1))
        reached = np.zeros(self.nodes + 1, dtype=bool)
        reached[breadth_first_order(graph, self.nodes, directed=True, return_predecessors=False)] = True
        return reached[:-1]

    def arcs(self, least: float) -> tuple[Array, Array, Array]:
        """Where arcs with room for ``least`` start and stop, and their room; both directions of an arc count."""
        one, other = np.divmod(self.pairs, self.nodes)
        room = np.concatenate(self.rooms())
        here = np.flatnonzero(room >= least)
        return np.append(one, other)[here], np.append(other, one)[here], room[here]

    def cut(self) -> Array | None:
        """(nodes,) where something is stuck and what it reaches; None where nothing is, or the ground is among them."""
        piled = np.maximum(self.piled(), 0.0)
        piled[-1] = 0.0
        if not piled.any():
            return None
        starts, stops, _ = self.arcs(piled.max() / _UNITS)
        reached = self.reach(starts, stops, np.array([piled.argmax()]))
        return None if reached[-1] else reached

    def shrink(self, stuck: Array, deadline: Deadline) -> tuple[Array, bool]:
        """Rows (k,) that still contradict each other, fewer than those ``stuck``; whether each was seen to be needed.

        A row is needed if, without it, all that is stuck can leave through its node. It can where as many paths that
        share no arc lead there as carry it all: one search for several such paths answers for all rows. The others
        are dropped by dozens as long as something stays stuck, else one by one.
        """
        kept, needed = stuck, np.zeros_like(stuck)
        supply = np.where(kept, np.maximum(self.piled(), 0.0), 0.0)
        gone = ~kept
        while not deadline.passed:
            starts, stops, _ = self.arcs(supply.sum() / _UNITS)
            kept = kept & self.reach(starts, stops, np.flatnonzero(supply))
            gone = ~kept
            needed = needed | self._needed(supply, kept)
            left = np.flatnonzero(kept & ~needed)
            if not len(left):
                return kept[:-1], True
            at, size = 0, 1
            while at < len(left) and not deadline.passed:
                tried, before = left[at : at + size], self.flow
                sinks = gone.copy()
                sinks[tried] = True
                rest = self.send(supply, np.where(sinks, supply.sum(), 0.0), deadline)
                if rest.sum() > _ROUNDING * self.nodes * supply.sum():
                    supply, gone, at, size = rest, sinks, at + size, 2 * size
                    continue
                self.flow = before
                if size == 1:
                    needed[tried] = True
                    break
                size //= 2
            kept = kept & ~gone
        return kept[:-1], False

    def _needed(self, supply: Array, kept: Array) -> Array:
        """Rows to which so many paths without a common arc lead that they carry all of the supply.

        The arcs are dealt out, those that arrive at one node in turn, so that a path of each hand can be any.
        """
        shown = np.zeros_like(kept)
        for hands in _PATHS:
            share = supply.sum() / hands * (1 - 1e-12)
            starts, stops, room = self.arcs(share)
            order = np.argsort(stops, kind="stable")
            starts, stops, room = starts[order], stops[order], room[order]
            turn = np.arange(len(stops)) - np.searchsorted(stops, stops) + stops
            begin = np.repeat(np.arange(self.nodes), np.floor(supply / share).astype(np.int64))
            if len(begin) < hands:
                continue
            reached = kept
            for hand in range(hands):
                mine = (hand - turn) % hands < np.floor(room / share)
                reached = reached & self.reach(starts[mine], stops[mine], begin[[hand]])
            shown |= reached
            if (shown | ~kept).all():
                break
        return shown


def point_or_cuts(system: LinearSystem, deadline: Deadline) -> tuple[Array | None, list[Array]]:
    """By a maximum flow: a point that satisfies the network among the rows, or else multipliers (k,) that refute it.

    None and no multipliers where there is no network. Rows that are not of the network may not hold at the point.
    """
    rows = _network_rows(system)
    part = system if len(rows) == system.num_rows else system.take(rows)
    network = Network.of(part) if len(rows) else None
    if network is None:
        return None, []
    network.settle(deadline)
    cuts = []
    for side in (network, network.reversed()):
        cut = side.cut()
        if cut is not None:
            multipliers = np.zeros(system.num_rows)
            multipliers[rows] = np.where(cut[:-1], side.factor, 0.0)
            cuts.append(multipliers)
    return network.point(part), sorted(cuts, key=np.count_nonzero)


def minimal_cut(system: LinearSystem, deadline: Deadline) -> tuple[Array, bool] | None:
    """Multipliers (k,) that refute as few rows as possible of a network, and whether each was seen to be needed.

    None where the rows are no network, or no contradictory one.
    """
    network = Network.of(system)
    if network is None:
        return None
    network.settle(deadline)
    for side in (network, network.reversed()):
        cut = side.cut()
        if cut is not None:
            kept, decided = side.shrink(cut, deadline)
            return np.where(kept, side.factor, 0.0), decided
    return None


def _network_rows(system: LinearSystem) -> Array:
    """Rows no more than two of which have a variable in common: all of them, or the shortest ones that go together."""
    stated = np.isfinite(system.row_lower) | np.isfinite(system.row_upper)
    matrix = system.matrix
    lengths = np.diff(matrix.indptr)
    rows = np.flatnonzero(stated & (lengths > 0))
    part = matrix if len(rows) == system.num_rows else matrix[rows]
    if np.bincount(part.indices, minlength=1).max() <= 2:
        return rows
    if len(rows) > _MOST_ROWS:
        return rows[:0]
    counts, chosen = np.zeros(matrix.shape[1], dtype=np.int8), []
    for row in rows[np.argsort(lengths[rows], kind="stable")].tolist():
        support = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]
        if counts[support].max() < 2:
            counts[support] += 1
            chosen.append(row)
    return np.sort(np.array(chosen, dtype=np.int64))


def _factors(one: Array, a: Array, other: Array, c: Array, count: int, arcs: int) -> Array | None:
    """(count,) r with r_i a + r_k c = 0 for every pair of rows, 1 at one row of each piece; None: there are none."""
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    graph = sp.csr_matrix((np.ones(len(one)), (one, other)), shape=(count, count))
    _, piece = connected_components(graph, directed=False)
    roots = np.unique(piece, return_index=True)[1]
    starts, stops = np.append(one, np.full(len(roots), count)), np.append(other, roots)
    graph = sp.csr_matrix((np.ones(len(starts)), (starts, stops)), shape=(count + 1, count + 1))
    order, before = breadth_first_order(graph, count, directed=False)
    keys = np.minimum(one, other) * count + np.maximum(one, other)
    keys, place = np.unique(keys, return_index=True)
    child = order[1:]
    parent = before[child]
    inner = parent < count
    found = place[np.searchsorted(keys, np.minimum(child, parent)[inner] * count + np.maximum(child, parent)[inner])]
    ratio = np.ones(len(child))
    onward = one[found] == parent[inner]
    with np.errstate(all="ignore"):
        ratio[inner] = np.where(onward, -a[found] / c[found], -c[found] / a[found])
    factors, depths = [1.0] * (count + 1), [0] * (count + 1)
    for node, near, step in zip(child.tolist(), parent.tolist(), ratio.tolist(), strict=True):
        factors[node], depths[node] = factors[near] * step, depths[near] + 1
    factor = np.array(factors[:count])
    if 2 * max(depths) * arcs > _MOST_VISITS or not (np.isfinite(factor) & (factor != 0)).all():
        return None
    term = factor[one] * a
    return factor if (np.abs(term + factor[other] * c) <= _CANCELS * np.abs(term)).all() else None
