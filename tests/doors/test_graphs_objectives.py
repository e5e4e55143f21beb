"""Objectives with numbers of their own inside torch.compile and torch.export."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import linsat
from tests.core import test_objective_contract as contract
from tests.core.test_objectives_quadratic import smooth_case
from tests.core.test_objectives_tsallis import entmax15
from tests.helpers.oracles import kl_optimum, random_system

F64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning:torch.*")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def kl():
    """Signed rows with a prior: Clarabel."""
    system = random_system(np.random.default_rng(12), "signed", largest=9, rows=5)
    l = len(system.point)
    y, prior = np.random.default_rng(13).normal(size=(3, l)), np.linspace(0.5, 1.5, l)
    expected = np.stack([kl_optimum(system, one, 0.7, prior=prior) for one in y])
    return linsat.Constraints(**system.arguments()), linsat.KL(0.7, torch.tensor(prior)), y, expected, 1e-5


def tsallis():
    """The simplex: closed form."""
    y = np.random.default_rng(5).normal(size=(3, 6))
    return linsat.constraints.simplex(6), linsat.Tsallis(1.5), y, np.stack([entmax15(one) for one in y]), 1e-9


@pytest.mark.parametrize("case", [kl, tsallis])
def test_one_graph_and_an_exported_program(case):
    cons, objective, y, expected, atol = case()
    scores = torch.tensor(y)
    compiled = torch.compile(
        lambda s: linsat.project(s, cons, objective=objective), fullgraph=True, backend="aot_eager"
    )
    np.testing.assert_allclose(compiled(scores), expected, atol=atol)
    program = torch.export.export(linsat.LinSAT(cons, objective=objective), (scores,))
    np.testing.assert_allclose(program.module()(scores), expected, atol=atol)


def test_a_full_matrix_in_one_graph():
    case = {name: number.detach() for name, number in smooth_case(0).items()}
    cons = linsat.Constraints(A=case["A"], b=case["b"], lower=-2.0, upper=2.0)

    def layer(y, P):
        return linsat.project(y, cons, objective=linsat.Quadratic(P))

    y, P = case["y"], case["P"][0]
    found = torch.compile(layer, fullgraph=True, backend="aot_eager")(y, P)
    torch.testing.assert_close(found, layer(y, P), atol=1e-12, rtol=0)


def test_a_learned_matrix_is_exported(tmp_path):
    L = torch.tensor([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-0.5, 0.2, 1.0]], dtype=F64)
    layer = linsat.LinSAT(linsat.constraints.simplex(3), objective=linsat.Quadratic(torch.nn.Parameter(L @ L.T)))
    y = torch.tensor([[0.1, 0.05, -0.2], [0.0, 0.2, 0.0]], dtype=F64)
    torch.export.save(torch.export.export(layer, (y,)), tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2").module()
    torch.testing.assert_close(loaded(y), layer(y), atol=1e-12, rtol=0)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo's own
@pytest.mark.parametrize("kind", [contract.Thrifty, contract.NamesItsNumbers])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 1), (2, 4)])
def test_a_learned_number_of_an_own_objective_in_a_graph(kind, shape):
    price = torch.nn.Parameter(torch.full(shape, 0.3, dtype=F64))
    expected = contract.by_differences(kind, price)
    layer = linsat.LinSAT(contract.TRADES, objective=kind(price, contract.CENTER))
    (torch.compile(layer, backend="eager")(contract.SIGNALS) * contract.WEIGHTS).sum().backward()
    torch.testing.assert_close(price.grad, expected, atol=1e-6, rtol=0)
