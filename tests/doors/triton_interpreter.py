"""The Triton kernels in Triton's interpreter, beside the CPU kernel: a program, because the interpreter is chosen once.

    TRITON_INTERPRET=1 python -m tests.doors.triton_interpreter smoke            # one of each
    TRITON_INTERPRET=1 python -m tests.doors.triton_interpreter sweep 0 200      # random systems number 0 to 199
    TRITON_INTERPRET=1 python -m tests.doors.triton_interpreter mixed 0 40       # the same with float32 steps first

writes one line of JSON for each case: what both back ends made of it, and how far they are apart.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import linsat
from linsat.arrays.iteration import ArrayBackend
from linsat.arrays.problem import Problem
from linsat.objectives import KL, Entropy, Euclidean
from linsat.triton import TritonBackend
from tests.helpers.statements import KERNEL, Stated, untouched_problem

F64 = torch.float64
TAUS = (1.0, 0.3, 0.1, 0.03)
Record = dict[str, Any]


def keep_patches() -> None:
    """The interpreter replaces the functions of triton.language at every call of a function, which takes most of the
    time; here once, for good."""
    import triton.language as tl
    from triton.runtime import interpreter

    from linsat.triton.forward import forward

    class Kept:
        def restore(self) -> None:
            pass

    for function in (forward, tl.sum):  # one of a module that sees triton.language, one that sees its core only
        interpreter._patch_lang(function.fn)
    interpreter._patch_lang = lambda fn: Kept()


def size(tensor: torch.Tensor | None) -> float:
    return 0.0 if tensor is None or not tensor.numel() else float(tensor.abs().max())


def violation(problem: Problem, x: torch.Tensor) -> float:
    """The largest violation of a hard row or bound, relative to the size of the row where that exceeds one."""
    x = x.to(F64)
    gap = problem.rows.matvec(x)
    rhs, slack = problem.rhs, problem.slack
    if problem.objective.entropic_slack:  # a x + S z = B with 0 <= z <= 1
        over, under = gap - rhs, rhs - slack - gap
        low = high = torch.ones_like(gap, dtype=torch.bool)
    else:
        over, under = gap - rhs, rhs - gap
        low, high = torch.isneginf(problem.dual_lower), torch.isposinf(problem.dual_upper)
    hard = ~problem.soft
    rows = torch.where(low & hard, over, 0.0).clamp_min(0.0) + torch.where(high & hard, under, 0.0).clamp_min(0.0)
    sizes = problem.row_sizes(x).clamp_min(1.0)
    return max(size(rows / sizes), size((problem.lower - x).clamp_min(0)), size((x - problem.upper).clamp_min(0)))


def compare(name: str, stated: Stated, *, start: bool = False, duals: bool = False, mixed: bool = False) -> Record:
    """Both back ends on one problem; ``duals``: compared too, which only independent rows determine."""
    backend, newton, problem = TritonBackend(mixed=mixed), linsat.Newton(), stated.problem()
    began = time.process_time()
    theirs = stated.solve(KERNEL)
    ours = backend.solve(problem, newton, theirs.duals * problem.scale if start else None)
    solved = theirs.codes == 0
    apart = {"x": size((ours.x - theirs.x)[solved]) / (1 + size(theirs.x[solved]))}
    coarse = None
    if mixed:
        coarse = violation(problem, backend.coarse(problem, newton, None).x)
    if duals:
        apart["duals"] = size(ours.mu / problem.scale - theirs.duals) / (1 + size(theirs.duals))
    return {
        "name": name,
        "seconds": time.process_time() - began,
        "rows": problem.rows.shape[0],
        "codes": ours.stops.tolist(),
        "kernel_codes": theirs.codes.tolist(),
        "steps": ours.steps.tolist(),
        "array_steps": ArrayBackend().solve(problem, newton).steps.tolist(),
        "apart": apart,
        "violation": violation(problem, ours.x[solved]) if bool(solved.all()) else None,
        "float32_violation": coarse,
        "x": ours.x.tolist(),
        "scores": problem.scores.tolist(),
    }


def smoke() -> Iterator[Record]:
    """One of each kind of number that a problem may have, small."""
    rng = np.random.default_rng(0)

    def scores(cons: linsat.Constraints, count: int = 1) -> torch.Tensor:
        return torch.tensor(rng.normal(0.4, 1.0, size=(count, cons.num_variables)))

    matching = linsat.constraints.matching(2, 3, at_most=1)
    for objective in (
        Entropy(0.1),
        Entropy(0.1, slack="none"),
        Euclidean(weights=torch.linspace(0.5, 2, 6, dtype=F64)),
        KL(0.3, prior=torch.linspace(0.5, 2, 6, dtype=F64)),
    ):
        yield compare(f"matching {objective!r:.30}", Stated.of(matching, objective, scores(matching)))
    box = linsat.Constraints(A=[[1.0, 2.0, -1.0]], b=[1.5], E=[[1.0, 1.0, 1.0]], f=[2.0], lower=-1.0, upper=3.0)
    sides = box.with_rhs(b=[[1.5], [1.65]], f=[[2.0], [2.2]])
    given = Stated.of(sides, Entropy(0.3), scores(box, 2))
    yield compare("per-instance right-hand sides, warm", given, start=True, duals=True)
    single = replace(given, scores=given.scores.float())
    yield compare("float32 scores, float32 steps", single.alone(1), mixed=True)
    forced = linsat.Constraints(A=[[1.0, 1, 0], [0, 0, 1]], b=[1.0, 0.4], C=[[1.0, 1.0, 0]], d=[1.0])
    yield compare("forced rows", Stated.of(forced, Entropy(0.5), scores(forced)))
    soft = linsat.Constraints(A=[[1.0, 1, 1]], b=[1.0], C=[[1.0, 1, 1]], d=[2.0]).soften(price=[0.7, 0.5])
    yield compare("contradictory soft rows", Stated.of(soft, Euclidean(), scores(soft)))
    plan = linsat.Constraints(E=[[1.0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]], f=[3.0, 1.0, 2.5], upper=np.inf)
    prior = torch.tensor([[1.0, 2.0, 0.0, 0.5], [0.1, 1.0, 3.0, 1.0]], dtype=F64)
    taus = torch.tensor([0.5, 0.1], dtype=F64)
    yield compare("KL without an upper bound", Stated.of(plan, KL(taus, prior), scores(plan, 2)), duals=True)
    free = linsat.Constraints(A=rng.uniform(-1, 1, (34, 50)), b=0.1, lower=-np.inf, upper=np.inf)
    yield compare("34 rows without a box", Stated.of(free, Euclidean(), scores(free)))
    yield infeasible()
    yield alone_and_in_a_batch(given.problem())


def infeasible() -> Record:
    """Contradictory rows, which presolve has not been asked about."""
    cons = linsat.Constraints(E=[[1.0, 1.0], [1.0, 2.0]], f=[1.0, 4.0])
    scores = torch.zeros(1, 2, dtype=F64)
    ours = TritonBackend().solve(untouched_problem(cons, Euclidean(), scores), linsat.Newton())
    theirs = Stated.of(cons, Euclidean(), scores).solve(KERNEL)
    return {"name": "infeasible", "codes": ours.stops.tolist(), "kernel_codes": theirs.codes.tolist()}


def alone_and_in_a_batch(problem: Problem) -> Record:
    """Whether an instance's answer is the same to the last bit."""
    newton = linsat.Newton()
    both = TritonBackend().solve(problem, newton)
    single = TritonBackend().solve(problem.select(torch.tensor([1])), newton)
    return {"name": "alone", "equal": torch.equal(both.x[1:], single.x) and torch.equal(both.mu[1:], single.mu)}


