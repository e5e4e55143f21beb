"""The rivals on DC3's family: Pinet with its own training loop in JAX, QP layers behind torch's autograd."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from arena.quadratic import Family, Projection, Recipe, Tensor


@dataclass(frozen=True)
class PinetSettings:
    """How Pinet projects; the defaults are the package's, with its default limit of iterations."""

    iterations: int = 100
    backward: int = 5
    sigma: float = 1.0
    omega: float = 1.7
    equilibrations: int = 0
    double: bool = False


# The settings that Pinet's authors publish for this size (their file of the small benchmark), in double precision.
PINET_PUBLISHED = PinetSettings(50, 25, 0.06806787572155291, 1.7, 25, True)


def pinet(problem: Family, settings: PinetSettings) -> Callable[[Any, Any], Any]:
    """The projection as a JAX function of scores (batch, n) and right-hand sides (batch, equalities)."""
    import jax
    import jax.numpy as jnp
    from pinet import (
        AffineInequalityConstraint,
        EqualityConstraint,
        EqualityConstraintsSpecification,
        EquilibrationParams,
        Project,
        ProjectionInstance,
    )

    jax.config.update("jax_enable_x64", settings.double)
    dtype = jnp.float64 if settings.double else jnp.float32
    A, G = jnp.asarray(problem.A, dtype)[None], jnp.asarray(problem.G, dtype)[None]
    h = jnp.asarray(problem.h, dtype)[None, :, None]
    layer = Project(
        eq_constraint=EqualityConstraint(a_mat=A, b=jnp.zeros((1, len(problem.A), 1), dtype), method=None, var_b=True),
        ineq_constraint=AffineInequalityConstraint(c_mat=G, lb=jnp.full_like(h, -jnp.inf), ub=h),
        equilibration_params=EquilibrationParams(max_iter=settings.equilibrations),
    )

    def project(y: Any, x: Any) -> Any:
        side = EqualityConstraintsSpecification(b=x[:, :, None])
        found, _ = layer.call(
            y_raw=ProjectionInstance(x=y[:, :, None], eq=side),
            sigma=settings.sigma,
            omega=settings.omega,
            n_iter=settings.iterations,
            n_iter_bwd=settings.backward,
        )
        return found.x[:, :, 0]

    return project


def time_pinet(problem: Family, settings: PinetSettings, batch: int, repeats: int) -> dict[str, float]:
    """Seconds of a compiled forward and backward pass, the best of some, and the violation it leaves."""
    import jax

    project = pinet(problem, settings)
    dtype = np.float64 if settings.double else np.float32
    y = np.random.default_rng(0).normal(size=(batch, problem.A.shape[1])).astype(dtype)
    x = problem.X[:batch].astype(dtype)

    @jax.jit
    def both(y: Any, x: Any, g: Any) -> Any:
        z, pull = jax.vjp(lambda y: project(y, x), y)
        return z, pull(g)

    g = np.ones_like(y)  # an argument: a constant would be folded away while compiling
    z, _ = jax.block_until_ready(both(y, x, g))
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(both(y, x, g))
        seconds.append(time.perf_counter() - begin)
    return {"seconds": min(seconds), "violation": problem.violation(np.asarray(z, float), x.astype(float))}


