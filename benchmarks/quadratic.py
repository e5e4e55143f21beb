"""Full quadratics beside the layers and solvers that people use for them: qpth, ProxQP, quadprog, Clarabel.

    python benchmarks/quadratic.py [--threads 1] [--repeats 5]

Peers that are not installed (``pip install qpth proxsuite quadprog``) are left out, and said so. Every peer runs in the
same process, one after another, several times; the table has the shortest time of each, and how far its x is from that
of Clarabel.

- ``program``: 100 variables, 50 equalities, 50 inequalities, a full P, a batch of 64, forward and backward. P is one
  for all instances, or one for each.
- ``reconciliation``: 25 series in a tree (total, 4 groups, 20 leaves), a full covariance, 200 paths of forecasts, each
  projected onto the coherent non-negative ones (MinTrace): forward and backward, against a loop over quadprog, forward.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import clarabel
import numpy as np
import scipy.sparse as sp
import torch

import linsat

Array = np.ndarray
SERIES, GROUPS, PATHS = 25, 4, 200


def shortest(run: Callable[[], Any], repeats: int) -> float:
    """The shortest time of a call, in milliseconds; the first one warms up."""
    run()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


def by_clarabel(P: Array, c: Array, G: Array, h: Array, A: Array, b: Array, tol: float = 1e-11) -> Array:
    """min x'Px / 2 - c'x subject to G x <= h, A x = b."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tol
    cones = [clarabel.ZeroConeT(len(b)), clarabel.NonnegativeConeT(len(h))]
    rows, sides = sp.csc_matrix(np.vstack([A, G])), np.concatenate([b, h])
    upper = sp.csc_matrix(np.triu(P))
    return np.array(clarabel.DefaultSolver(upper, -c, rows, sides, cones, settings).solve().x)


# ------------------------------------------------------------------ programs


def programs(count: int, own: bool, seed: int = 0) -> dict[str, Array]:
    """P (or one for each instance), scores, rows with a point that satisfies them."""
    rng, n = np.random.default_rng(seed), 100
    L = rng.normal(size=(count if own else 1, n, n))
    P = L @ L.swapaxes(-1, -2) / n + 0.1 * np.eye(n)
    A, G, inside = rng.normal(size=(50, n)), rng.normal(size=(50, n)), rng.normal(size=n)
    y = 3.0 * rng.normal(size=(count, n))
    return {"P": P if own else P[0], "y": y, "A": A, "b": A @ inside, "G": G, "h": G @ inside + rng.random(50)}


def compare_programs(own: bool, repeats: int, count: int = 64) -> None:
    data = programs(count, own)
    t = {name: torch.from_numpy(array) for name, array in data.items()}
    given = torch.from_numpy(np.random.default_rng(1).normal(size=data["y"].shape))
    cons = linsat.Constraints(A=data["G"], b=data["h"], E=data["A"], f=data["b"], lower=-np.inf, upper=np.inf)

    def both_ways(layer: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        y, P = t["y"].clone().requires_grad_(), t["P"].clone().requires_grad_()
        x = layer(y, P)
        (x * given).sum().backward()
        return x.detach()

    layers: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "linsat": lambda y, P: linsat.project(y, cons, objective=linsat.Quadratic(P)),
    }
    try:
        from qpth.qp import QPFunction

        layers["qpth"] = lambda y, P: QPFunction(verbose=-1)(P, -y, t["G"], t["h"], t["A"], t["b"])
    except ImportError:
        print("qpth is not installed")
    try:
        from proxsuite.torch.qplayer import QPFunction as ProxQP

        low = torch.full_like(t["h"], -1e20)
        sides = t["A"], t["b"], t["G"], low, t["h"]
        layers["ProxQP"] = lambda y, P: ProxQP(structural_feasibility=True)(P, -y, *sides)[0]
    except ImportError:
        print("proxsuite is not installed")
    wholes = data["P"] if own else np.broadcast_to(data["P"], (count, *data["P"].shape))
    reference = np.stack(
        [by_clarabel(wholes[i], data["y"][i], data["G"], data["h"], data["A"], data["b"]) for i in range(count)]
    )
    print(f"\nprogram, {'one P for each instance' if own else 'one P for all'}, {count} instances, both ways")
    times = {}
    for name, layer in layers.items():
        times[name] = shortest(lambda layer=layer: both_ways(layer), repeats)
        off = float(np.abs(both_ways(layer).numpy() - reference).max())
        print(f"  {name:12s} {times[name]:10.2f} ms   {times[name] / times['linsat']:6.1f}x   off by {off:.1e}")

    def loop() -> None:
        for i in range(count):
            by_clarabel(wholes[i], data["y"][i], data["G"], data["h"], data["A"], data["b"], 1e-8)

    alone = shortest(loop, repeats)
    print(f"  {'Clarabel':12s} {alone:10.2f} ms   {alone / times['linsat']:6.1f}x   a loop, forward only")


