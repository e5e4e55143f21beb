"""The interior-point method: against Clarabel and HiGHS on everything that makes a program awkward."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.optimize import linprog

import linsat
from linsat.arrays.interior.method import minimise
from linsat.arrays.interior.program import Program
from tests.helpers.oracles import System, linear_optimum, nearest_point, open_system, random_system, slack_free_optimum
from tests.helpers.real_systems import Program as Lp

INTERIOR = linsat.Newton(backend="interior_point")


def program(system, scores, *, quadratic=0.0, tau=0.0):
    """The program of a system: weights q, or an entropy at temperature tau."""
    senses, l = np.array(system.senses), len(scores)
    width = system.upper - system.lower
    return Program(
        matrix=sp.csr_array(system.matrix),
        row_lower=np.where(senses == "<=", -np.inf, system.rhs),
        row_upper=np.where(senses == ">=", np.inf, system.rhs),
        lower=system.lower,
        upper=system.upper,
        linear=scores * (quadratic if np.any(quadratic) else 1.0),
        quadratic=np.full(l, quadratic) if np.ndim(quadratic) == 0 else quadratic,
        entropy=np.where(width > 0, tau / np.where(width > 0, width, 1.0), 0.0) if tau else np.zeros(l),
        row_entropy=np.zeros(len(system.rhs)),
    )


def relative_violation(system, x):
    size = np.maximum(1.0, np.abs(system.matrix) @ np.abs(x))
    gap = system.matrix @ x - system.rhs
    senses = np.array(system.senses)
    rows = np.where(senses == "<=", gap, np.where(senses == ">=", -gap, np.abs(gap))) / size
    return max(float(rows.max()), float((system.lower - x).max()), float((x - system.upper).max()), 0.0)


@pytest.mark.parametrize("kind", ["signed", "positive", "boundary", "unbounded", "dependent"])
def test_quadratic_programs_equal_clarabel(kind):
    judged = 0
    for seed in range(15):
        rng = np.random.default_rng([seed, 31])
        system = open_system(rng, kind)
        scores, weights = rng.normal(size=len(system.point)), rng.uniform(0.2, 5.0, len(system.point))
        expected = nearest_point(system, scores, weights)
        found = minimise(program(system, scores, quadratic=weights))
        assert found.error <= 1e-9
        if expected is not None:
            judged += 1
            np.testing.assert_allclose(found.x, expected, atol=1e-6)
    assert judged >= 13


@pytest.mark.parametrize("tau", [1.0, 0.1, 0.01])
def test_entropic_programs_equal_clarabel(tau):
    judged = 0
    for seed in range(10):
        rng = np.random.default_rng([seed, 32])
        system = random_system(rng, "signed", largest=30, rows=10)
        scores = rng.normal(size=len(system.point))
        expected = slack_free_optimum(system, scores, tau)
        found = minimise(program(system, scores, tau=tau))
        assert found.error <= 1e-9
        if expected is not None:
            judged += 1
            np.testing.assert_allclose(found.x, expected, atol=1e-5)
    assert judged >= 5


def test_linear_programs_equal_highs():
    for seed in range(10):
        rng = np.random.default_rng([seed, 33])
        system = random_system(rng, "signed", largest=30, rows=10)
        scores = rng.normal(size=len(system.point))
        found = minimise(program(system, scores))
        assert system.violation(found.x) <= 1e-7
        assert float(scores @ found.x) == pytest.approx(linear_optimum(system, scores), rel=1e-7, abs=1e-7)


def test_free_variables_alone():
    """No bound at all and equalities only: one linear system, with a closed form."""
    rng = np.random.default_rng(1)
    A, y = rng.normal(size=(4, 9)), rng.normal(size=9)
    b = rng.normal(size=4)
    system = System(A, ["=="] * 4, b, np.zeros(9), np.full(9, -np.inf), np.full(9, np.inf))
    found = minimise(program(system, y, quadratic=1.0))
    np.testing.assert_allclose(found.x, y + A.T @ np.linalg.solve(A @ A.T, b - A @ y), atol=1e-8)
    np.testing.assert_allclose(found.duals, np.linalg.solve(A @ A.T, b - A @ y), atol=1e-7)


def test_fixed_columns_and_free_rows():
    rng = np.random.default_rng(2)
    system = open_system(rng, "signed", largest=20, rows=6)
    l = len(system.point)
    fixed = rng.random(l) < 0.3
    system.lower = np.where(fixed, system.point, system.lower)
    system.upper = np.where(fixed, system.point, system.upper)
    scores = rng.normal(size=l)
    given = program(system, scores, quadratic=1.0)
    free_row = sp.csr_array(rng.normal(size=(1, l)))
    wider = Program(
        **{
            **vars(given),
            "matrix": sp.csr_array(sp.vstack([given.matrix, free_row])),
            "row_lower": np.append(given.row_lower, -np.inf),
            "row_upper": np.append(given.row_upper, np.inf),
            "row_entropy": np.append(given.row_entropy, 0.0),
        }
    )
    found = minimise(wider)
    assert found.duals[-1] == 0
    np.testing.assert_array_equal(found.x[fixed], system.point[fixed])
    np.testing.assert_allclose(found.x, nearest_point(system, scores), atol=1e-6)


def test_everything_fixed_and_no_rows():
    ones = np.ones(2)
    nothing = Program(sp.csr_array((0, 2)), *(np.zeros(0),) * 2, ones, ones, *(np.zeros(2),) * 3, np.zeros(0))
    assert minimise(nothing).x.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("width", [1e4, 1e5, 1e6])
@pytest.mark.parametrize("tau", [0.1, 0.01])
def test_wide_boxes(width, tau):
    """In a box this wide the entropy is a whisper: the answer is as good as the linear program's, and holds."""
    rng = np.random.default_rng(int(width))
    system = random_system(rng, "signed", largest=25, rows=8)
    point = system.point * width
    system = System(system.matrix, system.senses, system.rhs * width, point, system.lower, system.upper * width)
    scores = rng.normal(size=len(point))
    cons = linsat.Constraints(**system.arguments())
    solution = linsat.solve(scores, cons, objective=linsat.Entropy(tau, slack="none"))
    assert solution.converged
    assert relative_violation(system, solution.x) <= 1e-8
    best = linear_optimum(system, scores)
    assert best - 1e-6 * width - tau * np.log(2) * len(point) <= float(scores @ solution.x) <= best + 1e-6 * width


