"""JAX on the CPU: doubly stochastic 20x20, batch 64, forward and backward, jitted.

Three ways in one run, interleaved: `linsat.jax` in JAX itself, `linsat.jax` by a callback to the compiled kernel, and
the Sinkhorn iterations of OTT, stopped at the same violation of the rows. Times are those of the process (all threads),
because other work on the machine does not change them; ratios are what to read.

    python benchmarks/jax_speed.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ott.geometry import geometry
from ott.problems.linear import linear_problem
from ott.solvers.linear import sinkhorn

import linsat
import linsat.jax

SIZE, BATCH, TAU, ROUNDS = 20, 64, 0.1, 15
OTT_ITERATIONS = 10_000  # it may stop above the threshold; the violation that it reached is printed


def ways(tau: float) -> dict[str, Callable[[Any], Any]]:
    """Scores (batch, size, size) -> doubly stochastic matrices."""
    cons = linsat.constraints.doubly_stochastic(SIZE)
    slack_free = linsat.Entropy(tau)

    def native(y: Any) -> Any:
        return linsat.jax.project(y, cons, objective=slack_free)

    def kernel(y: Any) -> Any:
        return linsat.jax.project(y, cons, objective=slack_free, backend="kernel")

    def ott(y: Any) -> Any:
        """Entropy of x alone, not of 1 - x: OTT's own problem, which is no harder."""

        def one(scores: Any) -> Any:
            ones = jnp.ones(SIZE)
            problem = linear_problem.LinearProblem(geometry.Geometry(-scores, epsilon=tau), a=ones, b=ones)
            solver = sinkhorn.Sinkhorn(threshold=1e-9, max_iterations=OTT_ITERATIONS, lse_mode=True)
            return solver(problem).matrix

        return jax.vmap(one)(y)

    return {"native": native, "kernel": kernel, "ott": ott}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--ways", nargs="*", default=["native", "kernel", "ott"])
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    y = jnp.asarray(rng.normal(size=(BATCH, SIZE, SIZE)))
    weights = jnp.asarray(rng.normal(size=(BATCH, SIZE, SIZE)))
    compiled, times = {}, {}
    for name in options.ways:
        project = ways(TAU)[name]
        x = jax.jit(project)(y)
        worst = float(jnp.maximum(abs(x.sum(1) - 1).max(), abs(x.sum(2) - 1).max()))

        def loss(y: Any, project: Callable[[Any], Any] = project) -> Any:
            return (project(y) * weights).sum()

        compiled[name], times[name] = jax.jit(jax.grad(loss)), []
        jax.block_until_ready(compiled[name](y))
        print(f"{name:8} largest violation {worst:.1e}")
    for _ in range(options.rounds):
        for name, run in compiled.items():
            start = time.process_time()
            jax.block_until_ready(run(y))
            times[name].append(time.process_time() - start)
    for name, found in times.items():
        ratio = np.median(np.array(found) / np.array(times["native"])) if "native" in times else float("nan")
        print(f"{name:8} {1e3 * np.median(found):8.2f} ms of processor time both ways, {ratio:5.2f} times native")


if __name__ == "__main__":
    main()
