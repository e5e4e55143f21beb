"""The Kullback-Leibler objective: the softmax, Sinkhorn's iteration, optimal transport, boxes, masks, cross entropy."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax

import linsat
from linsat.constraints import doubly_stochastic, matching, simplex
from tests.helpers.oracles import System, kl_optimum, open_system

F64 = torch.float64
BACKENDS = ("auto", "arrays", "interior_point")
NOTHING = np.inf


def sinkhorn(y, *, rows=1.0, columns=1.0, sweeps=100_000):
    """diag(e^u) exp(y) diag(e^v) with these sums, in logarithms until nothing moves; (n, m) float64."""
    u, v = np.zeros((y.shape[0], 1)), np.zeros((1, y.shape[1]))
    rows, columns = np.broadcast_to(rows, y.shape[0]), np.broadcast_to(columns, y.shape[1])
    for _ in range(sweeps):
        before = u
        u = np.log(rows)[:, None] - logsumexp(y + v, axis=1, keepdims=True)
        v = np.log(columns)[None] - logsumexp(y + u, axis=0, keepdims=True)
        if np.abs(u - before).max() < 1e-14:
            break
    return np.exp(y + u + v)


def plan(cost, rows, columns, reg, **options):
    """The plan of entropic optimal transport as a user of linsat writes it."""
    n, m = cost.shape
    x = linsat.Variable(n, m, lower=0.0, upper=np.inf)
    cons = linsat.subject_to(x.sum(axis=1) == rows, x.sum(axis=0) == columns)
    return linsat.project(-np.asarray(cost), cons, objective=linsat.KL(reg), **options)


def solver_of(name, objective=None):
    return linsat.Newton(backend=name)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tau", [0.01, 1.0, 30.0])
def test_softmax_on_the_simplex(tau, backend):
    y = np.random.default_rng(0).normal(0, 3, (7, 6))
    x = linsat.project(y, simplex(6), objective=linsat.KL(tau), solver=solver_of(backend))
    # On arrays x ends at its upper bound of 1 where the scores are cold, and the others are known to tol.
    np.testing.assert_allclose(x, softmax(y / tau, axis=1), atol=1e-9 if backend == "arrays" else 1e-12)


@pytest.mark.parametrize("n", [4, 20])
@pytest.mark.parametrize("scale", [1.0, 3.0, 10.0, 30.0, 100.0])
def test_doubly_stochastic_matrices_of_sinkhorns_form(n, scale):
    """Rows and columns to 1e-9, and log x - y a sum of a number a row and one a column: that is optimal."""
    y = np.random.default_rng(n).normal(0, scale, (64 if n == 4 else 8, n, n))
    cons = doubly_stochastic(n)
    solution = linsat.solve(y, cons, objective=linsat.KL(1.0), on_failure="raise")
    x = np.asarray(solution.x)
    assert max(np.abs(x.sum(1) - 1).max(), np.abs(x.sum(2) - 1).max()) <= 1e-9
    normal = x > 1e-290  # where the logarithm of x has its digits
    left = np.where(normal, np.log(np.maximum(x, 1e-300)) - y, np.nan)
    corners = left[:, :1, :1] - left[:, :1, :] - left[:, :, :1] + left  # 0 where left is such a sum
    np.testing.assert_allclose(np.where(np.isnan(corners), 0.0, corners), 0.0, atol=1e-6)
    assert np.isfinite(corners).mean() > 0.2


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_sinkhorns_limit(scale):
    y = np.random.default_rng(3).normal(0, scale, (5, 4, 4))
    x = linsat.project(y, doubly_stochastic(4), objective=linsat.KL(1.0))
    np.testing.assert_allclose(x, [sinkhorn(one) for one in y], atol=1e-9)


@pytest.mark.parametrize("reg", [0.02, 0.1, 1.0])
def test_plans_of_optimal_transport(reg):
    """What the batch solvers of POT converge to: squared distances of points, uneven masses."""
    rng = np.random.default_rng(4)
    a, b = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(7))
    cost = ((rng.random((5, 1, 2)) - rng.random((1, 7, 2))) ** 2).sum(-1)
    np.testing.assert_allclose(plan(cost, a, b, reg), sinkhorn(-cost / reg, rows=a, columns=b), atol=1e-8)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_plans_of_pot():
    """Entropic, smooth and entropic partial plans of the package itself, iterated to its last digits."""
    ot = pytest.importorskip("ot")
    rng = np.random.default_rng(16)
    n, m = 6, 8
    a, b, cost = np.full(n, 1 / n), rng.dirichlet(np.ones(m)), rng.random((n, m))
    for reg in (0.02, 0.1, 1.0):
        theirs = ot.sinkhorn(a, b, cost, reg, method="sinkhorn_log", numItermax=100_000, stopThr=1e-13)
        np.testing.assert_allclose(plan(cost, a, b, reg), theirs, atol=1e-8)
    x = linsat.Variable(n, m, lower=0.0, upper=np.inf)
    smooth = linsat.project(-cost / 0.5, linsat.subject_to(x.sum(1) == a, x.sum(0) == b), objective=linsat.Euclidean())
    theirs = ot.smooth.smooth_ot_dual(a, b, cost, reg=0.5, reg_type="l2", stopThr=1e-12)
    np.testing.assert_allclose(smooth, theirs, atol=1e-5)
    some = linsat.subject_to(x.sum(1) <= a, x.sum(0) <= b, x.sum() == 0.6)
    theirs = ot.partial.entropic_partial_wasserstein(a, b, cost, reg=0.1, m=0.6, numItermax=100_000, stopThr=1e-14)
    np.testing.assert_allclose(linsat.project(-cost, some, objective=linsat.KL(0.1)), theirs, atol=1e-8)


def test_partial_plans_leave_mass_where_it_is():
    """Rows and columns as inequalities and a total: the partial plan; Clarabel on the exponential cone."""
    rng = np.random.default_rng(5)
    n, m, mass = 4, 5, 0.6
    a, b, cost = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(m)), rng.random((n, m))
    unit = np.eye(n * m).reshape(n * m, n, m)
    matrix = np.vstack([unit.sum(2).T, unit.sum(1).T, np.ones((1, n * m))])
    system = System(matrix, ["<="] * (n + m) + ["=="], np.r_[a, b, mass], np.zeros(n * m), upper=np.full(n * m, np.inf))
    x = linsat.project(-cost.ravel(), linsat.Constraints(**system.arguments()), objective=linsat.KL(0.1))
    np.testing.assert_allclose(x, kl_optimum(system, -cost.ravel(), 0.1), atol=1e-6)
    assert x.sum() == pytest.approx(mass, abs=1e-9)


def test_unbalanced_plans_are_soft_rows():
    """Total variation as the price of mass made or lost: soft rows. Clarabel on the same program."""
    rng = np.random.default_rng(6)
    n, m = 3, 4
    a, b, cost = rng.random(n) + 0.2, rng.random(m) + 0.2, rng.random((n, m))
    x = linsat.Variable(n, m, lower=0.0, upper=np.inf)
    cons = linsat.subject_to(x.sum(axis=1) == a, x.sum(axis=0) == b)
    found = linsat.project(-cost, cons.soften(list(range(n + m)), price=0.3), objective=linsat.KL(0.1))
    unit = np.eye(n * m).reshape(n * m, n, m)
    system = System(
        np.vstack([unit.sum(2).T, unit.sum(1).T]), ["=="] * (n + m), np.r_[a, b], np.zeros(n * m),
        upper=np.full(n * m, np.inf),
    )  # fmt: skip
    expected = kl_optimum(system, -cost.ravel(), 0.1, np.full(n + m, 0.3))
    np.testing.assert_allclose(np.ravel(found), expected, atol=1e-6)


def test_a_row_does_nothing_until_it_binds():
    y = np.array([0.3, -0.2, 0.5])
    free = np.exp(y)
    for side, pushes in ((free.sum() + 1e-3, False), (free.sum() - 1e-3, True)):
        cons = linsat.Constraints(A=np.ones((1, 3)), b=[side], lower=0.0, upper=np.inf)
        solution = linsat.solve(y, cons, objective=linsat.KL(1.0))
        expected = softmax(y) * side if pushes else free
        np.testing.assert_allclose(solution.x, expected, atol=1e-12)
        assert bool(np.asarray(solution.duals)[0] == 0) is not pushes


def test_the_box_alone_and_upper_bounds_that_bind_exactly():
    y, lower, upper = (
        np.array([-1.0, 0.5, 9.0, 0.0]),
        np.array([0.0, -2.0, 1.0, 3.0]),
        np.array([9.0, NOTHING, 4.0, 3.0]),
    )
    cons = linsat.Constraints(lower=lower, upper=upper)
    x = linsat.project(y, cons, objective=linsat.KL(0.5, 2.0))
    np.testing.assert_allclose(x, lower + np.minimum(2.0 * np.exp(y / 0.5), upper - lower), rtol=1e-13)
    assert x[2] == 4.0
    assert x[3] == 3.0


def test_masks_take_variables_out():
    """A score of -inf and a prior of 0 both do: the softmax of the others."""
    y = np.random.default_rng(7).normal(size=(3, 5))
    masked = np.where(np.arange(5) == 2, -np.inf, y)
    expected = softmax(masked, axis=1)
    np.testing.assert_allclose(linsat.project(masked, simplex(5), objective=linsat.KL()), expected, atol=1e-12)
    prior = np.where(np.arange(5) == 2, 0.0, 1.0)
    x = linsat.project(y, simplex(5), objective=linsat.KL(prior=prior))
    np.testing.assert_allclose(x, expected, atol=1e-12)
    assert (x[:, 2] == 0).all()


def test_numbers_per_instance_and_in_the_shape_of_the_variable():
    rng = np.random.default_rng(8)
    y, tau, prior = rng.normal(size=(6, 4)), rng.uniform(0.2, 2, 6), rng.uniform(0.1, 2, (6, 4))
    expected = softmax(y / tau[:, None] + np.log(prior), axis=1)
    np.testing.assert_allclose(linsat.project(y, simplex(4), objective=linsat.KL(tau, prior)), expected, atol=1e-12)
    square, z = rng.uniform(0.1, 2, (3, 3)), rng.normal(size=(2, 3, 3))
    x = linsat.project(z, doubly_stochastic(3), objective=linsat.KL(1.0, square))
    np.testing.assert_allclose(x, [sinkhorn(one + np.log(square)) for one in z], atol=1e-9)


def test_answers_have_the_dtype_of_the_scores():
    y = torch.randn(5, 4, 4)
    x = linsat.project(y, doubly_stochastic(4), objective=linsat.KL())
    assert x.dtype == torch.float32
    assert (x.double().sum(1) - 1).abs().max() <= 1e-6


# ---------------------------------------------------------------- gradients


def test_second_derivatives_are_differences():
    y = torch.randn(2, 4, dtype=F64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    tau = torch.tensor(0.8, dtype=F64, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda y, tau: linsat.project(y, simplex(4), objective=linsat.KL(tau)), (y, tau)
    )


def test_the_loss_is_cross_entropy_on_the_simplex():
    y = (3 * torch.randn(9, 6, dtype=F64, generator=torch.Generator().manual_seed(2))).requires_grad_()
    classes = torch.arange(9) % 6
    target = torch.nn.functional.one_hot(classes, 6).to(F64)
    loss = linsat.fenchel_young_loss(y, target, simplex(6), objective=linsat.KL())
    expected = torch.nn.functional.cross_entropy(y, classes)
    assert float((loss - expected).detach().abs()) <= 1e-12
    (found,) = torch.autograd.grad(loss, y)
    (wanted,) = torch.autograd.grad(expected, y)
    assert float((found - wanted).abs().max()) <= 1e-12


def test_the_loss_follows_learned_numbers_and_refuses_masked_targets():
    y, target = torch.randn(3, 4, dtype=F64), torch.full((3, 4), 0.25, dtype=F64)
    tau = torch.tensor(0.6, dtype=F64, requires_grad=True)
    prior = (torch.rand(4, dtype=F64) + 0.5).requires_grad_()

    def loss(tau, prior):
        return linsat.fenchel_young_loss(y, target, simplex(4), objective=linsat.KL(tau, prior))

    assert torch.autograd.gradcheck(loss, (tau, prior))
    with pytest.raises(linsat.ConstraintError, match=r"x\[1\] = 0.25 where y is -inf or the prior 0"):
        linsat.fenchel_young_loss(y, target, simplex(4), objective=linsat.KL(prior=torch.tensor([1.0, 0, 1, 1])))


# ---------------------------------------------------------------- failures


def test_what_has_no_answer_is_said():
    open_below = linsat.Constraints(A=np.ones((1, 2)), b=[1.0], lower=-np.inf, upper=np.inf)
    with pytest.raises(linsat.ConstraintError, match="lower"):
        linsat.project(np.zeros(2), open_below, objective=linsat.KL())
    contradiction = linsat.Constraints(A=np.ones((1, 2)), b=[-1.0], lower=0.0, upper=np.inf)
    with pytest.raises(linsat.InfeasibleError):
        linsat.project(np.zeros(2), contradiction, objective=linsat.KL())


def test_variables_that_rows_force_to_a_bound():
    """x_0 + x_1 <= 0 leaves nothing but zeros, where the duals of a row have no end."""
    cons = linsat.Constraints(A=[[1.0, 1, 0]], b=[0.0], E=[[1.0, 1, 1]], f=[1.0], lower=0.0, upper=np.inf)
    np.testing.assert_allclose(linsat.project(np.ones(3), cons, objective=linsat.KL()), [0, 0, 1], atol=1e-12)


@pytest.mark.parametrize("tau", [1e-3, 1.0])
def test_open_boxes_cold_and_warm_hold_their_rows(tau):
    for seed in range(6):
        rng = np.random.default_rng([seed, 5])
        system = open_system(rng, "signed", largest=15, rows=6)
        system.lower = np.where(np.isfinite(system.lower), system.lower, system.point - 3.0)
        y = rng.normal(size=len(system.point))
        solution = linsat.solve(
            y, linsat.Constraints(**system.arguments()), objective=linsat.KL(tau), on_failure="ignore"
        )
        assert solution.converged or not system.upper.max() < np.inf
        if solution.converged:
            assert system.violation(solution.x) <= 1e-8


def test_matching_with_inequalities():
    """At most one a row and a column, two in all: Clarabel."""
    cons = matching(3, 4, at_most=2)
    rng = np.random.default_rng(15)
    y = rng.normal(size=12)
    unit = np.eye(12).reshape(12, 3, 4)
    matrix = np.vstack([unit.sum(2).T, unit.sum(1).T, np.ones((1, 12))])
    system = System(matrix, ["<="] * 8, np.r_[np.ones(7), 2.0], np.zeros(12))
    np.testing.assert_allclose(linsat.project(y, cons, objective=linsat.KL(0.3)), kl_optimum(system, y, 0.3), atol=1e-5)
