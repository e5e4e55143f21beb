"""The benchmark measures what it says: rows in every form, peers on tiny instances, runs that survive failures."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import linsat

FOLDER = Path(__file__).parents[2] / "benchmarks"

import apdagd  # noqa: E402
import bars  # noqa: E402
import cold_start  # noqa: E402
import equalities  # noqa: E402
import methods  # noqa: E402
import page  # noqa: E402
import plan  # noqa: E402
import problems  # noqa: E402
import report  # noqa: E402
import results  # noqa: E402
import rows  # noqa: E402
import run  # noqa: E402
import worker  # noqa: E402
from launcher import Launcher  # noqa: E402

# Peers warn about their own dependencies; that is not ours to fix.
pytestmark = pytest.mark.filterwarnings("ignore")

METHODS = methods.all_methods()
CASES = problems.all_problems().values()
SMALL_ENOUGH = [c for c in CASES if methods.dense_rows(c).ok and problems.COLD_START not in c.groups]
ENTROPIC = [case for case in problems.WARM_UPS.values() if case.objective == problems.ENTROPY]
TINY_CASES = [*ENTROPIC, *(case.euclidean() for case in problems.WARM_UPS.values())]
# Compiling takes JAX seconds for every case, so Pinet gets two: with a box, and with inequalities but no box.
PINET_CASES = ("portfolio", "random dense")

Finished = tuple[Path, list[results.Record]]  # folder and records of a run

each_entropic = pytest.mark.parametrize("problem", ENTROPIC, ids=lambda case: case.family)


def _installed(name: str) -> methods.Method:
    for module in METHODS[name].modules:
        pytest.importorskip(module)
    return METHODS[name]


@pytest.mark.parametrize("problem", SMALL_ENOUGH, ids=lambda case: case.name)
def test_rows_agree_between_their_forms(problem: problems.Problem) -> None:
    """The family of the library, the sparse rows and the dense rows see the same violation, also outside the box."""
    assert (problem.rows.count, problem.rows.num_variables) == problem.shape
    draw = np.random.default_rng(0)
    for x in (draw.random((3, problem.l)), 3 * draw.normal(size=(3, problem.l))):
        expected = problem.constraints.violation(x)
        assert problem.rows.violation(x) == pytest.approx(float(expected.max()), abs=1e-12)
        np.testing.assert_allclose(problem.rows.sparse_constraints().violation(x), expected, atol=1e-12)
        np.testing.assert_allclose(problem.rows.dense_constraints().violation(x), expected, atol=1e-12)


def test_the_million_variables_have_the_right_rows() -> None:
    found = problems.ASSIGNMENTS[1000].rows
    assert found.num_variables == 1_000_000
    assert found.E.shape[0] == 2000
    # Every variable is in one row and one column.
    assert set(np.unique(found.E.sum(axis=0))) == {2.0}


def test_scores_are_uniform_and_repeatable() -> None:
    y = problems.FIRST.scores(5)
    assert (y.shape, y.dtype) == ((64, 400), torch.float32)
    assert 0 <= y.min() < 0.01 < 0.99 < y.max() <= 1
    assert torch.equal(y, problems.FIRST.scores(5))
    assert not torch.equal(y, problems.FIRST.scores(6))
    # The same numbers in double precision, in which rows can hold to 1e-9.
    assert torch.equal(problems.FIRST_EUCLIDEAN.scores(5), y.double())


def test_popular_experts_exceed_their_capacity_unless_held() -> None:
    """Else the capacities of the case would do nothing."""
    y = problems.MANY_EXPERTS.scores(0).reshape(4096, 64)
    chosen = torch.bincount(y.argmax(-1), minlength=64)
    assert chosen.max() > 80


def test_random_rows_have_the_point_that_proves_them_feasible() -> None:
    found = rows.random_dense(100, 50, 50)
    x = np.linalg.pinv(found.E.toarray()) @ found.f
    assert found.violation(x[None]) < 1e-12


def test_violation_is_the_worst_row_relative_to_its_size() -> None:
    found = rows.matching(2, 2, 1.0)
    x = np.array([[1.0, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0]])
    # By hand: column 0 sums to 1.5 (0.5 too much), everything to 1.5 (0.5 too much), both of size 1.5.
    assert found.violation(x) == pytest.approx(0.5 / 1.5)
    # Below the box by 0.75, while no row is violated.
    assert found.violation(np.array([[-0.75, 0.0, 0.0, 0.0]])) == pytest.approx(0.75)
    assert np.isnan(found.violation(np.full((1, 4), np.nan)))


def _tried(*, applies: bool) -> list[tuple[str, problems.Problem]]:
    return [
        (name, problem)
        for name, method in METHODS.items()
        for problem in TINY_CASES
        if problem.objective in method.objectives and (not name.startswith("pinet") or problem.family in PINET_CASES)
        if methods.applies(method, problem).ok == applies
    ]


def test_a_method_that_does_not_apply_says_why() -> None:
    reasons = {methods.applies(METHODS[name], problem).reason for name, problem in _tried(applies=False)}
    assert reasons == {"Sinkhorn takes one set of row and column sums"}


@pytest.mark.parametrize(("name", "problem"), _tried(applies=True), ids=lambda part: getattr(part, "name", part))
def test_adapters_return_x_with_a_gradient(name: str, problem: problems.Problem) -> None:
    method = _installed(name)
    y = problem.scores(0).requires_grad_()
    x = method.prepare(problem)(y)
    (gradient,) = torch.autograd.grad(x, y, problem.weights(0).to(x.dtype))
    assert x.shape == gradient.shape == (problem.batch, problem.l)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0
    # Fixed numbers of iterations end where they end; all others hold the rows.
    fixed = name.startswith(("linsatnet", "pygmtools", "pinet-50", "pinet-100"))
    assert problem.rows.violation(x.detach().numpy()) < (0.05 if fixed else 2e-5)


@each_entropic
@pytest.mark.parametrize("name", ["linsatnet-dense", "cvxpylayers-entropy", "moreau-entropy", "apdagd"])
def test_methods_of_the_entropic_program_agree(name: str, problem: problems.Problem) -> None:
    """What lets times be compared: the same scores lead to the same point."""
    method = _installed(name)
    y = problem.scores(0)
    ours = linsat.project(y.double(), problem.constraints, tau=problem.tau)
    tolerance = 0.03 if name == "linsatnet-dense" else 1e-4
    torch.testing.assert_close(method.prepare(problem)(y).double(), ours, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        (name, family)
        for name in ("cvxpylayers-euclidean", "moreau-euclidean", "proxqp", "pinet-exact")
        for family in (PINET_CASES if name == "pinet-exact" else problems.WARM_UPS)
    ],
)
def test_methods_of_the_euclidean_program_agree(name: str, family: str) -> None:
    method, problem = _installed(name), problems.WARM_UPS[family].euclidean()
    y, weights = problem.scores(0).requires_grad_(), problem.weights(0).double()
    ours = linsat.project(y, problem.constraints, objective=linsat.Euclidean())
    x = method.prepare(problem)(y)
    torch.testing.assert_close(x, ours, atol=1e-4, rtol=0)
    slopes = [torch.autograd.grad(value, y, weights)[0] for value in (x, ours)]
    torch.testing.assert_close(*slopes, atol=1e-3, rtol=0)


def test_the_published_package_takes_a_right_hand_side_of_one() -> None:
    """TSP rows fix single variables at 1; LinSATNet 0.1.3 needs no 0.999 there (see `problems.tour`)."""
    published = pytest.importorskip("LinSATNet")
    problem = problems.WARM_UPS["TSP-PRI"]
    y, found = problem.scores(0), {}
    for side in (1.0, 0.999):
        given = {key: torch.from_numpy(array).float() for key, array in problem.rows.dense().items()}
        given["f"][-3:] = side
        x = published.linsat_layer(y, **given, tau=problem.tau, max_iter=50, no_warning=True)
        found[side] = problem.rows.violation(x.numpy())
    assert found[1.0] == pytest.approx(found[0.999], abs=2e-3)


def test_a_peer_that_is_not_installed_is_reported() -> None:
    absent = replace(METHODS["apdagd"], modules=("no_such_package.layer",))
    record = worker.attempt(problems.TINY, absent, seed=0, budget=0.1)
    assert record["status"] == "not installed"
    assert "no_such_package" in record["message"]


def test_a_method_without_the_objective_is_not_tried() -> None:
    record = worker.attempt(problems.TINY.euclidean(), METHODS["apdagd"], seed=0, budget=0.1)
    assert (record["status"], record["message"]) == ("not applicable", "has no Euclidean objective")


def test_dense_methods_are_not_given_a_million_variables() -> None:
    large = problems.ASSIGNMENTS[1000]
    assert methods.applies(METHODS["linsatnet-dense"], large).reason == "dense rows would take 16.0 GB"
    assert methods.applies(METHODS["pot"], large).ok
    assert methods.applies(METHODS["linsat"], large).ok


@each_entropic
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
    assert {"commit", "seed", "memory_mb", "forward_memory_mb"} <= record.keys()
    assert record["total_q1_s"] <= record["total_s"] <= record["total_q3_s"]
    # The units: a sigmoid of 18 numbers, and two billion floating-point operations.
    assert 0 < record["sigmoid_s"] < record["product_s"]


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
    with Launcher(settings.environment(), "worker") as launcher:
        assert run.run_worker(pairs[0], settings, launcher, timeout=0.2)["status"] == "timeout"
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
        assert all((case, "linsat") in pairs for case in cases)


def test_every_case_has_a_peer_in_the_plan_unless_it_is_too_large() -> None:
    pairs = {pair.key for pair in plan.full(METHODS) if methods.applies(pair.method, pair.problem).ok}
    for case in SMALL_ENOUGH:
        if problems.HEADLINE in case.groups:
            assert {method for name, method in pairs if name == case.name} - {"linsat", "linsat-torch"}


def test_a_large_case_is_timed_from_its_constraints_and_on_one_thread() -> None:
    small = replace(problems.assignment(12, 0.1), groups=(problems.LARGE,))
    record = worker.attempt(small, methods.OURS, seed=0, budget=0.1)
    assert record["status"] == "ok"
    assert (record["sets"], record["same_bits"]) == (3, True)
    assert record["set_to_x_s"] > 0


def test_a_method_that_compiles_is_not_judged_by_its_first_call() -> None:
    calls: list[float] = []

    def forward(y: torch.Tensor) -> torch.Tensor:
        calls.append(1.0)
        return 2 * y

    y = torch.ones(1, 2)
    common = {"first": (9.0, 9.0), "budget": 0.01}
    assert worker._timings(forward, y, y, compiles=False, **common)["total_s"] == 18.0
    assert not calls
    found = worker._timings(forward, y, y, compiles=True, **common)
    assert found["total_s"] < 1
    assert found["runs"] >= 3


def test_a_cold_start_is_timed_in_fresh_processes_and_gives_the_bits_of_a_warm_call() -> None:
    problem = problems.COLD_STARTS[1]
    record = cold_start.measure(problem, methods.OURS, os.environ, times=1, timeout=100)
    assert record["same_bits"]
    assert min(record[key] for key in ("import_torch_s", "cold_s", "second_s")) > 0.05
    lines = bars.ColdStart(problem, first=1e9, second=1e-9).lines({(problem.name, "linsat"): record})
    assert [line.met for line in lines] == [True, False, True]


def _record(case: str, method: str, **fields: object) -> results.Record:
    base = {"case": case, "method": method, "status": "ok", "message": "", "violation": 1e-10}
    base |= {"memory_mb": 2.0, "forward_memory_mb": 1.0, "total_q1_s": 0.1, "total_q3_s": 0.3}
    about = {"batch": problems.all_problems()[case].batch, "size": problems.all_problems()[case].size}
    return base | about | {"tau": problems.all_problems()[case].tau} | fields


def _run(*records: results.Record) -> results.Run:
    return {(record["case"], record["method"]): record for record in records}


def test_ratios_and_verdicts() -> None:
    name = problems.FIRST.name
    ours, peer = _record(name, "linsat", total_s=0.002), _record(name, "linsatnet-dense", total_s=0.4)
    bar = bars.Faster(problems.FIRST, ("linsatnet-dense", "linsatnet-sparse"), 150)

    def verdict(*records: results.Record) -> str:
        (line,) = bar.lines(_run(*records))
        return line.verdict

    assert verdict(ours, peer) == "met"
    assert verdict(ours, peer | {"total_s": 0.2}) == "**missed** by 33%"
    assert verdict(ours | {"violation": 1e-4}, peer) == "**missed** (violation 1.0e-04 > 1e-06)"
    assert verdict(ours) == "not measured"
    # The fastest of the peers counts.
    assert verdict(ours, peer, _record(name, "linsatnet-sparse", total_s=0.15)) == "**missed** by 50%"
    failed = {"case": name, "method": "linsatnet-dense", "status": "timeout", "message": ""}
    (line,) = bar.lines(_run(ours, failed))
    assert (line.verdict, line.measured) == ("not measured", "linsatnet-dense: timeout")


def test_bars_in_units_of_work_memory_and_bits() -> None:
    case = problems.ASSIGNMENTS[1000]
    record = _record(case.name, "linsat", total_s=9.0, set_to_x_s=2.0, product_s=0.04, same_bits=False)
    units = bars.InUnits(case, "set_to_x_s", "product_s", 40)
    assert [line.verdict for line in units.lines(_run(record))] == ["**missed** by 25%"]
    assert [line.met for line in units.lines(_run(record | {"product_s": 0.05}))] == [True]
    large = bars.LargeInstance(case, 400).lines(_run(record | {"forward_memory_mb": 500.0}))
    assert [line.verdict for line in large] == ["**missed** by 25%", "**missed**"]


def test_time_per_instance_of_two_batches() -> None:
    small, large = (problems.doubly_stochastic(20, batch, 0.1) for batch in (16, 1024))
    records = [_record(small.name, "linsat", total_s=0.0024), _record(large.name, "linsat", total_s=0.1024)]
    (line,) = bars.FlatInBatch(small, large, 1.3).lines(_run(*records))
    assert line.verdict == "**missed** by 15%"  # 1.5 / 1.3


def test_growth_is_the_slope() -> None:
    sizes = [case for case in problems.all_problems().values() if problems.SIZE_SWEEP in case.groups]
    records = [_record(case.name, "linsat", total_s=1e-9 * case.batch * case.size**3.0) for case in sizes]
    assert bars.exponent(bars.per_instance(_run(*records), problems.SIZE_SWEEP, "linsat")) == pytest.approx(1.5)
    assert [line.verdict for line in bars.Growth(1.6).lines(_run(*records))] == ["met"]


SWEPT = [c for c in CASES if {problems.BATCH_SWEEP, problems.SIZE_SWEEP, problems.TAU_SWEEP} & set(c.groups)]


def _file_of_one_run(path: Path) -> Path:
    """Every case of the sweeps with a time of ours and of a peer."""
    seconds = ("forward_s", "backward_s", "import_s", "first_call_s", "prepare_s", "first_run_s", "sigmoid_s")
    common = dict.fromkeys(seconds, 0.1) | {"run": "r", "threads": 1, "seed": 0, "quick": False, "commit": "c"}
    common["machine"] = {"cpu": "x", "cores": 1, "memory_gb": 1, "platform": "p"}
    common |= {"versions": {"torch": "2"}, "process_mb": 10.0, "runs": 3, "product_s": 1.0}
    for case in SWEPT:
        results.append(path, _record(case.name, "linsat", total_s=0.2) | common)
        results.append(path, _record(case.name, "apdagd", total_s=0.6, status="rows not held") | common)
    return path


def test_plots_are_drawn_from_sweeps(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert report.main(["--results", str(_file_of_one_run(tmp_path / "results.jsonl"))]) == 0
    drawn = {path.name for path in tmp_path.glob("*.png")} | {path.name for path in tmp_path.glob("*.svg")}
    stems = ("time-against-batch", "time-against-l", "time-against-tau", "violation-against-time")
    assert drawn == {f"{stem}.{suffix}" for stem in stems for suffix in ("png", "svg")}


def test_the_page_the_records_and_the_tables_of_speed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    readme, out = tmp_path / "README.md", _file_of_one_run(tmp_path / "results.jsonl")
    index = tmp_path / "index.md"
    for document in (readme, index):
        document.write_text(f"before\n{page._BEGIN}old\n{page._END}\nafter\n")
    assert page.main(["--results", str(out), "--docs", str(tmp_path), "--readme", str(readme)]) == 0
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{page._END}\nafter\n")
    assert "old" not in text
    assert index.read_text() == text
    assert "| doubly stochastic 20x20, batch 64, tau 0.1 | 200.00 ms | 1e-10 | (apdagd 3.0x) |" in text
    assert "**missed**" in (tmp_path / "performance.md").read_text()
    about, *records = (tmp_path / "assets/performance/records.jsonl").read_text().splitlines()
    assert json.loads(about)["versions"] == {"torch": "2"}
    assert len(records) == 2 * len(SWEPT)
    assert "versions" not in records[0]
    readme.write_text("no marks")
    with pytest.raises(SystemExit, match="lacks the line"):
        page.main(["--results", str(out), "--docs", str(tmp_path), "--readme", str(readme)])


def test_a_results_file_cut_short_is_read(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    results.append(out, {"run": "a", "case": "c", "method": "m", "status": "ok"})
    with out.open("a") as file:
        file.write('{"run": "a", "case": "c2", "meth')
    name, records = results.last_run(results.load(out))
    assert name == "a"
    assert set(records) == {("c", "m")}
