"""Bridges: the same rows as cvxpy, scipy and HiGHS see, by the optima they find."""

from __future__ import annotations

import sys
import warnings

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint, milp

import linsat
from tests.helpers.oracles import System, linear_optimum, random_system


def _system(cons: linsat.Constraints) -> System:
    """The rows of a set as plain numpy, for the oracles."""
    count = cons.num_variables
    lower, upper = (np.broadcast_to(bound.numpy(), count) for bound in (cons.lower, cons.upper))
    return System(cons.matrix.to_dense().numpy(), list(cons.senses), cons.rhs.numpy(), np.zeros(count), lower, upper)


def _assert_same_set(cons: linsat.Constraints, best, trials: int = 12) -> None:
    """The same optimum of random linear objectives: for polytopes, the same set."""
    rng = np.random.default_rng(0)
    for _ in range(trials):
        scores = rng.normal(size=cons.num_variables)
        assert linear_optimum(_system(cons), scores) == pytest.approx(best(scores), abs=1e-7)


def test_cvxpy_matrix_variable_row_by_row():
    plan = cp.Variable((2, 3), nonneg=True)
    weights = np.arange(6.0).reshape(2, 3) + 1
    limit = cp.Parameter(value=0.4)
    given = [
        cp.sum(plan, axis=1) <= 1,
        plan <= np.array([[0.9, 0.8, 0.7], [0.6, 0.5, 2.0]]),
        cp.sum(cp.multiply(weights, plan)) >= 2,
        plan[0] @ np.array([1.0, 2.0, 3.0]) == 1,
        plan.T[1] <= limit,
        cp.trace(plan[:, :2]) + 0.25 <= 1,
        cp.reshape(plan, (3, 2), order="F")[2, 0] >= 0.01,
        cp.cumsum(plan, axis=1) <= 1.2,
    ]
    cons = linsat.Constraints.from_cvxpy(given, plan)

    def best(scores):
        return cp.Problem(cp.Maximize(cp.sum(cp.multiply(scores.reshape(2, 3), plan))), given).solve(solver=cp.CLARABEL)

    _assert_same_set(cons, best)
    limit.value = 0.1
    _assert_same_set(linsat.Constraints.from_cvxpy(given, plan), best)


def test_cvxpy_entries_keep_their_place():
    X = cp.Variable((3, 4), bounds=[0, 1])
    cons = linsat.Constraints.from_cvxpy([X[1, 2] + 2 * X[2, 0] <= 0.5], X)
    row = np.zeros((3, 4))
    row[1, 2], row[2, 0] = 1, 2
    assert cons.matrix.to_dense().numpy().reshape(3, 4).tolist() == row.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_cvxpy_random_systems(seed):
    system = random_system(np.random.default_rng(seed), "signed", largest=12, rows=8)
    x = cp.Variable(len(system.point), bounds=[system.lower, system.upper])
    build = {"<=": lambda a, b: a @ x <= b, ">=": lambda a, b: b <= a @ x, "==": lambda a, b: a @ x - b == 0}
    given = [build[s](a, b) for a, s, b in zip(system.matrix, system.senses, system.rhs)]
    cons = linsat.Constraints.from_cvxpy(given, x)
    assert len(cons) == len(system.rhs)
    _assert_same_set(cons, lambda scores: linear_optimum(system, scores), trials=4)


def test_cvxpy_attributes_become_the_box():
    free = cp.Variable(2, name="free")
    unbounded = linsat.Constraints.from_cvxpy([cp.sum(free) == 1], free)
    assert (unbounded.lower.tolist(), unbounded.upper.tolist()) == ([-np.inf] * 2, [np.inf] * 2)
    boxed = linsat.Constraints.from_cvxpy([cp.sum(free) == 1, free[0] >= -3, free[1] <= 0.5], free, box=(-9, 8))
    assert (boxed.lower.tolist(), boxed.upper.tolist()) == ([-3, -9], [8, 0.5])
    assert len(boxed) == 1
    for options, lower, upper in (
        ({"nonneg": True}, [0, 0], [7, 7]),
        ({"nonpos": True}, [-7, -7], [0, 0]),
        ({"bounds": [np.array([1.0, -np.inf]), 3]}, [1, -7], [3, 3]),
    ):
        x = cp.Variable(2, **options)
        cons = linsat.Constraints.from_cvxpy([x[0] + x[1] <= 2], x, box=(-7, 7))
        assert (cons.lower.tolist(), cons.upper.tolist()) == (lower, upper)


