"""Public cases of other layers that are linear projections, with the values those projects expect.

Restated from the test suites and documents of cvxpylayers, qpth (OptNet), proxsuite and JAXopt: the problems and the
expected numbers are facts; expected values that they take from a solver come from Clarabel here.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import linsat
from tests.helpers.oracles import System, nearest_point

NEAREST = linsat.Euclidean()


def gradient(y: np.ndarray, weights: np.ndarray, cons: linsat.Constraints) -> np.ndarray:
    scores = torch.tensor(y, dtype=torch.float64, requires_grad=True)
    (linsat.project(scores, cons, objective=NEAREST) * torch.from_numpy(weights)).sum().backward()
    return scores.grad.numpy()


# ------------------------------------------------------------------ cvxpylayers


def test_relu_is_a_projection_onto_the_orthant() -> None:
    """cvxpylayers' examples: ReLU as min |x - y|^2 over x >= 0, with its gradient."""
    y = np.array([-2.0, -0.3, 0.4, 3.0])
    orthant = linsat.Constraints(lower=np.zeros(4), upper=np.inf)
    assert np.array_equal(linsat.project(y, orthant, objective=NEAREST), np.maximum(y, 0))
    assert np.array_equal(gradient(y, np.arange(1.0, 5.0), orthant), [0.0, 0.0, 3.0, 4.0])


def test_sigmoid_is_an_entropic_projection_onto_the_box() -> None:
    """cvxpylayers' examples: sigmoid as min -y'x - entropies of x and 1 - x."""
    y = np.linspace(-4, 4, 7)
    box = linsat.Constraints(lower=np.zeros(7), upper=1.0)
    assert np.allclose(linsat.project(y, box, tau=1.0), 1 / (1 + np.exp(-y)), atol=1e-12)


def test_sparsemax() -> None:
    """cvxpylayers' examples: min |x - y|^2 over the simplex; the values of Martins and Astudillo's closed form."""
    simplex = linsat.constraints.simplex(3)
    cases = {(0.0, 0.0, 0.0): (1 / 3, 1 / 3, 1 / 3), (2.0, 0.0, 0.0): (1.0, 0.0, 0.0), (0.6, 0.4, 0.1): None}
    for y, expected in cases.items():
        x = linsat.project(np.array(y), simplex, objective=NEAREST)
        assert np.allclose(x, np.array(y) - (sum(y) - 1) / 3 if expected is None else expected, atol=1e-12)
    assert np.allclose(gradient(np.array([0.6, 0.4, 0.1]), np.array([1.0, 0.0, 0.0]), simplex), [2 / 3, -1 / 3, -1 / 3])


def test_limited_multi_label_projection() -> None:
    """cvxpylayers' examples (Amos, Koltun and Kolter): entropies over the box with a sum of k; all equal: k / n."""
    cons = linsat.Constraints(E=np.ones((1, 5)), f=[2.0])
    assert np.allclose(linsat.project(np.full(5, 0.7), cons, tau=1.0), 0.4, atol=1e-12)
    y = np.array([1.0, 0.5, 0.0, -0.5, -1.0])
    x = linsat.project(y, cons, tau=1.0)
    shift = np.log(x / (1 - x)) - y  # one multiplier for all
    assert np.allclose(shift, shift[0], atol=1e-9)
    assert x.sum() == pytest.approx(2.0)


def test_infeasible_and_unbounded_programs_are_told_apart() -> None:
    """cvxpylayers' test suite has infeasible and unbounded programs: the same are told apart here."""
    with pytest.raises(linsat.InfeasibleError):
        linsat.project(np.zeros(1), linsat.Constraints(C=[[1.0]], d=[1.0], A=[[1.0]], b=[-1.0]), objective=NEAREST)
    with pytest.raises(linsat.ConstraintError, match="without limit"):
        linsat.argmax(np.ones(1), linsat.Constraints(lower=[0.0], upper=np.inf))


# ------------------------------------------------------------------ qpth and OptNet


def test_optnets_equality_only_projection() -> None:
    """qpth's tests with equalities alone: x = y - A'(AA')^-1 (A y - b), and its Jacobian I - A'(AA')^-1 A."""
    rng = np.random.default_rng(0)
    A, y, b = rng.normal(size=(2, 5)), rng.normal(size=5), rng.normal(size=2)
    cons = linsat.Constraints(E=A, f=b, lower=-np.inf, upper=np.inf)
    inverse = A.T @ np.linalg.inv(A @ A.T)
    assert np.allclose(linsat.project(y, cons, objective=NEAREST), y - inverse @ (A @ y - b), atol=1e-12)
    for j in range(5):
        assert np.allclose(gradient(y, np.eye(5)[j], cons), (np.eye(5) - inverse @ A)[j], atol=1e-12)


