"""Scale: large sparse rows, dense thousands, verdicts, warm starts, chains; each bar, and whether it is met.

    python benchmarks/scale.py [--only sparse netlib dense assignment verdict warm chains] [--data FOLDER]

Ends with code 1 if a bar is missed. Processor seconds of one thread, because others may be at work on the machine;
peers (PIQP, Clarabel, Pinet, HiGHS) run beside linsat where installed, each large case in a process of its own with a
time limit, which says how far its memory grew. ``--data`` (default: what LINSAT_DATA names) is a folder with
``lp/netlib`` and ``lp/infeasible``.

| group | what |
|---|---|
| sparse | 100,000 rows of a chain with a column in all of them; control on a grid of 200 x 200 |
| netlib | nearest points in the linear programs of ``lp/netlib``, total times |
| dense | 1,000 variables, 500 + 500 dense rows, no box, both ways: Pinet with 50 iterations |
| assignment | 1000x1000 and 2000x2000 from constraints to x, in products of two 1000x1000 matrices |
| verdict | a router of 4,096 x 64 with one seat too few; `check()` of one that is feasible; ``lp/infeasible`` |
| warm | fresh tokens with the duals of the experts kept: steps beside those of a cold start |
| chains | isotonic regression, second differences under every objective |
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

import linsat
import problems
import sparse
from bars import Line, at_least, at_most, print_table, seconds_text, shortest, times_text
from peer_pinet import Pinet
from units import Yardstick

Array = np.ndarray
TIME_LIMIT, TIME_LIMIT_NETLIB = 180.0, 600.0
AVX512 = "avx512f" in Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else False


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of this process: others may be at work on the machine."""
    begin = time.process_time()
    made = run()
    return time.process_time() - begin, made


# ------------------------------------------------------------------ sparse programs


def pairs(name: str, peers: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """A case by linsat and by the peers that are installed, each in a process of its own."""
    methods = ["linsat", *(peer for peer in peers if installed(peer))]
    return {method: sparse.in_a_process(name, method, TIME_LIMIT) for method in methods}


def ours_line(case: str, record: dict[str, Any], limit: float) -> Line:
    if "seconds" not in record:
        return Line(case, record["status"], f"<= {limit:g} s", False)
    text = f"{seconds_text(record['seconds'])}, {record['memory_mb']:,.0f} MB, {record['status']}"
    text += f", rows {record['violation']:.0e}"
    solved = record["status"] == "converged" and record["violation"] <= sparse.HOLDS
    return Line(
        case,
        text,
        f"<= {limit:g} s and 2,048 MB, converged",
        solved and record["memory_mb"] <= 2048 and record["seconds"] <= limit,
    )


def sparse_lines(data: Path | None) -> Iterator[Line]:
    for name in ("full column 100000", "stock with a level 100000", "control 200"):
        records = pairs(name, ("piqp", "clarabel"))
        ours = records.pop("linsat")
        yield ours_line(name, ours, 60.0)
        solved = {
            peer: record["seconds"]
            for peer, record in records.items()
            if "seconds" in record and "solved" in record["status"].lower() and record["violation"] <= 1e-6
        }
        case = f"{name}: against the better of PIQP and Clarabel"
        if not solved or "seconds" not in ours:
            ends = ", ".join(f"{peer}: {record['status']}" for peer, record in records.items())
            yield Line(case, ends or "not installed", "<= 2", None)
            continue
        best = min(solved, key=lambda peer: solved[peer])
        ratio = ours["seconds"] / solved[best]
        off = ours["objective"] / records[best]["objective"] - 1
        yield at_most(case, f"{ratio:.2f} of {seconds_text(solved[best])} ({best}); objective {off:+.0e}", ratio, 2.0)


def netlib_times(folder: Path, method: str) -> None:
    """One line for each file: its name, seconds, how it ended."""
    sparse.METHODS[method](sparse.differences(2, 300))
    for path in sorted(folder.glob("*.mps.gz")):
        given = sparse.from_file(path)
        seconds, (x, status) = timed(lambda given=given: sparse.METHODS[method](given))
        print(json.dumps([path.name, seconds, status, given.violation(x), given.objective(x)]), flush=True)


def netlib_lines(data: Path | None) -> Iterator[Line]:
    case = "lp/netlib, nearest points, total time against PIQP"
    folder = None if data is None else data / "lp" / "netlib"
    if folder is None or not folder.is_dir() or not installed("piqp") or not installed("highspy"):
        yield Line(case, "no data, or no PIQP and HiGHS", "<= 1.2", None)
        return
    tables: dict[str, dict[str, Any]] = {}
    for method in ("linsat", "piqp"):
        command = [sys.executable, __file__, "--netlib", str(folder), method]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_NETLIB, check=True)
        tables[method] = {line[0]: line[1:] for line in map(json.loads, done.stdout.splitlines())}
    ours, theirs = tables["linsat"], tables["piqp"]
    solved = [name for name, line in ours.items() if line[1] == "converged" and line[2] <= sparse.HOLDS]
    yield Line("lp/netlib: converged", f"{len(solved)} of {len(ours)}", "all", len(solved) == len(ours))
    total, other = (sum(line[0] for line in table.values()) for table in (ours, theirs))
    worst = sorted(ours, key=lambda name: theirs[name][0] - ours[name][0])[:3]
    slow = ", ".join(f"{name.split('.')[0]} {ours[name][0]:.2f} / {theirs[name][0]:.2f}" for name in worst)
    text = f"{total / other:.2f} = {seconds_text(total)} / {seconds_text(other)}; most is lost in {slow}"
    yield at_most(case, text, total / other, 1.2)


