"""Infinite right-hand sides: a row that an instance does not have, through every door, as if it had been left out."""

import cvxpy as cp
import numpy as np
import pytest
import torch

import linsat

F64 = torch.float64
OBJECTIVES = {
    "entropic slack": linsat.Entropy(tau=0.3),
    "entropy": linsat.Entropy(tau=0.3, slack="none"),
    "euclidean": linsat.Euclidean(),
}
RNG = np.random.default_rng(0)
A, C = RNG.uniform(-1, 1, (3, 6)), RNG.uniform(0.1, 1, (2, 6))
POINT = RNG.uniform(0.3, 0.7, 6)
B, D = A @ POINT + 0.01, C @ POINT - 0.01
E = np.ones((1, 6))
F = E @ POINT
SCORES = 2 * RNG.normal(size=(4, 6))
# Of four instances: all rows; without A[1]; without A[0], A[2] and C[0]; without any inequality.
NO_A = np.array([[0, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 1]], dtype=bool)
NO_C = np.array([[0, 0], [0, 0], [1, 0], [1, 1]], dtype=bool)
B_EACH, D_EACH = np.where(NO_A, np.inf, B), np.where(NO_C, -np.inf, D)


def reduced(instance: int) -> linsat.Constraints:
    """The set with the rows left out that an instance does not have."""
    a, c = ~NO_A[instance], ~NO_C[instance]
    arguments = {"E": E, "f": F}
    arguments |= {"A": A[a], "b": B[a]} if a.any() else {}
    arguments |= {"C": C[c], "d": D[c]} if c.any() else {}
    return linsat.Constraints(**arguments)


def by_cvxpy(scores: np.ndarray, instance: int, kind: str) -> np.ndarray:
    """The answer of Clarabel, for the objectives without entropic slack."""
    x = cp.Variable(6)
    a, c = ~NO_A[instance], ~NO_C[instance]
    rows = [E @ x == F, x >= 0, x <= 1]
    rows += [A[a] @ x <= B[a]] if a.any() else []
    rows += [C[c] @ x >= D[c]] if c.any() else []
    if kind == "euclidean":
        goal = cp.Minimize(cp.sum_squares(x - scores))
    else:
        goal = cp.Maximize(scores @ x + 0.3 * cp.sum(cp.entr(x) + cp.entr(1 - x)))
    problem = cp.Problem(goal, rows)
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    assert problem.status == "optimal"
    return x.value


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("backend", ["auto", "arrays", "interior_point"])
def test_instances_of_a_batch_may_lack_rows(kind, backend):
    cons = linsat.Constraints(A=A, b=B_EACH, C=C, d=D_EACH, E=E, f=F)
    found = linsat.solve(SCORES, cons, objective=OBJECTIVES[kind], solver=linsat.Newton(backend=backend))
    assert found.converged.all()
    assert found.violation.max() <= 1e-9
    assert (found.duals[:, :5][np.hstack([NO_A, NO_C])] == 0).all()
    for i in range(4):
        if kind != "entropic slack":
            np.testing.assert_allclose(found.x[i], by_cvxpy(SCORES[i], i, kind), atol=2e-6)
        without = linsat.project(SCORES[i], reduced(i), objective=OBJECTIVES[kind])
        np.testing.assert_allclose(found.x[i], without, atol=1e-7)


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("instance", range(4))
def test_a_whole_set_may_lack_rows_in_numpy_and_torch(kind, instance):
    cons = linsat.Constraints(A=A, b=B_EACH[instance], C=C, d=D_EACH[instance], E=E, f=F)
    expected = linsat.project(SCORES, reduced(instance), objective=OBJECTIVES[kind])
    np.testing.assert_allclose(linsat.project(SCORES, cons, objective=OBJECTIVES[kind]), expected, atol=1e-8)
    layer = linsat.LinSAT(cons, objective=OBJECTIVES[kind])
    np.testing.assert_allclose(layer(torch.tensor(SCORES)), expected, atol=1e-8)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_sides_of_a_call_and_learned_ones_may_be_infinite(kind):
    objective = OBJECTIVES[kind]
    cons = linsat.Constraints(A=A, b=B, C=C, d=D, E=E, f=F, names=[*"abc", "low[0]", "low[1]", "sum"])
    expected = np.stack([linsat.project(SCORES[i], reduced(i), objective=objective) for i in range(4)])
    scores = torch.tensor(SCORES)
    layer = linsat.LinSAT(cons, objective=objective)
    named = {name: B_EACH[:, [i]] for i, name in enumerate("abc")} | {"low": D_EACH}
    for found in (
        layer(scores, b=torch.tensor(B_EACH), d=torch.tensor(D_EACH)),
        layer(scores, rhs=named),
        torch.func.vmap(lambda y, b, d: linsat.project(y, cons.with_rhs(b=b, d=d), objective=objective))(
            scores, torch.tensor(B_EACH), torch.tensor(D_EACH)
        ),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-7)
    b, d = (torch.tensor(side, requires_grad=True) for side in (B_EACH, D_EACH))
    y = scores.clone().requires_grad_()
    weights = torch.tensor(RNG.normal(size=(4, 6)))
    (weights * linsat.project(y, cons.with_rhs(b=b, d=d), objective=objective)).sum().backward()
    assert (b.grad[torch.tensor(NO_A)] == 0).all()
    assert (d.grad[torch.tensor(NO_C)] == 0).all()
    assert torch.isfinite(b.grad).all()
    assert torch.isfinite(d.grad).all()
    assert torch.isfinite(y.grad).all()
    step, present = 1e-5, np.argwhere(~NO_A)
    for i, row in present[:3]:
        ends = []
        for sign in (1, -1):
            moved = B_EACH.copy()
            moved[i, row] += sign * step
            x = linsat.project(SCORES[i], cons.with_rhs(b=moved[i], d=D_EACH[i]), objective=objective)
            ends.append(weights[i].numpy() @ x)
        assert float(b.grad[i, row]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-5)


