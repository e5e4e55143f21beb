"""Ready-made constraint sets: one function per family, each returning `Constraints` in the box [0, 1].

Families over a matrix call it X: scores are (..., n1, n2), or flat, row by row, and x comes back in the same shape. For
right-hand sides that differ between instances, or are learned, see `Constraints.with_rhs`; it knows rows by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp

from linsat._optional import is_tensor
from linsat.constraints.arrays import Array, read_constant
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Layout, NamedArray
from linsat.errors import ConstraintError


def simplex(n: int, total: float = 1.0) -> Constraints:
    """``sum(x) == total``; n variables.

    Args:
        n: number of variables.
        total: their sum, from 0 to n; since no entry exceeds 1, a total above 1 gives the capped simplex.

    >>> simplex(3).row_text(0)
    'x[0] + x[1] + x[2] == 1'
    """
    n = whole("n", n, 1)
    total = number("total", total, 0, n, f"a sum of {n} entries in [0, 1] lies in that range")
    return Constraints(E=np.ones((1, n)), f=total, names=["total of the entries"])


def top_k(n: int, k: int, *, exactly: bool = True) -> Constraints:
    """``sum(x) == k``, or ``sum(x) <= k``; n variables, of which a small tau picks k.

    Args:
        n: number of variables.
        k: how many of them, from 0 to n.
        exactly: whether exactly k (``==``) or at most k (``<=``).

    >>> top_k(3, 2, exactly=False).row_text(0)
    'x[0] + x[1] + x[2] <= 2'
    """
    n = whole("n", n, 1)
    k = whole("k", k, 0, n)
    if exactly:
        return Constraints(E=np.ones((1, n)), f=k, names=["number chosen"])
    return Constraints(A=np.ones((1, n)), b=k, names=["number chosen"])


def budget(costs: Any, at_most: float) -> Constraints:
    """``costs . x <= at_most``; one variable per cost.

    Args:
        costs: (variables,) numbers of any sign.
        at_most: the budget; at least what the cheapest point of the box costs.

    >>> budget([2.0, 3.0], 4.0).row_text(0)
    '2 x[0] + 3 x[1] <= 4'
    """
    weights = vector("costs", costs, None)
    if not weights.any():
        reject("costs", "all zero", "at least one non-zero cost", "leave the budget out")
    at_most = number("at_most", at_most, -np.inf, np.inf, "any number is a budget")
    least = float(np.minimum(weights, 0.0).sum())
    if exceeds(least, at_most):
        reject("at_most", at_most, f"at least {least:g}, the cost of the cheapest point", "raise it")
    return Constraints(A=weights[None, :], b=at_most, names=["budget"])


def doubly_stochastic(n: int) -> Constraints:
    """Every row and every column of an (n, n) matrix sums to 1; n * n variables.

    Args:
        n: number of rows, and of columns.

    >>> doubly_stochastic(2).names
    ('row sum[0]', 'row sum[1]', 'column sum[0]', 'column sum[1]')
    """
    n = whole("n", n, 1)
    names = _indexed("row sum", n) + _indexed("column sum", n)
    return Constraints(E=_row_and_column_sums(n, n), f=1.0, names=names, variables=_matrix(n, n))


def permutation(n: int) -> Constraints:
    """The rows of `doubly_stochastic`, whose corners are the permutation matrices; n * n variables.

    A small tau gives permutations; a larger one gives blends of them.

    Args:
        n: number of things that are permuted.

    >>> permutation(3).names == doubly_stochastic(3).names
    True
    """
    return doubly_stochastic(n)


def matching(n1: int, n2: int, *, at_most: float | None = None) -> Constraints:
    """Every row and every column of an (n1, n2) matrix sums to at most 1; n1 * n2 variables.

    Args:
        n1, n2: number of nodes on each side.
        at_most: optional bound on the sum of all entries, the number of matched pairs.

    >>> matching(2, 3, at_most=1).names[-1]
    'number of pairs'
    """
    n1, n2 = whole("n1", n1, 1), whole("n2", n2, 1)
    rows = _row_and_column_sums(n1, n2)
    names = _indexed("row sum", n1) + _indexed("column sum", n2)
    if at_most is None:
        return Constraints(A=rows, b=1.0, names=names, variables=_matrix(n1, n2))
    at_most = number("at_most", at_most, 0, np.inf, "entries in [0, 1] cannot sum to less than 0")
    names.append("number of pairs")
    sides = np.append(np.ones(n1 + n2), at_most)
    A = _stacked(rows, np.ones((1, n1 * n2)))
    return Constraints(A=A, b=sides, names=names, variables=_matrix(n1, n2))


def capacity_assignment(items: int, bins: int, capacity: Any, *, sizes: Any = None) -> Constraints:
    """Every item is in exactly one bin, no bin exceeds its capacity; X[item, bin], items * bins variables.

    Args:
        items, bins: how many of each.
        capacity: what a bin holds, one number or one per bin.
        sizes: what an item takes up, one number per item; default 1 each.

    >>> capacity_assignment(2, 2, [1, 3], sizes=[1, 2]).row_text(1)
    'X[0, 1] + 2 X[1, 1] <= 3'
    """
    items, bins = whole("items", items, 1), whole("bins", bins, 1)
    room = vector("capacity", capacity, bins, low=0.0)
    size = np.ones(items) if sizes is None else vector("sizes", sizes, items, low=0.0)
    if not size.any():
        reject("sizes", "all zero", "at least one item that takes up room", "use simplex rows only")
    if exceeds(size.sum(), room.sum()):
        needed = f"at least {size.sum():g}, the size of all items"
        reject("capacity", f"{room.sum():g} in total", needed, "raise it")
    variables = np.arange(items * bins, dtype=np.int32).reshape(items, bins)
    held = _sums(variables.T, values=np.tile(size, (bins, 1)))  # row j: sum over items i of size_i X[i, j]
    placed = _sums(variables)
    names = _indexed("capacity", bins) + _indexed("item in one bin", items)
    return Constraints(A=held, b=room, E=placed, f=1.0, names=names, variables=_matrix(items, bins))


def ranking(
    n: int,
    *,
    groups: Sequence[Hashable] | None = None,
    at_least: Mapping[Hashable, float] | None = None,
    exposure: Any = None,
) -> Constraints:
    """Every item has one position, every position one item; X[item, position], n * n variables.

    Args:
        n: number of items, and of positions.
        groups: one label per item, for shares of exposure between groups.
        at_least: label -> smallest share, in [0, 1], of all exposure that the group receives: ``exposure[p]
            X[i, p]`` summed over its items i and all p is at least ``share * sum(exposure)``.
        exposure: how much attention each position gets; default ``1 / log2(2 + position)``, as in DCG.

    >>> ranking(4, groups="abab", at_least={"b": 0.4}).names[0]
    'exposure[b]'
    """
    n = whole("n", n, 1)
    rows = _row_and_column_sums(n, n)
    names = _indexed("item in one position", n) + _indexed("position with one item", n)
    if groups is None and at_least is None and exposure is None:
        return Constraints(E=rows, f=1.0, names=names, variables=_matrix(n, n))
    if groups is None or at_least is None:
        missing = "groups" if groups is None else "at_least"
        reject(missing, "missing", "groups and at_least together", f"pass {missing}, or leave out all three")
    default = 1.0 / np.log2(2.0 + np.arange(n))
    weight = default if exposure is None else vector("exposure", exposure, n, low=0.0)
    members = _group_members(groups, at_least, n)
    shares = _shares(at_least, members, weight)
    quotas = _stacked(*(sp.kron(member[None, :], weight[None, :]) for member in members.values()))
    names = [f"exposure[{label}]" for label in members] + names
    sides = np.array(shares) * weight.sum()
    return Constraints(C=quotas, d=sides, E=rows, f=1.0, names=names, variables=_matrix(n, n))


def tour(n: int, start: Any, end: Any, *, priority: Any = None, within: int | None = None) -> Constraints:
    """A path through n cities with given ends; X[city, step], n * n variables, steps from 0 to n - 1.

    Every city is visited once, every step visits one city, ``X[start, 0] == 1``, ``X[end, n - 1] == 1`` and,
    with a priority city, ``X[priority, 0] + ... + X[priority, within] == 1``: it is visited within that many
    steps of the start. These are the TSP-SE and TSP-PRI rows of section 4 of the paper, counted from 0.

    Args:
        n: number of cities, and of steps.
        start, end, priority: cities from 0 to n - 1, all different. Any of them may be (batch,) for instances
            that differ; then bounds (batch, n * n) replace the last three rows and fix all they decide.
        within: last step at which the priority city may be visited, from 1 to n - 1.

    >>> tour(4, 0, 3, priority=2, within=1).names[-1]
    'city 2 is visited within 1 steps of the start'
    """
    n = whole("n", n, 2)
    cities, within = _tour_cities(n, start, end, priority, within)
    rows = _row_and_column_sums(n, n)
    names = _indexed("city visited once", n) + _indexed("step visits one city", n)
    if cities["start"].ndim == 1:
        lower, upper = _tour_bounds(n, cities, within)
        return Constraints(E=rows, f=1.0, lower=lower, upper=upper, names=names, variables=_matrix(n, n))
    X = np.arange(n * n).reshape(n, n)
    supports = [X[cities["start"], :1], X[cities["end"], n - 1 :]]
    names += [f"the tour starts in city {cities['start']}", f"the tour ends in city {cities['end']}"]
    if within is not None:
        supports.append(X[cities["priority"], : within + 1])
        names.append(f"city {cities['priority']} is visited within {within} steps of the start")
    picked = [_indicator(support, n * n) for support in supports]
    return Constraints(E=_stacked(rows, *picked), f=1.0, names=names, variables=_matrix(n, n))


def portfolio(n: int, preferred: Sequence[int], at_least: float) -> Constraints:
    """Weights sum to 1, and those of the preferred assets to at least ``at_least``; n variables.

    Args:
        n: number of assets.
        preferred: their indices, from 0 to n - 1, each once.
        at_least: the smallest share of the preferred assets together, from 0 to 1.

    >>> portfolio(3, [0, 2], 0.5).row_text(0)
    'x[0] + x[2] >= 0.5'
    """
    n = whole("n", n, 1)
    chosen = np.atleast_1d(whole_array("preferred", preferred, 0, n - 1))
    repeated = [int(i) for i in np.unique(chosen) if (chosen == i).sum() > 1]
    if repeated:
        reject("preferred", f"listing {repeated[0]} twice", "every asset once", "remove the repetition")
    at_least = number("at_least", at_least, 0, 1, "it is a share of weights that sum to 1")
    names = ["share of the preferred assets", "weights sum to 1"]
    return Constraints(C=_indicator(chosen, n), d=at_least, E=np.ones((1, n)), f=1.0, names=names)


# ------------------------------------------------------------------ rows


def _matrix(n1: int, n2: int) -> Layout:
    return Layout((NamedArray("X", (n1, n2), (None, None)),))


def _indexed(name: str, count: int) -> list[str]:
    return [f"{name}[{i}]" for i in range(count)]


def _sums(*members: Array, values: Array | None = None) -> sp.csr_array:
    """One row for each line of ``members``, the variables that it sums (with these coefficients), block by block."""
    columns = np.concatenate([block.ravel() for block in members])
    lengths = np.concatenate([np.full(*block.shape) for block in members])
    entries = np.ones(len(columns)) if values is None else values.ravel()
    return sp.csr_array((entries, columns, np.append(0, np.cumsum(lengths))), shape=(len(lengths), members[0].size))


def _row_and_column_sums(n1: int, n2: int) -> sp.csr_array:
    """Sums over the rows, then over the columns, of a flattened (n1, n2) matrix: (n1 + n2, n1 * n2)."""
    variables = np.arange(n1 * n2, dtype=np.int32).reshape(n1, n2)
    return _sums(variables, variables.T)


def _stacked(*blocks: Any) -> sp.coo_array:
    return sp.coo_array(sp.vstack(blocks))


def _indicator(support: Array, width: int) -> sp.coo_array:
    """One row with coefficient 1 at ``support``."""
    return sp.coo_array((np.ones(len(support)), (np.zeros(len(support), dtype=int), support)), shape=(1, width))


def _tour_bounds(n: int, cities: dict[str, Array], within: int | None) -> tuple[Array, Array]:
    """Every entry that the ends and the priority decide, fixed per instance: two arrays (batch, n * n)."""
    each = np.arange(len(cities["start"]))
    lower, upper = np.zeros((len(each), n, n)), np.ones((len(each), n, n))
    for city, step in ((cities["start"], 0), (cities["end"], n - 1)):
        upper[each, city, :] = 0.0
        upper[:, :, step] = 0.0
    for city, step in ((cities["start"], 0), (cities["end"], n - 1)):
        lower[each, city, step] = upper[each, city, step] = 1.0
    if within is not None:
        upper[each, cities["priority"], within + 1 :] = 0.0
    return lower.reshape(-1, n * n), upper.reshape(-1, n * n)


def _group_members(groups: Any, at_least: Any, n: int) -> dict[Hashable, Array]:
    """For each group with a share, the (n,) indicator of its items."""
    if not isinstance(groups, Sequence) and getattr(groups, "ndim", 0) != 1:
        reject("groups", repr(groups), "one label per item", "pass a list of labels")
    labels = groups.tolist() if not isinstance(groups, Sequence) else list(groups)
    if len(labels) != n:
        reject("groups", f"{len(labels)} labels long", f"{n} labels, one per item", "label every item")
    if not isinstance(at_least, Mapping) or not at_least:
        reject("at_least", repr(at_least), "a mapping from label to share", "at_least={'a': 0.4}")
    for label in at_least:
        if label not in labels:
            reject("at_least", f"about group {label!r}", "labels that occur in groups", "remove or rename it")
    return {label: np.array([float(other == label) for other in labels]) for label in at_least}


def _shares(at_least: Mapping[Hashable, float], members: dict[Hashable, Array], weight: Array) -> list[float]:
    """The share of each group, checked against the best positions the group could get."""
    if not weight.any():
        reject("exposure", "all zero", "at least one position with exposure", "give the first position 1.0")
    shares, best_first = [], -np.sort(-weight)
    for label, member in members.items():
        name = f"at_least[{label!r}]"
        share = number(name, at_least[label], 0, 1, "it is a share of the exposure of all positions")
        reach = best_first[: int(member.sum())].sum() / weight.sum()
        if exceeds(share, reach):
            reject(name, share, f"at most {reach:.6g}, which the best positions give", "lower it")
        shares.append(share)
    if exceeds(sum(shares), 1.0):
        reject("at_least", f"{sum(shares):g} in total", "shares that sum to at most 1", "lower them")
    return shares


def _tour_cities(n: int, start: Any, end: Any, priority: Any, within: Any) -> tuple[dict[str, Array], int | None]:
    """The cities that the tour names, all one integer or all (batch,), and the last step for the priority."""
    if (priority is None) != (within is None):
        missing, given = ("within", "priority") if within is None else ("priority", "within")
        reject(missing, "missing", f"{missing}, because {given} was given", "pass both or neither")
    named = {"start": start, "end": end}
    if priority is not None:
        named["priority"] = priority
        within = whole("within", within, 1, n - 1)
    cities = {name: whole_array(name, city, 0, n - 1) for name, city in named.items()}
    return _different_cities(cities), within


def _different_cities(cities: dict[str, Array]) -> dict[str, Array]:
    """The cities broadcast to one batch, checked to differ from each other."""
    lengths = {name: len(city) for name, city in cities.items() if city.ndim}
    if len(set(lengths.values())) > 1:
        listed = " and ".join(f"{name} of {length}" for name, length in lengths.items())
        reject("The batch", listed, "equally many instances", "give each one city per instance, or one for all")
    wide = dict(zip(cities, np.broadcast_arrays(*cities.values()), strict=True))
    for first, second in (("start", "end"), ("priority", "start"), ("priority", "end")):
        same = np.flatnonzero(wide[first] == wide[second]) if first in wide else np.array([])
        if same.size:
            city = int(np.atleast_1d(wide[first])[same[0]])
            where = f" in instance {same[0]}" if lengths else ""
            reject(first, f"city {city}, as is {second}{where}", "different cities", f"change {first} or {second}")
    return wide


def reject(argument: str, came: object, expected: str, fix: str) -> NoReturn:
    raise ConstraintError(f"{argument} is {came}; expected {expected}. Fix: {fix}.")


def exceeds(value: float, limit: float) -> bool:
    """Above the limit by more than the rounding of a sum: ten times 0.1 must not exceed 1."""
    return value > limit + 1e-9 * max(1.0, abs(limit))


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """One integer from low to high."""
    array = whole_array(name, value, low, high)
    if array.ndim:
        reject(name, f"of shape {array.shape}", "one integer", f"pass a plain int as {name}")
    return int(array)


def whole_array(name: str, value: Any, low: int, high: int | None) -> Array:
    """One integer from low to high, or a flat sequence of them."""
    expected = f"integers of at least {low}" if high is None else f"integers from {low} to {high}"
    try:
        array = np.asarray(value.cpu() if is_tensor(value) else value)
    except ValueError:
        reject(name, repr(value), expected, "pass one integer or a flat sequence of them")
    if not array.ndim:
        expected = expected.replace("integers", "an integer")
    if array.size == 0 or array.ndim > 1:
        reject(name, f"of shape {array.shape}", expected, "pass one integer or a flat sequence of them")
    if array.dtype.kind not in "iu":
        mask = " (a mask: numpy.flatnonzero)" if array.dtype == bool and array.ndim else ""
        reject(name, repr(value), expected, f"convert it to int{mask}")
    outside = np.flatnonzero((array < low) | (array > (np.inf if high is None else high)))
    if outside.size:
        where = f"[{outside[0]}]" if array.ndim else ""
        reject(name + where, int(array.reshape(-1)[outside[0]]), expected, f"choose {name} in that range")
    return array.astype(np.int64)


def number(name: str, value: Any, low: float, high: float, why: str) -> float:
    """One finite number in [low, high]."""
    array = read_constant(value, name)
    expected = f"at least {low:g}" if high == np.inf else f"a number from {low:g} to {high:g}"
    if array.ndim > 0:
        reject(name, f"of shape {array.shape}", "one number", "for one per instance use Constraints.with_rhs")
    if not low <= array <= high:
        reject(name, float(array), expected, f"choose {name} in that range, because {why}")
    return float(array)


def vector(name: str, value: Any, length: int | None, *, low: float = -np.inf) -> Array:
    """(length,) finite numbers of at least ``low``; one number stands for all where the length is known."""
    array = read_constant(value, name)
    if array.ndim == 0 and length is not None:
        array = np.full(length, float(array))
    if array.ndim != 1 or array.size == 0 or (length is not None and len(array) != length):
        reject(name, f"of shape {array.shape}", f"shape ({'n' if length is None else length},)", "one number each")
    if (array < low).any():
        at = int(np.flatnonzero(array < low)[0])
        reject(f"{name}[{at}]", f"{array[at]:g}", f"at least {low:g}", "raise it")
    return array
