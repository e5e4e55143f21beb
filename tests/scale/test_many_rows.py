"""The torch path at scale: thousands of rows by conjugate gradients, and passes that never wait for the device."""

import subprocess
import sys
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.optimize import isotonic_regression
from torch.utils._python_dispatch import TorchDispatchMode

import linsat
from linsat.arrays import iteration as arrays
from linsat.arrays import linear_algebra
from linsat.arrays.iteration import Setting, _Loop, first_state, step
from linsat.arrays.linear_algebra import MOST_DENSE_ROWS, conjugate_gradients
from linsat.arrays.rows import RowPattern
from tests.helpers.oracles import random_system
from tests.helpers.statements import problem_of

F64 = torch.float64
TAU = 0.1


@pytest.fixture(scope="module")
def many_rows():
    """More signed sparse rows than the dense Hessian serves, satisfied by a point inside the box."""
    rng = np.random.default_rng(3)
    k, l = MOST_DENSE_ROWS + 100, 2 * MOST_DENSE_ROWS + 400
    columns = np.concatenate([rng.choice(l, 5, replace=False) for _ in range(k)])
    E = sp.coo_array((rng.normal(size=5 * k), (np.repeat(np.arange(k), 5), columns)), shape=(k, l)).tocsr()
    return E, E @ rng.uniform(0.1, 0.9, l), rng.uniform(size=l)


def test_thousands_of_rows_agree_with_clarabel(many_rows):
    E, f, scores = many_rows
    p = cp.Variable(len(scores))
    entropy = cp.sum(cp.entr(p) + cp.entr(1 - p))
    problem = cp.Problem(cp.Minimize(-scores @ p - TAU * entropy), [E @ p == f])
    problem.solve(solver="CLARABEL")
    assert problem.status == "optimal"
    solution = linsat.solve(scores, linsat.Constraints(E=E, f=f), tau=TAU)
    assert solution.converged.all()
    assert solution.violation.max() <= 1e-8
    np.testing.assert_allclose(solution.x, p.value, atol=1e-5)


def test_gradients_of_first_and_second_order_with_thousands_of_rows(many_rows):
    E, f, scores = many_rows
    cons = linsat.Constraints(E=E, f=f)
    sharp = linsat.Newton(tol=1e-12)  # differences show every digit that is missing
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(len(scores), dtype=F64, generator=generator)

    def slope(y: torch.Tensor, *, graph: bool = False) -> torch.Tensor:
        y = y.detach().requires_grad_() if not graph else y
        x = linsat.project(y, cons, tau=TAU, solver=sharp)
        return torch.autograd.grad((weights * x**2).sum(), y, create_graph=graph)[0]

    y, step = torch.tensor(scores), 2e-5

    def loss(at: torch.Tensor) -> float:
        return float((weights * linsat.project(at, cons, tau=TAU, solver=sharp) ** 2).sum())

    way = slope(y) / slope(y).square().mean().sqrt()  # steepest, so that nothing cancels
    first = (loss(y + step * way) - loss(y - step * way)) / (2 * step)
    assert float(slope(y) @ way) == pytest.approx(first, rel=1e-6)
    differences = (slope(y + step * way) - slope(y - step * way)) / (2 * step)
    start = y.clone().requires_grad_()
    (second,) = torch.autograd.grad(slope(start, graph=True) @ way, start)
    torch.testing.assert_close(second, differences, rtol=1e-5, atol=1e-5)


@pytest.fixture
def few_are_many(monkeypatch):
    """Three rows count as too many for a dense Hessian."""
    monkeypatch.setattr(linear_algebra, "MOST_DENSE_ROWS", 2)
    return linsat.constraints.matching(3, 2), linsat.Newton(backend="arrays")


def test_jacobians_without_a_dense_hessian(few_are_many):
    cons, solver = few_are_many
    y = torch.randn(6, dtype=F64, generator=torch.Generator().manual_seed(1))
    found = torch.func.jacrev(lambda y: linsat.project(y, cons, tau=0.3, solver=solver))(y)
    dense = torch.autograd.functional.jacobian(lambda y: linsat.project(y, cons, tau=0.3), y)
    torch.testing.assert_close(found, dense, rtol=0, atol=1e-8)


def test_second_derivatives_by_transforms_need_a_dense_hessian(few_are_many):
    cons, solver = few_are_many
    twice = torch.func.jacrev(torch.func.jacrev(lambda y: linsat.project(y, cons, tau=0.3, solver=solver)))
    with pytest.raises(linsat.ConstraintError, match="once per output"):
        twice(torch.zeros(6, dtype=F64))


@pytest.mark.parametrize("rank", [12, 7])
def test_conjugate_gradients_solve_full_and_singular_systems(rank):
    rng = np.random.default_rng(rank)
    factor = rng.normal(size=(3, 12, rank))
    H = torch.tensor(factor @ factor.transpose(0, 2, 1))
    rhs = torch.einsum("nij,nj->ni", H, torch.tensor(rng.normal(size=(3, 12))))
    found = conjugate_gradients(
        lambda v: torch.einsum("nij,nj->ni", H, v), H.diagonal(dim1=1, dim2=2), rhs, torch.full((3,), 1e-12), 200
    )
    expected = np.stack([np.linalg.lstsq(h, b, rcond=None)[0] for h, b in zip(H.numpy(), rhs.numpy())])
    np.testing.assert_allclose(torch.einsum("nij,nj->ni", H, found), rhs, rtol=1e-8)
    if rank == 12:
        np.testing.assert_allclose(found, expected, rtol=1e-6)


