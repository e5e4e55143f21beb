"""Measure one (case, method) in this process and write the result as JSON; `launcher` starts one process per pair.

    import linsat                                                  import_s: beyond torch
    prepare, forward and backward on a tiny case of the family     first_call_s: loads and warms the libraries
    reset the peak of resident memory
    prepare on the case                                            prepare_s
    one forward and backward on the case                           forward_memory_mb, memory_mb: peaks since the reset
    forward and backward again until the budget is used            forward_s, backward_s, total_s: medians
    compare the first answer with linsat in float64                x_difference, gradient_difference

The first forward and backward warm up. Where they take more than the budget there is one more run, and where they take
more than four times the budget they are the measurement, except for methods that compile in them. Ours adds the units
that some bars are stated in, and for large cases the time from a new constraint set to x and whether one thread gives
the same bits.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

_START = time.perf_counter()
from linsat import constraints, project  # noqa: E402, F401 - their import, beyond torch, is measured

_IMPORT_SECONDS = time.perf_counter() - _START
import memory  # noqa: E402
import methods  # noqa: E402
import problems  # noqa: E402
import units  # noqa: E402

NOT_HELD = 1e-3  # a row violated by more than this counts as not held
_MOST_RUNS = 2000
_ONCE_MORE = 4  # budgets that a first run may take and be run again
_NEW_SETS = 3  # constraint sets made anew for the time from the set to x
_LARGEST_CHECK = 2e7  # entries of dense rows, over the batch, up to which answers are compared with linsat in float64
_OUT_OF_MEMORY = ("can't allocate", "not enough memory", "out of memory", "bad_alloc", "cannot allocate")

Record = dict[str, Any]


def measure(problem: problems.Problem, method: methods.Method, *, seed: int, budget: float) -> Record:
    """Everything that is measured about one pair; raises what the method raises."""
    record: Record = {"import_s": _IMPORT_SECONDS}
    tiny = problems.warm_up(problem)
    record["first_call_s"] = _seconds(
        lambda: _forward_backward(method.prepare(tiny), tiny.scores(seed), tiny.weights(seed))
    )
    y, weights = problem.scores(seed), problem.weights(seed)
    ours = method.package == "linsat"
    yardstick = units.Yardstick(y) if ours else None
    meter, peaks = memory.PeakMemory(), []
    start = time.perf_counter()
    forward = method.prepare(problem)
    record["prepare_s"] = time.perf_counter() - start
    *first, x, gradient = _forward_backward(forward, y, weights, lambda: peaks.append(meter.read()))
    peaks.append(meter.read())
    record |= {
        "forward_memory_mb": peaks[0].extra / 1e6,
        "memory_mb": peaks[1].extra / 1e6,
        "process_mb": peaks[1].highest / 1e6,
        "memory_is_exact": meter.resets,
        "gradient_is_finite": bool(torch.isfinite(gradient).all()),
    }
    record |= _timings(forward, y, weights, first=first, budget=budget, compiles=method.compiles)
    if yardstick is not None and problems.LARGE in problem.groups:
        record |= _from_new_sets(problem, method, y, first=record["prepare_s"] + first[0], budget=budget)
        record["same_bits"] = _same_bits(forward, y, x)
    record |= yardstick.read() if yardstick else {}
    memory.lift_limit()
    record["violation"] = problem.rows.violation(x.numpy())
    return record | _agreement(problem, method, scores=y, weights=weights, x=x, gradient=gradient)


def _forward_backward(
    forward: methods.Forward, scores: torch.Tensor, weights: torch.Tensor, between: Callable[[], None] | None = None
) -> tuple[float, float, torch.Tensor, torch.Tensor]:
    """Seconds of the forward and of the backward pass, x and the gradient; ``between`` is called between the two."""
    # Not a copy: copying would wake torch's own threads, which then spin on a core while the method is timed.
    y = scores.detach().requires_grad_()
    start = time.perf_counter()
    x = forward(y)
    middle = time.perf_counter()
    if between:
        between()
    again = time.perf_counter()
    (gradient,) = torch.autograd.grad(x, y, weights.to(x.dtype))
    end = time.perf_counter()
    return middle - start, end - again, x.detach(), gradient


def _timings(
    forward: methods.Forward,
    y: torch.Tensor,
    weights: torch.Tensor,
    *,
    first: Sequence[float],
    budget: float,
    compiles: bool,
) -> Record:
    runs: list[tuple[float, float]] = []
    if compiles or sum(first) < _ONCE_MORE * budget:
        deadline = time.perf_counter() + budget
        runs.append(_forward_backward(forward, y, weights)[:2])
        while sum(runs[0]) < budget and (len(runs) < 3 or (len(runs) < _MOST_RUNS and time.perf_counter() < deadline)):
            runs.append(_forward_backward(forward, y, weights)[:2])
    runs = runs or [(first[0], first[1])]
    totals = [a + b for a, b in runs]
    quartiles = statistics.quantiles(totals, n=4) if len(totals) > 1 else totals * 3
    return {
        "runs": len(runs),
        "forward_s": statistics.median(a for a, _ in runs),
        "backward_s": statistics.median(b for _, b in runs),
        "total_s": statistics.median(totals),
        "total_q1_s": quartiles[0],
        "total_q3_s": quartiles[2],
        "first_run_s": sum(first),
    }


def _from_new_sets(
    problem: problems.Problem, method: methods.Method, y: torch.Tensor, *, first: float, budget: float
) -> Record:
    """Seconds from a new constraint set to x: the median over the first and, while there is time, further ones."""
    seconds = [first]
    while len(seconds) < _NEW_SETS and sum(seconds) < 4 * budget:
        fresh = replace(problem)  # forgets the constraint set that the other holds
        seconds.append(_seconds(lambda: method.prepare(fresh)(y)))  # noqa: B023 - called at once
    return {"set_to_x_s": statistics.median(seconds), "sets": len(seconds)}


def _same_bits(forward: methods.Forward, y: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether one thread gives the x that all gave."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return torch.equal(forward(y).detach(), x)
    finally:
        torch.set_num_threads(threads)


def _agreement(
    problem: problems.Problem,
    method: methods.Method,
    *,
    scores: torch.Tensor,
    weights: torch.Tensor,
    x: torch.Tensor,
    gradient: torch.Tensor,
) -> Record:
    """Largest difference to linsat in float64 (ours: to its torch path), for methods that solve the same program."""
    reference, largest = methods.OURS, _LARGEST_CHECK
    if method is methods.OURS:
        reference, largest = methods.TORCH, _LARGEST_CHECK / 2  # it is slower
    if not method.same_program or math.prod(problem.shape) * problem.batch > largest:
        return {}
    *_, expected, slope = _forward_backward(reference.prepare(problem), scores.double(), weights)
    return {
        "x_difference": float((x - expected).abs().max()),
        "gradient_difference": float((gradient - slope).abs().max() / slope.abs().max()),
    }


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def outcome(record: Record) -> tuple[str, str]:
    """Status and message of a pair that ran to its end."""
    if not math.isfinite(record["violation"]):
        return "not finite", "x holds nan or infinity"
    if record["violation"] > NOT_HELD:
        return "rows not held", f"a row is violated by {record['violation']:.2g}"
    if not record["gradient_is_finite"]:
        return "not finite", "the gradient holds nan or infinity"
    return "ok", ""


def attempt(problem: problems.Problem, method: methods.Method, *, seed: int, budget: float) -> Record:
    """`measure`, with every way it can end turned into a status and a message."""
    missing = methods.missing_module(method)
    if missing:
        return {"status": "not installed", "message": f"no module named {missing}"}
    applies = methods.applies(method, problem)
    if not applies.ok:
        return {"status": "not applicable", "message": applies.reason}
    try:
        record = measure(problem, method, seed=seed, budget=budget)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".strip().replace("\n", " ")[:400]
        memory_ran_out = isinstance(error, MemoryError) or any(sign in text.lower() for sign in _OUT_OF_MEMORY)
        traceback.print_exc()
        return {"status": "out of memory" if memory_ran_out else "crashed", "message": text}
    status, message = outcome(record)
    return {"status": status, "message": message, **record}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", required=True)
    parser.add_argument("--method", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--memory-gb", type=float)
    parser.add_argument("--adapters", type=Path)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    memory.limit_memory(arguments.memory_gb)
    problem = problems.all_problems()[arguments.case]
    method = methods.all_methods(arguments.adapters)[arguments.method]
    record = attempt(problem, method, seed=arguments.seed, budget=arguments.budget)
    arguments.result.write_text(json.dumps(record))
    # Tearing down the interpreter and freeing gigabytes one block at a time would only cost the run time.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
