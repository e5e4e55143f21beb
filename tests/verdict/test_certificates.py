"""Proofs of infeasibility in exact arithmetic; instances that are the same to the last bit in any batch."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch

import linsat
from linsat import failures
from tests.helpers.arithmetic import needs_kernel
from tests.helpers.oracles import System, random_system


def gap_of(system: System, error: linsat.InfeasibleError) -> Fraction:
    """Smallest v x over the box less c, where the weighted rows say v x <= c; all as fractions."""
    order = [i for s in ("<=", ">=", "==") for i, t in enumerate(system.senses) if t == s]
    named = [order[i] for i in error.indices]
    assert len(named) == len(error.certificate) > 0
    v, c = [Fraction(0)] * len(system.lower), Fraction(0)
    for i, weight in zip(named, error.certificate, strict=True):
        assert weight >= 0 or system.senses[i] != "<="
        assert weight <= 0 or system.senses[i] != ">="
        c += Fraction(weight) * Fraction(float(system.rhs[i]))
        v = [total + Fraction(weight) * Fraction(float(a)) for total, a in zip(v, system.matrix[i], strict=True)]
    bounds = zip(v, system.lower.tolist(), system.upper.tolist(), strict=True)
    return sum((min(a * Fraction(low), a * Fraction(high)) for a, low, high in bounds), Fraction(0)) - c


class TestCertificate:
    def test_by_hand(self) -> None:
        # x0 + x1 <= 1/2 and x0 + x1 + x2 >= 7/4: the difference says x2 >= 5/4, which misses the box by 1/4.
        system = System(np.array([[1.0, 1, 0], [1, 1, 1]]), ["<=", ">="], np.array([0.5, 1.75]), point=np.zeros(3))
        with pytest.raises(linsat.InfeasibleError) as caught:
            linsat.Constraints(**system.arguments()).check()
        first, second = caught.value.certificate
        assert first == pytest.approx(-second)
        assert gap_of(system, caught.value) == pytest.approx(first / 4)

    @pytest.mark.parametrize("margin", [1e-1, 1e-4, 1e-7])
    def test_random_contradictions_are_proved_exactly(self, margin: float) -> None:
        rng = np.random.default_rng(int(1 / margin))
        for _ in range(6):
            system = random_system(rng, "signed", largest=10, rows=5)
            system.lower, system.upper = -np.ones_like(system.lower), 2 * np.ones_like(system.upper)
            # A row against a combination of the others.
            weights = np.array([{"<=": 1.0, ">=": -1.0, "==": 1.0}[s] for s in system.senses])
            size = np.abs(system.matrix).sum()
            system.matrix = np.vstack([system.matrix, weights @ system.matrix])
            system.rhs = np.append(system.rhs, weights @ system.rhs + margin * size)
            system.senses = [*system.senses, ">="]
            with pytest.raises(linsat.InfeasibleError) as caught:
                linsat.Constraints(**system.arguments()).check()
            assert gap_of(system, caught.value) > 0

    def test_of_one_instance(self) -> None:
        cons = linsat.Constraints(C=[[1.0, 2.0]], d=[[1.0], [3.5], [2.0]])
        with pytest.raises(linsat.InfeasibleError, match="instance 1") as caught:
            linsat.solve(torch.zeros(3, 2), cons, on_failure="raise")
        system = System(np.array([[1.0, 2.0]]), [">="], np.array([3.5]), np.zeros(2))
        assert gap_of(system, caught.value) > 0

    def test_survives_pickling(self) -> None:
        with pytest.raises(linsat.InfeasibleError) as caught:
            linsat.Constraints(C=[[1.0, 1.0]], d=3.0).check()
        assert pickle.loads(pickle.dumps(caught.value)).certificate == caught.value.certificate != ()


@needs_kernel
def test_an_instance_is_the_same_to_the_last_bit_in_any_batch() -> None:
    """Infeasible batch mates, other numbers of mates, none: the same bits from the CPU kernel."""
    rng = np.random.default_rng(3)
    solver = linsat.Newton(backend="kernel")
    for _ in range(4):
        system = random_system(rng, "signed", largest=30, rows=9)
        l, count = len(system.point), 7
        cons = linsat.Constraints(**system.arguments())
        order = [i for s in ("<=", ">=", "==") for i, t in enumerate(system.senses) if t == s]
        sides = np.tile(system.rhs[order], (count, 1))
        bad = rng.random(count) < 0.5
        sides[bad, 0] += np.where(system.senses[order[0]] == "<=", -1, 1) * 10 * np.abs(system.matrix).sum()
        blocks = {"<=": "b", ">=": "d", "==": "f"}
        ordered = [blocks[system.senses[i]] for i in order]

        def with_sides(keep: np.ndarray) -> linsat.Constraints:
            own = {name: sides[keep][:, [n == name for n in ordered]] for name in set(ordered)}  # noqa: B023
            return cons.with_rhs(**own)  # noqa: B023

        scores = torch.from_numpy(rng.normal(size=(count, l)))
        everything = np.arange(count)
        whole = linsat.solve(scores, with_sides(everything), tau=0.05, solver=solver, on_failure="ignore")
        assert [s == "infeasible" for s in whole.status] == bad.tolist()
        good = everything[~bad]
        some = linsat.solve(scores[good], with_sides(good), tau=0.05, solver=solver, on_failure="ignore")
        assert torch.equal(some.x, whole.x[good])
        for i in good:
            alone = linsat.solve(scores[[i]], with_sides(np.array([i])), tau=0.05, solver=solver, on_failure="ignore")
            assert torch.equal(alone.x[0], whole.x[i])


def test_pinned_variables_of_instances_that_pin_them_differently() -> None:
    """x0 + x1 <= 0 pins both at 0, x0 + x1 >= 2 both at 1: the same variables, other ends."""
    cons = linsat.Constraints(A=[[1.0, 1, 0]], b=[[0.0], [2.0]], C=[[1.0, 1, 0]], d=[[0.0], [2.0]])
    solution = linsat.solve(torch.zeros(2, 3, dtype=torch.float64), cons, tau=0.5)
    expected = torch.tensor([[0.0, 0.0, 0.5], [1.0, 1.0, 0.5]], dtype=torch.float64)  # sigmoid(0) where nothing binds
    assert torch.equal(solution.x, expected)


@pytest.mark.parametrize("call", [linsat.project, linsat.solve])
def test_bounds_beyond_the_dtype_of_the_scores_are_refused(call) -> None:  # type: ignore[no-untyped-def]
    cons = linsat.Constraints(A=[[1.0, 1.0]], b=[1.5e5], upper=1e5)
    with pytest.raises(linsat.ConstraintError, match=r"reach 100000 but y has dtype torch.float16"):
        call(torch.zeros(2, dtype=torch.float16), cons)
    assert linsat.project(torch.zeros(2), cons).sum() <= 1.5e5
    wide = linsat.Constraints(A=[[1.0, 1.0]], b=[1e39], upper=1e39)
    with pytest.raises(linsat.ConstraintError, match="float32"):
        call(torch.zeros(2), wide)


def test_one_verdict_for_instances_with_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step is too few for any of twenty instances, which have two different right-hand sides between them."""
    calls = []
    judge = failures.judge

    def counted(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        return judge(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(failures, "judge", counted)
    sides = np.tile([[0.7], [1.2]], (10, 1))
    cons = linsat.Constraints(
        A=[[1.0, 1, 0], [0, 1, 1]], b=np.hstack([sides, 0 * sides + 1.5]), C=[[1.0, 1, 0]], d=sides
    )
    scores = torch.randn(20, 3, dtype=torch.float64)
    solution = linsat.solve(scores, cons, solver=linsat.Newton(max_steps=1), on_failure="ignore")
    assert not solution.converged.any()
    assert len(calls) == 2
