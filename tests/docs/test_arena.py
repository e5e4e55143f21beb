"""The arena measures what it says: problems as published, routers that route, records that survive a stop."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import clarabel
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from arena import __main__ as arena
from arena import decisions, page, plan, quadratic, records, routing
from launcher import Ended

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
        assert not found["stopped"]
    late = quadratic.train(problem, "convex", project, recipe, seed=0, goal=best, within=0.0)
    assert late["stopped"]
    assert late["steps"] < 24


def test_first_come_first_served() -> None:
    fits = routing.within_capacity(torch.tensor([0, 1, 0, 0, 1, 2]), 3, 2)
    assert fits.tolist() == [True, True, True, False, True, True]


@pytest.mark.parametrize("name", routing.ROUTERS)
def test_every_router_trains_a_tiny_model(name: str) -> None:
    size = routing.Size(16, 32, 4, 16, 2, 3)
    found = routing.run(name, size)
    assert np.isfinite([found["train loss"], found["batch loss"], found["inference loss"]]).all()
    if name.startswith("linsat"):
        assert found["worst dropped"] == 0
        assert found["worst largest load"] == 1 <= found["largest load by the bias"]
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


def test_the_duals_of_a_sample_balance_it_and_give_every_token_k_shares() -> None:
    torch.manual_seed(0)
    size = routing.Size(experts=8, sequence=256, sequences=2)
    scores = (torch.randn(512, 8) + torch.arange(8.0)).requires_grad_()
    router = routing.Projected(size, every=4)
    routed = router(scores)
    routed.gate.sum().backward()
    shares = router.shares(routed.biased.detach())
    assert torch.allclose(shares.sum(1), torch.full((512,), 2.0).double(), atol=1e-6)
    assert torch.allclose(shares[::4].sum(0), torch.full((8,), 128 * 2 / 8).double(), atol=1e-3)
    assert torch.allclose(routed.gate.detach().double(), shares[routed.token, routed.expert], atol=1e-5)
    assert torch.bincount(routed.expert).tolist() == [512 * 2 / 8] * 8
    assert bool(scores.grad.abs().sum(1).gt(0).all())
    assert set(routed.seconds) == {"forward", "backward", "decision"}


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


def _record(unit: str, result: Any, file: Path, run: str = "2026-01-01 00:00") -> None:
    records.append({"unit": unit, "run": run, "seconds": 1.0, "result": result}, file)


def test_records_go_on_after_a_torn_line(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    _record("a", {"x": 1}, file)
    _record("a", {"x": 2}, file)
    with file.open("a") as out:
        out.write('{"unit": "b", "resu')
    assert records.load(file)["a"]["result"] == {"x": 2}
    assert list(records.load(file)) == ["a"]
    _record("c", {"x": 3}, file, run=records.run_of(file))
    assert list(records.load(file)) == ["a", "c"]
    assert records.load(file)["c"]["run"] == "2026-01-01 00:00"  # that of the run it goes on with
    assert records.run_of(tmp_path / "none.jsonl") > "2026-01-01 00:00"


def test_kept_records_are_of_units_that_there_are_and_the_page_says_where_runs_are_mixed(tmp_path: Path) -> None:
    now, kept, text = tmp_path / "now.jsonl", tmp_path / "kept.jsonl", tmp_path / "arena.md"
    _record("routing/top-2, auxiliary loss", {"error": "before"}, kept, run="a")
    _record("no unit any more", {"x": 1}, kept, run="a")
    _record("machine", {"cpu": "a processor"}, now, run="b")
    records.keep(now, plan.units(), kept)
    assert list(records.load(kept)) == ["machine", "routing/top-2, auxiliary loss"]
    assert "**not in one run**, but in those begun on a, b" in page.write(text, kept).read_text()
    _record("routing/top-2, auxiliary loss", {"error": "fails now"}, now, run="b")
    records.keep(now, plan.units(), kept)
    written = page.write(text, kept).read_text()
    assert "in one run, begun on b (UTC)" in written
    assert "`routing/top-2, auxiliary loss` (fails now)" in written
    assert "`quadratic/optimum` (not run yet)" in written


def test_a_unit_that_takes_too_long_or_dies_is_recorded_as_such(tmp_path: Path) -> None:
    """With the launcher's answers written down; that it ends what takes too long is in test_benchmarks."""

    class Written:
        def __init__(self, ended: Ended, log: str) -> None:
            self.ended, self.log = ended, log

        def run(self, arguments: list[str], *, log: Path, timeout: float) -> Ended:
            assert timeout == arena.LIMIT
            log.write_text(self.log)
            return self.ended

    late = arena._run("machine", True, Written(Ended(-9, True, 2.0), ""))
    assert (late["result"], late["cpu_s"]) == ({"error": "more than 300 s"}, 2.0)
    died = arena._run("machine", True, Written(Ended(-11, False, 0.1), "before\nSegmentation fault\n"))
    assert died["result"] == {"error": "ended with -11: Segmentation fault"}


