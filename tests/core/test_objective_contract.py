"""An objective of one's own, defined here and nowhere else, keeps the solver's contract."""

from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import linsat
from linsat.arrays.interior.instances import unsupported
from linsat.arrays.iteration import ArrayBackend
from tests.helpers.oracles import open_system
from tests.helpers.statements import problem_of

F64 = torch.float64
KINDS = ("signed", "positive", "boundary", "unbounded", "dependent")


@dataclass(frozen=True, eq=False)
class Huber(linsat.Objective):
    """``Omega(x) = sum_j rho x_j^2 / 2 + h(x_j)``, h Huber's function: x^2 / 2 up to delta and linear beyond.

    Large entries cost less than under `linsat.Euclidean`, so few large ones are preferred to many small ones.
    """

    rho: Any = 0.5
    delta: float = 0.3

    def parameters(self):
        return {"rho": self.rho}

    def spread(self, batch_shape, num_variables, device):
        rho = torch.as_tensor(self.rho, dtype=F64, device=device)
        return replace(self, rho=rho.expand(batch_shape).reshape(batch_shape.numel(), 1))

    def omega(self, x):
        size = x.abs()
        huber = torch.where(size <= self.delta, x**2 / 2, self.delta * (size - self.delta / 2))
        return self.rho * x**2 / 2 + huber

    def _unbounded(self, u):
        steep = u.abs() > (1 + self.rho) * self.delta
        return steep, torch.where(steep, (u - self.delta * u.sign()) / self.rho, u / (1 + self.rho))

    def conjugate(self, u, lower, upper):
        x = self.point(u, lower, upper)
        return u * x - self.omega(x)

    def point(self, u, lower, upper):
        _, x = self._unbounded(u)
        return torch.where(x <= lower, lower, torch.where(x >= upper, upper, x))

    def slope(self, u, lower, upper):
        steep, x = self._unbounded(u)
        inside = (x > lower) & (x < upper)
        return inside / (self.rho + ~steep)


def optimum(system, scores, objective):
    """The same program in cvxpy; its Huber function is twice ours."""
    x = cp.Variable(len(scores))
    rows = [
        a @ x <= b if sense == "<=" else a @ x >= b if sense == ">=" else a @ x == b
        for a, sense, b in zip(system.matrix, system.senses, system.rhs)
    ]
    low, high = np.isfinite(system.lower), np.isfinite(system.upper)
    bounds = [x[low] >= system.lower[low], x[high] <= system.upper[high]]
    cost = objective.rho * cp.sum_squares(x) / 2 + cp.sum(cp.huber(x, objective.delta)) / 2
    problem = cp.Problem(cp.Maximize(scores @ x - cost), rows + bounds)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return x.value if problem.status == cp.OPTIMAL else None


