"""Ready-made sets against rows written by hand and against brute force over all 0/1 points."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
import torch

from linsat.constraints import Constraints, families
from linsat.constraints.families import (
    budget,
    capacity_assignment,
    doubly_stochastic,
    matching,
    permutation,
    portfolio,
    ranking,
    simplex,
    top_k,
    tour,
)
from linsat.errors import ConstraintError


def binary_points(n: int) -> np.ndarray:
    return np.array(list(product([0.0, 1.0], repeat=n)))


def permutation_matrices(n: int) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """All visiting orders of n cities and their X[city, step], flattened."""
    orders = list(permutations(range(n)))
    points = np.zeros((len(orders), n, n))
    for i, order in enumerate(orders):
        points[i, list(order), range(n)] = 1.0
    return orders, points.reshape(len(orders), n * n)


def assert_rows(cons: Constraints, matrix: Any, senses: str, rhs: Any) -> None:
    np.testing.assert_array_equal(cons.matrix.to_dense().numpy(), matrix)
    assert cons.senses == tuple(senses.split())
    np.testing.assert_array_equal(cons.rhs.numpy(), rhs)
    assert float(cons.lower.min()) == 0.0
    assert float(cons.upper.max()) == 1.0
    assert len(set(cons.names)) == len(cons)


def assert_holds_exactly_where(cons: Constraints, holds: Callable[[np.ndarray], bool]) -> None:
    points = binary_points(int(cons.num_variables or 0))
    expected = np.array([holds(point) for point in points])
    assert expected.any(), "the predicate must accept something"
    np.testing.assert_array_equal(cons.violation(points) == 0, expected)


# ------------------------------------------------------------------ rows written by hand


def test_simplex_rows() -> None:
    assert_rows(simplex(3), [[1, 1, 1]], "==", [1.0])
    assert_rows(simplex(2, total=1.5), [[1, 1]], "==", [1.5])
    assert simplex(2, 1.5).names == ("total of the entries",)


def test_top_k_rows() -> None:
    assert_rows(top_k(3, 2), [[1, 1, 1]], "==", [2.0])
    assert_rows(top_k(3, 2, exactly=False), [[1, 1, 1]], "<=", [2.0])


def test_budget_rows() -> None:
    assert_rows(budget([2.0, -1.0, 0.5], 1.25), [[2, -1, 0.5]], "<=", [1.25])
    assert_rows(budget(torch.tensor([1, 2]), torch.tensor(2)), [[1, 2]], "<=", [2.0])
    assert_rows(budget([-0.1] * 10, -1.0), [[-0.1] * 10], "<=", [-1.0])


@pytest.mark.parametrize("family", [doubly_stochastic, permutation])
def test_doubly_stochastic_rows(family: Callable[[int], Constraints]) -> None:
    matrix = [[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    assert_rows(family(2), matrix, "== == == ==", np.ones(4))
    assert family(2).names[0] == "row sum[0]"
    assert family(2).names[3] == "column sum[1]"


def test_matching_rows() -> None:
    matrix = [
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 1],
        [1, 0, 0, 1, 0, 0],
        [0, 1, 0, 0, 1, 0],
        [0, 0, 1, 0, 0, 1],
    ]
    assert_rows(matching(2, 3), matrix, "<= <= <= <= <=", np.ones(5))
    with_total = [*matrix, [1] * 6]
    assert_rows(matching(2, 3, at_most=1.5), with_total, "<= <= <= <= <= <=", [1, 1, 1, 1, 1, 1.5])


def test_capacity_assignment_rows() -> None:
    matrix = [
        [1, 0, 3, 0],  # bin 0: item 0 of size 1, item 1 of size 3
        [0, 1, 0, 3],
        [1, 1, 0, 0],
        [0, 0, 1, 1],
    ]
    cons = capacity_assignment(2, 2, [2.5, 4.0], sizes=[1, 3])
    assert_rows(cons, matrix, "<= <= == ==", [2.5, 4.0, 1, 1])
    assert cons.names == (
        "capacity[0]",
        "capacity[1]",
        "item in one bin[0]",
        "item in one bin[1]",
    )


def test_ranking_rows() -> None:
    cons = ranking(2, groups=["a", "b"], at_least={"b": 0.4}, exposure=[3.0, 1.0])
    matrix = [[0, 0, 3, 1], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    assert_rows(cons, matrix, ">= == == == ==", [0.4 * 4.0, 1, 1, 1, 1])
    assert cons.names[0] == "exposure[b]"


def test_ranking_without_groups_is_doubly_stochastic() -> None:
    assert_rows(ranking(2), [[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]], "== == == ==", np.ones(4))


def test_ranking_default_exposure_is_the_dcg_discount() -> None:
    cons = ranking(3, groups=np.array([0, 1, 0]), at_least={1: 0.2})
    discount = [1.0, 1.0 / np.log2(3.0), 0.5]
    expected = np.concatenate([np.zeros(3), discount, np.zeros(3)])
    np.testing.assert_allclose(cons.matrix.to_dense().numpy()[0], expected)
    np.testing.assert_allclose(cons.rhs.numpy()[0], 0.2 * sum(discount))


def test_portfolio_rows() -> None:
    cons = portfolio(4, [3, 1], 0.5)
    assert_rows(cons, [[0, 1, 0, 1], [1, 1, 1, 1]], ">= ==", [0.5, 1.0])
    assert cons.names == ("share of the preferred assets", "weights sum to 1")
    assert_rows(portfolio(2, torch.tensor([0]), 0), [[1, 0], [1, 1]], ">= ==", [0.0, 1.0])


def test_tour_rows_are_those_of_the_paper() -> None:
    cons = tour(3, 2, 0, priority=1, within=1)
    matrix = [
        [1, 1, 1, 0, 0, 0, 0, 0, 0],  # cities
        [0, 0, 0, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 1, 1],
        [1, 0, 0, 1, 0, 0, 1, 0, 0],  # steps
        [0, 1, 0, 0, 1, 0, 0, 1, 0],
        [0, 0, 1, 0, 0, 1, 0, 0, 1],
        [0, 0, 0, 0, 0, 0, 1, 0, 0],  # X[start, first step]
        [0, 0, 1, 0, 0, 0, 0, 0, 0],  # X[end, last step]
        [0, 0, 0, 1, 1, 0, 0, 0, 0],  # X[priority, k], k = 1 .. m + 1 in the paper's count
    ]
    assert_rows(cons, matrix, " ".join(["=="] * 9), np.ones(9))
    assert cons.names[1] == "city visited once[1]"
    assert cons.names[4] == "step visits one city[1]"
    assert cons.names[6:] == (
        "the tour starts in city 2",
        "the tour ends in city 0",
        "city 1 is visited within 1 steps of the start",
    )


# ------------------------------------------------------------------ brute force


def test_top_k_and_budget_accept_exactly_the_right_subsets() -> None:
    assert_holds_exactly_where(top_k(6, 2), lambda x: x.sum() == 2)
    assert_holds_exactly_where(top_k(6, 2, exactly=False), lambda x: x.sum() <= 2)
    costs = np.array([3.0, 1.0, -2.0, 4.0, 1.0])
    assert_holds_exactly_where(budget(costs, 3), lambda x: sum(costs[x == 1]) <= 3)


def test_matching_accepts_exactly_the_partial_matchings() -> None:
    def is_matching(x: np.ndarray, phi: int) -> bool:
        pairs = [(i, j) for i, j in product(range(2), range(4)) if x[4 * i + j]]
        left, right = [i for i, _ in pairs], [j for _, j in pairs]
        return len(set(left)) == len(left) and len(set(right)) == len(right) and len(pairs) <= phi

    assert_holds_exactly_where(matching(2, 4), lambda x: is_matching(x, 99))
    assert_holds_exactly_where(matching(2, 4, at_most=1), lambda x: is_matching(x, 1))


def test_capacity_assignment_accepts_exactly_the_assignments_that_fit() -> None:
    sizes, room = [2.0, 1.0, 3.0], [3.0, 4.0]

    def fits(x: np.ndarray) -> bool:
        X = x.reshape(3, 2)
        load = [sum(sizes[i] for i in range(3) if X[i, j]) for j in range(2)]
        return all(sum(X[i]) == 1 for i in range(3)) and load[0] <= room[0] and load[1] <= room[1]

    assert_holds_exactly_where(capacity_assignment(3, 2, room, sizes=sizes), fits)
    assert_holds_exactly_where(
        capacity_assignment(3, 2, 2),
        lambda x: (x.reshape(3, 2).sum(1) == 1).all() and (x.reshape(3, 2).sum(0) <= 2).all(),
    )


def test_ranking_quota_accepts_exactly_the_fair_permutations() -> None:
    weight, groups = [4.0, 2.0, 1.0, 1.0], "abba"
    cons = ranking(4, groups=groups, at_least={"a": 0.25, "b": 0.5}, exposure=weight)
    orders, points = permutation_matrices(4)  # order[p] is the item at position p
    share = [sum(weight[p] for p in range(4) if groups[order[p]] == "b") / 8.0 for order in orders]
    expected = [1 - b >= 0.25 and b >= 0.5 for b in share]
    assert 0 < sum(expected) < 24
    np.testing.assert_array_equal(cons.violation(points) == 0, expected)


@pytest.mark.parametrize("within", [1, 2, 3, 4])
def test_tour_accepts_exactly_the_right_permutations(within: int) -> None:
    orders, points = permutation_matrices(5)
    cons = tour(5, 3, 1, priority=0, within=within)
    expected = [o[0] == 3 and o[4] == 1 and o.index(0) <= within for o in orders]
    np.testing.assert_array_equal(cons.violation(points) == 0, expected)
    assert sum(expected) == 2 * min(within, 3)  # the priority at one of the allowed steps, the other two in any order
    without = tour(5, 3, 1)
    np.testing.assert_array_equal(without.violation(points) == 0, [o[0] == 3 and o[4] == 1 for o in orders])


def test_tour_of_three_cities_over_all_binary_matrices() -> None:
    def is_tour(x: np.ndarray) -> bool:
        X = x.reshape(3, 3)
        return bool((X.sum(0) == 1).all() and (X.sum(1) == 1).all() and X[0, 0] == 1 and X[2, 2] == 1)

    assert_holds_exactly_where(tour(3, 0, 2), is_tour)


# ------------------------------------------------------------------ tours that differ per instance

ENDS = [(3, 1, 0), (0, 4, 2), (2, 0, 1)]  # start, end, priority of each instance


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_batched_tour_accepts_exactly_the_right_permutations(kind: Callable[[Any], Any]) -> None:
    start, end, priority = (kind(list(column)) for column in zip(*ENDS, strict=True))
    orders, points = permutation_matrices(5)
    cons = tour(5, start, end, priority=priority, within=2)
    assert cons.batch_shape == (3,)
    assert len(cons) == 10
    expected = [[o[0] == s and o[4] == e and o.index(p) <= 2 for s, e, p in ENDS] for o in orders]
    np.testing.assert_array_equal(cons.violation(points[:, None, :]) == 0, expected)


def test_batched_tour_bounds_fix_what_the_rows_decide() -> None:
    cons = tour(4, [1], [3], priority=[0], within=1)
    lower = np.zeros((4, 4))
    lower[1, 0] = lower[3, 3] = 1
    upper = np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]])
    np.testing.assert_array_equal(cons.lower.numpy(), lower.reshape(1, 16))
    np.testing.assert_array_equal(cons.upper.numpy(), upper.reshape(1, 16))


def test_batched_and_plain_tours_agree_on_fractional_points() -> None:
    rng = np.random.default_rng(0)
    _, corners = permutation_matrices(4)
    for start, end, priority in [(0, 1, 2), (3, 0, 1), (2, 3, 0)]:
        plain = tour(4, start, end, priority=priority, within=1)
        batched = tour(4, [start], end, priority=priority, within=1)
        inside = corners[plain.violation(corners) == 0]
        mixed = rng.dirichlet(np.ones(len(inside)), 20) @ inside
        outside = rng.dirichlet(np.ones(len(corners)), 20) @ corners
        assert plain.violation(mixed).max() < 1e-12
        assert batched.violation(mixed).max() < 1e-12
        assert plain.violation(outside).min() > 1e-3
        assert batched.violation(outside).min() > 1e-3


def test_scalar_cities_join_a_batch() -> None:
    orders, points = permutation_matrices(4)
    cons = tour(4, 0, [1, 3])
    expected = [[o[0] == 0 and o[3] == end for end in (1, 3)] for o in orders]
    np.testing.assert_array_equal(cons.violation(points[:, None, :]) == 0, expected)


# ------------------------------------------------------------------ wrong input

WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: simplex(0), r"n is 0; expected an integer of at least 1"),
    (lambda: simplex(2.5), r"n is 2.5; expected an integer"),
    (lambda: simplex(True), r"n is True; expected an integer"),
    (lambda: simplex([3]), r"n is of shape \(1,\); expected one integer"),
    (lambda: simplex("3"), r"n is '3'; expected an integer"),
    (lambda: simplex(None), r"n is None; expected an integer"),
    (lambda: simplex(3, total=3.5), r"total is 3.5; expected a number from 0 to 3"),
    (lambda: simplex(3, total=-1), r"total is -1.0; expected a number from 0 to 3"),
    (lambda: simplex(3, total=float("nan")), r"total is nan; expected finite"),
    (lambda: simplex(3, total=[1.0, 2.0]), r"total is of shape \(2,\); expected one number.*with_rhs"),
    (lambda: simplex(3, total="one"), r"total has type str"),
    (lambda: simplex(3, total=torch.tensor(1.0, requires_grad=True)), r"total requires gradients.*with_rhs"),
    (lambda: top_k(3, 4), r"k is 4; expected an integer from 0 to 3"),
    (lambda: top_k(3, -1), r"k is -1"),
    (lambda: top_k(3, 1.0), r"k is 1.0"),
    (lambda: budget([], 1.0), r"costs is of shape \(0,\)"),
    (lambda: budget([[1.0]], 1.0), r"costs is of shape \(1, 1\)"),
    (lambda: budget(3.0, 1.0), r"costs is of shape \(\)"),
    (lambda: budget([0.0, 0.0], 1.0), r"costs is all zero"),
    (lambda: budget([1.0, float("inf")], 1.0), r"costs is inf at index 1"),
    (lambda: budget([1.0, -2.0], -2.5), r"at_most is -2.5; expected at least -2"),
    (lambda: budget([1.0], float("inf")), r"at_most is inf"),
    (lambda: doubly_stochastic(-1), r"n is -1"),
    (lambda: permutation(0), r"n is 0"),
    (lambda: matching(0, 2), r"n1 is 0"),
    (lambda: matching(2, 0), r"n2 is 0"),
    (lambda: matching(2, 2, at_most=-1), r"at_most is -1.0; expected at least 0"),
    (lambda: capacity_assignment(0, 2, 1), r"items is 0"),
    (lambda: capacity_assignment(2, 0, 1), r"bins is 0"),
    (lambda: capacity_assignment(2, 2, [3, -1]), r"capacity\[1\] is -1; expected at least 0"),
    (lambda: capacity_assignment(2, 2, [3, 1, 1]), r"capacity is of shape \(3,\); expected shape \(2,\)"),
    (lambda: capacity_assignment(5, 2, 2), r"capacity is 4 in total; expected at least 5"),
    (lambda: capacity_assignment(2, 2, 2, sizes=[1]), r"sizes is of shape \(1,\)"),
    (lambda: capacity_assignment(2, 2, 2, sizes=[1, -1]), r"sizes\[1\] is -1"),
    (lambda: capacity_assignment(2, 2, 2, sizes=[0, 0]), r"sizes is all zero"),
    (lambda: ranking(0), r"n is 0"),
    (lambda: ranking(2, groups="ab"), r"at_least is missing"),
    (lambda: ranking(2, at_least={"a": 0.1}), r"groups is missing"),
    (lambda: ranking(2, exposure=[1, 1]), r"groups is missing"),
    (lambda: ranking(2, groups="abc", at_least={"a": 0.1}), r"groups is 3 labels long"),
    (lambda: ranking(2, groups=7, at_least={"a": 0.1}), r"groups is 7"),
    (lambda: ranking(2, groups="ab", at_least=0.1), r"at_least is 0.1; expected a mapping"),
    (lambda: ranking(2, groups="ab", at_least={}), r"at_least is \{\}"),
    (lambda: ranking(2, groups="ab", at_least={"c": 0.1}), r"at_least is about group 'c'"),
    (lambda: ranking(2, groups="ab", at_least={"a": 1.5}), r"at_least\['a'\] is 1.5"),
    (lambda: ranking(2, groups="ab", at_least={"a": 0.8}, exposure=[3, 1]), r"expected at most 0.75"),
    (lambda: ranking(2, groups="ab", at_least={"a": 0.6, "b": 0.6}, exposure=[3, 1]), r"1.2 in total"),
    (lambda: ranking(2, groups="ab", at_least={"a": 0.1}, exposure=[0, 0]), r"exposure is all zero"),
    (lambda: ranking(2, groups="ab", at_least={"a": 0.1}, exposure=[1, -1]), r"exposure\[1\] is -1"),
    (
        lambda: ranking(2, groups="ab", at_least={"a": 0.1}, exposure=[1, 1, 1]),
        r"exposure is of shape \(3,\)",
    ),
    (lambda: tour(1, 0, 0), r"n is 1; expected an integer of at least 2"),
    (lambda: tour(4, 1, 1), r"start is city 1, as is end"),
    (lambda: tour(4, [0, 1], [2, 1]), r"start is city 1, as is end in instance 1"),
    (lambda: tour(4, 4, 1), r"start is 4; expected an integer from 0 to 3"),
    (lambda: tour(4, 0, -1), r"end is -1"),
    (lambda: tour(4, [0, 7], 1), r"start\[1\] is 7"),
    (lambda: tour(4, 0.0, 1), r"start is 0.0"),
    (lambda: tour(4, [], 1), r"start is of shape \(0,\)"),
    (lambda: tour(4, [[0]], 1), r"start is of shape \(1, 1\)"),
    (lambda: tour(4, [[0], [1, 2]], 1), r"start is \[\[0\], \[1, 2\]\]"),
    (lambda: tour(4, [0, 1], [3, 3, 2]), r"start of 2 and end of 3"),
    (lambda: tour(4, 0, 1, priority=0, within=2), r"priority is city 0, as is start"),
    (lambda: tour(4, 0, 1, priority=[2, 1], within=2), r"priority is city 1, as is end in instance 1"),
    (lambda: tour(4, 0, 1, priority=2), r"within is missing"),
    (lambda: tour(4, 0, 1, within=2), r"priority is missing"),
    (lambda: tour(4, 0, 1, priority=2, within=0), r"within is 0; expected an integer from 1 to 3"),
    (lambda: tour(4, 0, 1, priority=2, within=4), r"within is 4"),
    (lambda: tour(4, 0, 1, priority=2, within=1.5), r"within is 1.5"),
    (lambda: portfolio(0, [0], 0.5), r"n is 0"),
    (lambda: portfolio(3, [0, 3], 0.5), r"preferred\[1\] is 3"),
    (lambda: portfolio(3, [1, 0, 1], 0.5), r"preferred is listing 1 twice"),
    (lambda: portfolio(3, [], 0.5), r"preferred is of shape \(0,\)"),
    (lambda: portfolio(3, [True, False, True], 0.5), r"preferred is \[True.*flatnonzero"),
    (lambda: portfolio(3, [0], 1.1), r"at_least is 1.1; expected a number from 0 to 1"),
    (lambda: portfolio(3, [0], -0.1), r"at_least is -0.1"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_wrong_arguments_are_named_with_a_fix(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as caught:
        call()
    assert "Fix: " in str(caught.value)


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(families).failed == 0
