"""Verdicts without a linear program: networks against HiGHS, networkx and every cut; bounds that rows imply in turn."""

from __future__ import annotations

import itertools
import time
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp

import linsat
from linsat.verdict import LinearSystem, judge, minimal_conflict, programs
from linsat.verdict.implied_bounds import refuted_by_bounds
from linsat.verdict.networks import Network, minimal_cut, point_or_cuts
from linsat.verdict.system import Deadline
from tests.verdict.test_verdict import assert_true, feasible_by_highs, gap, make

INF = np.inf


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear program is an error."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a linear program was asked for")

    monkeypatch.setattr(programs, "linear_program", refuse)


def random_network(rng: np.random.Generator) -> LinearSystem:
    """Nodes with intervals, arcs with bounds of any kind, also several between the same nodes; units of any size."""
    nodes, arcs = int(rng.integers(2, 7)), int(rng.integers(2, 14))
    matrix = np.zeros((nodes, arcs))
    for j in range(arcs):
        ends = rng.choice(nodes, 2, replace=False)
        matrix[ends[0], j] = 1.0
        if rng.random() < 0.85:  # else from the ground
            matrix[ends[1], j] = -1.0
    whole = rng.random() < 0.5
    point = rng.integers(-3, 4, arcs).astype(float) if whole else rng.normal(size=arcs)
    room = rng.integers(0, 3, (2, arcs)) if whole else rng.exponential(size=(2, arcs)) * (rng.random((2, arcs)) < 0.7)
    lower = np.where(rng.random(arcs) < 0.85, point - room[0], -INF)
    upper = np.where(rng.random(arcs) < 0.85, point + room[1], INF)
    value = matrix @ point
    shift = rng.integers(-2, 3, nodes) if whole else rng.normal(size=nodes)
    value = value + shift * (rng.random(nodes) < 0.4)
    row_lower = np.where(rng.random(nodes) < 0.8, value, -INF)
    row_upper = np.where(rng.random(nodes) < 0.8, value, INF)
    # Powers of two as units: the network is the same to the last bit.
    rows = 2.0 ** rng.integers(-2, 3, nodes) * rng.choice([-1, 1], nodes)
    columns = 2.0 ** rng.integers(-2, 3, arcs) * rng.choice([-1, 1], arcs)
    low, high = row_lower * rows, row_upper * rows
    ends_low, ends_high = lower / columns, upper / columns
    return make(
        rows[:, None] * matrix * columns,
        np.minimum(low, high),
        np.maximum(low, high),
        np.minimum(ends_low, ends_high),
        np.maximum(ends_low, ends_high),
    )


