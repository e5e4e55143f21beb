"""KL and full quadratics: each bar, what is measured for it, and whether it is met.

    python benchmarks/programs.py [--threads 1] [--repeats 7] [--only kl speed quadratic program reconciliation]

Ends with code 1 if a bar is missed. Peers run in the same process, in turns with linsat; a time is the shortest of the
repeats. A peer that is not installed (``pip install qpth proxsuite quadprog moreau POT``) leaves its bar unmeasured.

- ``kl``: softmax on the simplex, POT's plans, Clarabel (exponential cones) on signed rows, Sinkhorn's form at logits of
  scale 1 to 100.
- ``speed``: 8,192 doubly stochastic 4x4 matrices in float32, both ways, beside 20 Sinkhorn iterations in logarithms.
- ``quadratic``: 300 random programs (definite, singular, one P for each instance, dependent rows, no bounds) beside
  Clarabel.
- ``program``: 100 variables, 50 equalities, 50 inequalities, a full P, a batch of 64, both ways, with gradients to
  scores and P. P is one for all instances, or one for each.
- ``reconciliation``: 25 series in a tree (total, 4 groups, 20 leaves), a full covariance, 200 paths of forecasts, each
  projected onto the coherent non-negative ones (MinTrace): forward and backward, against a loop over quadprog, forward.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import clarabel
import numpy as np
import scipy.sparse as sp
import torch

import linsat
from bars import Line, at_least, at_most, print_table, seconds_text, shortest, times_text
from hyper_connections import sinkhorn

Array = np.ndarray
Layer = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SERIES, GROUPS, PATHS = 25, 4, 200
SCALES = (1.0, 3.0, 10.0, 30.0, 100.0)


def by_clarabel(P: Array, c: Array, rows: Array, sides: Array, cones: list[Any], tol: float = 1e-11) -> Array:
    """min x'Px / 2 - c'x subject to sides - rows x in the cones."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tol
    upper = sp.csc_matrix(np.triu(P))
    return np.array(clarabel.DefaultSolver(upper, -c, sp.csc_matrix(rows), sides, cones, settings).solve().x)


def with_rows(P: Array, c: Array, G: Array, h: Array, A: Array, b: Array, tol: float = 1e-11) -> Array:
    """min x'Px / 2 - c'x subject to G x <= h, A x = b."""
    cones = [clarabel.ZeroConeT(len(b)), clarabel.NonnegativeConeT(len(h))]
    return by_clarabel(P, c, np.vstack([A, G]), np.concatenate([b, h]), cones, tol)


# ------------------------------------------------------------------ KL


def kl_lines(repeats: int) -> Iterator[Line]:
    rng = np.random.default_rng(0)
    y = 3.0 * rng.normal(size=(200, 50))
    x = linsat.project(y, linsat.constraints.simplex(50), objective=linsat.KL(0.5))
    soft = np.exp(2.0 * (y - y.max(-1, keepdims=True)))
    off = float(np.abs(x - soft / soft.sum(-1, keepdims=True)).max())
    yield at_most("KL, simplex, 200 x 50: off softmax", f"{off:.1e}", off, 1e-12)
    yield from _pot_line(rng)
    off, below = np.max([_signed_rows(rng) for _ in range(60)], axis=0).tolist()
    text = f"{off:.1e}, value below by {below:.1e}"
    yield at_most("KL, signed rows in [0, 1], 60 systems: x off Clarabel's", text, max(off, 1e3 * below), 1e-5)
    for n in (4, 20):
        cons, solved, rows, form = linsat.constraints.doubly_stochastic(n), 0, 0.0, 0.0
        for scale in SCALES:
            y = scale * rng.normal(size=(50, n, n))
            solution = linsat.solve(y, cons, objective=linsat.KL(1.0), on_failure="ignore")
            solved += int((np.asarray(solution.status) == "converged").sum())
            x = np.asarray(solution.x)
            rows = max(rows, float(np.abs(x.sum(-1) - 1).max()), float(np.abs(x.sum(-2) - 1).max()))
            form = max(form, max(_off_form(x[i], y[i]) for i in range(len(x))))
        case = f"KL, {n}x{n}, scales 1 to 100, 50 each"
        yield Line(f"{case}: converged", f"{solved} of 250", "all", solved == 250)
        yield at_most(f"{case}: rows", f"{rows:.1e}", rows, 1e-9)
        yield at_most(f"{case}: log x - y - u - v", f"{form:.1e}", form, 1e-6)


def _off_form(x: Array, y: Array) -> float:
    """How far log x - y is from u + v, where x is above 1e-200: what least squares leave."""
    rest, n = np.log(np.maximum(x, 1e-300)) - y, len(x)
    some = [(i, j) for i in range(n) for j in range(n) if x[i, j] > 1e-200]
    A = np.zeros((len(some), 2 * n))
    for e, (i, j) in enumerate(some):
        A[e, i] = A[e, n + j] = 1.0
    b = np.array([rest[edge] for edge in some])
    return float(np.abs(A @ np.linalg.lstsq(A, b, rcond=None)[0] - b).max())


