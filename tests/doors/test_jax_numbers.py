"""`linsat.jax` with numbers that are absent, masked or cannot be, known or traced: status, x and gradients.

Expected points are Clarabel's or closed forms; derivatives are its finite differences.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import linsat
from tests.helpers.oracles import System, nearest_point, slack_free_optimum

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import linsat.jax
from linsat.status import Status

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
A, C, E = [[3.0, 1, 4, 1]], [[1.0, 1, 0, 0]], [[1.0, 1, 1, 1]]
CONS = linsat.Constraints(A=A, b=4.0, C=C, d=0.5, E=E, f=2.0)
SYSTEM = System(np.array(A + C + E), ["<=", ">=", "=="], np.array([4.0, 0.5, 2.0]), np.zeros(4))
SOFT = CONS.soften("A[0]", price=0.5)
Y = np.random.default_rng(0).normal(size=(3, 4))
EUCLIDEAN = linsat.Euclidean()


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def optimum(given: dict[str, np.ndarray], name: str, cons: dict | None = None) -> np.ndarray:
    """x of one instance: absent rows left out, variables of score -inf left out at 0, by Clarabel."""
    numbers = {"A": A, "b": [4.0], "C": C, "d": [0.5], "E": E, "f": [2.0], "lower": np.zeros(4), "upper": np.ones(4)}
    numbers = {key: np.asarray(value, dtype=float) for key, value in {**numbers, **(cons or {}), **given}.items()}
    matrix = np.concatenate([numbers["A"], numbers["C"], numbers["E"]])
    rhs, free = np.concatenate([numbers["b"], numbers["d"], numbers["f"]]), numbers["y"] > -np.inf
    kept = [i for i, side in enumerate(rhs) if np.isfinite(side)]
    senses = ["<="] * len(numbers["A"]) + [">="] * len(numbers["C"]) + ["=="] * len(numbers["E"])
    price = numbers["price"][kept] if "price" in given else None
    system = System(
        matrix[kept][:, free],
        [senses[i] for i in kept],
        rhs[kept],
        np.zeros(free.sum()),
        numbers["lower"][free],
        numbers["upper"][free],
    )
    if name == "euclidean":
        found = nearest_point(system, numbers["y"][free], numbers.get("weights", np.ones(4))[free], price)
    else:
        found = slack_free_optimum(system, numbers["y"][free], float(numbers["tau"]), price)
    assert found is not None
    x = np.zeros(4)
    x[free] = found
    return x


def objective_of(name: str, given: dict) -> linsat.Objective:
    if name == "euclidean":
        return linsat.Euclidean(given.pop("weights", None))
    return linsat.Entropy(given.pop("tau"), slack="none")


# instance -> (the number that differs, its value; None: the whole instance is as drawn, status)
CASES = [
    (None, None, None, "converged"),
    ("upper", 0, -1.0, "infeasible"),
    ("upper", 1, np.nan, "not_finite"),
    ("lower", 1, np.nan, "not_finite"),
    ("price", 0, 0.0, "not_finite"),
    ("price", 0, -1.0, "not_finite"),
    ("y", 0, np.nan, "not_finite"),
    ("y", 0, np.inf, "not_finite"),
    ("number", 0, -1.0, "not_finite"),
    ("b", 0, np.nan, "not_finite"),
    ("b", 0, np.inf, "converged"),
    ("d", 0, -np.inf, "converged"),
    ("d", 0, np.inf, "infeasible"),
    ("A", 1, np.nan, "not_finite"),
    ("y", 2, -np.inf, "converged"),
    (None, None, None, "converged"),
]


def drawn(name: str) -> dict[str, np.ndarray]:
    """Numbers for each of `CASES`, as they are before one of them is changed."""
    rng, n = np.random.default_rng(1), len(CASES)
    given = {"y": rng.normal(size=(n, 4)), "b": rng.uniform(2.5, 4, (n, 1)), "d": rng.uniform(0.2, 0.9, (n, 1))}
    given |= {"A": np.array(A) * rng.uniform(0.8, 1.2, (n, 1, 4)), "lower": np.zeros((n, 4)), "upper": np.ones((n, 4))}
    given["price"] = np.concatenate([rng.uniform(0.1, 0.5, (n, 1)), np.full((n, 2), np.inf)], -1)
    number = {"weights": rng.uniform(0.5, 2.0, (n, 4))} if name == "euclidean" else {"tau": rng.uniform(0.2, 0.5, n)}
    return given | number


@pytest.mark.parametrize("name", ["euclidean", "entropy"])
def test_numbers_that_cannot_be_end_in_a_status_and_touch_nobody_else(name: str):
    given, number = drawn(name), "weights" if name == "euclidean" else "tau"
    for i, (key, place, value, _) in enumerate(CASES):
        if key is not None:
            given[number if key == "number" else key][i].reshape(-1)[place : place + 1] = (
                value if key != "number" else 0
            )
            if key == "number":
                given[number][i, ...] = value
    way = np.random.default_rng(2).normal(size=given["y"].shape)

    def loss(given):
        own = dict(given)
        objective = objective_of(name, own)
        found = linsat.jax.solve(own.pop("y"), SOFT, objective=objective, on_failure="nan", **own)
        return jnp.where(found.converged[:, None], found.x * way, 0.0).sum(), found

    (_, found), gradients = jit(jax.value_and_grad(loss, has_aux=True))({k: jnp.asarray(v) for k, v in given.items()})
    assert [str(Status.of(int(code))) for code in found.status] == [status for *_, status in CASES]
    fine = np.array([status == "converged" for *_, status in CASES])
    assert np.isnan(found.x).all(-1).tolist() == (~fine).tolist()
    assert np.isnan(found.violation).tolist() == (~fine).tolist()
    for key, gradient in gradients.items():
        assert np.isfinite(gradient).all(), key
        assert not np.asarray(gradient)[~fine].any(), key
    assert float(gradients["y"][14, 2]) == 0
    assert float(gradients["b"][10, 0]) == 0
    for i in np.flatnonzero(fine):
        one = {key: value[i] for key, value in given.items()}
        np.testing.assert_allclose(found.x[i], optimum(one, name), atol=1e-6)
        ahead, behind = (optimum({**one, "y": one["y"] + h * way[i]}, name) for h in (1e-4, -1e-4))
        expected = way[i] @ (ahead - behind) / 2e-4
        assert float(gradients["y"][i] @ way[i]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("key", ["b", "upper", *(pytest.param(k, marks=pytest.mark.slow) for k in "yAlEfp")])
def test_one_argument_traced_or_mapped_and_the_others_known(key: str):
    """jit and vmap over one argument alone, every other one a constant; a scan over it."""
    key = {"l": "lower", "p": "price"}.get(key, key)
    given = {k: v[0] for k, v in drawn("euclidean").items()}
    given |= {"E": np.array(E), "f": np.array([2.0])}
    one, other = given.pop(key), drawn("euclidean").get(key, [None, None])[1]
    other = one * 0.9 if other is None else other
    several, known = jnp.asarray(np.stack([one, other])), {k: jnp.asarray(v) for k, v in given.items()}

    def x_of(value):
        own = {**known, key: value}
        objective = linsat.Euclidean(own.pop("weights"))
        return linsat.jax.project(own.pop("y"), SOFT, objective=objective, **own)

    expected = [optimum({**given, key: value}, "euclidean") for value in (one, other)]
    np.testing.assert_allclose(jit(x_of)(jnp.asarray(one)), expected[0], atol=1e-6)
    np.testing.assert_allclose(jit(jax.vmap(x_of))(several), expected, atol=1e-6)
    scanned = jit(lambda several: jax.lax.scan(lambda carry, value: (carry, x_of(value)), 0, several)[1])
    np.testing.assert_allclose(scanned(several), expected, atol=1e-6)


def test_a_known_batch_beside_a_traced_number():
    y = jnp.asarray(Y)

    @jit
    def both(b, tau):
        nearest = linsat.jax.project(y, CONS, objective=EUCLIDEAN, b=b)
        return nearest, linsat.jax.project(y, CONS, objective=linsat.Entropy(tau, slack="none"))

    nearest, entropic = both(jnp.asarray([3.0]), jnp.asarray(0.3))
    np.testing.assert_allclose(nearest, [optimum({"y": y, "b": [3.0]}, "euclidean") for y in Y], atol=1e-6)
    expected = [slack_free_optimum(SYSTEM, scores, 0.3) for scores in Y]
    vouched = [i for i, point in enumerate(expected) if point is not None]
    assert len(vouched) >= 2
    for i in vouched:
        np.testing.assert_allclose(entropic[i], expected[i], atol=1e-6)


def test_the_gradient_beside_a_contradictory_instance():
    """Four variables of at most one cannot sum to seven: x is NaN there, its gradient zero, and nothing is raised."""
    f = np.array([[2.0], [7.0], [2.5]])
    x, pull_back = jax.vjp(lambda f: linsat.jax.project(jnp.asarray(Y), CONS, objective=EUCLIDEAN, f=f), jnp.asarray(f))
    assert np.isnan(x).all(-1).tolist() == [False, True, False]
    (gradient,) = pull_back(jnp.asarray(np.where(np.isnan(x), 0.0, Y)))
    assert float(gradient[1, 0]) == 0
    for i in (0, 2):
        ahead, behind = (optimum({"y": Y[i], "f": f[i] + h}, "euclidean") for h in (1e-4, -1e-4))
        assert float(gradient[i, 0]) == pytest.approx(Y[i] @ (ahead - behind) / 2e-4, abs=1e-4)


def test_a_contradictory_set_is_rejected_under_jit_unless_the_call_replaces_its_numbers():
    contradictory = linsat.Constraints(A=E, b=1.0, C=E, d=1.5)
    unbounded = linsat.Constraints(A=E, b=1.0, C=E, d=1.5, lower=-np.inf, upper=np.inf)
    for cons in (contradictory, unbounded):
        with pytest.raises(linsat.InfeasibleError, match="cannot hold together"):
            jit(lambda y, cons=cons: linsat.jax.project(y, cons, objective=EUCLIDEAN))(jnp.asarray(Y))
    for objective in (EUCLIDEAN, linsat.Entropy(0.3, slack="none")):
        b = jnp.asarray([1.5])
        x = jit(lambda y, b, o=objective: linsat.jax.project(y, contradictory, objective=o, b=b))(jnp.zeros(4), b)
        np.testing.assert_allclose(x, 0.375, atol=1e-9)


def test_sets_without_rows():
    box = linsat.Constraints(lower=[0.0, -1.0, 0.0, 0.0], upper=[1.0, 1.0, 2.0, 0.5])
    low, high = np.asarray(box.lower), np.asarray(box.upper)
    x, gradient = jit(jax.vmap(lambda y: (
        linsat.jax.project(y, box, objective=EUCLIDEAN),
        jax.jacrev(lambda y: linsat.jax.project(y, box, objective=EUCLIDEAN))(y),
    )))(jnp.asarray(Y))  # fmt: skip
    np.testing.assert_array_equal(x, np.clip(Y, low, high))
    np.testing.assert_array_equal(gradient, np.stack([np.diag((low < y) & (y < high)).astype(float) for y in Y]))
    share = 1 / (1 + np.exp(-(high - low) * Y / 0.3))
    found = linsat.jax.solve(jnp.asarray(Y), box, tau=0.3)
    np.testing.assert_allclose(found.x, low + (high - low) * share, atol=1e-12)
    assert found.converged.all()
    assert found.duals.shape == (3, 0)
    anywhere = linsat.Constraints(lower=0.0, upper=1.0)
    np.testing.assert_array_equal(
        jit(lambda y: linsat.jax.project(y, anywhere, objective=EUCLIDEAN))(jnp.asarray(Y)), np.clip(Y, 0, 1)
    )


def test_scores_of_minus_infinity_known_to_the_host():
    cons = linsat.Constraints(E=E, f=1.0)
    masked = np.array([[-np.inf, 1.0, 0.5, -np.inf], [0.2, -np.inf, -np.inf, -np.inf], [1.0, 2.0, 0.3, 0.1]])
    x = linsat.jax.project(jnp.asarray(masked), cons, objective=EUCLIDEAN)
    np.testing.assert_allclose(x, [[0, 0.75, 0.25, 0], [1, 0, 0, 0], [0, 1, 0, 0]], atol=1e-12)
    # With entropy, what is left may be forced: two of two. The paper's slack is that of the whole box, as at -1e4.
    twice = linsat.Constraints(A=A, b=9.0, E=E, f=2.0)
    y = np.array([[-np.inf, 0.3, 0.1, -np.inf], [-np.inf, 0.3, 0.2, 0.1]])
    x = linsat.jax.project(jnp.asarray(y), twice, tau=0.3)
    np.testing.assert_array_equal(x[0], [0, 1, 1, 0])
    np.testing.assert_allclose(x[1], linsat.project(np.where(y[1] < -1, -1e4, y[1]), twice, tau=0.3), atol=1e-9)
    with pytest.raises(linsat.InfeasibleError, match=r"(?s)cannot hold.*for instance 1"):
        linsat.jax.project(jnp.asarray([[0.0, 0, 0, 0], [-np.inf] * 3 + [0.0]]), twice, objective=EUCLIDEAN)
    for bad in (np.nan, np.inf):
        with pytest.raises(linsat.ConstraintError, match="y holds (nan|inf).*Fix: "):
            linsat.jax.project(jnp.asarray([0.0, bad, 0, 0]), cons, objective=EUCLIDEAN)
    open_box = linsat.Constraints(E=E, f=1.0, lower=-np.inf)
    with pytest.raises(linsat.ConstraintError, match="lower bound; that is -inf too. Fix: "):
        linsat.jax.project(jnp.asarray(masked), open_box, objective=EUCLIDEAN)


def test_one_bad_instance_does_not_stop_the_others():
    y, b = Y.copy(), np.array([[4.0], [np.inf], [np.nan]])
    y[0, 1] = np.nan
    found = linsat.jax.solve(jnp.asarray(y), CONS, objective=EUCLIDEAN, b=jnp.asarray(b), on_failure="nan")
    assert [str(Status.of(int(code))) for code in found.status] == ["not_finite", "converged", "not_finite"]
    np.testing.assert_allclose(found.x[1], optimum({"y": Y[1], "b": b[1]}, "euclidean"), atol=1e-6)
    assert np.isnan(np.asarray(found.x)[[0, 2]]).all()
    with pytest.raises(
        linsat.ConstraintError, match=r"b\[0\] is -inf; expected a finite number, or inf for no row. Fix: "
    ):
        linsat.jax.project(jnp.asarray(Y), CONS, objective=EUCLIDEAN, b=jnp.asarray([-np.inf]), on_failure="nan")
    with pytest.raises(linsat.ConstraintError, match="finite box. Fix: "):
        linsat.jax.project(jnp.asarray(Y), CONS, upper=jnp.inf)


@pytest.mark.parametrize(
    "arguments",
    [
        {"E": [[1e9, 1.0]], "f": 0.5},
        {"E": [[1.0, 1.0]], "f": 1.0, "upper": 1e9},
        {"A": [[1.0, 0]], "b": 1.0, "C": [[1.0, 1e6]], "d": 1.0},
    ],
)
def test_what_is_called_converged_holds(arguments: dict):
    cons = linsat.Constraints(**arguments)
    for objective in (linsat.Entropy(0.1, slack="none"), EUCLIDEAN):
        found = linsat.jax.solve(jnp.zeros(2), cons, objective=objective, on_failure="ignore")
        if bool(found.converged):
            assert float(cons.violation(np.asarray(found.x))) <= 1e-9


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (1, 4), (1, 1, 4)])
def test_batches_of_none_and_of_one(shape: tuple[int, ...]):
    found = jit(lambda y, b: linsat.jax.solve(y, CONS, objective=EUCLIDEAN, b=b))(jnp.zeros(shape), jnp.asarray([4.0]))
    assert found.x.shape == shape
    assert found.status.shape == found.violation.shape == shape[:-1]
    assert found.duals.shape == (*shape[:-1], 3)
    expected = optimum({"y": np.zeros(4)}, "euclidean")
    np.testing.assert_allclose(found.x, np.broadcast_to(expected, shape), atol=1e-6)


def test_values_of_the_non_zeros_stand_for_a_matrix_with_zeros():
    """A traced matrix may have coefficients where the set has none: its values come alone, as the message says."""
    cons = linsat.Constraints(E=[[1.0, 0.0, 2.0]], f=[1.0], C=[[0.0, 1.0, 0.0]], d=[0.2])
    y = jnp.array([0.3, 0.1, 0.9])
    x = jit(lambda values: linsat.jax.project(y, cons, objective=EUCLIDEAN, E=values))(jnp.array([1.0, 3.0]))
    np.testing.assert_allclose(x, [0.1, 0.2, 0.3], atol=1e-9)  # (0.3, 0.9) less (1, 3) times 2 / 10; 0.1 up to 0.2


NAMED = linsat.Constraints(A=A, b=4.0, C=C, d=0.5, E=E, f=2.0, names=["weight", "floor", "total"])


@pytest.mark.parametrize("traced", [False, True])
def test_right_hand_sides_by_the_names_of_rows(traced) -> None:
    """As in torch: the other rows keep theirs, also those given by kind; values and gradients are Clarabel's."""

    def projected(limit, total, floor):
        rhs = {"weight": limit, "total": total}
        return linsat.jax.project(Y[0], NAMED, objective=EUCLIDEAN, rhs=rhs, d=floor)

    def expected(limit, total):
        return optimum({"y": Y[0], "b": [limit], "f": [total], "d": [0.3]}, "euclidean")

    projected = jax.jit(projected) if traced else projected
    np.testing.assert_allclose(projected(3.5, 1.8, jnp.array([0.3])), expected(3.5, 1.8), atol=1e-7)
    weights, h = jnp.arange(1.0, 5.0), 1e-3
    slopes = jax.grad(lambda *own: weights @ projected(*own, jnp.array([0.3])), argnums=(0, 1))(3.5, 1.8)
    for slope, step in zip(slopes, np.eye(2) * h, strict=True):
        ahead, behind = (expected(*(np.array([3.5, 1.8]) + sign * step)) for sign in (1, -1))
        np.testing.assert_allclose(slope, weights @ (ahead - behind) / (2 * h), rtol=1e-4)
    several = jax.vmap(lambda limit: linsat.jax.project(Y[0], NAMED, objective=EUCLIDEAN, rhs={"weight": limit}))
    for limit, x in zip((3.0, 3.5), several(jnp.array([3.0, 3.5])), strict=True):
        np.testing.assert_allclose(x, optimum({"y": Y[0], "b": [limit]}, "euclidean"), atol=1e-7)


