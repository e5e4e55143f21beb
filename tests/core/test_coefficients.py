"""Coefficients that differ per instance: values, gradients, statuses, and every way to state them."""

from __future__ import annotations

import copy
import pickle
import time

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import linsat
from linsat import ConstraintError
from linsat.status import Status
from tests.helpers.arithmetic import NEWTON_BACKENDS, assert_same_answer
from tests.helpers.oracles import System, entropic_optimum, nearest_point, slack_free_optimum

F64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
TIGHT = linsat.Newton(tol=1e-12)
OBJECTIVES = {
    "paper": linsat.Entropy(0.3),
    "entropy": linsat.Entropy(0.3, slack="none"),
    "euclidean": linsat.Euclidean(),
}
ORACLES = {
    "paper": lambda system, y: entropic_optimum(system, y, 0.3),
    "entropy": lambda system, y: slack_free_optimum(system, y, 0.3),
    "euclidean": lambda system, y: nearest_point(system, y),
}
BLOCKS = {"A": ("<=", "b", 2), "C": (">=", "d", 1), "E": ("==", "f", 1)}


def _systems(count, l=6, seed=0, share_of_zeros=0.3):
    """Systems with two rows <=, one >= and one ==, all numbers of each its own, that hold a known inner point."""
    rng = np.random.default_rng(seed)
    systems = []
    for _ in range(count):
        senses = [sense for sense, _, rows in BLOCKS.values() for _ in range(rows)]
        matrix = rng.uniform(-1, 2, (len(senses), l)) * (rng.random((len(senses), l)) > share_of_zeros)
        matrix[:, 0] = rng.uniform(0.5, 1.5, len(senses))
        point, sign = rng.uniform(0.2, 0.8, l), {"<=": 1, ">=": -1, "==": 0}
        side = matrix @ point + np.array([sign[s] * rng.uniform(0, 0.2) for s in senses])
        systems.append(System(matrix, senses, side, point))
    return systems


def _numbers(systems, names=("A", "C", "E", "b", "d", "f")):
    own = [system.arguments() for system in systems]
    return {name: torch.tensor(np.stack([one[name] for one in own])) for name in names}


def _scores(systems, seed=1):
    return torch.tensor(np.random.default_rng(seed).normal(size=(len(systems), systems[0].matrix.shape[1])))


