"""The native core's ways through large, dense and unbounded problems: against optimality and other solvers."""

from pathlib import Path

import numpy as np
import pytest
import torch

import linsat
from linsat.objectives import Entropy, Euclidean
from tests.helpers.arithmetic import needs_kernel
from tests.helpers.oracles import System, nearest_point, slack_free_optimum
from tests.helpers.statements import KERNEL, TORCH

F64 = torch.float64

pytestmark = needs_kernel

# More variables than one tile has, with rows that tiles do and do not cut, narrow and wide factors.
LARGE = {
    "two tiles": linsat.constraints.doubly_stochastic(100),
    "panels": linsat.constraints.doubly_stochastic(150),
    "leading rows cut by tiles": linsat.constraints.matching(90, 131),
    "many rows, few others": linsat.constraints.capacity_assignment(700, 16, 50.0),
    "scattered": linsat.constraints.capacity_assignment(40, 300, 1.0, sizes=np.linspace(0.1, 1.0, 40)),
}


def _gradient(cons, scores, objective, solver=KERNEL):
    """x and the gradient of a loss that weighs every variable differently."""
    leaf = scores.clone().requires_grad_()
    x = linsat.project(leaf, cons, objective=objective, solver=solver, on_failure="raise")
    weight = torch.linspace(-1, 1, x.numel(), dtype=F64).reshape(x.shape).sin()
    (x * weight).sum().backward()
    return x.detach(), leaf.grad


def _scores(cons, count, seed=0):
    return torch.randn(count, cons.num_variables, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("objective", [Entropy(0.05), Entropy(0.05, slack="none"), Euclidean()], ids=repr)
def test_large_instances_are_optimal(name, objective):
    """x follows from the duals by the objective, duals have their signs, rows hold: that is optimality."""
    cons = LARGE[name]
    scores = _scores(cons, 1)
    solution = linsat.solve(scores, cons, objective=objective, solver=KERNEL, on_failure="raise")
    u = scores + solution.duals @ cons.matrix.to_dense()
    x = torch.sigmoid(u / objective.tau) if isinstance(objective, Entropy) else u.clamp(0.0, 1.0)
    torch.testing.assert_close(solution.x, x, rtol=0, atol=1e-9)
    assert float(solution.violation.max()) <= 1e-9
    if not objective.entropic_slack:
        slack = cons.matrix @ solution.x[0] - cons.rhs
        below = torch.tensor([sense == "<=" for sense in cons.senses])
        assert bool((solution.duals[0][below] <= 1e-12).all())
        assert bool(((solution.duals[0] * slack)[below].abs() <= 1e-7).all())


@pytest.mark.parametrize("name", LARGE)
def test_same_bits_for_any_number_of_threads_and_in_a_batch(name):
    cons = LARGE[name]
    scores = _scores(cons, 9)
    alone = _gradient(cons, scores[:1], Entropy(0.05))
    found = []
    try:
        for threads in (2, 3):
            torch.set_num_threads(threads)
            found.append(_gradient(cons, scores[:1], Entropy(0.05)))
            batch = linsat.project(scores, cons, tau=0.05, solver=KERNEL)  # one instance a thread
            found.append((batch[:1], alone[1]))
    finally:
        torch.set_num_threads(1)
    for x, gradient in found:
        assert torch.equal(x, alone[0])
        assert torch.equal(gradient, alone[1])


@pytest.mark.parametrize("name", ["two tiles", "leading rows cut by tiles", "many rows, few others"])
@pytest.mark.parametrize("objective", [Entropy(0.1), Euclidean()], ids=repr)
def test_gradients_of_large_instances_are_those_of_the_torch_back_end(name, objective):
    cons = LARGE[name]
    scores = _scores(cons, 1, seed=1)
    x, gradient = _gradient(cons, scores, objective)
    other, other_gradient = _gradient(cons, scores, objective, TORCH)
    torch.testing.assert_close(x, other, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient, other_gradient, rtol=0, atol=1e-6)


# ---------------------------------------------------------------- dense rows


def _dense_system(variables, equalities, inequalities, bound, seed=0):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(equalities + inequalities, variables))
    point = rng.uniform(-0.5, 0.5, variables)
    rhs = matrix @ point
    rhs[equalities:] += np.where(rng.random(inequalities) < 0.5, 0.0, rng.uniform(0, 1, inequalities))
    senses = ["=="] * equalities + ["<="] * inequalities
    return System(matrix, senses, rhs, point, np.full(variables, -bound), np.full(variables, bound))


