"""The bars of the native core in one run, on one thread, with its peers in the same process.

    python benchmarks/core.py [--only own soft] [--before SRC] [--seconds 0.5]

Ends with code 1 if a bar is missed. ``--before`` is the ``src`` folder of an earlier tree, built: the cases that must
not become slower are measured there too, in turn with this tree. Times are the least of as many runs as fit into
``--seconds`` (at least 3); peers that are not installed are left out, and said so.

| group | what |
|---|---|
| own | 4 variables, 11 rows that come with the call, Euclidean, gradients to y, A and b: ProxQP's torch layer |
| soft | 512 such instances, three quarters contradictory, all rows soft at price 10 and 1e6: Clarabel's values |
| tiny | 8,192 doubly stochastic 4x4, Entropy(1), float32, both ways: 20 Sinkhorn iterations in torch |
| numbers | the gradient to each number against the gradient to y alone; learned right-hand sides on 3x3 |
| fixed | rows that never change: batch 1, batch 16 against 1,024, the cases that must not become slower |
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import linsat
from bars import Line, at_least, at_most, print_table
from hyper_connections import sinkhorn

Array = np.ndarray
Tensor = torch.Tensor
VARIABLES, ROWS = 4, 11
EUCLIDEAN = linsat.Euclidean()
seconds = 0.5


def least(run: Callable[[], Any]) -> float:
    """The shortest of as many runs as fit into the time given; the first ones warm up."""
    run(), run()
    best, end = np.inf, time.perf_counter() + seconds
    done = 0
    while done < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        best, done = min(best, time.perf_counter() - begin), done + 1
    return float(best)


def both_ways(project: Callable[..., Tensor], *leaves: Tensor) -> Callable[[], None]:
    """Forward and backward with gradients to the leaves."""
    shape = project(*leaves)
    given = torch.randn(shape.shape, dtype=shape.dtype, generator=torch.Generator().manual_seed(1))

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        project(*leaves).backward(given)

    return run


def leaf(array: Any) -> Tensor:
    return torch.as_tensor(array).clone().requires_grad_()


def open_set() -> linsat.Constraints:
    """A x <= b over all of space; the numbers come with the calls."""
    return linsat.Constraints(A=np.ones((ROWS, VARIABLES)), b=np.ones(ROWS), lower=-np.inf, upper=np.inf)


def own_rows(count: int, contradictory: float = 0.0) -> tuple[Array, Array, Array]:
    """Scores, A and b; a share of the instances has two rows that exclude each other."""
    rng = np.random.default_rng(0)
    A, inside = rng.normal(size=(count, ROWS, VARIABLES)), rng.normal(size=(count, VARIABLES))
    b = (A @ inside[..., None])[..., 0] + rng.random((count, ROWS))
    some = slice(0, int(contradictory * count))
    A[some, 1], b[some, 1] = -A[some, 0], -b[some, 0] - 0.5 - rng.random(some.stop)
    return inside + 2 * rng.normal(size=(count, VARIABLES)), A, b


# ------------------------------------------------------------------ the groups


def own() -> Iterator[Line]:
    cons = open_set()
    for count, factor in ((1, 3), (64, 30), (4096, 60)):
        y, A, b = map(leaf, own_rows(count))
        ours = least(both_ways(lambda y, A, b: linsat.project(y, cons, objective=EUCLIDEAN, A=A, b=b), y, A, b))
        case = f"4 variables, 11 own rows, both ways, batch {count:,}"
        try:
            from proxsuite.torch.qplayer import QPFunction
        except ImportError:
            yield Line(case, f"{_each(ours, count)}; proxsuite is not installed", f">= {factor}x", None)
            continue
        eye, low = torch.eye(VARIABLES).double().expand(count, -1, -1), torch.full((count, ROWS), -1e20).double()
        empty = torch.zeros(count, 0, VARIABLES).double(), torch.zeros(count, 0).double()

        def by_peer(y: Tensor, A: Tensor, b: Tensor, rest: Any = (eye, empty, low)) -> Tensor:
            return QPFunction()(rest[0], -y, *rest[1], A, rest[2], b)[0]

        theirs = least(both_ways(by_peer, y, A, b))
        text = f"{_each(ours, count)} against {_each(theirs, count)} (ProxQP): {theirs / ours:.1f}x"
        yield at_least(case, text, theirs / ours, factor)


def soft() -> Iterator[Line]:
    y, A, b = own_rows(512, 0.75)
    times = []
    for price in (10.0, 1e6):
        cons = open_set().soften(price=price)

        def run(cons: linsat.Constraints = cons) -> Any:
            return linsat.solve(y, cons, objective=EUCLIDEAN, A=A, b=b, on_failure="ignore")

        times.append(least(run))
        solution = run()
        off = max(_excess(*one, price) for one in zip(solution.x, y, A, b, strict=True))
        yield at_most(f"soft rows, price {price:g}: value against Clarabel's", f"{off:.1e}", off, 1e-8)
        converged = int(solution.converged.sum())
        yield Line(f"soft rows, price {price:g}: converged", f"{converged} of 512", "all", converged == 512)
    ratio = times[1] / times[0]
    text = f"{ratio:.1f} = {1e3 * times[1]:.2f} ms / {1e3 * times[0]:.2f} ms"
    yield at_most("soft rows, price 1e6 against 10", text, ratio, 4)


def _excess(x: Array, y: Array, A: Array, b: Array, price: float) -> float:
    """How far the value at x lies above the best that Clarabel finds, relative to it."""
    import clarabel
    import scipy.sparse as sp

    P = sp.diags_array([1.0] * VARIABLES + [0.0] * ROWS, format="csc")
    G = np.block([[A, -np.eye(ROWS)], [np.zeros((ROWS, VARIABLES)), -np.eye(ROWS)]])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    q = np.concatenate([-y, np.full(ROWS, price)])
    sides = np.concatenate([b, np.zeros(ROWS)])
    cones = [clarabel.NonnegativeConeT(2 * ROWS)]
    best = np.array(clarabel.DefaultSolver(sp.csc_matrix(P), q, sp.csc_matrix(G), sides, cones, settings).solve().x)

    def value(point: Array) -> float:
        return 0.5 * float(((point - y) ** 2).sum()) + price * float(np.maximum(A @ point - b, 0).sum())

    return (value(x) - value(best[:VARIABLES])) / max(1.0, abs(value(best[:VARIABLES])))


def tiny() -> Iterator[Line]:
    count, cons = 8192, linsat.constraints.doubly_stochastic(4)
    y = leaf(torch.randn(count, 4, 4, generator=torch.Generator().manual_seed(0)))
    ours = least(both_ways(lambda y: linsat.project(y, cons, tau=1.0), y))
    theirs = least(both_ways(lambda y: sinkhorn(y, 20), y))
    yield at_most("8,192 x 4x4, Entropy(1), float32, both ways", _each(ours, count), 1e6 * ours / count, 0.8, " us")
    text = f"{_each(theirs, count)}: {theirs / ours:.1f}x"
    yield at_least("the same against 20 Sinkhorn iterations in torch", text, theirs / ours, 10)


def numbers() -> Iterator[Line]:
    """Each number apart, in a batch of 64: with a gradient to it and to y, against one to y alone."""
    count, rng = 64, np.random.default_rng(3)
    y, A, b = own_rows(count)
    cons = open_set()
    every: dict[str, Any] = {"A": A, "b": b, "lower": y - 3.0 - rng.random(y.shape), "upper": y + 3.0}
    every |= {
        "price": np.full((count, ROWS), 3.0),
        "weights": 1 + rng.random(VARIABLES),
        "tau": np.full(count, 0.5),
    }
    soft_cons, fixed = cons.soften(price=1.0), {name: torch.as_tensor(array) for name, array in every.items()}
    for name in ("A", "b", "lower", "upper", "price", "weights", "tau"):
        bounds = ("lower", "upper") if name in ("lower", "upper", "tau") else ()
        learned = torch.as_tensor(every[name])

        def project(y: Tensor, number: Tensor, name: str = name, bounds: Any = bounds) -> Tensor:
            given = {key: fixed[key] for key in ("A", "b", *bounds)}
            objective: linsat.Objective = EUCLIDEAN
            if name == "weights":
                objective = linsat.Euclidean(weights=number)
            elif name == "tau":
                objective = linsat.Entropy(tau=number, slack="none")
            else:
                given[name] = number
            where = soft_cons if name == "price" else cons
            return linsat.project(y, where, objective=objective, on_failure="ignore", **given)

        plain = least(both_ways(lambda y, project=project, learned=learned: project(y, learned), leaf(y)))
        both = least(both_ways(project, leaf(y), leaf(learned)))
        text = f"{both / plain:.2f} = {1e6 * both:.0f} us / {1e6 * plain:.0f} us"
        yield at_most(f"gradient to {name} and y against y alone, batch {count}", text, both / plain, 1.5)
    square = linsat.constraints.doubly_stochastic(3)
    scores = leaf(torch.randn(64, 9, generator=torch.Generator().manual_seed(0)).double())
    side = leaf(np.ones(6))
    constant = least(both_ways(lambda y: linsat.project(y, square, objective=EUCLIDEAN), scores))
    given = least(both_ways(lambda y, f: linsat.project(y, square, objective=EUCLIDEAN, f=f), scores, side))
    text = f"{given / constant:.2f} = {1e6 * given:.0f} us / {1e6 * constant:.0f} us"
    yield at_most("learned right-hand sides on 3x3 against constant ones, batch 64", text, given / constant, 1.3)


def fixed_cases() -> dict[str, float]:
    """Seconds of each case with rows that never change."""
    stochastic, generator = linsat.constraints.doubly_stochastic, torch.Generator().manual_seed(0)
    random = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    cases: dict[str, float] = {}
    y = random(1, 9)
    cons = stochastic(3)
    cases["3x3, batch 1, forward"] = least(lambda: linsat.project(y, cons, tau=0.1))
    cases["3x3, batch 1, both ways"] = least(both_ways(lambda y: linsat.project(y, cons, tau=0.1), leaf(y)))
    twenty = stochastic(20)
    for name, objective, dtype in (
        ("Entropy(0.1)", linsat.Entropy(0.1), torch.float32),
        ("Euclidean", EUCLIDEAN, torch.float64),
    ):
        for batch in (1, 16, 64, 1024):
            project = lambda y, objective=objective: linsat.project(y, twenty, objective=objective)  # noqa: E731
            run = both_ways(project, leaf(random(batch, 400).to(dtype)))
            cases[f"20x20, {name}, batch {batch:,}, both ways"] = least(run)
    simplex = linsat.Constraints(E=np.ones((1, 1000)), f=[1.0])
    run = both_ways(lambda y: linsat.project(y, simplex, objective=EUCLIDEAN), leaf(random(64, 1000).double()))
    cases["simplex of 1,000, batch 64, both ways"] = least(run)
    return cases


def fixed(before: str | None) -> Iterator[Line]:
    now, then = [fixed_cases()], []
    if before:
        for _ in range(2):
            then.append(_elsewhere(before))
            now.append(fixed_cases())
    ours = {name: min(run[name] for run in now) for name in now[0]}
    earlier = {name: min(run[name] for run in then) for name in ours} if then else {}
    for name, limit in (("3x3, batch 1, forward", 32), ("3x3, batch 1, both ways", 84)):
        yield at_most(name, f"{1e6 * ours[name]:.0f} us", 1e6 * ours[name], limit, " us")
    for kind in ("Entropy(0.1)", "Euclidean"):
        each = [ours[f"20x20, {kind}, batch {batch:,}, both ways"] / batch for batch in (16, 1024)]
        text = f"{each[0] / each[1]:.2f} = {1e6 * each[0]:.1f} us / {1e6 * each[1]:.1f} us"
        yield at_most(f"20x20, {kind}: batch 16 against 1,024, each", text, each[0] / each[1], 1.3)
    for name, now_s in ours.items():
        if name in earlier:
            ratio = now_s / earlier[name]
            text = f"{ratio:.2f} = {1e6 * now_s:,.0f} us / {1e6 * earlier[name]:,.0f} us"
            yield at_most(f"{name}: against the earlier tree", text, ratio, 1.0)


def _elsewhere(source: str) -> dict[str, float]:
    """The fixed cases in another tree, in another process."""
    environment = os.environ | {"PYTHONPATH": source}
    command = [sys.executable, __file__, "--cases", "--seconds", str(seconds)]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(made.stdout.splitlines()[-1])


def lines() -> Iterator[Line]:
    """Lines of the package without command line, explorer and table files."""
    folder = Path(linsat.__file__).parent
    files = [path for path in folder.rglob("*") if path.suffix in (".py", ".c", ".h")]
    kept = [path for path in files if path.relative_to(folder).parts[0] not in ("cli", "explorer", "files")]
    count = sum(len(path.read_text().splitlines()) for path in kept)
    yield at_most("lines of src/linsat (py, c, h)", f"{count:,}", count, 20022)
    library = next(folder.glob("native/_core*.so"), None)
    if library is not None:
        yield Line("size of the native library", f"{library.stat().st_size / 1e3:.0f} kB", "", None)


def _each(total: float, count: int) -> str:
    return f"{1e6 * total / count:.3g} us each"


GROUPS = ("own", "soft", "tiny", "numbers", "fixed", "lines")


def main() -> int:
    global seconds
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--before", help="the src folder of an earlier tree")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement")
    parser.add_argument("--cases", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    seconds = arguments.seconds
    torch.set_num_threads(1)
    if arguments.cases:
        print(json.dumps(fixed_cases()))
        return 0
    groups: dict[str, Callable[[], Iterator[Line]]] = {
        "own": own,
        "soft": soft,
        "tiny": tiny,
        "numbers": numbers,
        "fixed": lambda: fixed(arguments.before),
        "lines": lines,
    }
    return print_table(line for name in arguments.only for line in groups[name]())


if __name__ == "__main__":
    sys.exit(main())
