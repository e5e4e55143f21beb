"""Every gallery example runs as a user would run it, and what it claims holds against a separate oracle."""

from __future__ import annotations

import itertools
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, linprog, milp

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples" / "gallery").glob("*.py"))
PICTURES = ROOT / "docs" / "assets" / "gallery"
PAGE = ROOT / "docs" / "gallery.md"
LARGEST_PICTURE = 80_000  # bytes
LONGEST_SCRIPT = 60  # lines, not reached


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """name -> the variables that the script leaves behind; each script runs once, in a separate folder."""
    kept: dict[str, dict[str, Any]] = {}

    def run(name: str) -> dict[str, Any]:
        if name not in kept:
            folder = tmp_path_factory.mktemp(name)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MPLBACKEND", "Agg")
                patch.setattr(sys, "argv", [f"{name}.py"])
                patch.chdir(folder)
                kept[name] = runpy.run_path(str(ROOT / "examples" / "gallery" / f"{name}.py"), run_name="__main__")
            assert [path.name for path in folder.iterdir()] == [f"{name}.png"]
            kept[name]["picture"] = folder / f"{name}.png"
            kept[name]["plt"].close("all")
        return kept[name]

    return run


def array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.detach() if hasattr(tensor, "detach") else tensor, dtype=np.float64)


def test_there_are_eleven() -> None:
    assert len(SCRIPTS) == 11


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_each_is_short_and_on_the_page(script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) < LONGEST_SCRIPT
    page = PAGE.read_text(encoding="utf-8")
    assert f"(assets/gallery/{script.stem}.png)" in page
    assert f"python examples/gallery/{script.name}" in page


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_each_prints_and_draws_one_small_picture(script: Path, ran: Any) -> None:
    for picture in (ran(script.stem)["picture"], PICTURES / f"{script.stem}.png"):
        content = picture.read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        assert 5_000 < len(content) < LARGEST_PICTURE


def test_a_script_runs_by_itself_and_takes_the_name_of_its_picture(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "gallery" / "fair_ranking.py"), "mine.png"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "below the linear program" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["mine.png"]


def test_permutation_learning_restores_more_with_the_layer(ran: Any) -> None:
    found = ran("permutation_learning")
    X, truth = array(found["layer"]), array(found["test_places"])
    assert np.abs(X.sum(1) - 1).max() < 1e-6
    assert np.abs(X.sum(2) - 1).max() < 1e-6
    places = array(found["found"]["layer"])
    assert (np.sort(places, axis=-1) == np.arange(9)).all()
    for instance in range(20):
        assert (linear_sum_assignment(X[instance], maximize=True)[1] == places[instance]).all()
    restored = {name: (array(place) == truth).all(-1).mean() for name, place in found["found"].items()}
    assert restored["softmax"] < restored["softmax, matched"] < restored["layer"]


def test_top_k_finds_the_best_of_all_choices(ran: Any) -> None:
    found = ran("top_k")
    assert np.abs(np.array(found["history"], dtype=np.float64).sum(-1) - 3).max() < 1e-5
    data, target = array(found["data"]), array(found["target"])
    best, left = None, math.inf
    for choice in itertools.combinations(range(14), 3):
        basis, _ = np.linalg.qr(data[:, choice])
        remaining = target @ target - np.square(basis.T @ target).sum()
        if remaining < left:
            best, left = choice, remaining
    assert tuple(found["chosen"]) == best
    assert found["error"](found["chosen"]) == pytest.approx(left / 400)


def test_expert_routing_keeps_capacities_and_is_nearly_optimal(ran: Any) -> None:
    found = ran("expert_routing")
    scores = array(found["scores"])
    for X, slack in ((array(found["X"]), 1e-5), (array(found["decided"].x), 0)):
        assert np.abs(X.sum(1) - 1).max() <= slack
        assert X.sum(0).max() <= 20 + slack
    assert set(np.unique(array(found["decided"].x))) == {0, 1}
    rows = {"A_eq": np.kron(np.eye(96), np.ones(6)), "b_eq": np.ones(96)}
    rows |= {"A_ub": np.kron(np.ones(96), np.eye(6)), "b_ub": np.full(6, 20)}
    best = -linprog(-scores.flatten(), **rows, bounds=(0, 1)).fun  # integral: the rows are a network
    assert found["best"] == pytest.approx(best, rel=1e-5)
    assert 0.99 * best < (array(found["decided"].x) * scores).sum() <= best * (1 + 1e-6)
    assert array(found["scores"].grad).any(-1).all()


