"""Full quadratics: against Clarabel, closed forms, finite differences, and facts that the peers' own tests state."""

import itertools
import math

import clarabel
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.autograd import gradcheck, gradgradcheck

import linsat

KINDS = ("definite", "singular", "linear", "dependent", "no bounds", "own")
TORCH = torch.float64


def clarabel_point(P, c, rows, low, high, tol=1e-11):
    """min x'Px / 2 - c'x subject to low <= rows x <= high."""
    equal = low == high
    above, below = ~equal & np.isfinite(high), ~equal & np.isfinite(low)
    matrix = sp.csc_matrix(np.vstack([rows[equal], rows[above], -rows[below]]))
    sides = np.concatenate([high[equal], high[above], -low[below]])
    cones = [clarabel.ZeroConeT(int(equal.sum())), clarabel.NonnegativeConeT(int(above.sum() + below.sum()))]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tol
    return clarabel.DefaultSolver(sp.csc_matrix(np.triu(P)), -c, matrix, sides, cones, settings).solve()


def draw(rng, kind, batch=3):
    """P (batch, n, n), scores (batch, n), and rows with a point that satisfies them, some of them tight there."""
    n = int(rng.integers(2, 30))
    rank = 0 if kind == "linear" else int(rng.integers(1, n)) if kind == "singular" else n
    F = rng.normal(size=(batch if kind == "own" else 1, n, max(rank, 1))) * (rank > 0)
    P = F @ F.swapaxes(-1, -2) / max(rank, 1) + (0.05 * np.eye(n) if rank == n else 0.0)
    equal, caps = int(rng.integers(0, max(1, n // 3))), int(rng.integers(1, 2 * n))
    point, E, A = rng.normal(size=n), rng.normal(size=(equal, n)), rng.normal(size=(caps, n))
    room = rng.random(caps) * (rng.random(caps) < 0.7)
    if kind == "dependent":
        E = np.vstack([E, 2 * E[:1], E[:1] + E[-1:]])
        A, room = np.vstack([A, A[:1], -A[:1]]), np.concatenate([room, room[:1], [0.0]])
        room[0] = room[-2] = 0.0
    lower, upper = (point - rng.random(n), point + rng.random(n))
    if kind == "no bounds":
        lower, upper = np.full(n, -np.inf), np.full(n, np.inf)
    elif rank == n:
        lower, upper = np.where(rng.random(n) < 0.6, lower, -np.inf), np.where(rng.random(n) < 0.6, upper, np.inf)
    y = rng.normal(size=(batch, n)) * rng.choice([1.0, 10.0])
    stated = {"A": A, "b": A @ point + room, "lower": lower, "upper": upper}
    if len(E):
        stated |= {"E": E, "f": E @ point}
    return P, y, stated


def all_rows(stated):
    n = stated["A"].shape[1]
    E, f = stated.get("E", np.zeros((0, n))), stated.get("f", np.zeros(0))
    rows = np.vstack([E, stated["A"], np.eye(n)])
    low = np.concatenate([f, np.full(len(stated["A"]), -np.inf), stated["lower"]])
    return rows, low, np.concatenate([f, stated["b"], stated["upper"]])


@pytest.mark.parametrize("kind", KINDS)
def test_equals_clarabel(kind):
    """50 sets of 3 instances of each kind: 900 programs."""
    judged = 0
    for seed in range(50):
        rng = np.random.default_rng([seed, KINDS.index(kind)])
        P, y, stated = draw(rng, kind)
        objective = linsat.Quadratic(P if kind == "own" else P[0])
        solution = linsat.solve(y, linsat.Constraints(**stated), objective=objective, on_failure="raise")
        rows, low, high = all_rows(stated)
        for i, x in enumerate(solution.x):
            own = P[i if kind == "own" else 0]
            values, size = rows @ x, np.maximum(1.0, np.abs(rows) @ np.abs(x))
            assert (np.maximum(low - values, values - high) / size).max() <= 1e-9
            assert ((x >= stated["lower"]) & (x <= stated["upper"])).all()
            expected = clarabel_point(own, y[i], rows, low, high)
            if str(expected.status) != "Solved":
                continue
            judged += 1
            best, value = expected.obj_val, x @ own @ x / 2 - y[i] @ x
            assert abs(value - best) <= 1e-8 * (1 + abs(best)), (kind, seed, i)
    assert judged >= 0.7 * 150


@pytest.mark.parametrize("kind", KINDS)
def test_duals_are_those_of_the_optimum(kind):
    """P x = y + A'duals + bound_duals, with the signs of rows and bounds and nothing where they do not bind."""
    for seed in range(10):
        rng = np.random.default_rng([seed, 9, KINDS.index(kind)])
        P, y, stated = draw(rng, kind)
        cons = linsat.Constraints(**stated)
        solution = linsat.solve(y, cons, objective=linsat.Quadratic(P if kind == "own" else P[0]))
        rows = np.vstack([stated["A"], stated.get("E", np.zeros((0, y.shape[1])))])
        z, x, caps = solution.bound_duals, solution.x, len(stated["A"])
        left = (P @ x[..., None])[..., 0] - y - solution.duals @ rows - z
        assert np.abs(left).max() <= 1e-7 * (1 + np.abs(y).max() + np.abs(solution.duals).max())
        assert (solution.duals[:, :caps] <= 0).all()
        room = stated["b"] - x @ stated["A"].T
        assert np.abs(solution.duals[:, :caps] * room).max() <= 1e-7 * (1 + np.abs(y).max())
        slight = 1e-9 * (1 + np.abs(y).max() + np.abs(solution.duals).max())
        assert (z[x > stated["lower"]] <= slight).all()
        assert (z[x < stated["upper"]] >= -slight).all()
        assert (z[(x > stated["lower"]) & (x < stated["upper"])] == 0).all()


def smooth_case(seed, batch=2, n=6):
    """Tensors of a program in which some rows and bounds bind, and none barely."""
    rng = np.random.default_rng(seed)
    L = rng.normal(size=(batch, n, n))
    point, E, A = rng.normal(size=n), rng.normal(size=(1, n)), rng.normal(size=(3, n))
    arrays = {
        "P": L @ L.swapaxes(-1, -2) / n + 0.2 * np.eye(n),
        "y": 2 * rng.normal(size=(batch, n)),
        "A": A,
        "b": A @ point + 0.2 * rng.random(3),
        "E": E,
        "f": E @ point,
        "lower": point - 0.4,
        "upper": point + 0.6,
    }
    return {name: torch.tensor(array, dtype=TORCH, requires_grad=True) for name, array in arrays.items()}


def everything(objective, soft=False):
    def run(P, y, A, b, E, f, lower, upper):
        cons = linsat.Constraints(A=A, b=b, E=E, f=f, lower=lower, upper=upper)
        cons = cons.soften([0, 1], price=0.3) if soft else cons
        solution = linsat.solve(y, cons, objective=objective(P))
        return solution.x, solution.duals, solution.bound_duals

    return run


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("objective", [linsat.Quadratic, linsat.Euclidean])
def test_gradients_to_every_number(objective, soft):
    bound = 0
    for seed in range(4):
        case = smooth_case(seed)
        z = everything(objective, soft)(**case)[2]
        bound += int((z != 0).sum())
        assert gradcheck(everything(objective, soft), tuple(case.values()), atol=1e-6, rtol=1e-5)
    assert bound > 4


def test_shared_matrix_gradient_is_the_sum():
    case = smooth_case(1)
    shared = case["P"].detach()[0].clone().requires_grad_()
    others = tuple(case[name] for name in ("y", "A", "b", "E", "f", "lower", "upper"))
    assert gradcheck(lambda P, *rest: everything(linsat.Quadratic)(P, *rest)[0], (shared, *others), atol=1e-6)


def test_price_of_a_broken_row_has_a_gradient():
    case = smooth_case(3)
    cons = linsat.Constraints(A=case["A"].detach(), b=case["b"].detach() - 3.0, lower=-5.0, upper=5.0)
    y, P = case["y"], case["P"]

    def run(price):
        return linsat.solve(y.detach(), cons.soften(price=price), objective=linsat.Quadratic(P.detach())).x

    price = torch.full((3,), 0.4, dtype=TORCH, requires_grad=True)
    assert gradcheck(run, (price,), atol=1e-6)
    assert torch.autograd.grad(run(price).sum(), price)[0].abs().max() > 1e-3


def test_second_derivatives_and_transforms():
    case = smooth_case(0)
    assert gradgradcheck(everything(linsat.Quadratic), tuple(case.values()), atol=1e-5)
    cons = linsat.Constraints(A=case["A"].detach(), b=case["b"].detach(), lower=-2.0, upper=2.0)
    P, y = case["P"].detach()[0], case["y"].detach()

    def layer(y, P):
        return linsat.project(y, cons, objective=linsat.Quadratic(P))

    expected = layer(y, P)
    for found in (
        torch.func.vmap(layer, (0, None))(y, P),
        torch.func.vmap(layer, (0, 0))(y, torch.stack([P, P])),
    ):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    forward = torch.func.jacfwd(layer, (0, 1))(y[0], P)
    for one, other in zip(forward, torch.func.jacrev(layer, (0, 1))(y[0], P), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


# ------------------------------------------------------------------ closed forms


def test_without_binding_rows_it_is_a_linear_system():
    rng = np.random.default_rng(0)
    L = rng.normal(size=(7, 7))
    P, y = L @ L.T + np.eye(7), rng.normal(size=(4, 7))
    cons = linsat.Constraints(A=np.ones((1, 7)), b=[1e3], lower=-np.inf, upper=np.inf)
    x = linsat.project(y, cons, objective=linsat.Quadratic(P))
    np.testing.assert_allclose(x, np.linalg.solve(P, y.T).T, atol=1e-12)


def test_equalities_have_a_closed_form():
    rng = np.random.default_rng(1)
    L, E, f = rng.normal(size=(6, 6)), rng.normal(size=(2, 6)), rng.normal(size=2)
    W, y = L @ L.T + np.eye(6), rng.normal(size=(5, 6))
    cons = linsat.Constraints(E=E, f=f, lower=-np.inf, upper=np.inf)
    gain = np.linalg.solve(W, E.T) @ np.linalg.inv(E @ np.linalg.solve(W, E.T))
    expected = y - (y @ E.T - f) @ gain.T
    np.testing.assert_allclose(linsat.project(y, cons, objective=linsat.Euclidean(W)), expected, atol=1e-12)


def test_a_diagonal_matrix_is_weights():
    rng = np.random.default_rng(2)
    q, y = 10.0 ** rng.uniform(-1, 1, 8), rng.normal(size=(3, 8))
    cons = linsat.constraints.simplex(8)
    vector = linsat.project(y, cons, objective=linsat.Euclidean(q))
    np.testing.assert_allclose(linsat.project(y, cons, objective=linsat.Euclidean(np.diag(q))), vector, atol=1e-9)
    np.testing.assert_allclose(linsat.project(q * y, cons, objective=linsat.Quadratic(np.diag(q))), vector, atol=1e-9)


def test_weights_of_one_variable_are_numbers_of_each_instance():
    """Shape (11, 1, 1) may look like matrices; the scores are of 11 x 1 instances."""
    rng = np.random.default_rng(4)
    y, q, b = rng.normal(size=(11, 1, 1)), rng.uniform(0.1, 9.0, (11, 1, 1)), 0.6
    cons = linsat.Constraints(A=[[1.0]], b=[b]).soften("A", price=0.3)
    x = np.where(y > b, np.maximum(b, y - 0.3 / q), y).clip(0.0, 1.0)  # beyond b, q (x - y) + 0.3 is the slope
    np.testing.assert_allclose(linsat.project(y, cons, objective=linsat.Euclidean(q)), x, atol=1e-9)


def test_formulas_with_too_many_rows_for_dense_factors_say_so():
    l, rng = 400, np.random.default_rng(5)
    w = linsat.Variable(l, name="w")
    cons = linsat.subject_to(rng.normal(size=(700, l)) @ w <= 100.0, abs(w).sum() <= 3.0, variables=[w])
    with pytest.raises(linsat.ConstraintError, match=r"native core, which cannot be used here: .* too many .* Fix:"):
        linsat.project(rng.normal(size=l), cons, objective=linsat.Quadratic(np.eye(l)))


def test_the_simplex_by_brute_force_and_zeros_are_zeros():
    """Every support of the simplex in turn: the best one that satisfies its own optimality conditions."""
    rng = np.random.default_rng(3)
    L = rng.normal(size=(6, 6))
    P, ys = L @ L.T, rng.normal(size=(20, 6)) * 3
    found = linsat.project(ys, linsat.constraints.simplex(6), objective=linsat.Quadratic(P))
    for y, x in zip(ys, found, strict=True):
        best, at = math.inf, None
        for size in range(1, 7):
            for support in map(list, itertools.combinations(range(6), size)):
                ones = np.ones((size, 1))
                K = np.block([[P[np.ix_(support, support)], ones], [ones.T, np.zeros((1, 1))]])
                part = np.linalg.solve(K, np.append(y[support], 1.0))[:size]
                if (part >= 0).all():
                    point = np.zeros(6)
                    point[support] = part
                    value = point @ P @ point / 2 - y @ point
                    best, at = (value, point) if value < best else (best, at)
        np.testing.assert_allclose(x, at, atol=1e-10)
        assert (x[at == 0] == 0).all()


def test_the_nearest_point_of_a_matrix_shaped_batch_is_no_surprise():
    """As many instances as variables: a symmetric, definite matrix is a metric, others are weights of each instance."""
    rng = np.random.default_rng(4)
    L, y, cons = rng.normal(size=(5, 5)), rng.normal(size=(5, 5)), linsat.constraints.simplex(5)
    W, q = L @ L.T + np.eye(5), rng.random((5, 5)) + 0.5
    metric = linsat.project(y, cons, objective=linsat.Euclidean(W))
    np.testing.assert_allclose(metric[:2], linsat.project(y[:2], cons, objective=linsat.Euclidean(W)), atol=1e-12)
    each = linsat.project(y, cons, objective=linsat.Euclidean(q))
    for i in range(5):
        np.testing.assert_allclose(each[i], linsat.project(y[i], cons, objective=linsat.Euclidean(q[i])), atol=1e-12)
    same = linsat.project(y, cons, objective=linsat.Euclidean(np.ones((5, 5))))
    np.testing.assert_allclose(same, linsat.project(y, cons, objective=linsat.Euclidean()), atol=1e-12)


# ------------------------------------------------------------------ what cannot be


SIMPLEX = linsat.constraints.simplex(3)
SCORES = np.array([[1.0, 0.5, -2.0], [0.0, 2.0, 0.0]])


def test_a_matrix_that_is_not_semidefinite_is_named():
    P = np.diag([1.0, 2.0, -0.5])
    with pytest.raises(linsat.ConstraintError, match=r"P is not positive semi-definite.*eigenvalue is -0.5.*Fix"):
        linsat.project(SCORES, SIMPLEX, objective=linsat.Quadratic(P))
    own = np.stack([np.eye(3), P])
    fixed = linsat.Constraints(E=[[0.0, 0.0, 1.0]], f=[0.0])  # P is definite where this leads, and must be everywhere
    with pytest.raises(linsat.ConstraintError, match=r"eigenvalue is -0.5"):
        linsat.project(SCORES, fixed, objective=linsat.Quadratic(P))
    with pytest.raises(linsat.ConstraintError, match="P of instance 1"):
        linsat.project(SCORES, SIMPLEX, objective=linsat.Quadratic(own))
    solution = linsat.solve(SCORES, SIMPLEX, objective=linsat.Quadratic(own), on_failure="nan")
    assert list(solution.status) == ["converged", "not_finite"]
    with pytest.raises(linsat.ConstraintError, match=r"weights is not positive definite.*eigenvalue is 0"):
        linsat.project(SCORES, SIMPLEX, objective=linsat.Euclidean(np.diag([1.0, 1.0, 0.0])))


def test_a_matrix_that_is_semidefinite_but_for_rounding_is_taken():
    for seed in range(20):
        v = np.random.default_rng(seed).normal(size=(3, 1)).astype(np.float32)
        x = linsat.project(SCORES, SIMPLEX, objective=linsat.Quadratic(v @ v.T))
        assert abs(x.sum(-1) - 1).max() <= 1e-9


@pytest.mark.parametrize(
    "wrong", [np.eye(2), np.ones(3), np.ones((3, 3, 3)), "abc", np.full((3, 3), np.nan), 1j * np.eye(3)]
)
def test_other_bad_matrices_are_named(wrong):
    with pytest.raises(linsat.ConstraintError, match=r"^P .*expected"):
        linsat.project(SCORES, SIMPLEX, objective=linsat.Quadratic(wrong))


def test_unbounded_programs_are_named():
    free = linsat.Constraints(E=np.ones((1, 3)), f=[1.0], lower=-np.inf, upper=np.inf)
    flat = np.diag([1.0, 0.0, 0.0])  # no curvature along x1 - x2
    with pytest.raises(linsat.ConvergenceError, match="unbounded.*without end"):
        linsat.project(SCORES, free, objective=linsat.Quadratic(flat))
    solution = linsat.solve(SCORES, free, objective=linsat.Quadratic(flat), on_failure="ignore")
    assert list(solution.status) == ["unbounded", "unbounded"]
    level = np.array([[1.0, 0.5, 0.5]])  # which has nothing to gain there
    x = linsat.project(level, free, objective=linsat.Quadratic(flat))
    np.testing.assert_allclose([x[0, 0], x.sum()], [0.5, 1.0], atol=1e-9)


def test_infeasible_programs_are_named():
    with pytest.raises(linsat.InfeasibleError, match="cannot hold"):
        linsat.project(SCORES, linsat.Constraints(E=np.ones((1, 3)), f=[4.0]), objective=linsat.Quadratic(np.eye(3)))
    twice = linsat.Constraints(E=[[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]], f=[1.0, 2.5], lower=-np.inf, upper=np.inf)
    with pytest.raises(linsat.InfeasibleError, match="cannot hold"):
        linsat.project(SCORES, twice, objective=linsat.Quadratic(np.eye(3)))
    solution = linsat.solve(
        SCORES, SIMPLEX, f=np.array([[1.0], [-1.0]]), objective=linsat.Quadratic(np.eye(3)), on_failure="ignore"
    )
    assert list(solution.status) == ["converged", "infeasible"]


def test_scores_of_minus_infinity_hold_a_variable():
    y = np.array([[-np.inf, 1.0, 0.0], [1.0, 0.0, 0.0]])
    P = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    for objective in (linsat.Quadratic(P), linsat.Euclidean(P)):
        x = linsat.project(y, SIMPLEX, objective=objective)
        assert x[0, 0] == 0.0
        c = y[0, 1:] if isinstance(objective, linsat.Quadratic) else P[1:, 1:] @ y[0, 1:]
        gain = c[0] - c[1]  # x1 - x2 of the two that are left: (2 x1 - x2) = gain, x1 + x2 = 1
        expected = np.clip((gain + 1) / 3, 0, 1)
        np.testing.assert_allclose(x[0, 1:], [expected, 1 - expected], atol=1e-12)


def linear_system(P, rows, tight, g):
    """dL/dc of x = argmin x'Px / 2 - c'x on the rows that are tight, by numpy: [P M'; M 0] [v; w] = [g; 0]."""
    M = rows[tight]
    whole = np.block([[P, M.T], [M, np.zeros((len(M), len(M)))]])
    return np.linalg.lstsq(whole, np.concatenate([g, np.zeros(len(M))]), rcond=1e-13)[0][: len(P)]


@pytest.mark.parametrize("kind", ["plain", "scaled", "nearly parallel", "dependent", "one point", "own"])
def test_many_equalities_equal_clarabel(kind):
    """Equalities leave few variables, or none: values and gradients, with bounds on variables that they determine."""
    for seed in range(25):
        rng = np.random.default_rng([seed, 17])
        n = int(rng.integers(4, 30))
        count = n if kind == "one point" else int(rng.integers(n // 2, n))
        point, E, A = rng.normal(size=n), rng.normal(size=(count, n)), rng.normal(size=(n // 2, n))
        if kind == "scaled":
            E *= 10.0 ** rng.uniform(-4, 4, size=(count, 1))
        if kind == "nearly parallel":
            E[1] = E[0] + 1e-6 * E[1]
        if kind == "dependent":
            E = np.vstack([E, E[:1] - 3.0 * E[1:2], E[:1]])
        F = rng.normal(size=(3 if kind == "own" else 1, n, n))
        P = F @ F.swapaxes(-1, -2) / n + 0.05 * np.eye(n)
        y, given = 3.0 * rng.normal(size=(3, n)), rng.normal(size=(3, n))
        lower = np.where(rng.random(n) < 0.7, point - rng.random(n), -np.inf)
        stated = {"E": E, "f": E @ point, "A": A, "b": A @ point + rng.random(n // 2), "lower": lower, "upper": np.inf}
        leaf = torch.tensor(y, requires_grad=True)
        objective = linsat.Quadratic(torch.tensor(P if kind == "own" else P[0]))
        solution = linsat.solve(leaf, linsat.Constraints(**stated), objective=objective, on_failure="raise")
        (solution.x * torch.tensor(given)).sum().backward()
        rows, low, high = all_rows(stated | {"upper": np.full(n, np.inf)})
        for i, x in enumerate(solution.x.detach().numpy()):
            own = P[min(i, len(P) - 1)]
            best = clarabel_point(own, y[i], rows, low, high)
            value = x @ own @ x / 2 - y[i] @ x
            assert value <= best.obj_val + 1e-7 * (1 + abs(best.obj_val))
            size = np.abs(rows) @ np.abs(x) + 1.0
            assert ((rows @ x - high) / size).max() <= 1e-10
            assert ((low - rows @ x) / size).max() <= 1e-10
            tight = (np.minimum(rows @ x - low, high - rows @ x) <= 1e-9 * size) | (low == high)
            expected = linear_system(own, rows / np.linalg.norm(rows, axis=1, keepdims=True), tight, given[i])
            if kind != "nearly parallel":
                np.testing.assert_allclose(leaf.grad[i].numpy(), expected, atol=1e-7 * (1 + np.abs(expected).max()))


def test_more_rows_meet_in_a_corner_than_it_takes():
    """Degenerate: 4 n rows through the corner at which the best point lies."""
    for seed in range(30):
        rng = np.random.default_rng([seed, 23])
        n = int(rng.integers(2, 12))
        F, corner = rng.normal(size=(n, n)), rng.normal(size=n)
        P, A = F @ F.T / n + 0.05 * np.eye(n), rng.normal(size=(4 * n, n))
        y = P @ corner + A.T @ rng.random(4 * n)  # in the cone of all normals
        x = linsat.project(
            y, linsat.Constraints(A=A, b=A @ corner, lower=-np.inf, upper=np.inf), objective=linsat.Quadratic(P)
        )
        np.testing.assert_allclose(x, corner, atol=1e-9)


# ------------------------------------------------------------------ doors


def test_instances_do_not_depend_on_their_batch():
    P, y, stated = draw(np.random.default_rng(11), "own", batch=40)
    cons = linsat.Constraints(**stated)
    whole = linsat.solve(y, cons, objective=linsat.Quadratic(P))
    for i in (0, 7, 39):
        alone = linsat.solve(y[i], cons, objective=linsat.Quadratic(P[i]))
        assert np.array_equal(alone.x, whole.x[i])
        assert np.array_equal(alone.duals, whole.duals[i])


def test_sparse_matrices_and_large_sets():
    """Beyond what dense factors take, the sparse interior-point method: a chain, whose answer Clarabel knows."""
    n = 1500
    P = sp.diags_array([np.full(n, 2.0), -np.ones(n - 1), -np.ones(n - 1)], offsets=[0, 1, -1]).tocsr()
    E = sp.csr_array(np.ones((1, n)))
    cons = linsat.Constraints(E=E, f=[10.0], lower=0.0, upper=1.0)
    rng = np.random.default_rng(0)
    y = rng.normal(size=(2, n))
    solution = linsat.solve(y, cons, objective=linsat.Quadratic(P), on_failure="raise")
    assert (solution.x == 0).any()
    for i in range(2):
        rows = sp.vstack([E, sp.eye_array(n), -sp.eye_array(n)])
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(2 * n)]
        sides = np.concatenate([[10.0], np.ones(n), np.zeros(n)])
        best = clarabel.DefaultSolver(sp.triu(P).tocsc(), -y[i], rows.tocsc(), sides, cones, settings).solve()
        value = solution.x[i] @ (P @ solution.x[i]) / 2 - y[i] @ solution.x[i]
        assert abs(value - best.obj_val) <= 1e-6 * (1 + abs(best.obj_val))
    scores = torch.from_numpy(y).requires_grad_()
    given = torch.from_numpy(rng.normal(size=(2, n)))
    loss = (linsat.project(scores, cons, objective=linsat.Quadratic(P)) * given).sum()
    (gradient,) = torch.autograd.grad(loss, scores)
    way = torch.from_numpy(rng.normal(size=(2, n)))
    ends = [linsat.project((scores + h * way).detach(), cons, objective=linsat.Quadratic(P)) for h in (1e-6, -1e-6)]
    slope = float(((ends[0] - ends[1]) * given).sum() / 2e-6)
    assert abs(float((gradient * way).sum()) - slope) <= 1e-4 * (1 + abs(slope))


def test_sparse_is_dense_and_not_symmetric_is_its_symmetric_part():
    rng = np.random.default_rng(5)
    L, y = rng.normal(size=(3, 3)), SCORES
    P = L @ L.T
    expected = linsat.project(y, SIMPLEX, objective=linsat.Quadratic(P))
    skew = P + np.array([[0.0, 1.0, -2.0], [-1.0, 0.0, 0.5], [2.0, -0.5, 0.0]])
    for same in (sp.csr_array(P), sp.csc_matrix(P), skew, torch.from_numpy(P), P.tolist()):
        np.testing.assert_allclose(linsat.project(y, SIMPLEX, objective=linsat.Quadratic(same)), expected, atol=1e-12)


def test_layer_learns_its_matrix():
    L = torch.tensor([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-0.5, 0.2, 1.0]], dtype=TORCH)
    layer = linsat.LinSAT(SIMPLEX, objective=linsat.Quadratic(torch.nn.Parameter(L @ L.T)))
    assert [name for name, _ in layer.named_parameters()] == ["P"]
    y = 0.1 * torch.from_numpy(SCORES)
    layer(y)[:, 0].sum().backward()
    assert float(layer.P.grad.abs().max()) > 0


@pytest.mark.parametrize("objective", [linsat.Quadratic, linsat.Euclidean])
def test_fenchel_young_loss(objective):
    """Zero at the answer and nowhere else; its gradient to the scores is x - target, by finite differences."""
    rng = np.random.default_rng(6)
    L = rng.normal(size=(4, 4))
    P, cons = torch.from_numpy(L @ L.T + np.eye(4)), linsat.constraints.simplex(4)
    y = torch.from_numpy(rng.normal(size=(3, 4))).requires_grad_()
    x = linsat.project(y, cons, objective=objective(P)).detach()
    assert linsat.fenchel_young_loss(y, x, cons, objective=objective(P)).detach() <= 1e-12
    target = torch.full((3, 4), 0.25, dtype=TORCH)
    metric = P.clone().requires_grad_()

    def loss(y, P):
        return linsat.fenchel_young_loss(y, target, cons, objective=objective(P), reduction="none")

    assert (loss(y, metric) > 0).all()
    assert gradcheck(loss, (y, metric), atol=1e-6)


# ------------------------------------------------------------------ the peers' own facts


def test_qpth_a_program_with_a_known_answer():
    """qpth's first example and ProxQP's: a strictly convex program over a polytope, in its words G x <= h, A x = b."""
    Q, p = torch.tensor([[4.0, 1.0], [1.0, 2.0]], dtype=TORCH), torch.tensor([1.0, 1.0], dtype=TORCH)
    G, h = -torch.eye(2, dtype=TORCH), torch.zeros(2, dtype=TORCH)
    cons = linsat.Constraints(A=G, b=h, E=torch.ones(1, 2, dtype=TORCH), f=[1.0], lower=-np.inf, upper=np.inf)
    x = linsat.project(-p, cons, objective=linsat.Quadratic(Q))
    torch.testing.assert_close(x, torch.tensor([0.25, 0.75], dtype=TORCH), atol=1e-12, rtol=0)


def test_jaxopt_equality_constrained_qp():
    """jaxopt's test problem: x'Qx / 2 + c'x on x1 + x2 = 1, whose answer is (1/4, 3/4)."""
    Q, c = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([1.0, 1.0])
    solution = linsat.solve(
        -c,
        linsat.Constraints(E=[[1.0, 1.0]], f=[1.0], lower=-np.inf, upper=np.inf),
        objective=linsat.Quadratic(Q),
    )
    np.testing.assert_allclose(solution.x, [0.25, 0.75], atol=1e-12)
    np.testing.assert_allclose(Q @ solution.x + c - solution.duals, [0.0, 0.0], atol=1e-12)


def test_cvxopt_documentation_example():
    """min 2 x1^2 + x2^2 + x1 x2 + x1 + x2 over x >= 0, x1 + x2 = 1: x = (1/4, 3/4), the manual says."""
    P, q = np.array([[4.0, 1.0], [1.0, 2.0]]), np.array([1.0, 1.0])
    x = linsat.project(-q, linsat.constraints.simplex(2), objective=linsat.Quadratic(P))
    np.testing.assert_allclose(x, [0.25, 0.75], atol=1e-12)


def test_proxsuite_degenerate_rows_leave_the_answer_alone():
    """Rows stated twice, and their sums, change neither x nor its gradient."""
    rng = np.random.default_rng(8)
    L, E, A, point = rng.normal(size=(8, 8)), rng.normal(size=(2, 8)), rng.normal(size=(5, 8)), rng.normal(size=8)
    P, y = L @ L.T + np.eye(8), rng.normal(size=(3, 8)) * 4
    b = A @ point + 0.1 * rng.random(5)
    plain = linsat.Constraints(A=A, b=b, E=E, f=E @ point, lower=-np.inf, upper=np.inf)
    E2, A2 = np.vstack([E, E, E.sum(0)]), np.vstack([A, 2 * A])
    twice = linsat.Constraints(A=A2, b=np.append(b, 2 * b), E=E2, f=E2 @ point, lower=-np.inf, upper=np.inf)
    given, answers = torch.from_numpy(rng.normal(size=(3, 8))), []
    for cons in (plain, twice):
        scores = torch.from_numpy(y).requires_grad_()
        x = linsat.project(scores, cons, objective=linsat.Quadratic(P))
        answers.append((x.detach(), torch.autograd.grad((x * given).sum(), scores)[0]))
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


def tree_rows():
    """Total, two groups, four leaves: y = S bottom, and as equalities E y = 0."""
    S = np.vstack([np.ones((1, 4)), np.kron(np.eye(2), np.ones((1, 2))), np.eye(4)])
    return S, np.hstack([np.eye(3), -S[:3]])


def test_mintrace_with_a_full_covariance():
    """The reconciliation of Wickramasuriya et al.: S (S'W S)^-1 S'W y, W the inverse covariance."""
    S, E = tree_rows()
    rng = np.random.default_rng(9)
    errors = rng.normal(size=(60, 7)) @ rng.normal(size=(7, 7))
    W, base = np.linalg.inv(errors.T @ errors / 60), rng.normal(size=(10, 7)) * 5
    cons = linsat.Constraints(E=E, f=np.zeros(3), lower=-np.inf, upper=np.inf)
    expected = base @ (S @ np.linalg.solve(S.T @ W @ S, S.T @ W)).T
    np.testing.assert_allclose(linsat.project(base, cons, objective=linsat.Euclidean(W)), expected, atol=1e-9)


def test_non_negative_mintrace_against_clarabel():
    S, E = tree_rows()
    rng = np.random.default_rng(10)
    errors = rng.normal(size=(60, 7)) @ rng.normal(size=(7, 7))
    W, base = np.linalg.inv(errors.T @ errors / 60), rng.normal(size=(20, 7)) * 5
    cons = linsat.Constraints(E=E, f=np.zeros(3), lower=0.0, upper=np.inf)
    found = linsat.project(base, cons, objective=linsat.Euclidean(W))
    assert (found == 0).any()
    for path, x in zip(base, found, strict=True):
        bottom = clarabel_point(S.T @ W @ S, S.T @ W @ path, np.eye(4), np.zeros(4), np.full(4, np.inf)).x
        np.testing.assert_allclose(x, S @ bottom, atol=1e-6)
        assert (x[S @ bottom < 1e-8] == 0).all()


def test_a_large_program_is_put_to_bounds_only_where_no_row_sees_it():
    """A variable 5e-13 above its bound is at it, but not where a coefficient of 1e5 makes 5e-8 of that."""
    from linsat.arrays.interior.quadratic import _snapped
    from tests.helpers.statements import untouched_problem

    cons = linsat.Constraints(A=[[1.0, 1e5, 1.0]], b=[1.0])
    problem = untouched_problem(cons, linsat.Euclidean(), torch.zeros(1, 3, dtype=torch.float64)).in_numpy()
    np.testing.assert_array_equal(_snapped(problem, 0, np.array([5e-13, 5e-13, 0.5])), [0.0, 5e-13, 0.5])