def system_problem(number: int) -> tuple[str, Stated]:
    """Random system ``number`` under an objective that its number decides."""
    from tests.helpers.oracles import open_system, soft_system

    rng = np.random.default_rng([number, 17])
    l_max, k_max = 24, 9
    euclidean = number % 6 in (2, 3)
    kind = ("signed", "positive", "boundary", "dependent", "unbounded" if euclidean else "positive")[number // 6 % 5]
    price = None
    if number % 3 == 0:
        contradictory = bool(rng.integers(2))
        system, price = soft_system(rng, contradictory=contradictory, largest=l_max, rows=k_max)
        kind = "contradictory" if contradictory else "soft"
    else:
        system = open_system(rng, kind, largest=l_max, rows=k_max)
    arguments, endless = system.arguments(), number % 12 in (4, 5)
    if endless:
        arguments["upper"] = np.inf
    cons = linsat.Constraints(**arguments)
    if price is not None:
        order = [i for sense in ("<=", ">=", "==") for i, s in enumerate(system.senses) if s == sense]
        finite = [at for at, i in enumerate(order) if np.isfinite(price[i])]
        cons = cons.soften(finite, price=[float(price[order[at]]) for at in finite])
    l = len(system.point)
    tau = 1.0 if endless else float(rng.choice(TAUS))  # colder, x may be 1e26: for the interior-point method
    weights = torch.tensor(rng.uniform(0.5, 2.0, l))
    objective = [
        *(Entropy(tau), Entropy(tau, slack="none"), Euclidean(), Euclidean(weights=weights)),
        *(KL(tau, prior=weights), KL(tau)),
    ][number % 6]
    scores = torch.tensor(rng.normal(size=(2 if number % 5 == 0 else 1, l)))
    return f"{number} {kind} {type(objective).__name__} {number % 6}", Stated.of(cons, objective, scores)


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    keep_patches()
    if arguments[0] == "smoke":
        records = smoke()
    else:
        numbers = range(int(arguments[1]), int(arguments[2]))
        records = (compare(*system_problem(n), mixed=arguments[0] == "mixed") for n in numbers)
    for record in records:
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