def train_pinet(
    problem: Family, kind: str, settings: PinetSettings, recipe: Recipe, *, seed: int, goal: float
) -> dict[str, Any]:
    """As `quadratic.train`, in JAX throughout: one compiled step, Adam of optax, the same schedule and sizes."""
    import jax
    import jax.numpy as jnp
    import optax

    project = pinet(problem, settings)
    dtype = jnp.float64 if settings.double else jnp.float32
    parts = {name: jnp.asarray(x, dtype) for name, x in problem.splits.items()}
    Q, p = jnp.asarray(problem.Q, dtype), jnp.asarray(problem.p, dtype)
    rng = np.random.default_rng(seed)
    sizes = [problem.A.shape[0], 200, 200, problem.A.shape[1]]
    # The start of torch.nn.Linear.
    weights = [
        tuple(jnp.asarray(rng.uniform(-1, 1, shape) / np.sqrt(a), dtype) for shape in ((a, b), (b,)))
        for a, b in itertools.pairwise(sizes)
    ]
    steps = recipe.epochs * (len(parts["train"]) // recipe.batch)
    rate = optax.cosine_onecycle_schedule(max(steps, 2), recipe.rate, pct_start=0.1)
    adam = optax.adam(rate)

    def answer(weights: Any, x: Any) -> Any:
        y = x
        for i, (W, b) in enumerate(weights):
            y = y @ W + b
            y = jax.nn.relu(y) if i < 2 else y
        return project(y, x)

    def objective(z: Any) -> Any:
        return (Q * z * z / 2 + p * (z if kind == "convex" else jnp.sin(z))).sum(-1).mean()

    @jax.jit
    def advance(weights: Any, state: Any, x: Any) -> Any:
        gradient = jax.grad(lambda weights: objective(answer(weights, x)))(weights)
        updates, state = adam.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state

    evaluate = jax.jit(lambda weights, x: (lambda z: (objective(z), z))(answer(weights, x)))
    state = adam.init(weights)
    jax.block_until_ready(advance(weights, state, parts["train"][: recipe.batch]))  # compiled before the clock starts
    jax.block_until_ready([evaluate(weights, parts[name]) for name in ("valid", "test")])
    curve: list[tuple[int, float, float]] = []
    seconds, reached, step = 0.0, None, 0
    for _ in range(recipe.epochs):
        order = rng.permutation(len(parts["train"]))
        for first in range(0, len(order) // recipe.batch * recipe.batch, recipe.batch):
            begin = time.perf_counter()
            x = parts["train"][order[first : first + recipe.batch]]
            weights, state = jax.block_until_ready(advance(weights, state, x))
            seconds, step = seconds + time.perf_counter() - begin, step + 1
            if step % recipe.look_every == 0:
                value = float(evaluate(weights, parts["valid"])[0])
                curve.append((step, round(seconds, 4), value))
                if reached is None and value <= goal:
                    reached = seconds
    begin = time.perf_counter()
    value, z = jax.block_until_ready(evaluate(weights, parts["test"]))
    took = time.perf_counter() - begin
    return {
        "objective": float(value),
        "violation": problem.violation(np.asarray(z, float), problem.splits["test"]),
        "seconds": seconds,
        "seconds to goal": reached,
        "inference seconds": took,
        "steps": step,
        "curve": curve,
    }


# ------------------------------------------------------------------ layers behind torch's autograd


def moreau_projection(problem: Family, batch: int) -> Projection:
    """Moreau's torch layer, min z'z / 2 - y'z over the rows, its defaults."""
    import moreau
    import scipy.sparse as sp
    from moreau.torch import Solver

    n = problem.A.shape[1]
    P, rows = sp.csr_array(sp.eye_array(n)), sp.csr_array(np.vstack([problem.A, problem.G]))
    pattern = [torch.from_numpy(part.astype(np.int64)) for part in (P.indptr, P.indices, rows.indptr, rows.indices)]
    cones = moreau.Cones(num_zero_cones=len(problem.A), num_nonneg_cones=len(problem.G))
    solver = Solver(n, rows.shape[0], *pattern, cones, moreau.Settings(device="cpu", batch_size=batch))
    values = torch.from_numpy(P.data.astype(float)), torch.from_numpy(rows.data.astype(float))
    h = torch.from_numpy(problem.h)

    def project(y: Tensor, x: Tensor) -> Tensor:
        side = torch.cat([x, h.expand(len(x), -1)], dim=1)
        return solver.solve(*values, -y.double(), side).x.reshape(len(x), n)

    return project


def cvxpylayers_projection(problem: Family) -> Projection:
    """cvxpylayers with Clarabel, which is faster and more exact here than its default solver."""
    import cvxpy as cp
    from cvxpylayers.torch import CvxpyLayer

    y, x = cp.Parameter(problem.A.shape[1]), cp.Parameter(len(problem.A))
    z = cp.Variable(problem.A.shape[1])
    program = cp.Problem(cp.Minimize(cp.sum_squares(z - y)), [problem.A @ z == x, problem.G @ z <= problem.h])
    layer = CvxpyLayer(program, parameters=[y, x], variables=[z])
    jobs = torch.get_num_threads()
    arguments = {"solve_method": "Clarabel", "n_jobs_forward": jobs, "n_jobs_backward": jobs}
    return lambda scores, side: layer(scores.double(), side, solver_args=arguments)[0]


def qpth_projection(problem: Family) -> Projection:
    """OptNet's batched interior-point solver."""
    from qpth.qp import QPFunction

    parts = [torch.from_numpy(part) for part in (np.eye(problem.A.shape[1]), problem.G, problem.h, problem.A)]
    eye, G, h, A = parts
    return lambda y, x: QPFunction(verbose=-1)(eye, -y.double(), G, h, A, x)


def proxqp_projection(problem: Family) -> Projection:
    """The torch layer of proxsuite."""
    from proxsuite.torch.qplayer import QPFunction

    parts = [torch.from_numpy(part) for part in (np.eye(problem.A.shape[1]), problem.A, problem.G, problem.h)]
    eye, A, G, h = parts
    low = torch.full_like(h, -1e20)
    return lambda y, x: QPFunction()(eye, -y.double(), A, x, G, low, h)[0]


def any_batch(make: Callable[[int], Projection]) -> Projection:
    """A projection for any number of instances from one that is made for each number."""
    made: dict[int, Projection] = {}

    def project(y: Tensor, x: Tensor) -> Tensor:
        if len(x) not in made:
            made[len(x)] = make(len(x))
        return made[len(x)](y, x)

    return project


QP_LAYERS: dict[str, Callable[[Family, int], Projection]] = {
    "Moreau": moreau_projection,
    "cvxpylayers": lambda problem, batch: cvxpylayers_projection(problem),
    "qpth": lambda problem, batch: qpth_projection(problem),
    "ProxQP": lambda problem, batch: proxqp_projection(problem),
}


def time_layer(problem: Family, project: Projection, batch: int, repeats: int) -> dict[str, float]:
    """Seconds of a forward and backward pass, the best of some, and the violation it leaves."""
    scores = np.random.default_rng(0).normal(size=(batch, problem.A.shape[1]))
    x = torch.from_numpy(problem.X[:batch])
    seconds, worst = [], 0.0
    for _ in range(repeats):
        y = torch.from_numpy(scores).requires_grad_()
        begin = time.perf_counter()
        z = project(y, x)
        z.sum().backward()
        seconds.append(time.perf_counter() - begin)
        worst = problem.violation(z.detach().numpy(), problem.X[:batch])
    return {"seconds": min(seconds), "violation": worst}