def test_cvxpy_integrality_is_relaxed_aloud():
    x = cp.Variable(3, boolean=True, name="pick")
    with pytest.warns(linsat.LinSATWarning, match="'pick' is boolean: relaxed"):
        cons = linsat.Constraints.from_cvxpy([cp.sum(x) <= 2], x)
    assert (cons.lower.tolist(), cons.upper.tolist()) == ([0, 0, 0], [1, 1, 1])
    y = cp.Variable(2, integer=True, bounds=[0, 4], name="count")
    with pytest.warns(linsat.LinSATWarning, match="'count' is integer"):
        assert linsat.Constraints.from_cvxpy([y[0] <= y[1]], y).upper.tolist() == [4, 4]


def test_cvxpy_cone_constraints_on_affine_expressions():
    x = cp.Variable(2, bounds=[0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cvxpy would rather not have NonPos written out; old problems have it
        nonpos = cp.NonPos(x[0] + x[1] - 0.9)
    cons = linsat.Constraints.from_cvxpy([cp.Zero(x[0] - 2 * x[1]), nonpos, cp.NonNeg(x - 0.1)], x)
    plain = [x[0] == 2 * x[1], x[0] + x[1] <= 0.9, x >= 0.1]
    _assert_same_set(cons, lambda s: cp.Problem(cp.Maximize(s @ x), plain).solve(solver=cp.CLARABEL))


def test_cvxpy_anything_else_is_refused_by_name():
    x, other = cp.Variable(2, bounds=[0, 1], name="x"), cp.Variable(2, name="other")
    unset = cp.Parameter(name="unset")
    for constraint, message in (
        (cp.SOC(1.0, x), r"constraints\[1\] is SOC; expected an affine"),
        (cp.norm(x) <= 1, r"constraints\[1\] is not affine"),
        (x + other <= 1, r"constraints\[1\] uses variable 'other' besides 'x'"),
        (unset * x <= 1, r"uses parameter 'unset' without a value"),
        (3.0, r"constraints\[1\] is float"),
    ):
        with pytest.raises(linsat.ConstraintError, match=message):
            linsat.Constraints.from_cvxpy([cp.sum(x) <= 1, constraint], x)
    square = cp.Variable((2, 2), symmetric=True, name="S")
    with pytest.raises(linsat.ConstraintError, match="'S' is declared symmetric"):
        linsat.Constraints.from_cvxpy([cp.trace(square) <= 1], square)
    with pytest.raises(linsat.ConstraintError, match=r"expected a cvxpy\.Variable"):
        linsat.Constraints.from_cvxpy([cp.sum(x) <= 1], 2 * x)


def test_cvxpy_leaves_the_value_of_the_variable_alone():
    x = cp.Variable(2, bounds=[2, 3])
    linsat.Constraints.from_cvxpy([cp.sum(x) <= 5], x)
    assert x.value is None
    x.value = [2.5, 2.5]
    linsat.Constraints.from_cvxpy([cp.sum(x) <= 5], x)
    assert x.value.tolist() == [2.5, 2.5]


@pytest.mark.parametrize("seed", range(4))
def test_scipy_against_milp(seed):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(4, 6))
    middle = matrix @ np.full(6, 0.5)
    given = [
        LinearConstraint(matrix[:2], middle[:2] - [0.3, np.inf], middle[:2] + 0.2),
        LinearConstraint(sp.csr_array(matrix[2:3]), middle[2:3], middle[2:3]),
        LinearConstraint(matrix[3], middle[3] - 0.1),
    ]
    bounds = Bounds(0, rng.uniform(0.6, 1, 6))
    cons = linsat.Constraints.from_scipy(given, bounds)
    assert cons.senses == ("<=", "<=", ">=", ">=", "==")
    _assert_same_set(cons, lambda scores: -milp(-scores, constraints=given, bounds=bounds).fun)
    alone = linsat.Constraints.from_scipy(given[0], box=(0, 1))
    _assert_same_set(alone, lambda scores: -milp(-scores, constraints=given[0], bounds=Bounds(0, 1)).fun, trials=3)


def test_scipy_refusals():
    row = LinearConstraint([[1, 1]], 0, 1)
    for constraints, bounds, message in (
        ([row, NonlinearConstraint(sum, 0, 1)], None, r"constraints\[1\] is NonlinearConstraint"),
        (row, [(0, 1)], "bounds is list"),
        (row, Bounds([0, 0, 0], 1), r"over \[2, 3\] variables"),
        (LinearConstraint([[1, 1]], 2, 1), Bounds(0, 1), "row 'constraint 0' lies between 2 and 1"),
        (LinearConstraint([[1, np.nan]], 0, 1), Bounds(0, 1), "coefficient nan for variable 'x\\[1\\]'"),
        (LinearConstraint([[0, 0]], 1, 2), Bounds(0, 1), "has no coefficient but must lie between 1 and 2"),
        ([], None, "over no variables"),
    ):
        with pytest.raises(linsat.ConstraintError, match=message):
            linsat.Constraints.from_scipy(constraints, bounds)
    with pytest.raises(linsat.ConstraintError, match="box is"):
        linsat.Constraints.from_scipy(row, box=(1, 0))
    with pytest.raises(linsat.ConstraintError, match="leaves variable"):
        linsat.Constraints.from_scipy(row, Bounds([5, 0], [np.inf, 1]), box=(0, 1))


@pytest.mark.parametrize("seed", range(3))
def test_highs_solves_what_we_hand_it(seed):
    highspy = pytest.importorskip("highspy")
    system = random_system(np.random.default_rng(seed), "signed", largest=15, rows=8)
    cons = linsat.Constraints(**system.arguments())
    scores = np.random.default_rng(seed).normal(size=len(system.point))
    highs = cons.to_highs(scores=scores)
    highs.run()
    assert highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    assert highs.getInfo().objective_function_value == pytest.approx(linear_optimum(system, scores), abs=1e-7)
    assert system.violation(np.array(highs.getSolution().col_value)) < 1e-6


def test_highs_finds_what_contradicts():
    highspy = pytest.importorskip("highspy")
    highs = linsat.Constraints(A=[[1, 1]], b=1, C=[[1, 1]], d=1.5, names=["at most", "at least"]).to_highs()
    assert list(highs.getLp().row_names_) == ["at_most", "at_least"]
    highs.run()
    assert highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible


def test_highs_refusals(monkeypatch):
    pytest.importorskip("highspy")
    cons = linsat.constraints.simplex(3)
    with pytest.raises(linsat.ConstraintError, match="expected 3 finite numbers"):
        cons.to_highs(scores=[1.0, 2.0])
    with pytest.raises(linsat.ConstraintError, match=r"batch \(2,\)"):
        cons.with_rhs(f=[[1.0], [2.0]]).to_highs()
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(ImportError, match=r'needs highspy.*pip install "linsat\[highs\]"'):
        cons.to_highs()


def test_a_projection_of_bridged_rows_is_feasible_for_cvxpy():
    X = cp.Variable((3, 3), nonneg=True)
    given = [cp.sum(X, axis=0) == 1, cp.sum(X, axis=1) == 1, X[0, 2] <= 0.2, X <= 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = linsat.project(np.random.default_rng(0).normal(size=9), linsat.Constraints.from_cvxpy(given, X), tau=0.1)
    X.value = x.reshape(3, 3)
    assert max(float(np.max(constraint.violation())) for constraint in given) < 1e-8
