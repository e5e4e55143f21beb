"""What every decoder accepts and keeps (shapes, libraries, dtypes), and what it rejects."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from linsat.constraints import Constraints
from linsat.decode import Decoded, assign, greedy_repair, hungarian, rounding, top_k
from linsat.errors import ConstraintError

MATCHING = Constraints(A=[[1.0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]], b=1.0)
DECODERS = {
    "rounding": rounding,
    "top_k": lambda x, cons: top_k(x, 2, cons),
    "hungarian": lambda x, cons: hungarian(x, cons, shape=(2, 2)),
    "greedy_repair": greedy_repair,
}


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
class TestEveryDecoder:
    def test_batch_dimensions(self, decode):
        cons, x = MATCHING, torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(1))
        decoded = decode(x, cons)
        assert decoded.x.shape == (2, 3, 4)
        assert decoded.feasible.shape == decoded.violation.shape == (2, 3)
        for index in np.ndindex(2, 3):
            alone = decode(x[index], cons)
            assert torch.equal(alone.x, decoded.x[index])
            assert bool(alone.feasible) == bool(decoded.feasible[index])

    def test_empty_batch(self, decode):
        decoded = decode(torch.zeros(3, 0, 4), MATCHING)
        assert decoded.x.shape == (3, 0, 4)
        assert decoded.feasible.shape == decoded.violation.shape == (3, 0)

    def test_right_sides_and_bounds_per_instance(self, decode):
        cons = Constraints(A=np.ones((1, 4)), b=[[4.0], [0.0]], upper=[[1.0] * 4, [2.0] * 4])
        decoded = decode(torch.tensor([0.1, 1.9, 1.8, 0.2]), cons)  # one x, two instances
        assert decoded.x.shape == (2, 4)
        assert decoded.x[0].max() == 1.0
        for i in range(2):
            alone = Constraints(A=np.ones((1, 4)), b=[[4.0], [0.0]][i], upper=[1.0, 2.0][i])
            expected = decode(torch.tensor([0.1, 1.9, 1.8, 0.2]), alone)
            assert torch.equal(decoded.x[i], expected.x)
            assert bool(decoded.feasible[i]) == bool(expected.feasible)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_tensors_keep_their_dtype(self, decode, dtype):
        x = torch.tensor([0.9, 0.2, 0.1, 0.8], dtype=dtype, requires_grad=True)
        decoded = decode(x, MATCHING)
        assert decoded.x.dtype == dtype
        assert decoded.x.tolist() == [1.0, 0.0, 0.0, 1.0]
        assert not decoded.x.requires_grad
        assert decoded.feasible.dtype == torch.bool

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_numpy_in_numpy_out(self, decode, dtype):
        decoded = decode(np.array([[0.9, 0.2, 0.1, 0.8]], dtype=dtype), MATCHING)
        assert decoded.x.dtype == dtype
        assert all(isinstance(part, np.ndarray) for part in (decoded.x, decoded.feasible, decoded.violation))

    def test_learned_right_side(self, decode):
        b = torch.ones(4, requires_grad=True)
        cons = Constraints(A=MATCHING.matrix, b=b)
        for x in (np.array([0.9, 0.2, 0.1, 0.8]), torch.tensor([0.9, 0.2, 0.1, 0.8])):
            assert decode(x, cons).feasible

    def test_input_is_not_changed(self, decode):
        x = np.array([0.9, 0.8, 0.7, 0.6])
        decode(x, MATCHING)
        assert x.tolist() == [0.9, 0.8, 0.7, 0.6]

    def test_set_without_rows(self, decode):
        decoded = decode([0.9, 0.2, 0.1, 0.8], Constraints())
        assert decoded.x.tolist() == [1.0, 0.0, 0.0, 1.0]
        assert bool(decoded.feasible)
        assert decoded.violation == 0.0

    @pytest.mark.parametrize(
        ("x", "message"),
        [
            ([0.1, math.nan, 0.0, 0.0], r"x\[1\] is nan; expected a finite number"),
            ([[0.1, 0.0, 0.0, -math.inf]], r"x\[0, 3\] is -inf"),
            (0.5, r"x has shape \(\); expected \(\.\.\., 4\)"),
            ([0.1, 0.2, 0.3], r"x has shape \(3,\); expected \(\.\.\., 4\)"),
            (torch.ones(4).to_sparse(), r"x is sparse"),
            (["a", "b", "c", "d"], r"x is a list of texts; expected real numbers"),
        ],
    )
    def test_malformed_points_are_refused(self, decode, x, message):
        with pytest.raises(ConstraintError, match=message):
            decode(x, MATCHING)

    def test_batches_that_do_not_fit_are_refused(self, decode):
        cons = Constraints(A=np.ones((1, 4)), b=[[1.0], [2.0]])
        with pytest.raises(ConstraintError, match=r"x has batch dimensions \(3,\) and cons \(2,\)"):
            decode(torch.rand(3, 4), cons)

    def test_something_else_than_a_set_is_refused(self, decode):
        with pytest.raises(ConstraintError, match=r"cons is of type ndarray\. Fix: pass linsat\.Constraints"):
            decode([0.1, 0.2, 0.3, 0.4], np.ones((1, 4)))


@pytest.mark.parametrize("decode", [rounding, greedy_repair])
def test_box_decoders_need_a_set(decode):
    with pytest.raises(ConstraintError, match="cons is of type NoneType"):
        decode([0.1, 0.9], None)


@pytest.mark.parametrize("tol", [-1.0, math.nan, math.inf])
def test_bad_tolerance_is_refused(tol):
    with pytest.raises(ConstraintError, match=f"tol is {tol}"):
        rounding([0.1], Constraints(), tol=tol)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: top_k(x, 5), r"k is 5; expected an integer from 0 to 4"),
        (lambda x: top_k(x, -1), r"k is -1; expected an integer from 0 to 4"),
        (lambda x: top_k(x, 1.5), r"k is 1\.5"),
        (lambda x: top_k(x, [1, 9]), r"k\[1\] is 9"),
        (lambda x: top_k(x, [1, 1, 1]), r"k has shape \(3,\); expected an int or one per instance, \(2,\)"),
        (lambda x: hungarian(x, shape=(2, 3)), r"shape is \(2, 3\); expected \(n1, n2\) with n1 \* n2 = 4"),
        (lambda x: hungarian(x, shape=(4,)), r"shape is \(4,\)"),
        (lambda x: hungarian(x, shape=(-2, -2)), r"shape is \(-2, -2\)"),
        (lambda x: hungarian(x, shape=(2.0, 2.0)), r"shape is \(2\.0, 2\.0\)"),
        (lambda x: hungarian(x, shape=(2, 2), keep=3), r"keep is 3; expected an integer from 0 to 2"),
        (lambda x: hungarian(x, shape=(2, 2), keep=[[1], [1]]), r"keep has shape \(2, 1\)"),
        (
            lambda x: greedy_repair(x, Constraints(), max_flips=-1),
            r"max_flips is -1; expected an integer >= 0",
        ),
        (lambda x: greedy_repair(x, Constraints(), max_flips=1.5), r"max_flips is 1\.5"),
    ],
)
def test_malformed_options_are_refused(call, message):
    with pytest.raises(ConstraintError, match=message):
        call(torch.rand(2, 4))


def test_result_is_frozen():
    decoded = top_k([0.2, 0.8], 1)
    assert isinstance(decoded, Decoded)
    with pytest.raises(AttributeError):
        decoded.x = None


@pytest.mark.parametrize("batch", [(), (3,), (2, 0)])
def test_pairs_may_come_as_matrices(batch):
    """As they do flat, also of a set that knows no matrix; without a set their shape is that of x."""
    x = torch.rand(*batch, 2, 3, generator=torch.Generator().manual_seed(4))
    flat, box = x.reshape(*batch, 6), Constraints(lower=np.zeros(6), upper=1.0)
    for decode in (hungarian, lambda *x, **own: assign(*x, k=1, capacity=1, **own)):
        expected = decode(flat, shape=(2, 3)).x.reshape(x.shape)
        assert torch.equal(decode(x).x, expected)
        assert torch.equal(decode(x, shape=(2, 3)).x, expected)
        assert torch.equal(decode(x, shape=np.array([2, 3])).x, expected)
        decoded = decode(x, box, shape=(2, 3))
        assert torch.equal(decoded.x, expected)
        assert decoded.feasible.shape == batch
        with pytest.raises(ConstraintError, match=r"shape is \(6,\); expected \(n1, n2\)"):
            decode(flat, shape=6)
