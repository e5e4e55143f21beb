"""What the suites of other packages claim, stated in linsat: by closed forms and Clarabel, and beside the package
itself where it is installed.

POT, entmax, torchsort, qpth, ProxSuite, JAXopt, MinTrace and sets of actions; more of the same kind stands with the
objectives (`test_objectives_*`), the layers (`test_layers_cases`), the adapters and JAX (`test_jax_peers`). Scores,
rows and bounds are always the peer's own numbers: no Cholesky factor, no split into positive parts.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression
from scipy.special import logsumexp

import linsat
from linsat.constraints import simplex, top_k

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the peers' own
F64 = torch.float64
Array = np.ndarray


def installed(name: str) -> Any:
    """A peer, or None: what has been judged without it then stands alone."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def clarabel(goal: Any, rows: list[Any], x: Any) -> Array:
    cp.Problem(cp.Minimize(goal), rows).solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return np.asarray(x.value)


# ------------------------------------------------------------------ POT: batches, smooth and partial plans


def plan_set(a: Any, b: Any) -> linsat.Constraints:
    x = linsat.Variable(len(a), len(b), name="plan", upper=np.inf)
    return linsat.subject_to(x.sum(1) == a, x.sum(0) == b)


def test_plans_of_a_batch() -> None:
    """One call for costs and masses of each instance; the conditions of a Gibbs plan, and POT's batch solver."""
    rng = np.random.default_rng(0)
    cost, reg = rng.random((4, 5, 6)), 0.1
    a, b = rng.dirichlet(np.ones(5), 4), rng.dirichlet(np.ones(6), 4)
    cons = plan_set(np.ones(5), np.ones(6))
    found = linsat.project(-cost, cons, objective=linsat.KL(reg), f=np.concatenate([a, b], -1))
    np.testing.assert_allclose(found.sum(2), a, atol=1e-12)
    np.testing.assert_allclose(found.sum(1), b, atol=1e-12)
    potentials = reg * np.log(found) + cost  # f_i + g_j
    mixed = potentials - potentials[:, :1] - potentials[:, :, :1] + potentials[:, :1, :1]
    np.testing.assert_allclose(mixed, 0.0, atol=1e-9)
    ot = installed("ot")
    if ot is None:
        return
    theirs = ot.solve_batch(
        *map(torch.tensor, (cost,)), reg, torch.tensor(a), torch.tensor(b), max_iter=20_000, tol=1e-13
    )
    np.testing.assert_allclose(found, theirs.plan, atol=1e-8)


@pytest.mark.parametrize("reg", [0.1, 1.0])
def test_smooth_plans(reg: float) -> None:
    """A quadratic in place of the entropy: sparse plans. By Clarabel, and POT's two smooth solvers."""
    rng = np.random.default_rng(1)
    a, b, cost = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(5)), rng.random((4, 5))
    found = linsat.project(-cost, plan_set(a, b), objective=linsat.Quadratic(reg * np.eye(20)))
    weighted = linsat.project(-cost / reg, plan_set(a, b), objective=linsat.Euclidean())
    x = cp.Variable((4, 5), nonneg=True)
    goal = cp.sum(cp.multiply(cost, x)) + reg * cp.sum_squares(x) / 2
    expected = clarabel(goal, [cp.sum(x, 1) == a, cp.sum(x, 0) == b], x)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(weighted, found, atol=1e-9)
    assert (found == 0).any()
    ot = installed("ot")
    if ot is None:
        return
    for solver in (ot.smooth.smooth_ot_dual, ot.smooth.smooth_ot_semi_dual):
        np.testing.assert_allclose(found, solver(a, b, cost, reg, reg_type="l2", stopThr=1e-13), atol=1e-5)
    entropic = linsat.project(-cost, plan_set(a, b), objective=linsat.KL(reg))
    theirs = ot.smooth.smooth_ot_dual(a, b, cost, reg, reg_type="kl", stopThr=1e-13)
    np.testing.assert_allclose(entropic, theirs, atol=1e-5)