@pytest.mark.parametrize(("inequalities", "equalities"), [(1, 0), (4, 0), (4, 2), (10, 3)])
def test_optnets_random_programs_with_a_known_point(inequalities: int, equalities: int) -> None:
    """qpth's tests: G and A normal, h = G x0 + s0 with s0 >= 0, b = A x0; values by Clarabel."""
    rng = np.random.default_rng(inequalities + equalities)
    point = rng.normal(size=10)
    G, A = rng.normal(size=(inequalities, 10)), rng.normal(size=(equalities, 10))
    h, b = G @ point + rng.random(inequalities), A @ point
    free = np.full(10, np.inf)
    system = System(np.vstack([G, A]), ["<="] * len(G) + ["=="] * len(A), np.append(h, b), point, -free, free)
    cons = linsat.Constraints(**system.arguments())
    y, g = rng.normal(size=10) * 2, rng.normal(size=10)
    assert np.allclose(linsat.project(y, cons, objective=NEAREST), nearest_point(system, y), atol=1e-7)
    found = gradient(y, g, cons)
    for j in range(10):
        step = 1e-6 * np.eye(10)[j]
        up, down = (linsat.project(y + s, cons, objective=NEAREST) @ g for s in (step, -step))
        assert found[j] == pytest.approx((up - down) / 2e-6, abs=1e-6)


def test_optnets_gradients_of_right_hand_sides() -> None:
    """qpth checks dl/db and dl/dh: a row that binds passes them on, one that does not has none."""
    b = torch.tensor([1.0, 9.0], dtype=torch.float64, requires_grad=True)
    cons = linsat.Constraints(A=np.eye(2), b=b, lower=-np.inf, upper=np.inf)
    linsat.project(torch.tensor([3.0, 4.0], dtype=torch.float64), cons, objective=NEAREST).sum().backward()
    assert b.grad.tolist() == [1.0, 0.0]


# ------------------------------------------------------------------ proxsuite


def test_proxqps_first_example() -> None:
    """The box and row of ProxQP's documentation: two variables, x1 + x2 = 1, within [-1, 1]; closed form."""
    cons = linsat.Constraints(E=[[1.0, 1.0]], f=[1.0], lower=-1.0, upper=1.0)
    assert np.allclose(linsat.project(np.array([0.0, 0.0]), cons, objective=NEAREST), [0.5, 0.5])
    assert np.allclose(linsat.project(np.array([5.0, 0.0]), cons, objective=NEAREST), [1.0, 0.0])


def test_proxqps_layer_on_infeasible_rows() -> None:
    """QPLayer's structural example: rows that cannot hold are relaxed; here at a price."""
    cons = linsat.Constraints(E=[[1.0, 0.0], [1.0, 0.0]], f=[0.0, 2.0], lower=-5.0, upper=5.0).soften(price=100.0)
    x = linsat.project(np.array([0.5, 0.0]), cons, objective=NEAREST)
    assert x == pytest.approx([0.5, 0.0])  # any first entry in [0, 2] breaks the rows by 2 in all; the nearest is kept
    assert cons.row_violation(x).sum() == pytest.approx(2.0)


# ------------------------------------------------------------------ JAXopt's projections


@pytest.mark.parametrize("value", [0.5, 1.0, 3.0])
def test_projection_onto_scaled_simplices_and_balls(value: float) -> None:
    """JAXopt's projection_simplex(value) and projection_hyperplane, projection_halfspace: closed forms."""
    rng = np.random.default_rng(3)
    y, a = rng.normal(size=6), rng.normal(size=6)
    free = {"lower": -np.inf, "upper": np.inf}
    simplex = linsat.Constraints(E=np.ones((1, 6)), f=[value], lower=0.0, upper=np.inf)
    ordered = np.sort(y)[::-1]
    support = max(k for k in range(1, 7) if value + k * ordered[k - 1] > ordered[:k].sum())
    shifted = np.maximum(y - (ordered[:support].sum() - value) / support, 0)
    assert np.allclose(linsat.project(y, simplex, objective=NEAREST), shifted, atol=1e-12)
    plane = linsat.Constraints(E=a[None], f=[value], **free)
    assert np.allclose(linsat.project(y, plane, objective=NEAREST), y - (a @ y - value) / (a @ a) * a, atol=1e-12)
    half = linsat.Constraints(A=a[None], b=[value], **free)
    excess = max(a @ y - value, 0.0)
    assert np.allclose(linsat.project(y, half, objective=NEAREST), y - excess / (a @ a) * a, atol=1e-12)


def test_projection_onto_the_birkhoff_polytope_of_a_permutation() -> None:
    """JAXopt's transport and Birkhoff projections: a permutation matrix is its own projection, also scaled up."""
    P = np.eye(4)[[2, 0, 3, 1]]
    cons = linsat.constraints.doubly_stochastic(4)
    for scale in (1.0, 10.0):
        assert np.allclose(linsat.project(scale * P, cons, objective=NEAREST), P, atol=1e-12)
