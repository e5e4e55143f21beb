"""The constraint set: what it reads, what it rejects and how it says so, and what it answers."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import linsat
from linsat import ConstraintError, Constraints
from linsat.constraints.numbers import values_on

MATRIX = np.array([[1.0, 0.0, -2.0], [0.0, 3.0, 0.5]])
FORMS = {
    "lists": lambda m: m.tolist(),
    "numpy": lambda m: m,
    "numpy float32": lambda m: m.astype(np.float32),
    "numpy int": lambda m: (2 * m).astype(int),
    "torch": torch.from_numpy,
    "torch COO": lambda m: torch.from_numpy(m).to_sparse_coo(),
    "torch CSR": lambda m: torch.from_numpy(m).to_sparse_csr(),
    "scipy CSR": sp.csr_matrix,
    "scipy COO array": sp.coo_array,
    "scipy CSC": sp.csc_matrix,
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("matrix", "side", "sense"), [("A", "b", "<="), ("C", "d", ">="), ("E", "f", "==")])
def test_every_form_of_a_matrix_is_read_alike(form, matrix, side, sense):
    given = FORMS[form](MATRIX)
    cons = Constraints(**{matrix: given, side: [1.0, 2.0]})
    scale = 2.0 if form == "numpy int" else 1.0
    np.testing.assert_allclose(cons.matrix.to_dense(), scale * MATRIX)
    assert cons.senses == (sense, sense)
    assert cons.names == (f"{matrix}[0]", f"{matrix}[1]")
    assert len(cons) == 2
    assert cons.num_variables == 3


def test_input_is_copied():
    matrix, side = np.ones((1, 2)), np.ones(1)
    tensor = torch.ones(1, 2)
    first, second = Constraints(A=matrix, b=side), Constraints(A=tensor, b=side)
    matrix[:], side[:], tensor[:] = 5.0, 7.0, 9.0
    for cons in (first, second):
        np.testing.assert_array_equal(cons.matrix.to_dense(), [[1.0, 1.0]])
        np.testing.assert_array_equal(cons.rhs, [1.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"A": [[1, 2], [3]], "b": 1}, "A is not a regular array.*Fix"),
        ({"A": [["one"]], "b": 1}, "A is a list of texts; expected real numbers"),
        ({"A": np.array([[1j]]), "b": 1}, "A has dtype complex128"),
        ({"A": torch.ones(1, 1, dtype=torch.complex64), "b": 1}, "A has dtype torch.complex64"),
        ({"A": [[None, 1]], "b": 1}, "A is a list; expected real numbers.* Fix: an array of floats"),
        ({"A": sp.csr_matrix(np.array([[1j]])), "b": 1}, "A has dtype complex128"),
        ({"A": [1.0, 2.0], "b": 1}, r"A has shape \(2,\).*Fix: for a single row write A\[None, :\]"),
        ({"A": np.ones((3, 1, 2)), "b": np.ones((2, 1))}, r"batch dimensions.*A \(3,\), b \(2,\)"),
        ({"A": np.ones((2, 0)), "b": 1}, "at least one variable"),
        ({"A": [[1, float("nan")]], "b": 1}, r"A\[0, 1\] is nan; expected a finite number"),
        ({"C": [[1, 2], [float("inf"), 1]], "d": 1}, r"C\[1, 0\] is inf"),
        ({"E": sp.csr_matrix([[0.0, np.nan]]), "f": 1}, r"E\[0, 1\] is nan"),
        ({"A": [[1, 2]], "b": [1, 2]}, r"b has shape \(2,\) but A has 1 row;"),
        ({"A": [[1, 2]], "b": [float("nan")]}, r"b\[0\] is nan"),
        ({"A": [[1, 2]], "b": np.ones((4, 3, 2))}, "b has shape"),
        ({"A": [[1, 2]], "b": ["x"]}, "b is a list of texts; expected real numbers"),
        ({"A": [[1, 2]]}, "A was given without b"),
        ({"d": [1]}, "d was given without C"),
        ({"A": [[1, 2]], "b": 1, "E": [[1, 2, 3]], "f": 1}, "A has 2, E has 3"),
        ({"A": [[1, 2]], "b": 1, "upper": [1, 2, 3]}, "A has 2, upper has 3"),
        ({"lower": 2.0}, r"lower = 2.0 is above upper = 1.0"),
        ({"lower": [0.0, 0.5], "upper": [1.0, 0.25]}, r"lower\[1\] = 0.5 is above upper\[1\] = 0.25"),
        ({"upper": -float("inf")}, "upper is -inf; expected a finite number, or inf for no upper bound"),
        ({"lower": [0.0, float("inf")]}, r"lower\[1\] is inf.*Fix: lower=-inf"),
        ({"lower": float("nan")}, "lower is nan.*Fix: find out where it comes from"),
        ({"upper": None}, "upper is None; expected numbers. Fix: leave upper out, or upper=inf"),
        ({"lower": np.zeros((2, 3)), "upper": np.ones((4, 3))}, "do not broadcast"),
        ({"E": [[0, 0]], "f": 1}, r"E\[0\] has no non-zero coefficient but f\[0\] = 1.0"),
        (
            {"A": [[1, 0], [0, 0]], "b": [1, -5]},
            r"A\[1\] has no non-zero coefficient but b\[1\] = -5.0, and 0 <= -5 cannot",
        ),
        ({"A": [[1, 2]], "b": np.ones((2, 1)), "E": [[1, 1]], "f": np.ones((3, 1))}, "batch dimensions"),
        ({"A": [[1, 2]], "b": 1, "names": ["a", "b"]}, "names has length 2, and the set 1 row"),
        ({"A": [[1, 2]], "b": 1, "names": "a"}, "names is 'a'; expected a list of strings. Fix: one name per row"),
        ({"A": [[1, 2]], "b": 1, "names": [3]}, r"names is \[3\]; expected a list of strings"),
        ({"A": [[1, 2]], "b": torch.ones(1).to_sparse()}, "b is sparse"),
        ({"upper": torch.ones(2).to_sparse()}, "upper is sparse"),
    ],
)
def test_malformed_input_is_named(arguments, message):
    with pytest.raises(ConstraintError, match=message):
        Constraints(**arguments)


@pytest.mark.parametrize(
    ("index", "message"),
    [(2, "index asks for row 2 of a set of 2 rows.*from 0 to 1"), ("a", "index is 'a'"), (None, "index is None")],
)
def test_a_row_in_words_is_one_that_there_is(index, message):
    cons = Constraints(A=np.eye(2), b=[1.0, 0.5])
    with pytest.raises(ConstraintError, match=message):
        cons.row_text(index)
    assert cons.row_text(-1) == cons.row_text(1) == "x[1] <= 0.5"


def test_pythons_own_errors_name_the_public_class():
    for name in dir(Constraints):
        function = getattr(Constraints, name)
        if not name.startswith("_") and hasattr(function, "__qualname__"):
            assert function.__qualname__ == f"Constraints.{name}"


def test_empty_rows_with_zero_right_side_are_harmless():
    cons = Constraints(A=[[0, 0], [1, 1]], b=[0, 1])
    x = linsat.project(np.array([3.0, 2.0]), cons)
    assert x.sum() <= 1 + 1e-9


def test_violation_against_numpy():
    rng = np.random.default_rng(0)
    A, C, E = rng.normal(size=(2, 5)), rng.normal(size=(3, 5)), rng.normal(size=(1, 5))
    b, d, f = rng.normal(size=2), rng.normal(size=3), rng.normal(size=1)
    cons = Constraints(A=A, b=b, C=C, d=d, E=E, f=f, lower=-1.0, upper=2.0)
    points = rng.normal(size=(4, 3, 5)) * 2
    rows = np.concatenate([points @ A.T - b, d - points @ C.T, np.abs(points @ E.T - f)], axis=-1).clip(0)
    sizes = np.abs(points) @ np.abs(np.concatenate([A, C, E])).T  # a violation is relative to its row at the point
    box = (np.maximum(-1.0 - points, points - 2.0).clip(0) / np.maximum(1.0, np.abs(points))).max(-1)
    np.testing.assert_allclose(cons.row_violation(points), rows)
    np.testing.assert_allclose(cons.violation(points), np.maximum((rows / np.maximum(1.0, sizes)).max(-1), box))
    np.testing.assert_allclose(cons.violation(torch.from_numpy(points)), cons.violation(points))
    with pytest.raises(ConstraintError, match=r"x has shape \(4,\)"):
        cons.violation(np.zeros(4))


def test_violation_of_learned_sets_and_per_instance_sides():
    cons = Constraints(A=[[1.0, 1.0]], b=torch.tensor([[1.0], [3.0]], requires_grad=True))
    np.testing.assert_allclose(cons.violation(np.array([0.75, 1.0])), [0.75 / 1.75, 0.0])
    assert cons.batch_shape == (2,)


class TestNewSets:
    def test_right_sides_and_bounds_are_replaced(self):
        cons = Constraints(A=[[1, 1]], b=1, E=[[1, -1]], f=0, names=["cap", "equal"])
        other = cons.with_rhs(b=[[0.5], [1.5]])
        assert other.batch_shape == (2,)
        assert other.names == ("cap", "equal")
        np.testing.assert_array_equal(other.rhs, [[0.5, 0.0], [1.5, 0.0]])
        boxed = cons.with_bounds(upper=[[0.1, 0.2], [0.3, 0.4], [1, 1]])
        assert boxed.batch_shape == (3,)
        np.testing.assert_array_equal(cons.rhs, [1.0, 0.0])
        with pytest.raises(ConstraintError, match="d was given but the set has no C rows"):
            cons.with_rhs(d=1.0)
        with pytest.raises(ConstraintError, match="lower.*is above"):
            cons.with_bounds(lower=2.0)

    def test_joining(self):
        left = Constraints(A=[[1.0, 0.0]], b=[0.4], upper=0.8)
        right = Constraints(A=[[0.0, 1.0]], b=[0.3], E=[[1.0, 1.0]], f=[0.6], lower=0.1, names=["second", "sum"])
        both = left & right
        assert both.names == ("A[0]", "second", "sum")
        np.testing.assert_array_equal(both.matrix.to_dense(), [[1, 0], [0, 1], [1, 1]])
        np.testing.assert_array_equal(both.rhs, [0.4, 0.3, 0.6])
        assert (float(both.lower), float(both.upper)) == (0.1, 0.8)
        x = linsat.project(np.array([5.0, 1.0]), both)
        assert both.violation(x) <= 1e-9
        with pytest.raises(ConstraintError, match="Cannot join sets over 2 and 3 variables"):
            left & linsat.constraints.simplex(3)
        with pytest.raises(TypeError):
            left & 3

    def test_joined_sets_take_learned_right_sides_afterwards(self):
        both = Constraints(A=[[1.0, 0.0]], b=[1.0]) & Constraints(A=[[0.0, 1.0]], b=[0.3])
        b = torch.tensor([[0.4, 0.3], [0.7, 0.3]], requires_grad=True)
        linsat.project(torch.ones(2, 2), both.with_rhs(b=b)).sum().backward()
        assert (b.grad > 0).all()

    def test_joining_learned_sets_is_refused(self):
        learned = Constraints(A=[[1.0, 0.0]], b=torch.nn.Parameter(torch.tensor([0.4])))
        with pytest.raises(ConstraintError, match="left set has learned numbers .b.*Fix: join first"):
            learned & Constraints(A=[[0.0, 1.0]], b=[0.3])


def test_repr_can_be_read():
    cons = Constraints(A=[[1, -2.5, 0]], b=1, E=[[1, 1, 1]], f=2, names=["cap", "total"])
    assert repr(cons) == (
        "Constraints(3 variables in [0, 1], 2 rows: 1 <=, 1 ==)\n"
        "  cap: x[0] - 2.5 x[1] <= 1\n"
        "  total: x[0] + x[1] + x[2] == 2"
    )
    assert repr(Constraints()) == "Constraints(any number of variables in [0, 1], 0 rows: none)"
    labelled = Constraints(A=[[3, 1]], b=10, variables=["tea", "milk"])
    assert repr(labelled).splitlines() == [
        "Constraints(2 variables in [0, 1], 1 row: 1 <=)",
        "  A[0]: 3 tea + milk <= 10",
    ]
    long = repr(linsat.constraints.doubly_stochastic(20))
    assert len(long.splitlines()) == 6
    assert "..." in long
    assert "(varies)" in repr(Constraints(upper=[1.0, 2.0]))
    assert "(one of 2 right-hand sides)" in repr(cons.with_rhs(b=[[1], [2]]))


@pytest.mark.parametrize("kind", ["dense", "sparse", "one number for all", "per instance"])
def test_what_a_set_hands_out_does_not_change_it(kind):
    """Everything written to after a first projection; the point and its violation are then as a fresh set has them."""

    def stated():
        rows = sp.csr_array(MATRIX) if kind == "sparse" else MATRIX
        b = {"one number for all": 0.9, "per instance": [[0.9, 0.9], [0.5, 0.6]]}.get(kind, [0.9, 0.9])
        cons = Constraints(A=rows, b=b, E=[[1.0, 1.0, 1.0]], f=[1.2], lower=[0.0, 0.1, 0.0], upper=1.0)
        return cons.soften("A[1]", price=3.0)

    cons, fresh, y = stated(), stated(), torch.tensor([0.3, 1.0, -0.2], dtype=torch.float64)
    x = linsat.project(y, cons)
    given = [cons.lower, cons.upper, cons.rhs, cons.price, cons.matrix.values(), cons.soft]
    given += [*cons.right_sides.values(), *cons.coefficients.values()]
    numbers, stated_numbers = values_on(cons), cons.statement()
    given += [numbers.values, numbers.side, numbers.lower, numbers.upper, numbers.price]
    for tensor in given:
        tensor.fill_(0.5)
    for name in ("row", "col", "senses", "values", "rhs", "lower", "upper", "price"):
        getattr(stated_numbers, name)[...] = 0
    for point in (x, torch.full((3,), 0.7, dtype=torch.float64)):
        assert torch.equal(cons.violation(point), fresh.violation(point))
        assert torch.equal(cons.row_violation(point), fresh.row_violation(point))
    for derived in (cons, cons.with_rhs(f=1.2)):
        assert torch.equal(linsat.project(y, derived), linsat.project(y, fresh))
    assert repr(cons) == repr(fresh)


def test_learned_numbers_that_a_set_hands_out_are_the_users_own():
    upper, b = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))
    cons = Constraints(A=MATRIX, b=b, upper=upper)
    assert cons.upper is upper
    assert cons.right_sides["b"].data_ptr() == b.data_ptr()
    assert cons._learned_tensors() == {"b": b, "upper": upper}


def test_check_returns_the_set():
    cons = linsat.constraints.simplex(3)
    assert cons.check() is cons
    assert Constraints().check() is not None


def test_compiled_once(monkeypatch):
    import linsat.plan as module

    calls = []
    original = module.propagate
    monkeypatch.setattr(module, "propagate", lambda *a: calls.append(1) or original(*a))
    cons = linsat.constraints.doubly_stochastic(3)
    for _ in range(3):
        linsat.project(torch.rand(2, 9), cons)
    assert len(calls) == 1


def test_the_core_needs_no_extra():
    import subprocess
    import sys

    script = "import sys, linsat; sys.exit(any(m in sys.modules for m in ('pandas', 'matplotlib', 'cvxpy')))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
