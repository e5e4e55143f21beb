"""The modelling front against numpy: the same formula on arrays of numbers, and matrices written by hand."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linsat.constraints import Constraints, modelling
from linsat.constraints.modelling import Variable, norm, subject_to
from linsat.errors import ConstraintError


def dense(cons: Constraints) -> np.ndarray:
    return cons.matrix.to_dense().numpy()


def value_at(formula: Callable[..., Any], *points: np.ndarray) -> np.ndarray:
    """What the rows built from ``formula`` say at a point, to compare with ``formula(*points)`` in numpy."""
    variables = [Variable(*point.shape, name=name) for point, name in zip(points, "XYZ", strict=False)]
    expression = formula(*variables)
    # A private extra variable per entry keeps rows in which all others cancel.
    extra = Variable(*expression.shape, name="extra")
    cons = subject_to(expression + extra <= 0, variables=[*variables, extra])
    stacked = np.concatenate([*(point.reshape(-1) for point in points), np.zeros(expression.size)])
    return (dense(cons) @ stacked - cons.rhs.numpy()).reshape(expression.shape)


RNG = np.random.default_rng(7)
A23, V3, S43 = RNG.normal(size=(2, 3)), RNG.normal(size=3), RNG.normal(size=(4, 3))
MASK = np.array([[True, False, True, False], [False, False, True, True], [True, True, False, False]])

FORMULAS: dict[str, Callable[[Any], Any]] = {
    "entry": lambda X: X[0, 3],
    "negative index": lambda X: X[-1, -2],
    "row": lambda X: X[1],
    "slice": lambda X: X[1:, ::2],
    "reversed": lambda X: X[::-1],
    "ellipsis and new axis": lambda X: X[..., None, 0],
    "fancy": lambda X: X[[2, 0, 0], [1, 3, 1]],
    "fancy rows": lambda X: X[np.array([2, 0])],
    "boolean": lambda X: X[MASK],
    "boolean rows": lambda X: X[np.array([True, False, True])],
    "sum": lambda X: X.sum(),
    "sum 0": lambda X: X.sum(0),
    "sum 0, kept": lambda X: X.sum(0, keepdims=True),
    "all summed, kept": lambda X: np.sum(X, keepdims=True),
    "less its mean": lambda X: X - X.mean(1, keepdims=True),
    "sum -1": lambda X: X.sum(axis=-1),
    "sum of both": lambda X: X.sum((0, 1)),
    "sum of no axis": lambda X: X.sum(()),
    "transpose": lambda X: X.T,
    "reshape": lambda X: X.reshape(2, -1),
    "reshape by tuple": lambda X: X.reshape((6, 2)),
    "flatten": lambda X: X.flatten(),
    "scalar arithmetic": lambda X: 2 * X[0] - X[1] / 4 + 1,
    "array arithmetic": lambda X: np.arange(12.0).reshape(3, 4) * X + np.ones(4),
    "broadcast up": lambda X: X[0] + X,
    "broadcast constant up": lambda X: X[0] * np.ones((2, 4)),
    "outer difference": lambda X: X[:, None, 0] - X[None, :, 1],
    "right subtraction": lambda X: 1 - X,
    "array minus": lambda X: np.ones((3, 4)) - X,
    "minus": lambda X: -X,
    "list constant": lambda X: X[0] * [1, 2, 3, 4],
    "divide by array": lambda X: X / np.array([1.0, 2.0, 4.0, 8.0]),
    "matrix @": lambda X: A23 @ X,
    "vector @": lambda X: V3 @ X,
    "@ matrix": lambda X: X @ S43,
    "@ vector": lambda X: X @ np.arange(4.0),
    "matrix @ vector": lambda X: A23 @ X[:, 2],
    "vector @ matrix": lambda X: X[:, 1] @ A23.T,
    "vector @ vector": lambda X: X[0] @ S43[:, 0],
    "constant part through @": lambda X: A23 @ (X + 3.0) - 1.0,
    "cancelling": lambda X: X - X + 2.0,
    "python sum": lambda X: sum(X),
    "numpy scalar": lambda X: np.float64(3.0) * X,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formula_equals_numpy(name: str) -> None:
    point = np.random.default_rng(0).normal(size=(3, 4))
    expected = FORMULAS[name](point)
    actual = value_at(FORMULAS[name], point)
    assert actual.shape == np.shape(expected)
    np.testing.assert_allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize(
    "convert",
    [torch.from_numpy, lambda a: torch.from_numpy(a).to_sparse(), sp.csr_array, sp.csc_matrix, sp.coo_array],
)
def test_other_libraries_on_either_side(convert: Callable[[Any], Any]) -> None:
    point = np.random.default_rng(1).normal(size=(3, 4))
    np.testing.assert_allclose(value_at(lambda X: convert(A23) @ X, point), A23 @ point)
    np.testing.assert_allclose(value_at(lambda X: X @ convert(S43), point), point @ S43)
    np.testing.assert_allclose(value_at(lambda X: X[:2, :3] * convert(A23), point), point[:2, :3] * A23)


def test_torch_and_numpy_on_the_left_of_every_operator() -> None:
    X, ones = Variable(3, name="X"), torch.ones(3)
    point = np.array([0.1, 0.2, 0.3])
    np.testing.assert_allclose(value_at(lambda X: ones * X + (ones - X) * 2 + (ones + X), point), 3.0 - 0 * point)
    for left in (ones, np.ones(3)):
        assert (left <= X).sense == ">="
        assert (left >= X).sense == "<="
        assert (left == X).sense == "=="


def test_index_by_tensor() -> None:
    point = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(value_at(lambda X: X[torch.tensor([2, 0])], point), point[[2, 0]])


# ------------------------------------------------------------------ random formulas


STEPS = [
    "scale",
    "array",
    "add",
    "variable",
    "negate",
    "divide",
    "from",
    "T",
    "flat",
    "sum",
    "index",
    "fancy",
    "mask",
    "axis",
    "left",
    "right",
]


def apply_step(step: str, e: Any, Y: Any, rng: np.random.Generator) -> Any:
    """One random operation; equal generator states choose the same for a formula and for its numbers."""
    shape = e.shape
    changes: dict[str, Callable[[], Any]] = {
        "scale": lambda: rng.normal() * e,
        "array": lambda: e * rng.normal(size=(2, *shape) if rng.random() < 0.3 else shape),
        "add": lambda: e + rng.normal(size=shape),
        "variable": lambda: e + Y[rng.integers(3)],
        "negate": lambda: -e,
        "divide": lambda: e / (1.0 + rng.random(size=shape)),
        "from": lambda: rng.normal(size=shape) - e,
        "T": lambda: e.T,
        "flat": lambda: e.flatten(),
    }
    if shape and len(shape) <= 3:
        changes |= {
            "sum": lambda: e.sum(int(rng.integers(-len(shape), len(shape)))),
            "index": lambda: e[int(rng.integers(shape[0]))],
            "fancy": lambda: e[rng.integers(shape[0], size=3)],
            "mask": lambda: e[np.arange(shape[0]) != 1] if shape[0] > 1 else e,
            "axis": lambda: e[..., None],
        }
    if len(shape) in (1, 2):
        changes |= {
            "left": lambda: rng.normal(size=(2, shape[0])) @ e,
            "right": lambda: e @ rng.normal(size=shape[-1]),
        }
    return changes[step]() if step in changes else e


@settings(max_examples=150, deadline=None)
@given(names=st.lists(st.sampled_from(STEPS), min_size=1, max_size=8), seed=st.integers(0, 2**31))
def test_random_formula_equals_numpy(names: list[str], seed: int) -> None:
    def formula(X: Any, Y: Any) -> Any:
        rng, e = np.random.default_rng(seed), X
        for name in names:
            e = apply_step(name, e, Y, rng)
        return e

    rng = np.random.default_rng(seed + 1)
    x, y = rng.normal(size=(3, 4)), rng.normal(size=3)
    expected = np.asarray(formula(x, y))
    actual = value_at(formula, x, y)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------ constraint sets


def test_rows_senses_and_right_sides_written_by_hand() -> None:
    X = Variable(2, 2, name="X")
    cons = subject_to(X.sum(0) == 1, X.sum(1) <= [1, 2], 2 * X[0, 1] + X[1, 0] + 1 >= 1.5)
    expected = [[1, 1, 0, 0], [0, 0, 1, 1], [0, 2, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1]]
    np.testing.assert_array_equal(dense(cons), expected)
    assert cons.senses == ("<=", "<=", ">=", "==", "==")
    np.testing.assert_array_equal(cons.rhs.numpy(), [1, 2, 0.5, 1, 1])
    np.testing.assert_array_equal(cons.lower.numpy(), np.zeros(4))
    np.testing.assert_array_equal(cons.upper.numpy(), np.ones(4))


def test_expressions_on_both_sides() -> None:
    X, Y = Variable(2, name="X"), Variable(name="Y")
    cons = subject_to(X + 1 <= 3 * Y)
    np.testing.assert_array_equal(dense(cons), [[1, 0, -3], [0, 1, -3]])
    np.testing.assert_array_equal(cons.rhs.numpy(), [-1, -1])


def test_violation_is_that_of_the_formula() -> None:
    X = Variable(3, 3, name="X")
    cons = subject_to(X.sum(0) == 1, X.sum(1) <= 1, X[0] - X[1] >= 0)
    for point in np.random.default_rng(3).random((50, 3, 3)):
        gaps = [
            *np.abs(point.sum(0) - 1),
            *np.maximum(point.sum(1) - 1, 0),
            *np.maximum(point[1] - point[0], 0),
        ]
        sizes = [*point.sum(0), *point.sum(1), *(point[0] + point[1])]
        relative = np.array(gaps) / np.maximum(1.0, sizes)
        assert cons.violation(point.reshape(-1)) == pytest.approx(relative.max())


def test_variables_stack_in_order_of_first_appearance_or_as_given() -> None:
    X, Y = Variable(2, name="X"), Variable(name="Y")
    np.testing.assert_array_equal(dense(subject_to(2 * Y - X[1] <= 0, X[0] <= 1)), [[2, 0, -1], [0, 1, 0]])
    np.testing.assert_array_equal(
        dense(subject_to(2 * Y - X[1] <= 0, X[0] <= 1, variables=[X, Y])), [[0, -1, 2], [1, 0, 0]]
    )
    unused = Variable(3, name="unused")
    assert subject_to(X <= 1, variables=[unused, X]).num_variables == 5


def test_bounds_per_variable_and_default() -> None:
    X = Variable(2, 2, lower=[0.1, 0.2], name="X")
    Y = Variable(3, upper=5, name="Y")
    cons = subject_to(X.sum() + Y.sum() <= 3, lower=-1, upper=2)
    np.testing.assert_array_equal(cons.lower.numpy(), [0.1, 0.2, 0.1, 0.2, -1, -1, -1])
    np.testing.assert_array_equal(cons.upper.numpy(), [2, 2, 2, 2, 5, 5, 5])


def test_box_without_rows() -> None:
    cons = subject_to(variables=[Variable(3, upper=2.0)])
    assert len(cons) == 0
    assert cons.num_variables == 3
    np.testing.assert_array_equal(cons.violation(np.array([0.0, 2.0, 2.5])), 0.5 / 2.5)


def test_true_constant_rows_are_dropped() -> None:
    X = Variable(3, name="X")
    upper_triangle = np.triu(np.ones((3, 3)), 1)  # last row is zero
    cons = subject_to(upper_triangle @ X <= 1, X - X == 0, X[:0].sum() >= -1)
    np.testing.assert_array_equal(dense(cons), [[0, 1, 1], [0, 0, 1]])
    assert len(cons.names) == 2


def test_expressions_are_not_changed_by_building_a_set() -> None:
    X = Variable(3, name="X")
    scaled = X * [1.0, 0.0, 2.0]
    for _ in range(2):
        cons = subject_to(scaled[[0, 2]] <= 1, scaled + X <= 4)
        np.testing.assert_array_equal(dense(cons), [[1, 0, 0], [0, 0, 2], [2, 0, 0], [0, 1, 0], [0, 0, 3]])


def test_a_changed_input_array_does_not_reach_the_set() -> None:
    x, side = Variable(2, name="x"), np.ones(2)
    relation = x <= side
    side[:] = 7
    np.testing.assert_array_equal(subject_to(relation).rhs.numpy(), [1, 1])


# ------------------------------------------------------------------ names


def test_default_names_read_like_the_formula() -> None:
    X, y = Variable(9, 2, name="X"), Variable(name="y")
    cons = subject_to(X.sum(0) == 1, 2 * X[0, 1] - X[1, 0] + y >= 0.5, -X[0, 0] - 0.5 * y >= -3)
    assert cons.names == (
        "2 X[0, 1] - X[1, 0] + y >= 0.5",
        "-X[0, 0] - 0.5 y >= -3",
        "X[0, 0] + X[1, 0] + ... + X[8, 0] == 1",
        "X[0, 1] + X[1, 1] + ... + X[8, 1] == 1",
    )


def test_given_names() -> None:
    X = Variable(2, 2, name="X")
    cons = subject_to((X.sum(0) == 1).named("column"), (X.sum() <= 2).named("total"), (X >= 0.1).named("floor"))
    assert cons.names == (
        "total",
        "floor[0, 0]",
        "floor[0, 1]",
        "floor[1, 0]",
        "floor[1, 1]",
        "column[0]",
        "column[1]",
    )


def test_variables_are_dictionary_keys_by_identity() -> None:
    X, Y = Variable(2, name="X"), Variable(2, name="X")
    table = {X: "first", Y: "second"}
    assert table[X] == "first"
    assert table[Y] == "second"
    assert repr(X) == "Variable(2, name='X')"
    assert repr(X + Y) == "Expression(shape (2,) in X, X)"


# ------------------------------------------------------------------ wrong input

x33, y3 = Variable(3, 3, name="X"), Variable(3, name="Y")

WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: x33 * x33, r"product of two expressions is not linear"),
    (lambda: x33 @ y3, r"product of two expressions"),
    (lambda: x33 / y3, r"quotient"),
    (lambda: 1 / x33, r"Division by an expression"),
    (lambda: np.ones(3) / x33, r"Division by an expression"),
    (lambda: x33**2, r"power"),
    (lambda: x33 / 0, r"divisor is \(or contains\) 0"),
    (lambda: x33 / [1, 0, 1], r"divisor"),
    (lambda: x33 < 1, r"use <=, >= or =="),
    (lambda: x33 > 1, r"use <=, >= or =="),
    (lambda: np.ones(3) > x33, r"use <=, >= or =="),
    (lambda: x33 != 1, r"use <=, >= or =="),
    (lambda: 0 <= x33 <= 1, r"chained comparison"),
    (lambda: bool(x33 == 1), r"neither true nor false"),
    (lambda: x33 in [y3[:, None] + x33], r"neither true nor false"),
    (lambda: x33 <= float("nan"), r"constant is nan"),
    (lambda: x33 <= [1.0, np.inf, 1.0], r"constant is inf at index 1"),
    (lambda: x33 * np.nan, r"factor is nan"),
    (lambda: np.full((2, 3), np.nan) @ x33, r"matrix is nan"),
    (lambda: sp.csr_array(np.full((2, 3), np.nan)) @ x33, r"matrix is nan"),
    (lambda: x33 == "one", r"type str"),
    (lambda: x33 <= None, r"type NoneType"),
    (lambda: x33 - [x33, 1], r"type list"),
    (lambda: x33 + (y3 <= 1), r"type Relation"),
    (lambda: x33 - [[1], [1, 2]], r"not a regular array"),
    (lambda: x33 * 1j, r"type complex"),
    (lambda: x33 * np.array([1j, 1, 1]), r"dtype complex128"),
    (lambda: x33 * torch.tensor(1j), r"dtype complex64"),
    (lambda: x33 <= torch.ones(3, requires_grad=True), r"requires gradients"),
    (lambda: x33 + np.ones(4), r"Shapes \(3, 3\) and \(4,\) do not broadcast"),
    (lambda: x33 * np.ones(4), r"do not broadcast"),
    (lambda: x33 @ np.ones(4), r"\(4,\) @ \(3, 3\) do not fit"),
    (lambda: np.ones((3, 4)) @ x33, r"\(3, 4\) @ \(3, 3\) do not fit"),
    (lambda: x33 @ 2.0, r"scalar factor uses \*"),
    (lambda: x33[None] @ np.ones(3), r"do not fit"),
    (lambda: x33[3], r"index 3 does not fit shape \(3, 3\)"),
    (lambda: x33[0, 0, 0], r"does not fit shape"),
    (lambda: x33[0.5], r"does not fit shape"),
    (lambda: x33[np.array([True, False])], r"does not fit shape"),
    (lambda: x33.sum(2), r"axis = 2 does not fit"),
    (lambda: x33.sum((0, 0)), r"axis = \(0, 0\)"),
    (lambda: x33.reshape(4, 2), r"reshape\(4, 2\) does not fit"),
    (lambda: list(x33[0, 0]), r"no entries to iterate"),
    (lambda: x33[:0] <= 1, r"shape \(0, 3\) has no rows"),
    (lambda: (x33 <= 1).named(""), r"named\(\) got ''"),
    (lambda: (x33 <= 1).named(3), r"named\(\) got 3"),
    (lambda: Variable(0), r"shape contains 0"),
    (lambda: Variable(2.0), r"shape contains 2.0"),
    (lambda: Variable((2, 3)), r"shape contains \(2, 3\)"),
    (lambda: Variable(True), r"shape contains True"),
    (lambda: Variable(2, name=""), r"name is ''"),
    (lambda: Variable(2, name="x", lower=[0, 1, 2]), r"lower of x has shape \(3,\)"),
    (lambda: Variable(2, name="x", upper=-np.inf), r"upper of x is -inf"),
    (lambda: Variable(2, name="x", lower=np.nan), r"lower of x is nan"),
    (lambda: Variable(2, name="x", lower=[0, 1], upper=[1, 0]), r"lower = 1 is above upper = 0 at x\[1\]"),
    (lambda: Variable("x"), r"shape contains 'x'.*name='x'"),
    (lambda: np.linalg.norm(x33), r"np.linalg.norm does not take expressions"),
    (lambda: subject_to(), r"no relation"),
    (lambda: subject_to(subject_to(x33 <= 1)), r"got a Constraints; expected a relation.* cons & linsat.subject_to"),
    (lambda: subject_to(x33 <= 1).with_bounds(upper=np.ones((3, 2))), r"upper has shape \(3, 2\).*3, 3\) like X"),
    (lambda: subject_to(x33 <= 1).soften(subject_to(x33 <= 1)), r"rows holds a Constraints; expected positions"),
    (lambda: subject_to(1 <= 2), r"contains no Variable"),
    (lambda: subject_to([x33 <= 1]), r"unpack"),
    (lambda: subject_to(x33), r"expected a relation"),
    (lambda: subject_to(x33 - x33 >= 1), r"A row without variables is false: 0 >= 1"),
    (lambda: subject_to((0 * x33 == 1).named("zero")), r"zero\[0, 0\]: 0 == 1"),
    (lambda: subject_to(x33[:0].sum() <= -2), r"0 <= -2"),
    (lambda: subject_to(x33 <= 1, variables=[y3]), r"leaves out X"),
    (lambda: subject_to(x33 <= 1, variables=[x33, x33]), r"contains X twice"),
    (lambda: subject_to(x33 <= 1, variables=x33), r"expected a list of Variable. Fix: variables=\[X\]"),
    (lambda: subject_to(x33 <= 1, variables=[x33, x33[0]]), r"expected a list of Variable"),
    (lambda: subject_to(x33 <= 1, variables=[]), r"expected a list of Variable"),
    (lambda: subject_to(x33 <= 1, lower=[0, 0, 0]), r"lower has shape \(3,\)"),
    (lambda: subject_to(x33 <= 1, upper=np.nan), r"upper is nan"),
    (lambda: subject_to(y3.sum() + Variable(2, 2, name="Z", lower=3).sum() <= 1), r"upper = 1 at Z\[0, 0\]"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_wrong_input_is_named_with_a_fix(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as caught:
        call()
    assert "Fix: " in str(caught.value)


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(modelling).failed == 0


def test_numpy_operators_and_functions_on_expressions():
    """numpy on the left, arrays and scalars of it, and np.abs: what the operators of Python give."""
    w, a = Variable(3, name="w"), np.array([1.0, -2.0, 3.0])
    pairs = [
        (a * w <= 1, w * a <= 1),
        (a + w <= 1, w + a <= 1),
        (a - w <= 1, -w + a <= 1),
        (np.float64(2.0) * w <= 1, 2.0 * w <= 1),
        (a @ w <= 1, w @ a <= 1),
        (a <= w, w >= a),
        (a >= w, w <= a),
        (np.negative(w) <= 1, -w <= 1),
        (np.abs(w - 0.5) <= 1, abs(w - 0.5) <= 1),
    ]
    point = np.array([0.2, 0.9, 0.4])
    for by_numpy, by_python in pairs:
        theirs, ours = subject_to(by_numpy, variables=[w]), subject_to(by_python, variables=[w])
        assert theirs.senses == ours.senses
        np.testing.assert_array_equal(theirs.row_violation(3 * point), ours.row_violation(3 * point))
    np.testing.assert_allclose(subject_to(a * w <= 1).row_violation(point), np.maximum(a * point - 1, 0))
    np.testing.assert_allclose(subject_to(a @ w <= 1).row_violation(point), np.maximum([a @ point - 1], 0))


def test_axes_of_maxima_and_of_torch_are_kept():
    X, point = Variable(3, 4, name="X", lower=-9, upper=9), RNG.normal(size=(3, 4))
    assert torch.sum(X, dim=0, keepdim=True).shape == X.mean(dim=0, keepdim=True).shape == (1, 4)
    cons = subject_to(
        X.max(1, keepdims=True) <= 0.2, X.min(0, keepdims=True) >= -0.1, norm(X, axis=1, keepdims=True) <= 1
    )
    expected = [*(point.max(1) - 0.2), *(abs(point).sum(1) - 1), *(-0.1 - point.min(0))]
    np.testing.assert_allclose(cons.row_violation(point), np.maximum(expected, 0), atol=1e-12)
