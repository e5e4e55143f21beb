"""Gradients: exact against finite differences for everything, unrolled = implicit, constant memory, second order."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import linsat

TIGHT = linsat.Newton(tol=1e-13)
F64 = torch.float64


def _family(name):
    sets = {
        "simplex": linsat.constraints.simplex(4),
        "top_k": linsat.constraints.top_k(5, 2),
        "at_most_k": linsat.constraints.top_k(5, 2, exactly=False),
        "budget": linsat.constraints.budget([1.0, 2.0, 0.5, 3.0], 2.5),
        "doubly_stochastic": linsat.constraints.doubly_stochastic(3),
        "matching": linsat.constraints.matching(2, 3, at_most=1),
        "capacity": linsat.constraints.capacity_assignment(3, 2, [2, 2]),
        "ranking": linsat.constraints.ranking(3),
        "tour": linsat.constraints.tour(4, 0, 3, priority=1, within=2),
        "portfolio": linsat.constraints.portfolio(5, [0, 2], 0.5),
    }
    return sets[name]


@pytest.mark.parametrize(
    "name",
    [
        "simplex",
        "top_k",
        "at_most_k",
        "budget",
        "doubly_stochastic",
        "matching",
        "capacity",
        "ranking",
        "tour",
        "portfolio",
    ],
)
def test_scores_and_tau_of_every_family(name):
    cons = _family(name)
    scores = torch.randn(2, cons.num_variables, dtype=F64, requires_grad=True)
    tau = torch.tensor(0.4, dtype=F64, requires_grad=True)
    assert gradcheck(lambda y, t: linsat.project(y, cons, tau=t, solver=TIGHT), (scores, tau), atol=1e-6)


def _everything():
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return 0.3 + torch.rand(*shape, generator=generator, dtype=F64)

    point = torch.tensor([0.3, 0.5, 0.6, 0.4], dtype=F64)
    A, C, E = draw(2, 4), draw(1, 4), draw(1, 4)
    A[0, 1] *= -1
    E[0, 2] *= -1
    return {
        "A": A,
        "b": A @ point + 0.15,
        "C": C,
        "d": C @ point - 0.2,
        "E": E,
        "f": E @ point,
        "lower": torch.tensor([0.0, -0.1, 0.0, 0.05], dtype=F64),
        "upper": torch.tensor([1.0, 1.2, 0.9, 1.0], dtype=F64),
    }


@pytest.mark.parametrize("wanted", ["A", "b", "C", "d", "E", "f", "lower", "upper"])
def test_every_argument_against_finite_differences(wanted):
    arguments = _everything()
    scores = torch.randn(3, 4, dtype=F64)

    def solve(value):
        return linsat.project(scores, linsat.Constraints(**{**arguments, wanted: value}), tau=0.3, solver=TIGHT)

    assert gradcheck(solve, (arguments[wanted].clone().requires_grad_(True),), atol=1e-6)


def test_zeros_of_a_learned_matrix_have_gradients_too():
    E = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]], dtype=F64, requires_grad=True)
    f = torch.tensor([1.0, 0.9], dtype=F64)
    scores = torch.randn(3, dtype=F64)
    solve = lambda E: linsat.project(scores, linsat.Constraints(E=E, f=f), tau=0.3, solver=TIGHT)  # noqa: E731
    assert gradcheck(solve, (E,), atol=1e-6)


def test_sparse_coefficients_have_gradients():
    values = torch.tensor([1.0, 2.0, 1.5], dtype=F64, requires_grad=True)
    index = torch.tensor([[0, 0, 1], [0, 2, 1]])
    scores = torch.randn(3, dtype=F64)

    def solve(values):
        A = torch.sparse_coo_tensor(index, values, (2, 3), check_invariants=True)
        return linsat.project(scores, linsat.Constraints(A=A, b=[1.1, 0.7]), tau=0.3, solver=TIGHT)

    assert gradcheck(solve, (values,), atol=1e-6)


def test_per_instance_right_sides_and_bounds():
    base = linsat.constraints.matching(2, 3, at_most=1)
    scores = torch.randn(3, 6, dtype=F64)
    sides = (torch.rand(3, len(base), dtype=F64) + 0.6).requires_grad_(True)
    upper = (torch.rand(3, 6, dtype=F64) + 0.8).requires_grad_(True)
    lower = (-0.1 * torch.rand(3, 6, dtype=F64)).requires_grad_(True)

    def solve(sides, lower, upper):
        cons = base.with_rhs(b=sides).with_bounds(lower=lower, upper=upper)
        return linsat.project(scores, cons, tau=0.3, solver=TIGHT)

    assert gradcheck(solve, (sides, lower, upper), atol=1e-6)


def test_duals_are_differentiable():
    cons = linsat.Constraints(E=[[1.0, 2.0, 0.5]], f=[1.3], A=[[1.0, 1.0, 0.0]], b=[1.0])
    scores = torch.randn(2, 3, dtype=F64, requires_grad=True)
    assert gradcheck(lambda y: linsat.solve(y, cons, tau=0.3, solver=TIGHT).duals, (scores,), atol=1e-6)


def test_double_backward_is_exact():
    arguments = _everything()
    names = ("A", "b", "d", "f", "upper")
    scores = torch.randn(2, 4, dtype=F64, requires_grad=True)
    learned = [arguments[name].clone().requires_grad_(True) for name in names]

    def solve(scores, *values):
        cons = linsat.Constraints(**{**arguments, **dict(zip(names, values, strict=True))})
        return linsat.project(scores, cons, tau=0.4, solver=TIGHT)

    assert gradgradcheck(solve, (scores, *learned), atol=1e-5)


@pytest.mark.parametrize("make", [linsat.constraints.doubly_stochastic, lambda n: linsat.constraints.matching(n, n)])
def test_implicit_equals_unrolled_at_convergence(make):
    cons = make(4)
    weights = torch.randn(16, dtype=F64)

    def gradient(solver):
        scores = torch.linspace(-1, 1, 16, dtype=F64).sin().requires_grad_(True)
        x = linsat.project(scores, cons, tau=0.3, solver=solver)
        (x * weights).sum().backward()
        return scores.grad

    newton = gradient(TIGHT)
    implicit = gradient(linsat.Sinkhorn(tol=1e-13, max_sweeps=5000))
    unrolled = gradient(linsat.Sinkhorn(tol=1e-13, max_sweeps=5000, gradient="unrolled"))
    assert torch.allclose(newton, implicit, atol=1e-9)
    assert torch.allclose(newton, unrolled, atol=1e-9)


def test_memory_does_not_grow_with_the_steps():
    cons = linsat.constraints.doubly_stochastic(6)
    kept = {}
    for tau in (1.0, 0.1, 0.005):
        sizes: list[int] = []
        scores = torch.rand(4, 36, dtype=F64, requires_grad=True)

        def pack(tensor, sizes=sizes):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            solution = linsat.solve(scores, cons, tau=tau)
        kept[int(solution.steps.max())] = (len(sizes), sum(sizes))
    assert len(kept) == 3  # three different numbers of steps
    assert len(set(kept.values())) == 1


def test_unrolled_memory_does_grow():
    cons = linsat.constraints.doubly_stochastic(4)
    counts = []
    for sweeps in (2, 20):
        sizes: list[int] = []
        scores = torch.rand(16, dtype=F64, requires_grad=True)
        solver = linsat.Sinkhorn(max_sweeps=sweeps, tol=0.0, gradient="unrolled")
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(1) or t, lambda t: t):
            linsat.project(scores, cons, solver=solver, on_failure="ignore")
        counts.append(len(sizes))
    assert counts[1] > 5 * counts[0]


def test_gradient_of_an_unconverged_batch_mate_is_finite():
    cons = linsat.Constraints(E=[[1.0, 1.0]], f=[1.0]).with_rhs(f=[[1.0], [5.0]])
    scores = torch.randn(2, 2, dtype=F64, requires_grad=True)
    linsat.project(scores, cons, on_failure="ignore").sum().backward()
    assert torch.isfinite(scores.grad).all()


def test_learned_right_side_trains_in_place():
    bound = torch.nn.Parameter(torch.tensor([0.5], dtype=F64))
    layer = linsat.LinSAT(linsat.Constraints(A=[[1.0, 1.0, 1.0]], b=bound), tau=0.1)
    assert [name for name, _ in layer.named_parameters()] == ["b"]
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    scores = torch.tensor([1.0, 1.0, 1.0], dtype=F64)
    for _ in range(60):
        optimiser.zero_grad()
        loss = (layer(scores).sum() - 1.5) ** 2
        loss.backward()
        optimiser.step()
    assert float(layer(scores).sum().detach()) == pytest.approx(1.5, abs=0.05)


class TestLearned:
    def test_freezing_a_learned_matrix(self):
        layer = linsat.LinSAT(linsat.Constraints(A=torch.nn.Parameter(torch.rand(2, 4)), b=[1.0, 1.0]))
        scores = torch.randn(3, 4)
        expected = layer(scores).detach()
        layer.requires_grad_(False)
        assert torch.allclose(layer(scores), expected, atol=1e-6)

    def test_a_scalar_parameter_is_registered_and_copied(self):
        import copy

        layer = linsat.LinSAT(linsat.Constraints(A=[[1.0, 1, 1], [1.0, 0, 0]], b=torch.nn.Parameter(torch.tensor(0.8))))
        assert [name for name, _ in layer.named_parameters()] == ["b"]
        layer(torch.ones(3)).sum().backward()
        assert layer.get_parameter("b").grad is not None
        assert torch.equal(copy.deepcopy(layer)(torch.ones(3)), layer(torch.ones(3)))

    def test_parameters_that_were_swapped_are_used(self):
        layer = linsat.LinSAT(linsat.Constraints(A=[[1.0, 1, 1]], b=torch.nn.Parameter(torch.tensor([1.0]))), tau=0.01)
        scores = 3 * torch.ones(3)
        swapped = torch.func.functional_call(layer, {"b": torch.tensor([2.0])}, scores)
        assert float(swapped.sum()) == pytest.approx(2.0, abs=0.02)
        layer.load_state_dict({"b": torch.tensor([0.5])}, assign=True)
        assert float(layer(scores).sum().detach()) == pytest.approx(0.5, abs=0.02)

    def test_numbers_that_turned_bad_are_refused(self):
        bound = torch.nn.Parameter(torch.tensor([0.5]))
        upper = torch.nn.Parameter(torch.tensor([0.5, 1.0]))
        layer = linsat.LinSAT(linsat.Constraints(A=[[1.0, 1.0]], b=bound, upper=upper))
        with torch.no_grad():
            upper[0] = -0.5
        with pytest.raises(linsat.ConstraintError, match="lower.*is above upper"):
            layer(torch.zeros(2))
        with torch.no_grad():
            upper[0], bound[0] = 0.5, float("nan")
        with pytest.raises(linsat.ConstraintError, match=r"b\[0\] is nan"):
            layer(torch.zeros(2))


def test_batched_gradients():
    cons = linsat.constraints.simplex(3)
    scores = torch.randn(3, dtype=F64, requires_grad=True)
    expected = torch.autograd.functional.jacobian(lambda y: linsat.project(y, cons), scores)
    x = linsat.project(scores, cons)
    (batched,) = torch.autograd.grad(x, scores, torch.eye(3, dtype=F64), is_grads_batched=True)
    assert torch.allclose(batched, expected, atol=1e-9)
