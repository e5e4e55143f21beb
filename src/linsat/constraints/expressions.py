"""Affine expressions over variables: sparse rows over each variable's flattened entries, plus a constant.

Every operation is one of four: pick entries (indexing, reshaping, broadcasting), scale them, apply a matrix
(sums and ``@``), or add two expressions. Shapes follow numpy throughout. What is convex but not affine (`abs`, `max`,
`linsat.constraints.maxima`) stands in an expression like a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import scipy.sparse as sp

from linsat._optional import is_tensor
from linsat.constraints.arrays import Array, read_constant
from linsat.constraints.layout import Labels, Shape, index_text, labels_at, numbered_index
from linsat.constraints.rounded import rounding_of
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    from linsat.constraints.maxima import Maxima
    from linsat.constraints.variables import Variable

# Functions of numpy and torch, by name, that are methods here; operators also as what they are from the other side.
_NAMES = ("sum", "mean", "cumsum", "diff", "abs", "max", "min", "maximum", "minimum")
_METHODS = {name: name for name in _NAMES[:-2]} | {"amax": "max", "amin": "min"}
_METHODS |= dict.fromkeys(("absolute", "fabs"), "abs") | dict.fromkeys(("negative", "neg"), "__neg__")
_OPERATORS = {
    "add": ("__add__", "__radd__"),
    **dict.fromkeys(("subtract", "sub"), ("__sub__", "__rsub__")),
    **dict.fromkeys(("multiply", "mul"), ("__mul__", "__rmul__")),
    **dict.fromkeys(("divide", "true_divide", "div"), ("__truediv__", "__rtruediv__")),
    **dict.fromkeys(("matmul", "dot"), ("__matmul__", "__rmatmul__")),
    **dict.fromkeys(("less_equal", "le"), ("__le__", "__ge__")),
    **dict.fromkeys(("greater_equal", "ge"), ("__ge__", "__le__")),
    **dict.fromkeys(("equal", "eq"), ("__eq__", "__eq__")),
    **dict.fromkeys(("less", "lt", "greater", "gt", "not_equal", "ne"), ("__ne__", "__ne__")),
}


class Expression:
    """An array of affine expressions, ``sum over variables (rows @ variable.flatten()) + constant``.

    Supports ``+ -`` with expressions and constants, ``* / @`` with constants, indexing, ``.sum``, ``.mean``,
    ``.cumsum``, ``.diff`` (with ``axis=`` or ``dim=``; also as ``np.sum(X)`` and so on), ``.T``, ``.reshape`` and
    ``.flatten``; ``abs(...)``, ``.max`` and ``.min``, `linsat.maximum`, `linsat.minimum` and `linsat.norm` where the
    rows stay convex; comparing with ``<=``, ``>=`` or ``==`` gives a `Relation`.
    """

    def __init__(
        self,
        shape: Shape,
        terms: dict[Variable, sp.csr_array] | dict[Variable | Maxima, sp.csr_array],
        constant: Array,
        labels: Labels | None = None,
    ) -> None:
        self.shape = shape
        self.terms: dict[Any, sp.csr_array] = dict(terms)  # variable -> (size, variable.size)
        self.constant = constant  # (size,)
        self.labels = (None,) * len(shape) if labels is None else labels  # of the axes that have some
        self.names: tuple[str, ...] | None = None  # one per entry, of an expression inside abs or a maximum

    def __array_function__(self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``np.sum(X, axis=0)`` is ``X.sum(axis=0)``, for the functions of numpy that keep rows convex."""
        return _applied(function.__module__.replace("numpy", "np", 1), function.__name__, args, kwargs)

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """``np.abs(X)`` is ``abs(X)``, and so are operators with an array of numpy on the left."""
        return _applied(
            "np", function.__name__ if method == "__call__" else f"{function.__name__}.{method}", args, kwargs
        )

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """The same of torch."""
        return _applied("torch", function.__name__.strip("_"), args, kwargs or {})

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def _mapped(self, shape: Shape, change: Callable[[Any], Any], labels: Labels | None = None) -> Expression:
        """The expression after a linear ``change`` of its flattened entries."""
        terms = {variable: sp.csr_array(change(rows)) for variable, rows in self.terms.items()}
        return Expression(shape, terms, change(self.constant), labels)

    def _picked(self, choose: Callable[[Array], Any], what: str) -> Expression:
        """The entries that ``choose`` takes from an array of this shape: numpy itself decides which."""
        try:
            chosen = np.asarray(choose(np.arange(self.size).reshape(self.shape)))
        except (IndexError, ValueError, TypeError) as error:
            raise ConstraintError(
                f"{what} does not fit shape {self.shape}: {error}. Fix: write it as for a numpy array."
            ) from None
        entries = chosen.reshape(-1)
        return self._mapped(chosen.shape, lambda rows: rows[entries], labels_at(chosen, self.shape, self.labels))

    # ------------------------------------------------------------------ shape

    def __getitem__(self, key: Any) -> Expression:
        parts = key if isinstance(key, tuple) else (key,)
        plain = tuple(part.cpu().numpy() if is_tensor(part) else part for part in parts)
        numbered = numbered_index(plain, self.labels)
        return self._picked(lambda entries: entries[numbered], f"The index {key!r}")

    def __iter__(self) -> Iterator[Expression]:
        if not self.shape:
            raise ConstraintError("A scalar expression has no entries to iterate over. Fix: use it as it is.")
        return (self[i] for i in range(self.shape[0]))

    @property
    def T(self) -> Expression:
        return self._picked(lambda entries: entries.T, "The transpose")

    def reshape(self, *shape: Any) -> Expression:
        return self._picked(lambda entries: entries.reshape(*shape), f"reshape{shape}")

    def flatten(self) -> Expression:
        return self.reshape(-1)

    def _broadcast(self, shape: Shape) -> Expression:
        if shape == self.shape:
            return self
        return self._picked(lambda entries: np.broadcast_to(entries, shape), "The broadcast")

    def sum(self, axis: Any = None, *, dim: Any = None, keepdims: bool = False, keepdim: bool = False) -> Expression:
        """The sum over all entries, one axis or several, in the words of numpy (``axis``) and of torch (``dim``)."""
        shape, target, labels = reduced_axes(self, _one_axis(axis, dim), keepdims or keepdim)
        matrix = sp.csr_array(
            (np.ones(self.size), (target, np.arange(self.size))), shape=(int(np.prod(shape)), self.size)
        )
        return self._mapped(shape, lambda rows: matrix @ rows, labels)

    def mean(self, axis: Any = None, *, dim: Any = None, keepdims: bool = False, keepdim: bool = False) -> Expression:
        """The mean over all entries, one axis or several."""
        total = self.sum(axis, dim=dim, keepdims=keepdims, keepdim=keepdim)
        return total / (self.size / total.size)

    def cumsum(self, axis: int | None = None, *, dim: int | None = None) -> Expression:
        """Running sums along an axis; without one, over the flattened entries, as in numpy."""
        axis = _one_axis(axis, dim)
        return self.flatten().cumsum(0) if axis is None else self._along(axis, lambda n: np.tril(np.ones((n, n))))

    def diff(self, n: int = 1, axis: int = -1, *, dim: int | None = None) -> Expression:
        """Each entry minus the one before it along an axis, ``n`` times."""
        axis = axis if dim is None else dim
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
            raise ConstraintError(f"n is {n!r}; expected how many times to take differences. Fix: n=1.")
        return self if n == 0 else self._along(axis, lambda length: np.diff(np.eye(length), axis=0)).diff(n - 1, axis)

    def _along(self, axis: int, matrix: Callable[[int], Array]) -> Expression:
        """A matrix, made for the length of an axis, times each line along that axis."""
        moved = self._picked(lambda entries: np.moveaxis(entries, axis, 0), f"axis = {axis!r}")
        factor = matrix(moved.shape[0])
        lines = sp.csr_array(sp.kron(sp.csr_array(factor), sp.eye(moved.size // moved.shape[0])))
        words = moved.labels[0]
        labels = (None if words is None else words[len(words) - len(factor) :], *moved.labels[1:])
        changed = moved._mapped((len(factor), *moved.shape[1:]), lambda rows: lines @ rows, labels)
        return changed._picked(lambda entries: np.moveaxis(entries, 0, axis), f"axis = {axis!r}")

    # ------------------------------------------------------------------ arithmetic

    def __neg__(self) -> Expression:
        return self._mapped(self.shape, lambda rows: -rows, self.labels)

    def __add__(self, other: Any) -> Expression:
        right = as_expression(other)
        shape = common_shape(self.shape, right.shape)
        left, right = self._broadcast(shape), right._broadcast(shape)
        terms = dict(left.terms)
        for variable, rows in right.terms.items():
            terms[variable] = terms[variable] + rows if variable in terms else rows
        labels = tuple(mine or theirs for mine, theirs in zip(left.labels, right.labels, strict=True))
        return Expression(shape, terms, left.constant + right.constant, labels)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Expression:
        return self + (-as_expression(other))

    def __rsub__(self, other: Any) -> Expression:
        return as_expression(other) - self

    def _scaled(self, other: Any, operation: np.ufunc, name: str) -> Expression:
        constant = read_constant(other, name)
        shape = common_shape(self.shape, constant.shape)
        factor = np.broadcast_to(constant, shape).reshape(-1)  # (entries,)

        def change(rows: Any) -> Any:
            if isinstance(rows, np.ndarray):
                return operation(rows, factor)
            data = operation(rows.data, np.repeat(factor, np.diff(rows.indptr)))
            return sp.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)

        spread = self._broadcast(shape)
        return spread._mapped(shape, change, spread.labels)

    def __mul__(self, other: Any) -> Expression:
        if isinstance(other, Expression):
            _refuse_nonlinear("The product of two expressions")
        return self._scaled(other, np.multiply, "The factor")

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Expression:
        if isinstance(other, Expression):
            _refuse_nonlinear("The quotient of two expressions")
        if (read_constant(other, "The divisor") == 0).any():
            raise ConstraintError("The divisor is (or contains) 0. Fix: divide by non-zero constants only.")
        return self._scaled(other, np.divide, "The divisor")

    def __rtruediv__(self, other: Any) -> NoReturn:
        _refuse_nonlinear("Division by an expression")

    def __pow__(self, other: Any) -> NoReturn:
        _refuse_nonlinear("A power of an expression")

    def __abs__(self) -> Expression:
        from linsat.constraints.maxima import absolute

        return absolute(self)

    abs = __abs__

    def max(self, axis: Any = None, *, dim: Any = None, keepdims: bool = False) -> Expression:
        """The largest entry, over all, one axis or several: for rows such as ``w.max() <= u``."""
        from linsat.constraints.maxima import largest

        return largest(self, _one_axis(axis, dim), 1.0, keepdims)

    def min(self, axis: Any = None, *, dim: Any = None, keepdims: bool = False) -> Expression:
        """The smallest entry, over all, one axis or several: for rows such as ``w.min() >= l``."""
        from linsat.constraints.maxima import largest

        return -largest(self, _one_axis(axis, dim), -1.0, keepdims)

    def named(self, name: str) -> Expression:
        """The same expression with a name, for one that stands in `abs`, `linsat.maximum` and the like.

        ``abs((w - w0).named("held")).sum() <= 0.2`` takes another ``w0`` with each call, as a row takes its right-hand
        side: ``rhs={"held": w0}``.
        """
        if not isinstance(name, str) or not name:
            raise ConstraintError(f"named() got {name!r}; expected a non-empty string. Fix: .named('held').")
        made = Expression(self.shape, self.terms, self.constant, self.labels)
        made.names = tuple(name + index_text(place, self.labels) for place in np.ndindex(*self.shape))
        return made

    def __rmatmul__(self, other: Any) -> Expression:
        matrix = _read_factor(other)
        if self.ndim not in (1, 2) or matrix.ndim not in (1, 2) or matrix.shape[-1] != self.shape[0]:
            raise ConstraintError(
                f"Shapes {matrix.shape} @ {self.shape} do not fit; expected vectors or matrices whose inner "
                f"lengths agree. Fix: transpose or reshape one of them (a scalar factor uses *)."
            )
        columns = sp.eye(self.size // self.shape[0])
        rows = sp.kron(matrix if matrix.ndim == 2 else matrix[None, :], columns)  # vec(M X) = (M kron I) vec(X)
        labels = (None,) * (matrix.ndim - 1) + self.labels[1:]
        return self._mapped(matrix.shape[:-1] + self.shape[1:], lambda entries: sp.csr_array(rows) @ entries, labels)

    def __matmul__(self, other: Any) -> Expression:
        return (_read_factor(other).T @ self.T).T  # X M = (M' X')', for vectors too

    # ------------------------------------------------------------------ comparison

    def __le__(self, other: Any) -> Relation:
        return _compare(self, other, "<=")

    def __ge__(self, other: Any) -> Relation:
        return _compare(self, other, ">=")

    def __eq__(self, other: Any) -> Relation:  # type: ignore[override]
        return _compare(self, other, "==")

    def __hash__(self) -> int:
        return id(self)  # == builds a relation, so only identity can tell dictionary keys apart

    def _refuse_comparison(self, other: Any) -> NoReturn:
        raise ConstraintError(
            "<, > and != do not describe a closed set. Fix: use <=, >= or ==; X.max() and X.min() for max(X) and "
            "min(X), which compare with <, and linsat.maximum for the larger of two."
        )

    __lt__ = __gt__ = __ne__ = _refuse_comparison

    def __repr__(self) -> str:
        from linsat.constraints.maxima import variables_of

        return f"Expression(shape {self.shape} in {', '.join(variable.name for variable in variables_of(self))})"


@dataclass(frozen=True, eq=False)
class Relation:
    """``difference (<=, >=, ==) 0``, entry by entry, where the difference is left-hand side minus right-hand side."""

    difference: Expression
    sense: str
    names: tuple[str, ...] | None = None  # one per entry, row by row
    rounding: float = 0.0  # of the right-hand side as given, see `linsat.constraints.rounded`

    def named(self, name: str | Sequence[str]) -> Relation:
        """The same relation with names for its rows.

        Args:
            name: one for all rows; those of an array get an index, as in ``name[1, 2]`` or, along an axis with labels,
                ``name[Ann, 2]``. Or a list with a name for each row.
        """
        difference = self.difference
        if isinstance(name, str) and name:
            places = np.ndindex(*difference.shape)
            return replace(self, names=tuple(name + index_text(place, difference.labels) for place in places))
        listed = list(name) if isinstance(name, Sequence) and not isinstance(name, str) else []
        if len(listed) != difference.size or not all(isinstance(text, str) and text for text in listed):
            raise ConstraintError(
                f"named() got {name!r}; expected a non-empty string, or {difference.size} of them, one per row. "
                f"Fix: .named('budget')."
            )
        return replace(self, names=tuple(listed))

    def __getitem__(self, key: Any) -> NoReturn:
        raise ConstraintError(
            "A relation has no entries to index or iterate over. Fix: index the expressions, X[0] <= 1; an array of "
            "rows is one relation, linsat.subject_to(X <= 1)."
        )

    def __bool__(self) -> NoReturn:
        raise ConstraintError(
            "A relation is neither true nor false. Fix: write a chained comparison (0 <= X <= 1) or an 'and' "
            "as separate relations; to ask whether two variables are the same object use 'is'."
        )

    def __and__(self, other: Any) -> NoReturn:
        raise ConstraintError(
            "Relations are not joined by & or |. Fix: linsat.subject_to(first, second), and "
            "cons & linsat.subject_to(relation) for one that joins a set."
        )

    __or__ = __rand__ = __ror__ = __and__

    def __repr__(self) -> str:
        return f"Relation({self.difference!r} {self.sense} 0)"


def _applied(package: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function of numpy or torch is of these arguments, one of them an expression."""
    from linsat.constraints import maxima

    first = args[0] if args else None
    if name in _METHODS and isinstance(first, Expression):
        return getattr(first, _METHODS[name])(*args[1:], **kwargs)
    if name in _OPERATORS and len(args) == 2 and not kwargs:
        left, right = args
        own, other = _OPERATORS[name]
        return getattr(left, own)(right) if isinstance(left, Expression) else getattr(right, other)(left)
    if name in ("maximum", "minimum"):
        return getattr(maxima, name)(*args, **kwargs)
    if name == "relu":
        return maxima.maximum(first, 0.0)
    raise ConstraintError(
        f"{package}.{name} does not take expressions. Fix: {', '.join(_NAMES)}, indexing, or a product with a "
        f"constant; for balls linsat.norm(x, 1) or linsat.norm(x, 'inf')."
    )


def _one_axis(axis: Any, dim: Any) -> Any:
    if axis is not None and dim is not None:
        raise ConstraintError("axis and dim were both given; they mean the same. Fix: one of them.")
    return axis if dim is None else dim


def reduced_axes(expression: Expression, axis: Any, keepdims: bool) -> tuple[Shape, Array, Labels]:
    """What is left of an expression without some axes: shape, the place of each entry in it, and labels.

    With ``keepdims`` these axes stay, with one entry each.
    """
    try:
        kept = np.zeros(expression.shape).sum(axis=axis, keepdims=True).shape
    except (ValueError, TypeError) as error:
        raise ConstraintError(
            f"axis = {axis!r} does not fit shape {expression.shape}: {error}. Fix: None, an int or a tuple."
        ) from None
    ndim = expression.ndim
    dropped = range(ndim) if axis is None else [a % max(ndim, 1) for a in np.atleast_1d(axis)]
    left = [a for a in range(ndim) if keepdims or a not in dropped]
    places = np.arange(int(np.prod(kept))).reshape(kept)
    target = np.broadcast_to(places, expression.shape).reshape(-1)  # (entries,)
    return tuple(kept[a] for a in left), target, tuple(None if a in dropped else expression.labels[a] for a in left)


def as_expression(value: Any) -> Expression:
    """An expression as it is, a number or array as a constant one."""
    if isinstance(value, Expression):
        return value
    constant = read_constant(value)
    return Expression(constant.shape, {}, constant.reshape(-1))


def common_shape(left: Shape, right: Shape) -> Shape:
    try:
        return np.broadcast_shapes(left, right)
    except ValueError:
        raise ConstraintError(
            f"Shapes {left} and {right} do not broadcast. Fix: index or reshape one side as for numpy arrays."
        ) from None


def _read_factor(value: Any) -> Any:
    """The constant of a matrix product: a numpy array, or a sparse matrix where one was given."""
    if isinstance(value, Expression):
        _refuse_nonlinear("The product of two expressions")
    if sp.issparse(value) and value.ndim == 2:
        matrix = sp.csr_array(value)
        read_constant(matrix.data, "The matrix")
        return matrix
    return read_constant(value, "The matrix")


def _refuse_nonlinear(what: str) -> NoReturn:
    raise ConstraintError(
        f"{what} is not linear. Fix: constraints may use variables only times, or divided by, constants."
    )


def _compare(left: Expression, right: Any, sense: str) -> Relation:
    from linsat.constraints.maxima import check_convex

    difference = left - right
    check_convex(difference, sense)
    if difference.size == 0:
        raise ConstraintError(f"A relation '{sense}' of shape {difference.shape} has no rows. Fix: check the index.")
    return Relation(difference, sense, rounding=0.0 if isinstance(right, Expression) else rounding_of(right))
