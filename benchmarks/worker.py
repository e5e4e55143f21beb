"""Measure one (case, method) in this process and write the result as JSON; `run` starts one process per pair.

    import torch, then linsat                                      import_s: linsat, beyond torch
    prepare, forward and backward on a tiny case of the family     first_call_s: loads and warms the libraries
    reset the peak of resident memory
    prepare on the case                                            prepare_s
    one forward and backward on the case                           memory_mb: the peak since the reset
    forward and backward again until the budget is used            forward_s, backward_s, total_s: medians
    compare the first answer with our torch path in float64        x_difference, gradient_difference

When the first forward and backward alone use up the budget they are the measurement (``runs`` is 1).
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_START = time.perf_counter()
import linsat  # noqa: E402, F401 - its import time, beyond torch, is one of the measurements

_IMPORT_SECONDS = time.perf_counter() - _START
import memory  # noqa: E402
import methods  # noqa: E402
import problems  # noqa: E402

NOT_HELD = 1e-3  # a row violated by more than this counts as not held
_MOST_RUNS = 2000
_LARGEST_CHECK = 2_000_000  # entries of x up to which the answer is compared with linsat's in float64
_OUT_OF_MEMORY = ("can't allocate", "not enough memory", "out of memory", "bad_alloc", "cannot allocate")

Record = dict[str, Any]


def measure(problem: problems.Problem, method: methods.Method, *, seed: int, budget: float) -> Record:
    """Everything that is measured about one pair; raises what the method raises."""
    record: Record = {"import_s": _IMPORT_SECONDS}
    tiny = problems.WARM_UPS[problem.family]
    record["first_call_s"] = _seconds(lambda: _once(method.prepare(tiny), tiny, seed))
    y, weights = problem.scores(seed), problem.weights(seed)
    meter = memory.PeakMemory()
    start = time.perf_counter()
    forward = method.prepare(problem)
    record["prepare_s"] = time.perf_counter() - start
    *first, x, gradient = _forward_backward(forward, y, weights)
    peak = meter.read()
    record |= {
        "memory_mb": peak.extra / 1e6,
        "process_mb": peak.highest / 1e6,
        "memory_is_exact": meter.resets,
        "violation": problem.rows.violation(x.numpy()),
        "outside_box": _outside_box(x),
        "gradient_is_finite": bool(torch.isfinite(gradient).all()),
    }
    record |= _timings(forward, y, weights, tuple(first), budget)
    memory.lift_limit()
    return record | _agreement(problem, method, y, weights, x, gradient)


def _once(forward: methods.Forward, problem: problems.Problem, seed: int) -> None:
    _forward_backward(forward, problem.scores(seed), problem.weights(seed))


def _forward_backward(
    forward: methods.Forward, scores: torch.Tensor, weights: torch.Tensor
) -> tuple[float, float, torch.Tensor, torch.Tensor]:
    """Seconds of the forward and of the backward pass, x and the gradient."""
    # Not a copy: copying would wake torch's own threads, which then spin on a core while the method is timed.
    y = scores.detach().requires_grad_()
    start = time.perf_counter()
    x = forward(y)
    middle = time.perf_counter()
    (gradient,) = torch.autograd.grad(x, y, weights.to(x.dtype))
    end = time.perf_counter()
    return middle - start, end - middle, x.detach(), gradient


def _timings(
    forward: methods.Forward,
    y: torch.Tensor,
    weights: torch.Tensor,
    first: tuple[float, float],
    budget: float,
) -> Record:
    runs: list[tuple[float, float]] = []
    deadline = time.perf_counter() + budget
    # A method that needed more than the budget is not run again: its first run is the measurement.
    if sum(first) < budget:
        while len(runs) < 3 or (len(runs) < _MOST_RUNS and time.perf_counter() < deadline):
            runs.append(_forward_backward(forward, y, weights)[:2])
    runs = runs or [first]
    totals = sorted(a + b for a, b in runs)
    return {
        "runs": len(runs),
        "forward_s": statistics.median(a for a, _ in runs),
        "backward_s": statistics.median(b for _, b in runs),
        "total_s": statistics.median(totals),
        "total_min_s": totals[0],
        "total_max_s": totals[-1],
        "first_run_s": sum(first),
    }


def _agreement(
    problem: problems.Problem,
    method: methods.Method,
    y: torch.Tensor,
    weights: torch.Tensor,
    x: torch.Tensor,
    gradient: torch.Tensor,
) -> Record:
    """Largest difference to linsat's torch path in float64, for methods that solve the same program."""
    if method.program != methods.ENTROPIC or x.numel() > _LARGEST_CHECK or problem.ours_only:
        return {}
    scores = y.double().requires_grad_()
    reference = methods.TORCH.prepare(problem)(scores)
    (slope,) = torch.autograd.grad(reference, scores, weights.double())
    return {
        "x_difference": float((x - reference.detach()).abs().max()),
        "gradient_difference": float((gradient - slope).abs().max() / slope.abs().max()),
    }


def _outside_box(x: torch.Tensor) -> float:
    return max(0.0, float((-x).max()), float((x - 1).max()))


def _seconds(work: Callable[[], None]) -> float:
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
    applies = method.applies_to(problem)
    if not applies.ok:
        return {"status": "not applicable", "message": applies.reason}
    try:
        record = measure(problem, method, seed=seed, budget=budget)
    except methods.NotApplicableError as refusal:
        return {"status": "not applicable", "message": str(refusal)[:400]}
    except Exception as error:
        text = f"{type(error).__name__}: {error}".strip().replace("\n", " ")[:400]
        memory_ran_out = isinstance(error, MemoryError) or any(sign in text.lower() for sign in _OUT_OF_MEMORY)
        traceback.print_exc()
        return {"status": "out of memory" if memory_ran_out else "crashed", "message": text}
    status, message = outcome(record)
    return {"status": status, "message": message, **record}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True)
    parser.add_argument("--method", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--memory-gb", type=float)
    parser.add_argument("--adapters", type=Path)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
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