class TestNetworks:
    def test_verdicts_agree_with_highs_and_prove_themselves(self, no_programs: None) -> None:
        rng = np.random.default_rng(0)
        kinds = []
        for _ in range(400):
            system = random_network(rng)
            if not (np.isfinite(system.row_lower) | np.isfinite(system.row_upper)).any():
                continue
            verdict = judge(system)
            assert_true(system, verdict)
            assert verdict.kind == ("feasible" if feasible_by_highs(system) else "infeasible")
            kinds.append(verdict.kind)
        assert min(kinds.count("feasible"), kinds.count("infeasible")) > 80

    def test_a_flow_finds_what_every_cut_allows(self) -> None:
        """Hoffman: a circulation exists iff into no set of nodes more must flow than may flow out of it."""
        rng = np.random.default_rng(1)
        verdicts = []
        for _ in range(150):
            nodes, arcs = 5, int(rng.integers(4, 12))
            tail, head = np.array([rng.choice(nodes, 2, replace=False) for _ in range(arcs)]).T
            lower = rng.integers(-2, 2, arcs).astype(float)
            upper = lower + rng.integers(0, 3, arcs)
            matrix = np.zeros((nodes, arcs))
            matrix[head, np.arange(arcs)] = 1.0
            matrix[tail, np.arange(arcs)] = -1.0
            possible = True
            for size in range(1, nodes):
                for inside in itertools.combinations(range(nodes), size):
                    into = np.isin(head, inside) & ~np.isin(tail, inside)
                    out = np.isin(tail, inside) & ~np.isin(head, inside)
                    possible = possible and lower[into].sum() <= upper[out].sum()
            system = make(matrix, 0.0, 0.0, lower, upper)
            point, cuts = point_or_cuts(system, Deadline())
            assert point is not None
            assert (system.violation(point) == 0.0) == possible == (not cuts)
            verdicts.append(possible)
        assert 10 < sum(verdicts) < 140

    def test_the_largest_flow_is_that_of_networkx_and_one_more_is_refuted(self, no_programs: None) -> None:
        rng = np.random.default_rng(2)
        for _ in range(20):
            nodes = 8
            graph = nx.gnp_random_graph(nodes, 0.4, seed=int(rng.integers(1e6)), directed=True)
            for one, other in graph.edges:
                graph[one][other]["capacity"] = int(rng.integers(1, 9))
            most = nx.maximum_flow_value(graph, 0, nodes - 1) if graph.edges else 0
            arcs = list(graph.edges)
            if not most:
                continue
            matrix = np.zeros((nodes, len(arcs)))
            for j, (one, other) in enumerate(arcs):
                matrix[one, j], matrix[other, j] = -1.0, 1.0
            upper = np.array([graph[one][other]["capacity"] for one, other in arcs], dtype=float)
            for amount, kind in ((most, "feasible"), (most + 1, "infeasible"), (most + 2**-20, "infeasible")):
                balance = np.zeros(nodes)
                balance[0], balance[-1] = -amount, amount
                system = make(matrix, balance, balance, 0.0, upper)
                verdict = judge(system)
                assert verdict.kind == kind
                assert_true(system, verdict)

    def test_minimal_cuts_are_minimal_by_highs(self) -> None:
        rng = np.random.default_rng(3)
        seen = 0
        while seen < 60:
            system = random_network(rng)
            cut = minimal_cut(system, Deadline())
            if cut is None:
                continue
            seen += 1
            multipliers, decided = cut
            rows = np.flatnonzero(multipliers).tolist()
            assert decided
            assert gap(system, rows, multipliers[rows].tolist()) > 0
            assert not feasible_by_highs(system, rows)
            for row in rows:
                assert feasible_by_highs(system, [i for i in rows if i != row])

    def test_rows_that_are_no_network(self) -> None:
        assert Network.of(make([[1, 1, 1], [1, 2, 0], [0, 1, 1]], 0, 1)) is None  # a variable in three rows
        assert Network.of(make([[1, 1], [1, 2]], 0, 1)) is None  # no factors: 1 and 1 cancel, then 1 and 2 do not
        assert Network.of(make([[1, 2], [2, 4]], 0, 1)) is not None
        assert Network.of(make([[3, 3, 0], [0, 5, 5]], 0, 1)) is not None

    def test_a_network_among_other_rows_is_found(self, no_programs: None) -> None:
        """Three workers, two seats each, seven jobs; and a budget in which every variable has its own coefficient."""
        rng = np.random.default_rng(4)
        cells = np.arange(21).reshape(7, 3)
        jobs = np.zeros((7, 21))
        seats = np.zeros((3, 21))
        for i, j in itertools.product(range(7), range(3)):
            jobs[i, cells[i, j]] = seats[j, cells[i, j]] = 1.0
        budget = rng.random((1, 21))
        matrix = np.vstack([budget, seats, jobs])
        system = make(matrix, [-INF] * 4 + [1.0] * 7, [5.0, 2, 2, 2] + [1.0] * 7, 0.0, 1.0)
        assert not feasible_by_highs(system)
        verdict = judge(system)
        assert verdict.kind == "infeasible"
        assert_true(system, verdict)
        assert 0 not in verdict.certificate.rows

    def test_long_networks_are_left_to_programs_with_a_time_limit(self) -> None:
        count = 30_000
        matrix = sp.diags_array([np.ones(count), -np.ones(count - 1)], offsets=[0, 1], shape=(count, count)).tocsr()
        system = LinearSystem(matrix, np.zeros(count), np.zeros(count), np.zeros(count), np.ones(count))
        assert Network.of(system) is None


