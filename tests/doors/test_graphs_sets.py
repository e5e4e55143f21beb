"""Sets inside torch.compile: rows that are absent, masks, formulas, names, sides that are rounded, soft rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import gradgradcheck

import linsat
from tests.core import test_absent_rows as absent
from tests.core import test_forbidden as forbidden
from tests.core import test_formulas as formulas
from tests.core import test_names as names
from tests.core import test_rounded_sides as rounded

F64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo's own


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", absent.OBJECTIVES)
def test_sides_of_a_call_may_be_infinite(kind):
    objective = absent.OBJECTIVES[kind]
    cons = linsat.Constraints(A=absent.A, b=absent.B, C=absent.C, d=absent.D, E=absent.E, f=absent.F)
    expected = [linsat.project(absent.SCORES[i], absent.reduced(i), objective=objective) for i in range(4)]
    given = (torch.tensor(numbers) for numbers in (absent.SCORES, absent.B_EACH, absent.D_EACH))
    found = torch.compile(
        lambda y, b, d: linsat.project(y, cons.with_rhs(b=b, d=d), objective=objective), backend="eager"
    )(*given)
    np.testing.assert_allclose(found, expected, atol=1e-7)


# ------------------------------------------------------------------ scores of -inf, NaN and +inf


@pytest.mark.parametrize("name", forbidden.OBJECTIVES)
def test_masked_scores_have_the_gradients_of_an_eager_layer(name):
    system, scores, masks = forbidden.drawn(forbidden.SMALL, 4, 2)
    keys = ("A", "b", "C", "d", "E", "f", "lower", "upper")
    numbers = {n: nn.Parameter(t.detach()) for n, t in zip(keys, forbidden.tensors(system), strict=True)}
    layer = linsat.LinSAT(linsat.Constraints(**numbers), objective=forbidden.OBJECTIVES[name][0])
    y = torch.from_numpy(np.where(masks, -np.inf, scores)).requires_grad_()
    weights = torch.linspace(-1, 2, y.numel(), dtype=F64).reshape(y.shape)
    found = []
    for run in (layer, torch.compile(layer, backend="eager")):
        found.append(torch.autograd.grad((run(y) * weights).sum(), (y, *numbers.values())))
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager, atol=1e-8, rtol=0)
    assert not found[1][0][torch.from_numpy(masks)].any()


def test_second_derivatives_of_masked_scores():
    system, scores, masks = forbidden.drawn(forbidden.SMALL, 4, 2)
    cons, mask = linsat.Constraints(**system.arguments()), torch.from_numpy(masks)

    def x_of(y):
        masked = torch.where(mask, -torch.inf, y)
        return linsat.project(masked, cons, objective=linsat.Entropy(forbidden.TAU), solver=linsat.Newton(tol=1e-13))

    y = torch.from_numpy(scores).requires_grad_()
    assert gradgradcheck(torch.compile(x_of, backend="eager"), (y,), atol=1e-5)


def test_graphs_go_on_without_instances_that_hold_nan():
    cons = linsat.constraints.doubly_stochastic(3)
    y = torch.randn(3, 9, dtype=F64)
    expected = linsat.project(y[0], cons)
    y[1, 4] = torch.nan
    x = torch.compile(lambda y: linsat.project(y, cons, on_failure="nan"), backend="eager")(y)
    torch.testing.assert_close(x[0], expected, atol=1e-9, rtol=0)
    assert torch.isnan(x[1]).all()
    assert torch.isfinite(x[2]).all()


# ------------------------------------------------------------------ formulas, names, sides and prices


def test_formulas_inside_a_compiled_model() -> None:
    layer = linsat.LinSAT(formulas.many(), objective=linsat.Euclidean())
    y = torch.randn(2, formulas.N, dtype=F64)
    model = torch.compile(lambda y: layer(2 * y) + 1, backend="eager")
    assert torch.equal(model(y), layer(2 * y) + 1)


def test_graphs_keep_shapes():
    layer, y = linsat.LinSAT(names.roster(), tau=0.3), names.scores(4, 2, 3)
    compiled = torch.compile(lambda s: layer(s).square().sum(), backend="eager")
    assert torch.allclose(compiled(y), layer(y).square().sum())


def test_sides_of_float32_may_contradict_each_other_by_rounding():
    cons = linsat.Constraints(
        E=rounded.E, f=np.r_[np.full(rounded.N, 1 / rounded.N), np.full(rounded.M, 1 / rounded.M)]
    )
    expected = linsat.project(rounded.SCORES, linsat.Constraints(E=rounded.E, f=rounded.NARROW))
    found = torch.compile(lambda y, f: linsat.project(y, cons.with_rhs(f=f)), backend="eager", fullgraph=True)(
        rounded.SCORES, rounded.NARROW
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("learned", [False, True])
def test_broken_rows_and_violation_in_a_graph(learned):
    """x = y - price where two entries may add up to 0.5: broken by 3 - 0.2 - 0.5, in one graph."""
    sides = torch.tensor([0.5], dtype=F64, requires_grad=learned)
    soft = linsat.Constraints(A=[[1.0, 1.0]], b=sides, upper=2.0).soften(price=0.1)

    def measured(y):
        solution = linsat.solve(y, soft, objective=linsat.Euclidean())
        return solution.broken, solution.violation, solution.broken

    compiled = torch.compile(measured, fullgraph=True, backend="aot_eager")
    broken, violation, again = compiled(torch.full((2, 2), 1.5, dtype=F64))
    np.testing.assert_allclose(broken.detach(), [[2.3], [2.3]], rtol=0, atol=1e-12)
    assert torch.equal(broken, again)
    assert violation.tolist() == [0.0, 0.0]


def test_sides_by_the_names_of_rows_in_a_whole_graph():
    """Closed form: of equal scores under one row, x is its side divided among them, and moves with it."""
    cons = linsat.Constraints(A=np.ones((2, 3)), b=[1.0, 2.0], names=["limit", "other"])
    layer, limit = linsat.LinSAT(cons, objective=linsat.Euclidean()), torch.tensor(0.6, dtype=F64, requires_grad=True)
    compiled = torch.compile(lambda y, side: layer(y, rhs={"limit": side}), fullgraph=True, backend="eager")
    x = compiled(torch.ones(2, 3, dtype=F64), limit)
    torch.testing.assert_close(x, torch.full((2, 3), 0.2, dtype=F64))
    x[0, 0].backward()
    torch.testing.assert_close(limit.grad, torch.tensor(1 / 3, dtype=F64))