class _Waits(TorchDispatchMode):
    """Counts the operations for which the host must wait for a number or a shape from the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        indexed_by_mask = name == "aten::index.Tensor" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if indexed_by_mask or name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::item"):
            self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=[(kind, slack) for kind in ("positive", "signed") for slack in ("entropic", "none")])
def cold_problem(request):
    """Six instances at tau 0.01, one of which needs far more passes than the others."""
    kind, slack = request.param
    rng = np.random.default_rng(5)
    system = random_system(rng, kind, largest=30, rows=8)
    scores = torch.tensor(rng.normal(size=(6, system.matrix.shape[1])))
    scores[2] *= 20
    return problem_of(linsat.Constraints(**system.arguments()), linsat.Entropy(0.01, slack=slack), scores)


def test_a_pass_never_waits_for_the_device(cold_problem):
    setting = Setting.of(cold_problem)
    state = first_state(setting)
    for number in range(8):
        with _Waits() as waits:
            state = step(setting, state, look=False)
        assert waits.count == 0, number


def test_one_wait_per_eight_passes(cold_problem, monkeypatch):
    passes = []
    monkeypatch.setattr(arrays, "step", lambda *args, **kwargs: passes.append(1) or step(*args, **kwargs))
    loop = _Loop(cold_problem, linsat.Newton(), None, look_every=8)
    with _Waits() as waits:
        loop.run()
    assert waits.count <= 1 + len(passes) / 8


def test_looking_rarely_changes_no_iterate(cold_problem):
    """Not to the last bit: a product of matrices rounds differently for another number of rows."""
    rare = _Loop(cold_problem, linsat.Newton(), None, look_every=8).run()
    each = _Loop(cold_problem, linsat.Newton(), None, look_every=1).run()
    assert (rare.stops == each.stops).all()
    assert (rare.steps == each.steps).all()
    torch.testing.assert_close(rare.mu, each.mu, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rare.x, each.x, rtol=0, atol=1e-10)


def chain_with_a_full_column(length: int) -> sp.csr_array:
    """Rows x_i - x_{i+1} + z, i < length: z has a coefficient in every one of them."""
    i = np.arange(length)
    where = np.concatenate([i, i, i]), np.concatenate([i, i + 1, np.full(length, length + 1)])
    return sp.csr_array((np.repeat([1.0, -1.0, 1.0], length), where), shape=(length, length + 2))


def test_a_column_in_every_row_does_not_ask_for_a_full_matrix():
    """A D A' of 100,000 rows would have 1e10 entries, though A has 3 in a row; the address space ends long before."""
    code = (
        "import resource; import numpy as np; import linsat\n"
        "from tests.scale.test_many_rows import chain_with_a_full_column\n"
        "resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "cons = linsat.Constraints(A=chain_with_a_full_column(100_000), b=0.1)\n"
        "y = np.random.default_rng(0).normal(size=cons.num_variables)\n"
        "solution = linsat.solve(y, cons, objective=linsat.Euclidean())\n"
        "assert solution.converged.all() and solution.violation.max() <= 1e-9, solution\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=600)


def test_a_column_in_every_row_agrees_with_clarabel():
    A = chain_with_a_full_column(3000)
    y = np.random.default_rng(1).normal(size=A.shape[1])
    x = cp.Variable(len(y))
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - y)), [A @ x <= 0.1, x >= 0, x <= 1])
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-14, tol_feas=1e-12)
    assert problem.status == "optimal"
    found = linsat.solve(y, linsat.Constraints(A=A, b=0.1), objective=linsat.Euclidean())
    assert found.converged.all()
    np.testing.assert_allclose(found.x, x.value, atol=1e-6)


@pytest.mark.parametrize("k", [300, 3000])
def test_density_of_pairs_of_rows_is_counted(k):
    """Blocks of ten rows over the same variables: a tenth of a percent to a few percent of the pairs, exactly known."""
    rows = np.repeat(np.arange(k), 20)
    cols = (np.arange(k)[:, None] // 10 * 20 + np.arange(20)).ravel()
    pattern = RowPattern(rows, cols, (k, 2 * k))
    assert pattern._gram_density() == pytest.approx(10 / k)
    assert pattern.sparse


@pytest.mark.parametrize("alpha", [1.2, 1.5, 3.0])
def test_tsallis_on_chains_by_its_quadratic_models(alpha):
    """Sequences that never fall, over more variables than Newton's method takes rows for; many are at a bound.

    Costs differ by linear terms only, so pools of adjacent violators have the mean of their scores, whatever the cost.
    """
    n, tau = MOST_DENSE_ROWS + 200, 0.1
    C = sp.diags_array([-np.ones(n - 1), np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n)).tocsr()
    y = np.linspace(-1, 0.2, n) + 0.1 * np.random.default_rng(6).normal(size=n)
    solution = linsat.solve(y, linsat.Constraints(C=C, d=0.0), objective=linsat.Tsallis(alpha, tau))
    assert solution.converged
    base = (alpha - 1) * isotonic_regression(y).x / tau + 1 / alpha
    expected = np.clip(np.maximum(base, 0.0) ** (1 / (alpha - 1)), 0.0, 1.0)
    np.testing.assert_allclose(solution.x, expected, atol=1e-7)
    assert (expected == 0.0).sum() > 100
    assert (solution.x[expected == 0.0] == 0.0).mean() > 0.9