def _pot_line(rng: np.random.Generator) -> Iterator[Line]:
    case = "KL, transport 30 x 40: off POT's plan"
    try:
        import ot
    except ImportError:
        yield Line(case, "POT is not installed", "<= 1e-08", None)
        return
    worst = 0.0
    for reg in (0.5, 0.1, 0.02):
        a, b, cost = rng.dirichlet(np.ones(30)), rng.dirichlet(np.ones(40)), rng.random((30, 40))
        plan = ot.sinkhorn(a, b, cost, reg, method="sinkhorn_log", stopThr=1e-14, numItermax=200_000)
        x = linsat.Variable(30, 40, lower=0.0, upper=np.inf)
        cons = linsat.subject_to(x.sum(axis=1) == a, x.sum(axis=0) == b)
        worst = max(worst, float(np.abs(linsat.project(-cost, cons, objective=linsat.KL(reg)) - plan).max()))
    yield at_most(case, f"{worst:.1e}", worst, 1e-8)


def _signed_rows(rng: np.random.Generator, n: int = 12, k: int = 5, tau: float = 0.5) -> tuple[float, float]:
    """max <y, x> - tau sum (x log x - x) over signed rows and x <= 1, by exponential cones (t, x, 1), t <= -x log x."""
    A, inside, y = rng.normal(size=(k, n)), 0.05 + 0.9 * rng.random(n), rng.normal(size=n)
    b = A @ inside + np.where(np.arange(k) < 2, 0.0, rng.random(k))
    cons = linsat.Constraints(E=A[:2], f=b[:2], A=A[2:], b=b[2:], lower=0.0, upper=1.0)
    x = linsat.project(y, cons, objective=linsat.KL(tau))
    wide, each = np.zeros((k + n, 2 * n)), np.zeros((3 * n, 2 * n))
    wide[:k, :n], wide[k:, :n] = A, np.eye(n)
    each[3 * np.arange(n), n + np.arange(n)] = each[3 * np.arange(n) + 1, np.arange(n)] = -1.0
    cones = [clarabel.ZeroConeT(2), clarabel.NonnegativeConeT(k - 2 + n), *([clarabel.ExponentialConeT()] * n)]
    sides = np.concatenate([b, np.ones(n), np.tile([0.0, 0.0, 1.0], n)])
    linear = np.concatenate([y + tau, np.full(n, tau)])
    best = by_clarabel(np.zeros((2 * n, 2 * n)), linear, np.vstack([wide, each]), sides, cones, 1e-10)[:n]
    theirs, ours = (float(y @ v - tau * (v * np.log(v) - v).sum()) for v in (best, x))
    return float(np.abs(x - best).max()), theirs - ours


def speed_lines(repeats: int) -> Iterator[Line]:
    cons, objective = linsat.constraints.doubly_stochastic(4), linsat.KL(1.0)
    torch.manual_seed(0)
    for scale in (1.0, 3.0, 10.0):
        y, g = scale * torch.randn(8192, 4, 4), torch.randn(8192, 4, 4)

        def both_ways(layer: Callable[[torch.Tensor], torch.Tensor], y: torch.Tensor = y, g: torch.Tensor = g) -> Any:
            leaf = y.clone().requires_grad_()
            x = layer(leaf)
            x.backward(g)
            return x.detach().double()

        layers = {
            "linsat": lambda y: linsat.project(y, cons, objective=objective),
            "Sinkhorn": lambda y: sinkhorn(y, 20),
        }
        times = shortest({name: lambda layer=layer: both_ways(layer) for name, layer in layers.items()}, repeats)
        errors = [float((both_ways(layer).sum(-1) - 1).abs().max()) for layer in layers.values()]
        ratio, each = times["Sinkhorn"] / times["linsat"], 1e6 * times["linsat"] / len(y)
        case = f"KL, 8,192 x 4x4 float32 both ways, scale {scale:g}"
        text = f"{each:.2f} us against {1e6 * times['Sinkhorn'] / len(y):.2f} (20 iterations): {times_text(ratio)}"
        yield at_least(case, text, ratio, 10)
        yield at_most(f"{case}: rows", f"{errors[0]:.0e} where 20 iterations leave {errors[1]:.0e}", errors[0], 1e-6)


# ------------------------------------------------------------------ quadratics