def flow_network():
    """Twelve nodes, forty arcs with capacities; what leaves a node, less what enters, is its supply."""
    rng = np.random.default_rng(5)
    arcs = [(i, i + 1) for i in range(11)] + [tuple(rng.choice(12, 2, replace=False)) for _ in range(29)]
    matrix = np.zeros((12, len(arcs)))
    for j, (tail, head) in enumerate(arcs):
        matrix[tail, j], matrix[head, j] = 1.0, -1.0
    point = rng.uniform(0, 5, len(arcs))
    return System(matrix, ["=="] * 12, matrix @ point, point, np.zeros(len(arcs)), np.full(len(arcs), 8.0))


def transportation():
    """Six sources, seven sinks, equal costs: every basis is degenerate and the linear optimum far from unique."""
    supply, demand = np.full(6, 7.0), np.full(7, 6.0)
    rows = np.vstack([np.kron(np.eye(6), np.ones(7)), np.kron(np.ones(6), np.eye(7))])
    return System(rows, ["=="] * 13, np.r_[supply, demand], np.ones(42), np.zeros(42), np.full(42, 7.0))


def set_cover():
    rng = np.random.default_rng(6)
    matrix = (rng.random((25, 18)) < 0.25).astype(float)
    matrix[np.arange(25), rng.integers(0, 18, 25)] = 1.0
    return System(matrix, [">="] * 25, np.ones(25), np.ones(18))


def chain():
    """Stock over twelve periods: stock + bought - sold = next stock, with an infinite warehouse and small orders."""
    periods = 12
    matrix = np.zeros((periods, 3 * periods))  # stock, bought, sold
    for t in range(periods):
        matrix[t, 3 * t : 3 * t + 3] = [-1.0, 1.0, -1.0]
        if t:
            matrix[t, 3 * t - 3] = 1.0
    point = np.tile([1.0, 1.0, 1.0], periods)
    point[0::3] = 0.0
    upper = np.tile([np.inf, 3.0, 2.0], periods)
    return System(matrix, ["=="] * periods, np.zeros(periods), point, np.zeros(3 * periods), upper)


