"""Constraint sets in a process that cannot import torch; run by tests/doors/test_without_torch.py."""

# ruff: noqa: E402
import sys

sys.modules["torch"] = None  # type: ignore[assignment]

import itertools
import pickle
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import linsat
from linsat._senses import EQUAL, GREATER, LESS
from linsat.constraints.numbers import Statement

A = np.array([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]])
C = np.array([[1.0, 1.0, 1.0]])


@pytest.fixture(autouse=True)
def torch_stays_out():
    yield
    assert sys.modules["torch"] is None


def dense(stated: Statement) -> np.ndarray:
    """(batch..., rows, variables) from the entries."""
    found = np.zeros((*stated.values.shape[:-1], len(stated.senses), stated.num_variables))
    found[..., stated.row, stated.col] = stated.values
    return found


def brute_force_gaps(cons: linsat.Constraints, x: np.ndarray, instance: int) -> tuple[list[float], list[float]]:
    """Violation and size of every row at x (variables,), term by term."""
    s = cons.statement()
    rhs = np.broadcast_to(s.rhs, (*s.batch_shape, len(s.senses)))[instance]
    values = np.broadcast_to(s.values, (*s.batch_shape, len(s.row)))[instance]
    gaps, sizes = [], []
    for i, sense in enumerate(s.senses):
        terms = [values[e] * x[s.col[e]] for e in range(len(s.row)) if s.row[e] == i]
        excess = sum(terms) - rhs[i]
        gaps.append({LESS: max(excess, 0), GREATER: max(-excess, 0), EQUAL: abs(excess)}[int(sense)])
        sizes.append(max(1.0, sum(map(abs, terms))))
    return gaps, sizes


def jax_array(matrix):
    return pytest.importorskip("jax.numpy").asarray(matrix)


@pytest.mark.parametrize("kind", [np.ndarray.tolist, np.float32, sp.csr_array, sp.coo_matrix, jax_array])
def test_rows_come_from_lists_numpy_scipy_and_jax(kind):
    stated = linsat.Constraints(A=kind(A), b=[1, 2], C=kind(C), d=1).statement()
    np.testing.assert_array_equal(dense(stated), [[1, 2, 0], [0, -1, 3], [1, 1, 1]])
    assert stated.senses.tolist() == [LESS, LESS, GREATER]
    assert stated.rhs.tolist() == [1, 2, 1]
    assert (stated.row.dtype, stated.col.dtype, stated.values.dtype) == (np.int64, np.int64, np.float64)
    assert (stated.num_variables, stated.batch_shape, stated.price) == (3, (), None)
    assert (stated.lower.tolist(), stated.upper.tolist()) == (0.0, 1.0)


def test_the_set_copies_what_it_is_given():
    a, b, upper = A.copy(), np.ones(2), np.ones(3)
    cons = linsat.Constraints(A=a, b=b, upper=upper)
    a[:], b[:], upper[:] = 9.0, 9.0, 9.0
    stated = cons.statement()
    np.testing.assert_array_equal(dense(stated), A)
    assert stated.rhs.tolist() == [1, 1]
    assert stated.upper.tolist() == [1, 1, 1]


def test_numbers_per_instance_broadcast():
    cons = linsat.Constraints(A=A, b=[[1.0, 2.0], [3.0, 4.0]], E=C, f=0.5, upper=np.full((2, 3), 2.0), lower=-np.inf)
    stated = cons.statement()
    assert stated.batch_shape == cons.batch_shape == (2,)
    assert stated.rhs.tolist() == [[1, 2, 0.5], [3, 4, 0.5]]
    assert (stated.lower.tolist(), stated.upper.tolist()) == (-np.inf, [[2, 2, 2], [2, 2, 2]])
    own = linsat.Constraints(A=np.stack([A, 2 * A]), b=1.0).statement()
    np.testing.assert_array_equal(dense(own), np.stack([A, 2 * A]))
    sparse = linsat.Constraints(A=sp.csr_array(A), b=1.0)
    values = np.arange(8.0).reshape(2, 4)
    assert sparse.with_coefficients(A=values).statement().values.tolist() == values.tolist()
    assert sparse.with_coefficients(A=sp.csr_array(2 * A)).statement().values.tolist() == [2, 4, -2, 6]
    np.testing.assert_array_equal(dense(sparse.with_coefficients(A=sp.csr_array(2 * A)).statement()), 2 * A)
    assert cons._instances(1, 2).statement().rhs.tolist() == [[3, 4, 0.5]]


