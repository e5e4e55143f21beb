"""General solvers on small instances against every tour, and honest answers when time runs out."""

import sys

import numpy as np
import pytest
from tour_oracles import scattered, shortest_lengths

from linsat_studies.tsp.data import random_instances
from linsat_studies.tsp.solvers import lkh_tours, mip_tours, quadratic_tours
from linsat_studies.tsp.tours import TourError, broken


def assert_optimal(solved, instances, status="optimal"):
    assert solved.status == (status,) * len(instances)
    assert solved.found.all()
    assert not broken(instances, solved.tours).any()
    assert solved.lengths == pytest.approx(shortest_lengths(instances), abs=1e-6)
    assert (solved.seconds > 0).all()


def test_lkh_finds_the_optimum_through_the_dummy_city():
    pytest.importorskip("elkai")
    instances = scattered("se", 15, 7, seed=1)
    assert_optimal(lkh_tours(instances), instances, status="heuristic")


def test_lkh_has_no_priority_city():
    with pytest.raises(TourError, match="no priority city"):
        lkh_tours(scattered("pri", 1, 7, seed=1))


@pytest.mark.parametrize("n", [4, 5, 7])
@pytest.mark.parametrize("task", ["se", "pri"])
def test_the_programme_over_arcs_is_exact(task, n):
    instances = scattered(task, 6, n, seed=n, within=1 if n == 4 else 2)
    assert_optimal(mip_tours(instances), instances)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_unit_of_length_does_not_matter(scale):
    instances = scattered("pri", 4, 7, seed=11)
    scaled = type(instances)(instances.coords * scale, instances.start, instances.end, instances.priority, 2)
    for solved in (mip_tours(scaled), quadratic_tours(scaled, seconds=60)):
        assert solved.lengths / scale == pytest.approx(shortest_lengths(instances), abs=1e-6)


@pytest.mark.parametrize("task", ["se", "pri"])
def test_the_quadratic_form_is_exact_with_highs(task):
    instances = scattered(task, 3, 7, seed=3)
    assert_optimal(quadratic_tours(instances, seconds=60), instances)


@pytest.mark.parametrize("task", ["se", "pri"])
def test_the_quadratic_form_is_exact_with_scip(task):
    pytest.importorskip("pyscipopt")
    instances = scattered(task, 2, 6, seed=3)
    assert_optimal(quadratic_tours(instances, seconds=60, solver="scip"), instances)


def test_the_quadratic_form_is_exact_with_gurobi_where_it_is_installed():
    pytest.importorskip("gurobipy")
    instances = scattered("pri", 3, 7, seed=3)
    assert_optimal(quadratic_tours(instances, seconds=60, solver="gurobi"), instances)


@pytest.mark.parametrize("solve", [mip_tours, quadratic_tours])
def test_without_time_there_is_no_tour_and_none_is_made_up(solve):
    instances = random_instances("pri", 2, seed=1)
    calls = []
    solved = solve(instances, seconds=1e-3, progress=lambda done, count: calls.append((done, count)))
    assert solved.status == ("no tour", "no tour")
    assert np.isnan(solved.lengths).all()
    assert (solved.tours == -1).all()
    assert not solved.found.any()
    assert calls == [(1, 2), (2, 2)]


def test_a_missing_solver_is_named_with_its_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(ImportError, match="needs gurobipy.*Fix: "):
        quadratic_tours(random_instances("se", 1, n=5, seed=0), solver="gurobi")


def test_bad_arguments_are_refused():
    instances = random_instances("se", 1, n=5, seed=0)
    with pytest.raises(TourError, match="solver is 'cplex'"):
        quadratic_tours(instances, solver="cplex")
    with pytest.raises(TourError, match="seconds is 0"):
        mip_tours(instances, seconds=0)
    with pytest.raises(TourError, match="3 cities; expected at least 4"):
        mip_tours(random_instances("se", 1, n=3, seed=0))
    with pytest.raises(TourError, match="runs is 0"):
        lkh_tours(instances, runs=0)
