"""Reconciling forecasts: MinTrace with non-negativity, as hierarchicalforecast states it, beside its solvers.

Hierarchies of 25, 500 and 5,000 series, 200 sample paths each. Bottom series are small counts, so that plain
reconciliation would be negative for many of them; base forecasts are the levels with noise that grows with the level.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

import linsat
from arena.tables import bars, table

HEADING = "Reconciling forecasts"
LEVELS = {25: (1, 4, 20), 500: (1, 9, 40, 450), 5000: (1, 24, 225, 4750)}
# Paths that the quadratic programs get; the page says what 200 would take.
FEW = {("MinTrace", 25): 200, ("MinTrace", 500): 4, ("MinTraceSparse", 25): 200, ("MinTraceSparse", 500): 200}
FEW |= {("MinTraceSparse", 5000): 4}


def summing(levels: tuple[int, ...]) -> np.ndarray:
    """(series, bottom): each level a partition of the bottom series into equal groups."""
    bottom = levels[-1]
    return np.vstack([np.arange(c)[:, None] == np.arange(bottom) * c // bottom for c in levels]).astype(np.float64)


def forecasts(S: np.ndarray, paths: int, seed: int = 0) -> np.ndarray:
    """(series, paths) of base forecasts, none below zero."""
    rng = np.random.default_rng(seed)
    level = S @ rng.gamma(0.3, 3.0, (S.shape[1], 1))
    return np.maximum(level + 1.5 * np.sqrt(S.sum(1))[:, None] * rng.normal(size=(len(S), paths)), 0.0)


def stationarity(S: np.ndarray, W: np.ndarray, base: np.ndarray, bottom: np.ndarray) -> float:
    """The largest entry of min(b, slope at b): zero at the solution, and only there."""
    slope = S.T @ ((S @ bottom - base) / W[:, None])
    return float(np.abs(np.minimum(bottom, slope)).max())


def by_quadprog(S: np.ndarray, W: np.ndarray, base: np.ndarray) -> np.ndarray:
    """The bottom series of every path by an active-set method, to the last digits: min |S b - base|^2 / W, b >= 0."""
    import quadprog

    P, least, zero = S.T @ (S / W[:, None]), np.eye(S.shape[1]), np.zeros(S.shape[1])
    return np.stack([quadprog.solve_qp(P, S.T @ (path / W), least, zero)[0] for path in base.T], 1)


def compare(size: int, paths: int) -> dict[str, dict[str, float]]:
    """Seconds, distance from the solution, and how many paths were solved, of each way; weights by structure."""
    from hierarchicalforecast import methods

    from linsat.interop.hierarchicalforecast import MinTrace, coherent, metric

    warnings.simplefilter("ignore")
    S, m = summing(LEVELS[size]), LEVELS[size][-1]
    W, base = S.sum(1), forecasts(S, paths)
    result = {}

    def record(name: str, count: int, run: Callable[[], np.ndarray]) -> None:
        begin = time.perf_counter()
        bottom = run()[-m:]
        seconds = time.perf_counter() - begin
        wrong = stationarity(S, W, base[:, :count], bottom)
        away = float(np.abs(bottom - solution[:, :count]).max()) if result else 0.0
        result[name] = {"seconds": seconds, "paths": count, "stationarity": wrong, "away": away}

    cons, objective = coherent(S), metric(W)
    rows = np.ascontiguousarray(base.T)
    linsat.project(rows[:2], cons, objective=objective)
    record("linsat.project", paths, lambda: linsat.project(rows, cons, objective=objective).T)
    solution = linsat.project(rows, cons, objective=objective).T[-m:]
    if size < 5000:  # what comes before the programs is dense in hierarchicalforecast
        drop_in = MinTrace("wls_struct", nonnegative=True)
        record("the drop-in class", paths, lambda: drop_in.fit(S, base).y_hat)
    for name, (kind, matrix) in {
        "MinTrace": (methods.MinTrace, S),
        "MinTraceSparse": (methods.MinTraceSparse, sp.csr_matrix(S)),
    }.items():
        count = min(FEW.get((name, size), 0), paths)
        if count:
            rival, part = kind("wls_struct", nonnegative=True), base[:, :count]
            record(name, count, lambda r=rival, s=matrix, y=part: r.fit(s, y).y_hat)
    if size < 5000:
        record("quadprog", min(8, paths), lambda: by_quadprog(S, W, base[:, : min(8, paths)]))
    return result


def train(paths: int) -> dict[str, float]:
    """Forward and backward of all paths through the layer, 500 series, in torch."""
    import torch

    from linsat.interop.hierarchicalforecast import coherent, metric

    torch.set_num_threads(1)
    S = summing(LEVELS[500])
    cons, objective = coherent(S), metric(S.sum(1))
    base = torch.tensor(forecasts(S, paths).T.copy(), requires_grad=True)
    spent = []
    for _ in range(4):
        begin = time.perf_counter()
        linsat.project(base, cons, objective=objective).square().sum().backward()
        spent.append(time.perf_counter() - begin)
    return {"seconds": min(spent)}


def units(quick: bool) -> dict[str, Callable[[], Any]]:
    paths = 3 if quick else 200
    sizes = [25] if quick else list(LEVELS)
    made = {f"reconciliation/{size}": functools.partial(compare, size, paths) for size in sizes}
    return made | {"reconciliation/gradient": functools.partial(train, paths)}


def section(results: dict[str, Any]) -> list[str]:
    rows, ratios, away, slopes = [], {}, [], []
    for size in LEVELS:
        made = results.get(f"reconciliation/{size}", {})
        if "linsat.project" not in made:
            continue
        ours = made["linsat.project"]["seconds"]
        for name, r in made.items():
            scaled = r["seconds"] * 200 / r["paths"]
            note = "" if r["paths"] == 200 else f" (from {r['paths']})"
            rows.append(
                (
                    f"{size:,}",
                    f"`{name}`" if name == "linsat.project" else name,
                    f"{scaled:.3g}{note}",
                    f"{scaled / ours:,.0f}",
                    f"{r['stationarity']:.0e}",
                    f"{r['away']:.0e}" if name != "linsat.project" else "",
                )
            )
        if "MinTraceSparse" in made:  # the faster of its two classes
            other = made["MinTraceSparse"]
            ratios[size] = other["seconds"] * made["linsat.project"]["paths"] / other["paths"] / ours
        away += [made["quadprog"]["away"]] if "quadprog" in made else []
        slopes.append(made["linsat.project"]["stationarity"])
    head = ("series", "", "seconds for 200 paths", "times linsat", "stationarity", "largest difference to linsat")
    found = []
    if away:
        words = f"{max(away):.0e} from quadprog's, stationarity {max(slopes):.0e}, at worst"
        found.append(("the solution of the programs to 1e-6", words, max(*away, *slopes) <= 1e-6))
    if ratios:
        words = ", ".join(f"{ratio:,.0f} times with {size:,} series" for size, ratio in ratios.items())
        found.append(("the faster class takes 20 times as long for 200 paths", words, min(ratios.values()) >= 20))
    gradient = results.get("reconciliation/gradient", {}).get("seconds")
    both = f"Forward and backward of 200 paths, 500 series, in torch: {1e3 * gradient:.0f} ms." if gradient else ""
    return [
        f"""
## {HEADING}

`MinTrace(nonnegative=True)` of hierarchicalforecast: the coherent, non-negative forecasts nearest to the base
forecasts, weights by structure. It solves a quadratic program for every path with Clarabel; linsat projects all
paths in one call, through `linsat.interop.hierarchicalforecast`. *Stationarity* is the largest entry of
min(b, slope at b) over bottom series b: zero at the solution and only there, computed with numpy. quadprog solves the
same programs one by one to the last digits, and says that they are the same.
""",
        table(head, rows) if rows else "",
        bars(found) if found else "",
        f"""
{both}

![Paths before and after](assets/arena/reconciliation.png)

`python examples/flagships/reconciliation.py` draws the picture.

**What this shows.** That the programs are projections, that a batch of them is solved together, and that they are the
same programs: where forecasts differ, stationarity says whose are nearer to the solution.

**What it does not show.** Better forecasts: the numbers to reconcile are generated, and the method is that of
hierarchicalforecast. Its classes are given one thread, as everything here. A full covariance (`mint_shrink`) needs a
dense matrix of all series and is slower; it is not in the table, and 5,000 series were not tried with it.
""",
    ]