@pytest.mark.parametrize(
    "objective", [Huber(), linsat.Euclidean(), linsat.Entropy(0.3), linsat.Entropy(0.3, slack="none")], ids=repr
)
def test_conjugate_point_and_slope_belong_together(objective):
    """psi' = x and psi'' = D by central differences, and psi(u) = max_x u x - omega(x) on a grid."""
    u = torch.linspace(-2, 2, 157, dtype=F64)[None]
    objective = objective.spread(torch.Size(), 157, torch.device("cpu"))
    lower, upper = torch.tensor(-0.7, dtype=F64), torch.tensor(0.9, dtype=F64)
    h = 1e-6
    psi, x, D = (getattr(objective, name)(u, lower, upper) for name in ("conjugate", "point", "slope"))
    ahead, behind = ([getattr(objective, n)(u + t, lower, upper) for n in ("conjugate", "point")] for t in (h, -h))
    assert torch.allclose((ahead[0] - behind[0]) / (2 * h), x, atol=1e-6)
    assert torch.allclose((ahead[1] - behind[1]) / (2 * h), D, atol=1e-4)
    assert (D >= 0).all()
    if isinstance(objective, Huber):
        grid = torch.linspace(-0.7, 0.9, 4001, dtype=F64)
        best = (u[..., None] * grid - objective.omega(grid)).amax(-1)
        assert torch.allclose(psi, best, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_hold_and_the_optimum_is_clarabels(kind):
    judged = 0
    for seed in range(5):
        rng = np.random.default_rng([seed, 21])
        system = open_system(rng, kind, largest=20, rows=8)
        scores, objective = rng.normal(0.5, 1.0, len(system.point)), Huber()
        solution = linsat.solve(scores, linsat.Constraints(**system.arguments()), objective=objective)
        assert solution.converged
        assert solution.solved_by == "newton"
        assert system.violation(solution.x) <= 1e-8
        expected = optimum(system, scores, objective)
        if expected is not None:
            judged += 1
            np.testing.assert_allclose(solution.x, expected, atol=2e-6)
    assert judged >= 4


def test_gradients_reach_scores_sides_coefficients_and_its_own_number():
    A, b = torch.tensor([[1.0, 2.0, -0.5]], dtype=F64), torch.tensor([0.4], dtype=F64)
    E, f = torch.tensor([[1.0, 1.0, 1.0]], dtype=F64), torch.tensor([0.8], dtype=F64)
    y, rho = torch.tensor([1.1, 0.6, -0.1], dtype=F64), torch.tensor(0.5, dtype=F64)

    def x_of(y, A, b, E, f, rho):
        cons = linsat.Constraints(A=A, b=b, E=E, f=f, lower=-1.0, upper=2.0)
        return linsat.project(y, cons, objective=Huber(rho=rho), solver=linsat.Newton(tol=1e-13))

    given = tuple(t.clone().requires_grad_(True) for t in (y, A, b, E, f, rho))
    assert gradcheck(x_of, given, atol=1e-6)


def test_batches_layers_and_learned_numbers():
    rho = torch.nn.Parameter(torch.tensor(0.5, dtype=F64))
    layer = linsat.LinSAT(linsat.constraints.simplex(4), objective=Huber(rho=rho))
    assert dict(layer.named_parameters()).keys() == {"rho"}
    y = torch.randn(6, 4, dtype=F64)
    together = layer(y)
    together.sum().backward()
    assert rho.grad is not None
    assert torch.allclose(together, torch.stack([layer(row) for row in y]), atol=1e-12)


@dataclass(frozen=True, eq=False)
class Thrifty(linsat.Objective):
    """``Omega(x) = sum_j (x_j - center_j)^2 / 2 + price |x_j - center_j|``: what a user writes, and no more."""

    price: Any = 0.3
    center: Any = 0.0

    def point(self, u, lower, upper):
        x = self.center + u.sign() * torch.relu(u.abs() - self.price)
        return torch.where(x <= lower, lower, torch.where(x >= upper, upper, x))

    def conjugate(self, u, lower, upper):
        x = self.point(u, lower, upper)
        return u * x - (x - self.center) ** 2 / 2 - self.price * (x - self.center).abs()

    def slope(self, u, lower, upper):
        x = self.point(u, lower, upper)
        return ((x > lower) & (x < upper) & (x != self.center)).to(u.dtype)


@dataclass(frozen=True, eq=False)
class NamesItsNumbers(Thrifty):
    def parameters(self):
        return {"price": self.price, "center": self.center}


TRADES = linsat.Constraints(A=[[1.0, 1.0, 1.0, 1.0]], b=[0.5], lower=-1.0, upper=1.0)
SIGNALS = torch.tensor([[0.9, 0.2, -0.1, -0.8], [0.9, 0.6, 0.5, 0.4]], dtype=F64)
CENTER = torch.tensor([0.0, -0.05, 0.02, 0.0], dtype=F64)  # negative numbers are numbers too
WEIGHTS = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.7, 1.5, -1.0, 2.0]], dtype=F64)


def loss(kind, price):
    return (linsat.project(SIGNALS, TRADES, objective=kind(price, CENTER)) * WEIGHTS).sum()


