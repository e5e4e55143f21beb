"""Soft rows: an exact penalty, against Clarabel, closed forms and finite differences."""

import copy
import pickle

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn

import linsat
from linsat.arrays.presolve import propagate
from tests.helpers.arithmetic import NEWTON_BACKENDS, assert_same_answer
from tests.helpers.oracles import System, entropic_optimum, is_feasible, nearest_point, slack_free_optimum, soft_system
from tests.helpers.statements import Stated

BACKENDS = (*NEWTON_BACKENDS, "interior_point")
KINDS = ("euclidean", "slack-free", "paper")
PAPER, SLACK_FREE, NEAREST = linsat.Entropy(0.3), linsat.Entropy(0.3, slack="none"), linsat.Euclidean()


def soft_constraints(system, price):
    """The system with its rows of finite price soft; `Constraints` takes rows in the order of their senses."""
    order = [i for sense in ("<=", ">=", "==") for i, own in enumerate(system.senses) if own == sense]
    soft = np.flatnonzero(np.isfinite(price[order]))
    return linsat.Constraints(**system.arguments()).soften(soft.tolist(), price=price[order][soft])


def objective_of(kind, tau):
    return {"euclidean": NEAREST, "slack-free": linsat.Entropy(tau, slack="none"), "paper": linsat.Entropy(tau)}[kind]


def optimum_of(kind, system, scores, tau, price):
    """The penalised program in Clarabel."""
    if kind == "euclidean":
        return nearest_point(system, scores, price=price)
    return (slack_free_optimum if kind == "slack-free" else entropic_optimum)(system, scores, tau, price)


def solve(scores, cons, objective, backend=BACKENDS[0]):
    solution = linsat.solve(scores, cons, objective=objective, solver=linsat.Newton(backend=backend))
    assert np.all(solution.converged), (backend, solution)
    assert np.max(solution.violation) <= 1e-8
    return solution


# ---------------------------------------------------------------------- against Clarabel

FEW = pytest.param(range(34), 5, {"largest": 25, "rows": 10}, id="few")
MANY = pytest.param(range(1000), 1, {"largest": 60, "rows": 20}, id="many", marks=pytest.mark.slow)


@pytest.mark.parametrize(("seeds", "every", "size"), [FEW, MANY])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_penalised_program_in_clarabel(kind, seeds, every, size):
    """The kernel on all systems, the other back ends on every so many."""
    judged = 0
    for seed in seeds:
        rng = np.random.default_rng([seed, KINDS.index(kind)])
        system, price = soft_system(rng, contradictory=seed % 2 == 1, **size)
        scores = rng.normal(size=len(system.lower)) * 10 ** rng.uniform(-0.5, 0.5)
        tau = float(rng.choice([1.0, 0.1, 0.03]))
        expected = optimum_of(kind, system, scores, tau, price)
        judged += expected is not None
        cons = soft_constraints(system, price)
        for backend in BACKENDS if seed % every == 0 else BACKENDS[:1]:
            found = solve(scores, cons, objective_of(kind, tau), backend).x
            if expected is not None:
                np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=f"{kind} {seed} {backend}")
    assert judged >= 0.9 * len(seeds)


def transportation():
    """What leaves three plants is at most 6 together; four shops ask for 9."""
    matrix = np.vstack([np.kron(np.eye(3), np.ones(4)), np.kron(np.ones(3), np.eye(4))])
    system = System(matrix, ["<="] * 3 + ["=="] * 4, np.array([1.0, 2, 3, 1, 2, 3, 3]), np.zeros(12))
    system.upper = np.full(12, 3.0)
    return system, np.array([np.inf] * 3 + [4.0, 3, 2, 1])


def roster():
    """Five people at most three days each; 7 days with three people each."""
    matrix = np.vstack([np.kron(np.eye(5), np.ones(7)), np.kron(np.ones(5), np.eye(7))])
    system = System(matrix, ["<="] * 5 + [">="] * 7, np.array([3.0] * 5 + [3] * 7), np.zeros(35))
    return system, np.array([np.inf] * 5 + [2.0] * 7)


def set_cover():
    """Nine elements, each in two of six sets, three of which may be taken in all."""
    rng = np.random.default_rng(5)
    cover = np.zeros((9, 6))
    for row in cover:
        row[rng.choice(6, 2, replace=False)] = 1
    system = System(np.vstack([cover, np.ones((1, 6))]), [">="] * 9 + ["<="], np.array([1.0] * 9 + [2]), np.zeros(6))
    return system, np.array([1.5] * 9 + [np.inf])


