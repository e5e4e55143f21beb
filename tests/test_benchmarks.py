"""The benchmark measures what it says: rows in every form, peers on tiny instances, runs that survive failures."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import linsat

FOLDER = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(FOLDER))

import apdagd  # noqa: E402
import bars  # noqa: E402
import equalities  # noqa: E402
import methods  # noqa: E402
import plan  # noqa: E402
import problems  # noqa: E402
import report  # noqa: E402
import results  # noqa: E402
import run  # noqa: E402
import worker  # noqa: E402

# Peers warn about their own dependencies; that is not ours to fix.
pytestmark = pytest.mark.filterwarnings("ignore")

METHODS = methods.all_methods()
SMALL_ENOUGH = [case for case in problems.all_problems().values() if not case.ours_only]

Finished = tuple[Path, list[results.Record]]  # folder and records of a run

each_tiny = pytest.mark.parametrize("problem", problems.WARM_UPS.values(), ids=problems.WARM_UPS)


@pytest.mark.parametrize("problem", SMALL_ENOUGH, ids=lambda case: case.name)
def test_rows_agree_between_their_forms(problem: problems.Problem) -> None:
    """The family of the library, the sparse rows and the dense rows see the same violation at random points."""
    x = np.random.default_rng(0).random((3, problem.l))
    expected = problem.constraints.violation(x)
    assert problem.rows.violation(x) == pytest.approx(float(expected.max()), abs=1e-12)
    np.testing.assert_allclose(problem.rows.sparse_constraints().violation(x), expected, atol=1e-12)
    dense = linsat.Constraints(**problem.rows.dense())
    np.testing.assert_allclose(dense.violation(x), expected, atol=1e-12)


def test_the_million_variables_have_the_right_rows() -> None:
    rows = problems.ASSIGNMENT.rows
    assert rows.num_variables == 1_000_000
    assert rows.E.shape[0] == 2000
    # Every variable is in one row and one column.
    assert set(np.unique(rows.E.sum(axis=0))) == {2.0}


def test_scores_are_uniform_single_precision_and_repeatable() -> None:
    y = problems.FIRST.scores(5)
    assert (y.shape, y.dtype) == ((64, 400), torch.float32)
    assert 0 <= y.min() < 0.01 < 0.99 < y.max() <= 1
    assert torch.equal(y, problems.FIRST.scores(5))
    assert not torch.equal(y, problems.FIRST.scores(6))


def test_violation_is_the_worst_row_relative_to_its_size() -> None:
    rows = problems.matching_rows(2, 2, 1.0)
    x = np.array([[1.0, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0]])
    # By hand: column 0 sums to 1.5 (0.5 too much), everything to 1.5 (0.5 too much), both of size 1.5.
    assert rows.violation(x) == pytest.approx(0.5 / 1.5)
    assert np.isnan(rows.violation(np.full((1, 4), np.nan)))


@each_tiny
@pytest.mark.parametrize("name", METHODS)
def test_adapters_return_x_with_a_gradient(name: str, problem: problems.Problem) -> None:
    method = METHODS[name]
    for module in method.modules:
        pytest.importorskip(module)
    applies = method.applies_to(problem)
    if not applies.ok:
        assert applies.reason
        pytest.skip(applies.reason)
    y = problem.scores(0).requires_grad_()
    x = method.prepare(problem)(y)
    (gradient,) = torch.autograd.grad(x, y, problem.weights(0).to(x.dtype))
    assert x.shape == gradient.shape == (problem.batch, problem.l)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0
    # Fixed numbers of Sinkhorn sweeps end where they end; all others hold the rows.
    fixed = name.startswith(("linsatnet", "pygmtools"))
    assert problem.rows.violation(x.detach().numpy()) < (0.05 if fixed else 2e-5)


@each_tiny
@pytest.mark.parametrize("name", ["linsatnet-dense", "cvxpylayers-entropic", "apdagd"])
def test_methods_of_one_program_agree(name: str, problem: problems.Problem) -> None:
    """What lets times be compared: the same scores lead to the same point."""
    method = METHODS[name]
    for module in method.modules:
        pytest.importorskip(module)
    y = problem.scores(0)
    ours = linsat.project(y.double(), problem.constraints, tau=problem.tau)
    tolerance = 0.03 if name == "linsatnet-dense" else 1e-4
    torch.testing.assert_close(method.prepare(problem)(y).double(), ours, atol=tolerance, rtol=0)


def test_the_published_package_takes_a_right_side_of_one() -> None:
    """TSP rows fix single variables at 1; LinSATNet 0.1.3 needs no 0.999 there (see `problems.tour`)."""
    published = pytest.importorskip("LinSATNet")
    problem = problems.WARM_UPS["TSP-PRI"]
    y, found = problem.scores(0), {}
    for side in (1.0, 0.999):
        rows = {key: torch.from_numpy(array).float() for key, array in problem.rows.dense().items()}
        rows["f"][-3:] = side
        x = published.linsat_layer(y, **rows, tau=problem.tau, max_iter=50, no_warning=True)
        found[side] = problem.rows.violation(x.numpy())
    assert found[1.0] == pytest.approx(found[0.999], abs=2e-3)


def test_a_peer_that_is_not_installed_is_reported() -> None:
    absent = replace(METHODS["apdagd"], modules=("no_such_package.layer",))
    record = worker.attempt(problems.TINY, absent, seed=0, budget=0.1)
    assert record["status"] == "not installed"
    assert "no_such_package" in record["message"]


@each_tiny
def test_apdagd_against_newton(problem: problems.Problem) -> None:
    layer = apdagd.Apdagd(equalities.to_equalities(problem.rows), problem.tau, apdagd.Options(tol=1e-6))
    y = problem.scores(1).double().requires_grad_()
    weights = problem.weights(1).double()
    x, expected = layer(y), linsat.project(y, problem.constraints, tau=problem.tau)
    torch.testing.assert_close(x, expected, atol=1e-5, rtol=0)
    slopes = [torch.autograd.grad(value, y, weights)[0] for value in (x, expected)]
    torch.testing.assert_close(*slopes, atol=1e-4, rtol=1e-4)


def test_apdagd_against_clarabel() -> None:
    cp = pytest.importorskip("cvxpy")
    problem = problems.doubly_stochastic(4, 1, 0.2)
    y = problem.scores(2).double()
    x = cp.Variable(problem.l)
    cost = -y[0].numpy() @ x - problem.tau * cp.sum(cp.entr(x) + cp.entr(1 - x))
    cp.Problem(cp.Minimize(cost), [problem.rows.E @ x == problem.rows.f]).solve(solver=cp.CLARABEL)
    layer = apdagd.Apdagd(equalities.to_equalities(problem.rows), problem.tau, apdagd.Options(tol=1e-6))
    np.testing.assert_allclose(layer(y)[0].numpy(), x.value, atol=1e-4)


def test_apdagd_gradient_by_finite_differences() -> None:
    problem = problems.matching(2, 1, 1, 0.3)
    options = apdagd.Options(tol=1e-6, max_iterations=2000)
    layer = apdagd.Apdagd(equalities.to_equalities(problem.rows), problem.tau, options)
    y = problem.scores(3).double().requires_grad_()
    assert torch.autograd.gradcheck(layer, (y,), eps=1e-2, atol=1e-3, rtol=1e-2)


ADAPTERS = """
import os
from peers import Apdagd