def by_differences(kind, price):
    """The gradient of the loss to the price, entry by entry."""
    gradient = torch.zeros(price.numel(), dtype=F64)
    for i in range(len(gradient)):
        step = (1e-6 * torch.eye(len(gradient), dtype=F64)[i]).reshape(price.shape)
        gradient[i] = (loss(kind, price.detach() + step) - loss(kind, price.detach() - step)) / 2e-6
    return gradient.reshape(price.shape)


@pytest.mark.parametrize("kind", [Thrifty, NamesItsNumbers])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 1), (2, 4)])
def test_a_learned_number_of_an_own_objective_needs_no_further_code(kind, shape):
    """Registered by the layer, with the gradient that finite differences have; eager and in transforms."""
    price = torch.nn.Parameter(torch.full(shape, 0.3, dtype=F64))
    expected = by_differences(kind, price)
    layer = linsat.LinSAT(TRADES, objective=kind(price, CENTER))
    assert dict(layer.named_parameters()) == {"price": price}
    (layer(SIGNALS) * WEIGHTS).sum().backward()
    torch.testing.assert_close(price.grad, expected, atol=1e-6, rtol=0)
    found = torch.func.grad(lambda price: loss(kind, price))(price.detach())
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert float(expected.abs().max()) > 0.1


def test_a_learned_number_that_no_gradient_would_reach_is_rejected():
    @dataclass(frozen=True, eq=False)
    class LeavesOut(NamesItsNumbers):
        extra: Any = None

    class NoDataclass(linsat.Objective):
        point, conjugate, slope = Thrifty.point, Thrifty.conjugate, Thrifty.slope

        def __init__(self, price):
            self.price, self.center = price, 0.0

    class KeepsItsShape(NamesItsNumbers):
        def spread(self, *_):
            return self

    price = torch.nn.Parameter(torch.tensor(0.3, dtype=F64))
    for objective, message in (
        (LeavesOut(extra=price), r"extra of LeavesOut requires gradients.*Fix: "),
        (LeavesOut(extra=[price]), r"extra of LeavesOut requires gradients.*Fix: "),
        (LeavesOut(extra=torch.nn.Linear(1, 1)), r"extra of LeavesOut requires gradients.*Fix: "),
        (NoDataclass(price), r"price of NoDataclass requires gradients.*Fix: make every such tensor a field"),
        (
            KeepsItsShape(price),
            r"price of KeepsItsShape has shape \(\) after KeepsItsShape.spread.*Fix: leave `spread`",
        ),
        (Thrifty(torch.ones(3)), r"price of Thrifty has shape \(3,\); expected one number, \(4,\).*Fix: "),
        (NamesItsNumbers("much"), r"price of NamesItsNumbers is 'much'; expected one number.*Fix: "),
    ):
        with pytest.raises(linsat.ConstraintError, match=message):
            linsat.project(SIGNALS, TRADES, objective=objective)


def test_which_back_ends_run_it():
    cons, y = linsat.constraints.simplex(3), np.array([0.3, 0.1, -0.4])
    problem = problem_of(cons, Huber(), torch.from_numpy(y)[None])
    assert ArrayBackend().supports(problem) is None
    reason = unsupported(problem.objective)
    assert reason is not None
    assert "Huber" in reason
    answers = [linsat.project(y, cons, objective=Huber(), solver=linsat.Newton(backend=b)) for b in ("auto", "arrays")]
    np.testing.assert_array_equal(*answers)
    with pytest.raises(linsat.ConstraintError, match="Huber"):
        linsat.project(y, cons, objective=Huber(), solver=linsat.Newton(backend="interior_point"))


def test_the_kernel_declines_with_a_reason():
    cons, y = linsat.constraints.simplex(3), np.array([0.3, 0.1, -0.4])
    with pytest.raises(linsat.ConstraintError, match="kernel"):
        linsat.project(y, cons, objective=Huber(), solver=linsat.Newton(backend="kernel"))


def test_the_base_class_says_what_is_missing():
    class Empty(linsat.Objective):
        pass

    with pytest.raises(NotImplementedError):
        linsat.project(np.zeros(3), linsat.constraints.simplex(3), objective=Empty())
    with pytest.raises(TypeError, match="Empty has no temperature"):
        Empty().at(torch.ones(1))
