"""Fenchel-Young losses, exact argmax and regret, against closed forms, Clarabel, HiGHS and finite differences."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tests.helpers.oracles import (
    System,
    elastic,
    entropic_optimum,
    linear_optimum,
    nearest_point,
    open_system,
    random_system,
)

from tests.helpers.oracles import slack_free_optimum, soft_system  # isort: skip

import linsat
from linsat.losses import perturbed_fenchel_young_loss

OBJECTIVES = {
    "entropic slack": linsat.Entropy(0.3),
    "no slack": linsat.Entropy(0.3, slack="none"),
    "euclidean": linsat.Euclidean(),
}
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


def numbers(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=count)


def entropy(share: np.ndarray) -> float:
    inside = np.clip(share, 1e-300, 1.0)
    other = np.clip(1 - share, 1e-300, 1.0)
    return float((share * np.log(inside) + (1 - share) * np.log(other)).sum())


def penalty(system: System, x: np.ndarray, objective: linsat.Objective) -> float:
    """Omega as the documents state it, the slack shares worked out again from the paper."""
    if isinstance(objective, linsat.Euclidean):
        return float((x**2).sum() / 2)
    width = system.upper - system.lower
    total = entropy((x - system.lower) / width)
    for a, sense, b in zip(system.matrix, system.senses, system.rhs):
        if objective.slack == "none" or sense == "==":
            continue
        least = np.minimum(a * system.lower, a * system.upper).sum()
        most = np.maximum(a * system.lower, a * system.upper).sum()
        if (sense == "<=" and b >= most) or (sense == ">=" and b <= least):
            continue  # holds on the whole box: no slack
        covering = np.floor((most - least) / (b - least) + 1e-12) * (b - least) if (a >= 0).all() else most - b
        mass, side = (b - least, b) if sense == "<=" else (covering, b + covering)
        reach = (np.abs(a) * width)[np.abs(a) * width > 0]
        total += mass / reach.mean() * entropy(np.clip([(side - a @ x) / mass], 0, 1))
    return objective.tau * total


# ------------------------------------------------------------------ closed forms


def test_without_rows_the_entropic_loss_is_binary_cross_entropy() -> None:
    y, t = torch.from_numpy(numbers(12)), torch.from_numpy(numbers(12, 1) > 0).double()
    box = linsat.Constraints(lower=np.zeros(12), upper=1.0)
    expected = 0.2 * torch.nn.functional.binary_cross_entropy_with_logits(y / 0.2, t, reduction="sum")
    assert linsat.fenchel_young_loss(y, t, box, tau=0.2).item() == pytest.approx(expected.item(), abs=1e-12)


def test_two_shares_that_sum_to_one_are_logistic_at_twice_the_temperature() -> None:
    y = np.array([0.7, -0.4])
    expected = 2 * 0.3 * math.log1p(math.exp(-(y[0] - y[1]) / (2 * 0.3)))  # both shares have an entropy
    found = linsat.fenchel_young_loss(y, [1.0, 0.0], linsat.constraints.simplex(2), tau=0.3)
    assert float(found) == pytest.approx(expected, abs=1e-12)


def test_on_the_simplex_the_euclidean_loss_is_the_sparsemax_loss() -> None:
    y, t = numbers(7) * 2, np.eye(7)[3]
    ordered = np.sort(y)[::-1]
    support = max(k for k in range(1, 8) if 1 + k * ordered[k - 1] > ordered[:k].sum())
    shift = (ordered[:support].sum() - 1) / support
    chosen = y[y > shift]
    expected = 0.5 * (chosen**2 - shift**2).sum() + 0.5 - y[3]  # Martins and Astudillo, 2016
    found = linsat.fenchel_young_loss(y, t, linsat.constraints.simplex(7), objective=linsat.Euclidean())
    assert float(found) == pytest.approx(expected, abs=1e-12)


def test_perturbed_loss_of_one_bounded_variable() -> None:
    y, sigma = 0.4, 0.8
    spread = y / sigma
    density, mass = math.exp(-(spread**2) / 2) / math.sqrt(2 * math.pi), 0.5 * (1 + math.erf(spread / math.sqrt(2)))
    scores = torch.tensor([y], dtype=torch.float64, requires_grad=True)
    box = linsat.Constraints(lower=np.zeros(1), upper=1.0)
    draws = torch.Generator().manual_seed(3)
    loss = perturbed_fenchel_young_loss(scores, [1.0], box, sigma=sigma, samples=800, generator=draws)
    loss.backward()
    assert loss.item() == pytest.approx(y * mass + sigma * density - y, abs=0.06)  # 4 standard errors
    assert scores.grad.item() == pytest.approx(mass - 1, abs=0.07)


# ------------------------------------------------------------------ against other solvers


@every_objective
@pytest.mark.parametrize("kind", ["positive", "signed", "boundary"])
def test_value_is_that_of_the_definition_at_clarabels_optimum(kind: str, objective: linsat.Objective) -> None:
    compared = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        system = random_system(rng, kind, largest=20, rows=5)
        y = rng.normal(size=len(system.point))
        if isinstance(objective, linsat.Euclidean):
            best = nearest_point(system, y)
        else:
            best = (slack_free_optimum if objective.slack == "none" else entropic_optimum)(system, y, objective.tau)
        if best is None:
            continue
        t = system.point
        expected = y @ (best - t) - penalty(system, best, objective) + penalty(system, t, objective)
        cons = linsat.Constraints(**system.arguments())
        found = float(linsat.fenchel_young_loss(y, t, cons, objective=objective))
        assert found == pytest.approx(expected, abs=1e-6 * (1 + abs(expected)))
        compared += 1
    assert compared >= 3


def test_infinite_bounds_and_soft_rows_follow_clarabel() -> None:
    rng = np.random.default_rng(5)
    system = open_system(rng, "unbounded", largest=15, rows=6)
    y = rng.normal(size=len(system.point))
    best, t = nearest_point(system, y), system.point
    expected = ((y - t) ** 2).sum() / 2 - ((y - best) ** 2).sum() / 2
    cons = linsat.Constraints(**system.arguments())
    assert float(linsat.fenchel_young_loss(y, t, cons, objective=linsat.Euclidean())) == pytest.approx(
        expected, rel=1e-7
    )

    for seed in range(3):
        rng = np.random.default_rng(seed)
        system, price = soft_system(rng, contradictory=True, largest=10, rows=5)
        y, t = rng.normal(size=len(system.point)), system.point  # satisfies the hard rows

        def broken(x: np.ndarray, system: System = system, price: np.ndarray = price) -> float:
            gap = system.matrix @ x - system.rhs
            sign = {"<=": lambda g: max(g, 0), ">=": lambda g: max(-g, 0), "==": abs}
            return sum(p * sign[s](g) for g, s, p in zip(gap, system.senses, price) if np.isfinite(p))

        best = nearest_point(system, y, price=price)
        expected = ((y - t) ** 2).sum() / 2 - ((y - best) ** 2).sum() / 2 + broken(t) - broken(best)
        hard = linsat.Constraints(**system.arguments())
        order = [i for sense in ("<=", ">=", "==") for i, s in enumerate(system.senses) if s == sense]
        soft = [i for i, j in enumerate(order) if np.isfinite(price[j])]
        cons = hard.soften(soft, price=price[[order[i] for i in soft]])
        found = float(linsat.fenchel_young_loss(y, t, cons, objective=linsat.Euclidean()))
        assert found == pytest.approx(expected, rel=1e-6)


# ------------------------------------------------------------------ what a loss must be


@every_objective
def test_gradients_follow_finite_differences_and_are_x_minus_target(objective: linsat.Objective) -> None:
    system = random_system(np.random.default_rng(2), "signed", largest=12, rows=4)
    cons = linsat.Constraints(**system.arguments())
    y, t = torch.from_numpy(numbers(3 * len(system.point)).reshape(3, -1)).requires_grad_(), system.point
    loss = linsat.fenchel_young_loss(y, t, cons, objective=objective, reduction="sum")
    loss.backward()
    x = linsat.project(y.detach(), cons, objective=objective)
    assert torch.allclose(y.grad, x - torch.from_numpy(t), atol=1e-12)
    step = 1e-5
    for i, j in ((0, 0), (1, 2), (2, 1)):
        moved = y.detach().clone()
        moved[i, j] += step
        up = linsat.fenchel_young_loss(moved, t, cons, objective=objective, reduction="sum")
        moved[i, j] -= 2 * step
        down = linsat.fenchel_young_loss(moved, t, cons, objective=objective, reduction="sum")
        assert y.grad[i, j].item() == pytest.approx(((up - down) / (2 * step)).item(), abs=1e-6)


def test_tau_and_weights_have_gradients() -> None:
    cons = linsat.constraints.portfolio(6, [0, 2], 0.5)
    y, t = torch.from_numpy(numbers(6)), torch.tensor([0.5, 0.2, 0.1, 0.2, 0.0, 0.0], dtype=torch.float64)
    tau = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    weights = torch.linspace(0.5, 2.0, 6, dtype=torch.float64).requires_grad_()
    for number, made in ((tau, linsat.Entropy), (weights, linsat.Euclidean)):
        assert torch.autograd.gradcheck(
            lambda y, n, made=made: linsat.fenchel_young_loss(y, t, cons, objective=made(n)),
            (y.clone().requires_grad_(), number),
        )


@every_objective
def test_zero_exactly_where_the_target_is_the_answer(objective: linsat.Objective) -> None:
    for seed in range(5):
        system = random_system(np.random.default_rng(seed), "boundary", largest=15, rows=6)
        cons = linsat.Constraints(**system.arguments())
        y = numbers(len(system.point), seed)
        x = linsat.project(y, cons, objective=objective)
        assert 0 <= float(linsat.fenchel_young_loss(y, x, cons, objective=objective)) < 1e-9
        if np.abs(x - system.point).max() > 0.05:
            assert float(linsat.fenchel_young_loss(y, system.point, cons, objective=objective)) > 1e-4


def test_training_on_the_loss_recovers_the_decision() -> None:
    cons = linsat.constraints.permutation(4)
    target = torch.eye(4)[[2, 0, 3, 1]]
    y = torch.zeros(4, 4, requires_grad=True)
    optimizer = torch.optim.SGD([y], lr=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        linsat.fenchel_young_loss(y, target, cons, objective=linsat.Euclidean()).backward()
        optimizer.step()
    assert torch.equal(linsat.argmax(y.detach(), cons), target)


def test_batches_shapes_dtypes_and_reductions_agree() -> None:
    cons = linsat.constraints.capacity_assignment(3, 2, capacity=2)
    y = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(0))
    t = linsat.argmax(-y, cons)
    each = linsat.fenchel_young_loss(y, t, cons, reduction="none")
    assert each.shape == (5,)
    assert each.dtype == torch.float32
    alone = [float(linsat.fenchel_young_loss(a.double().numpy(), b.numpy(), cons)) for a, b in zip(y, t)]
    assert np.allclose(each, alone, rtol=1e-6)
    assert linsat.fenchel_young_loss(y, t, cons, reduction="sum").item() == pytest.approx(sum(alone), rel=1e-6)
    assert linsat.fenchel_young_loss(y, t.to(torch.int64), cons).item() == pytest.approx(np.mean(alone), rel=1e-6)
    own = linsat.Constraints(A=np.ones((1, 4)), b=[[1.0], [3.0]])
    pair = linsat.fenchel_young_loss(np.ones((2, 4)), np.zeros(4), own, tau=0.5, reduction="none")
    for limit, found in zip((1.0, 3.0), pair):
        one = linsat.Constraints(A=np.ones((1, 4)), b=[limit])
        assert found == pytest.approx(float(linsat.fenchel_young_loss(np.ones(4), np.zeros(4), one, tau=0.5)))


def test_an_instance_that_fails_has_no_gradient() -> None:
    cons = linsat.Constraints(A=np.ones((1, 3)), b=[[1.0], [-1.0]])
    y = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(linsat.ConstraintError, match="instance 1 is not in the set"):
        linsat.fenchel_young_loss(y, torch.zeros(3), cons)
    with pytest.raises(linsat.ConstraintError, match="instance 0 is not in the set"):
        linsat.fenchel_young_loss(y, torch.ones(3), cons, on_failure="nan")
    hard = linsat.Newton(max_steps=1, backend="arrays")
    rows = linsat.Constraints(**random_system(np.random.default_rng(0), "signed", largest=40, rows=10).arguments())
    point = linsat.project(torch.zeros(rows.num_variables).double(), rows)
    y = (50 * torch.randn(2, rows.num_variables, dtype=torch.float64)).requires_grad_()
    loss = linsat.fenchel_young_loss(y, point, rows, solver=hard, on_failure="nan", reduction="none")
    assert loss.isnan().all()
    loss.nansum().backward()
    assert not y.grad.any()


# ------------------------------------------------------------------ exact decisions


def test_argmax_is_the_linear_optimum() -> None:
    for seed, kind in enumerate(("positive", "signed", "boundary")):
        system = random_system(np.random.default_rng(seed), kind, largest=30, rows=8)
        y = numbers(len(system.point), seed)
        x = linsat.argmax(y, linsat.Constraints(**system.arguments()))
        assert system.violation(x) < 1e-6
        assert y @ x == pytest.approx(linear_optimum(system, y), abs=1e-7)


def test_argmax_pays_for_soft_rows() -> None:
    system, price = soft_system(np.random.default_rng(1), contradictory=True, largest=8, rows=5)
    order = [i for sense in ("<=", ">=", "==") for i, s in enumerate(system.senses) if s == sense]
    soft = [i for i, j in enumerate(order) if np.isfinite(price[j])]
    cons = linsat.Constraints(**system.arguments()).soften(soft, price=price[[order[i] for i in soft]])
    y = numbers(len(system.point))
    whole, cost = elastic(system, price)
    x = linsat.argmax(y, cons)
    paid = (cons.row_violation(x) * np.where(cons.soft, cons.price, 0.0)).sum()
    assert y @ x - paid == pytest.approx(linear_optimum(whole, np.append(y, -cost)), abs=1e-6)


def test_argmax_keeps_shape_and_kind_and_follows_per_instance_numbers() -> None:
    cons = linsat.constraints.top_k(5, 2)
    x = linsat.argmax(torch.tensor([[3.0, 1.0, 2.0, 0.0, -1.0]]), cons)
    assert torch.equal(x, torch.tensor([[1.0, 0.0, 1.0, 0.0, 0.0]]))
    own = linsat.Constraints(A=np.ones((1, 3)), b=np.array([[1.0], [2.0]]))
    x = linsat.argmax(np.array([3.0, 2.0, 1.0]), own)
    assert np.array_equal(x, [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    assert linsat.argmax(np.array([1.0, -1.0]), linsat.Constraints(lower=np.zeros(2), upper=2.0)).tolist() == [2.0, 0.0]


def test_regret_of_small_assignments_by_trying_all() -> None:
    cons = linsat.constraints.permutation(3)
    truth, guess = numbers(18).reshape(2, 3, 3), numbers(18, 1).reshape(2, 3, 3)
    every = list(itertools.permutations(range(3)))

    def worth(values: np.ndarray, order: tuple[int, ...]) -> float:
        return sum(values[i, j] for i, j in enumerate(order))

    best = [max(worth(v, order) for order in every) for v in truth]
    decided = [max(every, key=lambda order, g=g: worth(g, order)) for g in guess]
    expected = [b - worth(v, order) for b, v, order in zip(best, truth, decided)]
    assert np.allclose(linsat.exact.regret(guess, truth, cons), expected, atol=1e-9)
    relative = linsat.exact.regret(torch.from_numpy(guess), torch.from_numpy(truth), cons, reduction="relative")
    assert relative.item() == pytest.approx(sum(expected) / np.abs(best).sum())


# ------------------------------------------------------------------ bad input


def test_bad_input_is_named() -> None:
    cons, y = linsat.constraints.simplex(3), np.zeros(3)
    loss, t = linsat.fenchel_young_loss, np.array([1.0, 0.0, 0.0])
    for wrong, words in (
        (lambda: loss(y, t, cons, reduction="all"), "reduction is 'all'"),
        (lambda: loss(y, np.ones(3), cons), "target of instance 0 is not in the set"),
        (lambda: loss(y, np.full(3, np.nan), cons), "target of instance 0"),
        (lambda: loss(y, t[:2], cons), "target has shape"),
        (lambda: loss(y, "abc", cons), "target is str"),
        (lambda: loss(y, np.tile(t, (2, 1)), cons), "one target for each"),
        (lambda: loss(np.array([0.0, np.inf, 0.0]), t, cons), "y holds"),
        (lambda: loss(y, t, cons, objective="entropy"), "objective is 'entropy'"),
        (lambda: loss(y, t, "rows"), "constraints is a str"),
        (lambda: loss(y, t, cons, tau=0.1, objective=linsat.Euclidean()), "tau and objective"),
        (lambda: perturbed_fenchel_young_loss(y, t, cons, sigma=0), "sigma is 0"),
        (lambda: perturbed_fenchel_young_loss(y, t, cons, samples=0), "samples is 0"),
        (lambda: linsat.argmax(np.array([0.0, np.nan, 1.0]), cons), r"y holds nan \(instance 0, variable x\[1\]"),
        (lambda: linsat.argmax(np.array([1.0]), linsat.Constraints(lower=np.zeros(1), upper=np.inf)), "without limit"),
        (lambda: linsat.exact.regret(y, np.zeros((2, 3)), cons), "expected the same shape"),
        (lambda: linsat.exact.regret(y, y, cons, reduction="sum"), "reduction is 'sum'"),
    ):
        with pytest.raises(linsat.ConstraintError, match=words):
            wrong()
    with pytest.raises(linsat.InfeasibleError):
        linsat.argmax(y, linsat.Constraints(A=np.ones((1, 3)), b=[-1.0]))
    learned = linsat.Constraints(A=torch.ones(1, 3), b=torch.ones(1, requires_grad=True))
    with pytest.raises(linsat.ConstraintError, match="b of the constraints requires gradients"):
        loss(torch.zeros(3), t, learned)


def test_other_objectives_are_rejected() -> None:
    class Own(linsat.Euclidean):
        """A subclass may have another Omega."""

    with pytest.raises(linsat.ConstraintError, match="objective is Own, which does not define `excess`; expected"):
        linsat.fenchel_young_loss(np.zeros(3), np.eye(3)[0], linsat.constraints.simplex(3), objective=Own())


@pytest.mark.parametrize("loss", [linsat.fenchel_young_loss, perturbed_fenchel_young_loss])
def test_function_transforms_are_rejected(loss) -> None:
    """Their tensors have no memory of their own to read."""
    cons, target = linsat.constraints.simplex(3), torch.eye(3)[0]
    for transformed in (
        lambda y: torch.func.grad(lambda y: loss(y, target, cons))(y),
        lambda y: torch.func.vmap(lambda y: loss(y, target, cons))(y[None]),
        lambda y: torch.func.jvp(lambda y: loss(y, target, cons), (y,), (y,)),
    ):
        with pytest.raises(linsat.ConstraintError, match=r'transform.*Fix: loss.backward\(\).*reduction="none"'):
            transformed(torch.zeros(3))
