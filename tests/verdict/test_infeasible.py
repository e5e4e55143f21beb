"""Contradictory rows: rejected with a minimal set of names, or reported for the one instance they concern."""

import pickle

import numpy as np
import pytest
import torch

import linsat
from tests.helpers.oracles import System, is_feasible, random_system

PAPER_ROWS = {"C": [[1, 1, 0, 0], [0, 0, 1, 1]], "d": [2, 2], "A": [[1, 0, 1, 0], [0, 1, 0, 1]], "b": [1, 1]}


def _without(system: System, drop: int) -> System:
    keep = [i for i in range(len(system.senses)) if i != drop]
    return System(
        system.matrix[keep],
        [system.senses[i] for i in keep],
        system.rhs[keep],
        system.point,
        system.lower,
        system.upper,
    )


def test_the_papers_example_names_its_rows():
    # In [0, 1] two covering rows fix all variables at 1, so either packing row completes a conflict of three.
    with pytest.raises(linsat.InfeasibleError) as caught:
        linsat.project(torch.zeros(4), linsat.Constraints(**PAPER_ROWS))
    for name in ("A[0]", "A[1]", "C[0]", "C[1]"):
        assert name in str(caught.value)
    assert set(caught.value.rows) in ({"A[0]", "C[0]", "C[1]"}, {"A[1]", "C[0]", "C[1]"})


def test_the_papers_example_without_the_upper_bound_needs_all_four_rows():
    with pytest.raises(linsat.InfeasibleError) as caught:
        linsat.Constraints(**PAPER_ROWS, upper=2.0).check()
    assert set(caught.value.rows) == {"A[0]", "A[1]", "C[0]", "C[1]"}
    matrix = np.array([*PAPER_ROWS["A"], *PAPER_ROWS["C"]], dtype=float)
    system = System(matrix, ["<=", "<=", ">=", ">="], np.array([1.0, 1, 2, 2]), np.zeros(4), upper=np.full(4, 2.0))
    assert not is_feasible(system)
    for drop in range(4):
        smaller = _without(system, drop)
        assert is_feasible(smaller)
        x = linsat.project(np.zeros(4), linsat.Constraints(**smaller.arguments()))
        assert smaller.violation(x) <= 1e-6


@pytest.mark.parametrize("margin", [1.0, 0.1, 1e-3, 1e-5])
def test_random_contradictions_are_found_and_minimal(margin):
    rng = np.random.default_rng(int(1 / margin))
    for _ in range(12):
        system = random_system(rng, "signed", largest=12, rows=6)
        weights = rng.uniform(0.5, 2.0, 3)
        rows = rng.uniform(-1, 1, (3, len(system.point)))
        # weights . rows combine to a row that must be at most and at least: no point can do both.
        total = weights @ rows
        best = np.maximum(total, 0).sum()
        matrix = np.vstack([system.matrix, rows])
        extra = rows @ system.point
        extra += (best + margin - weights @ extra) / weights.sum()
        system = System(matrix, [*system.senses, ">=", ">=", ">="], np.append(system.rhs, extra), system.point)
        assert not is_feasible(system)
        cons = linsat.Constraints(**system.arguments())
        with pytest.raises(linsat.InfeasibleError) as caught:
            cons.check()
        order = [i for s in ("<=", ">=", "==") for i, t in enumerate(system.senses) if t == s]
        named = [order[i] for i in caught.value.indices]
        core = System(matrix[named], [system.senses[i] for i in named], system.rhs[named], system.point)
        assert caught.value.minimal
        assert not is_feasible(core)
        for drop in range(len(named)):
            assert is_feasible(_without(core, drop))


def test_a_single_row_against_the_bounds_and_its_name():
    cons = linsat.Constraints(C=[[1.0, 1.0]], d=[3.0], names=["two apples make three"])
    with pytest.raises(linsat.InfeasibleError, match="two apples make three") as caught:
        linsat.project(torch.zeros(2), cons)
    assert caught.value.rows == ("two apples make three",)


def test_layer_refuses_when_it_is_made():
    with pytest.raises(linsat.InfeasibleError):
        linsat.LinSAT(linsat.Constraints(**PAPER_ROWS))


def test_error_survives_pickling():
    with pytest.raises(linsat.InfeasibleError) as caught:
        linsat.Constraints(**PAPER_ROWS).check()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.rows, copy.indices, copy.minimal) == (
        str(caught.value),
        caught.value.rows,
        caught.value.indices,
        True,
    )


