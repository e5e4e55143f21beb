"""Gradients of every objective against finite differences, at kinks too; second order; failures; a second method."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import linsat
from tests.helpers.oracles import open_system

F64 = torch.float64
TIGHT = linsat.Newton(tol=1e-13)
ARGUMENTS = ("y", "A", "b", "C", "d", "E", "f", "lower", "upper")
OBJECTIVES = {
    "paper": lambda own: linsat.Entropy(own["tau"]),
    "slack-free": lambda own: linsat.Entropy(own["tau"], slack="none"),
    "euclidean": lambda own: linsat.Euclidean(),
    "weighted": lambda own: linsat.Euclidean(weights=own["weights"]),
}
OWN = {"paper": ("tau",), "slack-free": ("tau",), "euclidean": (), "weighted": ("weights",)}
each_objective = pytest.mark.parametrize("name", OBJECTIVES)


def draw(seed, name):
    """Two <= rows, two >= rows and one equality over five variables; rows bind in some draws and not in others."""
    rng = np.random.default_rng([seed, list(OBJECTIVES).index(name)])
    point = rng.uniform(0.2, 0.8, 5)
    A, C, E = (rng.uniform(0.3, 1.3, (k, 5)) * rng.choice([-1.0, 1.0], (k, 5), p=[0.2, 0.8]) for k in (2, 2, 1))
    numbers = {
        "y": rng.normal(0.4, 0.7, 5),
        "A": A,
        "b": A @ point + rng.uniform(0.05, 0.4, 2),
        "C": C,
        "d": C @ point - rng.uniform(0.05, 0.4, 2),
        "E": E,
        "f": E @ point,
        "lower": rng.uniform(-0.2, 0.1, 5),
        "upper": rng.uniform(0.9, 1.4, 5),
        "tau": np.array(rng.uniform(0.2, 0.8)),
        "weights": rng.uniform(0.4, 2.5, 5),
    }
    return {key: torch.tensor(value, dtype=F64) for key, value in numbers.items()}


def solve(numbers, name, solver=TIGHT):
    cons = linsat.Constraints(**{key: numbers[key] for key in ARGUMENTS[1:]})
    return linsat.solve(numbers["y"], cons, objective=OBJECTIVES[name](numbers), solver=solver)


def near_kink(numbers, name, margin=1e-4):
    """Whether a row is almost tight with almost no multiplier, or a variable almost at a bound with u there."""
    solution = solve(numbers, name)
    if name == "paper":
        return False
    x, mu = solution.x, solution.duals
    slack = torch.cat([numbers["b"] - numbers["A"] @ x, numbers["C"] @ x - numbers["d"]])
    rows = bool(((slack < margin) & (mu[:4].abs() < margin)).any())
    if name == "slack-free":
        return rows
    q = numbers["weights"] if name == "weighted" else torch.ones(5, dtype=F64)
    u = numbers["y"] + mu @ torch.cat([numbers["A"], numbers["C"], numbers["E"]]) / q
    bounds = torch.minimum((u - numbers["lower"]).abs(), (u - numbers["upper"]).abs()) < margin
    return rows or bool(bounds.any())


@pytest.mark.parametrize("count", [pytest.param(12, id="few"), pytest.param(150, id="many", marks=pytest.mark.slow)])
@each_objective
def test_directional_derivatives_in_everything_at_once(name, count, capsys):
    skipped, binding = 0, 0
    for seed in range(count):
        numbers = draw(seed, name)
        if near_kink(numbers, name):
            skipped += 1
            continue
        wanted = (*ARGUMENTS, *OWN[name])
        generator = torch.Generator().manual_seed(seed)
        way = {key: torch.randn(numbers[key].shape, generator=generator, dtype=F64) for key in wanted}
        onto = torch.randn(5, generator=generator, dtype=F64)
        learned = {**numbers, **{key: numbers[key].clone().requires_grad_(True) for key in wanted}}
        solution = solve(learned, name)
        binding += int((solution.duals[:4].abs() > 1e-6).sum())
        grads = torch.autograd.grad(solution.x @ onto, [learned[key] for key in wanted])
        found = sum(float((grad * way[key]).sum()) for key, grad in zip(wanted, grads))
        h = 1e-6
        ends = [
            float(solve({**numbers, **{key: numbers[key] + t * way[key] for key in wanted}}, name).x @ onto)
            for t in (h, -h)
        ]
        expected = (ends[0] - ends[1]) / (2 * h)
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6), f"{name}, seed {seed}"
    with capsys.disabled():
        print(f" {name}: {skipped} of {count} draws skipped near kinks ", end="")
    assert skipped <= 0.1 * count
    assert binding >= count // 3


@each_objective
def test_every_argument_by_itself(name):
    numbers = next(n for n in (draw(seed, name) for seed in range(20)) if not near_kink(n, name, margin=1e-2))
    for key in (*ARGUMENTS, *OWN[name]):

        def x_of(value, key=key):
            return solve({**numbers, key: value}, name).x

        given = numbers[key].clone().requires_grad_(True)
        assert gradcheck(x_of, (given,), atol=1e-6, fast_mode=key in ("A", "C")), key


@pytest.mark.parametrize("name", ["slack-free", "euclidean", "weighted"])
def test_duals_are_differentiable(name):
    numbers = next(n for n in (draw(seed, name) for seed in range(20)) if not near_kink(n, name, margin=1e-2))
    names = ("y", "b", "f", *OWN[name])

    def duals(*values):
        return solve({**numbers, **dict(zip(names, values))}, name).duals

    assert gradcheck(duals, tuple(numbers[key].clone().requires_grad_(True) for key in names), atol=1e-6)


@pytest.mark.parametrize("name", ["paper", "slack-free"])
def test_double_backward(name):
    numbers = next(n for n in (draw(seed, name) for seed in range(20)) if not near_kink(n, name, margin=1e-2))
    names = ("y", "b", "A")

    def x_of(*values):
        return solve({**numbers, **dict(zip(names, values))}, name).x

    assert gradgradcheck(x_of, tuple(numbers[key].clone().requires_grad_(True) for key in names), atol=1e-5)


@pytest.mark.parametrize("name", ["euclidean", "weighted"])
def test_double_backward_of_a_piecewise_rational_layer(name):
    numbers = next(n for n in (draw(seed, name) for seed in range(20)) if not near_kink(n, name, margin=1e-2))
    names = ("y", "A", "f", *OWN[name])

    def x_of(*values):
        return solve({**numbers, **dict(zip(names, values))}, name).x

    assert gradgradcheck(x_of, tuple(numbers[key].clone().requires_grad_(True) for key in names), atol=1e-5)


class TestKinks:
    """One-sided finite differences on both sides; the gradient is the side on which row or variable stays as it is."""

    @staticmethod
    def one_sided(x_of, at, way, h=1e-6):
        here = x_of(at)
        return [((x_of(at + t * way) - here) / t).detach() for t in (h, -h)]

    @staticmethod
    def derivative(x_of, at, way):
        return torch.stack([g @ way for g in torch.autograd.functional.jacobian(x_of, at)])

    @pytest.mark.parametrize(("bound", "fixed"), [(1.0, 0), (0.0, 1)])
    def test_a_variable_at_its_bound_is_fixed(self, bound, fixed):
        cons = linsat.Constraints(A=[[1.0, 1.0]], b=[5.0])
        x_of = lambda y: linsat.project(y, cons, objective=linsat.Euclidean())  # noqa: E731
        at, way = torch.tensor([bound, 0.4], dtype=F64), torch.tensor([1.0, 0.0], dtype=F64)
        sides = self.one_sided(x_of, at, way)
        assert {round(float(side[0]), 6) for side in sides} == {0.0, 1.0}  # it is a kink
        assert torch.allclose(self.derivative(x_of, at, way), sides[fixed], atol=1e-6)
        assert float(sides[fixed][0]) == 0.0

    @pytest.mark.parametrize("sense", ["<=", ">="])
    def test_a_row_tight_with_multiplier_zero_is_idle(self, sense):
        row = {"A": [[1.0, 1.0]], "b": [1.0]} if sense == "<=" else {"C": [[1.0, 1.0]], "d": [1.0]}
        cons = linsat.Constraints(**row, lower=-np.inf, upper=np.inf)
        x_of = lambda y: linsat.project(y, cons, objective=linsat.Euclidean())  # noqa: E731
        at, way = torch.tensor([0.25, 0.75], dtype=F64), torch.tensor([1.0, 0.5], dtype=F64)
        sides = self.one_sided(x_of, at, way)
        idle = sides[1] if sense == "<=" else sides[0]
        assert not torch.allclose(sides[0], sides[1], atol=1e-3)
        assert torch.allclose(idle, way, atol=1e-6)
        assert torch.allclose(self.derivative(x_of, at, way), idle, atol=1e-6)

    def test_an_entropic_row_tight_with_multiplier_zero_is_idle(self):
        """Two scores of zero give shares of exactly one half, and the row says x1 + x2 <= 1."""

        def x_of(numbers):
            cons = linsat.Constraints(A=[[1.0, 1.0]], b=numbers[2:])
            return linsat.project(numbers[:2], cons, objective=linsat.Entropy(0.5, slack="none"), solver=TIGHT)

        at = torch.tensor([0.0, 0.0, 1.0], dtype=F64)
        for way, idle in (([1.0, 0.3, 0.0], 1), ([0.0, 0.0, 1.0], 0)):
            way = torch.tensor(way, dtype=F64)
            sides = self.one_sided(x_of, at, way)
            assert not torch.allclose(sides[0], sides[1], atol=1e-3)
            assert torch.allclose(self.derivative(x_of, at, way), sides[idle], atol=1e-5)

    def test_both_back_ends_choose_alike(self):
        cons = linsat.Constraints(A=[[1.0, 1.0, 0.0]], b=[1.0], lower=[0.0, -np.inf, 0.0], upper=[1.0, np.inf, 1.0])
        at = torch.tensor([0.25, 0.75, 1.0], dtype=F64)
        found = [
            torch.autograd.functional.jacobian(
                lambda y, b=backend: linsat.project(
                    y, cons, objective=linsat.Euclidean(), solver=linsat.Newton(backend=b)
                ),
                at,
            )
            for backend in ("arrays", "interior_point")
        ]
        assert torch.allclose(found[0], torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=F64)))
        assert torch.allclose(found[1], found[0], atol=1e-8)


@each_objective
def test_failed_instances_have_zero_gradients(name):
    own = {"tau": torch.full((3,), 0.3, dtype=F64), "weights": torch.ones(3, 2, dtype=F64)}
    own = {key: value.requires_grad_(True) for key, value in own.items()}
    scores = torch.randn(3, 2, dtype=F64, requires_grad=True)
    sides = torch.tensor([[1.0], [5.0], [0.4]], dtype=F64, requires_grad=True)
    cons = linsat.Constraints(E=[[1.0, 2.0]], f=[1.0]).with_rhs(f=sides)
    solution = linsat.solve(scores, cons, objective=OBJECTIVES[name](own), on_failure="ignore")
    assert solution.converged.tolist() == [True, False, True]
    assert solution.status[1] == "infeasible"
    loss = (solution.x * torch.tensor([1.0, 3.0], dtype=F64)).sum() + solution.duals.sum()
    wanted = [scores, sides, *(own[key] for key in OWN[name])]
    for grad in torch.autograd.grad(loss, wanted):
        assert torch.isfinite(grad).all()
        assert (grad[1] == 0).all()
        assert bool((grad[[0, 2]] != 0).any())


@pytest.mark.parametrize("name", ["paper", "slack-free", "euclidean", "weighted"])
def test_gradients_after_an_interior_point_answer(name):
    for seed in range(6):
        numbers = draw(seed, name)
        if near_kink(numbers, name):
            continue
        found = []
        for solver in (TIGHT, linsat.Newton(backend="interior_point")):
            learned = {key: value.clone().requires_grad_(True) for key, value in numbers.items()}
            solution = solve(learned, name, solver)
            wanted = [learned[key] for key in (*ARGUMENTS, *OWN[name])]
            found.append(torch.autograd.grad((solution.x * torch.arange(5)).sum(), wanted))
        assert solution.solved_by == "interior_point"
        for newton, interior in zip(*found):
            assert torch.allclose(newton, interior, atol=1e-7)


@pytest.mark.parametrize("kind", ["signed", "boundary", "unbounded", "dependent"])
def test_interior_point_gradients_on_larger_systems(kind):
    compared = 0
    for seed in range(6):
        rng = np.random.default_rng([seed, 9])
        system = open_system(rng, kind, largest=30, rows=12)
        cons = linsat.Constraints(**system.arguments())
        weights = torch.from_numpy(rng.normal(size=len(system.point)))
        start = torch.from_numpy(rng.normal(size=len(system.point)))
        objective = linsat.Euclidean() if kind == "unbounded" else linsat.Entropy(0.2, slack="none")
        grads = []
        for backend in ("arrays", "interior_point"):
            y = start.clone().requires_grad_(True)
            x = linsat.project(y, cons, objective=objective, solver=linsat.Newton(backend=backend))
            grads.append(torch.autograd.grad((x * weights).sum(), y)[0])
        assert torch.allclose(grads[0], grads[1], atol=1e-6), seed
        compared += int(bool((grads[0].abs() > 1e-6).any()))
    assert compared >= 3


@each_objective
def test_dependent_rows_leave_the_gradient_to_the_scores_unique(name):
    numbers = draw(3, name)
    y = numbers["y"].clone().requires_grad_(True)
    grads = []
    for copies in (1, 3):
        E, f = numbers["E"].repeat(copies, 1), numbers["f"].repeat(copies)
        x = solve({**numbers, "y": y, "E": E, "f": f}, name).x
        grads.append(torch.autograd.grad((x * torch.arange(5)).sum(), y)[0])
    assert torch.allclose(*grads, atol=1e-8)


@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize(("turn", "backend"), [(1e-3, "auto"), (1e-5, "auto"), (1e-7, "auto"), (1e-5, "arrays")])
def test_rows_that_are_nearly_parallel(count, turn, backend):
    """The nearest point moves at right angles to both rows, which span what one and the turn of the other span."""
    rng = np.random.default_rng(6)
    row, other, x0, weight = rng.normal(size=(4, 8))
    E = np.stack([row, row + turn * other])
    cons = linsat.Constraints(E=E, f=E @ x0, lower=-np.inf, upper=np.inf)
    y = torch.tensor(rng.normal(size=(count, 8)), requires_grad=True)
    x = linsat.project(y, cons, objective=linsat.Euclidean(), solver=linsat.Newton(backend=backend))
    (gradient,) = torch.autograd.grad((x * torch.tensor(weight)).sum(), y)
    Q, _ = np.linalg.qr(np.stack([row, other]).T)
    np.testing.assert_allclose(gradient, np.tile(weight - Q @ (Q.T @ weight), (count, 1)), atol=5e-6)
