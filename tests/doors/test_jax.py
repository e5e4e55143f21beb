"""`linsat.jax`: values and gradients against torch, Clarabel and finite differences; transforms, status, bad calls."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import linsat
from tests.helpers.arithmetic import HAS_KERNEL
from tests.helpers.jax_systems import OBJECTIVES, SHAPES, Batch, batch, objective_of
from tests.helpers.oracles import System, entropic_optimum, nearest_point, slack_free_optimum

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import linsat.jax
from linsat.jax.core import unavailable
from linsat.plan import Plan
from linsat.status import Status

A, C, E = [[3.0, 1, 4, 1, 5, 9]], [[1.0, 1, 0, 0, 0, 0]], [[1.0] * 6]
CONS = linsat.Constraints(A=A, b=10, C=C, d=1, E=E, f=3)
SYSTEM = System(np.array(A + C + E), ["<=", ">=", "=="], np.array([10.0, 1.0, 3.0]), np.zeros(6))
Y = np.random.default_rng(0).normal(size=(4, 6))
F64 = torch.float64
# Compiling is most of the time of these tests; the programs are the same without LLVM's optimisations.
needs_core = pytest.mark.skipif(not HAS_KERNEL, reason="the native core is not built")
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def compare_with_torch(systems: Batch, name: str, backend: str) -> None:
    """x, status and gradients to scores, coefficients, right-hand sides and bounds are those of torch.

    To the last bit where both run the native core, to 1e-9 where JAX uses `lax` operations.
    """
    l, solver = systems.scores.shape[1], linsat.Newton(backend=backend)
    objective, weights = objective_of(name, l), np.random.default_rng(1).normal(size=systems.scores.shape)
    given = {"y": systems.scores, **systems.numbers, "lower": np.zeros(l), "upper": np.ones(l)}

    def loss(given):
        own = dict(given)
        found = linsat.jax.solve(own.pop("y"), systems.cons, objective=objective, solver=solver, **own)
        return jnp.where(found.converged[:, None], found.x * weights, 0.0).sum(), found

    (_, found), gradients = jit(jax.value_and_grad(loss, has_aux=True))({k: jnp.asarray(v) for k, v in given.items()})
    leaves = {k: torch.tensor(v, dtype=F64, requires_grad=True) for k, v in given.items()}
    cons = systems.cons.with_coefficients(**{k: leaves[k] for k in "ACE"})
    cons = cons.with_rhs(**{k: leaves[k] for k in "bdf"}).with_bounds(lower=leaves["lower"], upper=leaves["upper"])
    expected = linsat.solve(leaves["y"], cons, objective=objective, on_failure="ignore")
    solved = torch.as_tensor(expected.converged)
    assert float(solved.double().mean()) >= 0.98
    torch.where(solved[:, None], expected.x * torch.tensor(weights), 0.0).sum().backward()
    pairs = {"x": (found.x, expected.x.detach())} | {k: (gradients[k], leaf.grad) for k, leaf in leaves.items()}
    if backend == "kernel":
        np.testing.assert_array_equal(found.status, expected.codes)
        for key, (ours, theirs) in pairs.items():
            np.testing.assert_array_equal(ours, theirs.numpy(), err_msg=key)
        return
    assert np.asarray(found.converged).all()  # those that the core has not solved too
    if not bool(solved.all()):  # whose gradients are not to be compared
        return
    for key, (ours, theirs) in pairs.items():
        size = max(1.0, float(theirs.abs().max()))
        # With entropic slack a coefficient that is exactly zero has no derivative: the slack of its row depends on |a|
        # and on how many coefficients are not zero.
        smooth = given[key] != 0 if key in "ACE" and objective.entropic_slack else np.full(theirs.shape, True)
        expected_gradient = np.where(smooth, theirs.numpy(), 0.0)
        np.testing.assert_allclose(np.where(smooth, ours, 0.0), expected_gradient, atol=1e-9 * size, err_msg=key)


@needs_core
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("shape", SHAPES)
def test_three_hundred_systems_are_those_of_torch(
    shape: tuple[int, int, int, int], name: str, monkeypatch: pytest.MonkeyPatch
):
    # The core alone: what it does not solve, torch hands to the method for large programs, which XLA cannot call.
    monkeypatch.setattr(Plan, "left_over", lambda *_: np.empty(0, int))
    compare_with_torch(batch(shape, 50, seed=sum(shape)), name, "kernel")


def test_forty_systems_by_lax_are_those_of_torch():
    compare_with_torch(batch(SHAPES[0], 40, seed=3), "euclidean", "arrays")


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("shape", SHAPES)
def test_three_hundred_systems_by_lax_are_those_of_torch(shape: tuple[int, int, int, int], name: str):
    compare_with_torch(batch(shape, 50, seed=sum(shape)), name, "arrays")


def test_the_core_runs_within_jax():
    """Or there would be nothing behind the tests that compare bits."""
    assert (unavailable() is None) == HAS_KERNEL
    if not HAS_KERNEL:
        with pytest.raises(linsat.ConstraintError, match="backend='kernel' cannot be used here: .*Fix: "):
            jit(lambda y: linsat.jax.project(y, CONS, solver=linsat.Newton(backend="kernel")))(jnp.asarray(Y))
        return
    text = jax.jit(lambda y: linsat.jax.project(y, CONS)).lower(jnp.asarray(Y)).as_text()
    assert "linsat_xla_solve" in text


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


# One number that is learned -> an objective; KL and Tsallis have two.
LEARNED = {
    "paper": linsat.Entropy,
    "slack-free": lambda number: linsat.Entropy(number, slack="none"),
    "weighted": lambda number: linsat.Euclidean(number * jnp.arange(1.0, 7.0)),
    "prior": lambda number: linsat.KL(number, prior=number * jnp.arange(1.0, 7.0)),
    "tsallis": lambda number: linsat.Tsallis(1.1 + number, tau=number),
}


@pytest.mark.parametrize(
    "name", ["weighted", *(pytest.param(n, marks=pytest.mark.slow) for n in LEARNED if n[0] != "w")]
)
def test_every_derivative(name: str):
    """jacfwd = jacrev; both and a second derivative against finite differences; mapped, jitted, by tau or weights."""
    rng = np.random.default_rng(2)
    weights, way, step = rng.normal(size=6), rng.normal(size=6), 1e-4
    way = jnp.asarray(way / np.linalg.norm(way))

    def x_of(y, number):
        return linsat.jax.project(y, CONS, objective=LEARNED[name](number))

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


def test_forward_mode_is_reverse_mode_for_every_number():
    """<v, J w> both ways, for tangents of scores, tau, coefficients, sides, bounds, prices; of x and of the duals."""
    rng = np.random.default_rng(4)
    cons = CONS.soften("A[0]", price=0.3)
    given = {"y": Y, "tau": np.full(4, 0.4), "A": np.array(A), "b": np.array([2.0]), "d": np.array([1.0])}
    given |= {"f": np.array([3.0]), "lower": np.zeros(6), "upper": np.linspace(0.8, 1.2, 6), "price": np.array([0.3])}
    given = {key: jnp.asarray(value) for key, value in given.items()}

    def answer(given):
        own = dict(given)
        objective = linsat.Entropy(own.pop("tau"), slack="none")
        found = linsat.jax.solve(own.pop("y"), cons, objective=objective, **own)
        return found.x, found.duals

    (x, duals), pull_back = jit(functools.partial(jax.vjp, answer))(given)
    assert float(abs(duals[:, 0]).max()) == pytest.approx(0.3)  # somewhere the soft row is broken: its price counts
    to = (jnp.asarray(rng.normal(size=x.shape)), jnp.asarray(rng.normal(size=duals.shape)))
    (gradients,) = pull_back(to)
    forward = jit(lambda given, way: jax.jvp(answer, (given,), (way,))[1])
    still = {key: jnp.zeros_like(value) for key, value in given.items()}
    for key, value in given.items():
        way = jnp.asarray(rng.normal(size=value.shape))
        moved = forward(given, {**still, key: way})
        expected = sum(float((part * cotangent).sum()) for part, cotangent in zip(moved, to, strict=True))
        assert float((gradients[key] * way).sum()) == pytest.approx(expected, abs=1e-9), key


@pytest.mark.parametrize("backend", ["auto", "arrays"])
def test_a_scan_with_gradients(backend: str):
    """Projected gradient steps: three of them in a scan are three one after the other, and so is their derivative."""
    solver = linsat.Newton(backend=backend)

    def step(y, b):
        x = linsat.jax.project(y, CONS, objective=linsat.Euclidean(), b=b, solver=solver)
        return 0.9 * x + 0.1 * y, x

    def scanned(y, sides):
        last, every = jax.lax.scan(step, y, sides)
        return (last**2).sum() + (every[1] ** 3).sum()

    def unrolled(y, sides):
        first, _ = step(y, sides[0])
        second, x = step(first, sides[1])
        return (step(second, sides[2])[0] ** 2).sum() + (x**3).sum()

    arguments = jnp.asarray(Y), jnp.asarray([[9.0], [8.0], [10.0]])
    ours, theirs = (jit(jax.grad(function, argnums=(0, 1)))(*arguments) for function in (scanned, unrolled))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("backend", ["auto", pytest.param("arrays", marks=pytest.mark.slow)])
def test_axes_mapped_over_one_another(backend: str):
    """vmap of vmap, one axis of the scores and one of the sides, gradients to what is shared: as in loops."""
    solver = linsat.Newton(backend=backend)

    def loss(y, b, upper):
        return (linsat.jax.project(y, CONS, tau=0.3, b=b, upper=upper, solver=solver) ** 2).sum()

    gradient = jax.grad(loss, argnums=(0, 1, 2))
    y, b, upper = jnp.asarray(Y), jnp.asarray([[8.0], [9.0], [10.0]]), jnp.linspace(0.8, 1.2, 6)
    nested = jit(jax.vmap(jax.vmap(gradient, in_axes=(0, None, None)), in_axes=(None, 0, None)))(y, b, upper)
    one = jit(gradient)
    for i, side in enumerate(b):
        for j, scores in enumerate(y):
            for mapped, alone in zip(nested, one(scores, side, upper), strict=True):
                np.testing.assert_allclose(mapped[i, j], alone, atol=1e-12)
    whole = jit(jax.grad(lambda upper: jax.vmap(loss, in_axes=(0, None, None))(y, b[0], upper).sum()))(upper)
    np.testing.assert_allclose(whole, nested[2][0].sum(0), atol=1e-12)


@pytest.mark.parametrize("backend", ["auto", pytest.param("arrays", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LEARNED)
def test_no_tracer_leaks(name: str, backend: str):
    cons, solver = linsat.Constraints(A=A, b=10, E=E, f=3), linsat.Newton(backend=backend)

    def loss(number):
        return linsat.jax.project(jnp.ones(6), cons, objective=LEARNED[name](number), solver=solver)[0] ** 2

    with jax.checking_leaks():
        assert np.isfinite(jit(jax.grad(loss))(jnp.asarray(0.4)))


@pytest.mark.parametrize("backend", ["auto", pytest.param("arrays", marks=pytest.mark.slow)])
def test_objectives_of_one_kind_do_not_stand_in_for_each_other(backend: str):
    """Weights and priors that only some calls have, with one set."""
    cons, solver = linsat.constraints.simplex(2), linsat.Newton(backend=backend)

    def check(y, objective, expected):
        found = jit(lambda y: linsat.jax.project(y, cons, objective=objective, solver=solver))(jnp.asarray(y))
        np.testing.assert_allclose(found, expected, atol=1e-12)

    check([1.0, 0.5], linsat.Euclidean(), [0.75, 0.25])
    check([1.0, 0.5], linsat.Euclidean(jnp.asarray([1.0, 3.0])), [0.625, 0.375])
    check([0.0, 0.0], linsat.KL(1.0), [0.5, 0.5])
    check([0.0, 0.0], linsat.KL(1.0, jnp.asarray([1.0, 3.0])), [0.25, 0.75])


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


@pytest.mark.parametrize("backend", ["auto", "arrays"])
def test_outside_of_traces_failures_are_raised(backend: str):
    y, euclidean, solver = jnp.asarray(Y), linsat.Euclidean(), linsat.Newton(backend=backend)
    with pytest.raises(linsat.InfeasibleError, match="cannot hold together"):
        jax.jit(lambda y: linsat.jax.project(y, linsat.Constraints(A=E, b=1, C=E, d=2), solver=solver))(y)
    with pytest.raises(linsat.InfeasibleError, match=r"(?s)cannot hold.*for instance 1.*"):
        linsat.jax.project(y, CONS, objective=euclidean, solver=solver, f=jnp.asarray([[3.0], [7.0], [2.5], [3.0]]))
    with pytest.warns(linsat.LinSATWarning, match="1 of 4 instances were not solved; the first is instance 1"):
        linsat.jax.solve(y, CONS, objective=euclidean, solver=solver, f=jnp.asarray([[3.0], [7.0], [2.5], [3.0]]))
    with pytest.raises(linsat.ConvergenceError, match="step_limit"):
        linsat.jax.project(y, CONS, objective=euclidean, solver=linsat.Newton(max_steps=1, backend=backend))


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
    """A set with other right-hand sides for each instance, another block given with the call, a block missing."""
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
        ({"b": jnp.ones(2)}, r"b has shape \(2,\) but A has 1 row"),
        ({"b": jnp.ones((3, 1))}, "do not broadcast|does not broadcast"),
        ({"b": jnp.asarray([-jnp.inf])}, r"b\[0\] is -inf; expected a finite number, or inf for no row"),
        ({"d": jnp.ones(1), "constraints": sparse}, "the set has no C rows"),
        ({"A": jnp.ones((1, 5))}, r"A has shape \(1, 5\); expected \(..., 1, 6\)"),
        ({"lower": jnp.ones(5)}, "lower has 5"),
        ({"lower": 1.0, "upper": 0.0}, "lower = 1.0 is above upper = 0.0"),
        ({"price": 1.0}, "no row of the set is soft"),
        ({"start": jnp.ones((4, 2))}, r"start has shape \(4, 2\)"),
        ({"solver": linsat.Sinkhorn()}, "linsat.jax has linsat.Newton"),
        ({"solver": linsat.Newton(backend="triton")}, "backend is 'triton'; linsat.jax has .*Fix: "),
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


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("b", lambda v: linsat.Constraints(A=A, b=v)),
        ("x", lambda v: linsat.decode.top_k(v, 2)),
        ("x", lambda v: CONS.violation(v)),
    ],
    ids=["set", "decoder", "violation"],
)
def test_traced_numbers_where_known_ones_are_needed_are_sent_to_the_call(name, use):
    """Not JAX's own error, which names neither the argument nor the way out."""
    with pytest.raises(linsat.ConstraintError, match=rf"^{name} is traced by JAX.* Fix: .*project\(y, cons, b=b\)\."):
        jax.make_jaxpr(use)(jnp.ones(1 if name == "b" else 6))
