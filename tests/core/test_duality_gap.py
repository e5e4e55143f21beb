"""The duality gap of a point and duals: against optimal values from closed forms and from Clarabel."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import linsat
from linsat.arrays.interior.duality_gap import duality_gap
from linsat.arrays.interior.method import minimise
from linsat.arrays.interior.program import Program
from tests.core.test_interior_point import program
from tests.helpers.oracles import nearest_point, open_system, random_system, slack_free_optimum


def value(p: Program, x: np.ndarray) -> float:
    """<c, x> - omega(x), what a projection makes largest."""
    width = np.where(p.entropy > 0, p.upper - p.lower, 1.0)
    share = np.where(p.entropy > 0, (x - np.where(p.entropy > 0, p.lower, 0.0)) / width, 0.5)
    share = np.clip(share, 1e-300, 1 - 1e-16)
    entropy = p.entropy * width * (share * np.log(share) + (1 - share) * np.log1p(-share))
    return float((p.linear * x - p.quadratic * x * x / 2 - entropy).sum())


def size(p: Program, x: np.ndarray) -> float:
    """1 + the sum of the absolute terms of the objective."""
    entropy = np.where(p.entropy > 0, value(p, x) - float((p.linear * x - p.quadratic * x * x / 2).sum()), 0.0)
    return 1.0 + float((np.abs(p.linear * x) + p.quadratic * x * x / 2).sum()) + float(np.max(entropy, initial=0.0))


def one_row(**changes) -> Program:
    """The point of x0 + x1 + x2 = 1 nearest to (1, 2, 3), in the whole space: (-2/3, 1/3, 4/3), at a dual of -5/3."""
    parts = {
        "matrix": sp.csr_array(np.ones((1, 3))),
        "row_lower": np.ones(1),
        "row_upper": np.ones(1),
        "lower": np.full(3, -np.inf),
        "upper": np.full(3, np.inf),
        "linear": np.array([1.0, 2.0, 3.0]),
        "quadratic": np.ones(3),
        "entropy": np.zeros(3),
        "row_entropy": np.zeros(1),
    }
    return Program(**(parts | changes))


class TestByHand:
    def test_the_optimum_has_none(self):
        found = duality_gap(one_row(), np.array([-2 / 3, 1 / 3, 4 / 3]), np.array([-5 / 3]))
        assert found == pytest.approx((0.0, 0.0, 0.0), abs=1e-14)

    def test_another_point_of_the_row_lacks_what_its_value_lacks(self):
        p, x, best = one_row(), np.array([1.0, 0.0, 0.0]), np.array([-2 / 3, 1 / 3, 4 / 3])
        found = duality_gap(p, x, np.array([-5 / 3]))
        assert found.columns * size(p, x) == pytest.approx(value(p, best) - value(p, x), rel=1e-12)

    def test_other_duals_only_make_it_larger(self):
        best = np.array([-2 / 3, 1 / 3, 4 / 3])
        assert duality_gap(one_row(), best, np.array([-5 / 3 + 1e-3])).columns > 1e-7

    def test_a_row_with_room_and_a_dual(self):
        p = one_row(row_lower=np.array([-np.inf]))
        x, dual = np.array([-1.0, 0.0, 1.0]), -2.0  # row 0 <= 1 holds with room 1; u = (-1, 0, 1) asks for x
        found = duality_gap(p, x, np.array([dual]))
        assert found.columns == pytest.approx(0.0, abs=1e-14)
        assert found.room * size(p, x) == pytest.approx(2.0, rel=1e-12)
        assert found.rows == 0.0

    def test_a_row_that_does_not_hold(self):
        p = one_row(row_lower=np.array([-np.inf]))
        x, dual = np.array([0.0, 1.0, 2.0]), -1.0  # row 3 <= 1; u = (0, 1, 2) asks for x
        found = duality_gap(p, x, np.array([dual]))
        assert (found.columns, found.room) == pytest.approx((0.0, 0.0), abs=1e-14)
        assert found.rows * size(p, x) == pytest.approx(2.0, rel=1e-12)

    def test_a_small_share_of_a_wide_box_counts(self):
        """x = 1 in a box of 1e10, at duals that ask for half of it."""
        p = one_row(
            matrix=sp.csr_array(np.zeros((1, 3))), row_lower=np.array([-np.inf]), linear=np.zeros(3),
            lower=np.zeros(3), upper=np.full(3, 1e10), quadratic=np.zeros(3), entropy=np.full(3, 1e-11),
        )  # fmt: skip
        assert duality_gap(p, np.ones(3), np.zeros(1)).columns > 0.1

    def test_a_wide_box_hides_no_gap(self):
        """1.001 in place of 1, in 1000 columns of a box 1e9 wide."""
        wide = Program(
            sp.csr_array(np.zeros((1, 1000))), np.array([-np.inf]), np.ones(1), np.zeros(1000), np.full(1000, 1e9),
            np.ones(1000), np.ones(1000), np.zeros(1000), np.zeros(1),
        )  # fmt: skip
        assert duality_gap(wide, np.full(1000, 1.001), np.zeros(1)).columns == pytest.approx(5e-4 / 1502.501, rel=1e-2)

    def test_columns_that_have_a_price_only(self):
        """What a soft row lacks, at a price of 2: with a dual of 2 nothing is amiss, with 1.5 half of what it lacks."""
        p = one_row(
            linear=np.array([0.0, 0.0, -2.0]), quadratic=np.array([1.0, 1.0, 0.0]), lower=np.array([-np.inf] * 2 + [0])
        )
        x = np.array([2.0, 2.0, 5.0])
        p = one_row(
            matrix=p.matrix,
            row_lower=np.array([9.0]),
            row_upper=np.array([np.inf]),
            linear=p.linear,
            quadratic=p.quadratic,
            lower=p.lower,
        )
        assert duality_gap(p, x, np.array([2.0])).columns == pytest.approx(0.0, abs=1e-14)
        x = np.array([1.5, 1.5, 6.0])
        found = duality_gap(p, x, np.array([1.5]))
        assert found.columns * (1.0 + 1.5**2) == pytest.approx(0.5 * 6.0, rel=1e-12)

    def test_entropy(self):
        p = one_row(
            matrix=sp.csr_array(np.zeros((1, 3))),
            row_lower=np.array([-np.inf]),
            lower=np.zeros(3),
            upper=np.array([1.0, 2.0, 4.0]),
            quadratic=np.zeros(3),
            entropy=0.5 / np.array([1.0, 2.0, 4.0]),
        )
        best = p.upper / (1 + np.exp(-p.upper * p.linear / 0.5))
        x = np.array([0.5, 0.3, 3.0])
        assert abs(duality_gap(p, best, np.zeros(1)).columns) <= 1e-14
        found = duality_gap(p, x, np.zeros(1))
        assert found.columns * size(p, x) == pytest.approx(value(p, best) - value(p, x), rel=1e-12)

    def test_entropic_slack(self):
        """0 <= x0 + x1 + x2 <= 3 with a slack of entropy: at a dual of 0 it asks for the middle."""
        p = one_row(row_lower=np.zeros(1), row_upper=np.full(1, 3.0), row_entropy=np.full(1, 0.2), linear=np.zeros(3))
        assert duality_gap(p, np.full(3, 0.5), np.zeros(1)).columns * size(p, np.full(3, 0.5)) == pytest.approx(0.375)
        p = one_row(
            row_lower=np.zeros(1), row_upper=np.full(1, 3.0), row_entropy=np.full(1, 0.2), linear=np.ones(3) / 3
        )
        x = np.full(3, 1 / 3)
        slack = 0.2 * 3 * (np.log(2) + np.log(1 / 3) / 3 + 2 / 3 * np.log(2 / 3))
        assert duality_gap(p, x, np.zeros(1)).columns * size(p, x) == pytest.approx(slack, rel=1e-12)

    def test_fixed_columns_and_idle_rows_add_nothing(self):
        p = one_row(
            lower=np.full(3, 2.0), upper=np.full(3, 2.0), entropy=np.full(3, 1e299), quadratic=np.zeros(3),
            row_lower=np.array([-np.inf]), row_upper=np.array([np.inf]), row_entropy=np.ones(1),
        )  # fmt: skip
        assert duality_gap(p, np.full(3, 2.0), np.zeros(1)) == pytest.approx((0.0, 0.0, 0.0), abs=1e-14)


@pytest.mark.parametrize("kind", ["signed", "positive", "boundary", "unbounded", "dependent"])
def test_of_a_feasible_point_at_optimal_duals_it_is_what_the_point_lacks(kind):
    judged = 0
    for seed in range(10):
        rng = np.random.default_rng([seed, 41])
        system = open_system(rng, kind)
        scores = rng.normal(size=len(system.point))
        p, best = program(system, scores, quadratic=1.0), nearest_point(system, scores)
        if best is None:
            continue
        judged += 1
        gap = duality_gap(p, system.point, minimise(p).duals)
        lacks = value(p, best) - value(p, system.point)
        assert sum(gap) * size(p, system.point) == pytest.approx(lacks, rel=1e-5, abs=1e-6)
    assert judged >= 8


def test_entropic_programs_too():
    judged = 0
    for seed in range(10):
        rng = np.random.default_rng([seed, 42])
        system = random_system(rng, "signed", largest=30, rows=10)
        scores = rng.normal(size=len(system.point))
        p, best = program(system, scores, tau=0.3), slack_free_optimum(system, scores, 0.3)
        if best is None:
            continue
        judged += 1
        gap = duality_gap(p, system.point, minimise(p).duals)
        lacks = value(p, best) - value(p, system.point)
        assert sum(gap) * size(p, system.point) == pytest.approx(lacks, rel=1e-4, abs=1e-5)
    assert judged >= 5


FAR = {"E": [[1.0, -1.0], [1.0, -1.0]], "lower": -np.inf, "upper": np.inf}


class TestFarAway:
    """x0 - x1 = 0 and x0 - x1 = 1e-3, at scores of 1e9: both hold to 1e-9 of the size of their terms."""

    def test_rows_that_contradict_are_not_accepted(self):
        cons = linsat.Constraints(**FAR, f=[0.0, 1e-3])
        with pytest.raises(linsat.InfeasibleError):
            linsat.project(torch.tensor([1e9, 1e9], dtype=torch.float64), cons, objective=linsat.Euclidean())

    def test_nor_of_one_instance_among_others(self):
        cons = linsat.Constraints(**FAR, f=[[0.0, 1e-3], [1e-3, 1e-3]])
        y = torch.tensor([[1e9, 1e9], [1e9, 1e9]], dtype=torch.float64)
        found = linsat.solve(y, cons, objective=linsat.Euclidean(), on_failure="ignore")
        assert found.status.tolist() == ["infeasible", "converged"]
        assert found.x[1].tolist() == pytest.approx([1e9 + 5e-4, 1e9 - 5e-4], abs=1e-6)

    def test_a_difference_that_terms_of_this_size_cannot_show_is_none(self):
        cons = linsat.Constraints(**FAR, f=[[0.0, 1e-7]])
        y = torch.tensor([[1e9, 1e9]], dtype=torch.float64)
        found = linsat.solve(y, cons, objective=linsat.Euclidean(), on_failure="ignore")
        assert found.status.tolist() == ["converged"]


def test_rounding_of_the_papers_slack_contradicts_nothing():
    """c x >= d and c x <= d in a box 1e8 wide: d + S - S is not d, which must not be taken for a contradiction."""
    rng = np.random.default_rng(5)
    rows, point = rng.uniform(0.5, 2.0, (4, 6)), rng.uniform(0.0, 1.0, (20, 6))
    sides = (rows[None] @ point[..., None])[..., 0]
    cons = linsat.Constraints(A=rows, b=sides, C=rows, d=sides, lower=-1e8, upper=1e8)
    early = linsat.Newton(max_steps=1)  # too early: whether an instance can hold at all is asked of what is not solved
    found = linsat.solve(torch.zeros(20, 6, dtype=torch.float64), cons, solver=early, on_failure="ignore")
    assert "infeasible" not in found.status.tolist()
    assert "step_limit" in found.status.tolist()


@pytest.mark.parametrize("width", [1e7, 1e8, 1e9])
def test_rows_hold_as_given_or_are_reported_where_the_papers_slack_rounds_them(width):
    """In d + S, of ``c x >= d`` in a box this wide, little is left of d."""
    rng = np.random.default_rng(6)
    converged = 0
    for _ in range(15):
        rows, point = rng.uniform(0.5, 2.0, (3, 6)), rng.uniform(0.0, 1.0, 6)
        d, b = rows[:2] @ point - 0.1 * rng.random(2), rows[2:] @ point + 0.1
        cons = linsat.Constraints(C=rows[:2], d=d, A=rows[2:], b=b, lower=0.0, upper=width)
        found = linsat.solve(rng.normal(size=(4, 6)), cons, tau=float(10 ** rng.uniform(-2, 1)), on_failure="ignore")
        for x, status in zip(found.x, found.status, strict=True):
            if status == "converged":
                converged += 1
                size = np.maximum(1.0, rows @ np.abs(x))
                assert (np.concatenate([d - rows[:2] @ x, rows[2:] @ x - b]) <= 1.001e-9 * size).all()
    assert converged >= 30


def tsallis_excess(alpha: float, tau: float, upper: float, u: Decimal, x: float) -> Decimal:
    """psi(u) + omega(x) - u x over 0 <= x <= upper, to sixty digits."""
    a, tau_, at = Decimal(alpha), Decimal(tau), Decimal(x)

    def omega(t: Decimal) -> Decimal:
        return tau_ * ((t**a if t else Decimal(0)) - t) / (a * (a - 1))

    v = max((a - 1) * u / tau_ + 1 / a, Decimal(0))
    asked = min(v ** (1 / (a - 1)) if v else Decimal(0), Decimal(upper))
    return u * asked - omega(asked) + omega(at) - u * at


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 3.0, 8.0])
def test_tsallis(alpha: float) -> None:
    """At and near its bounds, scores and duals large as they come: none that counts is missed, and none is invented."""
    rng, missed, seen = np.random.default_rng(8), 0, 0
    with localcontext() as context:
        context.prec = 60
        for _ in range(600):
            tau, upper = float(10.0 ** rng.uniform(-3, 1)), float(rng.choice([1.0, 10.0, 1e30]))
            y = float(rng.normal() * 10.0 ** rng.uniform(0, 7))
            dual = float(rng.choice([0.0, 1.0, -1.0]) * 10.0 ** rng.uniform(-12, 3)) - y
            x = float(rng.choice([0.0, 10.0 ** rng.uniform(-14, 0), 1.0]))
            p = one_row(
                matrix=sp.csr_array(np.ones((1, 1))), row_lower=np.array([x]), row_upper=np.array([x]),
                lower=np.zeros(1), upper=np.array([upper]), linear=np.array([y]), quadratic=np.array([tau]),
                entropy=np.zeros(1),
            )  # fmt: skip
            size = 1.0 + abs(y * x) + tau * abs(x**alpha - x) / (alpha * (alpha - 1))
            true = float(tsallis_excess(alpha, tau, upper, Decimal(y) + Decimal(dual), x)) / size
            found = duality_gap(p, np.array([x]), np.array([dual]), tsallis=linsat.Tsallis(alpha, tau)).columns
            assert found <= true * (1 + 1e-9) + 1e-12
            seen += true > 1e-8
            missed += true > 1e-8 and found < 0.5 * true
    assert seen > 100
    assert missed == 0


@pytest.mark.parametrize("away", [1e-3, 0.1, 1.0])
def test_tsallis_far_away(away: float) -> None:
    """At x of 1e16 errors of u of 1e-13 are no excuse for every gap there is."""
    alpha, tau, x = 1.1, 0.002, 1e16
    v = (1 + away) ** 0.1 * x**0.1  # asks for (1 + away) x
    u = float(tau * (v - 1 / alpha) / (alpha - 1))
    p = one_row(
        matrix=sp.csr_array(np.ones((1, 1))), row_lower=np.array([x]), row_upper=np.array([x]), lower=np.zeros(1),
        upper=np.array([np.inf]), linear=np.array([1.0]), quadratic=np.array([tau]), entropy=np.zeros(1),
    )  # fmt: skip
    found = duality_gap(p, np.array([x]), np.array([u - 1.0]), tsallis=linsat.Tsallis(alpha, tau)).columns
    with localcontext() as context:
        context.prec = 60
        true = float(tsallis_excess(alpha, tau, 1e30, Decimal(u), x))
    size = 1.0 + x + tau * (x**alpha - x) / (alpha * (alpha - 1))
    assert found == pytest.approx(true / size, rel=0.01, abs=1e-12)
