"""Verdicts on rows in a box that may be infinite: checked by HiGHS, by hand, and by fractions recomputed here."""

from __future__ import annotations

import gzip
import os
import time
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import linsat
from linsat.constraints.numbers import values_on
from linsat.files import read_model
from linsat.verdict import LinearSystem, judge, minimal_conflict

INF = np.inf


def make(matrix, row_lower, row_upper, lower=-INF, upper=INF) -> LinearSystem:
    dense = np.atleast_2d(np.array(matrix, dtype=float))
    k, l = dense.shape
    ends = (np.broadcast_to(np.array(end, dtype=float), n).copy() for end, n in ((row_lower, k), (row_upper, k)))
    box = (np.broadcast_to(np.array(end, dtype=float), l).copy() for end in (lower, upper))
    return LinearSystem(sp.csr_array(dense), *ends, *box)


def feasible_by_highs(system: LinearSystem, rows=None) -> bool:
    """HiGHS with presolve; no row means any point."""
    rows = range(system.num_rows) if rows is None else rows
    matrix, ends = [], []
    for i in rows:
        a = system.matrix[[i]].toarray()[0]
        for sign, end in ((1.0, system.row_upper[i]), (-1.0, -system.row_lower[i])):
            if np.isfinite(end):
                matrix.append(sign * a)
                ends.append(end)
    if not ends:
        return True
    bounds = list(zip(system.lower, system.upper, strict=True))
    found = linprog(np.zeros(len(bounds)), A_ub=np.array(matrix), b_ub=ends, bounds=bounds, method="highs")
    assert found.status in (0, 2)
    return found.status == 0


def gap(system: LinearSystem, rows, multipliers) -> Fraction | None:
    """Smallest v x over the box less c, with v x <= c the weighted rows; None where there is no smallest."""
    v, c = [Fraction(0)] * len(system.lower), Fraction(0)
    for i, weight in zip(rows, multipliers, strict=True):
        end = system.row_upper[i] if weight > 0 else system.row_lower[i]
        if not np.isfinite(end):
            return None
        c += Fraction(weight) * Fraction(float(end))
        a = system.matrix[[i]].toarray()[0].tolist()
        v = [total + Fraction(weight) * Fraction(value) for total, value in zip(v, a, strict=True)]
    least = Fraction(0)
    for value, low, high in zip(v, system.lower.tolist(), system.upper.tolist(), strict=True):
        bound = low if value > 0 else high
        if value and not np.isfinite(bound):
            return None
        least += value * Fraction(bound) if value else 0
    return least - c


def assert_true(system: LinearSystem, verdict) -> None:
    """What a verdict claims, checked from outside."""
    if verdict.kind == "feasible":
        x = verdict.point
        assert ((system.lower <= x) & (x <= system.upper)).all()
        activity = system.matrix @ x
        size = np.maximum(1, abs(system.matrix) @ abs(x))
        assert (np.maximum(system.row_lower - activity, activity - system.row_upper) <= 1e-9 * size).all()
    if verdict.kind == "infeasible":
        proved = gap(system, verdict.certificate.rows, verdict.certificate.multipliers)
        assert proved is not None
        assert proved > 0


def random_case(rng: np.random.Generator) -> LinearSystem:
    """Random rows; some bounds infinite on one side or both; half the cases are given a contradiction.

    Coefficients are multiples of powers of two, so that a combination of rows is one in floats too.
    """
    k, l = int(rng.integers(1, 9)), int(rng.integers(1, 8))
    matrix = rng.integers(-40, 41, (k, l)) / 16 * (rng.random((k, l)) < 0.7)
    point = rng.integers(-20, 21, l) / 8
    lower = np.where(rng.random(l) < 0.5, point - rng.integers(0, 3, l), -INF)
    upper = np.where(rng.random(l) < 0.5, point + rng.integers(0, 3, l), INF)
    activity = matrix @ point
    row_lower = np.where(rng.random(k) < 0.6, activity - rng.integers(0, 2, k), -INF)
    row_upper = np.where(rng.random(k) < 0.6, activity + rng.integers(0, 2, k), INF)
    if rng.random() < 0.5:
        weights = rng.integers(-8, 9, k) / 4
        matrix = np.vstack([matrix, weights @ matrix])
        side = weights @ activity + rng.choice([-1, 1]) * rng.uniform(0.5, 4)
        row_lower, row_upper = np.append(row_lower, side), np.append(row_upper, side)
    return make(matrix, row_lower, row_upper, lower, upper)