def quadratic_lines(repeats: int) -> Iterator[Line]:
    """Values relative to 1 + |value|; Clarabel at 1e-11, where it reaches that."""
    kinds = ("definite", "singular", "per instance", "dependent", "no bounds")
    above = rows = 0.0
    solved = 0
    for seed in range(300):
        kind, rng = kinds[seed % len(kinds)], np.random.default_rng(seed)
        n, count = int(rng.integers(3, 15)), 3
        rank = max(1, n // 2) if kind == "singular" else n
        L = rng.normal(size=(count if kind == "per instance" else 1, n, rank))
        P = L @ L.swapaxes(-1, -2) / n
        A, inside = rng.normal(size=(int(rng.integers(1, n)), n)), rng.uniform(-0.8, 0.8, n)
        E = rng.normal(size=(int(rng.integers(0, max(1, n // 3))), n))
        if kind == "dependent":
            A, E = np.vstack([A, A[:1], 2.0 * A[-1:]]), np.vstack([E, E[:1] - E[-1:]])
        b, f = A @ inside + rng.choice([0.0, 0.3, 1.0], len(A)), E @ inside
        bound = np.inf if kind == "no bounds" else 1.0
        y = 2.0 * rng.normal(size=(count, n))
        cons = linsat.Constraints(A=A, b=b, E=E, f=f, lower=-bound, upper=bound)
        objective = linsat.Quadratic(P if kind == "per instance" else P[0])
        solution = linsat.solve(y, cons, objective=objective, on_failure="ignore")
        solved += int((np.asarray(solution.status) == "converged").sum())
        for i, x in enumerate(np.asarray(solution.x)):
            own = P[min(i, len(P) - 1)]
            box = np.vstack([np.eye(n), -np.eye(n)]) if np.isfinite(bound) else np.zeros((0, n))
            best = with_rows(own, y[i], np.vstack([A, box]), np.concatenate([b, np.ones(len(box))]), E, f)
            value, theirs = (0.5 * v @ own @ v - y[i] @ v for v in (x, best))
            above = max(above, (value - theirs) / (1 + abs(theirs)))
            rows = max(rows, float((A @ x - b).max()), float(np.abs(E @ x - f).max(initial=0.0)))
    case = "Quadratic, 300 random programs of 3"
    yield Line(f"{case}: converged", f"{solved} of 900", "all", solved == 900)
    yield at_most(f"{case}: above Clarabel's value", f"{above:.1e}", above, 1e-8)
    yield at_most(f"{case}: rows", f"{rows:.1e}", rows, 1e-9)


def programs(count: int, own: bool, seed: int = 0) -> dict[str, Array]:
    """P (or one for each instance), scores, rows with a point that satisfies them."""
    rng, n = np.random.default_rng(seed), 100
    L = rng.normal(size=(count if own else 1, n, n))
    P = L @ L.swapaxes(-1, -2) / n + 0.1 * np.eye(n)
    A, G, inside = rng.normal(size=(50, n)), rng.normal(size=(50, n)), rng.normal(size=n)
    y = 3.0 * rng.normal(size=(count, n))
    return {"P": P if own else P[0], "y": y, "A": A, "b": A @ inside, "G": G, "h": G @ inside + rng.random(50)}


def peers(t: dict[str, torch.Tensor]) -> dict[str, Layer | None]:
    """Layers of others for these programs; None: not installed."""
    layers: dict[str, Layer | None] = dict.fromkeys(("Moreau", "qpth", "ProxQP"))
    count, n = t["y"].shape
    try:
        import moreau
        from moreau.torch import Solver

        rows, sides = torch.cat([t["A"], t["G"]]), torch.cat([t["b"], t["h"]]).expand(count, -1)
        pattern = [torch.arange(0, n * n + 1, n), torch.arange(n).repeat(n)]
        pattern += [torch.arange(0, rows.numel() + 1, n), torch.arange(n).repeat(len(rows))]
        cones = moreau.Cones(num_zero_cones=len(t["b"]), num_nonneg_cones=len(t["h"]))
        solver = Solver(n, len(rows), *pattern, cones, moreau.Settings(device="cpu", batch_size=count))
        layers["Moreau"] = lambda y, P: (
            solver.solve(P.flatten(-2), rows.flatten().expand(*P.shape[:-2], -1), -y, sides).x
        )
    except ImportError:
        pass
    try:
        from qpth.qp import QPFunction

        layers["qpth"] = lambda y, P: QPFunction(verbose=-1)(P, -y, t["G"], t["h"], t["A"], t["b"])
    except ImportError:
        pass
    try:
        from proxsuite.torch.qplayer import QPFunction as ProxQP

        low = torch.full_like(t["h"], -1e20)
        ends = t["A"], t["b"], t["G"], low, t["h"]
        layers["ProxQP"] = lambda y, P: ProxQP(structural_feasibility=True)(P, -y, *ends)[0]
    except ImportError:
        pass
    return layers


def program_lines(repeats: int, count: int = 64) -> Iterator[Line]:
    for own in (False, True):
        data = programs(count, own)
        t = {name: torch.from_numpy(array) for name, array in data.items()}
        given = torch.from_numpy(np.random.default_rng(1).normal(size=data["y"].shape))
        cons = linsat.Constraints(A=data["G"], b=data["h"], E=data["A"], f=data["b"], lower=-np.inf, upper=np.inf)

        def both_ways(layer: Layer, t: dict[str, torch.Tensor] = t, given: torch.Tensor = given) -> torch.Tensor:
            y, P = t["y"].clone().requires_grad_(), t["P"].clone().requires_grad_()
            x = layer(y, P)
            (x * given).sum().backward()
            return x.detach()

        def ours(y: torch.Tensor, P: torch.Tensor, cons: linsat.Constraints = cons) -> torch.Tensor:
            return linsat.project(y, cons, objective=linsat.Quadratic(P))

        others = peers(t)
        layers = {"linsat": ours} | {name: layer for name, layer in others.items() if layer}
        times = shortest({name: lambda layer=layer: both_ways(layer) for name, layer in layers.items()}, repeats)
        wholes = data["P"] if own else np.broadcast_to(data["P"], (count, *data["P"].shape))
        sides = data["G"], data["h"], data["A"], data["b"]
        best = np.stack([with_rows(wholes[i], data["y"][i], *sides) for i in range(count)])
        off = {name: float(np.abs(both_ways(layer).numpy() - best).max()) for name, layer in layers.items()}
        title = f"Quadratic, n = 100, 50 + 50 rows, {'one P each' if own else 'one P for all'}, batch {count} both ways"
        for name in others:
            if name not in times:
                yield Line(f"{title}: {name}", "not installed", ">= 10x", None)
                continue
            ratio = times[name] / times["linsat"]
            text = f"{seconds_text(times['linsat'])} against {seconds_text(times[name])}: {times_text(ratio)}"
            yield at_least(
                f"{title}: {name}", f"{text}; x off Clarabel's {off['linsat']:.0e}, {off[name]:.0e}", ratio, 10
            )


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


def reconciliation_lines(repeats: int) -> Iterator[Line]:
    title = f"reconciliation, {PATHS} paths of {SERIES} series, both ways"
    try:
        import quadprog
    except ImportError:
        yield Line(title, "quadprog is not installed", ">= 6x", None)
        return
    S, (covariance, base) = tree(), forecasts()
    W = np.linalg.inv(covariance)
    aggregates = SERIES - S.shape[1]
    E = np.hstack([np.eye(aggregates), -S[:aggregates]])  # an aggregate is the sum of its leaves
    cons = linsat.Constraints(E=E, f=np.zeros(aggregates), lower=0.0, upper=np.inf)
    given, metric = torch.randn(PATHS, SERIES, dtype=torch.float64), torch.from_numpy(W)
    Q, C, none = S.T @ W @ S, np.eye(S.shape[1]), np.zeros(S.shape[1])
    full, zeros = np.hstack([E.T, np.eye(SERIES)]), np.zeros(aggregates + SERIES)

    def both_ways() -> torch.Tensor:
        y = torch.from_numpy(base).requires_grad_()
        x = linsat.project(y, cons, objective=linsat.Euclidean(metric))
        (x * given).sum().backward()
        return x.detach()

    runs: dict[str, Callable[[], Any]] = {
        "linsat": both_ways,
        "20 variables": lambda: [quadprog.solve_qp(Q, S.T @ W @ path, C, none)[0] for path in base],
        "25 variables": lambda: [quadprog.solve_qp(W, W @ path, full, zeros, aggregates)[0] for path in base],
    }
    times = shortest(runs, repeats)
    x, leaves = both_ways().numpy(), np.stack(runs["20 variables"]())
    for name in ("20 variables", "25 variables"):
        ratio = times[name] / times["linsat"]
        text = f"{seconds_text(times['linsat'])} against {seconds_text(times[name])} (forward): {times_text(ratio)}"
        yield at_least(f"{title}, a loop over quadprog with {name}", text, ratio, 6)
    off, nearly = float(np.abs(leaves @ S.T - x).max()), int(((x != 0) & (np.abs(x) < 1e-8)).sum())
    yield at_most(f"{title}: off quadprog", f"{off:.1e}", off, 1e-8)
    yield Line(f"{title}: zeros", f"{int((x == 0).sum())} exactly, {nearly} nearly", "exactly", nearly == 0)


PARTS = {
    "kl": kl_lines,
    "speed": speed_lines,
    "quadratic": quadratic_lines,
    "program": program_lines,
    "reconciliation": reconciliation_lines,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    print(f"{arguments.threads} thread(s), torch {torch.__version__}, the shortest of {arguments.repeats} times\n")
    return print_table(line for name in arguments.only for line in PARTS[name](arguments.repeats))


if __name__ == "__main__":
    sys.exit(main())