def test_names_right_hand_sides_and_bounds_by_name():
    X, s = linsat.Variable(2, 2, name="X"), linsat.Variable(name="s", upper=5.0)
    cons = linsat.subject_to((X.sum(0) <= 1).named("load"), (X[0, 1] - 2 * s == 0).named("tie"))
    assert cons.names == ("load[0]", "load[1]", "tie")
    assert cons.row_text(2) == "X[0, 1] - 2 s == 0"
    assert cons.with_rhs({"load": [3.0, 4.0]}).statement().rhs.tolist() == [3, 4, 0]
    per_instance = cons.with_rhs({"load[1]": [[7.0], [8.0]]})
    assert per_instance.statement().rhs.tolist() == [[1, 7, 0], [1, 8, 0]]
    assert cons.with_bounds(upper={"X": [[1, 2], [3, 4]]}).statement().upper.tolist() == [1, 2, 3, 4, 5]
    assert cons.with_bounds(lower=-np.inf).statement().lower.tolist() == -np.inf
    found = cons.unstack(np.arange(5.0))
    assert (found["X"].tolist(), found["s"].tolist()) == ([[0, 1], [2, 3]], 4)


def test_text():
    cons = linsat.Constraints(A=A, b=[1.0, np.pi], names=["budget", "rest"], upper=[1, 2, np.inf]).soften("rest", 3.0)
    assert str(cons).splitlines() == [
        "Constraints(3 variables in [0, inf (varies)], 2 rows: 2 <=, 1 of them soft)",
        "  budget: x[0] + 2 x[1] <= 1",
        "  rest: -x[1] + 3 x[2] <= 3.14159 (soft, price 3)",
    ]


def test_soft_rows_and_prices():
    cons = linsat.Constraints(A=A, b=1.0, C=C, d=1.0)
    assert cons.soften([0, 2], [2.0, 5.0]).statement().price.tolist() == [2, np.inf, 5]
    assert cons.soften(1, [[2.0], [3.0]]).statement().price.tolist() == [[np.inf, 2, np.inf], [np.inf, 3, np.inf]]
    x = np.array([1.0, 1.0, 1.0])
    assert cons.violation(x) == pytest.approx(2 / 3)  # 1 + 2 <= 1, of size 3
    assert cons.soften(0).violation(x) == pytest.approx(1 / 4)  # -1 + 3 <= 1, of size 4
    assert cons.soften([0, 1]).violation(x) == 0
    assert cons.soften(0).row_violation(x).tolist() == [2, 1, 0]
    assert linsat.Constraints(A=A, b=-9.0).soften().check().violation(x) == 0
    for price in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(linsat.ConstraintError, match="positive, finite price"):
            cons.soften(0, price)


def test_violation_equals_brute_force():
    random = np.random.default_rng(0)
    for _ in range(20):
        count, width = random.integers(1, 5), random.integers(1, 6)
        blocks = {name: random.integers(-2, 3, (2, count, width)).astype(float) for name in "ACE"}
        for block in blocks.values():
            block[..., 0] = 1.0  # no row without coefficients
        sides = {name: random.normal(size=(2, count)) for name in "bdf"}
        cons = linsat.Constraints(**blocks, **sides, lower=-1.0, upper=np.array([0.5] * width))
        x = random.normal(size=(2, width))
        for instance in range(2):
            gaps, sizes = brute_force_gaps(cons, x[instance], instance)
            np.testing.assert_allclose(cons.row_violation(x)[instance], gaps, atol=1e-12)
            outside = [max(-1 - v, v - 0.5, 0) / max(1, abs(v)) for v in x[instance]]
            worst = max(*(g / s for g, s in zip(gaps, sizes, strict=True)), *outside)
            assert cons.violation(x)[instance] == pytest.approx(worst, abs=1e-12)


def test_families_hold_at_exactly_the_right_points():
    """All 0/1 points of small families, by brute force."""
    f = linsat.constraints

    def square(x):
        return np.reshape(x, (3, 3))

    def once(x):
        return (square(x).sum(0) == 1).all() and (square(x).sum(1) == 1).all()

    cases = [
        (f.simplex(4), 4, lambda x: sum(x) == 1),
        (f.top_k(4, 2), 4, lambda x: sum(x) == 2),
        (f.budget([1, 2, 3], 3.0), 3, lambda x: x[0] + 2 * x[1] + 3 * x[2] <= 3),
        (f.permutation(3), 9, once),
        (f.doubly_stochastic(3), 9, once),
        (f.matching(3, 3), 9, lambda x: (square(x).sum(0) <= 1).all() and (square(x).sum(1) <= 1).all()),
        (f.portfolio(3, [0, 1], 0.5), 3, lambda x: sum(x) == 1 and x[0] + x[1] >= 0.5),
    ]
    for cons, count, holds in cases:
        points = np.array(list(itertools.product([0.0, 1.0], repeat=count)))
        np.testing.assert_array_equal(cons.violation(points) == 0, [holds(x) for x in points])
    assert len(f.tour(4, start=0, end=3)) > 0
    assert f.capacity_assignment(4, 2, [2, 3]).num_variables == 8
    assert f.ranking(3).num_variables == 9