def big_m():
    """x_j <= 1e5 z_j beside a budget: coefficients of two sizes in every row."""
    n = 10
    matrix = np.vstack([np.hstack([np.eye(n), -1e5 * np.eye(n)]), np.r_[np.ones(n), np.zeros(n)][None]])
    senses = ["<="] * n + [">="]
    upper = np.r_[np.full(n, 1e5), np.ones(n)]
    return System(matrix, senses, np.r_[np.zeros(n), 40.0], np.r_[np.full(n, 4.0), np.ones(n)], np.zeros(2 * n), upper)


def nine_decades():
    rng = np.random.default_rng(7)
    matrix = rng.choice([-1.0, 1.0], (8, 15)) * 10.0 ** rng.uniform(-4.5, 4.5, (8, 15))
    point = rng.uniform(0.2, 0.8, 15)
    senses = ["<=", ">=", "==", "<="] * 2
    slack = np.where(np.array(senses) == "<=", 1, np.where(np.array(senses) == ">=", -1, 0)) * np.abs(matrix).sum(1)
    return System(matrix, senses, matrix @ point + 0.01 * slack, point)


STRUCTURED = {f.__name__: f for f in (flow_network, transportation, set_cover, chain, big_m, nine_decades)}


@pytest.mark.parametrize("name", STRUCTURED)
def test_structured_systems_nearest_point(name):
    system = STRUCTURED[name]()
    scores = np.random.default_rng(8).normal(size=len(system.point))
    cons = linsat.Constraints(**system.arguments())
    found = linsat.solve(scores, cons, objective=linsat.Euclidean(), solver=INTERIOR)
    assert found.converged
    assert found.solved_by == "interior_point"
    assert relative_violation(system, found.x) <= 1e-8
    expected = nearest_point(system, scores)
    assert expected is not None
    np.testing.assert_allclose(found.x, expected, atol=1e-6)


@pytest.mark.parametrize("slack", ["none", "entropic"])
@pytest.mark.parametrize("tau", [0.1, 0.001])
@pytest.mark.parametrize("name", STRUCTURED)
def test_structured_systems_entropic(name, tau, slack):
    """Both ways to the same x, and without slack entropy a duality gap that proves it the best."""
    system = STRUCTURED[name]()
    system.upper = np.minimum(system.upper, 50.0 if name != "big_m" else np.inf)
    scores = np.random.default_rng(9).normal(size=len(system.point))
    cons = linsat.Constraints(**system.arguments())
    objective = linsat.Entropy(tau, slack=slack)
    found = linsat.solve(scores, cons, objective=objective, solver=INTERIOR)
    assert found.converged
    assert relative_violation(system, found.x) <= 1e-8
    again = linsat.solve(scores, cons, objective=objective)
    assert again.converged
    width = system.upper - system.lower
    np.testing.assert_allclose(found.x / width, again.x / width, atol=1e-6)
    if slack == "none":
        file = Lp(sp.csr_array(system.matrix), np.array(system.senses), system.rhs, system.lower, system.upper)
        file = file.take(np.argsort([{"<=": 0, ">=": 1, "==": 2}[s] for s in system.senses], kind="stable"))
        gap, odd = file.entropic_gap(scores, found.x, found.duals, tau)
        assert gap <= 1e-8
        assert file.wrong_signs(found.duals) == 0
        assert all(file.forced(j, found.x[j]) for j in odd)


def test_transportation_with_equal_costs_and_scores():
    """All scores equal: by symmetry every entry is one, for every objective."""
    system = transportation()
    cons = linsat.Constraints(**system.arguments())
    for objective in (linsat.Euclidean(), linsat.Entropy(0.1), linsat.Entropy(0.001, slack="none")):
        for solver in (INTERIOR, linsat.Newton()):
            x = linsat.project(np.full(42, 0.3), cons, objective=objective, solver=solver)
            np.testing.assert_allclose(x, 1.0, atol=1e-8)