class Raises(Apdagd):
    def prepare(self, problem):
        raise RuntimeError("this adapter always fails")

class Exits(Apdagd):
    def prepare(self, problem):
        os._exit(7)

METHODS = [Raises(name="raises"), Exits(name="exits")]
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run of a tiny case with two broken adapters before a working method."""
    folder = tmp_path_factory.mktemp("bench")
    adapters, out = folder / "adapters.py", folder / "results.jsonl"
    adapters.write_text(ADAPTERS)
    asked = ["--cases", problems.TINY.name, "--methods", "raises", "exits", "linsat-torch"]
    code = run.main([*asked, "--threads", "1", "--adapters", str(adapters), "--out", str(out)])
    assert code == 0
    return folder, [json.loads(line) for line in out.read_text().splitlines()]


def test_a_run_survives_crashing_adapters_and_reports_them(finished: Finished) -> None:
    _, records = finished
    statuses = {record["method"]: record["status"] for record in records}
    assert statuses == {"raises": "crashed", "exits": "crashed", "linsat-torch": "ok"}
    messages = {record["method"]: record["message"] for record in records}
    assert "this adapter always fails" in messages["raises"]
    assert "exit code 7" in messages["exits"]
    text = (finished[0] / "report.md").read_text()
    assert all(expected in text for expected in ("| raises |", "this adapter always fails", "| linsat-torch |"))


def test_a_record_says_what_where_and_with_what(finished: Finished) -> None:
    _, records = finished
    record = records[-1]
    assert record["violation"] < 1e-6
    assert record["runs"] >= 3
    assert record["total_s"] == pytest.approx(record["forward_s"] + record["backward_s"], rel=0.5)
    assert record["threads"] == 1
    assert record["machine"]["cores"] >= 1
    assert record["versions"]["torch"] == torch.__version__
    assert {"commit", "seed", "memory_mb"} <= record.keys()


def test_resume_skips_what_is_measured(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    folder, records = finished
    out = folder / "results.jsonl"
    asked = ["--cases", problems.TINY.name, "--methods", "linsat-torch", "--threads", "1", "--resume"]
    assert run.main([*asked, "--out", str(out), "--no-report"]) == 0
    assert len(out.read_text().splitlines()) == len(records)
    assert "nothing to do" in capsys.readouterr().out


def test_a_slow_method_is_ended_and_a_run_without_time_says_so(tmp_path: Path) -> None:
    settings = run.Settings(tmp_path / "r.jsonl", 1, 0, False, 0.0, None, None, False)
    pairs = plan.chosen(METHODS, [problems.TINY.name], ["linsat-torch"])
    assert run.run_worker(pairs[0], settings, timeout=0.2)["status"] == "timeout"
    runner = run.Runner(settings, pairs)
    runner.prepare()
    assert runner.go()
    assert runner.counts == {"out of time": 1}


def test_rows_that_do_not_hold_are_a_failure() -> None:
    record = {"violation": 0.5, "gradient_is_finite": True}
    assert worker.outcome(record)[0] == "rows not held"
    assert worker.outcome(record | {"violation": 1e-4})[0] == "ok"
    assert worker.outcome(record | {"violation": float("nan")})[0] == "not finite"


def test_the_plan_holds_every_pair_once_and_the_bars_first() -> None:
    pairs = [pair.key for pair in plan.full(METHODS)]
    assert len(pairs) == len(set(pairs))
    needed = bars.pairs_needed()
    assert set(pairs[: len(needed)]) == set(needed)
    for sweep in (problems.BATCH_SWEEP, problems.SIZE_SWEEP, problems.TAU_SWEEP):
        cases = [case.name for case in problems.all_problems().values() if sweep in case.groups]
        assert all((case, "linsat-torch") in pairs for case in cases)


def _record(case: str, method: str, **fields: object) -> results.Record:
    base = {"case": case, "method": method, "status": "ok", "message": "", "violation": 1e-8, "memory_mb": 2.0}
    about = {"batch": problems.all_problems()[case].batch, "size": problems.all_problems()[case].size}
    return base | about | {"tau": problems.all_problems()[case].tau} | fields


def test_ratios_and_verdicts() -> None:
    name = problems.FIRST.name
    ours, peer = _record(name, "linsat-kernel", total_s=0.002), _record(name, "linsatnet-dense", total_s=0.4)
    bar = bars.Faster(problems.FIRST, "linsatnet-dense", 150)

    def verdict(*records: results.Record) -> tuple[str, str]:
        (line,) = bar.lines({(r["case"], r["method"]): r for r in records})
        return line.ratio, line.verdict

    assert verdict(ours, peer) == ("200x", "pass")
    assert verdict(ours, peer | {"total_s": 0.2}) == ("100x", "FAIL")
    assert verdict(ours | {"violation": 1e-4}, peer) == ("200x", "FAIL")
    assert verdict(ours) == ("", "not measured")


def test_growth_is_the_slope_and_the_spread() -> None:
    sizes = [case for case in problems.all_problems().values() if problems.SIZE_SWEEP in case.groups]
    records = [_record(case.name, "linsat-kernel", total_s=1e-9 * case.batch * case.size**3.0) for case in sizes]
    run_records = {(r["case"], r["method"]): r for r in records}
    name, points = bars.per_instance(run_records, problems.SIZE_SWEEP)
    assert name == "linsat-kernel"
    assert bars.exponent(points) == pytest.approx(1.5)
    lines = bars.Growth(0.2, 1.6).lines(run_records)
    assert [line.verdict for line in lines] == ["not measured", "pass"]


def test_plots_are_drawn_from_sweeps(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "results.jsonl"
    seconds = ("forward_s", "backward_s", "import_s", "first_call_s", "prepare_s", "first_run_s")
    common = dict.fromkeys(seconds, 0.1) | {"run": "r", "threads": 1, "seed": 0, "commit": "c", "runs": 3}
    common["machine"] = {"cpu": "x", "cores": 1, "memory_gb": 1, "platform": "p"}
    common |= {"versions": {"torch": "2"}, "process_mb": 10.0}
    for case in SMALL_ENOUGH:
        results.append(out, _record(case.name, "linsat-torch", total_s=0.2) | common)
    assert report.main(["--results", str(out)]) == 0
    drawn = {path.name for path in tmp_path.glob("*.png")} | {path.name for path in tmp_path.glob("*.svg")}
    stems = ("time-against-batch", "time-against-l", "time-against-tau", "violation-against-time")
    assert drawn == {f"{stem}.{suffix}" for stem in stems for suffix in ("png", "svg")}


def test_a_results_file_cut_short_is_read(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    results.append(out, {"run": "a", "case": "c", "method": "m", "status": "ok"})
    with out.open("a") as file:
        file.write('{"run": "a", "case": "c2", "meth')
    name, records = results.last_run(results.load(out))
    assert name == "a"
    assert set(records) == {("c", "m")}