class TestRandomSystems:
    def test_verdicts_agree_with_highs_and_prove_themselves(self):
        rng = np.random.default_rng(0)
        kinds = []
        for _ in range(250):
            system = random_case(rng)
            verdict = judge(system)
            assert_true(system, verdict)
            assert verdict.kind == ("feasible" if feasible_by_highs(system) else "infeasible")
            kinds.append(verdict.kind)
        assert min(kinds.count("feasible"), kinds.count("infeasible")) > 40

    def test_conflicts_are_minimal_by_highs(self):
        rng = np.random.default_rng(1)
        found = 0
        while found < 40:
            system = random_case(rng)
            verdict = judge(system)
            if verdict.certificate is None:
                continue
            found += 1
            conflict = minimal_conflict(system, verdict.certificate)
            assert conflict.minimal
            assert gap(system, conflict.rows, conflict.certificate.multipliers) > 0
            assert not feasible_by_highs(system, conflict.rows)
            for row in conflict.rows:
                assert feasible_by_highs(system, [i for i in conflict.rows if i != row])


class TestInfiniteBounds:
    def test_multipliers_that_no_float_can_be(self):
        # 0.1 x <= 0 and 0.3 x >= 1 with x free: the ratio of the multipliers is that of the floats 0.1 and 0.3.
        system = make([[0.1], [0.3]], [-INF, 1], [0, INF])
        verdict = judge(system)
        assert verdict.kind == "feasible" or gap(system, verdict.certificate.rows, verdict.certificate.multipliers) > 0
        system = make([[0.1, 1], [0.3, 3]], [-INF, 3], [0, INF], lower=[-INF, 0], upper=[INF, 1e-3])
        verdict = judge(system)
        assert verdict.kind == "infeasible"
        assert_true(system, verdict)
        one, other = verdict.certificate.multipliers
        assert Fraction(one) * Fraction(0.1) + Fraction(other) * Fraction(0.3) == 0

    def test_one_sided_bounds_hold_the_right_sign(self):
        system = make([[1, -1]], -INF, -1, lower=[0, -INF], upper=[INF, 0.5])
        verdict = judge(system)
        assert verdict.kind == "infeasible"
        assert_true(system, verdict)
        assert judge(make([[1, -1]], -INF, -1, lower=[0, -INF], upper=[INF, 1])).kind == "feasible"

    def test_columns_that_depend_on_each_other_only_up_to_rounding(self):
        # Three columns that should add up to zero but do not quite, each of a variable >= 0: rounding decides signs.
        rng = np.random.default_rng(3)
        proved = 0
        for _ in range(30):
            columns = rng.normal(size=(4, 2)).round(3) / 3
            matrix = np.column_stack([columns, -columns.sum(1)])
            weights = np.linalg.svd(columns.T)[2][-1]
            side = -weights / np.abs(weights).sum()
            low, high = np.where(weights < 0, side, -INF), np.where(weights > 0, side, INF)
            system = make(matrix, low, high, lower=0)
            verdict = judge(system)
            assert_true(system, verdict)
            proved += verdict.kind == "infeasible"
        assert proved >= 5

    def test_a_row_without_coefficients(self):
        assert judge(make([[0.0, 0.0]], 1, 2)).kind == "infeasible"
        assert judge(make([[0.0, 0.0]], -1, 2)).kind == "feasible"
        assert judge(make(np.zeros((0, 2)), [], [])).kind == "feasible"


