"""The paper's solver: the same iterates as the published package, the same answer as Newton where both apply."""

import LinSATNet
import numpy as np
import pytest
import torch

import linsat
from linsat import init_constraints, linsat_layer

F64 = torch.float64


@pytest.fixture(autouse=True)
def _wide_by_default():
    """The published package makes its blank rows in the default dtype; in float64 its iterates are the exact ones."""
    torch.set_default_dtype(F64)
    yield
    torch.set_default_dtype(torch.float32)


def _doubly_stochastic(n):
    E = torch.zeros(2 * n, n * n, dtype=F64)
    for i in range(n):
        E[i, i * n : (i + 1) * n] = 1
        E[n + i, i::n] = 1
    return {"E": E, "f": torch.ones(2 * n, dtype=F64)}


def _matching(n1, n2, phi):
    A = torch.zeros(n1 + n2 + 1, n1 * n2, dtype=F64)
    for i in range(n1):
        A[i, i * n2 : (i + 1) * n2] = 1
    for j in range(n2):
        A[n1 + j, j::n2] = 1
    A[-1] = 1
    b = torch.ones(n1 + n2 + 1, dtype=F64)
    b[-1] = phi
    return {"A": A, "b": b}


def _portfolio(n):
    C = torch.zeros(1, n, dtype=F64)
    C[0, :6] = 1
    return {
        "E": torch.ones(1, n, dtype=F64),
        "f": torch.ones(1, dtype=F64),
        "C": C,
        "d": torch.full((1,), 0.5, dtype=F64),
    }


def _mixed(seed, binary=True):
    generator = torch.Generator().manual_seed(seed)

    def rows(k):
        found = (torch.rand(k, 8, generator=generator) < 0.5).to(F64)
        found[:, k] = 1
        return found if binary else found * (0.5 + torch.rand(k, 8, generator=generator, dtype=F64))

    point = 0.1 + 0.8 * torch.rand(8, generator=generator, dtype=F64)
    A, C, E = rows(3), rows(2), rows(1)
    return {"A": A, "b": A @ point + 0.2, "C": C, "d": C @ point - 0.1, "E": E, "f": E @ point}


CASES = {
    "doubly stochastic": _doubly_stochastic(5),
    "matching": _matching(4, 5, 3),
    "portfolio": _portfolio(20),
    # Sets on which the published grouped code does not stop early: its stop test counts columns where it means rows.
    "mixed 0/1": _mixed(3),
    "mixed coefficients": _mixed(1, binary=False),
    "zero right-hand side": {
        "A": torch.tensor([[1.0, 1, 1, 0], [0, 1, 1, 1]], dtype=F64),
        "b": torch.tensor([0.0, 1], dtype=F64),
    },
}


def _scores(rows, batch):
    width = next(iter(rows.values())).shape[1]
    return torch.rand(batch, width, dtype=F64, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("mode", "grouped"), [("v1", False), ("v2", False), ("v2", True)])
@pytest.mark.parametrize("batch", [1, 4])
def test_iterates_and_gradients_equal_the_published_package(case, mode, grouped, batch):
    rows = CASES[case]
    weights = torch.rand(_scores(rows, batch).shape, dtype=F64)
    for sweeps in (1, 2, 3, 7, 30):
        found = []
        for layer in (LinSATNet.linsat_layer, linsat_layer):
            scores = _scores(rows, batch).requires_grad_(True)
            x = layer(scores, **rows, tau=0.1, max_iter=sweeps, mode=mode, grouped=grouped, no_warning=True)
            (x * weights).sum().backward()
            found.append((x.detach(), scores.grad))
        assert float((found[0][0] - found[1][0]).abs().max()) <= 1e-5
        assert float((found[0][1] - found[1][1]).abs().max()) <= 1e-4


@pytest.mark.parametrize("case", ["doubly stochastic", "matching", "mixed 0/1"])
def test_newton_finds_the_published_fixed_point(case):
    rows = CASES[case]
    scores = _scores(rows, 3)
    published = LinSATNet.linsat_layer(scores, **rows, tau=0.1, max_iter=20_000, no_warning=True)
    ours = linsat.project(scores, linsat.Constraints(**rows), tau=0.1)
    held = float(linsat.Constraints(**rows).violation(published).max())
    assert held < 1e-3  # it did converge, to its own tolerance
    assert float((published - ours).abs().max()) <= 2e-3
    assert torch.allclose(linsat_layer(scores, **rows, tau=0.1), ours, atol=1e-2)