def test_who_solved_it_is_reported():
    cons = linsat.constraints.simplex(4)
    scores = np.random.default_rng(0).normal(size=(2, 4))
    assert (linsat.solve(scores, cons).solved_by == "newton").all()
    assert (linsat.solve(scores, cons, solver=INTERIOR).solved_by == "interior_point").all()
    assert (linsat.solve(scores, cons, solver=linsat.Sinkhorn()).solved_by == "sinkhorn").all()


def test_duals_are_those_of_newton():
    rng = np.random.default_rng(3)
    system = random_system(rng, "signed", largest=20, rows=5)
    cons = linsat.Constraints(**system.arguments())
    scores = rng.normal(size=(3, len(system.point)))
    for objective in (linsat.Entropy(0.2), linsat.Entropy(0.2, slack="none"), linsat.Euclidean()):
        newton, interior = (linsat.solve(scores, cons, objective=objective, solver=s) for s in (None, INTERIOR))
        np.testing.assert_allclose(newton.x, interior.x, atol=1e-8)
        if not isinstance(objective, linsat.Euclidean):  # at many bounds duals need not be unique
            np.testing.assert_allclose(newton.duals, interior.duals, atol=1e-6)


def test_many_sparse_rows_with_a_small_step_limit():
    """Such problems go straight to the interior point; the limit of Newton's steps does not stop it."""
    rng = np.random.default_rng(0)
    E = sp.diags_array([rng.uniform(0.5, 2.0, 400), rng.normal(size=400)], offsets=[0, 1], shape=(400, 401)).tocsr()
    cons = linsat.Constraints(E=E, f=E @ (100 * rng.random(401)), lower=0.0, upper=np.inf)
    solver = linsat.Newton(max_steps=50, backend="arrays")
    solution = linsat.solve(rng.normal(size=401), cons, objective=linsat.Euclidean(), solver=solver)
    assert solution.converged
    assert solution.violation <= 1e-8
    assert solution.solved_by == "interior_point"


def sparse_system(seed):
    """300 rows of four coefficients over 450 variables without upper bounds: beyond a dense factorisation."""
    rng = np.random.default_rng([seed, 41])
    matrix = np.zeros((300, 450))
    for row in matrix:
        row[rng.choice(450, 4, replace=False)] = rng.normal(size=4)
    point, senses = rng.random(450), list(rng.choice(["<=", ">=", "=="], 300))
    sign = np.array([{"<=": 1.0, ">=": -1.0, "==": 0.0}[s] for s in senses])
    rhs = matrix @ point + sign * rng.exponential(0.05, 300)
    return System(matrix, senses, rhs, point, np.zeros(450), np.full(450, np.inf)), rng.normal(size=450)


def test_sparse_sets_are_as_exact_as_small_ones():
    """The error in x is the root of the gap, so a gap of 1e-9 alone would be five digits."""
    for seed in range(4):
        system, scores = sparse_system(seed)
        cons = linsat.Constraints(**system.arguments())
        solver = linsat.Newton(backend="arrays")
        solution = linsat.solve(scores, cons, objective=linsat.Euclidean(), solver=solver)
        assert solution.solved_by == "interior_point"
        np.testing.assert_allclose(solution.x, nearest_point(system, scores), atol=1e-7)
        again = linsat.project(solution.x, cons, objective=linsat.Euclidean(), solver=solver)
        np.testing.assert_allclose(again, solution.x, atol=1e-10)


def test_gradient_of_a_sparse_set():
    system, scores = sparse_system(0)
    cons = linsat.Constraints(**system.arguments())
    rng = np.random.default_rng(2)
    way, onto = rng.normal(size=(2, 450))
    y = torch.from_numpy(scores).requires_grad_(True)
    x = linsat.project(y, cons, objective=linsat.Euclidean())
    (grad,) = torch.autograd.grad((x * torch.from_numpy(onto)).sum(), y)
    h = 1e-5
    ends = [onto @ linsat.project(scores + t * way, cons, objective=linsat.Euclidean()) for t in (h, -h)]
    assert float(grad @ torch.from_numpy(way)) == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-4)


