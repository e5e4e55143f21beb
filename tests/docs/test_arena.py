"""The arena measures what it says: problems as published, routers that route, records that survive a stop."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import clarabel
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from arena import decisions, page, plan, quadratic, records, routing

SMALL = (12, 5, 5, 240)


def test_the_family_is_the_draw_of_dc3() -> None:
    """The rules written again with numpy's global generator, as the published code has them."""
    np.random.seed(17)
    Q = np.random.random(12)
    p = np.random.random(12)
    A = np.random.normal(loc=0, scale=1.0, size=(5, 12))
    X = np.random.uniform(-1, 1, size=(240, 5))
    G = np.random.normal(loc=0, scale=1.0, size=(5, 12))
    made = quadratic.family(*SMALL)
    for mine, theirs in ((made.Q, Q), (made.p, p), (made.A, A), (made.X, X), (made.G, G)):
        assert np.array_equal(mine, theirs)
    assert np.allclose(made.h, np.sum(np.abs(G @ np.linalg.pinv(A)), axis=1))
    assert [len(part) for part in quadratic.family(4, 2, 2, 10_000).splits.values()] == [8334, 833, 833]


def test_the_optimum_is_a_lower_bound_that_the_layer_reaches_in_its_own_metric() -> None:
    problem = quadratic.family(*SMALL)
    found = quadratic.optima(problem, problem.X[:6])
    weighted = quadratic.linsat.Euclidean(weights=problem.Q)
    cons = problem.constraints().with_rhs(f=problem.X[:6])
    z = quadratic.linsat.project(torch.from_numpy(-problem.p / problem.Q).expand(6, -1), cons, objective=weighted)
    assert np.allclose(problem.objective(z, "convex"), found, atol=1e-6)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    rows, side = np.vstack([problem.A, problem.G]), np.concatenate([problem.X[3], problem.h])
    cones = [clarabel.ZeroConeT(5), clarabel.NonnegativeConeT(5)]
    P = sp.csc_matrix(np.diag(problem.Q))
    alone = clarabel.DefaultSolver(P, problem.p, sp.csc_matrix(rows), side, cones, settings).solve()
    assert found[3] == pytest.approx(alone.obj_val, abs=1e-6)  # right-hand sides are really replaced


def test_training_lowers_the_objective_and_keeps_the_rows() -> None:
    problem = quadratic.family(*SMALL)
    recipe = quadratic.Recipe(batch=50, epochs=6, look_every=2)
    project = quadratic.linsat_projection(problem)
    best = float(quadratic.optima(problem, problem.splits["valid"]).mean())
    for kind in ("convex", "non-convex"):
        found = quadratic.train(problem, kind, project, recipe, seed=0, goal=0.5 * best)
        assert found["violation"] < 1e-9
        assert found["curve"][-1][2] < found["curve"][0][2]
        assert found["steps"] == 24
        if kind == "convex":
            assert best <= found["curve"][-1][2]
            assert 0 < found["seconds to goal"] <= found["seconds"]


def test_first_come_first_served() -> None:
    fits = routing.within_capacity(torch.tensor([0, 1, 0, 0, 1, 2]), 3, 2)
    assert fits.tolist() == [True, True, True, False, True, True]


@pytest.mark.parametrize("name", routing.ROUTERS)
def test_every_router_trains_a_tiny_model(name: str) -> None:
    size = routing.Size(16, 32, 4, 16, 2, 3)
    found = routing.run(name, size)
    assert np.isfinite([found["train loss"], found["batch loss"], found["inference loss"]]).all()
    if name == "linsat":
        assert found["worst dropped"] == 0
        assert found["worst largest load"] == 1
        assert found["forward"] > 0
        assert found["backward"] > 0
    elif name in ("Quantile Balancing", "sign rule"):
        assert found["worst dropped"] == 0
    else:
        assert found["worst largest load"] <= 1.25
    if "following loss" in found:
        assert np.isfinite(found["following loss"])
        assert 1 <= found["own largest load"] <= found["text largest load"] + 0.5


def test_routing_by_kept_bias_is_causal() -> None:
    router = routing.Projected(routing.Size(experts=4, sequence=24, sequences=1)).eval()
    router.bias += torch.tensor([-1.0, 0.0, 0.5, 0.2])
    scores = torch.randn(24, 4)
    whole, first = router(scores), router(scores[:7])
    assert torch.equal(whole.expert[:14], first.expert)
    assert torch.allclose(whole.gate[:14], first.gate, atol=1e-6)