def test_names_of_rows_that_are_not_there() -> None:
    for call in (linsat.jax.project, jit(linsat.jax.project, static_argnums=1)):
        with pytest.raises(linsat.ConstraintError, match="No row is named 'wieght'.*did you mean 'weight'"):
            call(Y, NAMED, rhs={"wieght": 1.0})


def test_sides_given_in_single_precision_say_what_rounding_took() -> None:
    """Known or traced, given with the call or of the set: the largest relative change, and 0 of consistent ones."""
    up = np.nextafter(np.float32(0.7), np.float32(1))
    f = np.array([[0.7, up], [0.5, 0.5]], np.float32)
    twice = linsat.Constraints(E=[[1.0, 1, 0], [1, 1, 0]], f=[0.7, 0.7])
    # The least sum of squares of relative changes is the same for both but for its sign: half the difference.
    expected = [(float(up) - float(np.float32(0.7))) / 2 / float(up), 0.0]
    for given in (f, jnp.asarray(f)):
        for call in (linsat.jax.solve, jit(linsat.jax.solve, static_argnums=1)):
            np.testing.assert_allclose(call(np.zeros((2, 3)), twice, f=given).adjusted, expected, rtol=1e-6)
    np.testing.assert_allclose(linsat.jax.solve(np.zeros((2, 3)), twice.with_rhs(f=f)).adjusted, expected, rtol=1e-6)
    assert not linsat.jax.solve(np.zeros((2, 3)), twice.with_rhs(f=f), f=f[1].astype(float)).adjusted.any()


def test_a_set_may_be_an_argument_and_a_side_one_number_where_jax_traces() -> None:
    expected = optimum({"y": Y[0], "b": [3.5]}, "euclidean")

    @jit
    def projected(y, cons, b):
        return linsat.jax.project(y, cons, objective=EUCLIDEAN, b=b)

    np.testing.assert_allclose(projected(Y[0], CONS, 3.5), expected, atol=1e-7)
    np.testing.assert_allclose(linsat.jax.project(Y[0], CONS, objective=EUCLIDEAN, b=3.5), expected, atol=1e-7)
    assert np.array_equal(linsat.jax.project(Y, CONS, rhs={}), linsat.jax.project(Y, CONS))
    with pytest.raises(linsat.ConstraintError, match=r"the batch dimensions \(5,\) of b do not broadcast with \(3,\)"):
        jit(lambda b: linsat.jax.project(Y, CONS, b=b))(np.ones((5, 1)))
    every = jax.vmap(linsat.jax.project, in_axes=(0, None))(Y, CONS)
    np.testing.assert_allclose(every, linsat.jax.project(Y, CONS), atol=1e-9)