def test_infeasible_programs_do_not_pass_for_solved():
    rng = np.random.default_rng(4)
    matrix = rng.normal(size=(4, 6))
    rows = np.vstack([matrix, matrix.sum(0)])
    rhs = np.r_[matrix @ np.full(6, 0.5), (matrix.sum(0) @ np.full(6, 0.5)) + 1.0]
    assert linprog(np.zeros(6), A_eq=rows, b_eq=rhs, bounds=(0, 1)).status == 2
    system = System(rows, ["=="] * 5, rhs, np.zeros(6))
    assert minimise(program(system, np.zeros(6), quadratic=1.0)).error > 1e-3


def test_an_answer_has_the_same_bits_in_any_batch():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(12, 40, dtype=torch.float64, generator=generator)
    inside = torch.rand(6, 40, dtype=torch.float64, generator=generator)
    scores, f = 30 * torch.randn(6, 40, dtype=torch.float64, generator=generator), inside @ A.T
    solver, nearest = linsat.Newton(backend="interior_point"), linsat.Euclidean()

    def solved(which: slice) -> torch.Tensor:
        cons = linsat.Constraints(E=A, f=f[which], upper=torch.inf)
        return linsat.project(scores[which], cons, objective=nearest, solver=solver)

    together = solved(slice(None))
    assert all(torch.equal(together[i], solved(slice(i, i + 1))[0]) for i in range(6))


class TestRowsOfFixedVariables:
    """0.1 x0 + 0.2 x1 = 0.3 at x = (1, 1), where 0.1 + 0.2 is not 0.3; and x2 + x3 = 1 beside it."""

    @staticmethod
    def asked(side: float) -> Program:
        return Program(
            matrix=sp.csr_array(np.array([[0.1, 0.2, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])),
            row_lower=np.array([side, 1.0]),
            row_upper=np.array([side, 1.0]),
            lower=np.array([1.0, 1.0, 0.0, 0.0]),
            upper=np.array([1.0, 1.0, 1.0, 1.0]),
            linear=np.array([0.0, 0.0, 0.5, 0.0]),
            quadratic=np.ones(4),
            entropy=np.zeros(4),
            row_entropy=np.zeros(2),
        )

    def test_rounding_is_no_contradiction(self):
        found = minimise(self.asked(0.3))
        assert found.error <= 1e-12
        np.testing.assert_allclose(found.x, [1.0, 1.0, 0.75, 0.25], atol=1e-9)

    def test_but_what_does_not_hold_is_said(self):
        assert minimise(self.asked(0.4)).infeasibility == pytest.approx(0.1)

    def test_also_where_nothing_else_is_left(self):
        whole = self.asked(0.4)
        alone = replace(whole, upper=np.array([1.0, 1.0, 0.0, 0.0]), row_lower=np.array([0.4, 0.0]))
        assert minimise(alone).infeasibility == pytest.approx(0.1)


@pytest.mark.parametrize("seed", [27, 96, 117, 147, 315])
def test_kl_in_wide_boxes_where_a_column_comes_too_close_to_its_bound(seed):
    """Such a column must come back to where its multiplier asks it to be; a corrector that is no use there sends it
    away again. Judged by the gap as the tests write it."""
    rng = np.random.default_rng(seed)
    k, l = 30, 60
    matrix = rng.choice([-1.0, 1.0, 1.0, 0.3, -7.0, 40.0], (k, l)) * (rng.random((k, l)) < 0.06)
    width = 10.0 ** rng.integers(4, 7)
    point = width * (rng.random(l) ** 4 * (rng.random(l) < 0.4) + 1e-9)
    tau, side = 10.0 ** rng.uniform(-2, 0), matrix @ point
    equal, scores = rng.random(k) < 0.5, rng.normal(size=l)
    rows = Lp(sp.csr_array(matrix), np.where(equal, "==", "<="), side, np.zeros(l), np.full(l, width))
    found = minimise(
        Program.of(
            *(matrix, np.where(equal, side, -np.inf), side, 0.0, width, scores - tau * np.log(width)),
            entropy=tau,
            prior=width,
        )
    )
    gap, forced = rows.kl_gap(scores, found.x, found.duals, tau)
    assert rows.violation(found.x) <= 1e-9
    assert gap <= 5e-9
    assert not len(forced)