def test_the_kept_bias_balances_tokens_that_it_has_not_seen(ran: Any) -> None:
    found = ran("router_bias")
    scores, x = array(found["scores"]), array(found["solution"].x)
    assert np.abs(x.sum(1) - 1).max() < 1e-5
    assert x.sum(0).max() <= 32 + 1e-5
    rows = {"A_eq": np.kron(np.eye(256), np.ones(8)), "b_eq": np.ones(256)}
    rows |= {"A_ub": np.kron(np.ones(256), np.eye(8)), "b_ub": np.full(8, 32)}
    program = linprog(-scores.flatten(), **rows, bounds=(0, 1))
    # The duals are those of the linear program but for a constant and the temperature: capacities bind everywhere.
    prices, kept = program.ineqlin.marginals, array(found["solution"].duals)[:8]
    assert np.abs((prices - prices.mean()) - (kept - kept.mean())).max() < 0.25
    fresh = np.random.default_rng(0).normal(size=(20_000, 8)) + array(found["popularity"] + 39 * found["drift"])
    top, biased = (np.bincount((fresh + b).argmax(1), minlength=8).max() / 2500 for b in (0.0, array(found["bias"])))
    assert biased < 1.35
    assert top > 4


def test_fair_ranking_follows_the_linear_program(ran: Any) -> None:
    found = ran("fair_ranking")
    relevance, exposure = array(found["relevance"]), array(found["exposure"])
    assert (found["gain"] * found["natural"]).sum().item() == pytest.approx(
        np.sort(relevance)[::-1] @ exposure, rel=1e-3
    )
    X = cp.Variable((10, 10), nonneg=True)
    in_b = np.array([0.0] * 5 + [1.0] * 5)
    for at in (0, 10):
        quota = in_b @ X @ exposure >= found["shares"][at] * exposure.sum()
        program = cp.Problem(
            cp.Maximize(relevance @ X @ exposure), [cp.sum(X, axis=0) == 1, cp.sum(X, axis=1) == 1, quota]
        )
        program.solve(solver=cp.CLARABEL)
        assert found["possible"][at] == pytest.approx(program.value, rel=1e-6)
        assert found["reached"][at] == pytest.approx(program.value, rel=1e-3)


def test_forbidden_pairs_stay_zero_and_halls_condition_is_named(ran: Any) -> None:
    found = ran("forbidden_pairs")
    x, able, skill = array(found["x"]), array(found["able"]) > 0, array(found["skill"])
    assert (x[~able] == 0).all()
    assert (x[2:, 3:5] == 0).all()
    assert np.abs(x.sum(1) - 1).max() < 1e-6
    assert x.sum(0).max() < 1 + 1e-6
    rows = [
        LinearConstraint(np.kron(np.eye(10), np.ones(12)), 1, 1),
        LinearConstraint(np.kron(np.ones(10), np.eye(12)), 0, 1),
    ]
    best = milp(-skill.flatten(), constraints=rows, integrality=np.ones(120), bounds=Bounds(0, able.flatten()))
    assert found["reached"] == pytest.approx(-best.fun, rel=1e-6)
    workers = {f"one job for worker[{i}]" for i in range(3)}
    assert set(found["conflict"]) == workers | {"one worker for job[3]", "one worker for job[4]"}


def test_the_schedule_keeps_machines_and_deadlines(ran: Any) -> None:
    found = ran("scheduling")
    length, needs, weight, due = (found[name] for name in ("length", "needs", "weight", "due"))
    x = found["x"]
    relaxed = [sum(needs[j] * x[j, max(0, h - length[j] + 1) : h + 1].sum() for j in range(8)) for h in range(16)]
    assert max(relaxed) < 5 + 1e-6
    assert (found["begin"] + length <= due).all()
    busy = [
        sum(needs[j] for j in range(8) if found["begin"][j] <= h < found["begin"][j] + length[j]) for h in range(16)
    ]
    assert max(busy) <= 5

    def cheapest(job: int, load: tuple[int, ...], spent: float, known: float) -> float:
        """Depth first over all start hours, leaving branches that cost more than what is known."""
        if job == 8:
            return min(known, spent)
        for begin in range(due[job] - length[job] + 1):
            if spent + weight[job] * begin >= known:
                break
            after = tuple(v + needs[job] * (begin <= h < begin + length[job]) for h, v in enumerate(load))
            if max(after) <= 5:
                known = cheapest(job + 1, after, spent + weight[job] * begin, known)
        return known

    best = cheapest(0, (0,) * 16, 0.0, 90.0)
    assert found["best"].fun == pytest.approx(best)
    relaxed_cost, decided_cost = ((found[name] * found["cost"]).sum() for name in ("x", "decided"))
    assert relaxed_cost <= best + 1e-6 <= decided_cost + 1e-6


