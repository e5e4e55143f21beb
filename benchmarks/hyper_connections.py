"""Doubly stochastic 4x4 matrices: Sinkhorn's iteration in torch beside `linsat.KL`, errors and time both ways.

    python benchmarks/hyper_connections.py [--count 8192] [--repeats 7]

Logits are N(0, scale^2) in float32, one thread. Errors are the worst over the batch, of a row or column sum, and of
the gradient of <g, x> to the logits, relative to the largest entry of the exact one. That is the limit's, in float64:
iterated until nothing moves, with the adjoint of the limit solved by an eigendecomposition, none of it by linsat; over
the first matrices, those for which 30,000 iterations are enough. Times are the least of the repeats. Prints a table in
Markdown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import linsat

SCALES = (1.0, 3.0, 10.0, 30.0)
ITERATIONS = (1, 5, 10, 20)
SWEEPS, SAMPLE, SLOWEST = 30_000, 256, 1e-3


def sinkhorn(logits: torch.Tensor, iterations: int) -> torch.Tensor:
    """Rows and columns normalised in turn, in logarithms."""
    for _ in range(iterations):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits.exp()


def limit(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the iteration converges to, and which matrices have arrived; those are left alone."""
    z, moving = logits.double().clone(), torch.arange(len(logits))
    for _ in range(SWEEPS):
        part = z[moving]
        part = part - part.logsumexp(-1, keepdim=True)
        change = part.logsumexp(-2, keepdim=True)
        z[moving] = part - change
        moving = moving[change.abs().amax((-1, -2)) > 1e-14]
        if not len(moving):
            break
    x = z.exp()
    arrived = torch.linalg.eigvalsh(coupling(x))[:, 1] > SLOWEST  # a small step is no proof where steps shrink slowly
    arrived[moving] = False
    return x, arrived


def coupling(x: torch.Tensor) -> torch.Tensor:
    """How row and column sums answer to duals of rows and columns; its least eigenvalue is zero."""
    above, below = torch.cat([torch.diag_embed(x.sum(-1)), x], -1), torch.cat([x.mT, torch.diag_embed(x.sum(-2))], -1)
    return torch.cat([above, below], -2)


def adjoint(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The gradient of <g, x> to the logits at the limit: x (g + a 1' + 1 b') whose rows and columns sum to zero."""
    n = x.shape[-1]
    sides = -torch.cat([(x * g).sum(-1), (x * g).sum(-2)], -1)
    duals = (torch.linalg.pinv(coupling(x), hermitian=True) @ sides.unsqueeze(-1)).squeeze(-1)
    return x * (g + duals[..., :n, None] + duals[..., None, n:])


def measure(
    project: Callable[[torch.Tensor], torch.Tensor],
    y: torch.Tensor,
    g: torch.Tensor,
    exact: torch.Tensor,
    arrived: torch.Tensor,
    repeats: int,
) -> tuple[float, float, float]:
    """Worst error of a row or column sum, gradient error and nanoseconds a matrix, both ways."""
    best = float("inf")
    leaf = y.clone().requires_grad_()
    for _ in range(repeats):
        leaf.grad = None
        begin = time.perf_counter()
        x = project(leaf)
        x.backward(g)
        best = min(best, time.perf_counter() - begin)
    assert leaf.grad is not None
    sums = max(float((x.detach().double().sum(side) - 1).abs().max()) for side in (-1, -2))
    wrong = (leaf.grad.double()[: len(exact)] - exact)[arrived].abs().max() / exact[arrived].abs().max()
    return sums, float(wrong), 1e9 * best / len(y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cons, objective = linsat.constraints.doubly_stochastic(4), linsat.KL(1.0)
    methods: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        f"{n} iteration{'s' if n > 1 else ''}": lambda y, n=n: sinkhorn(y, n) for n in ITERATIONS
    }
    methods["`linsat.KL`"] = lambda y: linsat.project(y, cons, objective=objective)
    print("| logits | method | row error | gradient error | ns a matrix, both ways |\n|---:|---|---:|---:|---:|")
    for scale in SCALES:
        torch.manual_seed(0)
        y, g = scale * torch.randn(arguments.count, 4, 4), torch.randn(arguments.count, 4, 4)
        x, arrived = limit(y[:SAMPLE])
        exact = adjoint(x, g[:SAMPLE].double())
        for name, project in methods.items():
            rows, wrong, spent = measure(project, y, g, exact, arrived, arguments.repeats)
            print(f"| N(0, {scale:g}^2) | {name} | {rows:.0e} | {wrong:.0e} | {spent:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