@pytest.mark.parametrize("bound", [np.inf, 0.6])
@pytest.mark.parametrize(
    ("variables", "equalities", "inequalities"), [(60, 13, 24), (50, 0, 30), (200, 70, 90), (30, 20, 0)]
)
def test_dense_rows_against_clarabel(variables, equalities, inequalities, bound):
    system = _dense_system(variables, equalities, inequalities, bound)
    cons = linsat.Constraints(**system.arguments())
    scores = np.random.default_rng(1).normal(size=variables)
    weights = np.linspace(0.5, 2.0, variables)
    for objective, q in ((Euclidean(), 1.0), (Euclidean(weights=weights), weights)):
        found = linsat.solve(scores, cons, objective=objective, solver=KERNEL, on_failure="raise")
        assert float(found.violation) <= 1e-9
        np.testing.assert_allclose(found.x, nearest_point(system, scores, q), atol=1e-6)


def test_dense_rows_with_entropy_against_clarabel():
    system = _dense_system(40, 6, 20, 1.0)
    cons = linsat.Constraints(**system.arguments())
    scores = np.random.default_rng(2).normal(size=40)
    found = linsat.project(scores, cons, objective=Entropy(0.3, slack="none"), solver=KERNEL, on_failure="raise")
    np.testing.assert_allclose(found, slack_free_optimum(system, scores, 0.3), atol=1e-5)


def test_dependent_equalities_without_a_box_in_closed_form():
    """Rows stated twice: the nearest point and its derivative are those of the rows stated once."""
    rng = np.random.default_rng(3)
    E, f = rng.normal(size=(12, 50)), rng.normal(size=12)
    twice = linsat.Constraints(E=np.vstack([E, E]), f=np.append(f, f), lower=-np.inf, upper=np.inf)
    scores = torch.tensor(rng.normal(size=(5, 50)))
    x, gradient = _gradient(twice, scores, Euclidean())
    onto = np.linalg.pinv(E)
    np.testing.assert_allclose(x, scores.numpy() - (scores.numpy() @ E.T - f) @ onto.T, atol=1e-9)
    weight = np.sin(np.linspace(-1, 1, 250)).reshape(5, 50)
    np.testing.assert_allclose(gradient, weight - weight @ E.T @ onto.T, atol=1e-8)


@pytest.mark.parametrize(("variables", "equalities", "inequalities"), [(120, 40, 50), (60, 0, 150), (40, 30, 20)])
def test_dense_batches_without_a_box(variables, equalities, inequalities):
    """Nearest points against Clarabel; gradients in closed form: dL/dx projected along the rows that bind."""
    system = _dense_system(variables, equalities, inequalities, np.inf)
    cons = linsat.Constraints(**system.arguments())
    scores = _scores(cons, 7, seed=5)
    x, gradient = _gradient(cons, scores, Euclidean())
    weight = np.sin(np.linspace(-1, 1, 7 * variables)).reshape(7, variables)
    judged = 0
    for i in range(7):
        expected = nearest_point(system, scores[i].numpy())
        if expected is not None:
            judged += 1
            np.testing.assert_allclose(x[i], expected, atol=1e-6)
        moved, matrix = x[i].numpy() - scores[i].numpy(), system.matrix
        touched = matrix[np.abs(matrix @ x[i].numpy() - system.rhs) <= 1e-9]  # some of them bind
        multipliers = np.linalg.lstsq(touched.T, moved, rcond=None)[0]
        assert len(touched) <= variables
        bind = touched[np.abs(multipliers) > 1e-9]
        np.testing.assert_allclose(gradient[i], weight[i] - np.linalg.pinv(bind) @ (bind @ weight[i]), atol=1e-8)
    assert judged >= 5


