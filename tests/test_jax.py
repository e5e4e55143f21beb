"""`linsat.jax`: values and gradients against torch, Clarabel and finite differences; transforms, status, bad calls."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import linsat
from arithmetic import HAS_KERNEL
from jax_systems import OBJECTIVES, SHAPES, Batch, batch
from oracles import System, entropic_optimum, nearest_point, slack_free_optimum

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import linsat.jax
from linsat.status import Status

A, C, E = [[3.0, 1, 4, 1, 5, 9]], [[1.0, 1, 0, 0, 0, 0]], [[1.0] * 6]
CONS = linsat.Constraints(A=A, b=10, C=C, d=1, E=E, f=3)
SYSTEM = System(np.array(A + C + E), ["<=", ">=", "=="], np.array([10.0, 1.0, 3.0]), np.zeros(6))
Y = np.random.default_rng(0).normal(size=(4, 6))
F64 = torch.float64
# Compiling is most of the time of these tests; the programs are the same without LLVM's optimisations.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def objective_of(name: str, width: int) -> linsat.Objective:
    return linsat.Euclidean(OBJECTIVES[name].weights[:width]) if name == "weighted" else OBJECTIVES[name]


def compare_with_torch(systems: Batch, name: str) -> None:
    """x and its gradients to scores, coefficients, right-hand sides and bounds are those of torch, to 1e-9."""
    l = systems.scores.shape[1]
    objective, weights = objective_of(name, l), np.random.default_rng(1).normal(size=systems.scores.shape)
    given = {"y": systems.scores, **systems.numbers, "lower": np.zeros(l), "upper": np.ones(l)}

    def loss(given):
        own = dict(given)
        x = linsat.jax.project(own.pop("y"), systems.cons, objective=objective, **own)
        return (x * weights).sum(), x

    (_, x), found = jit(jax.value_and_grad(loss, has_aux=True))({k: jnp.asarray(v) for k, v in given.items()})
    leaves = {k: torch.tensor(v, dtype=F64, requires_grad=True) for k, v in given.items()}
    cons = systems.cons.with_coefficients(**{k: leaves[k] for k in "ACE"})
    cons = cons.with_rhs(**{k: leaves[k] for k in "bdf"}).with_bounds(lower=leaves["lower"], upper=leaves["upper"])
    expected = linsat.project(leaves["y"], cons, objective=objective)
    (expected * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(x, expected.detach().numpy(), atol=1e-9)
    for key, leaf in leaves.items():
        size = max(1.0, float(leaf.grad.abs().max()))
        # With entropic slack a coefficient that is exactly zero has no derivative: the slack of its row depends on |a|
        # and on how many coefficients are not zero.
        smooth = given[key] != 0 if key in "ACE" and objective.entropic_slack else np.full(leaf.shape, True)
        expected_gradient = np.where(smooth, leaf.grad.numpy(), 0.0)
        np.testing.assert_allclose(np.where(smooth, found[key], 0.0), expected_gradient, atol=1e-9 * size, err_msg=key)


def test_forty_systems_are_those_of_torch():
    compare_with_torch(batch(SHAPES[0], 40, seed=3), "paper")


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("shape", SHAPES)
def test_three_hundred_systems_are_those_of_torch(shape: tuple[int, int, int, int], name: str):
    compare_with_torch(batch(shape, 50, seed=sum(shape)), name)


@pytest.mark.slow
def test_values_are_those_of_clarabel():
    def every(y):
        return [
            linsat.jax.project(y, CONS, tau=0.3),
            linsat.jax.project(y, CONS, objective=linsat.Entropy(0.3, slack="none")),
            linsat.jax.project(y, CONS, objective=linsat.Euclidean()),
        ]

    found = jit(every)(jnp.asarray(Y))
    oracles = (
        lambda y: entropic_optimum(SYSTEM, y, 0.3),
        lambda y: slack_free_optimum(SYSTEM, y, 0.3),
        lambda y: nearest_point(SYSTEM, y),
    )
    for x, oracle in zip(found, oracles, strict=True):
        expected = [oracle(scores) for scores in Y]
        assert sum(e is not None for e in expected) >= 2
        for one, e in zip(np.asarray(x), expected, strict=True):
            if e is not None:
                np.testing.assert_allclose(one, np.asarray(e), atol=1e-6)


@pytest.mark.parametrize("name", [pytest.param("paper", marks=pytest.mark.slow), "euclidean"])
def test_every_derivative(name: str):
    """jacfwd = jacrev; both and a second derivative against finite differences; mapped, jitted, by tau or weights."""
    rng = np.random.default_rng(2)
    weights, way, step = rng.normal(size=6), rng.normal(size=6), 1e-4
    way = jnp.asarray(way / np.linalg.norm(way))

    def x_of(y, number):
        objective = linsat.Entropy(number) if name == "paper" else linsat.Euclidean(number * jnp.arange(1.0, 7.0))
        return linsat.jax.project(y, CONS, objective=objective)

    def loss(y, number):
        return (x_of(y, number) ** 3 * weights).sum()

    def everything(y, number):
        gradient = jax.grad(loss, argnums=(0, 1))
        second = jax.jvp(lambda y: gradient(y, number)[0], (y,), (way,))[1]
        return jax.jacfwd(x_of)(y, number), jax.jacrev(x_of)(y, number), gradient(y, number), second

    y, number = jnp.asarray(Y), jnp.asarray(0.4)
    value = jit(jax.vmap(lambda y, number: (loss(y, number), jax.grad(loss)(y, number)), in_axes=(0, None)))
    forward, reverse, (by_y, by_number), second = jit(jax.vmap(everything, in_axes=(0, None)))(y, number)
    np.testing.assert_allclose(forward, reverse, atol=1e-10)
    ahead, behind = value(y + step * way, number), value(y - step * way, number)
    np.testing.assert_allclose(by_y @ way, (ahead[0] - behind[0]) / (2 * step), atol=1e-5)
    np.testing.assert_allclose(second, (ahead[1] - behind[1]) / (2 * step), atol=1e-4)
    further, nearer = value(y, number + step), value(y, number - step)
    np.testing.assert_allclose(by_number, (further[0] - nearer[0]) / (2 * step), atol=1e-5)


def test_soft_rows_and_infinite_bounds_are_those_of_torch():
    cons = linsat.Constraints(A=A, b=2.0, E=E, f=3.0, lower=-np.inf, upper=np.inf).soften(0, price=0.2)
    weights = np.random.default_rng(1).normal(size=Y.shape)

    def loss(y, price):
        x = linsat.jax.project(y, cons, objective=linsat.Euclidean(), price=price)
        return (x * weights).sum(), x

    price = np.array([0.3, 1.0])
    (_, x), found = jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(jnp.asarray(Y), jnp.asarray(price))
    y, rho = torch.tensor(Y, requires_grad=True), torch.tensor(price[:1], requires_grad=True)
    expected = linsat.project(y, cons.soften(0, price=rho), objective=linsat.Euclidean())
    (expected * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(x, expected.detach().numpy(), atol=1e-9)
    np.testing.assert_allclose(found[0], y.grad.numpy(), atol=1e-9)
    np.testing.assert_allclose(found[1][:1], rho.grad.numpy(), atol=1e-9)


def test_status_of_traced_numbers_and_warm_starts():
    """An instance that cannot hold has its status and NaN, the others are untouched; duals start a later solve."""
    f = jnp.asarray([[3.0], [7.0], [2.5], [3.0]])  # six variables of at most one cannot sum to seven

    @jit
    def both(y, f):
        first = linsat.jax.solve(y, CONS, objective=linsat.Euclidean(), f=f, on_failure="raise")
        return first, linsat.jax.solve(y, CONS, objective=linsat.Euclidean(), f=f, start=first.duals)

    first, second = both(jnp.asarray(Y), f)
    assert [str(Status.of(int(code))) for code in first.status] == ["converged", "infeasible", "converged", "converged"]
    assert np.isnan(first.x).all(-1).tolist() == [False, True, False, False]
    assert float(jnp.nanmax(first.violation)) <= 1e-12
    solved = np.asarray(first.converged)
    assert (np.asarray(second.steps)[solved] <= 1).all()
    assert (np.asarray(first.steps)[solved] > 1).any()
    np.testing.assert_allclose(second.x[solved], first.x[solved], atol=1e-9)


def test_outside_of_traces_failures_are_raised():
    y, euclidean = jnp.asarray(Y), linsat.Euclidean()
    with pytest.raises(linsat.InfeasibleError, match="cannot hold together"):
        jax.jit(lambda y: linsat.jax.project(y, linsat.Constraints(A=E, b=1, C=E, d=2)))(y)
    with pytest.raises(linsat.InfeasibleError, match=r"(?s)cannot hold.*for instance 1.*"):
        linsat.jax.project(y, CONS, objective=euclidean, f=jnp.asarray([[3.0], [7.0], [2.5], [3.0]]))
    with pytest.warns(linsat.LinSATWarning, match="1 of 4 instances were not solved; the first is instance 1"):
        linsat.jax.solve(y, CONS, objective=euclidean, f=jnp.asarray([[3.0], [7.0], [2.5], [3.0]]))
    with pytest.raises(linsat.ConvergenceError, match="step_limit"):
        linsat.jax.project(y, CONS, objective=euclidean, solver=linsat.Newton(max_steps=1))


def test_shapes_and_names():
    X = linsat.Variable(2, 2, name="X")
    cons = linsat.subject_to(X.sum(axis=1) == 1)
    y = jnp.asarray(Y[:3, :4])

    @jit
    def every(y):
        flat = linsat.jax.project(y, cons, objective=linsat.Euclidean())
        shaped = linsat.jax.project(y.reshape(3, 2, 2), cons, objective=linsat.Euclidean())
        named = linsat.jax.project({"X": y.reshape(3, 2, 2)}, cons, objective=linsat.Euclidean())
        return flat, shaped, named

    flat, shaped, named = every(y)
    np.testing.assert_allclose(flat.reshape(3, 2, 2), shaped)
    np.testing.assert_allclose(named["X"], shaped)
    np.testing.assert_allclose(shaped.sum(-1), 1.0, atol=1e-12)


def test_the_core_serves_within_jit_to_the_last_bit():
    """Values and gradients to scores, tau, b and bounds: those of torch."""
    weights = np.random.default_rng(1).normal(size=(4, 6))

    def loss(y, tau, b, upper):
        return (linsat.jax.project(y, CONS, tau=tau, b=b, upper=upper) * weights).sum()

    arguments = (Y, np.array(0.2), np.array([9.0]), np.linspace(0.8, 1.2, 6))
    value, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))(*map(jnp.asarray, arguments))
    y, tau, b, upper = (torch.tensor(a, dtype=F64, requires_grad=True) for a in arguments)
    expected = (linsat.project(y, CONS, tau=tau, b=b, upper=upper) * torch.tensor(weights)).sum()
    expected.backward()
    assert float(value) == pytest.approx(expected.item(), abs=1e-12)
    for gradient, leaf in zip(gradients, (y, tau, b, upper), strict=True):
        if HAS_KERNEL:
            np.testing.assert_array_equal(np.asarray(gradient), leaf.grad.numpy())
        np.testing.assert_allclose(np.asarray(gradient), leaf.grad.numpy(), atol=1e-10)


def test_numbers_of_a_batch_with_two_axes():
    """A set with right-hand sides of its own for each instance, another block given with the call, a block missing."""
    sides = np.array([[[9.0], [8.0], [7.0]], [[6.0], [5.0], [4.0]]])  # (2, 3, 1)
    cons = linsat.Constraints(A=A, b=sides, E=E, f=3)
    f, y = np.array([2.0]), np.random.default_rng(3).normal(size=(2, 3, 6))
    x = jit(lambda f: linsat.jax.project(jnp.asarray(y), cons, objective=linsat.Euclidean(), f=f))(jnp.asarray(f))
    expected = linsat.project(y, cons.with_rhs(f=f), objective=linsat.Euclidean())
    np.testing.assert_allclose(x, expected, atol=1e-9)


def test_malformed_calls():
    y = jnp.asarray(Y)
    sparse = linsat.Constraints(A=[[1.0, 0, 0, 2, 0, 0]], b=1)
    for arguments, message in (
        ({"y": y[:, :5]}, r"y has shape \(4, 5\)"),
        ({"y": jnp.ones((4, 6), dtype=int)}, "expected floating scores"),
        ({"y": {"X": y}}, "no named variables"),
        ({"y": y.at[1, 2].set(jnp.nan)}, "y holds nan"),
        ({"tau": 0.0}, "tau is 0.0"),
        ({"tau": jnp.ones(3)}, r"tau has shape \(3,\)"),
        ({"tau": 0.1, "objective": linsat.Euclidean()}, "both given"),
        ({"objective": "entropy"}, "expected an instance of linsat.Objective"),
        ({"objective": linsat.Euclidean(-jnp.ones(6))}, "weights is -1.0"),
        ({"objective": linsat.Euclidean(jnp.ones(5))}, r"weights has shape \(5,\)"),
        ({"b": jnp.ones(2)}, r"b has shape \(2,\) but A has 1 rows"),
        ({"b": jnp.ones((3, 1))}, "do not broadcast|does not broadcast"),
        ({"b": jnp.asarray([-jnp.inf])}, r"b\[0\] is -inf; expected a finite number, or inf for no row"),
        ({"d": jnp.ones(1), "constraints": sparse}, "the set has no C rows"),
        ({"A": jnp.ones((1, 5))}, r"A has shape \(1, 5\); expected \(..., 1, 6\)"),
        ({"lower": jnp.ones(5)}, "lower has 5"),
        ({"lower": 1.0, "upper": 0.0}, "lower = 1.0 is above upper = 0.0"),
        ({"price": 1.0}, "no row of the set is soft"),
        ({"start": jnp.ones((4, 2))}, r"start has shape \(4, 2\)"),
        ({"solver": linsat.Sinkhorn()}, "linsat.jax has linsat.Newton"),
        ({"on_failure": "explode"}, "on_failure is 'explode'"),
        ({"constraints": [1]}, "expected linsat.Constraints"),
        ({"constraints": CONS.with_rhs(b=torch.ones(1, requires_grad=True))}, "expected constants"),
        ({"constraints": linsat.Constraints(A=A, b=1, upper=np.inf)}, "finite"),
    ):
        with pytest.raises(linsat.ConstraintError, match=message):
            linsat.jax.project(**({"y": y, "constraints": CONS} | arguments))


def test_rows_hold_as_given_or_are_reported_where_the_papers_slack_rounds_them():
    """In d + S, of ``c x >= d`` in a box 1e9 wide, little is left of d."""
    rng = np.random.default_rng(7)
    rows, point = rng.uniform(0.5, 2.0, (3, 6)), rng.uniform(0.0, 1.0, 6)
    d, b = rows[:2] @ point - 0.1 * rng.random((60, 2)), rows[2:] @ point + 0.1
    cons = linsat.Constraints(C=rows[:2], d=d[0], A=rows[2:], b=b, lower=0.0, upper=1e9)
    scores, tau = rng.normal(size=(60, 6)), 10 ** rng.uniform(-2, 1, 60)
    found = linsat.jax.solve(scores, cons, tau=tau, d=d, on_failure="ignore")
    x, held = np.asarray(found.x), np.asarray(found.status) == Status.CONVERGED.code
    gap = np.concatenate([d - x @ rows[:2].T, x @ rows[2:].T - b], axis=1) / np.maximum(1.0, np.abs(x) @ rows.T)
    assert held.any()
    assert gap[held].max() <= 1.001e-9
    np.testing.assert_allclose(
        np.asarray(found.violation)[held], np.maximum(gap[held].max(1), 0.0), rtol=1e-3, atol=1e-12
    )