@pytest.mark.parametrize("make", [transportation, roster, set_cover])
@pytest.mark.parametrize("kind", KINDS)
def test_structured_sets_that_cannot_hold(kind, make):
    system, price = make()
    assert not is_feasible(system)
    rng = np.random.default_rng(0)
    for everything in (False, True):
        price = np.where(everything & np.isinf(price), 20.0, price)
        scores = rng.normal(size=len(system.lower))
        expected = optimum_of(kind, system, scores, 0.5, price)
        for backend in BACKENDS:
            found = solve(scores, soft_constraints(system, price), objective_of(kind, 0.5), backend)
            np.testing.assert_allclose(found.x, expected, atol=1e-5)
            assert np.max(found.broken) > 0.1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("objective", [SLACK_FREE, NEAREST], ids=["slack-free", "euclidean"])
def test_a_high_price_is_a_hard_row(objective, backend):
    """Just above the multiplier for the nearest point; entropy needs infinite multipliers where a row forces x."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        system, _price = soft_system(rng, contradictory=False, largest=25, rows=8)
        scores = rng.normal(size=len(system.lower))
        cons = linsat.Constraints(**system.arguments())
        hard = linsat.solve(scores, cons, objective=objective, on_failure="raise")
        for factor in (1.01, 1e4, 1e8) if objective is NEAREST else (1e4, 1e8):
            high = factor * max(1.0, float(np.abs(hard.duals).max()))
            soft = solve(scores, cons.soften(price=high), objective, backend)
            np.testing.assert_allclose(soft.x, hard.x, atol=1e-8)
            assert not soft.broken.any()


def test_every_row_soft_is_the_least_costly_compromise():
    """x >= 0.8 and x <= 0.2: the dearer row holds, and at equal prices the scores decide between them."""
    cons = linsat.Constraints(A=[[1.0]], b=0.2, C=[[1.0]], d=0.8)
    scores = torch.tensor([[0.5]], dtype=torch.float64)
    for prices, expected in (([9.0, 5.0], 0.2), ([5.0, 9.0], 0.8), ([7.0, 7.0], 0.5)):
        solution = linsat.solve(scores, cons.soften(price=prices), objective=NEAREST)
        assert solution.x.item() == pytest.approx(expected, abs=1e-12)
        assert solution.broken.sum().item() == pytest.approx(0.6)


def test_prices_are_per_unit_of_the_row_as_written():
    """Clipping: the nearest point to y = 5 under x <= 1 at price p is 5 - p, whatever the row is multiplied by."""
    box = {"lower": -10.0, "upper": 10.0}
    for factor in (1e-3, 1.0, 1e4):
        cons = linsat.Constraints(A=[[factor]], b=[factor], **box).soften(price=1.5 / factor)
        for backend in BACKENDS:
            solution = solve(np.array([5.0]), cons, NEAREST, backend)
            assert solution.x.item() == pytest.approx(3.5, abs=1e-9)
            assert solution.broken.item() == pytest.approx(2.5 * factor)
            assert solution.duals.item() == pytest.approx(-1.5 / factor)


def test_per_instance_prices_and_no_instance_depends_on_its_batch():
    rng = np.random.default_rng(3)
    system, _price = soft_system(rng, contradictory=True, largest=20, rows=8)
    cons = linsat.Constraints(**system.arguments())
    prices = 10 ** rng.uniform(-1, 2, (6, len(cons)))
    scores = rng.normal(size=(6, len(system.lower)))
    for objective in (PAPER, SLACK_FREE, NEAREST):
        together = linsat.project(scores, cons.soften(price=prices), objective=objective)
        for i in range(6):
            alone = linsat.project(scores[i], cons.soften(price=prices[i]), objective=objective)
            assert_same_answer(together[i], alone)
    one_each = linsat.project(scores, cons.soften(price=prices[:, :1]), objective=NEAREST)
    assert_same_answer(one_each[2], linsat.project(scores[2], cons.soften(price=prices[2, 0]), objective=NEAREST))


def test_coefficients_and_prices_per_instance():
    rng = np.random.default_rng(8)
    A, b = rng.uniform(-1, 2, (4, 3, 6)), rng.uniform(-1, 0.5, (4, 3))
    price, scores = 10 ** rng.uniform(-1, 0.5, (4, 2)), rng.normal(size=(4, 6))
    cons = linsat.Constraints(A=A, b=b, C=np.ones((1, 6)), d=1.0).soften([0, 1], price=price)
    found = linsat.project(scores, cons, objective=NEAREST)
    for i in range(4):
        system = System(np.vstack([A[i], np.ones((1, 6))]), ["<="] * 3 + [">="], np.append(b[i], 1.0), np.zeros(6))
        expected = nearest_point(system, scores[i], price=np.append(price[i], [np.inf, np.inf]))
        np.testing.assert_allclose(found[i], expected, atol=1e-6)


# ---------------------------------------------------------------------- gradients


def contradictory_set():
    """Rows that hold, bind below their price and are broken, among hard ones."""
    A = torch.tensor([[1.0, 2, 0.5, 0, 1], [0, 1, 1, 1, 0.3]], dtype=torch.float64)
    C = torch.tensor([[1.0, 1, 0, 0, 1], [0, 0, 1, 2, 0]], dtype=torch.float64)
    E = torch.tensor([[0.5, 1, 1, 1, 1]], dtype=torch.float64)
    numbers = {"b": torch.tensor([0.9, 1.1]), "d": torch.tensor([1.9, 0.6]), "f": torch.tensor([1.9])}
    return linsat.Constraints(A=A, C=C, E=E, **numbers)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("objective", [PAPER, SLACK_FREE, NEAREST], ids=["paper", "slack-free", "euclidean"])
def test_gradients_to_everything(objective, backend):
    cons, rng = contradictory_set(), np.random.default_rng(1)
    scores = torch.tensor(rng.normal(size=(2, 5)), requires_grad=True)
    price = torch.tensor(10 ** rng.uniform(-0.7, 0.5, (2, 3)), requires_grad=True)
    b = torch.tensor([[0.9, 1.1]], dtype=torch.float64, requires_grad=True)
    solver = linsat.Newton(backend=backend, tol=1e-12)

    def run(scores, price, b):
        made = cons.with_rhs(b=b).soften([0, 2, 4], price=price)
        solution = linsat.solve(scores, made, objective=objective, solver=solver)
        return solution.x, solution.duals, solution.broken

    duals, broken = run(scores, price, b)[1:]
    at_price = torch.isclose(duals[:, [0, 2, 4]].abs(), price, rtol=1e-12)
    assert at_price.any()
    assert not at_price.all()
    assert (broken > 0).any()
    assert torch.autograd.gradcheck(run, (scores, price, b), atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("learned", [("A",), ("A", "tau"), ("A", "upper", "tau")], ids="-".join)
def test_gradients_to_coefficients_follow_the_price(learned):
    """Rows are scaled by their coefficients and the box: so is the dual of a row at its price, within the solver."""
    scores = torch.tensor(np.random.default_rng(4).normal(size=(2, 3)))
    numbers = {"A": [[1.0, 2.0, 0.5], [0.7, 0.2, 1.0]], "tau": 0.4, "upper": [1.0, 1.5, 2.0]}
    numbers = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}

    def run(*given):
        now = numbers | dict(zip(learned, given, strict=True))
        cons = linsat.Constraints(A=now["A"], b=[-0.2, 0.9], upper=now["upper"]).soften(0, price=0.3)
        solution = linsat.solve(scores, cons, tau=now["tau"])
        assert torch.allclose(solution.duals[:, 0].detach(), torch.tensor(-0.3, dtype=torch.float64))
        return solution.x, solution.duals[:, 1], solution.duals.sum(-1)

    assert torch.autograd.gradcheck(run, [numbers[name].requires_grad_() for name in learned], atol=1e-6)


def test_no_gradient_where_the_dual_lies_inside():
    price = torch.tensor([50.0, 50.0], dtype=torch.float64, requires_grad=True)
    cons = linsat.Constraints(A=[[1.0, 1.0, 1.0]], b=1.0, C=[[1.0, 0.0, 1.0]], d=0.8)
    y = torch.tensor([1.0, 2.0, 0.3], dtype=torch.float64)
    for objective in (PAPER, SLACK_FREE, NEAREST):
        solution = linsat.solve(y, cons.soften(price=price), objective=objective)
        assert not solution.broken.any()
        (found,) = torch.autograd.grad(solution.x[0], price)
        assert found.tolist() == [0.0, 0.0]


def test_second_derivatives_in_the_price():
    price = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.2, -0.4, 0.9], dtype=torch.float64, requires_grad=True)
    cons = linsat.Constraints(A=[[1.0, 2.0, 1.0]], b=0.2, E=[[1.0, -1.0, 0.5]], f=0.3)

    def run(price, y):
        return linsat.project(y, cons.soften("A", price=price), objective=SLACK_FREE)

    assert torch.autograd.gradgradcheck(run, (price, y), atol=1e-5)


def test_function_transforms_in_the_price():
    cons, y = contradictory_set(), torch.linspace(-1, 1, 5, dtype=torch.float64)
    prices = torch.tensor([[0.4] * 5, [3.0, 0.1, 0.2, 0.3, 2.0]], dtype=torch.float64)

    def run(price):
        return linsat.project(y, cons.soften(price=price), objective=SLACK_FREE)

    jacobians = torch.func.vmap(torch.func.jacrev(run))(prices)
    for price, x, jacobian in zip(prices, torch.func.vmap(run)(prices), jacobians, strict=True):
        assert torch.allclose(x, run(price), atol=1e-12)
        assert torch.allclose(jacobian, torch.autograd.functional.jacobian(run, price), atol=1e-9)


def test_a_large_sparse_set():
    """Left to the interior-point method alone, whose duals must be at the price exactly where a row is broken."""
    rng, k = np.random.default_rng(0), 400
    matrix = np.zeros((k, k + 3))
    for i, row in enumerate(matrix):
        row[i : i + 4] = rng.uniform(0.5, 2, 4)
    senses = ["<="] * 130 + [">="] * 130 + ["=="] * 140
    system = System(matrix, senses, rng.uniform(-1, 9, k), np.zeros(k + 3))
    price, scores = torch.tensor(10 ** rng.uniform(-1, 1, k), requires_grad=True), rng.normal(size=k + 3)
    cons = linsat.Constraints(**system.arguments())
    along, weights = torch.tensor(rng.normal(size=k)) * price.detach(), torch.tensor(rng.normal(size=k + 3))

    def total(price):
        solution = linsat.solve(torch.tensor(scores), cons.soften(price=price), objective=SLACK_FREE)
        return solution, (solution.x * weights).sum()

    solution, value = total(price)
    assert solution.solved_by == "interior_point"
    expected = slack_free_optimum(system, scores, 0.3, price.detach().numpy())
    np.testing.assert_allclose(solution.x.detach(), expected, atol=1e-6)
    slope = (torch.autograd.grad(value, price)[0] * along).sum()
    finite = (total(price.detach() + 1e-6 * along)[1] - total(price.detach() - 1e-6 * along)[1]) / 2e-6
    assert slope.item() == pytest.approx(finite.item(), rel=1e-6)


# ---------------------------------------------------------------------- verdicts, presolve


def test_soft_rows_make_nothing_infeasible_and_hard_ones_are_still_named():
    x = linsat.Variable(4, name="x")
    cons = linsat.subject_to(
        (x.sum() <= 1).named("few"), (x.sum() >= 3).named("many"), (x[0] >= 2).named("beyond the box")
    )
    with pytest.raises(linsat.InfeasibleError):
        cons.check()
    relaxed = cons.soften(["many", "beyond the box"])
    assert relaxed.check() is relaxed
    for objective in (PAPER, SLACK_FREE, NEAREST):
        solution = linsat.solve(torch.zeros(4, dtype=torch.float64), relaxed, objective=objective)
        assert solution.converged
        assert solution.violation <= 1e-9
    with pytest.raises(linsat.InfeasibleError) as caught:
        linsat.project(torch.zeros(4), cons.soften("beyond the box"))
    assert sorted(caught.value.rows) == ["few", "many"]


@pytest.mark.parametrize("backend", NEWTON_BACKENDS)
def test_infeasible_instances_through_hard_rows_only(backend):
    cons = linsat.Constraints(A=np.ones((1, 3)), b=1.0, C=np.ones((1, 3)), d=0.5).soften("A", price=2.0)
    needs = cons.with_rhs(d=[[0.5], [2.0], [9.0]])
    solution = linsat.solve(np.zeros((3, 3)), needs, solver=linsat.Newton(backend=backend), on_failure="ignore")
    assert [str(s) for s in solution.status] == ["converged", "converged", "infeasible"]
    assert solution.broken[1, 0] == pytest.approx(1.0, abs=1e-8)


def test_soft_rows_force_no_variable():
    """x[0] + x[1] <= 0 would force both to 0; soft and cheap it hardly matters."""
    cons = linsat.Constraints(A=[[1.0, 1.0, 0.0]], b=0.0, E=[[0.0, 0.0, 1.0]], f=1.0)
    each = cons.soften("A", price=1e-3).with_rhs(b=torch.zeros(1, 1))  # of each instance: the solver presolves
    stated = Stated.of(each, SLACK_FREE, torch.zeros(1, 3, dtype=torch.float64))
    decided = [propagate(stated.plan.form(stated.numbers), cons._structure.on("cpu")[2])]
    form = stated.plan.form(stated.numbers)
    answers = [stated.solve(linsat.Newton(backend=b)) for b in NEWTON_BACKENDS]
    decided += [stated.plan.unpack(answer.decided, form) for answer in answers]
    for found in decided:
        assert found.free[0].tolist() == [True, True, False]
    x = linsat.project(torch.ones(3, dtype=torch.float64), cons.soften("A", price=1e-3), objective=SLACK_FREE)
    assert x[0] > 0.9
    assert x[2] == 1.0


def test_a_row_that_holds_with_equality_at_every_feasible_point_may_still_be_soft():
    """x0 + x1 <= 1 and >= 1 together; with one of them soft neither is an equality any more."""
    cons = linsat.Constraints(A=[[1.0, 1.0]], b=1.0, C=[[1.0, 1.0]], d=1.0)
    y = np.array([2.0, 1.0])
    for kind in KINDS:
        expected = optimum_of(
            kind, System(np.ones((2, 2)), ["<=", ">="], np.ones(2), y), y, 0.3, np.array([0.5, np.inf])
        )
        found = linsat.project(y, cons.soften(0, price=0.5), objective=objective_of(kind, 0.3))
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_sinkhorn_rejects_soft_rows():
    cons = linsat.constraints.top_k(4, 2).soften()
    for solver in (linsat.Sinkhorn(), linsat.Sinkhorn(gradient="unrolled")):
        with pytest.raises(
            linsat.ConstraintError, match="Sinkhorn has no prices: row 0 is soft. Fix: use linsat.Newton"
        ):
            linsat.project(torch.zeros(4), cons, solver=solver)


# ---------------------------------------------------------------------- what the answer says


def test_the_solution_says_which_rows_were_broken():
    x = linsat.Variable(4, name="x")
    cons = linsat.subject_to((x.sum() <= 1).named("few"), (x[:2] >= 0.9).named("wish"), (x[3] <= 0.5).named("last"))
    soft = cons.soften(["wish", "last"], price=3.0)
    y = torch.zeros(2, 4, dtype=torch.float64)
    y[1] = torch.tensor([0.0, -20.0, -20.0, -20.0])
    solution = linsat.solve(y, soft, objective=NEAREST)
    assert soft.names == ("few", "last", "wish[0]", "wish[1]")
    expected = [[0, 0, 0.4, 0.4], [0, 0, 0, 0.9]]
    np.testing.assert_allclose(solution.broken, expected, atol=1e-9)
    assert (solution.broken[:, :2] == 0).all()
    assert solution.broken[1, 2] == 0
    np.testing.assert_allclose(soft.row_violation(solution.x), expected, atol=1e-9)
    assert solution.violation.max() <= 1e-9
    assert solution.converged.all()
    lines = repr(solution).splitlines()
    assert lines[1:] == ["  wish[1] is broken by 0.9 at most, in 2 of 2 instances",
                         "  wish[0] is broken by 0.4 at most, in 1 of 2 instances"]  # fmt: skip
    one = linsat.solve(y[0].numpy(), soft, objective=NEAREST)
    assert "  wish[0] is broken by 0.4" in repr(one)
    assert isinstance(one.broken, np.ndarray)
    held = linsat.solve(torch.zeros(4), linsat.constraints.top_k(4, 2).soften(), objective=NEAREST)
    assert repr(held).endswith("every soft row holds")
    assert held.x.dtype is torch.float32


def test_broken_rows_of_scores_by_name():
    """Scores by name: broken is the same as for the flat vector, 5 - 1 where the price of 0.1 buys nothing."""
    X, Y = linsat.Variable(2, name="X"), linsat.Variable(3, name="Y")
    soft = linsat.subject_to((X.sum() + Y.sum() <= 1).named("few")).soften(price=0.1)
    for ones in (torch.ones, np.ones):
        solution = linsat.solve({"X": 2 * ones((4, 2)), "Y": 2 * ones((4, 3))}, soft, objective=NEAREST)
        np.testing.assert_allclose(solution.broken, np.full((4, 1), 4.0), rtol=0, atol=1e-6)
        assert isinstance(solution.broken, torch.Tensor if ones is torch.ones else np.ndarray)
        assert repr(solution).endswith("few is broken by 4 at most, in 4 of 4 instances")


def test_the_set_says_which_rows_are_soft():
    cons = linsat.constraints.capacity_assignment(3, 2, 2.0)
    soft = cons.soften("capacity", price=[1.5, 2.0])
    soft = soft.soften("item in one bin", price=torch.tensor([[4.0], [5.0]]))
    lines = repr(soft).splitlines()
    assert lines[0].endswith("5 rows: 2 <=, 3 ==, 5 of them soft, batch (2,))")
    assert lines[1].endswith("<= 2 (soft, price 1.5)")
    assert lines[3].endswith("== 1 (soft, price 4 to 5)")
    assert "soft" not in repr(cons)
    assert soft.price.tolist() == [[1.5, 2.0, 4.0, 4.0, 4.0], [1.5, 2.0, 5.0, 5.0, 5.0]]
    assert cons.price.tolist() == [np.inf] * 5


def test_softening_again_replaces_the_price():
    cons = linsat.Constraints(A=np.eye(3), b=0.5).soften(price=1.0).soften([2, 0], price=[7.0, 5.0])
    assert cons.price.tolist() == [5.0, 1.0, 7.0]
    assert cons.soften("A", price=2.0).price.tolist() == [2.0] * 3


def test_soft_rows_stay_soft_in_derived_sets():
    left = linsat.Constraints(A=[[1.0, 1.0]], b=0.5, E=[[1.0, -1.0]], f=0.0, names=["a", "e"]).soften("a", price=3.0)
    right = linsat.Constraints(A=[[1.0, 0.0]], b=0.2, C=[[0.0, 1.0]], d=0.9, names=["b", "c"]).soften("c", price=4.0)
    joined = left & right
    assert dict(zip(joined.names, joined.price.tolist())) == {"a": 3.0, "b": np.inf, "c": 4.0, "e": np.inf}
    assert left.with_rhs(b=[[0.1], [0.2]]).price.tolist() == left.price.tolist()
    assert (
        left.with_bounds(upper=2.0).price.tolist() == pickle.loads(pickle.dumps(left)).price.tolist() == [3.0, np.inf]
    )
    both = left.with_rhs(b=[[0.1], [0.2], [0.3]]).with_bounds(upper=[[1.0, 1], [2, 2], [3, 3]])
    part = both.soften("a", price=[[1.0], [2.0], [3.0]])._instances(1, 3)
    assert part.price[:, 0].tolist() == [2.0, 3.0]
    assert part.upper[:, 0].tolist() == [2.0, 3.0]
    assert part.rhs[:, 0].tolist() == [0.2, 0.3]


def test_project_each_tells_prices_apart():
    cons = linsat.Constraints(A=[[1.0, 1.0]], b=0.5)
    sets = [cons, cons.soften(price=0.1), cons.soften(price=0.2).with_rhs(b=0.4), cons.soften(price=0.1)]
    scores = [np.array([1.0, 0.3 * i]) for i in range(4)]
    found = linsat.project_each(scores, sets, objective=NEAREST)
    for x, y, own in zip(found, scores, sets, strict=True):
        assert_same_answer(x, linsat.project(y, own, objective=NEAREST))


def test_decoded_points_may_break_soft_rows():
    cons = linsat.Constraints(A=[[1.0, 1.0]], b=0.5)
    point = np.array([0.9, 0.8])
    assert not linsat.decode.rounding(point, cons).feasible
    assert linsat.decode.rounding(point, cons.soften()).feasible


# ---------------------------------------------------------------------- learned prices


def test_the_layer_learns_the_price():
    """sum x <= 1 at price p < 1.5: the nearest point to (2, 2) is 2 - p each, so the target 1.2 asks for p = 0.8."""
    cons = linsat.Constraints(A=[[1.0, 1.0]], b=1.0, upper=5.0, names=["total"])
    log_price = nn.Parameter(torch.zeros((), dtype=torch.float64))
    price = nn.Parameter(torch.tensor([0.1], dtype=torch.float64))
    layer = linsat.LinSAT(cons.soften("total", price=price), objective=NEAREST)
    assert [name for name, _ in layer.named_parameters()] == ["price"]
    assert "price" in layer.state_dict()
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    y = torch.full((2,), 2.0, dtype=torch.float64)
    for _ in range(200):
        optimiser.zero_grad()
        ((layer(y) - 1.2) ** 2).sum().backward()
        optimiser.step()
    assert price.item() == pytest.approx(0.8, abs=1e-3)
    other = {"price": torch.tensor([0.5], dtype=torch.float64)}
    assert torch.func.functional_call(layer, other, (y,)).tolist() == pytest.approx([1.5, 1.5])
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.price.fill_(0.25)
    assert twin(y).tolist() == pytest.approx([1.75, 1.75])
    assert layer(y).tolist() == pytest.approx([1.2, 1.2], abs=1e-2)
    # A price that is a function of a parameter is followed too.
    x = linsat.project(y, cons.soften(price=log_price.exp()), objective=NEAREST)
    assert torch.autograd.grad(x.sum(), log_price)[0].item() == pytest.approx(-2.0)
    price.requires_grad_(False)
    frozen = layer.constraints.with_rhs(b=0.5)
    price.fill_(9.0)
    assert frozen.price.item() == pytest.approx(0.8, abs=1e-3)


def test_a_learned_price_beside_a_constant_one():
    price = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    cons = linsat.Constraints(A=np.eye(2), b=0.2, upper=3.0).soften(0, price=price).soften(1, price=0.25)
    x = linsat.project(torch.ones(2, dtype=torch.float64), cons, objective=NEAREST)
    assert x.tolist() == [0.5, 0.75]
    assert torch.autograd.grad(x.sum(), price)[0].item() == -1.0
    with pytest.raises(linsat.ConstraintError, match="Fix: soften all these rows in one call"):
        cons.soften(1, price=nn.Parameter(torch.ones(1)))
    with pytest.raises(linsat.ConstraintError, match="with_bounds, with_coefficients or soften"):
        cons & cons
    with torch.no_grad():
        price.fill_(-1.0)
    with pytest.raises(linsat.ConstraintError, match="price is -1.0; expected a positive"):
        linsat.project(torch.ones(2), cons)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("price", "message"),
    [
        (0.0, r"price is 0.0; expected a positive, finite price per unit. Fix: for example price=10.0"),
        ([1.0, -2.0], r"price\[1\] is -2.0; expected a positive"),
        (float("inf"), r"price is inf; expected a positive"),
        (float("nan"), r"price is nan; expected a positive"),
        ([1.0, 2.0, 3.0], r"price has shape \(3,\) but 2 rows are softened; expected a number, \(2,\) or \(batch, 2\)"),
        ("high", r"price is 'high'; expected real numbers"),
        (torch.ones(2).to_sparse(), r"price is sparse"),
    ],
)
def test_bad_prices(price, message):
    with pytest.raises(linsat.ConstraintError, match=message):
        linsat.Constraints(A=np.eye(2), b=1.0).soften(price=price)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("staff", r"No row is named 'staff'. Fix: did you mean 'staffed'\?"),
        (3, r"rows asks for row 3 of a set of 3 rows"),
        ([0.5], r"rows holds 0.5; expected positions or names of rows. Fix: rows=\[0, 2\]"),
        (np.array([True, False, True]), r"rows holds (np.)?True_?; expected positions"),
        (["staffed", 0], r"rows asks for 'staffed\[0\]' \(row 0\) twice, as 'staffed' and as 0. Fix: leave one out"),
    ],
)
def test_bad_rows(rows, message):
    cons = linsat.Constraints(A=np.eye(3), b=1.0, names=["staffed[0]", "staffed[1]", "few"])
    with pytest.raises(linsat.ConstraintError, match=message):
        cons.soften(rows)


def test_batches_of_prices_that_do_not_fit():
    cons = linsat.Constraints(A=np.eye(2), b=[[1.0, 1.0], [2.0, 2.0]])
    with pytest.raises(linsat.ConstraintError, match=r"do not fit together: b \(2,\), price \(3,\)"):
        cons.soften(price=np.ones((3, 2)))


def test_rows_by_position_and_name():
    names = ["staffed[0]", "staffed[1, 2]", "staffed", "staffed more", "bin[0]", "bin[12]"]
    cons = linsat.Constraints(A=np.eye(6), b=1.0, names=names)

    def soft(rows):
        return cons.soften(rows).soft.nonzero().squeeze(-1).tolist()

    assert soft("staffed") == [0, 1, 2]
    assert soft("bin") == [4, 5]
    assert soft("staffed more") == [3]
    assert soft(-1) == [5]
    assert soft([1, "bin"]) == [1, 4, 5]
    assert soft(torch.tensor([3, 4])) == [3, 4]
    assert soft(None) == list(range(6))
    assert soft([]) == []
    assert soft("staffed[0]") == [0]


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize("ending", ["json", "npz"])
@pytest.mark.parametrize("price", [0.1, [0.1, 1e-300, 3.0], [[0.1, 2.0, 3.0], [4.0, 5.0, 1e300]]])
def test_files_keep_prices_to_the_last_bit(tmp_path, ending, price):
    cons = linsat.Constraints(A=np.eye(3), b=1.0, C=np.ones((1, 3)), d=0.1).soften("A", price=price)
    cons.save(tmp_path / f"soft.{ending}")
    again = linsat.Constraints.load(tmp_path / f"soft.{ending}")
    assert torch.equal(again.price, cons.price)
    assert again.soft.tolist() == [True] * 3 + [False]
    hard = linsat.Constraints(A=np.eye(3), b=1.0)
    hard.save(tmp_path / f"hard.{ending}")
    assert not linsat.Constraints.load(tmp_path / f"hard.{ending}").soft.any()
    if ending == "json":
        assert "price" not in (tmp_path / "hard.json").read_text()


@pytest.mark.parametrize(
    ("price", "message"),
    [
        ("3", "soft.json: price is the text '3'; expected a number"),
        ([1, 2], r"soft.json: price has dtype float64 and shape \(2,\); expected a number, or one for each of 1 rows"),
        ([-1], r"soft.json: price\[0\] is -1.0; expected a positive"),
        ([[1], [None]], "soft.json: price of row 0 is finite for some instances and missing for others"),
    ],
)
def test_bad_prices_in_files(tmp_path, price, message):
    import json

    file = tmp_path / "soft.json"
    file.write_text(json.dumps({"version": 1, "variables": 2, "A": [[1, 1]], "b": 1, "price": price}))
    with pytest.raises(linsat.ConstraintError, match=message):
        linsat.Constraints.load(file)
    if isinstance(price, list) and len(price) == 1:
        np.savez(tmp_path / "soft.npz", A=[[1.0, 1.0]], b=1.0, price=[np.nan])
        with pytest.raises(linsat.ConstraintError, match=r"price\[0\] is nan"):
            linsat.Constraints.load(tmp_path / "soft.npz")


def test_solver_files_hold_no_soft_rows(tmp_path):
    pytest.importorskip("highspy")
    cons = linsat.Constraints(A=np.eye(2), b=1.0, names=["a", "b"]).soften("b")
    with pytest.raises(linsat.ConstraintError, match=r"row 'b' is soft; LP, MPS and HiGHS models hold hard rows only"):
        cons.save(tmp_path / "soft.mps")


@pytest.mark.parametrize("price", [1e1, 1e4, 1e6])
@pytest.mark.parametrize("seed", [5, 32])
def test_the_value_is_the_best_at_any_price(seed, price):
    """Where duals stay below the price soft rows hold as hard ones do, for which Clarabel has the best value.

    A row that is broken by 1e-12 costs 1e-6 at a price of 1e6: more than a value may be off.
    """
    rng = np.random.default_rng(seed)
    l, k = int(rng.integers(3, 9)), int(rng.integers(1, 6))
    matrix = rng.normal(size=(k, l))
    sides, y = matrix @ rng.random(l), rng.normal(size=(200, l)) * 10 ** rng.uniform(-1, 1.5)
    best, scores, x = np.zeros(len(y)), cp.Parameter(l), cp.Variable(l)
    rows = matrix @ x == sides
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - scores) / 2), [rows, x >= 0, x <= 1])
    for i in range(len(y)):
        scores.value = y[i]
        problem.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
        best[i] = problem.value if np.abs(rows.dual_value).max() < 0.9 * price else np.inf
    assert np.isfinite(best).sum() > (len(y) / 2 if price > 100 else 0)
    cons = linsat.Constraints(E=matrix, f=sides).soften([*range(k)], price=price)
    found = linsat.solve(y, cons, objective=linsat.Euclidean())
    assert found.converged.all()
    value = ((found.x - y) ** 2).sum(-1) / 2 + price * np.abs(found.x @ matrix.T - sides).sum(-1)
    assert (value <= best + 2e-8 * (1 + np.abs(y * found.x).sum(-1))).all()
