"""Networks: rows between which variables flow. A maximum flow gives a point of theirs, or a cut that refutes them.

Rows are a network where no variable is in more than two of them and factors r exist that make its coefficients cancel,
r_i a_ij + r_k a_kj = 0: assignment, transport, capacities with sizes, balances of stocks and flows. In units
z_j = r_i a_ij x_j every variable is an arc from node k to node i, or from the ground where it is in one row only; and
the value of row i, times r_i, is an arc from node i to the ground:

    what arrives at a node = what leaves it,      every arc within its bounds

From any point within the bounds, what has piled up at some nodes is sent to those that lack it, through the room that
arcs have in either direction. What cannot be sent is stuck at nodes S that no arc with room leaves. The rows of S,
weighted by r, then allow less than the bounds let arrive: Farkas multipliers (Hoffman's circulation theorem), which
`linsat.verdict.certificate` proves in exact arithmetic; so the arithmetic here may round. The maximum flow is scipy's
(Dinic), in whole numbers: amounts are scaled by a power of two and rounded down; what is left goes on a finer scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from linsat.verdict.system import Array, Deadline, LinearSystem

_UNITS = 2.0**29  # into which what is to be sent is divided; scipy counts in 32 bits
_SCALES = 6  # on which it is sent, one finer than the other
_SETTLEMENTS = 3
_ROUNDING = 5e-16  # of sums and differences, relative to their terms
_SPARE = 5e-16  # by which rows are loosened, relative to their ends: sums of many sides agree up to rounding only
_CANCELS = 1e-14  # relative: coefficients that cancel but for rounding
# A flow takes about as many passes over the arcs as the longest of its paths has arcs, and scipy's has no time limit:
# what is long and has many arcs (a stock over 10,000 periods) is left to linear programs, which keep theirs.
_MOST_VISITS = 300_000_000
_MOST_ROWS = 50_000  # among which a network is looked for, one by one
_HANDS = (1, 2, 4, 8)  # paths without a common arc that show that a row is needed


@dataclass
class Network:
    """Nodes and arcs: row i is node i, the last node is the ground. Arcs lead from the smaller node to the larger."""

    factor: Array  # (k,) r
    columns: Array  # (n,) the variables that are arcs
    place: Array  # (n + k,) which arc each of them is, and each row
    unit: Array  # (n,) z / x
    low: Array  # (m,) of the arcs, those between the same two nodes one after another
    high: Array  # (m,)
    flow: Array  # (m,) changed by `send`
    pair: Array  # (m,) which pair of nodes an arc joins
    one: Array  # (p,) of each pair the smaller node
    other: Array  # (p,) and the larger one
    least: float = 1.0  # what counts as room, and the unit in which things were last sent

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
        tail, head = np.full(matrix.shape[1], k), rows[first]
        tail[double] = rows[second]
        tail = tail[columns]
        unit = factor[head] * values[first] * np.where(tail < head, 1.0, -1.0)
        starts, stops = np.minimum(tail, head), np.maximum(tail, head)
        key = np.append(starts, np.arange(k)) * (k + 1) + np.append(stops, np.full(k, k))
        order = np.argsort(key, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        pairs, pair = np.unique(key[order], return_inverse=True)
        ends = np.append(unit * system.lower[columns], factor * system.row_lower)[order]
        others = np.append(unit * system.upper[columns], factor * system.row_upper)[order]
        low, high = np.minimum(ends, others), np.maximum(ends, others)
        flow, own = np.clip(0.0, low, high), place[len(columns) :]
        made = cls(factor, columns, place, unit, low, high, flow, pair, *np.divmod(pairs, k + 1))
        flow[own] = 0.0
        flow[own] = np.clip(made.piled()[:k], low[own], high[own])
        return made

    @property
    def nodes(self) -> int:
        return len(self.factor) + 1

    def piled(self) -> Array:
        """(nodes,) what arrives less what leaves, 0 where that is rounding."""
        flow, size = (np.bincount(self.pair, amounts) for amounts in (self.flow, np.abs(self.flow)))
        arrives, leaves = (np.bincount(end, flow, minlength=self.nodes) for end in (self.other, self.one))
        passes = sum(np.bincount(end, size, minlength=self.nodes) for end in (self.other, self.one))
        piled = np.where(np.abs(arrives - leaves) > _ROUNDING * passes, arrives - leaves, 0.0)
        piled[-1] = -piled[:-1].sum()  # nothing gets lost
        return piled

    def point(self, system: LinearSystem) -> Array:
        """The flow as x, in the box."""
        here = self.place[: len(self.columns)]
        x, flow, ahead = np.zeros(len(system.lower)), self.flow[here], self.unit > 0
        ends = system.lower[self.columns], system.upper[self.columns]
        at_low, at_high = flow == self.low[here], flow == self.high[here]
        x[self.columns] = np.select(
            [np.where(ahead, at_low, at_high), np.where(ahead, at_high, at_low)], ends, flow / self.unit
        )
        return system.clip(x)

    def reversed(self) -> Network:
        """The same rows with every flow reversed: what was lacking has piled up."""
        return replace(self, factor=-self.factor, unit=-self.unit, low=-self.high, high=-self.low, flow=-self.flow)

    # ------------------------------------------------------------------ sending

    def settle(self, deadline: Deadline) -> None:
        """Send what has piled up to where it is lacking, as far as it goes; again, for what rounding leaves of sums."""
        for _ in range(_SETTLEMENTS):
            piled = self.piled()
            before = np.maximum(piled, 0.0)
            after = self.send(before, np.maximum(-piled, 0.0), deadline)
            if not after.sum() < 0.5 * before.sum():
                break

    def loosen(self, system: LinearSystem) -> bool:
        """Let rows be broken by rounding, where that may be enough for all that is stuck."""
        size = np.maximum(1.0, np.minimum(np.abs(system.row_lower), np.abs(system.row_upper)))
        spare, rows = _SPARE * np.abs(self.factor) * size, self.place[len(self.columns) :]
        if not 0.0 < np.maximum(self.piled(), 0.0).sum() <= spare.sum():
            return False
        self.low[rows] -= spare
        self.high[rows] += spare
        return True

    def send(self, supply: Array, demand: Array, deadline: Deadline) -> Array:
        """Send as much as possible from node to node, (nodes,) each; what is left of the supply."""
        for scale in range(_SCALES):
            total = min(supply.sum(), demand.sum())
            if not total > 0.0 or deadline.passed:
                break
            self.least = 2.0 ** math.ceil(math.log2(total / _UNITS))
            if scale and not (demand[self.reached(np.flatnonzero(supply))] >= self.least).any():
                break  # a search is quicker than a flow of nothing
            gone, come = self._send(supply, demand)
            supply, demand = np.maximum(supply - gone, 0.0), np.maximum(demand - come, 0.0)
        return supply

    def _send(self, supply: Array, demand: Array) -> tuple[Array, Array]:
        """One maximum flow in units of what is ``least``: what has gone from each node, and come to it."""
        from scipy.sparse.csgraph import maximum_flow

        there, back = self._spare()
        everyone, source, sink = np.arange(self.nodes), *np.full((2, self.nodes), [[self.nodes], [self.nodes + 1]])
        starts = np.concatenate([self.one, self.other, source, everyone])
        stops = np.concatenate([self.other, self.one, everyone, sink])
        rooms = [np.bincount(self.pair, there), np.bincount(self.pair, back), self._units(supply), self._units(demand)]
        room = np.minimum(np.concatenate(rooms), _UNITS).astype(np.int32)
        used, size = np.flatnonzero(room), self.nodes + 2
        graph = sp.csr_matrix((room[used], (starts[used], stops[used])), shape=(size, size))
        sent = sp.csr_matrix(maximum_flow(graph, self.nodes, self.nodes + 1, method="dinic").flow)
        gone, come = np.zeros((2, self.nodes))
        gone[:] = sent[[self.nodes]].toarray()[0, : self.nodes]
        come[:] = sent[:, [self.nodes + 1]].toarray()[: self.nodes, 0]
        along = np.asarray(sent[self.one, self.other], dtype=np.float64).ravel()[self.pair]
        # Arcs of one pair take their share one after the other.
        spare = np.where(along > 0, there, back)
        before = np.cumsum(spare) - spare
        before -= before[np.searchsorted(self.pair, self.pair)]
        taken = np.clip(np.abs(along) - before, 0.0, spare)
        flow = self.flow + np.sign(along) * taken * self.least
        for end in (self.low, self.high):
            flow = np.where(np.abs(flow - end) <= _ROUNDING * np.abs(flow), end, flow)
        self.flow = np.clip(flow, self.low, self.high)
        return gone * self.least, come * self.least

    # ------------------------------------------------------------------ what is stuck

    def _units(self, amounts: Array) -> Array:
        """Amounts in units of what is least, rounded down, none beyond what is sent at once."""
        return np.floor(np.minimum(amounts / self.least, _UNITS))

    def _spare(self) -> tuple[Array, Array]:
        """(m,) how many units more an arc can carry, and how many less."""
        return self._units(self.high - self.flow), self._units(self.flow - self.low)

    def _arcs(self, units: float = 1.0) -> tuple[Array, Array, Array]:
        """Where pairs of nodes with room for so much start and stop, and their room in units, in both directions."""
        room = np.concatenate([np.bincount(self.pair, spare) for spare in self._spare()])
        here = np.flatnonzero(room >= units)
        return np.append(self.one, self.other)[here], np.append(self.other, self.one)[here], room[here]

    def reached(self, begin: Array, arcs: tuple[Array, Array] | None = None) -> Array:
        """(nodes,) whether arcs with room, or some of them, lead to a node from one of those in ``begin``."""
        from scipy.sparse.csgraph import breadth_first_order

        starts, stops = self._arcs()[:2] if arcs is None else arcs
        starts, stops = np.append(starts, np.full(len(begin), self.nodes)), np.append(stops, begin)
        graph = sp.csr_matrix((np.ones(len(starts)), (starts, stops)), shape=(self.nodes + 1, self.nodes + 1))
        seen = np.zeros(self.nodes + 1, dtype=bool)
        seen[breadth_first_order(graph, self.nodes, directed=True, return_predecessors=False)] = True
        return seen[:-1]

    def cut(self) -> Array | None:
        """(nodes,) where something is stuck and what it reaches; None where nothing is, or the ground is among them."""
        piled = self.piled()
        piled[-1] = 0.0
        if not piled.max() >= self.least:
            return None
        reached = self.reached(np.array([piled.argmax()]))
        return None if reached[-1] else reached

    def shrink(self, stuck: Array, deadline: Deadline) -> tuple[Array, bool]:
        """Rows (k,) that still contradict each other, fewer than those ``stuck``; whether each was seen to be needed.

        A row is needed if, without it, all that is stuck can leave through its node. It can where so many paths that
        share no arc lead there that they carry it all: a few searches answer for all rows. The others are dropped by
        dozens as long as something stays stuck, else one by one.
        """
        kept, needed = stuck, np.zeros_like(stuck)
        supply = np.where(kept, np.maximum(self.piled(), 0.0), 0.0)
        while not deadline.passed:
            kept = kept & self.reached(np.flatnonzero(supply))
            needed = needed | self._needed(supply, kept)
            left = np.flatnonzero(kept & ~needed)
            if not len(left):
                return kept[:-1], True
            at, size = 0, 1
            while at < len(left) and not deadline.passed:
                tried, before = left[at : at + size], self.flow
                sinks = ~kept
                sinks[tried] = True
                rest = self.send(supply, np.where(sinks, supply.sum(), 0.0), deadline)
                if rest.sum() > _ROUNDING * self.nodes * supply.sum():
                    supply, kept, at, size = rest, ~sinks, at + size, 2 * size
                    continue
                self.flow = before
                if size == 1:
                    needed[tried] = True
                    break
                size //= 2
        return kept[:-1], False

    def _needed(self, supply: Array, kept: Array) -> Array:
        """Rows to which so many paths without a common arc lead that they carry all of the supply.

        The arcs are dealt out, those that arrive at one node in turn, so that a path of each hand can be any.
        """
        shown = np.zeros_like(kept)
        for hands in _HANDS:
            share = supply.sum() / self.least / hands * (1 - 1e-12)
            begin = np.repeat(np.arange(self.nodes), np.floor(supply / self.least / share).astype(np.int64))
            if len(begin) < hands:
                continue
            starts, stops, room = self._arcs(share)
            order = np.argsort(stops, kind="stable")
            starts, stops, room = starts[order], stops[order], room[order]
            turn = np.arange(len(stops)) - np.searchsorted(stops, stops) + stops
            reached = kept
            for hand in range(hands):
                mine = (hand - turn) % hands < np.floor(room / share)
                reached = reached & self.reached(begin[[hand]], (starts[mine], stops[mine]))
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
    if network.loosen(part):
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
    for side in sorted((network, network.reversed()), key=lambda side: -side.piled()[:-1].max()):
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
    edge = place[np.searchsorted(keys, np.minimum(child, parent)[inner] * count + np.maximum(child, parent)[inner])]
    ratio = np.ones(len(child))
    onward = one[edge] == parent[inner]
    with np.errstate(all="ignore"):
        ratio[inner] = np.where(onward, -a[edge] / c[edge], -c[edge] / a[edge])
    factors, depths = [1.0] * (count + 1), [0] * (count + 1)
    for node, near, step in zip(child.tolist(), parent.tolist(), ratio.tolist(), strict=True):
        factors[node], depths[node] = factors[near] * step, depths[near] + 1
    factor = np.array(factors[:count])
    if 2 * max(depths) * arcs > _MOST_VISITS or not (np.isfinite(factor) & (factor != 0)).all():
        return None
    term = factor[one] * a
    return factor if (np.abs(term + factor[other] * c) <= _CANCELS * np.abs(term)).all() else None
