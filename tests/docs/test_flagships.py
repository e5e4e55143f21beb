"""The arena's flagships: examples run and claim what holds, parts compute what they say, the page is its records'."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import linsat
from arena import experts, filters, matching, mixing, page, reconciliation

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples" / "flagships").glob("*.py"))


def _run(name: str, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    pytest.importorskip("matplotlib")
    patch.setenv("MPLBACKEND", "Agg")
    patch.setattr(sys, "argv", [f"{name}.py", str(folder / f"{name}.png")])
    left = runpy.run_path(str(ROOT / "examples" / "flagships" / f"{name}.py"))
    left["plt"].close("all")
    assert (folder / f"{name}.png").stat().st_size > 5_000
    return left


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_each_is_short_and_has_its_picture_on_the_page(script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) < 80
    assert 5_000 < (ROOT / "docs" / "assets" / "arena" / f"{script.stem}.png").stat().st_size < 80_000
    assert f"assets/arena/{script.stem}.png" in page.FILE.read_text(encoding="utf-8")


def test_the_page_is_what_its_records_say(tmp_path: Path) -> None:
    again = page.write(tmp_path / "arena.md")
    assert again.read_text(encoding="utf-8") == page.FILE.read_text(encoding="utf-8")


def test_mixing_matrices_are_the_limit_of_the_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = _run("hyper_connections", tmp_path, monkeypatch)
    torch.manual_seed(1)
    logits = torch.randn(32, 4, 4, dtype=torch.float64)
    limit, arrived = mixing.exact.limit(logits)
    assert arrived.all()
    assert (left["mixing"](logits) - limit).abs().max() < 1e-10
    assert max(error for error, _ in left["exact"].values()) < 1e-6


def test_permutations_are_doubly_stochastic_and_reach_each_permutation() -> None:
    H = mixing.permutations(3 * torch.randn(64, 24))
    for side in (-1, -2):
        assert (H.sum(side) - 1).abs().max() < 1e-6
    sure = mixing.permutations(100 * torch.eye(24))
    assert len({tuple(H.argmax(-1).tolist()) for H in sure}) == 24
    assert torch.equal(sure[0].round(), torch.eye(4))


def test_the_implicit_gradient_is_that_of_many_unrolled_iterations() -> None:
    torch.manual_seed(0)
    y, g = torch.randn(8, 4, 4, dtype=torch.float64), torch.randn(8, 4, 4, dtype=torch.float64)
    grads = []
    for run in (lambda z: mixing.Implicit.apply(z, 300), lambda z: mixing.exact.sinkhorn(z, 300)):
        leaf = y.clone().requires_grad_()
        run(leaf).backward(g)
        grads.append(leaf.grad)
    assert (grads[0] - grads[1]).abs().max() < 1e-10


def test_reconciled_paths_add_up_and_are_optimal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hierarchicalforecast.methods")
    left = _run("reconciliation", tmp_path, monkeypatch)
    S, base, after = left["S"], left["base"], left["after"]
    bottom = after[:, -20:].T
    assert (bottom >= 0).all()
    assert np.abs(after.T - S @ bottom).max() < 1e-10
    slope = S.T @ ((S @ bottom - base.T) / S.sum(1)[:, None])
    assert np.abs(np.minimum(bottom, slope)).max() < 1e-10


def test_hierarchies_sum_and_stationarity_tells_solutions_apart() -> None:
    S = reconciliation.summing((1, 2, 4))
    assert S.astype(int).tolist()[:3] == [[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1]]
    assert np.array_equal(S[3:], np.eye(4))
    W = np.ones(7)
    bottom = np.array([[1.0], [2.0], [0.0], [3.0]])
    assert reconciliation.stationarity(S, W, S @ bottom, bottom) < 1e-15
    assert reconciliation.stationarity(S, W, S @ bottom, bottom + 0.1) > 0.05
    pytest.importorskip("quadprog")
    base = reconciliation.forecasts(S, 5)
    assert reconciliation.stationarity(S, W, base, reconciliation.by_quadprog(S, W, base)) < 1e-12


def test_equal_loads_are_equal_and_nearly_the_best_assignment() -> None:
    torch.manual_seed(0)
    scores = torch.randn(24, 6).double() + torch.tensor([3.0, 1, 0, 0, 0, -1])
    duals = experts.Duals(24, 6, 2, experts.HARD)(scores, torch.zeros(6))
    chosen = experts.equal_loads(scores + duals, 2)
    assert chosen.sum(0).tolist() == [8] * 6
    assert chosen.sum(1).tolist() == [2] * 24
    loads, picks = np.kron(np.ones(24), np.eye(6)), np.kron(np.eye(24), np.ones(6))
    sides = np.concatenate([np.full(6, 8.0), np.full(24, 2.0)])
    best = linprog(-scores.numpy().ravel(), A_eq=np.vstack([loads, picks]), b_eq=sides, bounds=(0, 1))
    assert float(scores[chosen].sum()) > 0.97 * -best.fun
    uneven = experts.equal_loads(scores[:5], 2)  # ten places for six experts
    assert sorted(uneven.sum(0).tolist()) == [1, 1, 2, 2, 2, 2]
    assert uneven.sum(1).tolist() == [2] * 5


def test_a_quantile_step_from_its_own_bias_balances_what_it_sees() -> None:
    torch.manual_seed(0)
    scores, bias = torch.randn(240, 6).double() + torch.arange(6.0), torch.zeros(6).double()
    before = experts.max_vio(experts.top(scores, 2))
    for _ in range(30):
        bias = experts.quantile_step(scores, bias, 2)
    assert experts.max_vio(experts.top(scores + bias, 2)) < 0.05 < before


def test_other_balancers_balance_what_they_see() -> None:
    torch.manual_seed(0)
    scores = torch.randn(240, 6).double() + torch.arange(6.0)
    before = experts.max_vio(experts.top(scores, 2))
    for bias in (experts.bip_steps(scores, torch.zeros(6), 2, 30), experts.sinkhorn_steps(scores, 30)):
        assert experts.max_vio(experts.top(scores + bias, 2)) < 0.5 * before
    assert experts.max_vio(experts.top(scores + experts.bip_steps(scores, torch.zeros(6), 2, 30), 2)) < 0.1


def test_looking_ahead_foretells_what_persists_and_nothing_else() -> None:
    torch.manual_seed(0)
    ahead, steady, velocity = experts.Ahead(), torch.zeros(64).double(), torch.rand(64).double() - 0.5
    for _ in range(6):
        steady = steady + velocity
        guess = ahead(steady)
    assert torch.allclose(guess, steady + velocity)
    ahead, walk = experts.Ahead(), torch.zeros(2000).double()
    for _ in range(8):
        walk = walk + torch.randn(2000)
        guess = ahead(walk)
    assert (guess - walk).abs().max() < 0.2
    burst = walk.clone()
    burst[0] += 100
    assert (ahead(burst) - walk).abs().max() < 1  # as no change of the history


def test_a_part_of_the_tokens_and_a_quantile_step_are_near_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    scores = torch.randn(480, 6).double() + torch.arange(6.0) / 3
    whole = experts.Duals(480, 6, 2, experts.HARD)(scores, torch.zeros(6))
    monkeypatch.setattr(experts, "MOST_TOKENS", 240)
    halved = experts.Duals(480, 6, 2, 0.3)
    assert halved.every == 2
    assert (halved(scores, torch.zeros(6)) - whole).abs().max() < 0.2


def test_the_example_router_drops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = _run("experts", tmp_path, monkeypatch)
    assert (left["loads"][:, 2] == 1).all()
    assert (left["exact"].sum(1) == 2).all()
    assert left["worst"][1:, 1].mean() < left["worst"][1:, 0].mean()


def test_rows_of_a_unicycle_are_the_slopes_of_its_barriers() -> None:
    torch.manual_seed(0)
    state, u, short = torch.randn(6, 3).double(), torch.randn(6, 2).double(), 1e-6

    def barrier(s: torch.Tensor) -> torch.Tensor:
        ahead = s[:, :2] + 0.15 * torch.stack([s[:, 2].cos(), s[:, 2].sin()], -1)
        return (ahead[:, None] - filters.DISCS).square().sum(-1) - 0.45**2

    moved = torch.stack([u[:, 0] * state[:, 2].cos(), u[:, 0] * state[:, 2].sin(), u[:, 1]], -1)
    slope = (barrier(state + short * moved) - barrier(state - short * moved)) / (2 * short)
    f = filters.unicycle(state, u)
    assert torch.allclose((f.C @ u[..., None])[..., 0] - f.d, slope + 2.0 * barrier(state), atol=1e-7)


def test_rows_of_a_double_integrator_are_of_second_order() -> None:
    f = filters.SYSTEMS["double integrator"](torch.Generator().manual_seed(3), 5)
    p, v = (2.0 * torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(3)).double()).unbind()
    v, u, t = v.clamp(-1.4, 1.4), torch.ones(5, 2).double(), 1e-3

    def barrier(t: float) -> torch.Tensor:
        return ((p + v * t + u * t * t / 2)[:, None] - filters.DISCS[:6]).square().sum(-1) - 0.45**2

    first, second = (barrier(t) - barrier(-t)) / (2 * t), (barrier(t) - 2 * barrier(0) + barrier(-t)) / t**2
    left = (f.C @ u[..., None])[..., 0] - f.d
    assert torch.allclose(left[:, :6], second + 4 * first + 4 * barrier(0), atol=1e-4)
    assert torch.allclose(left[:, 6:], torch.cat([u + 2 * (1.5 + v), -u + 2 * (1.5 - v)], 1))


def test_torques_that_hold_an_arm_leave_its_barriers_as_they_are() -> None:
    """By the slope of the masses' height; a resting row reads  a^2 h >= 0."""
    f = filters.SYSTEMS["arm"](torch.Generator().manual_seed(3), 5, speed=0.0)
    q = 0.9 * torch.randn(5, 4, generator=torch.Generator().manual_seed(3)).double().clamp(-1.8, 1.8)
    left = (f.C @ _holding(q)[..., None])[..., 0] - f.d
    angle = q.cumsum(-1)
    tip = 0.5 * torch.stack([angle.cos(), angle.sin()], -1).sum(1)
    discs = torch.tensor([[1.2, 1.2], [-1.3, 0.9], [0.3, -1.7]]).double()
    h = (tip[:, None] - discs).square().sum(-1) - 0.09
    assert torch.allclose(left, 16 * torch.cat([q + 2.0, 2.0 - q, h], 1))