class TestValues:
    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_each_instance_is_its_own_optimum(self, objective):
        systems = _systems(6)
        y = _scores(systems)
        x = linsat.project(y, linsat.Constraints(**_numbers(systems)), objective=OBJECTIVES[objective])
        vouched = 0
        for system, scores, found in zip(systems, y.numpy(), x.numpy(), strict=True):
            assert system.violation(found) <= 1e-8
            expected = ORACLES[objective](system, scores)
            if expected is not None:
                vouched += 1
                np.testing.assert_allclose(found, expected, atol=2e-6)
        assert vouched >= 4

    @pytest.mark.parametrize("objective", OBJECTIVES)
    @pytest.mark.parametrize("backend", [*NEWTON_BACKENDS, "interior_point"])
    def test_a_batch_is_a_loop_of_singles(self, objective, backend):
        systems = _systems(5, seed=2)
        y, numbers = _scores(systems), _numbers(systems)
        call = {"objective": OBJECTIVES[objective], "solver": linsat.Newton(tol=1e-12, backend=backend)}
        together = linsat.solve(y, linsat.Constraints(**numbers), **call)
        assert together.converged.all()
        for n in range(len(systems)):
            alone = linsat.solve(y[n], linsat.Constraints(**{name: t[n] for name, t in numbers.items()}), **call)
            assert float((alone.x - together.x[n]).abs().max()) <= 1e-10

    def test_no_instance_depends_on_the_others(self):
        systems = _systems(7, seed=3, share_of_zeros=0.0)
        y, numbers = _scores(systems), _numbers(systems)
        whole = linsat.project(y, linsat.Constraints(**numbers))
        for part in ([2], [6, 0, 3]):
            few = linsat.project(y[part], linsat.Constraints(**{name: t[part] for name, t in numbers.items()}))
            assert_same_answer(few, whole[part])

    def test_batch_dimensions_broadcast(self):
        """Coefficients (3, 1), right-hand sides (2,), bounds (3, 2), scores (): every pair of instances."""
        systems = _systems(3, seed=4)
        A, b = _numbers(systems, ("A",))["A"], torch.tensor([[1.0, 1.5], [2.0, 2.5]], dtype=F64)
        upper = torch.linspace(0.8, 1.2, 6, dtype=F64).reshape(3, 2, 1).expand(3, 2, 6)
        y = _scores(systems)[0]
        cons = linsat.Constraints(A=A[:, None], b=b, upper=upper)
        assert cons.batch_shape == (3, 2)
        found = linsat.solve(y, cons, tau=0.3)
        for i, j in np.ndindex(3, 2):
            alone = linsat.project(y, linsat.Constraints(A=A[i], b=b[j], upper=upper[i, j]), tau=0.3)
            assert float((alone - found.x[i, j]).abs().max()) <= 1e-10
        np.testing.assert_allclose(found.violation, cons.violation(found.x))
        gap = torch.einsum("ikl,ijl->ijk", A, found.x) - b
        torch.testing.assert_close(cons.row_violation(found.x), gap.clamp_min(0.0))

    def test_an_empty_batch(self):
        cons = linsat.Constraints(A=np.zeros((0, 2, 3)), b=[-1.0, 1.0])
        assert linsat.project(torch.zeros(0, 3), cons).shape == (0, 3)

    def test_sinkhorn(self):
        """Rows of equal coefficients, whose sizes differ per instance: there its fixed point is Newton's."""
        size = torch.tensor([0.5, 1.0, 3.0], dtype=F64)
        cons = linsat.Constraints(
            E=size[:, None, None] * torch.ones(2, 4, dtype=F64).tril(1), f=size[:, None] * torch.tensor([1.0, 1.5])
        )
        y = torch.randn(3, 4, dtype=F64)
        x = linsat.project(y, cons, tau=0.5, solver=linsat.Sinkhorn(tol=1e-10, max_sweeps=5000))
        torch.testing.assert_close(x, linsat.project(y, cons, tau=0.5), atol=1e-7, rtol=0)
        negative = torch.ones(2, 1, 4, dtype=F64)
        negative[1, 0, 2] = -3
        with pytest.raises(ConstraintError, match="row 0 has -3 at variable 2"):
            linsat.project(y[:2], linsat.Constraints(A=negative, b=1), solver=linsat.Sinkhorn())


class TestGradients:
    @pytest.mark.parametrize("objective", OBJECTIVES)
    @pytest.mark.parametrize("backend", NEWTON_BACKENDS)
    def test_finite_differences(self, objective, backend):
        systems = _systems(3, l=3, seed=5, share_of_zeros=0.0)
        numbers = _numbers(systems)
        solver = linsat.Newton(tol=1e-13, backend=backend)

        def solve(y, A, C, E):
            cons = linsat.Constraints(**(numbers | {"A": A, "C": C, "E": E}))
            found = linsat.solve(y, cons, objective=OBJECTIVES[objective], solver=solver)
            return found.x, found.duals

        given = (_scores(systems), *(numbers[name] for name in "ACE"))
        given = [t.clone().requires_grad_(True) for t in given]
        assert gradcheck(solve, given, atol=1e-6, fast_mode=backend == "arrays")

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_shared_beside_per_instance(self, objective):
        systems = _systems(3, l=4, seed=6, share_of_zeros=0.0)
        numbers = _numbers(systems, ("E", "f"))
        A = torch.tensor([[1.0, 1.0, -0.5, 2.0]], dtype=F64)

        def solve(A, E):
            cons = linsat.Constraints(A=A, b=1.4, E=E, f=numbers["f"])
            return linsat.project(_scores(systems), cons, objective=OBJECTIVES[objective], solver=TIGHT)

        assert gradcheck(solve, (A.requires_grad_(True), numbers["E"].requires_grad_(True)), atol=1e-6)

    def test_second_derivatives(self):
        systems = _systems(2, l=3, seed=7, share_of_zeros=0.0)
        numbers = _numbers(systems)

        def solve(A):
            return linsat.project(_scores(systems), linsat.Constraints(**(numbers | {"A": A})), tau=0.5, solver=TIGHT)

        assert gradgradcheck(solve, (numbers["A"].clone().requires_grad_(True),), atol=1e-5, fast_mode=True)

    def test_an_infeasible_instance_has_no_gradient_and_spoils_none(self):
        C = torch.rand(3, 1, 4, dtype=F64) + 0.5
        C[1] = 0.1  # sums to 0.4 at most
        y = torch.randn(3, 4, dtype=F64)
        given = C.clone().requires_grad_(True)
        linsat.project(y, linsat.Constraints(C=given, d=1.5), on_failure="nan")[..., 0].sum().backward()
        few = C[[0, 2]].clone().requires_grad_(True)
        linsat.project(y[[0, 2]], linsat.Constraints(C=few, d=1.5))[..., 0].sum().backward()
        assert torch.equal(given.grad[1], torch.zeros(1, 4, dtype=F64))
        assert_same_answer(given.grad[[0, 2]], few.grad)
        assert float(few.grad.abs().min()) > 0


