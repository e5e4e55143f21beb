"""What sets can say, said to `linsat.jax`: rows that are absent, formulas, names, coefficients and sides of a call."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import linsat
from linsat import ConstraintError, Variable, subject_to
from linsat.status import Status
from tests.core import test_absent_rows as absent
from tests.core import test_coefficients as coefficients
from tests.core import test_formulas as formulas
from tests.core import test_names as names
from tests.core import test_rounded_sides as rounded
from tests.helpers.oracles import System, nearest_point

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import linsat.jax as door

N = formulas.N


@pytest.mark.parametrize("kind", absent.OBJECTIVES)
@pytest.mark.parametrize("instance", range(4))
def test_a_whole_set_may_lack_rows(kind, instance):
    sides = {"b": absent.B_EACH[instance], "d": absent.D_EACH[instance], "f": absent.F}
    cons, objective = linsat.Constraints(A=absent.A, C=absent.C, E=absent.E, **sides), absent.OBJECTIVES[kind]
    expected = linsat.project(absent.SCORES, absent.reduced(instance), objective=objective)
    with jax.enable_x64(True):
        found = door.project(jnp.asarray(absent.SCORES), cons, objective=objective)
        np.testing.assert_allclose(found, expected, atol=1e-7)


# ------------------------------------------------------------------ coefficients of a call


def nearest_to_ones(cons, shape, A):
    return np.asarray(door.project(np.ones(shape), cons, objective=linsat.Euclidean(), A=A))


@pytest.mark.parametrize("batch", [(), (2,), (5,)])
def test_a_matrix_for_rows_that_part_the_variables(batch):
    # By hand: the nearest point to ones under x0 + 2 x1 <= 1 is 1 - 0.4 (1, 2), under 3 x2 + 4 x3 <= 1 1 - 0.24 (3, 4).
    A = np.broadcast_to(coefficients.WEIGHTED_GROUPS, (*batch, 2, 4)).copy()
    x = nearest_to_ones(coefficients.groups(), (*batch, 4), A)
    assert x.shape == (*batch, 4)
    np.testing.assert_allclose(x, np.broadcast_to([0.6, 0.2, 0.28, 0.04], x.shape), atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "A"), [((3, 4), coefficients.PRICES), ((1, 4), coefficients.PRICES[:1]), ((4,), coefficients.PRICES[0])]
)
def test_a_matrix_for_one_row_over_all_variables(shape, A):
    rows = A[..., 0, :].reshape(-1, 1, 4)
    expected = [nearest_point(System(row, ["<="], np.array([1.0]), None), np.ones(4)) for row in rows]
    x = nearest_to_ones(coefficients.one_row(), shape, A)
    assert x.shape == shape
    np.testing.assert_allclose(x, np.reshape(expected, shape), atol=1e-5)


def test_the_non_zeros_still_serve():
    values = np.array([[1.0, 2, 3, 4], [1, 1, 1, 1], [1, 2, 1, 2]])
    x = nearest_to_ones(coefficients.groups(), (3, 4), values)
    np.testing.assert_allclose(x, [[0.6, 0.2, 0.28, 0.04], [0.5] * 4, [0.6, 0.2, 0.6, 0.2]], atol=1e-5)
    assert nearest_to_ones(coefficients.one_row(), (3, 4), coefficients.PRICES[:, 0]).shape == (3, 4)


def test_values_that_have_the_shape_of_the_matrix_are_named():
    with pytest.raises(ConstraintError, match=r"A has shape \(2, 4\), that of a matrix .* values of its non-zeros"):
        nearest_to_ones(coefficients.groups(), (2, 4), np.ones((2, 4)))


# ------------------------------------------------------------------ formulas


def test_formulas_eager_traced_and_mapped() -> None:
    cons = formulas.many()
    y = np.random.default_rng(0).normal(size=(3, N))
    t = np.asarray(cons._terms.side)  # type: ignore[union-attr]
    pull = np.random.default_rng(1).normal(size=(3, N))
    jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    with jax.enable_x64(True):
        for objective in (formulas.OBJECTIVES["entropy"], formulas.OBJECTIVES["kl"]):
            x = linsat.project(y, cons, objective=objective)

            def projected(y: Any, t: Any, objective: Any = objective) -> Any:
                return door.project(y, cons, objective=objective, t=t)

            arrays = jnp.asarray(y), jnp.asarray(t)
            assert np.array_equal(projected(*arrays), x)
            assert np.abs(jit(projected)(*arrays) - x).max() < 1e-12
            assert np.abs(jit(jax.vmap(projected, (0, None)))(*arrays) - x).max() < 1e-12
            to_y, to_t = jit(jax.grad(lambda y, t: (projected(y, t) * pull).sum(), (0, 1)))(*arrays)
            tensors = torch.tensor(y, requires_grad=True), torch.tensor(t, requires_grad=True)
            solved = linsat.project(tensors[0], cons.with_rhs(t=tensors[1]), objective=objective)
            (solved * torch.tensor(pull)).sum().backward()
            for mine, theirs in zip((to_y, to_t), tensors, strict=True):
                assert np.abs(mine - theirs.grad.numpy()).max() < 1e-9  # type: ignore[union-attr]
        bad = jit(lambda y: door.solve(y, cons.with_rhs({"turnover": -0.1})))(jnp.asarray(y))
        assert np.isnan(bad.violation).all()
        assert (bad.status == Status.INFEASIBLE.code).all()


def test_formulas_traced_take_a_start() -> None:
    """Duals of an earlier solve spare all steps, whole or by the names of rows; malformed ones are rejected."""
    w = Variable(N, name="w")
    joint, plain = abs(w - formulas.CENTRE).sum() <= 0.2, abs(w - formulas.CENTRE) <= 0.04
    cons = subject_to((w.sum() == 1).named("budget"), joint.named("turnover"), w >= 0, w <= 1)
    y = np.random.default_rng(3).normal(size=(3, N))
    first = linsat.solve(y, cons, objective=linsat.Euclidean())
    by_name = {name: first.duals[:, [cons.names.index(name)]] for name in cons.names}
    assert first.steps.min() > 1

    with jax.enable_x64(True):
        for start in (first.duals, by_name):
            again = jax.jit(lambda y, start: door.solve(y, cons, objective=linsat.Euclidean(), start=start))(y, start)
            assert np.abs(again.x - first.x).max() < 1e-9
            assert np.asarray(again.steps).tolist() == [0, 0, 0]
        for rows in (joint, plain):
            with pytest.raises(ConstraintError, match=r"start has shape \(3, 7\); expected duals of shape .* Fix: "):
                jax.jit(lambda y, rows=rows: door.project(y, subject_to(w.sum() == 1, rows), start=np.zeros((3, 7))))(y)


# ------------------------------------------------------------------ names and kinds of arrays


def test_scores_in_the_shape_of_the_variable():
    y = names.scores(4, 2, 3).float()
    x = door.project(y.numpy(), names.roster(), tau=0.3)
    np.testing.assert_allclose(x, linsat.project(y, names.roster(), tau=0.3), atol=1e-6)
    with pytest.raises(ConstraintError, match=r"expected \(\.\.\., 2, 3\) like works"):
        door.project(np.zeros((3, 5), dtype=np.float32), names.roster())


def test_scores_of_jax_at_the_other_door_and_bfloat16():
    cap = linsat.Constraints(A=[[1.0, 1, 1, 1]], b=1.0)
    with pytest.raises(ConstraintError, match=r"linsat\.jax\.project"):
        linsat.project(jnp.ones(4), cap)
    x = door.project(jnp.ones(4, jnp.bfloat16), cap, objective=linsat.Euclidean())
    assert x.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(x, np.float64), 0.25, atol=1e-2)


# ------------------------------------------------------------------ sides that contradict each other by rounding


def test_sides_of_float32_may_contradict_each_other_by_rounding():
    which = int(rounded.DIFFER.nonzero()[0])
    expected = linsat.project(rounded.SCORES, linsat.Constraints(E=rounded.E, f=rounded.NARROW))
    constant = linsat.Constraints(E=rounded.E, f=rounded.NARROW[which])
    with jax.enable_x64(True):
        found = door.project(jnp.asarray(rounded.SCORES[which].numpy()), constant, tau=0.1)
        np.testing.assert_allclose(found, expected[which], rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", rounded.OBJECTIVES)
def test_such_sides_of_a_call_are_freed_as_well(kind):
    even = np.concatenate([np.full(rounded.N, 1 / rounded.N), np.full(rounded.M, 1 / rounded.M)])
    cons, objective = linsat.Constraints(E=rounded.E, f=even), rounded.OBJECTIVES[kind]
    with jax.enable_x64(True):
        scores, sides = jnp.asarray(rounded.SCORES.numpy()), jnp.asarray(rounded.NARROW.numpy())
        assert sides.dtype == "float32"
        solve = jax.jit(lambda y, f: door.solve(y, cons, f=f, objective=objective))
        found, alone = solve(scores, sides), jax.vmap(solve)(scores, sides)
        own = door.solve(scores, linsat.Constraints(E=rounded.E, f=rounded.NARROW.numpy()), objective=objective)
        wide = solve(scores, sides.astype(float))  # not rounding: these are the numbers meant
    constant = linsat.Constraints(E=rounded.E, f=rounded.NARROW)
    expected = linsat.solve(rounded.SCORES, constant, objective=objective)
    for one in (found, alone, own):
        assert not np.asarray(one.status).any()
        assert float(np.asarray(one.violation).max()) <= 1e-9
        np.testing.assert_allclose(one.adjusted, expected.adjusted, rtol=1e-6, atol=1e-16)
        np.testing.assert_allclose(one.x, expected.x, rtol=0, atol=1e-8)
    assert not np.asarray(wide.adjusted).any()
    assert np.asarray(wide.status)[rounded.OFF.numpy() > 1e-8].all()
