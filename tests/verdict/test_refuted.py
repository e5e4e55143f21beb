"""Infeasible instances by the dozen: refuted by rounded arithmetic that errs on the safe side, and always in time."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch

import linsat
from linsat import backends as run
from linsat import failures
from linsat.verdict import LinearSystem, judge
from linsat.verdict.enclosure import refutes_rounded
from linsat.verdict.feasibility import refuted
from tests.helpers.arithmetic import needs_kernel
from tests.verdict.test_verdict import feasible_by_highs, gap, make, random_case

INF = np.inf


def planted(rng: np.random.Generator, k: int, l: int, margin: float) -> tuple[LinearSystem, np.ndarray]:
    """Rows a x <= b and their sum w, weighted, which must exceed what they allow by a margin; bounds of any kind."""
    matrix = rng.normal(size=(k, l))
    point = rng.normal(size=l)
    weights = rng.uniform(0.01, 1.0, k)
    sides = matrix @ point + rng.random(k)
    lower = np.where(rng.random(l) < 0.3, point - rng.random(l), -INF)
    upper = np.where(rng.random(l) < 0.3, point + rng.random(l), INF)
    system = make(
        np.vstack([matrix, weights @ matrix]),
        np.append(np.full(k, -INF), weights @ sides + margin),
        np.append(sides, INF),
        lower,
        upper,
    )
    return system, np.append(weights, -1.0)


class TestRoundedOutwards:
    @pytest.mark.parametrize("noise", [0.0, 1e-12, 1e-8])
    def test_a_hint_near_multipliers_is_enough(self, noise: float) -> None:
        rng = np.random.default_rng(0)
        shown = 0
        for _ in range(100):
            k = int(rng.integers(3, 20))
            system, weights = planted(rng, k, int(rng.integers(1, k)), 0.1)
            hint = weights * (1 + noise * rng.normal(size=len(weights))) * 10.0 ** rng.integers(-5, 12)
            shown += refutes_rounded(system, hint)
        assert shown >= 95

    def test_it_never_refutes_rows_that_can_hold(self) -> None:
        """The same rows, the demand short of what they allow by little: the hint all but proves what is not true."""
        rng = np.random.default_rng(1)
        for _ in range(400):
            margin = -(10.0 ** rng.uniform(-17, -1))
            system, weights = planted(rng, int(rng.integers(2, 12)), int(rng.integers(1, 8)), 0.0)
            # A point at which every row of the sum holds with equality, in floats; then room of any size.
            point = np.clip(np.zeros(system.matrix.shape[1]), system.lower, system.upper)
            activity = (system.matrix.astype(np.longdouble) @ point.astype(np.longdouble)).astype(float)
            row_upper = np.append(np.nextafter(activity[:-1], INF) - margin, INF)
            row_lower = np.append(np.full(len(activity) - 1, -INF), np.nextafter(activity[-1], -INF))
            held = LinearSystem(system.matrix, row_lower, row_upper, system.lower, system.upper)
            assert not refutes_rounded(held, weights * 10.0 ** rng.integers(-5, 12))

    def test_random_systems_and_random_hints(self) -> None:
        rng = np.random.default_rng(2)
        claimed = 0
        for _ in range(400):
            system = random_case(rng)
            verdict = judge(system)
            hint = rng.normal(size=system.num_rows)
            if verdict.certificate is not None and rng.random() < 0.7:
                hint = np.zeros(system.num_rows)
                hint[list(verdict.certificate.rows)] = [float(m) for m in verdict.certificate.multipliers]
            if refutes_rounded(system, hint):
                claimed += 1
                assert not feasible_by_highs(system)
        assert claimed > 40

    def test_what_it_cannot_show(self) -> None:
        system = make([[1.0], [1.0]], [-INF, 2.0], [1.0, INF])
        assert refutes_rounded(system, np.array([1.0, -1.0]))
        assert not refutes_rounded(system, np.array([1.0, 1.0]))  # a side that is infinite
        assert not refutes_rounded(system, np.zeros(2))
        assert not refutes_rounded(system, np.array([np.inf, -1.0]))
        assert not refutes_rounded(make([[1.0], [2.0]], [-INF, 0.0], [1.0, INF]), np.array([2.0, -1.0]))
        alike = make([[1.0, 1.0], [1.0, 1.0]], [-INF, 2.0], [1.0, INF])
        assert not refutes_rounded(alike, np.array([1.0, -1.0]))  # columns that depend on each other; a flow sees it
        assert refuted(alike, np.array([1.0, -1.0]), seconds=10)
        tiny = make([[1e-250, 1.0], [1e-250, 1.0]], [-INF, 2.0], [1.0, INF])
        assert not refutes_rounded(tiny, np.array([1.0, -1.0]))  # might underflow; exact arithmetic sees it
        assert refuted(tiny, np.array([1.0, -1.0]), seconds=10)

    def test_a_contradiction_below_rounding_is_left_to_exact_arithmetic(self) -> None:
        system = make([[1.0], [1.0]], [-INF, 1.0 + 1e-14], [1.0, INF])
        assert not refutes_rounded(system, np.array([1.0, -1.0]))
        assert refuted(system, np.array([1.0, -1.0]), seconds=10)
        assert gap(system, [0, 1], [1.0, -1.0]) > 0


def batch(rng: np.random.Generator, count: int, k: int, l: int) -> tuple[dict, np.ndarray]:
    """Sets with numbers of their own in an infinite box; some contradict themselves."""
    A, point = rng.normal(size=(count, k, l)), rng.normal(size=(count, l))
    b = np.einsum("nkl,nl->nk", A, point) + rng.random((count, k))
    C, d = rng.normal(size=(count, 1, l)), np.empty((count, 1))
    d[:, 0] = np.einsum("nl,nl->n", C[:, 0], point) - 1
    bad = rng.random(count) < 0.6
    weights = rng.uniform(0.05, 1.0, (count, k))
    C[bad, 0] = np.einsum("nk,nkl->nl", weights, A)[bad]
    d[bad, 0] = np.einsum("nk,nk->n", weights, b)[bad] + rng.uniform(0.1, 1.0, bad.sum())
    return {"A": A, "b": b, "C": C, "d": d, "lower": -INF, "upper": INF}, bad


@needs_kernel
@pytest.mark.parametrize(("k", "l"), [(11, 4), (25, 20)])
def test_most_infeasible_instances_never_reach_a_linear_program(
    monkeypatch: pytest.MonkeyPatch, k: int, l: int
) -> None:
    rng = np.random.default_rng(0)
    arguments, bad = batch(rng, 64, k, l)
    asked, solved = [], []
    monkeypatch.setattr(failures, "judge", lambda *a, **o: asked.append(a) or judge(*a, **o))
    minimise = run._INTERIOR.solve
    monkeypatch.setattr(
        run._INTERIOR, "solve", lambda problem, *a: solved.append(problem.size) or minimise(problem, *a)
    )
    solution = linsat.solve(
        rng.normal(size=(64, l)), linsat.Constraints(**arguments), objective=linsat.Euclidean(), on_failure="ignore"
    )
    assert (solution.status == "infeasible").tolist() == bad.tolist()
    assert (solution.status == "converged").tolist() == (~bad).tolist()
    assert np.isfinite(solution.x).all()
    assert len(asked) <= 3
    assert sum(solved) <= 3


def test_without_the_kernel_too() -> None:
    rng = np.random.default_rng(1)
    arguments, bad = batch(rng, 6, 8, 3)
    solution = linsat.solve(
        rng.normal(size=(6, 3)),
        linsat.Constraints(**arguments),
        objective=linsat.Euclidean(),
        solver=linsat.Newton(backend="arrays"),
        on_failure="ignore",
    )
    assert (solution.status == "infeasible").tolist() == bad.tolist()


class TestDeadlines:
    """No linear program runs without a limit inside project and solve, and all verdicts of a call share one."""

    @pytest.fixture
    def limits(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        found: list[float] = []
        original = scipy.optimize.linprog

        def spy(*arguments: object, **options: object) -> object:
            found.append(options.get("options", {}).get("time_limit", INF))  # type: ignore[union-attr]
            return original(*arguments, **options)

        monkeypatch.setattr(scipy.optimize, "linprog", spy)
        return found

    def test_every_program_has_one(self, limits: list[float]) -> None:
        rng = np.random.default_rng(2)
        # Forced variables, which take the linear program of presolve.
        forcing = linsat.Constraints(A=[[1.0, 1, 1]], b=[1.0], C=[[1.0, 1, 0]], d=[1.0])
        linsat.project(torch.zeros(3), forcing)
        # Rows of instances that contradict each other, none of which had a step to find a hint.
        arguments, _ = batch(rng, 4, 12, 5)
        own = linsat.Constraints(**arguments)
        one_step = {"solver": linsat.Newton(max_steps=1), "objective": linsat.Euclidean()}
        linsat.solve(rng.normal(size=(4, 5)), own, **one_step, on_failure="ignore")
        # A set that does, which is diagnosed: the smallest conflict, further ones.
        shared = planted(rng, 12, 5, 0.1)[0]
        A, b = -shared.matrix.toarray(), -shared.row_lower
        A[:-1], b[:-1] = -A[:-1], shared.row_upper[:-1]
        with pytest.raises(linsat.InfeasibleError):
            linsat.project(rng.normal(size=5), linsat.Constraints(A=A, b=b), objective=linsat.Euclidean())
        assert len(limits) >= 3
        assert max(limits) <= 60.0

    def test_verdicts_of_one_call_share_their_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Instances that nothing solves in one step: after the time of the call is over, nothing is asked any more."""
        monkeypatch.setattr(failures, "_SECONDS", 0.0)
        seen: list[str] = []

        def spy(system: LinearSystem, **options: object) -> object:
            found = judge(system, **options)  # type: ignore[arg-type]
            seen.append(found.reason)
            return found

        monkeypatch.setattr(failures, "judge", spy)
        rng = np.random.default_rng(3)
        rows = rng.normal(size=(4, 6))
        sides = rows @ rng.random((5, 6)).T
        cons = linsat.Constraints(E=rows, f=sides.T)
        scores = 50 * rng.normal(size=(5, 6))
        solution = linsat.solve(scores, cons, tau=0.01, solver=linsat.Newton(max_steps=1), on_failure="ignore")
        assert set(solution.status.tolist()) <= {"converged", "step_limit"}
        assert seen
        assert set(seen) == {"time ran out"}
