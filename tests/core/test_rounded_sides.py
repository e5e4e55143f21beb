"""Right-hand sides in float32 whose equalities contradict each other by rounding only: solved, said, and no more."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit

import linsat

F64 = torch.float64
N, M, COUNT = 4, 5, 50
E = np.vstack([np.kron(np.eye(N), np.ones(M)), np.kron(np.ones(N), np.eye(M))])  # row sums, then column sums
OBJECTIVES = {"entropy": linsat.Entropy(tau=0.1), "euclidean": linsat.Euclidean()}


def transports() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, marginals from two softmaxes in float32, and the same logits' marginals in float64."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(COUNT, N, generator=generator), torch.randn(COUNT, M, generator=generator)
    narrow = torch.cat([part.softmax(-1) for part in logits], -1)
    exact = torch.cat([part.double().softmax(-1) for part in logits], -1)
    return torch.randn(COUNT, N * M, dtype=F64, generator=generator), narrow, exact


SCORES, NARROW, EXACT = transports()
OFF = (NARROW[:, :N].double().sum(-1) - NARROW[:, N:].double().sum(-1)).abs()
DIFFER = OFF > 1e-13


def optimum(scores: np.ndarray, sides: np.ndarray, kind: str) -> np.ndarray:
    """By Clarabel, or for the entropy by scipy from the dual; the last row follows from the others."""
    A, f = E[:-1], sides[:-1]
    if kind == "euclidean":
        x = cp.Variable(N * M)
        problem = cp.Problem(cp.Minimize(cp.sum_squares(x - scores)), [A @ x == f, x >= 0, x <= 1])
        problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        assert problem.status == "optimal"
        return x.value

    def share(mu):
        return expit((scores + A.T @ mu) / 0.1)

    def slope(mu):
        return A @ share(mu) - f

    def curvature(mu):
        return (A * (share(mu) * (1 - share(mu)) / 0.1)) @ A.T

    def potential(mu):
        return 0.1 * np.logaddexp(0, (scores + A.T @ mu) / 0.1).sum() - f @ mu

    options = {"gtol": 1e-7, "maxiter": 1000}
    mu = minimize(potential, np.zeros(len(f)), jac=slope, hess=curvature, method="trust-exact", options=options).x
    for _ in range(3):  # from here on the potential is flat to rounding, its slope is not
        mu = mu - np.linalg.solve(curvature(mu), slope(mu))
    assert np.abs(slope(mu)).max() <= 1e-13
    return share(mu)


def test_the_marginals_do_contradict_each_other():
    assert 20 <= int(DIFFER.sum()) < COUNT


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("given", [lambda f: f, lambda f: f.numpy()], ids=["torch", "numpy"])
def test_transports_with_marginals_of_two_softmaxes_are_solved(kind, given):
    cons = linsat.Constraints(E=E, f=given(NARROW))
    found = linsat.solve(SCORES, cons, objective=OBJECTIVES[kind])
    assert bool(found.converged.all())
    assert float(found.violation.max()) <= 1e-9
    assert torch.equal(found.adjusted > 0, DIFFER)
    assert float(found.adjusted.max()) <= 4 * 2**-23
    expected = [optimum(y.numpy(), f.numpy(), kind) for y, f in zip(SCORES, EXACT, strict=True)]
    np.testing.assert_allclose(found.x, expected, rtol=0, atol=1e-6)
    for i in range(5):  # one by one, as constants of a set of their own
        alone = linsat.solve(SCORES[i].numpy(), linsat.Constraints(E=E, f=given(NARROW[i])), objective=OBJECTIVES[kind])
        assert alone.converged
        assert (alone.adjusted > 0) == bool(DIFFER[i])
        np.testing.assert_allclose(alone.x, found.x[i], rtol=0, atol=1e-9)


def test_the_new_sides_are_the_nearest_consistent_ones():
    """The least sum of squares of relative changes c with a (1 + c) = 0, a the signed sides, is c = -a sum(a) / a a."""
    cons = linsat.Constraints(E=E, f=NARROW)
    for given, solved in zip(NARROW.double().numpy(), cons.right_sides["f"].numpy(), strict=True):
        a = given * np.repeat([1.0, -1.0], [N, M])
        np.testing.assert_allclose(solved, given * (1 - a * a.sum() / (a @ a)), rtol=0, atol=1e-15)


def test_every_way_to_give_them():
    cons = linsat.Constraints(E=E, f=np.r_[np.full(N, 1 / N), np.full(M, 1 / M)], names=[*"abcd", *"vwxyz"])
    expected = linsat.project(SCORES, linsat.Constraints(E=E, f=NARROW))
    layer = linsat.LinSAT(cons, tau=0.1)

    def project(y, f):
        return linsat.project(y, cons.with_rhs(f=f))

    names = dict(zip(cons.names, NARROW[..., None].unbind(-2), strict=True))
    learned = NARROW.clone().requires_grad_()
    X = linsat.Variable(N, M, name="X")
    which = int(DIFFER.nonzero()[0])
    formulas = linsat.subject_to(X.sum(1) == NARROW[which, :N], X.sum(0) == NARROW[which, N:].numpy())
    for found in (
        layer(SCORES, f=NARROW),
        layer(SCORES, rhs=names),
        torch.func.vmap(project)(SCORES, NARROW),
        project(SCORES, learned).detach(),
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert bool((linsat.solve(SCORES, cons.with_rhs(f=learned)).adjusted > 0).equal(DIFFER))
    np.testing.assert_allclose(linsat.project(SCORES[which], formulas), expected[which], rtol=0, atol=1e-9)
    assert float(linsat.solve(SCORES[which], formulas).adjusted) > 0


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_gradients_reach_learned_sides(kind):
    """Against differences along directions that keep the totals equal, where x has a derivative."""
    objective = linsat.Entropy(tau=1.0) if kind == "entropy" else linsat.Euclidean()
    which = int(DIFFER.nonzero()[0])
    scores, side = SCORES[which] * 0.1, NARROW[which].clone().requires_grad_()
    weights = torch.randn(N * M, dtype=F64, generator=torch.Generator().manual_seed(1))
    cons = linsat.Constraints(E=E, f=NARROW[which])
    (weights * linsat.project(scores, cons.with_rhs(f=side), objective=objective)).sum().backward()
    way = torch.randn(N + M, dtype=F64, generator=torch.Generator().manual_seed(2))
    way[N] += way[:N].sum() - way[N:].sum()
    step = 1e-5
    ends = [
        float(weights @ linsat.project(scores, cons.with_rhs(f=EXACT[which] + sign * step * way), objective=objective))
        for sign in (1, -1)
    ]
    assert float(side.grad.double() @ way) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-5)


def test_sides_in_float64_get_an_exact_verdict():
    which = int(DIFFER.nonzero()[0])
    with pytest.raises(linsat.InfeasibleError):
        linsat.project(SCORES[which], linsat.Constraints(E=E, f=NARROW[which].double()))
    found = linsat.solve(SCORES, linsat.Constraints(E=E, f=NARROW.double()), on_failure="ignore")
    assert not found.converged[OFF > 1e-8].any()
    assert found.converged[~DIFFER].all()
    assert not found.adjusted.any()


def test_more_than_rounding_is_a_contradiction():
    sides = NARROW[:2].clone()
    sides[1, 0] *= 1 + 1e-4
    found = linsat.solve(SCORES[:2], linsat.Constraints(E=E, f=sides), on_failure="ignore")
    assert found.converged.tolist() == [True, False]
    assert float(found.adjusted[1]) == 0
    np.testing.assert_array_equal(linsat.Constraints(E=E, f=sides).right_sides["f"][1], sides[1].double())


def test_sides_of_zero_stay_zero():
    sides = NARROW[int(DIFFER.nonzero()[0])].clone()
    sides[0], sides[1] = 0.0, sides[0] + sides[1]
    found = linsat.solve(SCORES[0], linsat.Constraints(E=E, f=sides))
    assert bool(found.converged)
    assert bool((found.x[:M] == 0).all())
