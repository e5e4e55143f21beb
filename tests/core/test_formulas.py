"""Formulas with abs, maximum, minimum and norms: Clarabel on the formula itself, finite differences, and messages."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

import linsat
from linsat import Variable, formulas, subject_to
from linsat.constraints import Constraints
from linsat.constraints.plain_rows import PlainRows
from linsat.errors import ConstraintError, InfeasibleError, LinSATWarning

OBJECTIVES: dict[str, linsat.Objective] = {
    "entropy": linsat.Entropy(0.3),
    "slack-free": linsat.Entropy(0.3, slack="none"),
    "euclidean": linsat.Euclidean(),
    "kl": linsat.KL(0.3),
    "tsallis": linsat.Tsallis(1.5, 0.5),
}


def cost(objective: linsat.Objective, y: np.ndarray, x: Any) -> Any:
    """What an objective minimises over the box [0, 1], for cvxpy."""
    if isinstance(objective, linsat.Euclidean):
        return cp.sum_squares(x - y) / 2
    if isinstance(objective, linsat.KL):
        return -y @ x - objective.tau * cp.sum(cp.entr(x) + x)
    if isinstance(objective, linsat.Tsallis):
        alpha = objective.alpha
        return -y @ x + objective.tau * cp.sum(cp.power(x, alpha) - x) / (alpha * (alpha - 1))
    assert isinstance(objective, linsat.Entropy)
    return -y @ x - objective.tau * cp.sum(cp.entr(x) + cp.entr(1 - x))


def clarabel(goal: Any, rows: list, x: Any) -> np.ndarray:
    problem = cp.Problem(cp.Minimize(goal), rows)
    for tol in (1e-11, 1e-9, 1e-8):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem.solve(solver=cp.CLARABEL, tol_gap_abs=tol, tol_gap_rel=tol, tol_feas=tol)
        if problem.status == cp.OPTIMAL:
            return np.asarray(x.value)
    raise AssertionError(problem.status)


# Each formula with the same one in cvxpy, around a point that satisfies it.
N = 9
DRAWN = np.random.default_rng(5)
CENTRE = DRAWN.dirichlet(np.ones(N))
G, H = DRAWN.normal(size=(4, N)), DRAWN.normal(size=(4, N))
CUT = DRAWN.uniform(0.0, 0.2, N)

CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "turnover": (lambda w: abs(w - CENTRE).sum() <= 0.3, lambda x: cp.norm1(x - CENTRE) <= 0.3),
    "scaled, with linear terms": (
        lambda w: 2 * abs(w - CENTRE).sum() + w[0] - 0.5 * w[1] <= 0.4,
        lambda x: 2 * cp.norm1(x - CENTRE) + x[0] - 0.5 * x[1] <= 0.4,
    ),
    "differences": (lambda w: linsat.norm(w.diff(), 1) <= 0.3, lambda x: cp.norm1(cp.diff(x)) <= 0.3),
    "absolute values of sums": (
        lambda w: abs(G @ w - 0.1).sum() <= np.abs(G @ CENTRE - 0.1).sum() + 0.02,
        lambda x: cp.norm1(G @ x - 0.1) <= np.abs(G @ CENTRE - 0.1).sum() + 0.02,
    ),
    "positive parts": (lambda w: linsat.maximum(w - CUT, 0).sum() <= 0.6, lambda x: cp.sum(cp.pos(x - CUT)) <= 0.6),
    "maxima of three": (
        lambda w: linsat.maximum(G @ w, H @ w, 0.0).sum() <= np.maximum(np.maximum(G, H) @ CENTRE, 0).sum(),
        lambda x: cp.sum(cp.maximum(G @ x, H @ x, 0.0)) <= np.maximum(np.maximum(G, H) @ CENTRE, 0).sum(),
    ),
    "minima": (
        lambda w: linsat.minimum(G @ w, H @ w).sum() >= np.minimum(G @ CENTRE, H @ CENTRE).sum() - 0.02,
        lambda x: cp.sum(cp.minimum(G @ x, H @ x)) >= np.minimum(G @ CENTRE, H @ CENTRE).sum() - 0.02,
    ),
    "spread": (lambda w: w.max() - w.min() <= 0.15, lambda x: cp.max(x) - cp.min(x) <= 0.15),
    "largest of abs": (lambda w: linsat.norm(w - CENTRE, "inf") <= 0.05, lambda x: cp.norm_inf(x - CENTRE) <= 0.05),
    "each": (lambda w: abs(w - CENTRE) <= 0.04, lambda x: cp.abs(x - CENTRE) <= 0.04),
    "a vector of sums": (
        lambda w: abs((w - CENTRE).reshape(3, 3)).sum(1) <= np.array([0.05, 0.1, 0.2]),
        lambda x: cp.norm1(cp.reshape(x - CENTRE, (3, 3), order="C"), axis=1) <= np.array([0.05, 0.1, 0.2]),
    ),
    "two in the same variables": (
        lambda w: abs(w - CENTRE).sum() + 3 * abs(w[:4] - CENTRE[:4]).sum() <= 0.3,
        lambda x: cp.norm1(x - CENTRE) + 3 * cp.norm1(x[:4] - CENTRE[:4]) <= 0.3,
    ),
    "largest weight": (lambda w: w.max() <= 0.3, lambda x: cp.max(x) <= 0.3),
    "smallest weight": (lambda w: 2 * w.min() >= 0.06, lambda x: 2 * cp.min(x) >= 0.06),
}


# The same, satisfied at the centre.
STEPS, SPREAD = float(np.abs(np.diff(CENTRE)).sum()), float(CENTRE.max() - CENTRE.min())
LOOSE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "differences": (lambda w: linsat.norm(w.diff(), 1) <= STEPS, lambda x: cp.norm1(cp.diff(x)) <= STEPS),
    "spread": (lambda w: w.max() - w.min() <= SPREAD, lambda x: cp.max(x) - cp.min(x) <= SPREAD),
}


@pytest.mark.parametrize("kind", ["slack-free", "euclidean", "kl", "tsallis"])
@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_clarabels(case: str, kind: str) -> None:
    formula, same = CASES[case]
    w, x, objective = Variable(N, name="w"), cp.Variable(N), OBJECTIVES[kind]
    cons = subject_to(w.sum() == 1, formula(w))
    for seed in range(2):
        y = np.random.default_rng(seed).normal(size=N) * (1.0 if seed else 3.0)
        solution = linsat.solve(y, cons, objective=objective)
        assert solution.converged, solution
        assert solution.violation < 1e-9
        rows = [cp.sum(x) == 1, same(x), x >= 0, x <= 1]
        expected = clarabel(cost(objective, y, x), rows, x)
        if kind == "euclidean":
            assert np.abs(solution.x - expected).max() < 1e-6
            continue
        assert np.abs(solution.x - expected).max() < 1e-5  # entropies are flat: x is known less well than its value
        theirs = float(cost(objective, y, np.clip(expected, 0, 1)).value)
        assert float(cost(objective, y, solution.x).value) < theirs + 1e-8  # its rows hold to a tolerance, too


def test_a_metric_is_clarabels() -> None:
    """A matrix of weights, for single scores and a batch of both doors."""
    rng = np.random.default_rng(12)
    F = rng.normal(size=(N, N))
    W, y = F @ F.T + np.eye(N), rng.normal(size=N)
    w, x = Variable(N, name="w"), cp.Variable(N)
    cons = subject_to(w.sum() == 1, abs(w - CENTRE).sum() <= 0.2)
    rows = [cp.sum(x) == 1, cp.norm1(x - CENTRE) <= 0.2, x >= 0, x <= 1]
    expected = clarabel(cp.quad_form(x - y, cp.psd_wrap(W)) / 2, rows, x)
    for scores in (y, np.stack([y, y]), torch.from_numpy(y), torch.from_numpy(np.stack([y, y]))):
        found = np.asarray(linsat.project(scores, cons, objective=linsat.Euclidean(weights=W)))
        assert np.abs(found - expected).max() < 1e-6


def test_the_papers_slack_stays_that_of_linear_rows() -> None:
    """A sum of absolute values acts only where it binds; a linear row beside it has its slack, as the paper has it."""
    w, x, z, tau = Variable(N, name="w"), cp.Variable(N), cp.Variable(), 0.3
    cap = float(CENTRE[:3].sum()) + 0.05
    cons = subject_to(w.sum() == 1, w[:3].sum() <= cap, abs(w - CENTRE).sum() <= 0.3)
    y = np.random.default_rng(1).normal(size=N)
    rows = [cp.sum(x) == 1, cp.norm1(x - CENTRE) <= 0.3, cp.sum(x[:3]) + cap * z == cap, x >= 0, x <= 1]
    slack = cap * (cp.entr(z) + cp.entr(1 - z))  # mass over scale, which is 1
    expected = clarabel(cost(linsat.Entropy(tau), y, x) - tau * slack, rows, x)
    solution = linsat.solve(y, cons, tau=tau)
    assert solution.converged
    assert np.abs(solution.x - expected).max() < 1e-6
    assert (solution.x == CENTRE).sum() == (np.abs(expected - CENTRE) < 1e-6).sum() > 0


@pytest.mark.parametrize("kind", ["slack-free", "euclidean", "kl"])
@pytest.mark.parametrize("price", [0.05, 0.4, 50.0])
def test_a_soft_formula_costs_its_price_per_unit(kind: str, price: float) -> None:
    w, x, objective = Variable(N, name="w"), cp.Variable(N), OBJECTIVES[kind]
    rows = [(abs(w - CENTRE).sum() <= 0.1).named("turnover"), (linsat.maximum(w[0], w[1]) <= 0.05).named("pair")]
    cons = subject_to(w.sum() == 1, *rows).soften(["turnover", "pair"], price=price)
    y = np.random.default_rng(3).normal(size=N)
    solution = linsat.solve(y, cons, objective=objective)
    penalty = price * (cp.pos(cp.norm1(x - CENTRE) - 0.1) + cp.pos(cp.maximum(x[0], x[1]) - 0.05))
    expected = clarabel(cost(objective, y, x) + penalty, [cp.sum(x) == 1, x >= 0, x <= 1], x)
    assert solution.converged
    assert np.abs(solution.x - expected).max() < 1e-5
    broken = max(0.0, np.abs(expected - CENTRE).sum() - 0.1)
    assert solution.broken[0] == pytest.approx(broken, abs=1e-5)


@pytest.mark.parametrize("kind", list(OBJECTIVES))
def test_random_sets_with_several_formulas(kind: str) -> None:
    """Several at once, for which the first guess of the pieces is rarely right."""
    objective = OBJECTIVES[kind]
    for seed in range(12):
        rng = np.random.default_rng(seed)
        picked = rng.choice(
            ["turnover", "differences", "absolute values of sums", "positive parts", "minima", "spread"], 3
        )
        chosen = list(dict.fromkeys(picked))
        w, x = Variable(N, name="w"), cp.Variable(N)
        both = [(CASES | LOOSE)[name] for name in chosen]
        cons = subject_to(w.sum() == 1, *(formula(w) for formula, _ in both))
        y = rng.normal(size=N) * rng.choice([0.3, 1.0, 3.0])
        solution = linsat.solve(y, cons, objective=objective)
        assert solution.converged, (chosen, solution)
        assert solution.violation < 1e-8
        expected = clarabel(cost(objective, y, x), [cp.sum(x) == 1, x >= 0, x <= 1, *(same(x) for _, same in both)], x)
        assert np.abs(solution.x - expected).max() < 2e-5, chosen


# ------------------------------------------------------------------ zeros, gradients


def test_terms_that_are_zero_are_exactly_zero() -> None:
    rng = np.random.default_rng(0)
    n = 60
    w, held = Variable(n, name="w"), rng.dirichlet(np.ones(n), 16)
    cons = subject_to(w.sum() == 1, (abs((w - held[0]).named("held")).sum() <= 0.2).named("turnover"))
    y = rng.normal(size=(16, n))
    for objective in (linsat.Euclidean(), linsat.KL(0.1), linsat.Entropy(0.1)):
        x = linsat.project(y, cons, objective=objective, rhs={"held": held})
        assert ((x == held).sum(-1) > n // 4).all()
        assert np.abs(np.abs(x - held).sum(-1) - 0.2).max() < 1e-9


def generic(kind: str) -> tuple[Constraints, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    w = Variable(N, name="w")
    rows = [
        (abs((w - CENTRE).named("held")).sum() <= 0.3).named("turnover"),
        (abs((G @ w).named("tilt")).sum() + w[0] <= np.abs(G @ CENTRE).sum() + 0.05).named("tilts"),
        (linsat.maximum(w - CUT, 0.5 * w[::-1] - 0.1, 0.0).sum() <= 0.7).named("parts"),
        (w.max() <= 0.5).named("cap"),
    ]
    cons = subject_to(w.sum() == 1, *rows)
    held = torch.tensor(CENTRE) + 0.003 * torch.randn(3, N, dtype=torch.float64)
    numbers = {
        "y": torch.randn(3, N, dtype=torch.float64),
        "held": held / held.sum(-1, keepdim=True),
        "turnover": torch.tensor([[0.3], [0.25], [0.2]], dtype=torch.float64),
        "tilt": 0.01 * torch.randn(3, 4, dtype=torch.float64),
        "f": torch.ones(1, dtype=torch.float64),
    }
    return cons, {name: number.requires_grad_() for name, number in numbers.items()}


@pytest.mark.parametrize("kind", list(OBJECTIVES))
def test_gradients_to_scores_and_every_number(kind: str) -> None:
    """With terms at exactly zero in every instance: their signs are multipliers, and x stays where they are zero."""
    cons, numbers = generic(kind)
    objective = OBJECTIVES[kind]

    def solved(y: Any, held: Any, turnover: Any, tilt: Any, f: Any) -> tuple[Any, Any]:
        own = cons.with_rhs({"held": held, "turnover": turnover, "tilt": tilt})
        solution = linsat.solve(y, own.with_rhs(f=f), objective=objective)
        return solution.x, solution.duals

    x, duals = solved(**numbers)
    assert ((x == numbers["held"]).sum(-1) >= 2).all()
    assert (duals[:, 0] < -1e-3).all()
    assert torch.autograd.gradcheck(solved, tuple(numbers.values()), eps=1e-6, atol=1e-5, fast_mode=True)
    T = torch.tensor(np.asarray(cons._terms.matrix.source)).requires_grad_()  # type: ignore[union-attr]
    assert torch.autograd.gradcheck(
        lambda T: linsat.project(numbers["y"].detach(), cons._with_numbers(T=T), objective=objective),
        (T,),
        atol=1e-5,
        fast_mode=True,
    )


@pytest.mark.parametrize("kind", ["entropy", "euclidean", "kl"])
def test_gradients_to_prices_and_bounds(kind: str) -> None:
    cons, numbers = generic(kind)
    price = torch.tensor([0.15, 0.1], dtype=torch.float64, requires_grad=True)
    upper = torch.full((N,), 0.45, dtype=torch.float64, requires_grad=True)

    def x(y: Any, price: Any, upper: Any) -> Any:
        soft = cons.soften(["turnover", "tilts"], price=price)
        return linsat.project(y, soft, upper=upper, objective=OBJECTIVES[kind])

    assert torch.autograd.gradcheck(x, (numbers["y"], price, upper), eps=1e-6, atol=1e-5, rtol=1e-4)


def test_the_derivative_at_a_corner_is_that_of_one_side() -> None:
    """|x - 1/2| <= 0.1 in a sum with one more: on the way to the corner one-sided differences jump, elsewhere not."""
    w = Variable(2, name="w")
    cons = subject_to(abs(w - 0.5).sum() <= 0.1)

    def x(y: float) -> np.ndarray:
        return linsat.project(np.array([y, 0.5]), cons, objective=linsat.Euclidean())

    # Inside, x = y; from 0.6 on the row binds with the second term tied at zero.
    for y, slope in ((0.55, 1.0), (0.7, 0.0)):
        tensor = torch.tensor([y, 0.5], dtype=torch.float64, requires_grad=True)
        linsat.project(tensor, cons, objective=linsat.Euclidean())[0].backward()
        assert float(tensor.grad[0]) == pytest.approx(slope)  # type: ignore[index]
        assert (x(y + 1e-6)[0] - x(y)[0]) / 1e-6 == pytest.approx(slope, abs=1e-6)
        assert (x(y)[0] - x(y - 1e-6)[0]) / 1e-6 == pytest.approx(slope, abs=1e-6)
    assert x(0.7).tolist() == [pytest.approx(0.6), 0.5]


# ------------------------------------------------------------------ rows without hidden variables


@pytest.mark.parametrize("case", ["each", "largest of abs", "largest weight", "smallest weight"])
def test_single_maxima_are_plain_rows(case: str) -> None:
    """One linear row for each piece, solved at once; the set itself shows the formula."""
    w = Variable(N, name="w")
    formula = CASES[case][0](w)
    cons = subject_to(w.sum() == 1, formula)
    rows = PlainRows.of(cons, entropic_slack=False)
    assert not len(rows.joint)
    assert len(rows.from_row) == 1 + len(cons._terms.base)  # type: ignore[union-attr]
    assert len(cons) == 1 + formula.difference.size
    # The same rows by hand, also under the paper's slack.
    by_hand = {
        "each": [w - CENTRE <= 0.04, CENTRE - w <= 0.04],
        "largest of abs": [w - CENTRE <= 0.05, CENTRE - w <= 0.05],
        "largest weight": [w <= 0.3],
        "smallest weight": [2 * w >= 0.06],
    }[case]
    y = np.random.default_rng(0).normal(size=(4, N))
    for objective in OBJECTIVES.values():
        expected = linsat.solve(y, subject_to(w.sum() == 1, *by_hand), objective=objective, on_failure="nan")
        solution = linsat.solve(y, cons, objective=objective, on_failure="nan")
        assert solution.codes.tolist() == expected.codes.tolist()
        assert np.nanmax(np.abs(solution.x - expected.x)) < 1e-9
        assert expected.converged.sum() >= 3


def test_nothing_of_the_hidden_shows() -> None:
    w = Variable(5, name="w")
    cons = subject_to(
        w.sum() == 1, (abs(w - 0.2).sum() <= 0.3).named("turnover"), linsat.maximum(w[0] - 0.1, 0) + w[1] <= 0.4
    )
    assert (cons.num_variables, len(cons)) == (5, 3)
    assert cons.names == ("turnover", "w[1] + maximum(w[0] - 0.1, 0) <= 0.4", "w[0] + w[1] + ... + w[4] == 1")
    assert cons.row_text(0).startswith("abs(w[0] - 0.2) + abs(w[1] - 0.2) + ")
    y = np.random.default_rng(0).normal(size=(2, 5))
    solution = linsat.solve(y, cons)
    assert solution.x.shape == (2, 5)
    assert solution.duals.shape == (2, 3)
    assert (solution.duals[:, 0] <= 0).all()
    at = np.array([0.9, 0.0, 0.0, 0.0, 0.1])
    assert cons.row_violation(at) == pytest.approx([1.4 - 0.3, 0.4, 0.0])
    tensor = torch.tensor(at, requires_grad=True)
    cons.row_violation(tensor)[0].backward()
    assert tensor.grad.tolist() == [1.0, -1.0, -1.0, -1.0, -1.0]  # type: ignore[union-attr]


# ------------------------------------------------------------------ messages

W = Variable(4, name="w")
NOT_CONVEX: list[tuple[Callable[[], Any], str]] = [
    (lambda: abs(W) >= 1, r"abs.*two sides of a gap.*not convex.*Fix: e >= r or e <= -r"),
    (lambda: abs(W) == 1, r"equality with abs.*not convex.*Fix: <="),
    (lambda: abs(W).sum() >= 1, r"abs.*not convex"),
    (lambda: 1 - abs(W).sum() <= 0, r"abs.*not convex"),
    (lambda: linsat.norm(W) >= 1, r"not convex.*Fix"),
    (lambda: linsat.norm(W, "inf") >= 1, r"max.*not convex.*Fix: a row for the entry"),
    (lambda: linsat.maximum(W, 0.5) >= 1, r"maximum.*either.*Fix: a >= c or b >= c"),
    (lambda: linsat.minimum(W, 0.5) <= 0.1, r"minimum.*either.*Fix: a <= c or b <= c"),
    (lambda: W.max() >= 0.5, r"max.*not convex.*Fix"),
    (lambda: W.min() <= 0.5, r"min.*not convex.*Fix"),
    (lambda: abs(W[0]) - abs(W[1]) <= 0.1, r"abs.*not convex.*Fix"),
    (lambda: abs(abs(W)), r"abs.*of abs.*not convex. Fix"),
    (lambda: linsat.maximum(-abs(W), 0.1), r"maximum.*of minus abs.*not convex. Fix"),
    (lambda: linsat.norm(W, 2), r"ord is 2; expected 1 or 'inf'.*Fix"),
    (lambda: linsat.maximum(W), r"maximum got 1 argument; expected two or more. Fix"),
    (lambda: linsat.maximum(abs(Variable(9)).sum(), 1.0), r"sum of 9 maxima has too many pieces. Fix"),
    (lambda: abs(W) * W, r"product of two expressions is not linear"),
    (lambda: (W - 1).named(""), r"non-empty string. Fix"),
]


@pytest.mark.parametrize(("call", "message"), NOT_CONVEX)
def test_what_is_not_convex_says_why(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as caught:
        call()
    assert "Fix:" in str(caught.value)


def test_functions_of_numpy_and_torch_are_those_of_linsat() -> None:
    """np.abs, torch.maximum and the like in a formula, operators with arrays on the left, and what is refused."""
    w, held = linsat.Variable(3, name="w", lower=-1.0, upper=1.0), np.array([0.2, 0.3, 0.5])
    tensor, y = torch.tensor(held), np.array([0.9, -0.8, 0.1])
    alike: list[list[Any]] = [
        [abs(w - held).sum() <= 0.3, np.abs(w - held).sum() <= 0.3, torch.sum(torch.abs(w - tensor)) <= 0.3],
        [linsat.maximum(w, 0).sum() <= 0.3, np.maximum(0, w).sum() <= 0.3, np.sum(torch.relu(w)) <= 0.3],
        [linsat.minimum(w, held).sum() >= 0.2, np.minimum(held, w).sum() >= 0.2, np.minimum(w, tensor).sum() >= 0.2],
        [w.max() <= 0.4, np.amax(w) <= 0.4, torch.max(w) <= 0.4],
        [
            held @ w - 2 * w <= 0.1,
            np.dot(held, w) - np.multiply(2, w) <= 0.1,
            tensor @ w - tensor.new_tensor(2) * w <= 0.1,
        ],
        [w >= held - 1, held - 1 <= w, tensor - 1 <= w],
        [held / 2 - w <= 0.3, np.subtract(held / 2, w) <= 0.3, tensor / 2 - w <= 0.3],
    ]
    for relations in alike:
        first, *others = (linsat.project(y, linsat.subject_to(one), objective=linsat.Euclidean()) for one in relations)
        assert np.abs(first - y).max() > 0.1
        for other in others:
            np.testing.assert_allclose(first, other, atol=1e-9)
    refused: list[Callable[[], Any]] = [
        lambda: np.exp(w), lambda: torch.clamp(w, min=0), lambda: np.square(w), lambda: np.linalg.norm(w, 2),
        lambda: torch.linalg.norm(w), lambda: np.add.reduce(w),
    ]  # fmt: skip
    for call in refused:
        with pytest.raises(ConstraintError, match=r"does not take expressions\. Fix: .*linsat\.norm"):
            call()
    with pytest.raises(ConstraintError, match=r"linsat\.maximum"):
        max(w[0], w[1])


def test_an_infeasible_formula_is_named() -> None:
    w = Variable(5, name="w")
    cons = subject_to(w.sum() == 1, (abs(w).sum() <= 0.9).named("mass"))
    with pytest.raises(InfeasibleError, match=r"mass: abs\(w\[0\]\).*<= 0.9") as caught:
        linsat.project(np.zeros(5), cons)
    assert set(caught.value.rows) == {"mass", "w[0] + w[1] + ... + w[4] == 1"}
    with pytest.raises(InfeasibleError, match="mass"):
        cons.check()
    with pytest.raises(InfeasibleError, match="mass"):
        linsat.LinSAT(cons)
    sides = np.array([[1.5], [0.9], [1.2]])
    with pytest.raises(InfeasibleError, match="instance 1"):
        linsat.project(np.zeros((3, 5)), cons.with_rhs({"mass": sides}))
    solution = linsat.solve(np.zeros((3, 5)), cons, rhs={"mass": sides}, on_failure="nan")
    assert [str(s) for s in solution.status] == ["converged", "infeasible", "converged"]
    assert np.isnan(solution.x).all(-1).tolist() == [False, True, False]
    with pytest.warns(LinSATWarning, match="1 of 3 instances"):
        linsat.solve(np.zeros((3, 5)), cons, rhs={"mass": sides})


def test_what_takes_linear_rows_only_says_so() -> None:
    w = Variable(3, name="w")
    cons = subject_to(w.sum() == 1, abs(w - 0.2).sum() <= 0.8)
    y = np.zeros(3)
    for call in (lambda: linsat.argmax(y, cons), cons.statement, cons.to_highs):
        with pytest.raises(ConstraintError, match=r"takes linear rows.*Fix: cons.lifted\(\)"):
            call()
    with pytest.raises(ConstraintError, match=r"Fix: your own loss"):
        linsat.fenchel_young_loss(torch.zeros(3), torch.full((3,), 1 / 3), cons)
    with pytest.raises(ConstraintError, match=r"Newton. Fix"):
        linsat.project(y, cons, solver=linsat.Sinkhorn())
    with pytest.raises(ConstraintError, match=r"function transform.*Fix"):
        torch.vmap(lambda y: linsat.project(y, cons))(torch.zeros(2, 3))
    # The lifted set says the same over further variables.
    scores = np.random.default_rng(0).normal(size=3)
    lifted = cons.lifted()
    best = linsat.argmax(np.append(scores, np.zeros(3)), lifted)[:3]
    x = cp.Variable(3)
    expected = cp.Problem(cp.Maximize(scores @ x), [cp.sum(x) == 1, cp.norm1(x - 0.2) <= 0.8, x >= 0, x <= 1]).solve(
        solver=cp.CLARABEL
    )
    assert scores @ best == pytest.approx(expected, abs=1e-6)


# ------------------------------------------------------------------ doors, batches, files


def many() -> Constraints:
    w = Variable(N, name="w")
    rows = [(abs((w - CENTRE).named("held")).sum() <= 0.3).named("turnover"), w.max() - w.min() <= 0.4]
    return subject_to(w.sum() == 1, *rows, w[:4].sum() <= 0.7)


@pytest.mark.parametrize("kind", list(OBJECTIVES))
def test_an_instance_does_not_depend_on_its_batch(kind: str) -> None:
    cons, objective = many(), OBJECTIVES[kind]
    y = np.random.default_rng(0).normal(size=(2, 4, N)) * 2
    x = linsat.project(y, cons, objective=objective)
    alone = np.stack([[linsat.project(part, cons, objective=objective) for part in row] for row in y])
    assert np.array_equal(x, alone)
    tensor = linsat.project(torch.tensor(y), cons, objective=objective).numpy()
    assert np.abs(x - tensor).max() < 1e-12
    single = linsat.project(torch.tensor(y, dtype=torch.float32), cons, objective=objective)
    assert single.dtype is torch.float32
    assert np.abs(x - single.numpy()).max() < 1e-5
    by_name = linsat.project({"w": y}, cons, objective=objective)
    assert np.array_equal(by_name["w"], x)


def test_layer_with_learned_and_given_numbers() -> None:
    cons = many()
    y = torch.randn(4, N, generator=torch.Generator().manual_seed(0))
    t = torch.nn.Parameter(torch.tensor(np.asarray(cons._terms.side)))  # type: ignore[union-attr]
    layer = linsat.LinSAT(cons.with_rhs(t=t), objective=linsat.Euclidean())
    assert [name for name, _ in layer.named_parameters()] == ["t"]
    layer(y).square().sum().backward()
    assert t.grad is not None
    assert t.grad.abs().max() > 0
    moved = torch.tensor(np.roll(CENTRE, 1))
    fresh = linsat.LinSAT(cons, objective=linsat.Euclidean())
    expected = linsat.project(y, cons.with_rhs({"held": moved}), objective=linsat.Euclidean())
    assert torch.equal(fresh(y, rhs={"held": moved}), expected)
    other = linsat.LinSAT(many(), objective=linsat.Euclidean())
    other.load_state_dict(fresh.state_dict())
    w = Variable(N, name="w")
    different = linsat.LinSAT(subject_to(w.sum() == 1, w.sum() <= 2, w.max() <= 2, w[:4].sum() <= 0.7))
    with pytest.raises(RuntimeError, match="other rules"):
        different.load_state_dict(fresh.state_dict())


@pytest.mark.parametrize("ending", ["json", "npz"])
def test_files_and_copies_keep_formulas(tmp_path: Path, ending: str) -> None:
    cons = many().soften("turnover", price=0.7)
    y = np.random.default_rng(0).normal(size=(3, N))
    x = linsat.project(y, cons)
    path = tmp_path / f"set.{ending}"
    cons.save(path)
    loaded = linsat.Constraints.load(path)
    assert repr(loaded) == repr(cons)
    held = np.random.default_rng(1).dirichlet(np.ones(N), 3)
    for other in (loaded, pickle.loads(pickle.dumps(cons)), copy.deepcopy(cons)):
        assert np.array_equal(linsat.project(y, other), x)
        assert np.array_equal(linsat.project(y, other, rhs={"held": held}), linsat.project(y, cons, rhs={"held": held}))
    joined = many() & subject_to((abs(Variable(N, name="w")) <= 0.3).named("cap"))
    assert len(joined) == len(many()) + N
    expected = subject_to(abs(Variable(N, name="w")) <= 0.3).row_violation(x)
    assert np.allclose(joined.row_violation(x)[:, 3 : 3 + N], expected)


def test_damaged_files_are_rejected(tmp_path: Path) -> None:
    import json

    path = tmp_path / "set.json"
    many().save(path)
    content = json.loads(path.read_text())
    for change, message in (
        (lambda m: m["rows"].__setitem__(0, [0, -1.0]), "not convex"),
        (lambda m: m["rows"].__setitem__(0, [99, 1.0]), "that does not exist"),
        (lambda m: m["pieces"].__setitem__(0, [0, 0.5, 0]), "signs 1 or -1"),
        (lambda m: m["pieces"].reverse(), "out of order"),
        (lambda m: m.pop("T"), "maxima is"),
        (lambda m: m["names"].pop(), "that does not exist|as many"),
    ):
        wrong = copy.deepcopy(content)
        change(wrong["maxima"])  # type: ignore[no-untyped-call]
        path.write_text(json.dumps(wrong))
        with pytest.raises(ConstraintError, match=message):
            linsat.Constraints.load(path)


def test_scores_that_hold_variables() -> None:
    cons = many()
    y = np.random.default_rng(0).normal(size=(2, N))
    y[0, 2] = -np.inf
    x = linsat.project(y, cons.with_rhs({"turnover": 0.9}), objective=linsat.KL(0.3))
    assert x[0, 2] == 0
    held, free = cp.Variable(N), CENTRE
    rows = [cp.sum(held) == 1, cp.norm1(held - free) <= 0.9, held[2] == 0, held >= 0, held <= 1]
    rows += [cp.max(held) - cp.min(held) <= 0.4, cp.sum(held[:4]) <= 0.7]
    goal = cost(linsat.KL(0.3), np.where(np.isfinite(y[0]), y[0], 0.0), held)
    assert np.abs(x[0] - clarabel(goal, rows, held)).max() < 1e-5
    y[1, 1] = np.nan
    with pytest.raises(ConstraintError, match=r"y holds nan \(instance 1, variable w\[1\]\)"):
        linsat.project(y, cons)
    assert np.isnan(linsat.project(y, cons, rhs={"turnover": 0.9}, on_failure="nan")).all(-1).tolist() == [False, True]


def test_a_warm_start_and_a_vertex() -> None:
    """Duals of an earlier solve are taken; a limit of zero leaves one point."""
    cons = many()
    y = np.random.default_rng(0).normal(size=N)
    first = linsat.solve(y, cons, objective=linsat.Euclidean())
    again = linsat.solve(y, cons, objective=linsat.Euclidean(), start=first.duals)
    assert np.abs(again.x - first.x).max() < 1e-9
    w = Variable(N, name="w")
    for limit in (0.0, 1e-9):
        still = subject_to(w.sum() == 1, abs(w - CENTRE).sum() <= limit)
        for objective in OBJECTIVES.values():
            solution = linsat.solve(y, still, objective=objective)
            assert solution.converged, (limit, objective)
            assert np.abs(solution.x - CENTRE).max() <= limit + 1e-12


def test_the_interior_point_method_suggests_the_same_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cons = many()
    y = np.random.default_rng(0).normal(size=(4, N)) * 2
    expected = {kind: linsat.project(y, cons, objective=objective) for kind, objective in OBJECTIVES.items()}
    monkeypatch.setattr(formulas, "_ROUNDS", 0)
    for kind, objective in OBJECTIVES.items():
        assert np.abs(linsat.project(y, cons, objective=objective) - expected[kind]).max() < 1e-9, kind


class TestFullQuadratics:
    """A turnover limit under a risk matrix, definite and singular."""

    @pytest.mark.parametrize("seed", range(12))
    def test_values_are_those_of_clarabel(self, seed: int) -> None:
        import cvxpy as cp

        rng = np.random.default_rng(seed)
        n = int(rng.integers(3, 10))
        L = rng.normal(size=(n, n - seed % 2))
        held, y, limit = rng.dirichlet(np.ones(n)), rng.normal(size=n), rng.uniform(0.05, 0.6)
        w = linsat.Variable(n, name="w")
        cons = linsat.subject_to(w.sum() == 1, abs(w - held).sum() <= limit)
        solution = linsat.solve(y, cons, objective=linsat.Quadratic(L @ L.T))
        assert bool(solution.converged)
        assert np.abs(solution.x - held).sum() <= limit + 1e-9
        v = cp.Variable(n)
        rows = [cp.sum(v) == 1, cp.norm1(v - held) <= limit, v >= 0, v <= 1]
        problem = cp.Problem(cp.Maximize(y @ v - cp.sum_squares(L.T @ v) / 2), rows)
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
        value = y @ solution.x - np.square(L.T @ solution.x).sum() / 2
        assert value == pytest.approx(problem.value, rel=1e-8, abs=1e-8)

    def test_gradients_reach_scores_and_matrix(self) -> None:
        held = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
        P = torch.tensor([[4.0, 1, 0, 0], [1, 3, 1, 0], [0, 1, 2, 0], [0, 0, 0, 1]], dtype=torch.float64)
        w = linsat.Variable(4, name="w")
        cons = linsat.subject_to(w.sum() == 1, abs(w - held).sum() <= 0.2)

        def project(y: torch.Tensor, P: torch.Tensor) -> torch.Tensor:
            return linsat.project(y, cons, objective=linsat.Quadratic(P))

        y = torch.tensor([0.1, 0.2, 0.9, 0.3], dtype=torch.float64, requires_grad=True)
        assert ((project(y, P) - held) == 0).sum() == 1  # one is not traded
        assert torch.autograd.gradcheck(project, (y, P.requires_grad_()), atol=1e-6)