def test_check_agrees_with_highs_and_its_certificate_is_exact():
    random = np.random.default_rng(1)
    verdicts = []
    for _ in range(40):
        rows = random.integers(-3, 4, (4, 3)).astype(float)
        rows[:, 0] = 1.0
        b = random.integers(-2, 6, 4).astype(float)
        cons = linsat.Constraints(A=rows, b=b, names=[f"row {i}" for i in range(4)])
        infeasible = linprog(np.zeros(3), A_ub=rows, b_ub=b, bounds=(0, 1)).status == 2
        verdicts.append(infeasible)
        if not infeasible:
            assert cons.check() is cons
            continue
        with pytest.raises(linsat.InfeasibleError) as caught:
            cons.check()
        used, v = list(caught.value.indices), [Fraction(weight) for weight in caught.value.certificate]
        assert all(weight > 0 for weight in v)
        combined = [sum(w * Fraction(rows[i, j]) for w, i in zip(v, used, strict=True)) for j in range(3)]
        least = sum(min(entry, Fraction(0)) for entry in combined)  # over the box [0, 1]
        assert least > sum(w * Fraction(b[i]) for w, i in zip(v, used, strict=True))
        assert caught.value.rows == tuple(f"row {i}" for i in used)
        assert all(name in str(caught.value) for name in caught.value.rows)
    assert 5 <= sum(verdicts) <= 35


def test_sets_join_pickle_and_go_to_files(tmp_path):
    both = linsat.constraints.simplex(3) & linsat.Constraints(A=A, b=[[1.0, 2.0], [3.0, 4.0]], upper=[1, 2, 0.5])
    both = both.soften(0, 4.0)
    stated = both.statement()
    np.testing.assert_array_equal(dense(stated), [*A, np.ones(3)])
    assert stated.rhs.tolist() == [[1, 2, 1], [3, 4, 1]]
    assert stated.upper.tolist() == [1, 1, 0.5]
    both.save(tmp_path / "set.npz")
    both.save(tmp_path / "set.json")
    loaded = [linsat.Constraints.load(tmp_path / name) for name in ("set.npz", "set.json")]
    for found in (pickle.loads(pickle.dumps(both)), *loaded):
        again = found.statement()
        np.testing.assert_array_equal(dense(again), dense(stated))
        for name in ("rhs", "lower", "upper", "price", "senses"):
            np.testing.assert_array_equal(getattr(again, name), getattr(stated, name))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"A": A, "b": [1.0, np.nan]}, r"b\[1\] is nan"),
        ({"A": [[1.0, np.inf]], "b": 1.0}, r"A\[0, 1\] is inf"),
        ({"A": sp.csr_array([[1.0, np.nan]]), "b": 1.0}, r"A\[0, 1\] is nan"),
        ({"A": A, "b": [1.0]}, r"b has shape \(1,\) but A has 2 rows"),
        ({"A": A, "b": sp.csr_array([[1.0, 1.0]])}, r"b is sparse.*toarray"),
        ({"A": A, "b": ["x", "y"]}, "b is a list of texts"),
        ({"A": A, "b": 1.0, "lower": [0, 2, 0]}, r"lower\[1\] = 2.0 is above upper\[1\] = 1.0"),
        ({"A": A, "b": 1.0, "upper": -np.inf}, "upper is -inf"),
        ({"A": A, "b": [[1.0, 1.0]] * 2, "upper": np.ones((3, 3))}, "do not fit together"),
        ({"A": np.zeros((1, 2)), "b": -1.0}, "cannot hold"),
    ],
)
def test_wrong_input_is_rejected(arguments, message):
    with pytest.raises(linsat.ConstraintError, match=message):
        linsat.Constraints(**arguments)


def test_tensors_are_not_to_be_had():
    with pytest.raises(ImportError, match=r"Constraints\.statement\(\)"):
        _ = linsat.Constraints(A=A, b=1.0).lower


# ------------------------------------------------------------------ project, solve, decode, files


def nearest(y: np.ndarray) -> np.ndarray:
    """The point of the simplex nearest to y, by sorting."""
    ordered = np.sort(y)[::-1]
    shifts = (np.cumsum(ordered) - 1) / np.arange(1, len(y) + 1)
    return np.maximum(y - shifts[np.flatnonzero(ordered > shifts)[-1]], 0.0)


