"""What the functions on marginals reject, and how they say so."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from linsat.errors import ConstraintError
from linsat.marginals import iteration_bound, multi_set_sinkhorn, sinkhorn

GOOD_S, GOOD_U, GOOD_V = torch.ones(2, 3), [[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]], [[1.0, 2.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"S": [[1.0, -0.5, 1.0], [1.0, 1.0, 1.0]]}, r"S\[0, 1\] is -0.5; expected a finite number >= 0"),
        ({"S": [[1.0, 1.0, 1.0], [1.0, 1.0, math.nan]]}, r"S\[1, 2\] is nan"),
        ({"S": [[1.0, 1.0, math.inf], [1.0, 1.0, 1.0]]}, r"S\[0, 2\] is inf"),
        ({"S": torch.ones(3)}, r"S has shape \(3,\); expected \(\.\.\., m, n\)"),
        ({"S": torch.ones(0, 3)}, r"S has shape \(0, 3\)"),
        ({"S": torch.ones(2, 3).to_sparse()}, r"S is sparse; expected a dense array"),
        ({"S": [["a", "b"]]}, r"S is a list of texts"),
        ({"S": [[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]}, r"column 1 of S is all zero"),
        (
            {"S": torch.tensor([1.0, 0.0]).reshape(2, 1, 1).expand(2, 2, 3)},
            r"column 0 of S in instance \[1\]",
        ),
        ({"U": [[1.0, -1.0, 1.0], [0.0, 1.0, 1.0]]}, r"U\[0, 1\] is -1.0; expected a finite number >= 0"),
        ({"U": [[1.0, math.nan, 1.0], [0.0, 1.0, 1.0]]}, r"U\[0, 1\] is nan"),
        ({"V": [[1.0, -1.0], [1.0, 1.0]]}, r"V\[0, 1\] is -1.0"),
        ({"V": [[1.0, math.inf], [1.0, 1.0]]}, r"V\[0, 1\] is inf"),
        ({"U": [[1.0, 1.0], [1.0, 1.0]]}, r"U has shape \(2, 2\); expected \(k, 3\).*S has n = 3"),
        ({"U": [1.0, 1.0, 1.0]}, r"U has shape \(3,\); expected \(k, 3\)"),
        ({"V": [[1.0], [1.0]]}, r"V has shape \(2, 1\); expected \(k, 2\).*S has m = 2"),
        ({"U": np.zeros((0, 3)), "V": np.zeros((0, 2))}, r"U has shape \(0, 3\)"),
        ({"V": [[1.0, 2.0]]}, r"U has 2 sets, V has 1"),
        (
            {"S": torch.ones(4, 2, 3), "U": torch.ones(5, 2, 3)},
            r"batch dimensions do not fit.*S \(4,\), U \(5,\)",
        ),
        ({"V": [[1.0, 2.0], [1.0, 1.5]]}, r"set 1: u sums to 2 but v sums to 2\.5; expected equal totals"),
        (
            {"V": [[[1.0, 2.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]]},
            r"set 0 of instance \[1\]: u sums to 3 but",
        ),
    ],
)
def test_malformed_problems_are_refused(change, message):
    arguments = {"S": GOOD_S, "U": GOOD_U, "V": GOOD_V} | change
    with pytest.raises(ConstraintError, match=message):
        multi_set_sinkhorn(**arguments)
    with pytest.raises(ConstraintError, match=message):
        iteration_bound(**arguments, l1_error=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iter": 0}, r"max_iter is 0; expected an integer >= 1"),
        ({"max_iter": -3}, r"max_iter is -3"),
        ({"max_iter": 2.5}, r"max_iter is 2\.5; expected an integer"),
        ({"tol": -1e-6}, r"tol is -1e-06; expected a finite number >= 0"),
        ({"tol": math.nan}, r"tol is nan"),
    ],
)
def test_malformed_options_are_refused(options, message):
    with pytest.raises(ConstraintError, match=message):
        multi_set_sinkhorn(GOOD_S, GOOD_U, GOOD_V, **options)
    with pytest.raises(ConstraintError, match=message):
        sinkhorn(GOOD_S, [1.0, 1.0, 1.0], [1.0, 2.0], **options)


@pytest.mark.parametrize(
    ("u", "v", "message"),
    [
        ([1.0, 1.0], [1.0, 1.0], r"u has shape \(2,\); expected \(3,\) or \(\.\.\., 3\), as S has n = 3"),
        ([1.0, 1.0, 1.0], 3.0, r"v has shape \(\); expected \(2,\)"),
        ([1.0, 1.0, 1.0], [1.0, 1.0], r"set 0: u sums to 3 but v sums to 2"),
        ([1.0, -1.0, 1.0], [0.5, 0.5], r"u\[1\] is -1.0"),
    ],
)
def test_sinkhorn_names_its_own_arguments(u, v, message):
    with pytest.raises(ConstraintError, match=message):
        sinkhorn(GOOD_S, u, v)


@pytest.mark.parametrize("l1_error", [0.0, -1.0, math.nan, math.inf])
def test_bound_needs_a_positive_error(l1_error):
    with pytest.raises(ConstraintError, match=r"l1_error is .*; expected a positive number"):
        iteration_bound(GOOD_S, GOOD_U, GOOD_V, l1_error=l1_error)
