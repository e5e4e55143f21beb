"""Learned numbers of a layer that another part of torch holds or makes: parametrizations, meta, TorchScript."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import linsat

Y = torch.tensor([0.3, 0.2, 0.9], dtype=torch.float64)
ROW = np.ones((1, 3))


class _Positive(nn.Module):
    def forward(self, raw: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus(raw)


def learned(**numbers: torch.Tensor) -> linsat.LinSAT:
    parameters = {name: nn.Parameter(number.double()) for name, number in numbers.items()}
    return linsat.LinSAT(linsat.Constraints(**{"A": ROW, "b": [1.0], **parameters}), objective=linsat.Euclidean())


def test_a_parametrized_side_is_solved_for_and_learned() -> None:
    """The sum of x is softplus(raw), which is below what the scores ask for; so is its derivative a sigmoid."""
    layer = learned(b=torch.tensor([0.5]))
    parametrize.register_parametrization(layer, "b", _Positive())
    total = layer(Y).sum()
    total.backward()
    raw = layer.parametrizations.b.original
    torch.testing.assert_close(total, nn.functional.softplus(raw)[0])
    torch.testing.assert_close(raw.grad, torch.sigmoid(raw))
    assert layer.constraints.rhs.item() == pytest.approx(total.item())
    torch.testing.assert_close(layer(Y, b=[0.2]).sum().item(), 0.2)


@pytest.mark.parametrize("change", [parametrizations.weight_norm, lambda layer, name: prune.identity(layer, name)])
def test_coefficients_that_another_module_makes(change) -> None:
    A = torch.tensor([[1.0, 2, 1], [0, 1, 3]])
    plain, changed = learned(A=A, b=torch.tensor([1.0, 1])), learned(A=A, b=torch.tensor([1.0, 1]))
    change(changed, "A")
    torch.testing.assert_close(changed(Y), plain(Y))
    changed(Y)[0].backward()
    assert all(parameter.grad is not None for parameter in changed.parameters())


def test_a_set_follows_numbers_that_were_put_in_place_of_others() -> None:
    layer = learned(b=torch.tensor([1.0]))
    layer.load_state_dict({"b": torch.tensor([0.4]).double()}, assign=True)
    assert layer.constraints.rhs.item() == pytest.approx(0.4)
    assert layer.constraints.violation(layer(Y)).item() <= 1e-9


def test_numbers_on_meta_are_asked_for_before_a_solve() -> None:
    layer = learned(b=torch.ones(1, device="meta"))
    assert "1 row: 1 <=; its numbers are on meta" in repr(layer)
    with pytest.raises(linsat.ConstraintError, match=r"b is on the meta device.*Fix: model.to_empty\(device='cpu'\)"):
        layer(Y)
    layer.to_empty(device="cpu").load_state_dict({"b": torch.tensor([0.4])})
    assert layer(Y).sum().item() == pytest.approx(0.4)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torch_script_is_refused_with_what_to_do() -> None:
    for model in (learned(), nn.Sequential(nn.Linear(3, 3), learned())):
        with pytest.raises(linsat.ConstraintError, match=r"torch.jit.script cannot compile.*torch.export.export"):
            torch.jit.script(model)