class TestTransforms:
    """`torch.func.vmap` over coefficients joins the instances into one batch."""

    systems = _systems(4, seed=8)

    def _own(self, A, y, **others):
        return linsat.project(y, linsat.Constraints(A=A, b=2.0, **others), tau=0.3)

    def test_vmap_over_coefficients(self):
        A, y = _numbers(self.systems, ("A",))["A"], _scores(self.systems)
        assert_same_answer(torch.func.vmap(self._own)(A, y), self._own(A, y))
        over = torch.func.vmap(lambda A: self._own(A, y), in_dims=1)(A.movedim(0, 1).contiguous())
        assert_same_answer(over, self._own(A[:, None], y))

    def test_vmap_over_values_of_sparse_rows_sides_and_bounds(self):
        cons = linsat.Constraints(A=torch.ones(1, 6).to_sparse(), b=2.0)
        values, y = torch.rand(4, 6, dtype=F64) + 0.5, _scores(self.systems)
        sides, upper = torch.rand(4, 1, dtype=F64) + 1, torch.rand(4, 6, dtype=F64) + 0.5

        def own(y, values, sides, upper):
            return linsat.project(y, cons.with_coefficients(A=values).with_rhs(b=sides).with_bounds(upper=upper))

        assert_same_answer(torch.func.vmap(own)(y, values, sides, upper), own(y, values, sides, upper))

    def test_gradients_inside_around_and_through_vmap(self):
        A, y = _numbers(self.systems, ("A",))["A"], _scores(self.systems)

        def loss(A, y):
            return (self._own(A, y) ** 2).sum()

        given = A.clone().requires_grad_(True)
        loss(given, y).backward()
        assert float(given.grad.abs().max()) > 0.01
        inside = torch.func.vmap(torch.func.grad(loss))(A, y)
        around = torch.func.grad(lambda A: torch.func.vmap(loss)(A, y).sum())(A)
        through = A.clone().requires_grad_(True)
        torch.func.vmap(loss)(through, y).sum().backward()
        for found in (inside, around, through.grad):
            torch.testing.assert_close(found, given.grad, atol=1e-9, rtol=1e-9)

    def test_failures_inside_vmap(self):
        C, y = torch.ones(3, 1, 4, dtype=F64), torch.zeros(3, 4, dtype=F64)
        C[1] = 0.1

        def own(C, y, on_failure="raise"):
            return linsat.project(y, linsat.Constraints(C=C, d=1.5), on_failure=on_failure)

        with pytest.raises(linsat.InfeasibleError, match="within the bounds for instance 1"):
            torch.func.vmap(own)(C, y)
        x = torch.func.vmap(lambda C, y: own(C, y, "nan"))(C, y)
        assert x.isnan().all(-1).tolist() == [False, True, False]
        with pytest.raises(ConstraintError, match=r"C\[1, 0, 0\] is nan"):
            torch.func.vmap(own)(torch.where(C < 1, torch.nan, C), y)
        with pytest.raises(ConstraintError, match=r"lower\[0, 0\] = 0.0 is above upper"):
            torch.func.vmap(lambda u: linsat.Constraints(upper=u))(-torch.ones(3, 4))