# ------------------------------------------------------------------ dense programs


def dense_lines(data: Path | None) -> Iterator[Line]:
    for batch in (64, 1024):
        problem = replace(problems.LARGE_DENSE, batch=batch)
        y, given, rows = problem.scores(0), problem.weights(0).double(), problem.rows
        E, A = rows.E.toarray(), rows.A.toarray()
        layers: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "linsat": lambda y, problem=problem: linsat.project(y, problem.constraints, objective=linsat.Euclidean())
        }
        if installed("pinet"):
            layers["pinet"] = Pinet("pinet-50", iterations=50).prepare(problem)

        def both_ways(layer: Callable[..., torch.Tensor], y: torch.Tensor = y, given: Any = given) -> torch.Tensor:
            leaf = y.clone().requires_grad_()
            x = layer(leaf)
            x.backward(given.to(x.dtype))
            return x.detach().double()

        runs = {name: partial(both_ways, layer) for name, layer in layers.items()}
        times = shortest(runs, 2, time.process_time)
        off = {}
        for name, layer in layers.items():
            x = both_ways(layer).numpy()
            off[name] = max(np.abs(x @ E.T - rows.f).max(), (x @ A.T - rows.b).max())
        case = f"{problem.label}, batch {batch:,}, both ways"
        yield at_most(f"{case}: rows", f"{off['linsat']:.0e}", off["linsat"], 1e-9)
        if "pinet" not in times:
            yield Line(case, f"{seconds_text(times['linsat'])}; Pinet is not installed", ">= 1x", None)
            continue
        ratio = times["pinet"] / times["linsat"]
        text = f"{seconds_text(times['linsat'])} against {seconds_text(times['pinet'])} (Pinet, 50 iterations, rows "
        yield at_least(case, f"{text}{off['pinet']:.0e}): {times_text(ratio)}", ratio, 1.0)


