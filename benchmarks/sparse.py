"""Large sparse sets beside PIQP and Clarabel: ``python benchmarks/sparse.py [--cases NAME ...]``.

Every pair of a case and a method runs in a separate process, which measures processor seconds from arrays to x and
the peak of its memory above what it had imported; then a point is judged by its rows and, against the other methods, by
its objective. `scale.py` has the bars. A linear program in a file, ``from_file``, is a case too.

| case | rows |
|---|---|
| ``full column N`` | x[i + 1] - x[i] <= width, N of them: the width is a variable, a column in all rows |
| ``stock with a level N`` | stock[i + 1] = stock[i] + bought[i] - level, N of them |
| ``control N`` | -laplace(state) = control on a grid of N x N cells, controls in [0, 30], states at most 1 |
| ``boundary control N`` | the same with controls at the edge of the grid only |
| ``isotonic N`` | x[i] <= x[i + 1] |
| ``differences K N`` | the K-th differences are at least zero |
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

Array = np.ndarray
HOLDS = 1e-8  # violation at which a time counts


@dataclass(frozen=True)
class Case:
    """The point nearest to ``target``, by ``weights``, with row_lower <= matrix x <= row_upper and a box."""

    matrix: sp.csr_array
    row_lower: Array
    row_upper: Array
    lower: Array
    upper: Array
    target: Array
    weights: Array

    def objective(self, x: Array) -> float:
        return float((self.weights * (x - self.target) ** 2).sum() / 2)

    def violation(self, x: Array) -> float:
        """Of the worst row or bound, relative to max(1, the size of its terms)."""
        values, size = self.matrix @ x, np.maximum(1.0, abs(self.matrix) @ np.abs(x))
        rows = np.maximum(self.row_lower - values, values - self.row_upper) / size
        box = np.maximum(self.lower - x, x - self.upper) / np.maximum(1.0, np.abs(x))
        return float(max(rows.max(initial=0.0), box.max(initial=0.0)))


def _case(matrix: Any, row_lower: Any, row_upper: Any, target: Array, **given: Any) -> Case:
    k, l = matrix.shape
    whole = {"lower": -np.inf, "upper": np.inf, "weights": 1.0} | given
    columns = {name: np.broadcast_to(np.asarray(value, float), l).copy() for name, value in whole.items()}
    ends = (np.broadcast_to(np.asarray(end, float), k).copy() for end in (row_lower, row_upper))
    return Case(sp.csr_array(matrix), *ends, target=target, **columns)


def full_column(n: int) -> Case:
    rng = np.random.default_rng(n)
    steps = sp.diags_array([-np.ones(n), np.ones(n)], offsets=[0, 1], shape=(n, n + 1))
    matrix = sp.hstack([steps, sp.csr_array(-np.ones((n, 1)))])
    return _case(matrix, -np.inf, 0.0, np.append(rng.normal(size=n + 1), 0.1), weights=np.append(np.ones(n + 1), n))


def stock_with_a_level(n: int) -> Case:
    """Stock and orders are never negative, orders at most 3; what is taken out every period is one level."""
    rng = np.random.default_rng(n)
    stock = sp.diags_array([-np.ones(n), np.ones(n)], offsets=[0, 1], shape=(n, n + 1))
    matrix = sp.hstack([stock, -sp.eye_array(n), sp.csr_array(np.ones((n, 1)))])
    target = np.concatenate([np.full(n + 1, 2.0), rng.exponential(1.0, n), [1.5]])
    upper = np.concatenate([np.full(n + 1, np.inf), np.full(n, 3.0), [np.inf]])
    return _case(matrix, 0.0, 0.0, target, lower=0.0, upper=upper)


def _laplace(n: int) -> sp.csr_array:
    """-laplace on n x n cells with zeros around them, times the square of the distance of two cells."""
    second = sp.diags_array([-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1])
    return sp.csr_array(sp.kron(sp.eye_array(n), second) + sp.kron(second, sp.eye_array(n)))


def control(n: int) -> Case:
    """A state that follows a wish, and what it costs to bring it there: one control in each cell."""
    across, down = np.meshgrid((np.arange(n) + 0.5) / n, (np.arange(n) + 0.5) / n)
    wish = np.where(np.hypot(across - 0.4, down - 0.6) < 0.25, 1.2, 0.3 * np.sin(6 * across) * down)
    matrix = sp.hstack([_laplace(n) * (n + 1.0) ** 2 / 100, -sp.eye_array(n * n) / 100])
    target, cells = np.concatenate([wish.ravel(), np.zeros(n * n)]), np.ones(n * n)
    bounds = {"lower": np.concatenate([-np.inf * cells, 0 * cells]), "upper": np.concatenate([cells, 30 * cells])}
    return _case(matrix, 0.0, 0.0, target, weights=np.concatenate([cells, 1e-4 * cells]), **bounds)


def boundary_control(n: int) -> Case:
    """Of the cells at the edge alone the control is ours; everywhere else there is a given source."""
    cells = np.arange(n * n).reshape(n, n)
    edge = np.concatenate([cells[0], cells[-1], cells[1:-1, 0], cells[1:-1, -1]])
    inflow = sp.csr_array((np.ones(len(edge)), (edge, np.arange(len(edge)))), shape=(n * n, len(edge)))
    matrix, source = sp.hstack([_laplace(n), -inflow]), np.full(n * n, -20.0 / n**2)
    target = np.concatenate([np.full(n * n, 1.0), np.zeros(len(edge))])
    lower = np.concatenate([np.full(n * n, -np.inf), np.zeros(len(edge))])
    upper = np.concatenate([np.full(n * n, 3.0), np.full(len(edge), 10.0)])
    return _case(matrix, source, source, target, lower=lower, upper=upper)


def isotonic(n: int) -> Case:
    rng = np.random.default_rng(n)
    matrix = sp.diags_array([-np.ones(n - 1), np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n))
    return _case(matrix, 0.0, np.inf, np.linspace(0, 1, n) ** 2 + 0.3 * rng.normal(size=n))


def differences(order: int, n: int) -> Case:
    """Within [-1, 1], so that an entropy has a box; the wish is a noisy curve."""
    from scipy.special import binom

    rng = np.random.default_rng(n + order)
    signed = [(-1.0) ** (order - i) * binom(order, i) for i in range(order + 1)]
    k = n - order
    matrix = sp.diags_array([np.full(k, c) for c in signed], offsets=range(order + 1), shape=(k, n))
    wish = np.sqrt(np.linspace(0, 1, n)) + 0.1 * rng.normal(size=n)
    return _case(matrix, 0.0, np.inf, wish, lower=-2.0, upper=2.0)


def from_file(path: Path) -> Case:
    """The rows and bounds of a linear program; the target is normal, whatever its objective."""
    import highspy

    highs = highspy.Highs()
    highs.silent()
    if highs.readModel(str(path)) == highspy.HighsStatus.kError:
        raise ValueError(f"{path}: HiGHS cannot read it")
    lp = highs.getLp()
    kind = sp.csc_array if lp.a_matrix_.format_ == highspy.MatrixFormat.kColwise else sp.csr_array
    entries = np.array(lp.a_matrix_.value_), np.array(lp.a_matrix_.index_), np.array(lp.a_matrix_.start_)
    matrix = sp.csr_array(kind(entries, shape=(lp.num_row_, lp.num_col_)))
    rows = np.diff(matrix.indptr) > 0
    ends = np.array(lp.row_lower_)[rows], np.array(lp.row_upper_)[rows]
    target = np.random.default_rng(0).normal(size=matrix.shape[1])
    return _case(matrix[rows], *ends, target, lower=np.array(lp.col_lower_), upper=np.array(lp.col_upper_))


KINDS = {f.__name__.replace("_", " "): f for f in (full_column, stock_with_a_level, control, boundary_control)}
KINDS |= {"isotonic": isotonic, "differences": differences}
CASES = (
    "full column 100000",
    "stock with a level 100000",
    "control 100",
    "control 200",
    "boundary control 300",
    "isotonic 100000",
    *(f"differences {order} 10000" for order in (2, 3, 4)),
)


def case(name: str) -> Case:
    """By its name: the kind, then its numbers."""
    words = name.split()
    numbers = [int(word) for word in words if word.isdigit()]
    return KINDS[" ".join(word for word in words if not word.isdigit())](*numbers)


# ------------------------------------------------------------------ methods


def linsat_(given: Case, objective: str = "Euclidean") -> tuple[Array, str]:
    """By its name: only the nearest point can be compared by `Case.objective`."""
    import linsat

    l = len(given.target)
    second = sp.diags_array([-np.ones(l - 1), 2 * np.ones(l), -np.ones(l - 1)], offsets=[-1, 0, 1], format="csr")
    made: dict[str, Callable[[], Any]] = {
        "Euclidean": lambda: linsat.Euclidean(None if (given.weights == 1.0).all() else given.weights),
        "Entropy": lambda: linsat.Entropy(0.1),
        "Entropy without slack": lambda: linsat.Entropy(0.1, slack="none"),
        "KL": lambda: linsat.KL(0.1),
        "Tsallis": lambda: linsat.Tsallis(1.5, 0.1),
        "Quadratic": lambda: linsat.Quadratic(second),
    }
    answer = linsat.solve(given.target, constraints(given), objective=made[objective](), on_failure="ignore")
    return np.asarray(answer.x), str(answer.status.item())


OBJECTIVES = ("Euclidean", "Entropy", "Entropy without slack", "KL", "Tsallis", "Quadratic")


def constraints(given: Case) -> Any:
    """Rows with two ends as two rows."""
    import linsat

    equal = given.row_lower == given.row_upper
    caps, floors = ~equal & np.isfinite(given.row_upper), ~equal & np.isfinite(given.row_lower)
    low, high = given.row_lower, given.row_upper
    blocks = {"A": (caps, "b", high), "C": (floors, "d", low), "E": (equal, "f", low)}
    arguments = {name: given.matrix[rows] for name, (rows, _, _) in blocks.items() if rows.any()}
    arguments |= {side: ends[rows] for rows, side, ends in blocks.values() if rows.any()}
    return linsat.Constraints(**arguments, lower=given.lower, upper=given.upper)


def piqp_(given: Case) -> tuple[Array, str]:
    import piqp

    equal = given.row_lower == given.row_upper
    solver = piqp.SparseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-9
    solver.settings.eps_duality_gap_abs = solver.settings.eps_duality_gap_rel = 1e-9
    other = sp.csc_matrix(given.matrix[~equal])
    solver.setup(
        sp.csc_matrix(sp.diags_array(given.weights)),
        -given.weights * given.target,
        sp.csc_matrix(given.matrix[equal]),
        given.row_lower[equal],
        other,
        given.row_lower[~equal],
        given.row_upper[~equal],
        given.lower,
        given.upper,
    )
    status = solver.solve()
    return np.array(solver.result.x), status.name


def clarabel_(given: Case) -> tuple[Array, str]:
    import clarabel

    l = len(given.target)
    equal = given.row_lower == given.row_upper
    parts, sides = [given.matrix[equal]], [given.row_lower[equal]]
    eye = sp.csr_array(sp.eye_array(l))
    for matrix, sign, ends, rows in (
        (given.matrix, 1.0, given.row_upper, ~equal),
        (given.matrix, -1.0, given.row_lower, ~equal),
        (eye, 1.0, given.upper, np.ones(l, bool)),
        (eye, -1.0, given.lower, np.ones(l, bool)),
    ):
        picked = rows & np.isfinite(ends)
        parts.append(sign * matrix[picked])
        sides.append(sign * ends[picked])
    cones = [clarabel.ZeroConeT(int(equal.sum())), clarabel.NonnegativeConeT(sum(len(s) for s in sides[1:]))]
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_threads = False, 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-9
    solver = clarabel.DefaultSolver(
        sp.csc_matrix(sp.diags_array(given.weights)),
        -given.weights * given.target,
        sp.csc_matrix(sp.vstack(parts)),
        np.concatenate(sides),
        cones,
        settings,
    )
    answer = solver.solve()
    return np.array(answer.x), str(answer.status)


METHODS: dict[str, Callable[[Case], tuple[Array, str]]] = {"linsat": linsat_, "piqp": piqp_, "clarabel": clarabel_}
METHODS |= {f"linsat {name}": partial(linsat_, objective=name) for name in OBJECTIVES[1:]}


# ------------------------------------------------------------------ measuring


def _peak() -> float:
    """Of the memory of this process, in MB; what getrusage says may be that of the process it was forked from."""
    if not Path("/proc/self/status").is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def measured(name: str, method: str) -> dict[str, Any]:
    """One pair, in this process."""
    given = case(name)
    METHODS[method](differences(2, 300))  # its libraries are loaded
    before, began = _peak(), time.process_time()
    x, status = METHODS[method](given)
    seconds = time.process_time() - began
    return {
        "case": name,
        "method": method,
        "status": status,
        "seconds": seconds,
        "memory_mb": _peak() - before,
        "objective": given.objective(x),
        "violation": given.violation(x),
    }


def in_a_process(name: str, method: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, method]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"case": name, "method": method, "status": f"more than {seconds:g} s"}
    if done.returncode:
        return {"case": name, "method": method, "status": f"ended with {done.returncode}", "why": done.stderr[-500:]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=CASES)
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=["linsat", "piqp", "clarabel"])
    parser.add_argument("--seconds", type=float, default=300.0, help="for one pair (default 300)")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(*options.one)))
        return 0
    for name in options.cases:
        for method in options.methods:
            print(json.dumps(in_a_process(name, method, options.seconds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