def test_partial_plans() -> None:
    """Some of the mass only. The linear program is the limit of small regularisation: by HiGHS, and POT's own."""
    rng = np.random.default_rng(2)
    a, b, cost, mass = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(5)), rng.random((4, 5)), 0.5
    x = linsat.Variable(4, 5, name="plan", upper=np.inf)
    some = linsat.subject_to(x.sum(1) <= a, x.sum(0) <= b, x.sum() == mass)
    cheapest = linsat.project(-cost, some, objective=linsat.Quadratic(1e-9 * np.eye(20)))
    free = cp.Variable((4, 5), nonneg=True)
    goal = cp.sum(cp.multiply(cost, free))
    least = cp.Problem(cp.Minimize(goal), [cp.sum(free, 1) <= a, cp.sum(free, 0) <= b, cp.sum(free) == mass])
    assert (cost * cheapest).sum() == pytest.approx(least.solve(solver=cp.HIGHS), abs=1e-8)
    ot = installed("ot")
    if ot is None:
        return
    np.testing.assert_allclose(cheapest, ot.partial.partial_wasserstein(a, b, cost, m=mass), atol=1e-7)


# ------------------------------------------------------------------ entmax


def test_entmax_by_hand() -> None:
    """Two classes a distance d apart: sparsemax cuts at d = 1; of entmax 1.5 the roots are d / 2 apart."""
    two = simplex(2)
    for d in (0.0, 0.3, 0.9, 1.4, 2.5):
        y = np.array([d, 0.0])
        first = min(1.0, (1 + d) / 2)
        np.testing.assert_allclose(linsat.project(y, two, objective=linsat.Tsallis(2.0)), [first, 1 - first], atol=1e-9)
        root = (d / 2 + np.sqrt(max(0.0, 2 - d * d / 4))) / 2 if d < 2 else 1.0
        expected = [root**2, 1 - root**2]
        np.testing.assert_allclose(linsat.project(y, two, objective=linsat.Tsallis(1.5)), expected, atol=1e-8)


