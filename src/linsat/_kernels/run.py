"""Calling the kernel on a batch: arrays in, arrays out, over plain threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from linsat._kernels import load, running
from linsat._kernels.tables import Array, Tables, roomy
from linsat._kernels.threads import run_shared


@dataclass(frozen=True)
class Solved:
    """What the kernel leaves behind; rows are in the kernel's order."""

    x: Array  # (N, l) of the dtype of the scores
    p: Array  # (N, l) shares
    mu: Array  # (N, k)
    codes: Array  # (N,)
    steps: Array  # (N,)


def solve_batch(
    tables: Tables, scores: Array, tau: Array, *, tol: float, max_steps: int, start: Array | None = None
) -> Solved:
    """Solve scores (N, l) at temperatures tau, (N,) or (1,).

    Raises:
        KernelBrokenError: numba cannot compile.
        MemoryError: the results do not fit; the message says how much they need, and how to split the batch.
    """
    count, l = scores.shape
    k = tables.slack.shape[1]
    with _advice(count, l, k):
        solved = Solved(
            x=np.empty_like(scores),
            p=roomy((count, l)),
            mu=roomy((count, k)),
            codes=np.empty(count, dtype=np.int64),
            steps=np.empty(count, dtype=np.int64),
        )
    if start is not None:
        solved.mu[...] = start
    inputs = (scores, tables.lower, tables.width, tables.pinned, tables.free, tau, tol, max_steps, start is not None)
    arrays = (tables.slack, tables.rhs, *tables.arrays())
    outputs = (solved.x, solved.p, solved.mu, solved.codes, solved.steps)
    forward = load().forward

    def task(counter: Array) -> None:
        forward(counter, *inputs, *arrays, *outputs)

    _run(task, count, 10 * count * tables.pattern.seconds)
    return solved


def pull_back(tables: Tables, p: Array, mu: Array, tau: Array, grad_x: Array) -> Array:
    """dL/dy of a batch that `solve_batch` solved, from its shares and duals, given dL/dx."""
    with _advice(grad_x.shape[0], grad_x.shape[1], mu.shape[-1]):
        grad_scores = np.empty_like(grad_x)
    arrays = tables.arrays()
    backward = load().backward

    def task(counter: Array) -> None:
        backward(counter, grad_x, tables.width, tables.free, tau, tables.slack, *arrays, p, mu, grad_scores)

    _run(task, grad_x.shape[0], 2 * grad_x.shape[0] * tables.pattern.seconds)
    return grad_scores


@contextmanager
def _advice(count: int, l: int, k: int) -> Iterator[None]:
    """Say what a batch needs where there is not enough memory for it."""
    try:
        yield
    except MemoryError:
        needed = 8 * count * (2 * l + k) / 2**30
        raise MemoryError(
            f"y holds {count:,} instances of {l:,} variables; there is not enough memory for the {needed:.2g} GB that "
            f"solving them at once needs. Fix: smaller batches, for instance "
            f"torch.cat([linsat.project(part, constraints) for part in y.split({max(1, min(4096, count // 8))})])."
        ) from None


def _run(task: Callable[[Array], None], count: int, seconds: float) -> None:
    with running():
        run_shared(task, count, seconds)
