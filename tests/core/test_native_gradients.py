"""The native core's gradients to every number of a statement: those of torch operations, and finite differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import linsat
from tests.helpers.arithmetic import needs_kernel
from tests.helpers.statements import KERNEL, TORCH

F64 = torch.float64
VARIABLES, INSTANCES, ROWS = 5, 4, 5
SIDES = {"A": "b", "C": "d", "E": "f"}
PRICES = torch.tensor([1.3, 0.7], dtype=F64)  # of the first row of A and the first of C
OBJECTIVES = ("paper", "slack-free", "nearest")

pytestmark = needs_kernel


@dataclass
class Statement:
    """A random statement, every number of which is learned."""

    numbers: dict[str, torch.Tensor]
    scores: torch.Tensor
    price: torch.Tensor | None
    parameter: torch.Tensor  # tau, or weights
    objective: str

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything that has a gradient."""
        soft = {} if self.price is None else {"price": self.price}
        return {"y": self.scores, **self.numbers, **soft, "parameter": self.parameter}

    def solve(self, solver: linsat.Newton, **changed: torch.Tensor) -> linsat.Solution:
        given = self.tensors() | changed
        cons = linsat.Constraints(**{name: given[name] for name in self.numbers})
        if self.price is not None:
            cons = cons.soften([0, 2], price=given["price"])
        made: dict[str, Any] = {
            "paper": lambda tau: linsat.Entropy(tau),
            "slack-free": lambda tau: linsat.Entropy(tau, slack="none"),
            "nearest": linsat.Euclidean,
        }
        objective = made[self.objective](given["parameter"])
        return linsat.solve(given["y"], cons, objective=objective, solver=solver, on_failure="ignore")


def statement(seed: int, objective: str, *, soft: bool, own: bool) -> Statement:
    """Two rows of each inequality and one equality around a point of the box; ``own``: numbers of each instance."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=F64)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64)

    lead = (INSTANCES,) if own else ()
    covering = uniform if seed % 2 else normal  # the paper's slack knows rows without negative coefficients
    matrices = {"A": normal(*lead, 2, VARIABLES), "C": covering(*lead, 2, VARIABLES)}
    matrices["E"] = uniform(*lead, 1, VARIABLES) + 0.1
    point = uniform(*lead, VARIABLES) * 0.6 + 0.2
    room = {"A": 0.1 * uniform(*lead, 2), "C": -0.1 * uniform(*lead, 2), "E": 0.0}
    sides = {SIDES[name]: (m @ point[..., None])[..., 0] + room[name] for name, m in matrices.items()}
    ends = (0.0, 1.0) if seed % 4 < 2 else (-1.0, 2.0)
    bounds = {name: torch.full((VARIABLES,), end, dtype=F64) for name, end in zip(("lower", "upper"), ends)}
    scores = 2 * normal(INSTANCES, VARIABLES)
    if seed % 3 == 0:
        scores[1, 2] = -torch.inf  # held at its lower bound
    parameter = torch.tensor(0.3, dtype=F64) if objective != "nearest" else 1 + 0.2 * torch.arange(VARIABLES, dtype=F64)
    made = Statement(matrices | sides | bounds, scores, PRICES.clone() if soft else None, parameter, objective)
    for tensor in made.tensors().values():
        tensor.requires_grad_()
    return made


def gradients(given: Statement, solver: linsat.Newton) -> tuple[linsat.Solution, dict[str, torch.Tensor | None]]:
    """The solution, and the gradients of a loss of x and of the duals to every number."""
    solution = given.solve(solver)
    weights = torch.Generator().manual_seed(1)
    loss = (solution.x * torch.randn(INSTANCES, VARIABLES, generator=weights, dtype=F64)).sum()
    loss = loss + (solution.duals * torch.randn(INSTANCES, ROWS, generator=weights, dtype=F64)).sum()
    tensors = given.tensors()
    return solution, dict(zip(tensors, torch.autograd.grad(loss, list(tensors.values()))))


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_number_has_the_gradient_of_the_torch_back_end(objective, soft, own):
    converged = 0
    for seed in range(8):
        given = statement(seed, objective, soft=soft, own=own)
        (ours, found), (theirs, expected) = (gradients(given, solver) for solver in (KERNEL, TORCH))
        assert ours.codes.tolist() == theirs.codes.tolist(), seed
        converged += int((ours.codes == 0).sum())
        torch.testing.assert_close(ours.x, theirs.x, rtol=0, atol=1e-7)
        for name, gradient in found.items():
            torch.testing.assert_close(
                gradient, expected[name], rtol=1e-5, atol=1e-6, msg=lambda text, at=(seed, name): f"{at}: {text}"
            )
    assert converged >= 8 * INSTANCES // 2


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_number_has_the_gradient_of_finite_differences(objective, soft, own):
    """Of x and of the duals, by every number, at a point where no row and no bound is about to let go."""
    given = statement(1, objective, soft=soft, own=own)
    solver = linsat.Newton(tol=1e-12, backend="kernel")
    assert given.solve(solver).converged.all()

    def answer(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        solution = given.solve(solver, **dict(zip(given.tensors(), tensors)))
        return solution.x, solution.duals

    assert torch.autograd.gradcheck(answer, tuple(given.tensors().values()), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gradients_do_not_depend_on_the_batch(objective):
    """Each instance by itself has the gradients that it has in a batch, to the last bit; shared numbers get the sum."""
    given = statement(5, objective, soft=True, own=True)
    _, together = gradients(given, KERNEL)
    shared = statement(5, objective, soft=True, own=False)
    solution = shared.solve(KERNEL)
    side = shared.numbers["b"]
    parts = [torch.autograd.grad(x.sum(), side, retain_graph=True)[0] for x in solution.x]
    torch.testing.assert_close(torch.autograd.grad(solution.x.sum(), side)[0], sum(parts), rtol=1e-12, atol=1e-12)
    for i in range(INSTANCES):
        own = {
            name: t.detach()[i : i + 1].requires_grad_() if t.dim() > 1 else t for name, t in given.tensors().items()
        }
        found = given.solve(KERNEL, **own)
        weights = torch.Generator().manual_seed(1)
        to_x = torch.randn(INSTANCES, VARIABLES, generator=weights, dtype=F64)[i]
        to_duals = torch.randn(INSTANCES, ROWS, generator=weights, dtype=F64)[i]
        loss = (found.x * to_x).sum() + (found.duals * to_duals).sum()
        for name in ("y", "A", "b", "C", "d", "E", "f"):
            assert torch.equal(torch.autograd.grad(loss, own[name], retain_graph=True)[0][0], together[name][i]), name


def test_an_instance_that_was_not_solved_has_no_gradient():
    given = statement(1, "paper", soft=False, own=True)
    with torch.no_grad():
        given.numbers["f"][2] = 99.0
    solution, found = gradients(given, KERNEL)
    assert [str(status) for status in solution.status] == ["converged", "converged", "infeasible", "converged"]
    for name in ("y", "A", "b", "C", "d", "E", "f"):
        assert not found[name][2].any()
        assert found[name][[0, 1, 3]].any()
    assert all(torch.isfinite(gradient).all() for gradient in found.values())