class TestNearMisses:
    # At x = 1000 a miss of 1e-12 spread over ten rows is below the rounding of x itself.
    @pytest.mark.parametrize(
        ("bound", "miss"),
        [(b, m) for b in (1.0, 1e3, INF) for m in (1e-3, 1e-8, 1e-10, 1e-12) if (b, m) != (1e3, 1e-12)],
    )
    def test_rows_that_miss_each_other_by_little_are_infeasible(self, miss, bound):
        # A chain x0 = x1 = ... = x9 in rows of two, and a demand on the ends: no tolerance sees the miss, fractions do.
        l = 10
        matrix = np.zeros((l, l))
        for i in range(l - 1):
            matrix[i, i], matrix[i, i + 1] = 1, -1
        matrix[l - 1, 0], matrix[l - 1, l - 1] = 1, -1
        system = make(matrix, np.append(np.zeros(l - 1), miss), np.append(np.zeros(l - 1), INF), -bound, bound)
        verdict = judge(system)
        assert verdict.kind == "infeasible"
        assert_true(system, verdict)
        conflict = minimal_conflict(system, verdict.certificate)
        assert conflict.minimal
        assert conflict.rows == tuple(range(l))
        system.row_lower[l - 1] = 0.0
        assert judge(system).kind == "feasible"

    def test_rounding_of_the_numbers_themselves_is_no_conflict(self):
        # 0.1 + 0.2 is not 0.3 in floats; nobody means that by a contradiction.
        for bound in (1.0, INF):
            verdict = judge(make([[1, 0], [0, 1], [1, 1]], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3], -bound, bound))
            assert verdict.kind == "feasible"


class TestTime:
    def test_no_time_claims_nothing(self):
        verdict = judge(make([[1.0]], 2, 3, 0, 1), seconds=0)
        assert (verdict.kind, verdict.reason) == ("unknown", "time ran out")
        with pytest.warns(linsat.LinSATWarning, match="not known: time ran out"):
            linsat.Constraints(C=[[1.0]], d=2.0).check(seconds=0)

    def test_the_limit_is_kept(self):
        rng = np.random.default_rng(0)
        matrix = sp.random_array((3000, 3000), density=0.01, rng=rng, format="csr")
        end = matrix @ rng.random(3000)
        system = LinearSystem(matrix, end, end + 1e-3, np.zeros(3000), np.ones(3000))
        start = time.monotonic()
        verdict = judge(system, seconds=0.5)
        assert time.monotonic() - start < 4.0
        assert_true(system, verdict)

    def test_a_conflict_cut_short_is_not_called_minimal(self):
        system = make(np.ones((30, 1)), -INF, -np.arange(1.0, 31.0), 0, 1)
        verdict = judge(system)
        conflict = minimal_conflict(system, verdict.certificate, seconds=0)
        assert not conflict.minimal
        assert gap(system, conflict.rows, conflict.certificate.multipliers) > 0


class TestConstraints:
    def test_check_works_within_infinite_bounds(self):
        cons = linsat.Constraints(A=[[1.0, 1]], b=1.0, C=[[1.0, 1]], d=2.0, lower=-INF, upper=INF)
        with pytest.raises(linsat.InfeasibleError) as caught:
            cons.check()
        error = caught.value
        assert (error.indices, error.minimal, error.bounds) == ((0, 1), True, ())
        assert error.certificate[0] == -error.certificate[1] > 0
        assert str(error).splitlines() == [
            "These rows cannot hold together within the bounds:",
            "  A[0]: x[0] + x[1] <= 1",
            "  C[0]: x[0] + x[1] >= 2",
            "Row 'C[0]' needs 2; row 'A[0]' allows 1.",
            "Fix: drop or loosen any one of them, "
            "or let rows be broken at a price: constraints.soften(rows, price=10.0).",
        ]
        free = linsat.Constraints(A=[[1.0, 1]], b=1.0, C=[[1.0, -1]], d=2.0, lower=-INF, upper=INF)
        assert free.check() is free

    def test_compiling_asks_for_finite_bounds(self):
        cons = linsat.Constraints(A=[[1.0, 1]], b=1.0, upper=[1.0, INF])
        with pytest.raises(linsat.ConstraintError, match=r"variable x\[1\] lies between 0 and inf.*Euclidean"):
            cons._require_finite_box()
        with pytest.raises(linsat.ConstraintError, match=r"Fix: .*Euclidean"):
            linsat.LinSAT(cons)

    def test_empty_rows_that_hold_do_nothing(self):
        rows = {"A": [[1.0, 1], [0, 0]], "b": [1.0, 2345], "C": [[0.0, 0]], "d": [-1.0], "E": [[0.0, 0]], "f": [0.0]}
        cons = linsat.Constraints(**rows).check()
        x = linsat.project(np.array([0.3, 0.1]), cons)
        np.testing.assert_allclose(x, linsat.project(np.array([0.3, 0.1]), linsat.Constraints(A=[[1.0, 1]], b=1.0)))

    def test_infinite_bounds_survive_files(self, tmp_path):
        cons = linsat.Constraints(A=[[1.0, 1]], b=1.0, lower=[-INF, 0], upper=[2.0, INF])
        for ending in ("json", "npz"):
            cons.save(tmp_path / f"set.{ending}")
            found = linsat.Constraints.load(tmp_path / f"set.{ending}")
            assert (found.lower.tolist(), found.upper.tolist()) == ([-INF, 0], [2, INF])


