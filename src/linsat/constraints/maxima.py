"""Formulas that are convex but not linear: `maximum`, `minimum`, `norm`, ``abs(e)``, ``e.max()``, ``e.min()``.

All of them are maxima of affine pieces: |e| = max(e, -e), min(a, b) = -max(-a, -b), ||x||_inf = max_j |x_j|, and
||x||_1 is a sum of such. An array of maxima stands in an expression like a variable that nobody sees, so that scaling,
sums, indexing and the like need no further rules; `subject_to` replaces it by what it stands for. Rows with maxima are
convex where every coefficient of a maximum pushes the same way as the row: positive in ``<=``, negative in ``>=``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from linsat.constraints.arrays import Array
from linsat.constraints.expressions import Expression, as_expression, common_shape, reduced_axes
from linsat.constraints.layout import Shape
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    from linsat.constraints.variables import Variable

_MOST_PIECES = 64  # of one argument that is itself made of maxima


@dataclass(frozen=True, eq=False)
class Maxima:
    """An array of maxima, each over some pieces: ``sign`` times one of the affine ``bases``."""

    name: str  # the function that made it, for messages
    bases: Expression  # (B,) without maxima
    names: tuple[str, ...]  # (B,) of the bases, empty where they have none
    base: Array  # (P,) of each piece, in the order of the maxima
    sign: Array  # (P,) 1.0 or -1.0
    of: Array  # (P,) the maximum to which it belongs
    size: int

    def expression(self, shape: Shape) -> Expression:
        """The maxima as an array of a shape."""
        own: dict[Variable | Maxima, sp.csr_array] = {self: sp.csr_array(sp.eye(self.size))}
        return Expression(shape, own, np.zeros(self.size))


class _Pieces(NamedTuple):
    """The pieces of each entry of an expression that is convex: an affine one has itself alone."""

    bases: Expression
    names: tuple[str, ...]
    base: Array
    sign: Array
    entry: Array


def maximum(*arguments: Any) -> Expression:
    """The largest of several expressions or constants, entry by entry; shapes broadcast as in numpy.

    For rows such as ``linsat.maximum(x - c, 0).sum() <= d``. The set must be convex: a maximum may stand, times a
    positive number, on the smaller side of ``<=`` or ``>=``; anything else is a `ConstraintError` that says why. Cost:
    ``maximum(a, b) <= c`` is two plain rows an entry; sums take a few solves instead of one.

    >>> from linsat import Variable
    >>> x = Variable(3, name="x")
    >>> maximum(x - 0.5, 0.0).sum().shape
    ()
    """
    return _maximum("maximum", _read(arguments, "maximum"))


def minimum(*arguments: Any) -> Expression:
    """The smallest of several expressions or constants, entry by entry, for rows such as ``minimum(a, b) >= d``.

    The set must be convex: a minimum may stand, times a positive number, on the larger side of ``<=`` or ``>=``.
    """
    return -_maximum("minimum", _read(arguments, "minimum"), -1.0)


def norm(x: Any, ord: Any = 1, *, axis: Any = None, keepdims: bool = False) -> Expression:
    """The norm of an array of expressions, for rows such as ``linsat.norm(w - held, 1) <= 0.2``.

    Args:
        x: an expression, of any shape.
        ord: 1 for the sum of absolute values, ``"inf"`` (or ``math.inf``) for the largest of them.
        axis: which axes are summed over; default all of them.
        keepdims: whether these axes stay, with one entry each.
    """
    expression = as_expression(x)
    if ord == 1 and not isinstance(ord, bool):
        return abs(expression).sum(axis, keepdims=keepdims)
    if ord in ("inf", math.inf):
        return abs(expression).max(axis, keepdims=keepdims)
    raise ConstraintError(
        f"ord is {ord!r}; expected 1 or 'inf', whose balls have flat sides. Fix: linsat.norm(x, 1), or "
        f"linsat.norm(x, 'inf')."
    )


def absolute(expression: Expression) -> Expression:
    """``abs(e)``; ``e`` has no maxima."""
    if maxima_of(expression):
        raise ConstraintError(
            f"abs(...) of {_called(expression)} is not convex. Fix: leave abs out where what it is taken of is "
            f"positive; else a maximum of all pieces, linsat.maximum(a, b, ...)."
        )
    flat, count = expression.flatten(), expression.size
    entry = np.repeat(np.arange(count), 2)
    sign = np.tile([1.0, -1.0], count)
    made = Maxima("abs", flat, _names(expression), entry, sign, entry, count).expression(expression.shape)
    made.labels = expression.labels
    return made


def largest(expression: Expression, axis: Any, sign: float, keepdims: bool) -> Expression:
    """``e.max(axis)`` for sign 1, ``-e.min(axis)`` for -1."""
    pieces = _pieces(expression, sign, "max" if sign > 0 else "min")
    shape, target, labels = reduced_axes(expression, axis, keepdims)
    of = target[pieces.entry]
    order = np.argsort(of, kind="stable")
    size = int(np.prod(shape))
    parts = (pieces.base[order], pieces.sign[order], of[order])
    made = Maxima("max" if sign > 0 else "min", pieces.bases, pieces.names, *parts, size).expression(shape)
    made.labels = labels
    return made


def maxima_of(expression: Expression) -> list[Maxima]:
    """The maxima in an expression."""
    return [key for key in expression.terms if isinstance(key, Maxima)]


def check_convex(difference: Expression, sense: str) -> None:
    """Reject a relation ``difference sense 0`` that is not convex, saying why and what to write."""
    for maxima in maxima_of(difference):
        weight = difference.terms[maxima].data
        if sense == "<=":
            wrong = bool((weight < 0).any())
        elif sense == ">=":
            wrong = bool((weight > 0).any())
        else:
            wrong = bool((weight != 0).any())
        if wrong:
            raise ConstraintError(_not_convex(maxima.name, sense))


def variables_of(expression: Expression) -> list[Variable]:
    """The variables in an expression, also those inside its maxima."""
    variables: dict[Any, None] = {}
    for key in expression.terms:
        variables |= dict.fromkeys(key.bases.terms) if isinstance(key, Maxima) else {key: None}
    return list(variables)


_FIXES = {
    "abs": ("abs(e) >= r holds on two sides of a gap", "e >= r or e <= -r, whichever side is meant"),
    "norm": ("norm(x) >= r holds outside of a ball", "a linear row that cuts off the part that is meant"),
    "maximum": ("maximum(a, b) >= c holds where either does", "a >= c or b >= c, whichever is meant"),
    "max": ("e.max() >= c holds where any entry is large", "a row for the entry that is meant, e[0] >= c"),
    "minimum": ("minimum(a, b) <= c holds where either does", "a <= c or b <= c, whichever is meant"),
    "min": ("e.min() <= c holds where any entry is small", "a row for the entry that is meant, e[0] <= c"),
}


def _not_convex(name: str, sense: str) -> str:
    why, fix = _FIXES[name]
    if sense == "==":
        way = ">=" if name in ("minimum", "min") else "<="
        why = f"an equality with {name}(...) holds on the corners between its pieces only"
        fix = f"{way}, if that is what is meant, or a linear row for each piece"
    return (
        f"{name}(...) stands on the wrong side of {sense}: {why}, which is not convex, so that there need not be one "
        f"best point. Fix: {fix}."
    )


# ------------------------------------------------------------------ pieces


def _read(arguments: Sequence[Any], name: str) -> list[Expression]:
    if len(arguments) < 2:
        raise ConstraintError(
            f"{name} got {len(arguments)} argument; expected two or more. Fix: {name}(a, b), or "
            f"e.{'max' if name == 'maximum' else 'min'}() for the entries of one expression."
        )
    return [as_expression(argument) for argument in arguments]


def _maximum(name: str, arguments: Sequence[Expression], sign: float = 1.0) -> Expression:
    """max over the arguments, each times ``sign``."""
    shape: Shape = ()
    for argument in arguments:
        shape = common_shape(shape, argument.shape)
    spread = [argument if argument.shape == shape else argument._broadcast(shape) for argument in arguments]
    parts = [_pieces(argument, sign, name) for argument in spread]
    starts = np.cumsum([0, *(part.bases.size for part in parts)])
    base = np.concatenate([part.base + start for part, start in zip(parts, starts, strict=False)])
    signs, entry = (np.concatenate([part[i] for part in parts]) for i in (3, 4))
    order = np.argsort(entry, kind="stable")
    names = tuple(itertools.chain.from_iterable(part.names for part in parts))
    bases = _stacked([part.bases for part in parts])
    size = int(np.prod(shape))
    made = Maxima(name, bases, names, base[order], signs[order], entry[order], size).expression(shape)
    made.labels = next((a.labels for a in spread if any(a.labels)), spread[0].labels)
    return made


def _names(expression: Expression) -> tuple[str, ...]:
    return expression.names or ("",) * expression.size


def _pieces(expression: Expression, sign: float, name: str) -> _Pieces:
    """The pieces of ``sign`` times an expression, which must be convex."""
    count = expression.size
    maxima = maxima_of(expression)
    if not maxima:
        entry = np.arange(count)
        return _Pieces(expression.flatten(), _names(expression), entry, np.full(count, sign), entry)
    affine = Expression(
        (count,), {k: rows for k, rows in expression.terms.items() if k not in maxima}, expression.constant
    )
    weights = sp.csr_array(sign * sp.hstack([expression.terms[m] for m in maxima]))
    weights.eliminate_zeros()
    if (weights.data < 0).any():
        inner = _called(expression)
        raise ConstraintError(
            f"{name}(...) of {'minus ' if sign > 0 else ''}{inner} is not convex. Fix: keep to maxima of maxima and "
            f"minima of minima; or a further Variable in its place."
        )
    # Every choice of one piece of each maximum of an entry is a piece of the entry.
    starts = np.cumsum([count, *(m.bases.size for m in maxima)])
    offsets = np.cumsum([0, *(m.size for m in maxima)])
    options: list[list[tuple[int, float]]] = [[] for _ in range(offsets[-1])]
    for m, start, offset in zip(maxima, starts, offsets, strict=False):
        for base, own, of in zip(m.base.tolist(), m.sign.tolist(), m.of.tolist(), strict=True):
            options[offset + of].append((start + base, own))
    names = ("",) * count + tuple(itertools.chain.from_iterable(m.names for m in maxima))
    plain = _stacked([affine, *(m.bases for m in maxima)])
    nothing = _is_zero(affine)
    rows: list[list[tuple[int, float]]] = []
    kept, signs, entries = [], [], []
    for i in range(count):
        here = slice(weights.indptr[i], weights.indptr[i + 1])
        chosen = list(zip(weights.indices[here].tolist(), weights.data[here].tolist(), strict=True))
        if math.prod(len(options[j]) for j, _ in chosen) > _MOST_PIECES:
            raise ConstraintError(
                f"{name}(...) of a sum of {len(chosen)} maxima has too many pieces. Fix: a further Variable t in place "
                f"of the sum, with the row sum <= t, and {name}(t, ...)."
            )
        for combination in itertools.product(*(options[j] for j, _ in chosen)):
            parts = [(base, weight * own) for (base, own), (_, weight) in zip(combination, chosen, strict=True)]
            if nothing[i] and len(parts) == 1 and abs(parts[0][1]) == 1:
                kept.append(-1 - parts[0][0])  # a base as it is, so that its name keeps its meaning
                signs.append(parts[0][1])
            else:
                kept.append(len(rows))
                signs.append(1.0)
                rows.append([(i, sign), *parts])
            entries.append(i)
    position = [np.repeat(np.arange(len(rows)), [len(row) for row in rows]).astype(np.int64)]
    column = np.array([c for row in rows for c, _ in row], dtype=np.int64)
    value = np.array([v for row in rows for _, v in row])
    mix = sp.csr_array((value, (position[0], column)), shape=(len(rows), plain.size))
    mixed = plain._mapped((len(rows),), lambda block: mix @ block)
    index = np.array([-1 - k if k < 0 else plain.size + k for k in kept], dtype=np.int64)
    used, base = np.unique(index, return_inverse=True)
    both = _stacked([plain, mixed])
    names += ("",) * len(rows)
    chosen_bases = both._mapped((len(used),), lambda block: block[used])
    return _Pieces(chosen_bases, tuple(names[i] for i in used), base, np.array(signs), np.array(entries))


def _is_zero(expression: Expression) -> Array:
    """(size,) entries without a coefficient and without a constant."""
    zero = expression.constant == 0
    for rows in expression.terms.values():
        zero = zero & (np.asarray(abs(rows).sum(1)).reshape(-1) == 0)
    return zero


def _stacked(parts: Sequence[Expression]) -> Expression:
    """Flat expressions one after the other."""
    keys = dict.fromkeys(key for part in parts for key in part.terms)
    terms = {
        key: sp.csr_array(sp.vstack([part.terms.get(key, sp.csr_array((part.size, key.size))) for part in parts]))
        for key in keys
    }
    size = sum(part.size for part in parts)
    return Expression((size,), terms, np.concatenate([part.constant for part in parts]))


def _called(expression: Expression) -> str:
    return " and ".join(dict.fromkeys(f"{maxima.name}(...)" for maxima in maxima_of(expression)))
