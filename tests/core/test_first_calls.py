"""What a first day brings: plausible mistakes are named, and plausible calls work."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import linsat
from linsat import ConstraintError

CAP = linsat.Constraints(A=[[1.0, 1, 1, 1]], b=1.0)
ENDLESS = linsat.Constraints(A=[[1.0, 1]], b=4.0, upper=float("inf"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CAP and CAP, "cons1 & cons2"),
        (lambda: linsat.decode.rounding(np.array([3.0, 2]), ENDLESS), "finite bounds"),
        (lambda: linsat.decode.greedy_repair(np.array([3.0, 2]), ENDLESS), "finite bounds"),
        (lambda: list(linsat.Variable(3) <= 1), "index the expressions"),
        (lambda: linsat.project_each([torch.zeros(4)], CAP), "expected a list"),
        (
            lambda: linsat.project(torch.zeros(4), CAP, objective=linsat.Euclidean(), solver=linsat.Sinkhorn()),
            "Entropy.* only",
        ),
        (lambda: linsat.Entropy(0), "tau is 0"),
        (lambda: linsat.KL(-1), "tau is -1"),
        (lambda: linsat.Tsallis(0), "alpha is 0"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ConstraintError, match=message):
        call()


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_answers_can_be_changed_in_place(shape):
    y = torch.full(shape, 0.5, dtype=torch.float64, requires_grad=True)
    x = linsat.project(y, CAP, objective=linsat.Euclidean())
    x *= 2
    (x * torch.arange(4.0)).sum().backward()
    # The nearest point to y on sum x = 1 moves with y by I - 11'/4: twice (0, 1, 2, 3) less its mean.
    torch.testing.assert_close(y.grad, torch.tensor([-3.0, -1, 1, 3], dtype=torch.float64).expand(shape))


def test_sets_of_one_pattern_as_many_as_their_rows():
    x = linsat.Variable(4)
    sets = [linsat.subject_to(x[:2] @ w[:2] <= 1, x[2:] @ w[2:] <= 1) for w in ([1.0, 2, 3, 4], [1.0, 1, 1, 1])]
    made = linsat.project_each([np.ones(4)] * 2, sets, objective=linsat.Euclidean())
    np.testing.assert_allclose(made, [[0.6, 0.2, 0.28, 0.04], [0.5] * 4], atol=1e-5)


def test_a_layer_with_learned_numbers_is_made_without_numbers_and_given_them_later():
    with torch.device("meta"):
        cap = torch.nn.Parameter(torch.ones(1))
        layer = linsat.LinSAT(linsat.Constraints(A=[[1.0, 1.0, 1.0]], b=cap), objective=linsat.Euclidean())
    assert "on meta" in repr(layer)
    layer.to_empty(device="cpu")
    torch.nn.init.constant_(layer.b, 0.6)
    x = layer(torch.ones(3))
    x[0].backward()
    torch.testing.assert_close(x, torch.full((3,), 0.2), atol=1e-6, rtol=0)  # alike, so each has a third
    torch.testing.assert_close(layer.b.grad, torch.full((1,), 1 / 3), atol=1e-5, rtol=0)