def test_infinite_sides_work_without_bounds_and_for_soft_rows():
    free = linsat.Constraints(A=A, b=B_EACH, lower=-np.inf, upper=np.inf)
    found = linsat.project(SCORES, free, objective=linsat.Euclidean())
    np.testing.assert_allclose(found[3], SCORES[3], atol=0)
    x = cp.Variable(6)
    cp.Problem(cp.Minimize(cp.sum_squares(x - SCORES[1])), [A[[0, 2]] @ x <= B[[0, 2]]]).solve(solver="CLARABEL")
    np.testing.assert_allclose(found[1], x.value, atol=1e-6)
    for objective in OBJECTIVES.values():
        soft = linsat.Constraints(A=A, b=B_EACH, E=E, f=F).soften(["A[0]", "A[1]"], price=0.5)
        solution = linsat.solve(SCORES, soft, objective=objective)
        for i in range(4):
            a = ~NO_A[i]
            kept = {"A": A[a], "b": B[a], "names": [f"A[{j}]" for j in np.flatnonzero(a)] + ["sum"]} if a.any() else {}
            alone = linsat.Constraints(E=E, f=F, **kept)
            which = [name for name in ("A[0]", "A[1]") if name in alone.names]
            alone = alone.soften(which, price=0.5) if which else alone
            np.testing.assert_allclose(solution.x[i], linsat.project(SCORES[i], alone, objective=objective), atol=1e-6)
        assert (solution.broken[3] == 0).all()


def test_sets_with_absent_rows_can_be_checked_shown_and_saved(tmp_path):
    cons = linsat.Constraints(A=A, b=B_EACH[1], C=C, d=D_EACH[2], E=E, f=F).check()
    assert "inf" in cons.row_text(1)
    cons.save(tmp_path / "set.json")
    cons.save(tmp_path / "set.npz")
    for name in ("set.json", "set.npz"):
        again = linsat.Constraints.load(tmp_path / name)
        np.testing.assert_array_equal(again.rhs, cons.rhs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"A": [[1.0]], "b": [-np.inf]}, r"b\[0\] is -inf; expected a finite number, or inf .*Fix"),
        ({"C": [[1.0]], "d": [np.inf]}, r"d\[0\] is inf; expected a finite number, or -inf .*Fix"),
        ({"E": [[1.0]], "f": [np.inf]}, r"f\[0\] is inf; expected a finite number.*Fix"),
        ({"A": [[1.0]], "b": [np.nan]}, r"b\[0\] is nan"),
    ],
)
def test_sides_that_no_point_satisfies_are_rejected(arguments, message):
    with pytest.raises(linsat.ConstraintError, match=message):
        linsat.Constraints(**arguments)
    with pytest.raises(linsat.ConstraintError, match=r"rhs\['cap'\] is -inf"):
        linsat.Constraints(A=[[1.0]], b=[1.0], names=["cap"]).with_rhs({"cap": -np.inf})
