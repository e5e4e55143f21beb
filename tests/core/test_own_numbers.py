"""Right-hand sides and bounds that differ per instance: values, gradients, what one instance does to the others."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import numpy as np
import pytest
import torch

import linsat
from tests.helpers.arithmetic import assert_same_answer
from tests.helpers.oracles import System, entropic_optimum, random_system

F64 = torch.float64


def _batch(rng, kind, count):
    """Systems with the same rows, each with other right-hand sides and another box that hold a known point."""
    base = random_system(rng, kind, largest=12, rows=6)
    k, l = base.matrix.shape
    order = np.argsort([("<=", ">=", "==").index(s) for s in base.senses], kind="stable")
    matrix, senses = base.matrix[order], [base.senses[i] for i in order]
    sign = np.array([{"<=": 1.0, ">=": -1.0, "==": 0.0}[s] for s in senses])
    systems = []
    for _ in range(count):
        lower = rng.uniform(-1, 1, l) * (rng.random() < 0.5)
        upper = lower + np.where(rng.random(l) < 0.1, 0.0, rng.uniform(0.5, 2.0, l))
        share = rng.uniform(0.05, 0.95, l)
        if kind == "boundary":
            share = np.where(rng.random(l) < 0.4, rng.integers(0, 2, l), share)
        point = lower + (upper - lower) * share
        slack = rng.exponential(0.1, k) * np.abs(matrix).sum(1) * (rng.random(k) < 0.7)
        systems.append(System(matrix, senses, matrix @ point + sign * slack, point, lower, upper))
    return systems


def _together(systems):
    """One set with the numbers of each system."""
    own = [system.arguments() for system in systems]
    cons = linsat.Constraints(**(own[0] | {"lower": 0.0, "upper": 1.0}))
    sides = {name: np.stack([one[name] for one in own]) for name in ("b", "d", "f") if name in own[0]}
    bounds = {name: np.stack([one[name] for one in own]) for name in ("lower", "upper")}
    return cons.with_rhs(**sides).with_bounds(**bounds)


@pytest.mark.parametrize("kind", ["positive", "signed"])
def test_each_instance_is_its_own_entropic_optimum(kind):
    rng = np.random.default_rng(3)
    vouched = 0
    for _ in range(8):
        systems = _batch(rng, kind, 5)
        scores = rng.normal(size=(5, len(systems[0].point)))
        x = linsat.project(torch.tensor(scores, requires_grad=True), _together(systems), tau=0.3)
        for system, y, found in zip(systems, scores, x.detach().numpy(), strict=True):
            assert system.violation(found) <= 1e-6
            expected = entropic_optimum(system, y, 0.3)
            if expected is not None:
                vouched += 1
                np.testing.assert_allclose(found, expected, atol=1e-5)
    assert vouched >= 20


def test_gradients_against_finite_differences_once_and_twice():
    base = linsat.Constraints(A=[[1.0, 2.0, 0.5]], b=1, C=[[1.0, -1.0, 2.0]], d=0)
    cons = base.with_rhs(b=[[1.2], [0.9]], d=[[0.3], [0.1]]).with_bounds(lower=[[0.0] * 3, [-1.0] * 3])
    scores = torch.randn(2, 3, dtype=F64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    project = lambda y: linsat.project(y, cons, tau=0.4)  # noqa: E731
    assert torch.autograd.gradcheck(project, (scores,), atol=1e-6)
    assert torch.autograd.gradgradcheck(project, (scores,), atol=1e-5)


def test_infeasible_mates_change_no_bit_of_project():
    """The feasible instances come out the same beside an infeasible one."""
    rng = np.random.default_rng(11)
    for _ in range(20):
        systems = _batch(rng, "signed", 4)
        scores = torch.tensor(rng.normal(size=(4, len(systems[0].point))))
        clean = linsat.project(scores, _together(systems), on_failure="ignore")
        systems[2].rhs = systems[2].rhs + 100 * np.where(np.array(systems[2].senses) == "<=", -1, 1)
        with pytest.warns(linsat.LinSATWarning, match="infeasible"):
            mixed = linsat.project(scores, _together(systems), on_failure="warn")
        assert_same_answer(mixed[[0, 1, 3]], clean[[0, 1, 3]])


def test_batches_that_broadcast_and_bad_scores():
    cons = linsat.constraints.simplex(4).with_rhs(f=[[1.0], [2.0]])
    scores = torch.randn(3, 1, 4, dtype=F64, generator=torch.Generator().manual_seed(1))
    x = linsat.project(scores, cons, tau=0.2)
    assert x.shape == (3, 2, 4)
    np.testing.assert_allclose(x.sum(-1), [[1.0, 2.0]] * 3, atol=1e-8)
    for i in range(3):
        assert torch.allclose(linsat.project(scores[i].expand(2, 4), cons, tau=0.2), x[i], atol=1e-12)
    wrong = torch.zeros(2, 4)
    wrong[1, 2] = float("inf")
    with pytest.raises(linsat.ConstraintError, match=r"instance 1, variable x\[2\]"):
        linsat.project(wrong, cons)
    with pytest.raises(linsat.ConvergenceError, match="step_limit"):
        linsat.project(torch.rand(2, 4), cons, tau=0.001, solver=linsat.Newton(max_steps=1))


def test_an_open_graph_keeps_no_tables():
    """What a graph keeps in numpy is of the size of the scores, although the tables of a solve are 800 times that."""
    rng = np.random.default_rng(0)
    A = rng.uniform(size=(40, 100))
    base = linsat.Constraints(A=A, b=A.sum(1) * 0.5)
    scores = torch.zeros(50, 100, requires_grad=True)
    upper = torch.tensor(rng.uniform(0.5, 1.5, (50, 100)))
    linsat.project(scores, base.with_bounds(upper=upper)).sum().backward()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        loss = linsat.project(scores, base.with_bounds(upper=upper)).sum()
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert loss.requires_grad
    assert kept - before < 8 * 8 * scores.numel()


def test_x_may_be_changed_in_place():
    scores = torch.zeros(2, 3, dtype=F64, requires_grad=True)
    for sides in (1.0, [[1.0], [2.0]]):
        x = linsat.project(scores, linsat.Constraints(A=[[1.0, 1.0, 1.0]], b=sides), tau=0.5)
        x.mul_(2.0)
        (gradient,) = torch.autograd.grad(x.sum(), scores)
        y = linsat.project(scores, linsat.Constraints(A=[[1.0, 1.0, 1.0]], b=sides), tau=0.5)
        assert torch.allclose(gradient, 2 * torch.autograd.grad(y.sum(), scores)[0])


def test_no_instances():
    cons = linsat.constraints.simplex(3).with_rhs(f=torch.zeros(0, 1))
    assert linsat.project(torch.zeros(0, 3), cons).shape == (0, 3)


def test_a_frozen_parameter_is_copied_by_what_is_derived_from_it():
    bound = torch.nn.Parameter(torch.tensor([1.0], dtype=F64))
    cons = linsat.Constraints(A=[[1.0, 1.0, 1.0]], b=bound)
    bound.requires_grad_(False)
    derived = cons.with_bounds(upper=0.9)
    with torch.no_grad():
        bound.fill_(2.0)
    assert derived.row_text(0).endswith("<= 1")
    assert float(linsat.project(torch.full((3,), 5.0), derived, tau=0.01).sum()) == pytest.approx(1.0, abs=1e-6)


def test_overflow_is_refused():
    cons = linsat.constraints.simplex(3)
    with pytest.raises(linsat.ConstraintError, match=r"tau is 1000.*; expected a positive number"):
        linsat.project(torch.zeros(3), cons, tau=10**400)
    wide = linsat.Constraints(A=[[1.0, 1.0, 1.0]], b=1.0, upper=1e20)
    y = torch.full((1, 3), 1e300, dtype=F64)
    for sides in (1.0, [[1.0]]):
        with pytest.raises(linsat.ConstraintError, match="beyond the range of float64"):
            linsat.project(y, wide.with_rhs(b=sides))
        found = linsat.solve(y, wide.with_rhs(b=sides), on_failure="ignore")
        assert str(found.status[0]) == "not_finite"
        assert bool(found.x.isnan().all())


def test_a_set_is_gone_with_its_last_name():
    """Right-hand sides per instance make a set for every batch: none may wait for the garbage collector."""
    base = linsat.constraints.simplex(3)
    gc.disable()
    try:
        for sides in ([[1.0], [2.0]], [1.0]):
            cons = base.with_rhs(f=sides)
            linsat.project(torch.zeros(2, 3), cons)
            linsat.solve(torch.zeros(2, 3), cons)
            last = weakref.ref(cons)
            del cons
            assert last() is None
    finally:
        gc.enable()


def test_other_right_sides_after_other_bounds():
    """What sets have in common is shared by those that differ in right-hand sides alone."""
    base = linsat.Constraints(A=[[1.0, 2.0]], b=1.0)
    scores = torch.full((2,), 50.0, dtype=F64)
    for upper in (1.0, 0.25, [0.5, 0.125]):
        wide = base.with_bounds(upper=upper)
        most = float(np.dot([1.0, 2.0], np.broadcast_to(upper, 2)))
        for side in (0.4, 0.7, 9.0):
            x = linsat.project(scores, wide.with_rhs(b=side), tau=0.01)
            assert float(x[0] + 2 * x[1]) == pytest.approx(min(side, most), abs=0.02)


# ------------------------------------------------------------------ numbers that come with the call


def _given(seed, batch, rows, shared):
    """A set of full rows, scores and numbers of a call, those in ``shared`` for all instances; some rows bind."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=F64, generator=generator)  # noqa: E731
    own = {name: () if name in shared else batch for name in ("A", "b", "lower", "upper")}
    numbers = {"A": draw(*own["A"], rows, 3), "b": draw(*own["b"], rows).abs() + 0.2}
    numbers |= {"lower": -draw(*own["lower"], 3).abs() - 0.5, "upper": draw(*own["upper"], 3).abs() + 0.5}
    cons = linsat.Constraints(A=np.ones((rows, 3)), b=np.ones(rows), lower=-1.0, upper=1.0)
    return cons, draw(*batch, 3), numbers