def test_the_knapsack_table_is_the_optimum_and_every_sack_holds(ran: Any) -> None:
    found = ran("knapsack")
    A = np.stack([array(found["weight"]), array(found["volume"])])
    limits, value = array(found["limits"]), array(found["value"])
    assert (array(found["x"]) @ A.T <= limits + 1e-6).all()
    assert (array(found["chosen"]) @ A.T <= limits).all()
    for at in (0, 7, 14):
        rows = LinearConstraint(A, -np.inf, limits[at])
        exact = milp(-value, constraints=rows, integrality=np.ones(30), bounds=Bounds(0, 1), options={"mip_rel_gap": 0})
        assert found["best"][at] == pytest.approx(-exact.fun)
    assert found["ours"].max() <= 1 + 1e-9
    assert found["rule"].mean() < found["ours"].mean()


def test_transport_meets_demand_under_the_cap_at_the_cost_of_the_linear_program(ran: Any) -> None:
    found = ran("transport")
    cost, emission, cap = found["cost"], found["emission"], found["cap"]
    X = cp.Variable((4, 6))
    rows = [X >= 0, X <= 12, cp.sum(X, axis=1) <= found["supply"], cp.sum(X, axis=0) == found["demand"]]
    program = cp.Problem(cp.Minimize(cp.sum(cp.multiply(cost, X))), [*rows, cp.sum(cp.multiply(emission, X)) <= cap])
    program.solve(solver=cp.CLARABEL)
    assert (found["capped"] * cost).sum() == pytest.approx(program.value, rel=1e-6)
    for flow in found["plans"]:
        assert np.abs(flow.sum(0) - found["demand"]).max() < 1e-6
        assert (flow.sum(1) <= found["supply"] + 1e-6).all()
        assert (flow * emission).sum() <= cap + 1e-6
        assert flow.min() >= 0
        assert flow.max() <= 12
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(found["gaps"]))


def test_the_portfolio_keeps_its_rules_and_nears_the_best_ratio(ran: Any) -> None:
    found = ran("portfolio")
    for w in found["history"]:
        assert w.sum() == pytest.approx(1, abs=1e-9)
        assert w[9:].sum() <= 0.3 + 1e-9
        assert w[:3].sum() >= 0.25 - 1e-9
        assert w[3:6].sum() <= w[6:9].sum() + 1e-9
        assert 0 <= w.min() <= w.max() <= 0.25
    # The best ratio is a convex program in v = w / (mean return of w): least variance with mean return 1.
    returns = found["returns"]
    v = cp.Variable(12, nonneg=True)
    total = cp.sum(v)
    rules = [v <= 0.25 * total, cp.sum(v[9:]) <= 0.3 * total, cp.sum(v[:3]) >= 0.25 * total]
    rules += [cp.sum(v[3:6]) <= cp.sum(v[6:9]), returns.mean(0) * 1e3 @ v == 1]
    variance = cp.sum_squares((returns - returns.mean(0)) @ v) / 499
    program = cp.Problem(cp.Minimize(variance), rules)
    program.solve(solver=cp.CLARABEL)
    best = math.sqrt(252) * 1e-3 / math.sqrt(program.value)
    assert found["best"] == pytest.approx(best, rel=1e-4)
    assert 0.99 * best < found["sharpe"](found["history"][-1]) <= best * (1 + 1e-6)


def test_the_tour_is_the_shortest_that_keeps_the_rules(ran: Any) -> None:
    found = ran("tours")
    distance = array(found["distance"])
    for path in array(found["order"]).astype(int):
        assert sorted(path) == list(range(10))
        assert path[0] == 0
        assert path[-1] == 9
        assert 6 in path[:4]
    # Held and Karp: shortest path over every set of inner cities, the early one among the first three of them.
    reach = {(1 << city, city): distance[0, city] for city in range(1, 9)}
    for count in range(2, 9):
        longer: dict[tuple[int, int], float] = {}
        for (visited, last), so_far in reach.items():
            for city in range(1, 9):
                after = visited | 1 << city
                if visited >> city & 1 or (count == 3 and not after >> 6 & 1):
                    continue
                length = so_far + distance[last, city]
                longer[after, city] = min(length, longer.get((after, city), math.inf))
        reach = longer
    shortest = min(length + distance[last, 9] for (_, last), length in reach.items())
    assert float(found["best"].min()) == pytest.approx(shortest, rel=1e-5)
    assert float(found["lengths"].min()) == pytest.approx(shortest, rel=1e-5)