def test_entmax_itself() -> None:
    """sparsemax, entmax with alpha for each row and learned, budgets, masks and losses of the package (1.3)."""
    entmax = pytest.importorskip("entmax")
    draw = torch.Generator().manual_seed(0)
    y = torch.randn((6, 8), generator=draw, dtype=F64, requires_grad=True)
    weights = torch.randn((6, 8), generator=draw, dtype=F64)
    cons = simplex(8)
    for alpha, theirs in ((2.0, entmax.sparsemax(y)), (1.5, entmax.entmax15(y))):
        ours = linsat.project(y, cons, objective=linsat.Tsallis(alpha))
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=0)
        own, other = (torch.autograd.grad((x * weights).sum(), y)[0] for x in (ours, theirs))
        torch.testing.assert_close(own, other, atol=1e-7, rtol=0)
    alpha = torch.linspace(1.2, 2.2, 6, dtype=F64).requires_grad_()
    ours = linsat.project(y, cons, objective=linsat.Tsallis(alpha))
    theirs = entmax.entmax_bisect(y, alpha[:, None], n_iter=60)
    torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=0)
    for own, other in zip(*(torch.autograd.grad((x * weights).sum(), (y, alpha)) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(own, other, atol=1e-6, rtol=0)
    within = linsat.project(y, top_k(8, 3), objective=linsat.Euclidean())
    torch.testing.assert_close(within, entmax.budget_bisect(y, budget=3, n_iter=60), atol=1e-8, rtol=0)
    masked = y.detach().clone()
    masked[:, ::3] = -torch.inf
    ours = linsat.project(masked, cons, objective=linsat.Tsallis(1.5))
    torch.testing.assert_close(ours, entmax.entmax_bisect(masked, 1.5, n_iter=60), atol=1e-8, rtol=0)
    assert (ours[:, ::3] == 0).all()
    labels = torch.tensor([0, 3, 7, 1, 1, 5])
    target = torch.nn.functional.one_hot(labels, 8).to(F64)
    for alpha, loss in ((2.0, entmax.sparsemax_loss), (1.5, entmax.entmax15_loss)):
        own = linsat.fenchel_young_loss(y, target, cons, objective=linsat.Tsallis(alpha), reduction="none")
        torch.testing.assert_close(own, loss(y, labels), atol=1e-8, rtol=0)


# ------------------------------------------------------------------ torchsort: projections onto the permutahedron


def permutahedron(w: Array, lower: float = -np.inf) -> linsat.Constraints:
    """Convex combinations of all orders of w: no k entries exceed the k largest of w, and all add up to its sum."""
    n, most = len(w), np.cumsum(np.sort(w)[::-1])
    rows = np.array([list(row) for row in itertools.product([0.0, 1.0], repeat=n) if 0 < sum(row) < n])
    side = most[rows.sum(1).astype(int) - 1]
    return linsat.Constraints(A=rows, b=side, E=np.ones((1, n)), f=[most[-1]], lower=lower, upper=np.inf)


def pooled(s: Array, w: Array, kl: bool) -> Array:
    """z less the isotonic regression of z - w, both falling: by pooling neighbours that are out of order."""
    blocks: list[list[int]] = []

    def level(block: list[int]) -> float:
        return float(logsumexp(s[block]) - logsumexp(w[block])) if kl else float((s[block] - w[block]).mean())

    for i in range(len(s)):
        blocks.append([i])
        while len(blocks) > 1 and level(blocks[-2]) <= level(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return s - np.concatenate([np.full(len(block), level(block)) for block in blocks])


def soft_order(z: Array, w: Array, kl: bool = False) -> Array:
    """The projection of z onto the orders of w, as torchsort computes it: sort, pool, put back."""
    order = np.argsort(-z)
    found = np.empty_like(z)
    found[order] = pooled(z[order], np.sort(w)[::-1], kl)
    return found


def test_soft_ranks_and_soft_sorts() -> None:
    """Of Blondel et al., Fast differentiable sorting and ranking, whose README has these numbers."""
    ranks, nearest = np.array([3.0, 2.0, 1.0]), linsat.Euclidean()
    for values, strength, expected in (
        ([5.0, 1.0, 2.0], 2.0, [3.0, 1.25, 1.75]),
        ([2.0, 1.0, 5.0], 2.0, [1.75, 1.25, 3.0]),
        ([5.0, 1.0, 2.0], 1.0, [3.0, 1.0, 2.0]),
    ):
        found = linsat.project(np.array(values) / strength, permutahedron(ranks), objective=nearest)
        np.testing.assert_allclose(found, expected, atol=1e-9)
    for strength, expected in ((1.0, [5 / 3, 8 / 3, 11 / 3]), (0.1, [1.0, 2.0, 5.0])):
        found = linsat.project(ranks[::-1] / strength, permutahedron(np.array([5.0, 1.0, 2.0])), objective=nearest)
        np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("strength", [0.1, 1.0, 5.0])
def test_the_permutahedron_by_its_rows_is_isotonic_regression(strength: float) -> None:
    """Euclidean and KL, against pooling; the isotonic regression itself is a projection too, that of SciPy."""
    rng = np.random.default_rng(3)
    w, n = np.arange(5.0, 0.0, -1.0), 5
    for y in rng.normal(size=(4, n)):
        z = y / strength
        ranks = linsat.project(z, permutahedron(w), objective=linsat.Euclidean())
        np.testing.assert_allclose(ranks, soft_order(z, w), atol=1e-8)
        mass = linsat.project(z, permutahedron(np.exp(w), lower=0.0), objective=linsat.KL(1.0))
        np.testing.assert_allclose(np.log(mass), soft_order(z, w, kl=True), atol=1e-6)
        v = linsat.Variable(n, name="v", lower=-np.inf, upper=np.inf)
        rising = linsat.project(z, linsat.subject_to(v.diff() >= 0), objective=linsat.Euclidean())
        np.testing.assert_allclose(rising, isotonic_regression(z).x, atol=1e-9)


def test_the_permutahedron_from_doubly_stochastic_matrices() -> None:
    """x = B w with B free of any cost, for sizes at which there are too many subsets; and its derivative."""
    rng = np.random.default_rng(4)
    n = 8
    w, z = np.arange(n, 0.0, -1.0), rng.normal(size=n) * 2
    x, B = linsat.Variable(n, name="x", lower=-np.inf, upper=np.inf), linsat.Variable(n, n, name="B")
    cons = linsat.subject_to(x == B @ w, B.sum(0) == 1, B.sum(1) == 1)
    P = np.diag(np.r_[np.ones(n), np.zeros(n * n)])
    found = linsat.project({"x": z, "B": np.zeros((n, n))}, cons, objective=linsat.Quadratic(P))
    np.testing.assert_allclose(found["x"], soft_order(z, w), atol=1e-8)
    torchsort = installed("torchsort")
    if torchsort is None:
        return
    theirs = torchsort.soft_rank(torch.tensor(z)[None], regularization="l2", regularization_strength=1.0)
    np.testing.assert_allclose(found["x"], theirs[0], atol=1e-5)


def test_the_derivative_of_a_soft_rank_averages_its_blocks() -> None:
    y = torch.tensor([0.1, 0.2, 5.0, 5.05, 12.0], dtype=F64, requires_grad=True)
    cons = permutahedron(np.arange(5.0, 0.0, -1.0))
    slopes = torch.autograd.functional.jacobian(lambda y: linsat.project(y, cons, objective=linsat.Euclidean()), y)
    expected = np.zeros((5, 5))
    for block in ([0, 1], [2, 3]):  # that stand together; the last keeps its rank
        expected[np.ix_(block, block)] = np.eye(2) - 0.5
    np.testing.assert_allclose(slopes, expected, atol=1e-9)


# ------------------------------------------------------------------ qpth, ProxSuite, JAXopt: quadratic programs


def quadratic_program(seed: int, n: int = 6, batch: int = 3) -> dict[str, Array]:
    """In their words: min z'Qz / 2 + p'z with G z <= h and A z = b, a known point inside."""
    rng = np.random.default_rng(seed)
    L, point = rng.normal(size=(n, n)), rng.normal(size=n)
    G, A = rng.normal(size=(5, n)), rng.normal(size=(2, n))
    return {
        "Q": L @ L.T + 0.1 * np.eye(n), "p": 3 * rng.normal(size=(batch, n)),
        "G": G, "h": G @ point + 0.3 * rng.random(5), "A": A, "b": A @ point,
    }  # fmt: skip


def conditions(program: dict[str, Array], p: Array, x: Array, ineq: Array, eq: Array) -> float:
    """The worst of what is left of the conditions of Karush, Kuhn and Tucker."""
    slack = program["h"] - program["G"] @ x
    left = program["Q"] @ x + p + program["G"].T @ ineq + program["A"].T @ eq
    rows = np.r_[np.minimum(slack, 0), program["A"] @ x - program["b"]]
    return float(np.abs(np.r_[left, rows, np.minimum(ineq, 0), ineq * slack]).max())


def quadratic_set(program: dict[str, Array]) -> linsat.Constraints:
    rows = {"A": program["G"], "b": program["h"], "E": program["A"], "f": program["b"]}
    return linsat.Constraints(**rows, lower=-np.inf, upper=np.inf)


@pytest.mark.parametrize("seed", range(3))
def test_programs_and_gradients_of_qpth(seed: int) -> None:
    """Values by their conditions, with multipliers; beside QPFunction (0.0.18) values and gradients to every number."""
    program = quadratic_program(seed)
    solution = linsat.solve(-program["p"], quadratic_set(program), objective=linsat.Quadratic(program["Q"]))
    for p, x, duals in zip(program["p"], solution.x, solution.duals, strict=True):
        assert conditions(program, p, x, -duals[:5], -duals[5:]) < 1e-9
    qpth = installed("qpth.qp")
    if qpth is None:
        return
    made = {name: torch.tensor(value, requires_grad=True) for name, value in program.items()}
    numbers = {"A": made["G"], "b": made["h"], "E": made["A"], "f": made["b"]}
    ours = linsat.project(-made["p"], quadratic_set(program), objective=linsat.Quadratic(made["Q"]), **numbers)
    each = [value if name == "p" else value.expand(len(ours), *value.shape) for name, value in made.items()]
    theirs = qpth.QPFunction(verbose=-1, eps=1e-14, notImprovedLim=20, maxIter=60)(
        *each
    )  # of shared ones it has the mean
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    weights = torch.tensor(np.random.default_rng(9).normal(size=ours.shape))
    own, other = (torch.autograd.grad((x * weights).sum(), list(made.values())) for x in (ours, theirs))
    for name, mine, their in zip(made, own, other, strict=True):
        mine, their = (g if name != "Q" else (g + g.T) / 2 for g in (mine, their))
        torch.testing.assert_close(mine, their, atol=1e-4 * (1 + float(their.abs().max())), rtol=0, msg=name)


@pytest.mark.parametrize("seed", range(3))
def test_programs_of_proxsuite(seed: int) -> None:
    """Rows with two ends and a box, l <= C x <= u: as `linsat` states them. ProxQP (0.8) to 1e-10."""
    rng = np.random.default_rng(seed)
    program, lower, upper = quadratic_program(seed + 10, batch=1), np.full(6, -0.4), np.full(6, 0.9)
    C, centre = program["G"], rng.uniform(-0.2, 0.2, 6)
    low, high = C @ centre - 0.3, C @ centre + 0.2
    cons = linsat.Constraints(A=C, b=high, C=C, d=low, lower=lower, upper=upper)
    y = -program["p"][0]
    found = linsat.project(y, cons, objective=linsat.Quadratic(program["Q"]))
    x = cp.Variable(6)
    goal = cp.quad_form(x, cp.psd_wrap(program["Q"])) / 2 - y @ x
    np.testing.assert_allclose(
        found, clarabel(goal, [C @ x <= high, C @ x >= low, x >= lower, x <= upper], x), atol=1e-6
    )
    assert ((found == lower) | (found == upper)).any()
    proxsuite = installed("proxsuite")
    if proxsuite is None:
        return
    qp = proxsuite.proxqp.dense.QP(6, 0, 5, True)
    qp.settings.eps_abs = 1e-11
    qp.init(program["Q"], -y, None, None, C, low, high, lower, upper)
    qp.solve()
    np.testing.assert_allclose(found, qp.results.x, atol=1e-8)


def test_programs_of_jaxopt() -> None:
    """What EqualityConstrainedQP, BoxCDQP and OSQP solve, by closed form and conditions; the latter two (0.8.5) too."""
    program = quadratic_program(20, batch=1)
    p, Q = program["p"][0], program["Q"]
    equal = linsat.Constraints(E=program["A"], f=program["b"], lower=-np.inf, upper=np.inf)
    solution = linsat.solve(-p, equal, objective=linsat.Quadratic(Q))
    saddle = np.block([[Q, program["A"].T], [program["A"], np.zeros((2, 2))]])
    expected = np.linalg.solve(saddle, np.r_[-p, program["b"]])
    np.testing.assert_allclose(np.r_[solution.x, -solution.duals], expected, atol=1e-9)
    box = linsat.project(-p, linsat.Constraints(lower=np.zeros(6), upper=1.0), objective=linsat.Quadratic(Q))
    slope = Q @ box + p
    np.testing.assert_allclose(np.clip(box - slope, 0, 1), box, atol=1e-9)
    jaxopt = installed("jaxopt")
    if jaxopt is None:
        return
    import jax

    with jax.enable_x64(True):
        theirs = jaxopt.BoxCDQP(tol=1e-12, maxiter=5000).run(np.zeros(6), (Q, p), (np.zeros(6), np.ones(6))).params
        np.testing.assert_allclose(box, theirs, atol=1e-7)
        whole = jaxopt.OSQP(tol=1e-9).run(
            params_obj=(Q, p), params_eq=(program["A"], program["b"]), params_ineq=(program["G"], program["h"])
        )
        found = linsat.project(-p, quadratic_set(program), objective=linsat.Quadratic(Q))
        np.testing.assert_allclose(found, whole.params.primal, atol=1e-6)


# ------------------------------------------------------------------ MinTrace with a full covariance


def test_min_trace_with_a_full_covariance() -> None:
    """Coherent forecasts of the least variance, S (S'W^-1 S)^-1 S'W^-1 y, in one call; hierarchicalforecast's (1.5)."""
    rng = np.random.default_rng(30)
    S = np.vstack([np.ones(4), np.kron(np.eye(2), np.ones(2)), np.eye(4)])
    past = S @ rng.gamma(2.0, 2.0, (4, 80))
    fitted, base = past + rng.normal(size=past.shape), S @ rng.gamma(2.0, 2.0, (4, 5)) + rng.normal(size=(7, 5))
    W = (past - fitted) @ (past - fitted).T / 80
    x = linsat.Variable(7, name="series", lower=-np.inf, upper=np.inf)
    coherent = linsat.subject_to(x[:3] == S[:3] @ x[3:])
    found = linsat.project(base.T, coherent, objective=linsat.Euclidean(weights=np.linalg.inv(W))).T
    inverse = np.linalg.inv(W)
    np.testing.assert_allclose(found, S @ np.linalg.solve(S.T @ inverse @ S, S.T @ inverse @ base), atol=1e-8)
    theirs = installed("hierarchicalforecast.methods")
    if theirs is None:
        return
    data = {"S": S, "y_hat": base, "y_insample": past, "y_hat_insample": fitted}
    published = theirs.MinTrace("mint_cov").fit_predict(**data)["mean"]
    _, covariance = theirs.MinTrace("mint_cov")._get_PW_matrices(**data)
    nearest = linsat.Euclidean(weights=np.linalg.inv(covariance))
    np.testing.assert_allclose(linsat.project(base.T, coherent, objective=nearest).T, published, atol=1e-5)


# ------------------------------------------------------------------ sets of actions


VELOCITY = np.array([1.3, -0.4, 2.2, -3.0, 0.7, 1.9])
ACTIONS: dict[str, tuple[int, float, Callable[[Any], list[Any]], Callable[[Any], list[Any]]]] = {
    # The power of all joints, or of those that take up power: sum |w a| <= p and sum max(w a, 0) <= p.
    "Reacher, power": (2, 1.0, lambda a: [abs(VELOCITY[:2] * a).sum() <= 0.3],
                       lambda a: [cp.norm1(cp.multiply(VELOCITY[:2], a)) <= 0.3]),
    "HalfCheetah, power": (6, 1.0, lambda a: [abs(VELOCITY * a).sum() <= 3.0],
                           lambda a: [cp.norm1(cp.multiply(VELOCITY, a)) <= 3.0]),
    "Hopper, power taken up": (3, 1.0, lambda a: [linsat.maximum(VELOCITY[:3] * a, 0).sum() <= 1.0],
                               lambda a: [cp.sum(cp.pos(cp.multiply(VELOCITY[:3], a))) <= 1.0]),
    "Walker, power taken up": (6, 1.0, lambda a: [linsat.maximum(VELOCITY * a, 0).sum() <= 2.0],
                               lambda a: [cp.sum(cp.pos(cp.multiply(VELOCITY, a))) <= 2.0]),
    # Bicycles of zones: shares add up, and neighbours differ by a few at most.
    "bicycles": (5, np.inf, lambda a: [a.sum() == 3.0, a >= 0, a <= 1.2, abs(a.diff()) <= 0.4],
                 lambda a: [cp.sum(a) == 3.0, a >= 0, a <= 1.2, cp.abs(cp.diff(a)) <= 0.4]),
    # A barrier function of a robot between two walls, and of its speed.
    "two barriers": (2, 1.0, lambda a: [np.array([[0.8, 0.6], [-0.3, 1.0]]) @ a <= np.array([0.1, 0.2])],
                     lambda a: [np.array([[0.8, 0.6], [-0.3, 1.0]]) @ a <= np.array([0.1, 0.2])]),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIONS)
def test_the_nearest_action_that_is_allowed(name: str) -> None:
    """Polyhedral sets of benchmarks of constrained actions, each in a line: Clarabel on the same set, and gradients."""
    n, most, rows, theirs = ACTIONS[name]
    action = linsat.Variable(n, name="action", lower=-most, upper=most)
    cons = linsat.subject_to(*rows(action), variables=[action])
    y = 1.5 * np.random.default_rng(40).normal(size=(4, n))
    nearest = linsat.Euclidean()
    found = linsat.project(y, cons, objective=nearest)
    for one, x in zip(y, found, strict=True):
        a = cp.Variable(n)
        box = [a >= -most, a <= most] if np.isfinite(most) else []
        np.testing.assert_allclose(x, clarabel(cp.sum_squares(a - one) / 2, [*theirs(a), *box], a), atol=1e-6)
    scores, weights = torch.tensor(y, requires_grad=True), torch.tensor(np.random.default_rng(41).normal(size=y.shape))
    gradient = torch.autograd.grad((linsat.project(scores, cons, objective=nearest) * weights).sum(), scores)[0]
    way = np.random.default_rng(42).normal(size=y.shape)
    ends = [
        (linsat.project(y + sign * 1e-6 * way, cons, objective=nearest) * weights.numpy()).sum() for sign in (1, -1)
    ]
    assert float((gradient.numpy() * way).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-5)