def test_nothing_is_begun_once_the_minutes_are_used_and_what_is_left_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arena, "MINUTES", 0.0)
    file = tmp_path / "records.jsonl"
    _record("a", {"x": 1}, file)
    arena._measure(["a", "b", "c"], file, True)
    assert capsys.readouterr().out.endswith("left for the next call, which goes on with this run: b, c.\n")
    assert list(records.load(file)) == ["a"]


def test_an_interrupted_run_ends_its_processes_and_goes_on(tmp_path: Path) -> None:
    """By an arena of three small units in a process of its own."""
    script = tmp_path / "small_arena.py"
    script.write_text(SMALL_ARENA, encoding="utf-8")
    command = [sys.executable, str(script)]
    path = os.pathsep.join([str(tmp_path), str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    first = subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 600
    while not (tmp_path / "child").exists() and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    first.terminate()
    assert "the next call goes on from there" in first.communicate(timeout=600)[1]
    made = records.load(tmp_path / "quick.jsonl")
    assert {unit: record["result"] for unit, record in made.items()} == {
        "fine": {"cores": 1},
        "raises": {"error": "ValueError: no"},
    }
    assert _ended((tmp_path / "child").read_text())  # what a unit has started is gone with it
    again = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=600, check=False)
    assert again.returncode == 0, again.stderr
    later = records.load(tmp_path / "quick.jsonl")
    assert later["waits"]["result"] == "not the first time"
    assert later["fine"] == made["fine"]  # not run again
    assert {record["run"] for record in later.values()} == {made["fine"]["run"]}


def _ended(process: str) -> bool:
    """Within some seconds; gone, or waiting for nothing but to be noticed. Unknown without /proc, and taken for so."""
    for _ in range(200):
        state = Path("/proc") / process / "stat"
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL_ARENA = """
import os, subprocess, sys
from pathlib import Path
from arena import __main__ as arena, plan, records, unit

FOLDER = Path(__file__).parent

def raises():
    raise ValueError("no")

def waits():
    if (FOLDER / "child").exists():
        return "not the first time"
    child = subprocess.Popen(["sleep", "300"])
    (FOLDER / "made").write_text(str(child.pid))
    (FOLDER / "made").rename(FOLDER / "child")
    child.wait()

def fine():
    return {"cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1}

plan.units = lambda quick: {"fine": fine, "raises": raises, "waits": waits}
records.FOLDER = FOLDER
main = unit.main

if __name__ == "__main__":
    sys.argv, arena.UNIT = ["arena", "--quick"], "small_arena"
    arena.main()
"""


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
    slow = {**run, "seconds to goal": None, "steps": 24, "stopped": True}
    for unit, result in {
        "quadratic/train/non-convex/Pinet, our recipe/0": slow,
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
        "routing/linsat": {**route, "train loss": 2.5, "largest load by the bias": 1.75},
        "routing/linsat, all tokens": {**route, "train loss": 2.25, "largest load by the bias": 1.5, "forward": 1.0},
    }.items():
        _record(unit, result, file)
    text = page.write(tmp_path / "arena.md", file).read_text()
    assert "`quadratic/train/convex/Moreau/0` (more than 300 s)" in text
    assert "| qpth | 64 (from 16) |" in text  # 1 s for 16 are 64 s for 1,024
    assert "| SPO+ | 9.00 ± 1.00 |" in text
    assert "| Pinet, our recipe, ended after 24 steps | -14.900 |" in text
    assert "load an expert by 1.75 instead of 1.50 even shares" in text
    assert "The loss is 2.500 instead of 2.250" in text
    assert "`linsat, all tokens` the layer takes 200.0 % forward" in text
    assert "-2.00 ± 1.00 points, in 1.00 of its time" in text


def test_every_unit_has_a_name_and_temperatures_are_chosen_by_the_least_regret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(plan.units()) > len(plan.units(quick=True)) > 20
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    runs = [
        {"kind": way, "objective": objective, "tau": tau, "regret": regret}
        for way in decisions.MAKERS
        for objective in ("entropy", "Euclidean")
        for tau, regret in ((0.1, 0.3), (1.0, 0.05), (3.0, 0.1))
    ]
    _record("decisions/choose/knapsack", json.loads(json.dumps(runs)), records.file())
    chosen = plan.chosen("knapsack", quick=False)
    assert len(chosen) == 2 * len(decisions.MAKERS)
    assert set(chosen.values()) == {("entropy", 1.0), ("Euclidean", 1.0)}


# ------------------------------------------------------------------ PyEPO, where it is installed


def test_the_adapter_agrees_with_pyepos_models() -> None:
    """In a process by itself: the HiGHS of OR-Tools and that of highspy, which cvxpy loads, do not share one."""
    for package in ("ortools", "pyepo"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    script = Path(__file__).parent / "pyepo_adapter.py"
    path = os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "agrees"