# ------------------------------------------------------------------ reconciliation


def tree() -> Array:
    """The summing matrix (25, 20): total, groups of five, leaves."""
    leaves = SERIES - GROUPS - 1
    groups = np.kron(np.eye(GROUPS), np.ones((1, leaves // GROUPS)))
    return np.vstack([np.ones((1, leaves)), groups, np.eye(leaves)])


def forecasts(seed: int = 0) -> tuple[Array, Array]:
    """A full covariance (25, 25) of the errors of base forecasts, and paths (200, 25) with some leaves near 0."""
    rng, S = np.random.default_rng(seed), tree()
    errors = rng.normal(size=(120, SERIES)) @ (np.eye(SERIES) + 0.3 * rng.normal(size=(SERIES, SERIES)))
    covariance = errors.T @ errors / len(errors)
    base = np.maximum(rng.gamma(0.5, 2.0, size=(PATHS, S.shape[1])) - 0.3, 0.0) @ S.T
    return covariance, base + rng.multivariate_normal(np.zeros(SERIES), covariance, size=PATHS)


def compare_reconciliation(repeats: int) -> None:
    S, (covariance, base) = tree(), forecasts()
    W = np.linalg.inv(covariance)
    aggregates = SERIES - S.shape[1]
    E = np.hstack([np.eye(aggregates), -S[:aggregates]])  # an aggregate is the sum of its leaves
    cons = linsat.Constraints(E=E, f=np.zeros(aggregates), lower=0.0, upper=np.inf)
    given, metric = torch.randn(PATHS, SERIES, dtype=torch.float64), torch.from_numpy(W)

    def both_ways() -> torch.Tensor:
        y = torch.from_numpy(base).requires_grad_()
        x = linsat.project(y, cons, objective=linsat.Euclidean(metric))
        (x * given).sum().backward()
        return x.detach()

    ours = shortest(both_ways, repeats)
    x = both_ways().numpy()
    print(f"\nreconciliation, {PATHS} paths of {SERIES} series")
    print(f"  {'linsat':12s} {ours:10.2f} ms      1.0x   both ways; {int((x == 0).sum())} zeros, exactly")
    Q, C = S.T @ W @ S, np.eye(S.shape[1])

    def report(name: str, one: Callable[[Array], Array]) -> None:
        taken = shortest(lambda: [one(path) for path in base], repeats)
        leaves = np.stack([one(path) for path in base])
        off, exact = np.abs(leaves @ S.T - x).max(), int((leaves == 0).sum())
        words = f"a loop, forward only; off by {off:.1e}; {exact} zeros"
        print(f"  {name:12s} {taken:10.2f} ms   {taken / ours:6.1f}x   {words}")

    try:
        import quadprog

        report("quadprog", lambda path: quadprog.solve_qp(Q, S.T @ W @ path, C, np.zeros(len(C)))[0])
        full = np.hstack([E.T, np.eye(SERIES)])
        report(
            "25 variables",
            lambda path: quadprog.solve_qp(W, W @ path, full, np.zeros(full.shape[1]), aggregates)[0][aggregates:],
        )
    except ImportError:
        print("quadprog is not installed")
    none = np.zeros((0, S.shape[1]))
    report("Clarabel", lambda path: by_clarabel(Q, S.T @ W @ path, -C, np.zeros(len(C)), none, np.zeros(0), 1e-8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    print(f"{arguments.threads} thread(s), torch {torch.__version__}, the shortest of {arguments.repeats} times")
    for own in (False, True):
        compare_programs(own, arguments.repeats)
    compare_reconciliation(arguments.repeats)


if __name__ == "__main__":
    main()