def test_drop_in_newton_uses_the_published_covering_multiplier():
    rows = _portfolio(20)
    scores = _scores(rows, 1)
    exact = linsat.Sinkhorn(max_sweeps=20_000, tol=1e-12)
    ours = linsat_layer(scores, **rows, tau=0.1)
    published = LinSATNet.linsat_layer(scores, **rows, tau=0.1, max_iter=20_000, no_warning=True)
    assert float((ours - published).abs().max()) <= 2e-3
    paper = linsat.project(scores, linsat.Constraints(**rows), tau=0.1)
    assert (
        float((linsat.project(scores, linsat.Constraints(**rows), tau=0.1, solver=exact) - paper).abs().max()) <= 1e-8
    )


@pytest.mark.parametrize("case", ["doubly stochastic", "matching", "portfolio", "mixed 0/1"])
@pytest.mark.parametrize("grouped", [True, False])
def test_sinkhorn_and_newton_agree_on_equal_coefficients(case, grouped):
    cons = linsat.Constraints(**CASES[case])
    scores = _scores(CASES[case], 3)
    solver = linsat.Sinkhorn(tol=1e-11, max_sweeps=20_000, grouped=grouped)
    solution = linsat.solve(scores, cons, tau=0.1, solver=solver)
    assert solution.converged.all()
    newton = linsat.solve(scores, cons, tau=0.1)
    assert float((solution.x - newton.x).abs().max()) <= 1e-7
    warm = linsat.solve(scores, cons, tau=0.1, solver=solver, start=newton.duals)
    assert int(warm.steps.max()) < int(solution.steps.max())


def test_forced_variables_are_exact_with_sinkhorn_too():
    cons = linsat.constraints.tour(6, 0, 5)
    solution = linsat.solve(torch.rand(2, 36, dtype=F64), cons, solver=linsat.Sinkhorn())
    assert solution.converged.all()
    assert (solution.x[:, 0] == 1).all()
    assert float(solution.violation.max()) <= 1e-5


def test_an_instance_does_not_depend_on_its_batch():
    cons = linsat.constraints.doubly_stochastic(4)
    scores = torch.rand(6, 16, dtype=F64) * torch.tensor([[0.1], [1.0], [5.0], [0.5], [2.0], [3.0]], dtype=F64)
    together = linsat.solve(scores, cons, tau=0.5, solver=linsat.Sinkhorn())
    assert len(set(together.steps.tolist())) > 2
    for i in range(6):
        alone = linsat.solve(scores[i], cons, tau=0.5, solver=linsat.Sinkhorn())
        assert int(alone.steps) == int(together.steps[i])
        assert float((alone.x - together.x[i]).abs().max()) <= 1e-10


def test_unequal_coefficients_are_refused_or_reported():
    cons = linsat.Constraints(E=[[1.0, 2.0], [2.0, 1.0]], f=[1.2, 1.2])
    with pytest.raises(linsat.ConstraintError, match="unequal coefficients.*Newton"):
        linsat.project(torch.tensor([2.0, -1.0]), cons, solver=linsat.Sinkhorn())
    solver = linsat.Sinkhorn(gradient="unrolled", max_sweeps=500)
    solution = linsat.solve(torch.tensor([2.0, -1.0]).double(), cons, tau=1.0, solver=solver, on_failure="ignore")
    assert not solution.converged
    np.testing.assert_allclose(solution.x, [0.632, 0.079], atol=1e-3)


def test_negative_coefficients_are_refused():
    cons = linsat.Constraints(A=[[1.0, -1.0]], b=[0.5])
    with pytest.raises(linsat.ConstraintError, match=r"non-negative coefficients.*-1.*Fix: use linsat.Newton"):
        linsat.project(torch.zeros(2), cons, solver=linsat.Sinkhorn())


def test_unrolled_reports_infeasible_instances():
    cons = linsat.constraints.simplex(3).with_rhs(f=torch.tensor([[1.0], [5.0]]))
    solver = linsat.Sinkhorn(gradient="unrolled")
    solution = linsat.solve(torch.zeros(2, 3), cons, solver=solver, on_failure="ignore")
    assert solution.status.tolist() == ["converged", "infeasible"]


