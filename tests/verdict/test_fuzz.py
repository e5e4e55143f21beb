"""The fuzzer finds nothing in the library, and everything in solvers that lie."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import linsat
from fuzz import (
    campaign,
    conflicts,
    families,
    formulas,
    hostile,
    optimality,
    real_systems,
    shrink,
    structured,
    systems,
    tables,
)
from fuzz import judge as judging
from fuzz.systems import Case

FOLDER = Path(__file__).parents[2] / "fuzz"
OBJECTIVES = ("entropic", "slack-free", "euclidean", "euclidean, weighted", "euclidean, metric")
OBJECTIVES += ("KL", "Tsallis", "full quadratic")

_NAMES = ("Constraints", "solve", "project", "Entropy", "Euclidean", "KL", "Tsallis", "Quadratic", "Variable")
_NAMES += ("subject_to", "maximum", "minimum", "norm")
NOTHING_ELSE = {name: getattr(linsat, name) for name in _NAMES}
EVERYTHING = judging.Depth(optimum=True, doors=True, gradients=True, formulas=True)


def simple_case(**changes: Any) -> Case:
    """x0 + x1 + x2 = 1 and x0 <= 0.4 in [0, 1], for two instances of which the second has x0 <= 0.6."""
    case = Case(
        family="by hand",
        matrix=np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]),
        senses=["==", "<="],
        sides=np.array([[1.0, 0.4], [1.0, 0.6]]),
        lower=np.zeros(3),
        upper=np.ones(3),
        scores=np.array([[1.0, 0.0, -1.0], [0.5, 0.0, 2.0]]),
        batch=(2,),
        shared=False,
        tau=0.5,
        points=[np.array([0.3, 0.3, 0.4]), np.array([0.5, 0.5, 0.0])],
    )
    return replace(case, **changes)


def infeasible_case() -> Case:
    """The same, but the second instance needs x0 <= -0.1."""
    sides = np.array([[1.0, 0.4], [1.0, -0.1]])
    points = [np.array([0.3, 0.3, 0.4]), None]
    return simple_case(sides=sides, points=points, weights=np.array([0.0, 1.0]), excess=0.1)


def nearest_case(**changes: Any) -> Case:
    """The point nearest to (1, 1, 1) with x0 + x1 + x2 <= 1, in the whole space: (1/3, 1/3, 1/3), at a dual of -2/3."""
    case = simple_case(
        matrix=np.ones((1, 3)),
        senses=["<="],
        sides=np.ones((1, 1)),
        lower=np.full(3, -np.inf),
        upper=np.full(3, np.inf),
        scores=np.ones((1, 3)),
        batch=(1,),
        objective="euclidean",
        points=[np.zeros(3)],
    )
    return replace(case, **changes)


def kinds(case: Case, **fake: Any) -> set[str]:
    """Kinds of the findings for a library some of whose functions are replaced."""
    depth = judging.Depth(optimum=True, highs=True)
    verdict = judging.judge(case, depth, SimpleNamespace(**{**NOTHING_ELSE, **fake}))
    return {text.partition(":")[0] for text in verdict.findings}


def changed(change: Callable[[linsat.Solution], dict[str, Any]]) -> Callable[..., linsat.Solution]:
    """A `solve` whose solutions are tampered with."""

    def solve(*arguments: Any, **options: Any) -> linsat.Solution:
        solution = linsat.solve(*arguments, **options)
        fields = change(solution)
        told = fields.pop("violation", solution.violation)
        tampered = replace(solution, **fields)
        tampered.__dict__["_violation"] = told  # in place of what would be worked out when asked for
        return tampered

    return solve


class TestTheLibrary:
    def test_a_short_run_finds_nothing(self, tmp_path: Path) -> None:
        record = campaign.Record(seed=20240)
        goals = campaign.Goals(feasible=700, structured=250, infeasible=70, minutes=60)
        campaign.run(record, goals, tmp_path / "record.json", lambda record, elapsed: None, tmp_path)
        assert record.findings == []
        assert record.feasible >= 700
        assert record.structured >= 250
        assert record.infeasible >= 70
        assert sum(sum(counts.values()) for counts in record.statuses.values()) == record.feasible + record.structured
        assert sum(sum(record.options[name].values()) for name in OBJECTIVES) == record.feasible + record.structured
        assert sum(sum(counts.values()) for counts in record.reports.values()) == record.infeasible

    def test_the_cases_by_hand_pass(self) -> None:
        assert kinds(simple_case()) == set()
        assert kinds(infeasible_case()) == set()
        assert kinds(nearest_case()) == set()
        assert kinds(simple_case(objective="slack-free")) == set()
        assert kinds(simple_case(price=np.array([np.inf, 0.1]))) == set()

    @pytest.mark.parametrize("way", ["compiled", "exported"])
    def test_graphs_are_judged_too(self, way: str) -> None:
        alike = simple_case(shared=True, sides=np.array([[1.0, 0.4]]), points=[np.array([0.3, 0.3, 0.4])], way=way)
        verdict = judging.judge(alike)
        assert verdict.findings == []
        assert verdict.checks[way] == 1

    def test_hard_limits_end_every_solve(self) -> None:
        """The scores ask for a dual no step limit of 3 can reach: a status, in bounded time, and finite numbers."""
        cons = linsat.Constraints(E=[[1.0, 1.0 + 1e-7], [1.0, 1.0]], f=[1.0, 1.0])
        start = time.process_time()
        solution = linsat.solve(
            torch.tensor([1e12, -1e12]), cons, tau=1e-3, solver=linsat.Newton(max_steps=3), on_failure="ignore"
        )
        assert time.process_time() - start < 5
        assert int(solution.steps) <= 3
        assert torch.isfinite(solution.x).all()
        assert solution.status.item() != "converged" or float(solution.violation) <= 1e-8


class TestLiarsAreCaught:
    def test_rows_that_do_not_hold(self) -> None:
        lie = changed(lambda s: {"x": s.x + 1e-7, "violation": s.violation + 3e-7})
        assert "silent violation" in kinds(simple_case(), solve=lie)

    def test_a_point_outside_the_box(self) -> None:
        def lie(solution: linsat.Solution) -> dict[str, Any]:
            x = torch.tensor([[-0.25, 0.25, 1.0]], dtype=torch.float64).expand(2, 3)
            return {"x": x + 0 * solution.x, "violation": torch.full((2,), 0.25, dtype=torch.float64)}

        assert kinds(simple_case(), solve=changed(lie)) >= {"outside the box", "optimum"}

    def test_nan(self) -> None:
        alike = simple_case(shared=True, sides=np.array([[1.0, 0.4]]), points=[np.array([0.3, 0.3, 0.4])])
        assert "not finite" in kinds(simple_case(), solve=changed(lambda s: {"x": s.x * torch.nan}))
        assert "not finite" in kinds(alike, project=lambda *a, **o: linsat.project(*a, **o) * torch.nan)

    def test_a_violation_that_is_played_down(self) -> None:
        lie = changed(lambda s: {"x": s.x + 0.1, "violation": 0 * s.violation, "codes": s.codes + 1})
        assert kinds(simple_case(), solve=lie) == {"wrong violation"}

    def test_another_feasible_point_than_the_optimum(self) -> None:
        def lie(solution: linsat.Solution) -> dict[str, Any]:
            x = torch.tensor([[0.3, 0.3, 0.4], [0.5, 0.5, 0.0]], dtype=torch.float64)
            return {"x": x + 0 * solution.x, "violation": torch.zeros(2, dtype=torch.float64)}

        assert kinds(simple_case(), solve=changed(lie)) == {"optimum"}

    @pytest.mark.parametrize("objective", ["entropic", "slack-free", "euclidean"])
    def test_a_point_that_holds_but_is_not_the_best(self, objective: str) -> None:
        """A step of 1e-3 along the rows: no row notices, the gap does."""
        along = torch.tensor([0.0, 1e-3, -1e-3], dtype=torch.float64)
        lie = changed(lambda s: {"x": s.x + along})
        case = simple_case(objective=objective, scores=0.3 * np.array([[1.0, 0.0, 0.2], [0.5, 0.1, 0.4]]))
        verdict = judging.judge(case, judging.Depth(), SimpleNamespace(**{**NOTHING_ELSE, "solve": lie}))
        assert {text.partition(":")[0] for text in verdict.findings} == {"optimum"}

    @pytest.mark.parametrize(
        ("objective", "singular"),
        [("kl", False), ("tsallis", False), ("quadratic", False), ("quadratic", True), ("metric", False)],
    )
    def test_a_point_that_holds_but_is_not_the_best_of_a_program(self, objective: str, singular: bool) -> None:
        """The same step under the other objectives; of a singular P the direction still costs something."""
        factor = np.array([[1.0, 0.0], [0.5, 1.0], [0.0, -1.0]])
        P = factor @ factor.T + (0.0 if singular else np.eye(3))
        changes = {"P": P} if objective in ("quadratic", "metric") else {}
        scores = 0.3 * np.array([[1.0, 0.0, 0.2], [0.5, 0.1, 0.4]])
        case = simple_case(objective=objective, scores=scores, **changes)
        along = torch.tensor([0.0, 1e-2, -1e-2], dtype=torch.float64)
        assert kinds(case) == set()
        assert kinds(case, solve=changed(lambda s: {"x": s.x + along})) == {"optimum"}

    @pytest.mark.parametrize("objective", ["slack-free", "kl", "tsallis", "euclidean"])
    def test_a_value_below_clarabels(self, objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the gap is blind, the value of the objective tells."""
        none = np.zeros(0, dtype=int)
        monkeypatch.setattr(judging, "duality_gap", lambda *a: optimality.Gap(0.0, none, none, none))
        along = torch.tensor([0.0, 1e-2, -1e-2], dtype=torch.float64)
        scores = 0.3 * np.array([[1.0, 0.0, 0.2], [0.5, 0.1, 0.4]])
        case = simple_case(objective=objective, scores=scores)
        assert kinds(case) == set()
        assert kinds(case, solve=changed(lambda s: {"x": s.x + along})) == {"optimum"}

    def test_a_door_that_leads_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import linsat.jax

        def numpy_elsewhere(y: Any, *arguments: Any, **options: Any) -> Any:
            found = linsat.solve(y, *arguments, **options)
            return replace(found, x=found.x + 1e-6) if isinstance(y, np.ndarray) else found

        def verdict(**fake: Any) -> set[str]:
            found = judging.judge(simple_case(), EVERYTHING, SimpleNamespace(**{**NOTHING_ELSE, **fake}))
            assert found.checks["numpy"] == found.checks["JAX"] == found.checks["JAX, gradients"] == 1
            return {text.partition(":")[0] for text in found.findings}

        assert verdict() == set()
        assert verdict(solve=numpy_elsewhere) == {"doors"}
        solve, project = linsat.jax.solve, linsat.jax.project
        monkeypatch.setattr(
            linsat.jax, "solve", lambda *a, **o: (found := solve(*a, **o))._replace(x=found.x * (1 + 1e-6))
        )
        assert verdict() == {"doors"}
        monkeypatch.setattr(linsat.jax, "solve", solve)
        monkeypatch.setattr(linsat.jax, "project", lambda *a, **o: 1.001 * project(*a, **o))
        assert verdict() == {"doors"}

    def test_a_gradient_that_is_wrong(self) -> None:
        """Finite and of the right sign, but half as long again."""

        def longer(y: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
            x = linsat.project(y, *arguments, **options)
            return x + 0.5 * (x - x.detach())

        def found(**fake: Any) -> set[str]:
            library = SimpleNamespace(**{**NOTHING_ELSE, **fake})
            verdict = judging.judge(simple_case(objective="slack-free"), judging.Depth(gradients=True), library)
            assert verdict.checks["finite differences"] == 1
            return {text.partition(":")[0] for text in verdict.findings}

        assert found() == set()
        assert found(project=longer) == {"gradient"}

    @pytest.mark.parametrize("kind", formulas.KINDS)
    def test_formulas_that_do_not_hold_or_are_not_the_best(self, kind: str) -> None:
        """Answers to the same rows without the formula, to half the scores, and with duals of the wrong sign."""
        at = np.array([0.3, 0.3, 0.4])
        case = simple_case(
            objective="slack-free", sides=np.array([[1.0, 0.9]]), scores=np.array([[2.0, 0.0, -1.0]]), batch=(1,),
            points=[at],
        )  # fmt: skip
        plain = linsat.solve(case.scores, case.constraints(linsat), objective=case.asked(linsat)).x[0]
        drawn = (replace(formulas.draw(np.random.default_rng(n), kind, at), price=None) for n in range(1000))
        binding = next(f for f in drawn if abs(f.side) > 0.05 and f.over(plain) > 1e-2)

        def found(**fake: Any) -> list[str]:
            verdict = judging.Verdict()
            library = SimpleNamespace(**{**NOTHING_ELSE, **fake})
            formulas.judge_case(case, [binding], verdict, library)
            assert verdict.checks["formulas"] == 1
            return [text.partition(":")[0] for text in verdict.findings]

        assert found() == []
        without = torch.from_numpy(plain)
        assert "silent violation" in found(solve=changed(lambda s: {"x": without}))
        assert "duals" in found(solve=changed(lambda s: {"duals": -s.duals}))
        elsewhere = found(solve=lambda y, *a, **o: linsat.solve(-y, *a, **o))
        assert "optimum" in elsewhere
        if kind == "one":  # which leaves x a direction to move in
            assert found(project=lambda y, *a, **o: linsat.project(2 * y - y.detach(), *a, **o)) == ["gradient"]

    def test_wrong_duals(self) -> None:
        assert kinds(nearest_case(), solve=changed(lambda s: {"duals": 0.99 * s.duals})) == {"optimum"}
        assert "duals" in kinds(nearest_case(), solve=changed(lambda s: {"duals": -s.duals}))
        assert kinds(nearest_case(), solve=changed(lambda s: {"duals": s.duals * torch.nan})) == {"duals"}

    def test_a_soft_row_broken_without_reason(self) -> None:
        """At a price of 0.1 the row gives way; at 10 the dual of 2/3 holds it, and breaking it is a lie."""
        give = torch.full((1, 3), 0.05, dtype=torch.float64)
        broken = changed(lambda s: {"x": s.x + give, "violation": s.violation})
        assert kinds(nearest_case(price=np.array([0.1]))) == set()
        assert kinds(nearest_case(price=np.array([10.0]))) == set()
        assert kinds(nearest_case(price=np.array([10.0])), solve=broken) == {"optimum"}
        beyond = changed(lambda s: {"duals": 0 * s.duals - 11.0})
        assert "duals" in kinds(nearest_case(price=np.array([10.0])), solve=beyond)

    def test_a_soft_row_of_a_high_price_broken_within_the_tolerance_of_a_hard_one(self) -> None:
        """By 3e-10, at a price of 1e6: 3e-4 more than the best value. A hard row may be off by that."""
        slightly = changed(lambda s: {"x": s.x + 1e-10, "violation": s.violation})
        dear = nearest_case(price=np.array([1e6]))
        assert kinds(dear) == set()
        assert kinds(dear, solve=slightly) == {"optimum"}
        off = changed(lambda s: {"x": s.x + 1e-10})
        hard = judging.judge(nearest_case(), None, SimpleNamespace(**{**NOTHING_ELSE, "solve": off}))
        assert not any(text.startswith("optimum") for text in hard.findings)

    def test_prices_are_drawn_to_1e6(self) -> None:
        cases = [systems.draw(1, number) for number in range(200)]
        prices = np.concatenate([case.price[np.isfinite(case.price)] for case in cases if case.price is not None])
        assert prices.min() < 0.1
        assert 1e5 < prices.max() <= 1e6

    def test_a_row_dropped_in_a_wide_box(self) -> None:
        """The lower ends of a box of 1e9, where x0 + x1 + x2 = 1."""
        alike = simple_case(
            matrix=np.ones((1, 3)), senses=["=="], sides=np.array([[1.0]]), upper=np.full(3, 1e9), shared=True,
            points=[np.full(3, 1 / 3)],
        )  # fmt: skip
        assert kinds(alike) == set()
        dropped = changed(lambda s: {"x": 0 * s.x, "violation": 0 * s.violation + 1.0})
        assert "silent violation" in kinds(alike, solve=dropped)

    def test_an_unbounded_contradiction_accepted(self) -> None:
        """x0 + x1 + x2 <= 1 and >= 2 in the whole space, called converged half way between."""
        case = nearest_case(
            matrix=np.ones((2, 3)), senses=["<=", ">="], sides=np.array([[1.0, 2.0]]), points=[None],
            weights=np.array([1.0, -1.0]), excess=0.1,
        )  # fmt: skip
        assert shrink.is_true(case)
        assert kinds(case) == set()
        lie = changed(lambda s: {"x": 0 * s.x + 0.5, "codes": torch.zeros_like(s.codes)})
        assert "accepted" in kinds(case, solve=lie)

    def test_a_bound_that_nothing_forces(self) -> None:
        """A variable put to its bound needs an infinite dual, unless the rows force it: HiGHS is asked."""
        move = torch.tensor([[-0.1, 0.1, 0.0]], dtype=torch.float64)

        def lie(solution: linsat.Solution) -> dict[str, Any]:
            x = solution.x.clone()
            x[:, 1] += x[:, 2]
            x[:, 2] = 0.0
            return {"x": x + 0 * move}

        found = judging.judge(
            simple_case(objective="slack-free"), None, SimpleNamespace(**{**NOTHING_ELSE, "solve": changed(lie)})
        )
        assert any("not forced" in text for text in found.findings)

    def test_feasible_rows_called_infeasible(self) -> None:
        lie = changed(lambda s: {"codes": torch.full_like(s.codes, linsat.status.Status.INFEASIBLE.code)})
        assert kinds(simple_case(), solve=lie) == {"false infeasible"}

    def test_feasible_rows_refused(self) -> None:
        def refuse(*arguments: Any, **options: Any) -> None:
            raise linsat.InfeasibleError("no", rows=["E[0]"], indices=[1], minimal=True, certificate=[1.0])

        assert kinds(simple_case(), solve=refuse) == {"false infeasible"}

    def test_infeasible_rows_accepted(self) -> None:
        lie = changed(lambda s: {"codes": torch.zeros_like(s.codes)})
        assert "accepted" in kinds(infeasible_case(), solve=lie)

    @pytest.mark.parametrize(
        ("certificate", "kind"), [((), "no certificate"), ((-1.0,), "wrong certificate"), ((0.0,), "wrong certificate")]
    )
    def test_a_refusal_with_a_false_proof(self, certificate: tuple[float, ...], kind: str) -> None:
        def solve(scores: Any, cons: Any, *, on_failure: str, **options: Any) -> linsat.Solution:
            if on_failure == "raise":
                raise linsat.InfeasibleError("no", rows=["A[0]"], indices=[0], minimal=True, certificate=certificate)
            return linsat.solve(scores, cons, on_failure=on_failure, **options)

        assert kinds(infeasible_case(), solve=solve) == {kind}

    def test_a_refusal_that_names_too_many_rows(self) -> None:
        def solve(scores: Any, cons: Any, *, on_failure: str, **options: Any) -> linsat.Solution:
            if on_failure == "raise":
                raise linsat.InfeasibleError("no", rows="ab", indices=[0, 1], minimal=True, certificate=(1.0, 0.0))
            return linsat.solve(scores, cons, on_failure=on_failure, **options)

        assert kinds(infeasible_case(), solve=solve) == {"not minimal"}

    def test_an_answer_that_depends_on_its_batch_mates(self) -> None:
        lie = changed(lambda s: {"x": s.x * (1 + 1e-15 * len(s.x))})
        assert kinds(infeasible_case(), solve=lie) == {"batch mates"}

    def test_a_gradient_that_is_not_finite(self) -> None:
        def project(y: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
            return linsat.project(y, *arguments, **options) + 0 * (0 * y).sqrt()

        def solve(y: torch.Tensor, *arguments: Any, **options: Any) -> linsat.Solution:
            solution = linsat.solve(y, *arguments, **options)
            return replace(solution, x=solution.x + 0 * (0 * y).sqrt())

        alike = simple_case(shared=True, sides=np.array([[1.0, 0.4]]), points=[np.array([0.3, 0.3, 0.4])])
        assert kinds(alike, project=project) == {"gradient"}
        assert kinds(simple_case(), solve=solve) == {"gradient"}

    def test_an_unforeseen_error_and_a_warning(self) -> None:
        def crash(*arguments: Any, **options: Any) -> None:
            raise ZeroDivisionError

        assert kinds(simple_case(), solve=crash) == {"error"}
        noisy = changed(lambda s: {"steps": torch.from_numpy(np.array([1.0, 0.0]) / np.array([0.0, 1.0]))})
        assert kinds(simple_case(), solve=noisy) == {"error"}

    def test_a_hang(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def spin(*arguments: Any) -> None:
            while True:
                pass

        monkeypatch.setattr(campaign, "CASE_SECONDS", 0.2)
        monkeypatch.setattr(campaign, "judge", spin)
        assert campaign._judge_in_time(simple_case(), judging.Depth()).findings[0].startswith("hang")


class TestTheCases:
    def test_are_the_same_for_the_same_seed_and_number(self) -> None:
        for drawn in (systems.draw, systems.draw_structured, conflicts.draw_infeasible):
            for number in range(30):
                one, two, other = drawn(3, number), drawn(3, number), drawn(4, number)
                assert np.array_equal(one.matrix, two.matrix)
                assert np.array_equal(one.sides, two.sides)
                assert np.array_equal(one.scores, two.scores)
                assert not np.array_equal(one.sides, other.sides)

    def test_are_what_they_say(self) -> None:
        for number in range(120):
            if number % 240 != 8:  # thousands of rows
                assert shrink.is_true(systems.draw(5, number))
            assert shrink.is_true(systems.draw_structured(5, number))
            assert shrink.is_true(conflicts.draw_infeasible(5, number))

    def test_cover_every_family_dtype_layout_and_excess(self) -> None:
        drawn = [systems.draw(6, number) for number in range(240)]
        assert {case.family for case in drawn} == set(families.FAMILIES)
        assert {systems.draw_structured(6, n).family for n in range(len(structured.STRUCTURED))} == set(
            structured.STRUCTURED
        )
        assert {case.dtype for case in drawn} == set(systems.DTYPES)
        assert {case.layout for case in drawn} == set(systems.LAYOUTS)
        assert {len(case.batch) for case in drawn} == {0, 1, 2, 3}
        wrong = [conflicts.draw_infeasible(6, number) for number in range(224)]
        assert {case.excess for case in wrong} == set(conflicts.EXCESSES)
        options = {option for case in drawn for option in campaign.options_of(case)}
        options |= {option for n in range(1000) for option in campaign.options_of(systems.draw_structured(6, n))}
        assert options == {
            *OBJECTIVES, "unbounded box", "very wide box", "soft rows", "per-instance coefficients", "half precision",
            "compiled graph", "exported graph", "numbers of each instance", "numbers with the call",
        }  # fmt: skip
        told = {option for case in wrong for option in campaign.options_of(case)}
        assert told >= {"unbounded box", "soft rows"}

    def test_exact_gap_by_hand(self) -> None:
        # x0 + x1 <= 1 and x0 + x1 >= 1 + 2^-40: one multiplier each proves a gap of 2^-40, without rounding.
        matrix, sides = np.ones((2, 2)), np.array([1.0, 1.0 + 2.0**-40])
        box = (np.zeros(2), np.ones(2))
        assert conflicts.exact_gap(matrix, sides, ["<=", ">="], box, np.array([1.0, -1.0])) == Fraction(1, 2**40)
        assert conflicts.exact_gap(matrix, sides, ["<=", ">="], box, np.array([1.0, 1.0])) < 0
        assert conflicts.exact_gap(matrix, sides, ["<=", ">="], box, np.array([1.0, -0.5])) < 0
        open_box = (np.full(2, -np.inf), np.full(2, np.inf))  # where the rows must cancel exactly
        third = Fraction(1, 3)
        assert conflicts.exact_gap(matrix, sides, ["<=", ">="], open_box, [third, -third]) == Fraction(1, 3 * 2**40)
        assert conflicts.exact_gap(matrix, sides, ["<=", ">="], open_box, [1.0, -1.0 - 2**-50]) < 0

    def test_gap_by_hand(self) -> None:
        """(1/3, 1/3, 1/3) at a dual of -2/3 has none; half the dual leaves 3 (1/3)^2 / 2, half of x as much again."""
        case, y, best = nearest_case(), np.ones(3), np.full(3, 1 / 3)
        size = 1 + 1 + 3 / 9 / 2
        assert optimality.duality_gap(case, 0, y, best, np.array([-2 / 3])).relative <= 0
        half = optimality.duality_gap(case, 0, y, best, np.array([-1 / 3])).relative
        assert half == pytest.approx(3 / 9 / 2 / size)
        # At x = 1/6 the row has room 1/2, which a dual of -2/3 pays for, and x is 1/6 from where the dual puts it.
        size = 1 + 1 / 2 + 3 / 36 / 2
        short = optimality.duality_gap(case, 0, y, best / 2, np.array([-2 / 3])).relative
        assert short == pytest.approx((3 / 36 / 2 + 1 / 3) / size)


class TestShrinking:
    def test_a_failure_is_made_small_and_survives_the_disk(self, tmp_path: Path) -> None:
        """The planted fault needs one row with a coefficient above 1 and nothing else."""
        case = next(c for n in range(50) if (c := systems.draw(8, n)).matrix.size > 40 and (c.matrix > 1).any())
        small = shrink.shrink(case, lambda c: bool((c.matrix > 1).any()), seconds=10)
        assert small.matrix.shape == (1, 1)
        assert len(small.sides) == 1
        assert shrink.is_true(small)
        again = shrink.load(shrink.save(small, "small", "planted", tmp_path))
        for name in ("matrix", "sides", "scores", "lower", "upper"):
            assert np.array_equal(getattr(again, name), getattr(small, name))
        assert (again.senses, again.batch, again.tau) == (small.senses, small.batch, small.tau)

    def test_an_infeasible_case_stays_infeasible(self) -> None:
        case = conflicts.draw_infeasible(8, 1)
        small = shrink.shrink(case, lambda c: bool(c.infeasible.any()), seconds=5)
        assert shrink.is_true(small)
        assert small.matrix.size <= case.matrix.size


class TestTheRun:
    def test_goes_on_where_it_stopped(self, tmp_path: Path) -> None:
        """Two calls, the first cut short, record what one call does."""
        path, quiet = tmp_path / "record.json", lambda record, elapsed: None
        whole = campaign.Record(seed=1)
        goals = campaign.Goals(60, 12, structured=40)
        campaign.run(whole, goals, tmp_path / "whole.json", quiet, tmp_path)
        campaign.run(campaign.Record(seed=1), campaign.Goals(30, 6, structured=20), path, quiet, tmp_path)
        rest = campaign.Record.load(path, 1)
        assert rest.row_sets < whole.row_sets
        campaign.run(rest, goals, path, quiet, tmp_path)
        assert rest.statuses == whole.statuses
        assert rest.reports == whole.reports
        assert rest.row_sets == whole.row_sets

    def test_another_seed_is_refused_in_one_line(self, tmp_path: Path) -> None:
        campaign.Record(seed=1).save(tmp_path / "record.json")
        with pytest.raises(ValueError, match="seed 1; this one has seed 2"):
            campaign.Record.load(tmp_path / "record.json", 2)

    def test_the_command_writes_a_record(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "fuzz.run", "--seed", "2", "--out", str(tmp_path)]
        done = subprocess.run(
            [*command, "--feasible", "20", "--structured", "8", "--infeasible", "3"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        record = json.loads((tmp_path / "seed-2.json").read_text())
        assert record["findings"] == []
        assert record["feasible"] >= 20
        assert record["structured"] >= 8
        refused = subprocess.run([*command, "--minutes", "0"], capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert "Traceback" not in refused.stderr


def test_findings_are_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    record = campaign.Record(seed=5, findings=["structured 5/1: duals: old", "structured 5/1: duals: old"])
    campaign.judge_again(record)
    assert (record.findings, record.checks) == ([], {"judged again": 1})
    monkeypatch.setattr(campaign, "judge", lambda case, depth: judging.Verdict(findings=["duals: still"]))
    record.findings = ["structured 5/1: duals: old"]
    campaign.judge_again(record)
    assert record.findings == ["structured 5/1: duals: still"]


def test_the_page_states_the_recorded_run():
    record = json.loads(tables.RECORD.read_text())
    assert record["feasible"] >= 100_000
    assert record["structured"] >= 20_000
    assert record["infeasible"] >= 10_000
    assert record["findings"] == []
    page = tables.PAGE.read_text()
    assert tables.filled(page, record, tables.fault_records()) == page


def test_the_page_states_the_recorded_faults():
    """Each met its bar; another number would be another page."""
    records = tables.fault_records()
    assert {"kills", "soak", "malformed"} <= set(records)
    assert [name for name, record in records.items() if not record["met"]] == []
    told = tables.faults_text(records)
    assert told in tables.PAGE.read_text()
    records["kills"]["trials"][0] |= {"killed": True, "equal": False}
    records["soak"]["growth_mb"] += 1
    assert sum(a != b for a, b in zip(told.splitlines(), tables.faults_text(records).splitlines(), strict=True)) == 2


def test_hostile_requests_are_of_every_kind_and_an_odd_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explorer that answers everything with a traceback, one that hands out its page, and one that stops."""

    class Line:
        def __init__(self, reply: bytes) -> None:
            self.left = [reply]

        def __enter__(self) -> Line:
            return self

        def __exit__(self, *_: object) -> None: ...

        def sendall(self, _: bytes) -> None: ...

        def recv(self, _: int) -> bytes:
            return self.left.pop() if self.left else b""

    def told(reply: bytes) -> list[str]:
        monkeypatch.setattr(hostile.socket, "create_connection", lambda *a, **o: Line(reply))
        replies = hostile.asked(1, 100, 0)
        assert len({one.kind for one in replies}) == len(hostile._KINDS)
        return [one.odd for one in replies]

    assert not any(told(b"HTTP/1.1 200 OK\r\n\r\n{}"))
    assert all(told(b"HTTP/1.1 400 Bad Request\r\n\r\nTraceback (most recent call last)"))
    assert all(told(b"HTTP/1.1 200 OK\r\n\r\n<textarea>"))
    assert all(told(b""))  # no question is answered any more


def test_the_page_states_the_recorded_solves_of_real_systems():
    record = json.loads((FOLDER / "results" / "real_systems.json").read_text())
    page = real_systems.PAGE.read_text()
    assert real_systems.filled(page, record) == page