def assignment_lines(data: Path | None) -> Iterator[Line]:
    limit, taken = 45 if AVX512 else 30, {}
    linsat.project(problems.assignment(30, 0.01).scores(0), problems.assignment(30, 0.01).constraints, tau=0.01)
    for n in (1000, 2000):
        problem = problems.ASSIGNMENTS[n]
        y = problem.scores(0)
        stick = Yardstick(y)
        runs = [timed(lambda y=y, p=problem: linsat.project(y, p.make_constraints(), tau=p.tau)) for _ in range(2)]
        product, taken[n] = stick.read()["product_s"], min(seconds for seconds, _ in runs)
        x = runs[0][1].double().reshape(n, n)
        off = float(max((x.sum(0) - 1).abs().max(), (x.sum(1) - 1).abs().max()))
        if n == 1000:
            value = taken[n] / product
            text = f"{value:.1f} = {seconds_text(taken[n])} / {seconds_text(product)}; rows {off:.0e}"
            kind = "AVX-512" if AVX512 else "AVX2"
            yield at_most(f"{problem.title}: constraints to x, in products ({kind})", text, value, limit)
    ratio = taken[2000] / taken[1000]
    yield at_most("2000x2000 against 1000x1000", f"{ratio:.1f} = {seconds_text(taken[2000])}", ratio, 6.0)


# ------------------------------------------------------------------ verdicts