def _holding(q: torch.Tensor) -> torch.Tensor:
    """The torques of gravity by autograd: the slope of the masses' height."""
    q = q.clone().requires_grad_()
    height = (0.5 * q.cumsum(-1).sin()).cumsum(-1)
    energy = 9.81 * (torch.tensor([2.0, 1.5, 1.0, 0.5]).double() * height).sum()
    return torch.autograd.grad(energy, q)[0]


@pytest.mark.parametrize("system", filters.SYSTEMS)
def test_filters_of_every_door_are_quadprogs_with_the_gradient_of_the_rows_that_bind(system: str) -> None:
    pytest.importorskip("quadprog")
    runs = filters.compare(system, (1, 16), least=0.0)
    for name in ("linsat, torch", "linsat, JAX", "linsat, numpy"):
        assert runs[name]["away"] < 1e-10
        assert runs[name].get("gradient error", 0.0) < 1e-10
    assert set(runs) == {*filters.LAYERS, *filters.SOLVERS}


def test_conflicting_rows_give_way_as_clarabel_has_it() -> None:
    pytest.importorskip("qpax")
    pytest.importorskip("quadprog")
    made = filters.conflicts(8)
    assert abs(made["linsat, numpy"]["above"]) < 1e-8
    assert made["linsat, numpy"]["failed"] == 0