class TestFailures:
    def test_an_infeasible_instance_leaves_the_others_untouched(self):
        systems = _systems(4, seed=9, share_of_zeros=0.0)
        y, numbers = _scores(systems), _numbers(systems)
        clean = linsat.project(y, linsat.Constraints(**numbers))
        broken = numbers["C"].clone()
        broken[2] *= 1e-3  # now its floor is out of reach
        numbers["d"] = numbers["d"].clamp_min(0.2)
        clean = linsat.solve(y, linsat.Constraints(**numbers), on_failure="ignore")
        found = linsat.solve(y, linsat.Constraints(**(numbers | {"C": broken})), on_failure="ignore")
        assert found.status[2] is Status.INFEASIBLE
        others = [0, 1, 3]
        assert clean.converged[others].all()
        assert_same_answer(found.x[others], clean.x[others])
        assert_same_answer(found.duals[others], clean.duals[others])

    def test_the_error_shows_the_rows_of_the_instance(self):
        C = [[[1.0, 1.0, 1.0]], [[0.25, 0.5, 0.125]]]  # of the second at most 0.875
        cons = linsat.Constraints(C=C, d=1.0, A=[[1.0, 1.0, 1.0]], b=3.0)
        with pytest.raises(linsat.InfeasibleError, match=r"for instance 1:\n  C\[0\]: 0.25 x\[0\] \+ 0.5 x\[1\]") as e:
            linsat.project(torch.zeros(2, 3), cons, on_failure="raise")
        assert e.value.rows == ("C[0]",)

    def test_a_row_that_is_empty_in_one_instance(self):
        cons = linsat.Constraints(C=[[[1.0, 1.0]], [[0.0, 0.0]]], d=[[1.0], [0.5]])
        assert linsat.solve(torch.zeros(2, 2), cons, on_failure="ignore").status.tolist() == [
            Status.CONVERGED,
            Status.INFEASIBLE,
        ]

    def test_forced_variables_are_found_per_instance(self):
        """x0 + 2 x1 == 3 forces both to 1 in [0, 1]; x0 + 2 x1 == 3 with a larger third coefficient does not."""
        cons = linsat.Constraints(E=[[[1.0, 2.0, 0.0]], [[1.0, 2.0, 4.0]]], f=3.0)
        x = linsat.project(torch.zeros(2, 3, dtype=F64), cons)
        assert x[0].tolist() == [1.0, 1.0, 0.5]
        assert float((x[1] - 0.5).abs().max()) < 0.5