@pytest.mark.parametrize("objective", [linsat.Euclidean(), linsat.Entropy(0.5, slack="none")])
@pytest.mark.parametrize(
    ("batch", "shared"),
    [((), ()), ((4,), ()), ((4,), ("b", "upper")), ((3,), ("A", "lower", "upper")), ((2, 2), ()), ((2, 3), ("A", "b"))],
)
def test_gradients_of_a_second_call_with_other_numbers(batch, shared, objective):
    """Also where there are as many rows or variables as instances, and with several batch dimensions."""
    rows = 4
    cons = _given(0, batch, rows, shared)[0]
    for seed in (0, 1, 2):  # the first call is read, later ones are made from it
        _, y, numbers = _given(seed, batch, rows, shared)
        leaves = [tensor.requires_grad_() for tensor in (y, *numbers.values())]

        def project(y, *values, names=tuple(numbers)):
            return linsat.project(y, cons, objective=objective, **dict(zip(names, values, strict=True)))

        assert torch.autograd.gradcheck(project, leaves, atol=2e-5)
        flat = [tensor.detach().numpy() for tensor in leaves]
        np.testing.assert_allclose(project(*flat), project(*leaves).detach(), atol=1e-12)
    assert len(cons._calls) == 2  # one for each door


def test_numbers_in_any_memory():
    """Transposed, strided, in float32, and those that change in place between calls."""
    cons, y, numbers = _given(5, (4,), 5, ())
    turned = numbers | {
        "A": numbers["A"].transpose(1, 2).contiguous().transpose(1, 2),
        "b": torch.stack([numbers["b"], numbers["b"]], -1)[..., 0],
    }
    single = {name: tensor.float() for name, tensor in numbers.items()}
    plain = numbers["A"].clone().requires_grad_()
    expected = linsat.project(y, cons._with_numbers(**numbers | {"A": plain}), objective=linsat.Euclidean())
    (slope,) = torch.autograd.grad(expected.square().sum(), plain)
    for given, atol in ((numbers, 1e-9), (turned, 1e-9), (single, 1e-5)):
        for _ in range(2):
            A = given["A"].detach().requires_grad_()
            x = linsat.project(y, cons, objective=linsat.Euclidean(), **given | {"A": A})
            np.testing.assert_allclose(x.detach(), expected.detach(), atol=atol)
            (gradient,) = torch.autograd.grad(x.square().sum(), A)
            assert gradient.dtype is A.dtype
            np.testing.assert_allclose(gradient, slope, atol=10 * atol)
    numbers["b"].add_(1.0)
    x = linsat.project(y, cons, objective=linsat.Euclidean(), **numbers)
    np.testing.assert_allclose(x, linsat.project(y, cons._with_numbers(**numbers), objective=linsat.Euclidean()))


@pytest.mark.parametrize("backend", ["auto", "arrays"])
def test_answers_do_not_wait_for_the_garbage_collector(backend):
    cons, y, numbers = _given(7, (4,), 3, ())
    y.requires_grad_()
    solver = linsat.Newton(backend=backend)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            x = linsat.project(y, cons, solver=solver, **numbers)
            solution = linsat.solve(y, cons, solver=solver, **numbers)
            (x.sum() + solution.x.sum() + solution.duals.sum()).backward()
            last = [weakref.ref(tensor) for tensor in (x, solution.x, solution.duals)]
            del x, solution
            assert [reference() for reference in last] == [None] * 3
    finally:
        gc.enable()