def router(tokens: int, experts: int, each: float, capacity: np.ndarray) -> linsat.Constraints:
    cells = np.arange(tokens * experts).reshape(tokens, experts)
    ones, width = np.ones(cells.size), cells.size
    needs = sp.csr_array((ones, (np.repeat(np.arange(tokens), experts), cells.ravel())), shape=(tokens, width))
    takes = sp.csr_array((ones, (np.tile(np.arange(experts), tokens), cells.ravel())), shape=(experts, width))
    names = [*(f"capacity[{i}]" for i in range(experts)), *(f"token[{i}]" for i in range(tokens))]
    return linsat.Constraints(A=takes, b=capacity, E=needs, f=np.full(tokens, each), names=names)


def transport(one: np.ndarray, other: np.ndarray, upper: float | np.ndarray = 1.0) -> LinearSystem:
    """Row sums and column sums of a matrix."""
    n, m = len(one), len(other)
    sums = sp.vstack([sp.kron(sp.eye_array(n), np.ones((1, m))), sp.kron(np.ones((1, n)), sp.eye_array(m))])
    sides = np.append(one, other)
    return LinearSystem(sp.csr_array(sums), sides, sides, np.zeros(n * m), np.broadcast_to(upper, n * m).astype(float))


class TestTransport:
    @pytest.mark.parametrize(("n", "m"), [(3, 5), (40, 70), (90, 80)])
    def test_totals_that_differ_by_rounding_are_no_conflict(self, no_programs: None, n: int, m: int) -> None:
        """Shares that were divided by their sum do not add up to the same float; rows of a millionth do not either."""
        rng = np.random.default_rng(n)
        for size in (1.0, 1e6):
            one, other = rng.random(n), rng.random(m)
            other *= one.sum() / other.sum()
            system = transport(size * one, size * other, upper=size)
            verdict = judge(system)
            assert verdict.kind == "feasible"
            assert_true(system, verdict)

    def test_totals_that_differ_by_more_are_one(self, no_programs: None) -> None:
        rng = np.random.default_rng(0)
        one, other = rng.random(40), rng.random(70)
        other *= (one.sum() + 1e-10) / other.sum()
        system = transport(one, other)
        verdict = judge(system)
        assert verdict.kind == "infeasible"
        assert_true(system, verdict)
        assert minimal_conflict(system, verdict.certificate).minimal

    def test_forbidden_cells(self, no_programs: None) -> None:
        """Three rows may use two columns only, which hold less than they need: these five rows and no other."""
        rng = np.random.default_rng(1)
        one, other = np.full(12, 1.0), np.full(10, 1.2)
        allowed = rng.random((12, 10)) < 0.6
        allowed[[2, 5, 7]] = False
        allowed[np.ix_([2, 5, 7], [1, 4])] = True
        system = transport(one, other, upper=allowed.ravel().astype(float))
        assert not feasible_by_highs(system)
        conflict = minimal_conflict(system, judge(system).certificate)
        assert conflict.minimal
        assert conflict.rows == (2, 5, 7, 12 + 1, 12 + 4)