class TestStating:
    def test_forms(self):
        A = np.random.default_rng(0).uniform(0.5, 1, (3, 2, 4))
        A[:, 0, 1] = 0.0
        A[1, 1, 2] = 0.0  # absent in one instance only
        y = torch.zeros(3, 4, dtype=F64)
        expected = linsat.project(y, linsat.Constraints(A=A, b=1.0))
        csr = torch.sparse_csr_tensor(
            torch.tensor([[0, 3, 7]] * 2),
            torch.tensor([[0, 2, 3, 0, 1, 2, 3]] * 2),
            torch.tensor(A.reshape(3, 8)[[0, 2]][:, [0, 2, 3, 4, 5, 6, 7]]),
            (2, 2, 4),
            check_invariants=True,
        )
        pattern = linsat.Constraints(A=torch.tensor(A[0]).to_sparse(), b=1.0)
        values = torch.tensor(A.reshape(3, 8)[:, [0, 2, 3, 4, 5, 6, 7]])
        forms = {
            "lists": (linsat.Constraints(A=A.tolist(), b=1.0), [0, 1, 2]),
            "torch, learned": (linsat.Constraints(A=torch.tensor(A, requires_grad=True), b=1.0), [0, 1, 2]),
            "CSR": (linsat.Constraints(A=csr, b=1.0), [0, 2]),
            "values": (pattern.with_coefficients(A=values), [0, 1, 2]),
            "CSR for CSR": (pattern.with_coefficients(A=csr), [0, 2]),
        }
        for name, (cons, which) in forms.items():
            found = linsat.project(y[which], cons).detach()
            torch.testing.assert_close(found, expected[which], atol=1e-10, rtol=0, msg=name)
            assert torch.equal(cons.matrix.to_dense().detach(), torch.tensor(A[which])), name

    def test_coefficients_come_back_as_they_are_taken(self):
        A = torch.rand(3, 2, 4, dtype=F64)
        A[:, 1, 1] = 0.0
        dense = linsat.Constraints(A=A, b=1.0)
        assert torch.equal(dense.coefficients["A"], A)
        sparse = linsat.constraints.doubly_stochastic(3)
        values = torch.rand(5, 18, dtype=F64)
        cons = sparse.with_coefficients(E=values)
        assert torch.equal(cons.coefficients["E"], values)
        row, col = (sparse.matrix.indices()[i] for i in range(2))
        assert torch.equal(cons.matrix.to_dense()[:, row, col], values)

    def test_the_pattern_stays_while_it_holds_the_new_numbers(self):
        cons = linsat.Constraints(A=torch.ones(2, 3), b=1.0)
        fewer = cons.with_coefficients(A=[[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
        assert fewer._structure is cons._structure
        more = linsat.Constraints(A=[[1.0, 0.0]], b=1.0).with_coefficients(A=[[1.0, 2.0]])
        assert more.row_text(0) == "x[0] + 2 x[1] <= 1"
        assert linsat.project(torch.ones(2, dtype=F64), more).sum() < 1

    def test_a_new_number_in_the_caches_place(self):
        """What was compiled for the old coefficients does not serve the new ones."""
        cons, y = linsat.Constraints(A=[[1.0, 1.0]], b=1.0), torch.ones(2, dtype=F64)
        linsat.project(y, cons)
        x = linsat.project(y, cons.with_coefficients(A=[[4.0, 1.0]]), objective=linsat.Euclidean())
        np.testing.assert_allclose(x, 1 - 4 / 17 * np.array([4.0, 1.0]), atol=1e-9)  # onto 4 x0 + x1 = 1

    def test_learned_values_are_followed(self):
        learned = torch.nn.Parameter(torch.tensor([[1.0, 1.0], [2.0, 1.0]]))
        cons = linsat.Constraints(A=torch.ones(1, 2).to_sparse(), b=1.0).with_coefficients(A=learned)
        layer = linsat.LinSAT(cons, objective=linsat.Euclidean())
        assert dict(layer.named_parameters())["A"] is learned
        before = layer(torch.ones(2, 2))
        before.sum().backward()
        assert float(learned.grad.abs().min()) > 0
        with torch.no_grad():
            learned += 1.0
        after = layer(torch.ones(2, 2))
        np.testing.assert_allclose((after * learned).sum(-1).detach(), [1.0, 1.0], atol=1e-6)
        state = {name: t + 1 for name, t in layer.state_dict().items()}
        swapped = torch.func.functional_call(layer, state, torch.ones(2, 2))
        np.testing.assert_allclose((swapped * state["A"]).sum(-1).detach(), [1.0, 1.0], atol=1e-6)

    def test_layer_keyword(self):
        systems = _systems(4, seed=10)
        y, numbers = _scores(systems), _numbers(systems)
        layer = linsat.LinSAT(linsat.Constraints(**systems[0].arguments()), tau=0.3)
        assert not list(layer.parameters())
        torch.testing.assert_close(
            layer(y, **numbers), linsat.project(y, linsat.Constraints(**numbers), tau=0.3), atol=1e-10, rtol=0
        )
        layer(y, A=numbers["A"], b=5.0)

    def test_joining(self):
        A, E = torch.rand(3, 2, 4, dtype=F64), torch.rand(3, 1, 4, dtype=F64) + 1
        left = linsat.Constraints(A=A, b=1.0)
        for right in (
            linsat.Constraints(A=[[1.0, 0.0, 1.0, 0.0]], b=1.5, E=E, f=0.5),
            linsat.Constraints(A=torch.tensor([[1.0, 0.0, 1.0, 0.0]]).to_sparse(), b=1.5, E=E, f=0.5),
        ):
            both = left & right
            rows = torch.cat([A, torch.tensor([1.0, 0, 1, 0], dtype=F64).expand(3, 1, 4), E], dim=1)
            assert torch.equal(both.matrix.to_dense(), rows)
            assert both.senses == ("<=", "<=", "<=", "==")
        with pytest.raises(ConstraintError, match="do not fit together"):
            left & linsat.Constraints(A=A[:2], b=1.0)

    def test_copies(self):
        cons = linsat.Constraints(A=torch.rand(3, 2, 4), b=1.0)
        y = torch.randn(3, 4)
        for other in (copy.copy(cons), copy.deepcopy(cons), pickle.loads(pickle.dumps(cons))):
            assert torch.equal(linsat.project(y, other), linsat.project(y, cons))

    def test_text(self):
        cons = linsat.Constraints(A=[[[1.0, 2.0]], [[3.0, 2.0]]], b=4.0)
        assert cons.row_text(0) == "A[..., 0, 0] x[0] + 2 x[1] <= 4"
        assert cons.row_text(0, instance=1) == "3 x[0] + 2 x[1] <= 4"
        assert repr(cons).startswith("Constraints(2 variables in [0, 1], 1 row: 1 <=, batch (2,))")
        sides = linsat.Constraints(A=[[1.0, 2.0]], b=[[4.0], [5.0]])
        assert sides.row_text(0, instance=1) == "x[0] + 2 x[1] <= 5"

    def test_decoding(self):
        """x = (1, 1, 0) breaks the second instance's row alone; the flip of one variable mends it."""
        cons = linsat.Constraints(A=[[[1.0, 1.0, 1.0]], [[1.0, 2.0, 1.0]]], b=2.0)
        x = torch.tensor([0.9, 0.8, 0.1], dtype=F64)
        rounded = linsat.decode.rounding(x, cons)
        assert rounded.feasible.tolist() == [True, False]
        repaired = linsat.decode.greedy_repair(x, cons)
        assert repaired.feasible.tolist() == [True, True]
        assert repaired.x.tolist() == [[1, 1, 0], [1, 0, 0]]


class TestFiles:
    @pytest.mark.parametrize("kind", ["dense", "sparse"])
    def test_npz_keeps_them(self, tmp_path, kind):
        A = torch.rand(3, 2, 4, dtype=F64)
        cons = linsat.Constraints(A=A, b=1.0)
        if kind == "sparse":
            cons = linsat.constraints.doubly_stochastic(2).with_coefficients(E=torch.rand(3, 8, dtype=F64))
        cons.save(tmp_path / "set.npz")
        found = linsat.Constraints.load(tmp_path / "set.npz")
        for name, coefficients in cons.coefficients.items():
            assert torch.equal(found.coefficients[name], coefficients)
        assert torch.equal(found.rhs, cons.rhs)

    def test_npz_from_elsewhere_whose_columns_do_not_ascend(self, tmp_path):
        parts = {"data": np.ones((2, 2)), "indices": [1, 0], "indptr": [0, 2], "shape": [1, 2]}
        np.savez(tmp_path / "set.npz", b=[1.0], **{f"A_{name}": part for name, part in parts.items()})
        with pytest.raises(ConstraintError, match="A_indices must ascend"):
            linsat.Constraints.load(tmp_path / "set.npz")

    def test_formats_that_hold_one_instance_say_so(self, tmp_path):
        cons = linsat.Constraints(A=torch.rand(3, 2, 4), b=1.0)
        with pytest.raises(ConstraintError, match=r"A differ per instance.*Fix: save as \.npz"):
            cons.save(tmp_path / "set.json")
        with pytest.raises(ConstraintError, match=r"batch \(3,\).*with_coefficients"):
            cons.save(tmp_path / "set.lp")


def test_sets_of_one_pattern_become_one_batch():
    systems = _systems(6, seed=11, share_of_zeros=0.0)
    y, sets = _scores(systems), [linsat.Constraints(**system.arguments()) for system in systems]
    sparse = linsat.constraints.doubly_stochastic(2)
    other = sparse.with_coefficients(E=2 * torch.ones(8, dtype=F64))  # twice the rows: half the sums
    scores = [*y, torch.zeros(4, dtype=F64), torch.zeros(4, dtype=F64)]
    found = linsat.project_each(scores, [*sets, sparse, other], tau=0.3)
    for scores_of_one, cons, x in zip(y, sets, found, strict=False):
        assert float((linsat.project(scores_of_one, cons, tau=0.3) - x).abs().max()) <= 1e-10
    np.testing.assert_allclose(found[-2], 0.5, atol=1e-9)
    np.testing.assert_allclose(found[-1], 0.25, atol=1e-9)


def test_512_instances_are_far_faster_than_512_sets():
    """Building the set, forward and backward; the best of several tries of each, in turn, so that load hits both."""
    torch.manual_seed(0)
    A, b = torch.rand(512, 3, 10, dtype=F64, requires_grad=True), 0.5 + 2 * torch.rand(512, 3, dtype=F64)
    y = torch.randn(512, 10, dtype=F64, requires_grad=True)

    def seconds(y, A, b, objective):
        start = time.perf_counter()
        linsat.project(y, linsat.Constraints(A=A, b=b), objective=objective).square().sum().backward()
        return time.perf_counter() - start

    for objective in OBJECTIVES.values():
        tries = [
            (seconds(y, A, b, objective), sum(seconds(y[n], A[n], b[n], objective) for n in range(8))) for _ in range(8)
        ]
        together, eight = (min(times) for times in zip(*tries, strict=True))
        assert 512 / 8 * eight >= 20 * together


BATCH = linsat.Constraints(A=np.ones((3, 2, 4)), b=1.0)
SPARSE = linsat.Constraints(A=torch.ones(1, 3).to_sparse(), b=2.0)


def _csr(columns):
    starts = [[0, 1, 2]] * len(columns)
    numbers = (torch.tensor(starts), torch.tensor(columns), torch.ones(len(columns), 2))
    return torch.sparse_csr_tensor(*numbers, (len(columns), 2, 3), check_invariants=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linsat.project(torch.zeros(5, 4), BATCH), r"batch dimensions \(5,\).*\(3,\).*Fix"),
        (lambda: BATCH.with_rhs(b=np.ones((2, 2))), r"do not fit together: A \(3,\), b \(2,\)"),
        (lambda: BATCH.with_coefficients(A=np.ones((3, 2, 5))), r"A has shape \(3, 2, 5\); expected \(\.\.\., 2, 4\)"),
        (lambda: BATCH.with_coefficients(A=np.ones(4)), r"A has shape \(4,\); expected a matrix"),
        (lambda: BATCH.with_coefficients(C=np.ones((2, 4))), "the set has no C rows. Fix: leave C out"),
        (lambda: BATCH.with_coefficients(A=np.full((3, 2, 4), np.nan)), r"A\[0, 0, 0\] is nan"),
        (lambda: BATCH.with_coefficients(A="four"), "A is 'four'; expected real numbers"),
        (lambda: SPARSE.with_coefficients(A=np.ones((5, 2))), r"A has shape \(5, 2\); expected \(\.\.\., 3\)"),
        (lambda: SPARSE.with_coefficients(A=1.0), r"A has shape \(\); expected \(\.\.\., 3\)"),
        (lambda: SPARSE.with_coefficients(A=[[1.0, np.inf, 1.0]]), r"A\[0, 1\] is inf"),
        (
            lambda: linsat.Constraints(A=_csr([[0, 1]])[0], b=1).with_coefficients(A=_csr([[0, 2]])),
            "coefficients where the set has none",
        ),
        (lambda: linsat.Constraints(A=_csr([[0, 1], [0, 2]]), b=1), "another pattern in each instance.*Fix"),
        (lambda: linsat.Constraints(A=torch.ones(2, 2, 3).to_sparse(), b=1), r"COO tensor.*expected CSR. Fix"),
        (lambda: linsat.LinSAT(BATCH)(torch.zeros(3, 4), E=np.ones((1, 4))), "the set has no E rows"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ConstraintError, match=message):
        call()


# ------------------------------------------------------------------ dense matrices for rows stated by their non-zeros


def groups():
    """Two rows that part four variables: as many non-zeros as variables."""
    x = linsat.Variable(4)
    return linsat.subject_to(x[:2].sum() <= 1, x[2:].sum() <= 1)


def one_row():
    return linsat.subject_to(linsat.Variable(4) @ [1.0, 1.0, 1.0, 1.0] <= 1)


WEIGHTED_GROUPS = np.array([[1.0, 2, 0, 0], [0, 0, 3, 4]])
PRICES = np.array([[[1.0, 2, 3, 4]], [[4.0, 3, 2, 1]], [[1.0, 1, 1, 1]]])  # one row each


def _project_torch(cons, shape, A):
    return linsat.project(torch.ones(shape, dtype=F64), cons, objective=linsat.Euclidean(), A=torch.tensor(A)).numpy()


def _project_numpy(cons, shape, A):
    return linsat.project(np.ones(shape), cons, objective=linsat.Euclidean(), A=A)


def _layer(cons, shape, A):
    return linsat.LinSAT(cons, objective=linsat.Euclidean())(torch.ones(shape, dtype=F64), A=torch.tensor(A)).numpy()


def _with_coefficients(cons, shape, A):
    return linsat.project(np.ones(shape), cons.with_coefficients(A=A), objective=linsat.Euclidean())


DOORS = [_project_torch, _project_numpy, _layer, _with_coefficients]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("batch", [(), (2,), (5,)])
def test_a_matrix_for_rows_that_part_the_variables(door, batch):
    # By hand: the nearest point to ones under x0 + 2 x1 <= 1 is 1 - 0.4 (1, 2), under 3 x2 + 4 x3 <= 1 1 - 0.24 (3, 4).
    A = np.broadcast_to(WEIGHTED_GROUPS, (*batch, 2, 4)).copy()
    x = door(groups(), (*batch, 4), A)
    assert x.shape == (*batch, 4)
    np.testing.assert_allclose(x, np.broadcast_to([0.6, 0.2, 0.28, 0.04], x.shape), atol=1e-5)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("shape", "A"), [((3, 4), PRICES), ((1, 4), PRICES[:1]), ((4,), PRICES[0])])
def test_a_matrix_for_one_row_over_all_variables(door, shape, A):
    prices = A[..., 0, :]
    expected = [
        nearest_point(System(row[None], ["<="], np.array([1.0]), None), np.ones(4)) for row in prices.reshape(-1, 4)
    ]
    x = door(one_row(), shape, A)
    assert x.shape == shape
    np.testing.assert_allclose(x, np.reshape(expected, shape), atol=1e-5)


@pytest.mark.parametrize("door", DOORS)
def test_the_non_zeros_still_serve(door):
    values = np.array([[1.0, 2, 3, 4], [1, 1, 1, 1], [1, 2, 1, 2]])
    x = door(groups(), (3, 4), values)
    np.testing.assert_allclose(x, [[0.6, 0.2, 0.28, 0.04], [0.5] * 4, [0.6, 0.2, 0.6, 0.2]], atol=1e-5)
    assert door(one_row(), (3, 4), PRICES[:, 0]).shape == (3, 4)


@pytest.mark.parametrize("door", DOORS)
def test_values_that_have_the_shape_of_the_matrix_are_named(door):
    with pytest.raises(ConstraintError, match=r"A has shape \(2, 4\), that of a matrix .* values of its non-zeros"):
        door(groups(), (2, 4), np.ones((2, 4)))


def test_a_learned_matrix_where_the_set_has_zeros_is_named():
    A = torch.tensor(WEIGHTED_GROUPS, requires_grad=True)
    with pytest.raises(ConstraintError, match="learned: it may have coefficients where the set has none"):
        linsat.project(torch.ones(4), groups(), A=A)


def test_gradients_reach_a_matrix_ofone_row():
    A = torch.tensor(PRICES, requires_grad=True)
    y = torch.tensor(np.random.default_rng(0).normal(size=(3, 4)) * 0.2 + 0.5, requires_grad=True)

    def project(y, A):
        return linsat.project(y, one_row(), objective=linsat.Entropy(0.5), solver=TIGHT, A=A)

    assert gradcheck(project, (y, A), atol=1e-6)
    learned = one_row().with_coefficients(A=torch.nn.Parameter(A[0].detach()))
    assert [tuple(p.shape) for p in linsat.LinSAT(learned).parameters()] == [(1, 4)]


def test_values_of_a_batch_as_long_as_the_rows_survive_a_file_and_cutting(tmp_path):
    # (2, 1, 4) values: the matrix is (2, 4), so such a batch has a further dimension.
    cons = groups().with_coefficients(A=np.array([[[1.0, 2, 3, 4]], [[1, 1, 1, 1]]]))
    assert cons.batch_shape == (2, 1)
    cons.save(tmp_path / "set.npz")
    again = linsat.Constraints.load(tmp_path / "set.npz")
    x = linsat.project(np.ones((2, 1, 4)), again, objective=linsat.Euclidean())
    np.testing.assert_allclose(x[:, 0], [[0.6, 0.2, 0.28, 0.04], [0.5] * 4], atol=1e-5)
    csr = torch.tensor(np.stack([WEIGHTED_GROUPS] * 2)).to_sparse_csr()
    pair = groups().with_coefficients(A=csr)
    assert pair.batch_shape == (2,)
    pair.save(tmp_path / "pair.npz")
    x = linsat.project(np.ones((2, 4)), linsat.Constraints.load(tmp_path / "pair.npz"), objective=linsat.Euclidean())
    np.testing.assert_allclose(x, [[0.6, 0.2, 0.28, 0.04]] * 2, atol=1e-5)