def test_a_bias_that_follows_balances_the_batch_it_has_seen() -> None:
    torch.manual_seed(0)
    size = routing.Size(experts=8, sequence=256, sequences=2)
    scores = torch.randn(512, 8) + torch.arange(8.0)
    for router in (routing.Projected(size, tau=0.02), routing.Biased(size, "Quantile Balancing")):
        for _ in range(20):
            router.follow(scores)
        routed = router.eval()(scores)
        assert routing.load(routed, size)["largest load"] < 1.1
        assert routing.load(routed, size)["dropped"] == 0


def test_records_go_on_after_a_torn_line(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    records.append("a", {"x": 1}, 1.0, file)
    records.append("a", {"x": 2}, 1.0, file)
    with file.open("a") as out:
        out.write('{"unit": "b", "resu')
    assert records.load(file)["a"]["result"] == {"x": 2}
    assert list(records.load(file)) == ["a"]


def test_the_page_is_written_from_records_with_failures_in_it(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    run = {"objective": -14.9, "violation": 1e-14, "seconds": 9.0, "seconds to goal": 2.0, "inference seconds": 0.1}
    regret = {"regret": 0.07, "seconds": 2.0}
    route = dict.fromkeys(("forward", "backward", "decision", "step", "dropped", "worst dropped", "largest load"), 0.5)
    route |= dict.fromkeys(
        (
            "worst largest load",
            "batch loss",
            "inference loss",
            "inference largest load",
            "text largest load",
            "own largest load",
        ),
        0.5,
    )
    for unit, result in {
        "quadratic/optimum": {"valid": -15.02, "test": -15.05},
        "quadratic/train/convex/linsat/0": run,
        "quadratic/train/convex/Moreau/0": {"error": "more than 300 s"},
        "quadratic/time/small/linsat": {"batch": 1024, "seconds": 0.1, "violation": 1e-14},
        "quadratic/time/large/qpth": {"batch": 16, "seconds": 1.0, "violation": 1e-8},
        "decisions/draw/shortest path/42": {
            "linsat: a, entropy": {"tau": 0.1, **regret},
            "SPO+": {**regret, "regret": 0.08},
        },
        "decisions/draw/shortest path/43": {
            "linsat: a, entropy": {"tau": 0.1, **regret},
            "SPO+": {**regret, "regret": 0.1},
        },
        "routing/linsat": route,
    }.items():
        records.append(unit, result, 1.0, file)
    text = page.write(tmp_path / "arena.md", file).read_text()
    assert "| Moreau | more than 300 s |" in text
    assert "| qpth | 64 (from 16) |" in text  # 1 s for 16 are 64 s for 1,024
    assert "| SPO+ | 9.00 ± 1.00 |" in text
    assert "-2.00 ± 1.00 points, in 1.00 of its time" in text


def test_every_unit_has_a_name_and_temperatures_are_chosen_by_the_least_mean_regret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(plan.units()) > len(plan.units(quick=True)) > 20
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    for seed, regrets in ((1, (0.1, 0.3)), (2, (0.3, 0.05))):
        runs = [
            {"kind": way, "objective": objective, "tau": tau, "regret": r}
            for way in decisions.MAKERS
            for objective in ("entropy", "Euclidean")
            for tau, r in zip((0.1, 1.0), regrets)
        ]
        records.append(f"decisions/choose/knapsack/{seed}", json.loads(json.dumps(runs)), 1.0, records.file())
    chosen = plan.chosen("knapsack", quick=False)
    assert set(chosen.values()) == {("entropy", 1.0), ("Euclidean", 1.0)}


# ------------------------------------------------------------------ PyEPO, where it is installed


def test_the_adapter_agrees_with_pyepos_models() -> None:
    """In a process by itself: the HiGHS of OR-Tools and that of highspy, which cvxpy loads, do not share one."""
    for package in ("ortools", "pyepo"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    script, benchmarks = Path(__file__).parent / "pyepo_adapter.py", str(records.ROOT / "benchmarks")
    given = {**os.environ, "PYTHONPATH": os.pathsep.join([benchmarks, *filter(None, [os.getenv("PYTHONPATH")])])}
    ended = subprocess.run([sys.executable, str(script)], env=given, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "agrees"