class TestMixedBatch:
    def make(self):
        rows = np.random.default_rng(0).uniform(0.2, 1.0, (3, 8))
        point = np.full(8, 0.4)
        sides = np.tile(rows @ point, (6, 1))
        return linsat.Constraints(E=rows, f=sides[0]), sides

    @pytest.mark.parametrize("shift", [10.0, 0.5])
    def test_infeasible_instances_leave_the_others_untouched(self, shift):
        cons, sides = self.make()
        bad = sides.copy()
        bad[2, 1] += shift  # beyond what the box can reach, or only in conflict with the other rows
        bad[4, 0] = -1.0
        for i in (2, 4):
            system = System(np.asarray(cons.matrix.to_dense()), ["=="] * 3, bad[i], np.zeros(8))
            assert not is_feasible(system) or shift < 1
        scores = torch.rand(6, 8, dtype=torch.float64)
        solution = linsat.solve(scores, cons.with_rhs(f=bad), on_failure="ignore")
        clean = linsat.solve(scores, cons.with_rhs(f=sides))
        expected = [
            is_feasible(System(np.asarray(cons.matrix.to_dense()), ["=="] * 3, bad[i], np.zeros(8))) for i in range(6)
        ]
        assert [s == "converged" for s in solution.status] == expected
        assert [s == "infeasible" for s in solution.status] == [not e for e in expected]
        untouched = [0, 1, 3, 5]
        assert float((solution.x[untouched] - clean.x[untouched]).abs().max()) <= 1e-10
        assert torch.isfinite(solution.x).all()

    def test_warning_and_error_name_the_instance(self):
        cons, sides = self.make()
        sides[3, 2] = 100.0
        with pytest.warns(linsat.LinSATWarning, match="instance 3: infeasible"):
            linsat.project(torch.zeros(6, 8), cons.with_rhs(f=sides), on_failure="warn")
        words = r"(?s)for instance 3:.*== 100\nIt needs 100; the bounds allow .*\nFix: "
        with pytest.raises(linsat.InfeasibleError, match=words):
            linsat.project(torch.zeros(6, 8), cons.with_rhs(f=sides))

    def test_contradiction_between_rows_of_one_instance(self):
        cons = linsat.Constraints(A=[[1.0, 1.0, 0.0]], b=[1.0], C=[[1.0, 1.0, 1.0]], d=[1.5])
        mixed = cons.with_rhs(b=[[1.0], [0.4], [0.6]], d=[[1.5], [1.5], [1.5]])
        solution = linsat.solve(torch.zeros(3, 3), mixed, on_failure="ignore")
        assert solution.status.tolist() == ["converged", "infeasible", "converged"]

    def test_forced_variables_of_one_instance(self):
        # x0 + x1 <= 1 and x0 + x1 >= 1 with x2 <= 0: forced for the second instance only.
        cons = linsat.Constraints(A=[[1.0, 1, 0], [0, 0, 1]], b=[1.0, 0.5], C=[[1.0, 1, 0]], d=[0.5])
        own = cons.with_rhs(b=[[1.0, 0.5], [1.0, 0.0]], d=[[0.5], [1.0]])
        solution = linsat.solve(torch.tensor([0.3, -0.2, 0.1]).double(), own)
        assert solution.converged.all()
        assert float(solution.violation.max()) <= 1e-6
        assert float(solution.x[1, 2]) == 0.0


def test_further_conflicts_do_not_repeat_the_one_just_shown():
    """Each of the pairs of caps conflicts with the need: named one by one; with the same names, said to be others."""
    caps = np.tile(np.eye(2), (3, 1))
    numbered = linsat.Constraints(A=caps, b=0.4, C=[[1, 1]], d=[1], names=[*(f"cap[{i}]" for i in range(6)), "need"])
    with pytest.raises(linsat.InfeasibleError) as caught:
        numbered.check()
    (line,) = [line for line in str(caught.value).splitlines() if line.startswith("Further conflicts")]
    listed = line.removeprefix("Further conflicts remain after that: ").removesuffix(".").split(" | ")
    for text in listed:
        names = text.split(", ")
        assert set(names) != set(caught.value.rows)
        left = numbered.names.index("need")
        rows = [numbered.names.index(name) for name in names]
        assert left in rows
        assert {i % 2 for i in rows if i != left} == {0, 1}
    alike = linsat.Constraints(A=[[1, 1]] * 3, b=0.4, C=[[1, 1]], d=[1], names=["cap"] * 3 + ["need"])
    with pytest.raises(linsat.InfeasibleError, match="Further conflicts among other rows of these names remain"):
        alike.check()