def test_the_example_filter_keeps_out_and_its_policy_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = _run("filters", tmp_path, monkeypatch)
    arrived = {name: (places[-1].norm(dim=-1) < 0.3).double().mean() for name, (places, _) in left["ways"].items()}
    assert (left["ways"]["no filter"][1] < 0).double().mean() > 0.5
    for name in ("filtered", "trained through it"):
        assert left["ways"][name][1].min() > -1e-3
    assert arrived["trained through it"] > arrived["filtered"] + 0.3


# ------------------------------------------------------------------ matching


def test_a_market_at_a_small_temperature_has_the_value_of_its_linear_program() -> None:
    program = matching.market(60)
    made = {name: solver(program) for name, solver in matching.SOLVERS.items()}
    value = float(program.score @ made["HiGHS"])
    assert float(program.score @ made["Clarabel"]) == pytest.approx(value, rel=1e-6)
    solution = linsat.solve(program.score, program.constraints(), objective=linsat.KL(1e-6), on_failure="raise")
    assert program.score @ solution.x == pytest.approx(value, rel=1e-6)
    assert program.violation(solution.x) < 1e-8
    assert (
        value <= program.bound(np.array(solution.duals)) < value + 1.1 * 60 * 1e-6
    )  # what entropy is worth: tau a user
    rng = np.random.default_rng(0)
    assert program.bound(-rng.random(len(program.side))) >= value  # of any duals