def router(tokens: int, experts: int, capacity: Array) -> linsat.Constraints:
    """Each token goes to one expert."""
    cells = np.arange(tokens * experts)
    ones, width = np.ones(len(cells)), len(cells)
    needs = sp.csr_array((ones, (cells // experts, cells)), shape=(tokens, width))
    takes = sp.csr_array((ones, (cells % experts, cells)), shape=(experts, width))
    names = [*(f"capacity[{i}]" for i in range(experts)), *(f"token[{i}]" for i in range(tokens))]
    return linsat.Constraints(A=takes, b=capacity, E=needs, f=np.ones(tokens), names=names)


def by_highs(tokens: int, capacity: Array) -> float:
    """Seconds until HiGHS has its verdict on the same rows."""
    from scipy.optimize import linprog

    cells, experts = np.arange(tokens * len(capacity)), len(capacity)
    ones = np.ones(len(cells))
    needs = sp.csr_array((ones, (cells // experts, cells)), shape=(tokens, len(cells)))
    takes = sp.csr_array((ones, (cells % experts, cells)), shape=(experts, len(cells)))
    return timed(lambda: linprog(0 * ones, takes, capacity, needs, np.ones(tokens), bounds=(0, 1), method="highs"))[0]


def exact(capacities: Array, tokens: int, error: linsat.InfeasibleError) -> bool:
    """In fractions: the rows of the certificate add up to 0 in every variable and to less than 0 on the right."""
    experts = len(capacities)
    weight = [Fraction(0)] * (experts + tokens)
    for row, multiplier in zip(error.indices, error.certificate, strict=True):
        weight[row] = Fraction(multiplier)
    sign = 1 if weight[error.indices[0]] > 0 else -1
    capacity = [sign * w for w in weight[:experts]]
    token = [sign * w for w in weight[experts:]]
    # sum_e capacity_e (takes_e x) + sum_t token_t (needs_t x): each cell has coefficient capacity_e + token_t >= 0.
    if any(w < 0 for w in capacity) or min(capacity) + min(token) < 0:
        return False
    right = sum(w * Fraction(b) for w, b in zip(capacity, capacities, strict=True)) + sum(token)
    return right < 0


def verdict_lines(data: Path | None) -> Iterator[Line]:
    tokens, experts = 4096, 64
    full = np.full(experts, tokens / experts)
    short = full.copy()
    short[5] -= 1
    cons = router(tokens, experts, short)
    seconds, error = timed(lambda: _refused(cons))
    text = f"{seconds_text(seconds)} (HiGHS: {seconds_text(by_highs(tokens, short))})"
    yield at_most("router 4,096 x 64, one seat too few: verdict", text, seconds, 2.0, " s")
    held = error is not None and exact(short, tokens, error)
    yield Line("the same: certificate in fractions", "exact" if held else "wrong", "exact", held)
    y = np.random.default_rng(0).normal(size=tokens * experts)
    feasible = 1.25 * full
    first = timed(lambda: linsat.project(y, router(tokens, experts, feasible), tau=0.1))[0]
    seconds = timed(lambda: router(tokens, experts, feasible).check())[0]
    text = f"{seconds / first:.2f} = {seconds_text(seconds)} / {seconds_text(first)}"
    yield at_most("router 4,096 x 64, feasible: check() against first use", text, seconds / first, 3.0)
    folder = None if data is None else data / "lp" / "infeasible"
    if folder is None or not folder.is_dir() or not installed("highspy"):
        yield Line("lp/infeasible", "no data, or no HiGHS", "all refused", None)
        return
    names, refused, total, slowest = sorted(folder.glob("*.mps.gz")), 0, 0.0, ("", 0.0)
    for path in names:
        cons = sparse.constraints(sparse.from_file(path))
        seconds, error = timed(lambda cons=cons: _refused(cons))
        refused += error is not None
        total, slowest = total + seconds, max(slowest, (path.name, seconds), key=lambda pair: pair[1])
    text = f"{refused} of {len(names)} in {seconds_text(total)}, {slowest[0]} alone {seconds_text(slowest[1])}"
    yield Line("lp/infeasible: refused by check()", text, "all refused", refused == len(names))


def _refused(cons: linsat.Constraints) -> linsat.InfeasibleError | None:
    try:
        cons.check()
    except linsat.InfeasibleError as error:
        return error
    return None


# ------------------------------------------------------------------ warm starts


def warm_lines(data: Path | None) -> Iterator[Line]:
    tokens, experts, draws = 4096, 64, 6
    rng = np.random.default_rng(0)
    popularity = rng.normal(size=experts)
    cons = linsat.constraints.capacity_assignment(tokens, experts, 1.25 * tokens / experts)
    for tau in (0.1, 0.03):
        steps: dict[str, list[int]] = {"cold": [], "warm": []}
        times: dict[str, float] = {"cold": 0.0, "warm": 0.0}
        off = 0.0
        duals = None
        for _ in range(draws):
            y = (rng.normal(size=(tokens, experts)) + popularity).reshape(-1)
            starts = {"cold": None, "warm": None if duals is None else {"capacity": duals}}
            answers = {}
            for name, start in starts.items():
                seconds, answers[name] = timed(partial(linsat.solve, y, cons, tau=tau, start=start))
                if duals is not None:
                    steps[name].append(int(answers[name].steps))
                    times[name] += seconds
            off = max(off, float(np.abs(answers["warm"].x - answers["cold"].x).max()))
            duals = answers["cold"].duals[:experts]
        cold, warm = (float(np.mean(steps[name])) for name in ("cold", "warm"))
        text = f"{warm:.1f} of {cold:.1f} steps, {times['warm'] / times['cold']:.2f} of the time; x off by {off:.0e}"
        case = f"router {tokens:,} x {experts}, tau {tau:g}, fresh tokens, duals of the experts kept"
        yield at_most(case, text, warm / cold, 0.5, " of the steps")


# ------------------------------------------------------------------ chains


def chains_lines(data: Path | None) -> Iterator[Line]:
    yield ours_line("isotonic 100000", sparse.in_a_process("isotonic 100000", "linsat", TIME_LIMIT), 2.0)
    for order in (2, 3):
        for objective in sparse.OBJECTIVES:
            method = "linsat" if objective == "Euclidean" else f"linsat {objective}"
            record = sparse.in_a_process(f"differences {order} 10000", method, TIME_LIMIT)
            yield ours_line(f"differences {order} 10000, {objective}", record, 60.0)


GROUPS = {
    "sparse": sparse_lines,
    "netlib": netlib_lines,
    "dense": dense_lines,
    "assignment": assignment_lines,
    "verdict": verdict_lines,
    "warm": warm_lines,
    "chains": chains_lines,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--data", type=Path, default=os.environ.get("LINSAT_DATA"), help="folder with lp/netlib")
    parser.add_argument("--netlib", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.netlib:
        netlib_times(Path(arguments.netlib[0]), arguments.netlib[1])
        return 0
    data = None if arguments.data is None else Path(arguments.data)
    return print_table(line for name in arguments.only for line in GROUPS[name](data))


if __name__ == "__main__":
    sys.exit(main())