def test_v1_keeps_variables_in_no_row_in_the_box():
    cons = linsat.Constraints(A=[[1.0, 1.0, 0.0]], b=[1.0])
    solver = linsat.Sinkhorn(variant="v1", gradient="unrolled", grouped=False)
    x = linsat.project(torch.tensor([0.1, 0.2, 3.0]), cons, solver=solver)
    assert float(cons.violation(x)) <= 1e-5


class TestDropIn:
    def test_the_published_readme_runs_unchanged(self):
        torch.set_default_dtype(torch.float32)
        E = torch.tensor(
            [
                [1, 1, 1, 0, 0, 0, 0, 0, 0],
                [0, 0, 0, 1, 1, 1, 0, 0, 0],
                [0, 0, 0, 0, 0, 0, 1, 1, 1],
                [1, 0, 0, 1, 0, 0, 1, 0, 0],
                [0, 1, 0, 0, 1, 0, 0, 1, 0],
                [0, 0, 1, 0, 0, 1, 0, 0, 1],
            ],
            dtype=torch.float32,
        )
        f = torch.tensor([1, 1, 1, 1, 1, 1], dtype=torch.float32)
        w = torch.rand(9).requires_grad_(True)
        x_gt = torch.tensor([1, 0, 0, 0, 1, 0, 0, 0, 1], dtype=torch.float32)
        linsat_outp = linsat_layer(w, E=E, f=f, tau=0.1, max_iter=10, dummy_val=0)
        loss = ((linsat_outp - x_gt) ** 2).sum()
        loss.backward()
        linsat_outp = linsat_layer(w, E=E.to_sparse(), f=f, tau=0.1, max_iter=10, dummy_val=0)
        opt = torch.optim.SGD([w], lr=0.1, momentum=0.9)
        losses = []
        for _ in range(10):
            x = linsat_layer(w, E=E, f=f, tau=0.1, max_iter=10, dummy_val=0)
            cv = torch.matmul(E, x.t()).t() - f.unsqueeze(0)
            assert float(cv.detach().abs().max()) < 1e-5
            loss = ((x - x_gt) ** 2).sum()
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(float(loss.detach()))
        assert losses[-1] < losses[0]

    def test_constraints_are_read_once(self):
        rows = CASES["matching"]
        prepared = init_constraints(20, **rows)
        scores = _scores(rows, 2)
        for mode in ("newton", "v2"):
            expected = linsat_layer(scores, **rows, mode=mode)
            assert torch.equal(linsat_layer(scores, constr_dict=prepared, mode=mode), expected)
        assert linsat_layer(scores[0], constr_dict=prepared).shape == (20,)

    def test_dummy_value_shifts_the_scores(self):
        rows = CASES["matching"]
        scores = _scores(rows, 2)
        for sweeps in (1, 5):
            call = {
                **rows,
                "tau": 0.1,
                "max_iter": sweeps,
                "dummy_val": 0.3,
                "no_warning": True,
                "mode": "v2",
            }
            assert torch.allclose(LinSATNet.linsat_layer(scores, **call), linsat_layer(scores, **call), atol=1e-5)

    def test_warns_when_the_rows_do_not_hold(self):
        call = {"E": [[1.0, 2.0], [2.0, 1.0]], "f": [1.2, 1.2], "mode": "v2", "tau": 1.0}
        with pytest.warns(linsat.LinSATWarning, match="violated by up to"):
            linsat_layer(torch.tensor([2.0, -1.0]), **call)
        linsat_layer(torch.tensor([2.0, -1.0]), **call, no_warning=True)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            ({"mode": "v3", "E": [[1.0, 1.0]], "f": [1.0]}, "mode is 'v3'"),
            ({}, "None of A, C and E"),
            ({"E": [[1.0, 1.0, 1.0]], "f": [1.0]}, "num_var is 2 but the matrices have 3 columns"),
            ({"constr_dict": {}}, "init_constraints did not make"),
            ({"constr_dict": 3}, "constr_dict is a int"),
            ({"E": [[1.0, 1.0]]}, "E was given without f"),
        ],
    )
    def test_bad_arguments(self, call, message):
        with pytest.raises(ValueError, match=message):
            linsat_layer(torch.zeros(2), **call)

    def test_scores_must_be_one_or_two_dimensional(self):
        with pytest.raises(ValueError, match="expected a tensor"):
            linsat_layer(torch.zeros(1, 1, 2), E=[[1.0, 1.0]], f=[1.0])