LP = """Minimize
 obj: x
Subject To
 need: x + y + z >= 100
 cap: 2 x <= 10
 roof: y <= 20
 idle: x - z <= 90
Bounds
 -inf <= x <= inf
 -inf <= z <= inf
End
"""


class TestSourcesOfBounds:
    def test_rows_and_box_that_became_bounds_are_named(self, tmp_path):
        pytest.importorskip("highspy")
        (tmp_path / "m.lp").write_text(LP)
        cons = linsat.Constraints.load(tmp_path / "m.lp", box=(-50, 50))
        assert cons.names == ("idle", "need")
        with pytest.raises(linsat.InfeasibleError) as caught:
            cons.check()
        error = caught.value
        assert error.rows == ("need", "cap", "roof")
        assert error.indices == (1,)
        assert error.bounds == ("x <= 5 (from row cap)", "y <= 20 (from row roof)", "z <= 50 (from the box)")
        assert "z <= 50 (from the box)" in str(error)
        assert "Fix: drop or loosen any one of them, or let rows be broken" in str(error)

    def test_without_a_box_the_rows_stay_rows(self, tmp_path):
        pytest.importorskip("highspy")
        (tmp_path / "m.lp").write_text(LP)
        cons = linsat.Constraints.load(tmp_path / "m.lp")
        assert set(cons.names) == {"need", "cap", "roof", "idle"}
        assert cons.check() is cons  # z is free

    def test_sources_follow_the_set(self, tmp_path):
        pytest.importorskip("highspy")
        (tmp_path / "m.lp").write_text(LP)
        cons = linsat.Constraints.load(tmp_path / "m.lp", box=(-50, 50))
        with pytest.raises(linsat.InfeasibleError, match="from the box"):
            (cons & linsat.Constraints(A=[[0.0, 0, 1]], b=60.0, lower=-INF, upper=INF)).check()
        with pytest.raises(linsat.InfeasibleError) as caught:
            cons.with_bounds(upper=[5.0, 20, 50]).check()  # now the user's own
        assert caught.value.bounds == ()


@pytest.mark.skipif("LINSAT_DATA" not in os.environ, reason="LINSAT_DATA: a folder with lp/infeasible/*.mps.gz")
class TestPublicSets:
    def folder(self, kind: str) -> list[Path]:
        return sorted(Path(os.environ["LINSAT_DATA"], "lp", kind).glob("*.mps.gz"))

    def model(self, path: Path, tmp_path: Path) -> linsat.Constraints:
        plain = tmp_path / path.name.removesuffix(".gz")
        plain.write_bytes(gzip.decompress(path.read_bytes()))
        return read_model(plain).constraints

    def test_infeasible_sets_are_proved_and_minimal(self, tmp_path):
        for path in self.folder("infeasible"):
            cons = self.model(path, tmp_path)
            start = time.monotonic()
            with pytest.raises(linsat.InfeasibleError) as caught:
                cons.check(seconds=30)
            assert time.monotonic() - start < 20, path.name
            error = caught.value
            assert error.minimal, path.name
            numbers = values_on(cons)
            matrix = sp.csr_array(cons.matrix.to_dense().numpy())
            senses, side = np.array(cons.senses), cons.rhs.numpy()
            low, high = np.where(senses == "<=", -INF, side), np.where(senses == ">=", INF, side)
            lower, upper = (np.broadcast_to(t.numpy(), matrix.shape[1]) for t in (numbers.lower, numbers.upper))
            system = LinearSystem(matrix, low, high, lower, upper)
            assert gap(system, error.indices, error.certificate) > 0, path.name

    def test_feasible_sets_have_a_point(self, tmp_path):
        for path in self.folder("netlib"):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.model(path, tmp_path).check()