def test_project_and_solve_without_torch():
    y = np.random.default_rng(0).normal(size=(5, 7))
    cons = linsat.constraints.simplex(7)
    expected = np.stack([nearest(row) for row in y])
    np.testing.assert_allclose(linsat.project(y, cons, objective=linsat.Euclidean()), expected, atol=1e-12)
    solution = linsat.solve(y.astype(np.float32), cons, objective=linsat.Euclidean())
    assert solution.x.dtype == np.float32
    np.testing.assert_allclose(solution.x, expected, atol=1e-6)
    assert solution.converged.all()
    assert (solution.violation <= 1e-6).all()
    softmax = np.exp(y) / np.exp(y).sum(-1, keepdims=True)
    np.testing.assert_allclose(linsat.project(y, cons, objective=linsat.KL()), softmax, atol=1e-12)


def test_rows_of_a_call_without_torch():
    """x <= b in two variables with x0 + x1 >= d: nearest to 0, all by hand."""
    cons = linsat.Constraints(C=[[1.0, 1.0]], d=[1.0], lower=-5.0, upper=5.0)
    y, sides = np.zeros((3, 2)), np.array([[1.0], [2.0], [-1.0]])
    for _ in range(2):  # the second is an earlier call with other addresses
        x = linsat.project(y, cons, objective=linsat.Euclidean(), d=sides)
        np.testing.assert_allclose(x, [[0.5, 0.5], [1.0, 1.0], [0.0, 0.0]], atol=1e-12)
        sides = sides.copy()
    x = linsat.project(y, cons, objective=linsat.Euclidean(), C=np.array([[[2.0, 0.0]], [[0.0, 1.0]], [[1.0, 1.0]]]))
    np.testing.assert_allclose(x, [[0.5, 0.0], [0.0, 1.0], [0.5, 0.5]], atol=1e-12)


def test_many_sparse_rows_without_torch():
    """x increases along a chain of 4,000: nearest to a decreasing ramp is its mean, which every row then holds with."""
    count = 4000
    rows = sp.diags_array([-np.ones(count - 1), np.ones(count - 1)], offsets=[0, 1], shape=(count - 1, count))
    cons = linsat.Constraints(C=rows, d=np.zeros(count - 1), lower=-np.inf, upper=np.inf)
    y = np.linspace(1.0, -1.0, count)
    solution = linsat.solve(y, cons, objective=linsat.Euclidean())
    assert bool(solution.converged)
    np.testing.assert_allclose(solution.x, np.zeros(count), atol=1e-8)


def test_infeasible_rows_are_named_without_torch():
    cons = linsat.Constraints(A=[[1.0, 1.0]], b=[0.5], C=[[1.0, 1.0]], d=[1.5])
    with pytest.raises(linsat.InfeasibleError, match="cannot hold together"):
        linsat.project(np.zeros(2), cons)
    found = linsat.solve(np.zeros((2, 2)), cons, d=np.array([[0.2], [1.5]]), on_failure="ignore")
    assert [str(status) for status in found.status] == ["converged", "infeasible"]


def test_decoders_without_torch():
    point = np.array([[0.9, 0.1, 0.2, 0.8], [0.4, 0.6, 0.7, 0.3]])
    cons = linsat.constraints.permutation(2)
    decoded = linsat.decode.hungarian(point, cons, shape=(2, 2))
    np.testing.assert_array_equal(decoded.x, [[1, 0, 0, 1], [0, 1, 1, 0]])
    assert decoded.feasible.all()
    np.testing.assert_array_equal(linsat.decode.top_k(point, 1).x, [[1, 0, 0, 0], [0, 0, 1, 0]])
    assert linsat.decode.greedy_repair(point, cons).feasible.all()
    np.testing.assert_array_equal(linsat.decode.rounding(point, cons).x, [[1, 0, 0, 1], [0, 1, 1, 0]])


def test_a_set_comes_back_from_a_file_without_torch(tmp_path):
    cons = linsat.Constraints(A=A, b=[1.0, 2.0], C=C, d=[1.0])
    cons.save(tmp_path / "set.json")
    again = linsat.Constraints.load(tmp_path / "set.json")
    y = np.array([0.3, -0.2, 0.9])
    np.testing.assert_array_equal(linsat.project(y, again), linsat.project(y, cons))
    np.testing.assert_allclose(dense(again.statement()), dense(cons.statement()))


def test_what_needs_torch_says_so():
    for use in (
        lambda: linsat.LinSAT,
        lambda: linsat.linsat_layer,
        lambda: linsat.project(np.zeros(3), linsat.constraints.simplex(3), solver=linsat.Newton(backend="arrays")),
    ):
        with pytest.raises(ImportError, match=r'torch.*Fix: pip install "linsat\[torch\]"'):
            use()