def test_same_bits_of_dense_rows_without_a_box():
    system = _dense_system(120, 50, 60, np.inf)
    cons = linsat.Constraints(**system.arguments())
    scores, weight = _scores(cons, 9, seed=6), torch.linspace(-1, 1, 120, dtype=F64)

    def both_ways(of):
        leaf = of.clone().requires_grad_()
        x = linsat.project(leaf, cons, objective=Euclidean(), solver=KERNEL, on_failure="raise")
        (x @ weight).sum().backward()
        return torch.cat([x.detach(), leaf.grad], dim=-1)

    alone = torch.stack([both_ways(one) for one in scores])
    order = torch.tensor([4, 8, 0, 2, 7, 1, 3, 6, 5])
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(both_ways(scores), alone)
            assert torch.equal(both_ways(scores[order]), alone[order])
            assert torch.equal(both_ways(scores[3]), alone[3])
    finally:
        torch.set_num_threads(1)


def test_dense_soft_rows_without_a_box_against_clarabel():
    """Duals at two bounds, from none and from those of other scores."""
    system = _dense_system(60, 10, 40, np.inf)
    price = np.repeat([np.inf, 0.05], [10, 40])
    cons = linsat.Constraints(**system.arguments()).soften([*range(40)], price=0.05)  # equalities come last
    scores = np.random.default_rng(7).normal(size=(6, 60))
    options = {"objective": Euclidean(), "solver": KERNEL, "on_failure": "raise"}
    cold = linsat.solve(scores, cons, **options)
    warm = linsat.solve(scores, cons, **options, start=np.roll(cold.duals, 1, axis=0))
    size = np.abs(cold.duals[:, :40])
    assert min((size == 0).sum(), (size == 0.05).sum(), ((size > 0) & (size < 0.05)).sum()) >= 10
    for i in range(6):
        expected = nearest_point(system, scores[i], price=price)
        np.testing.assert_allclose(cold.x[i], expected, atol=1e-6)
        np.testing.assert_allclose(warm.x[i], expected, atol=1e-6)


@pytest.mark.parametrize("bound", [np.inf, 0.6])
def test_numbers_of_each_instance_in_a_dense_batch(bound):
    """Right-hand sides and weights of their own: each instance as if it were alone, to the last bit."""
    system = _dense_system(60, 10, 20, bound)
    cons = linsat.Constraints(**system.arguments())
    rng = np.random.default_rng(4)
    points = rng.uniform(-0.5, 0.5, (6, 60))
    sides = points @ system.matrix.T
    weights = torch.tensor(rng.uniform(0.5, 2.0, (6, 60)))
    scores = torch.tensor(rng.normal(size=(6, 60)))
    each = cons.with_rhs(f=sides[:, :10], b=sides[:, 10:] + 0.1)
    for q in (None, weights):
        x, gradient = _gradient(each, scores, Euclidean(weights=q))
        for i in range(6):
            own = cons.with_rhs(f=sides[i, :10], b=sides[i, 10:] + 0.1)
            objective = Euclidean(weights=None if q is None else q[i])
            assert torch.equal(linsat.project(scores[i], own, objective=objective, solver=KERNEL), x[i])
            other = System(system.matrix, system.senses, sides[i] + np.repeat([0.0, 0.1], [10, 20]), points[i])
            other.lower, other.upper = system.lower, system.upper
            expected = nearest_point(other, scores[i].numpy(), 1.0 if q is None else q[i].numpy())
            np.testing.assert_allclose(x[i], expected, atol=1e-6)
        _, other_gradient = _gradient(each, scores, Euclidean(weights=q), TORCH)
        torch.testing.assert_close(gradient, other_gradient, rtol=0, atol=1e-7)


def test_the_documented_size_is_where_the_promise_of_bits_ends():
    """Windows of two variables: every second row leads, the others count. Beyond, torch operations may serve."""

    def windows(rows):
        return linsat.Constraints(A=np.eye(rows, rows + 1) + np.eye(rows, rows + 1, 1), b=0.6)

    scores = torch.randn(3, 513, dtype=F64)
    together = linsat.project(scores, windows(512), solver=KERNEL)  # 256 others
    assert torch.equal(together[1], linsat.project(scores[1], windows(512), solver=KERNEL))
    with pytest.raises(linsat.ConstraintError, match="257 rows share variables with other rows, more than 256"):
        linsat.project(torch.zeros(515), windows(514), solver=KERNEL)
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert "up to 256 rows beside a group of" in page
    assert "which begins at 257 such rows" in page
