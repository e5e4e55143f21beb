"""Real linear programs: Netlib and MIPLIB 3 from a folder named by LINSAT_DATA (lp/netlib, lp/miplib3, *.mps.gz).

They are not part of the repository. Objectives of the files are ignored; scores are normal. A table of every solve is
printed with ``pytest -s``.
"""

import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import linsat
from tests.helpers.real_systems import Program, random_curvature, read
from tests.helpers.time_limit import time_limit

DATA = os.environ.get("LINSAT_DATA")
SECONDS = 60.0
COLD = 1e6  # width times score over tau beyond which an honest failure is allowed: a linear program, in doubles
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA, reason="LINSAT_DATA names no folder with lp/netlib and lp/miplib3"),
]


@dataclass(frozen=True)
class Result:
    """One solve; violation and gap are measured here, not taken from the solver."""

    name: str
    variables: int
    status: str
    solved_by: str
    violation: float
    gap: float
    cold: float  # width * max |y| / tau
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.name:12} {self.variables:6} {self.status:11} {self.solved_by:15} violation {self.violation:.1e} "
            f"gap {self.gap:.1e} cold {self.cold:.0e} {self.seconds:6.2f} s"
        )


def files(collection: str) -> list[Path]:
    return sorted((Path(DATA or "") / "lp" / collection).glob("*.mps.gz"))


@cache
def in_box(path: Path) -> Program:
    return read(path).boxed()[0]


def solved(path: Path, program: Program, objective: linsat.Objective) -> Result:
    scores = np.random.default_rng(0).normal(size=program.shape[1])
    name, begin = path.name.removesuffix(".mps.gz"), time.process_time()
    tau = getattr(objective, "tau", None)
    cold = 0.0 if tau is None else float((np.abs(scores) * (program.upper - program.lower)).max()) / tau
    try:
        with time_limit(SECONDS):
            cons = linsat.Constraints(**program.arguments())
            solution = linsat.solve(scores, cons, objective=objective, on_failure="ignore")
    except TimeoutError:
        return Result(name, len(scores), "too slow", "", np.inf, np.inf, cold, SECONDS)
    seconds = time.process_time() - begin
    gap = np.nan
    if isinstance(objective, linsat.Quadratic):
        gap = program.quadratic_gap(objective.P, scores, solution.x, solution.duals)
    elif tau is None:
        gap = program.euclidean_gap(scores, solution.x, solution.duals)
    elif isinstance(objective, linsat.KL):
        gap, _ = program.kl_gap(scores, solution.x, solution.duals, tau)
    elif not objective.entropic_slack:
        gap, _ = program.entropic_gap(scores, solution.x, solution.duals, tau)
    status, by = str(solution.status.item()), str(np.asarray(solution.solved_by).item())
    return Result(name, len(scores), status, by, program.violation(solution.x), gap, cold, seconds)


@cache
def table(collection: str, tau: float | None, slack: str) -> list[Result]:
    """Every file of a collection; tau None is the Euclidean objective with the bounds of the file."""
    entropic = linsat.KL(tau) if slack == "kl" else linsat.Entropy(tau, slack=slack)  # type: ignore[arg-type]
    objective = linsat.Euclidean() if tau is None else entropic
    results = [solved(path, read(path) if tau is None else in_box(path), objective) for path in files(collection)]
    print(f"\n{collection}, {objective!r}")
    for result in results:
        print(result)
    assert len(results) >= 10, "fewer files than a collection has"
    return results


@pytest.mark.parametrize("collection", ["netlib", "miplib3"])
def test_nearest_point_within_the_bounds_of_the_file(collection):
    results = table(collection, None, "")
    converged = [r for r in results if r.status == "converged"]
    assert len(results) - len(converged) <= 1
    assert [str(r) for r in converged if not (r.violation <= 1e-8 and r.gap <= 1e-8)] == []


@pytest.mark.parametrize("collection", ["netlib", "miplib3"])
def test_quadratic_in_a_box(collection):
    results = []
    for path in files(collection):
        program = in_box(path)
        results.append(solved(path, program, linsat.Quadratic(random_curvature(program.shape[1]))))
        print(results[-1], flush=True)
    assert len(results) >= 10, "fewer files than a collection has"
    assert len([r for r in results if r.status != "converged"]) <= 2
    assert [str(r) for r in results if r.status == "converged" and not (r.violation <= 1e-8 and r.gap <= 1e-7)] == []


@pytest.mark.parametrize("slack", ["none", "entropic"])
@pytest.mark.parametrize("tau", [0.1, 0.01])
@pytest.mark.parametrize("collection", ["netlib", "miplib3"])
def test_entropic_in_a_box(collection, tau, slack):
    results = table(collection, tau, slack)
    lost = [r for r in results if r.status != "converged" and not (r.cold > COLD and r.status != "too slow")]
    assert len(lost) <= 2, [str(r) for r in lost]
    assert [str(r) for r in results if r.status == "infeasible"] == []
    assert [str(r) for r in results if r.status == "converged" and not r.violation <= 1e-8] == []


@pytest.mark.parametrize("tau", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("collection", ["netlib", "miplib3"])
def test_kl_in_a_box(collection, tau):
    results = table(collection, tau, "kl")
    lost = [r for r in results if r.status != "converged" and not (r.cold > COLD and r.status != "too slow")]
    assert len(lost) <= 2, [str(r) for r in lost]
    assert [str(r) for r in results if r.status == "infeasible"] == []
    assert [str(r) for r in results if r.status == "converged" and not (r.violation <= 1e-8 and r.gap <= 1e-8)] == []


@pytest.mark.parametrize("tau", [0.1, 0.01])
def test_duals_have_the_signs_of_their_rows(tau):
    """Or the row is tight at every feasible point, by HiGHS, so that it is an equality in all but name."""
    for path in files("netlib"):
        program = in_box(path)
        if program.shape[1] > 1000:
            continue
        scores = np.random.default_rng(0).normal(size=program.shape[1])
        objective = linsat.Entropy(tau, slack="none")
        solution = linsat.solve(
            scores, linsat.Constraints(**program.arguments()), objective=objective, on_failure="ignore"
        )
        wrong = np.where(program.senses == "<=", solution.duals, np.where(program.senses == ">=", -solution.duals, 0.0))
        for row in np.flatnonzero(wrong > 1e-9)[:3]:
            assert program.always_tight(int(row)), f"{path.name} row {row}: dual {solution.duals[row]}"