def test_first_order_steps_approach_the_market() -> None:
    program = matching.market(60)
    best = float(program.score @ matching.highs(program))
    few, many = (matching.first_order(program, 60, 0.01, steps) for steps in (50, 5000))
    assert program.violation(many) < 0.1 * program.violation(few)
    assert program.score @ many == pytest.approx(best, rel=0.01)
    y = np.array([[0.2, 0.3, -1.0], [2.0, 1.5, -1.0]])
    assert np.allclose(matching._onto_simplices(y), [[0.2, 0.3, 0.0], [0.75, 0.25, 0.0]])


def test_transport_with_more_rows_is_the_same_by_every_way_that_keeps_them() -> None:
    given = matching.haul(60)
    program = given.program()
    x = linsat.project(program.score, program.constraints(), objective=linsat.KL(0.02))
    ours = x.reshape(60, 60)
    assert np.abs(matching.projected_sinkhorn(given, 0.02) - ours).max() < 1e-6
    for row in (given.judge(ours, 0.0), given.judge(matching.projected_sinkhorn(given, 0.02), 0.0)):
        assert max(row["marginals"], row["rows"]) < 1e-6
    if importlib.util.find_spec("ot"):
        assert np.abs(matching.priced(matching.by_pot, given, 0.02) - ours).max() < 1e-4
        assert given.judge(matching.by_pot(given.costs, 0.02), 0.0)["rows"] > 1e-3
    cold = linsat.project(program.score, program.constraints(), objective=linsat.KL(1e-6))
    assert program.score @ cold == pytest.approx(float(program.score @ matching.highs(program)), rel=1e-6)


def test_the_example_market_keeps_budgets_and_parity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = _run("matching", tmp_path, monkeypatch)
    fair, kind = left["plans"]["budgets and parity"].numpy(), left["kind"]
    assert fair.sum(0).max() <= 1.5 * 600 / 40 + 1e-8
    assert np.abs(fair.sum(1) - 1).max() < 1e-8
    shares = [
        [fair[members][:, kind == k].sum() / members.sum() for k in range(4)]
        for members in (left["group"], ~left["group"])
    ]
    assert np.abs(np.subtract(*shares)).max() < 0.01 + 1e-8
