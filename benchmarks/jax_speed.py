"""JAX beside torch on the CPU: a gradient of many projections, both by the native core, in one run and interleaved.

Jitted `jax.grad` against `backward` of torch, with the same scores, threads and precision; the first call of each (JAX
compiles there), and whether the gradients are the same. Times are those of the process (all threads), the least of many
rounds, because other work on the machine hardly changes them; first calls are those of the clock. The ratio is what to
read.

    taskset -c 0 python benchmarks/jax_speed.py

XLA lends the core as many threads as it has processors, and torch is given as many. With ``--arrays`` the same in
`lax` operations, and with ``--ott`` the Sinkhorn iterations of OTT, stopped at the same violation of the rows.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import linsat
import linsat.jax

CASES = {
    "64 x 20x20": (64, 20),
    "8,192 x 4x4": (8192, 4),
}
OBJECTIVES = {"Entropy(0.1)": linsat.Entropy(0.1), "Euclidean()": linsat.Euclidean()}
DTYPES = {"float32": np.float32, "float64": np.float64}
OTT_ITERATIONS = 10_000  # it may stop above the threshold; the violation that it reached is printed

Run = Callable[[], np.ndarray]


def in_jax(cons: linsat.Constraints, objective: linsat.Objective, y: Any, way: Any, backend: str) -> Run:
    solver = linsat.Newton(backend=backend)
    gradient = jax.jit(
        jax.grad(lambda y: (linsat.jax.project(y, cons, objective=objective, solver=solver) * way).sum())
    )
    return lambda: jax.block_until_ready(gradient(y))


def in_torch(cons: linsat.Constraints, objective: linsat.Objective, y: np.ndarray, way: np.ndarray) -> Run:
    leaf, weights = torch.tensor(y, requires_grad=True), torch.tensor(way)

    def run() -> np.ndarray:
        leaf.grad = None
        (linsat.project(leaf, cons, objective=objective) * weights).sum().backward()
        return leaf.grad.numpy()

    return run


def in_ott(y: Any, way: Any, tau: float) -> tuple[Run, float]:
    """Entropy of x alone, not of 1 - x: OTT's own problem, which is no harder."""
    from ott.geometry import geometry
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    solver = sinkhorn.Sinkhorn(threshold=1e-9, max_iterations=OTT_ITERATIONS, lse_mode=True)
    ones = jnp.ones(y.shape[-1])

    def project(y: Any) -> Any:
        def one(scores: Any) -> Any:
            return solver(linear_problem.LinearProblem(geometry.Geometry(-scores, epsilon=tau), a=ones, b=ones)).matrix

        return jax.vmap(one)(y)

    x = jax.jit(project)(y)
    worst = float(jnp.maximum(abs(x.sum(1) - 1).max(), abs(x.sum(2) - 1).max()))
    gradient = jax.jit(jax.grad(lambda y: (project(y) * way).sum()))
    return lambda: jax.block_until_ready(gradient(y)), worst


def compare(case: str, name: str, dtype: str, *, arrays: bool, ott: bool, rounds: int) -> None:
    batch, size = CASES[case]
    rng = np.random.default_rng(0)
    y, way = (rng.normal(size=(batch, size, size)).astype(DTYPES[dtype]) for _ in range(2))
    cons, objective = linsat.constraints.doubly_stochastic(size), OBJECTIVES[name]
    runs = {"torch": in_torch(cons, objective, y, way)}
    runs["jax"] = in_jax(cons, objective, jnp.asarray(y), jnp.asarray(way), "auto")
    if arrays:
        runs["jax, arrays"] = in_jax(cons, objective, jnp.asarray(y), jnp.asarray(way), "arrays")
    reached = ""
    if ott and name.startswith("Entropy"):
        runs["ott"], worst = in_ott(jnp.asarray(y), jnp.asarray(way), 0.1)
        reached = f", ott reaches {worst:.0e}"
    first, answers, times = {}, {}, {}
    for which, run in runs.items():
        start = time.perf_counter()
        answers[which] = np.asarray(run())
        first[which] = time.perf_counter() - start
    for _ in range(rounds):
        for which, run in runs.items():
            start = time.process_time()
            run()
            times[which] = min(times.get(which, np.inf), time.process_time() - start)
    apart = abs(answers["jax"] - answers["torch"]).max()
    bits = "same bits" if (answers["jax"] == answers["torch"]).all() else f"differ by {apart:.0e}"
    for which, least in times.items():
        print(
            f"{case:12} {name:13} {dtype}  {which:11} {1e3 * least:9.2f} ms  {least / times['torch']:7.2f} times torch"
            f"  first call {first[which]:6.2f} s"
            f"{'  ' + bits if which == 'jax' else ''}{reached if which == 'ott' else ''}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--arrays", action="store_true")
    parser.add_argument("--ott", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    print(f"{torch.get_num_threads()} threads of torch, {len(os.sched_getaffinity(0))} processors")
    for dtype in DTYPES:
        with jax.enable_x64(dtype == "float64"):
            for case in CASES:
                for name in OBJECTIVES:
                    compare(case, name, dtype, arrays=options.arrays, ott=options.ott, rounds=options.rounds)


if __name__ == "__main__":
    main()