class TestRouters:
    def test_one_seat_too_few(self, no_programs: None) -> None:
        """1,024 needs of two, 2,047 seats: all rows together, and none of them less."""
        capacity = np.full(32, 64.0)
        capacity[5] -= 1
        cons = router(1024, 32, 2.0, capacity)
        with pytest.raises(linsat.InfeasibleError) as caught:
            cons.check()
        error = caught.value
        assert error.minimal
        assert len(error.indices) == 1024 + 32
        assert "1024 rows 'token' need 2048; 32 rows 'capacity' allow 2047." in str(error)
        # In fractions, by hand: tokens with -1 and capacities with +1 cancel everywhere.
        sign = {row: Fraction(m) for row, m in zip(error.indices, error.certificate, strict=True)}
        unit = sign[0]
        assert unit > 0
        assert all(sign[row] == (unit if row < 32 else -unit) for row in error.indices)

    def test_a_conflict_leaves_out_what_it_does_not_need(self, no_programs: None) -> None:
        """Every expert one seat short: 32 seats are missing, and 1,009 of the tokens are enough for a conflict."""
        with pytest.raises(linsat.InfeasibleError) as caught:
            router(1024, 32, 2.0, np.full(32, 63.0)).check()
        error = caught.value
        tokens = sum(name.startswith("token") for name in error.rows)
        assert error.minimal
        assert (tokens, len(error.rows) - tokens) == (63 * 32 // 2 + 1, 32)

    def test_uneven_capacities_that_suffice(self, no_programs: None) -> None:
        rng = np.random.default_rng(5)
        capacity = 64.0 + rng.permutation(np.repeat([-20.0, 20.0], 16))
        cons = router(1024, 32, 2.0, capacity)
        assert cons.check() is cons

    def test_sizes_are_units_of_the_items(self, no_programs: None) -> None:
        sizes = np.random.default_rng(6).uniform(1.0, 3.0, 60)
        enough = linsat.constraints.capacity_assignment(60, 4, sizes.sum() / 4 + 1e-6, sizes=sizes)
        assert enough.check() is enough
        rows = {"capacity": np.full(4, sizes.sum() / 4 - 1e-6)}
        with pytest.raises(linsat.InfeasibleError) as caught:
            enough.with_rhs(rows).check()
        assert caught.value.minimal
        assert len(caught.value.rows) == 64

    def test_projecting_says_it_too(self) -> None:
        """By a millionth of a seat: nothing that solves numerically would see it."""
        capacity = np.full(16, 64.0)
        capacity[3] -= 1e-6
        cons = router(512, 16, 2.0, capacity)
        start = time.process_time()
        with pytest.raises(
            linsat.InfeasibleError, match="512 rows 'token' need 1024; 16 rows 'capacity' allow 1023.999"
        ):
            linsat.project(np.random.default_rng(7).normal(size=512 * 16), cons)
        assert time.process_time() - start < 20


class TestImpliedBounds:
    def test_a_chain_in_one_pass(self, no_programs: None) -> None:
        """x0 >= 0.8, each at least the one before, the last at most 0.2; left and right of it more rows that hold."""
        count = 3000
        steps = sp.diags_array([-np.ones(count), np.ones(count)], offsets=[0, 1], shape=(count - 1, count)).tocsr()
        lower, upper = np.zeros(count), np.ones(count)
        lower[1000], upper[2000] = 0.8, 0.2
        system = LinearSystem(steps, np.zeros(count - 1), np.full(count - 1, INF), lower, upper)
        multipliers = refuted_by_bounds(system, Deadline())
        rows = np.flatnonzero(multipliers)
        assert rows.tolist() == list(range(1000, 2000))
        assert gap(system.take(rows), range(1000), multipliers[rows].tolist()) == pytest.approx(0.6)
        upper[2000] = 0.8
        assert refuted_by_bounds(system, Deadline()) is None

    def test_what_is_claimed_is_infeasible_by_highs(self) -> None:
        rng = np.random.default_rng(8)
        claimed = 0
        for _ in range(300):
            k, l = int(rng.integers(2, 9)), int(rng.integers(2, 7))
            matrix = rng.integers(-3, 4, (k, l)) * (rng.random((k, l)) < 0.5)
            lower = np.where(rng.random(l) < 0.7, -rng.integers(0, 4, l).astype(float), -INF)
            upper = np.where(rng.random(l) < 0.7, rng.integers(0, 4, l).astype(float), INF)
            side = rng.integers(-6, 7, k).astype(float)
            low = np.where(rng.random(k) < 0.6, side, -INF)
            system = make(matrix, low, np.where(rng.random(k) < 0.6, side, INF), lower, upper)
            multipliers = refuted_by_bounds(system, Deadline())
            if multipliers is None:
                continue
            claimed += 1
            assert not feasible_by_highs(system)
            verdict = judge(system)
            assert verdict.kind == "infeasible"
            assert_true(system, verdict)
        assert claimed > 60

    def test_a_conflict_found_by_bounds_is_minimal(self) -> None:
        # Row 0 bounds x0, row 1 then x1, row 2 cannot hold; row 3 says the same as row 0 and is not needed.
        system = make(
            [[1, 0, 0], [-1, 1, 0], [0, 1, 1], [2, 0, 0]],
            [-INF, -INF, 5, -INF],
            [1, 1, INF, 2],
            [-INF] * 3,
            [INF, INF, 2],
        )
        conflict = minimal_conflict(system, judge(system).certificate)
        assert conflict.minimal
        assert conflict.rows in ((0, 1, 2), (1, 2, 3))
