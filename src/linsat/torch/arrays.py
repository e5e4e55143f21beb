"""Calls solved by torch operations: on accelerators, with a user's own objective, by Sinkhorn, or without the core."""

from __future__ import annotations

import numpy as np
import torch

from linsat._array_namespace import to_numpy
from linsat.arrays.judgement import decide
from linsat.arrays.problem import Presolved, Problem
from linsat.arrays.sinkhorn import Sinkhorn
from linsat.backends import run
from linsat.call import Call
from linsat.failures import Failed, check_objective, settle, unusable_scores
from linsat.native.batch import Answer
from linsat.status import Status
from linsat.torch.call import TensorCall

Tensor = torch.Tensor


@torch.no_grad()
def solve(call: TensorCall, scores: Tensor) -> Answer:
    """Scores (N, l) solved; failures become what the caller asked for. x is in the dtype of the scores."""
    unusable = _unusable(call, scores)
    if unusable is None:
        answer = attempt(call, scores)
    else:  # zeros solve, and do not get into the way of the others
        answer = attempt(call, scores.masked_fill(_mask(unusable, scores), 0.0))
        answer.counts[0][torch.from_numpy(unusable).to(scores.device)] = Status.NOT_FINITE.code
    if scores.dtype is not torch.float64:
        call.mark_beyond(answer.codes, answer.x)
    return settled(call, scores, answer)


def attempt(call: TensorCall, scores: Tensor) -> Answer:
    """Scores (N, l) solved by the back end that takes the problem, failures as they are."""
    problem = _problem(call, scores)
    result = run(problem, call.plan.solver, None if call.start is None else call.start * problem.scale)
    decided = packed(problem.presolved, len(scores))
    return Answer(result.x.to(scores.dtype), problem.multipliers(result.mu), result.counts, decided, False)


def unrolled(call: TensorCall, scores: Tensor) -> Answer:
    """Sinkhorn's iterations themselves, recorded by autograd."""
    solver = call.plan.solver
    assert isinstance(solver, Sinkhorn)
    flat, unusable = scores.to(torch.float64), _unusable(call, scores)
    if unusable is not None:
        flat = flat.masked_fill(_mask(unusable, flat), 0.0)
    problem = _problem(call, flat)
    claim = solver.unrolled(problem, None if call.start is None else call.start * problem.scale.detach())
    result = decide(problem, claim, solver)
    result.codes[problem.presolved.infeasible.expand(result.codes.shape)] = Status.INFEASIBLE.code
    if unusable is not None:
        result.codes[torch.from_numpy(unusable)] = Status.NOT_FINITE.code
    decided = packed(problem.presolved, len(flat))
    return settled(call, scores, Answer(result.x, problem.multipliers(result.mu), result.counts, decided, False))


def settled(call: Call, scores: Tensor, answer: Answer) -> Answer:
    """The answer after what was not solved has become what the caller asked for."""
    answer.solved = not bool(answer.counts[0].any())
    if answer.solved:
        return answer
    host = Answer(None, None, to_numpy(answer.counts).copy(), to_numpy(answer.decided), False)
    failed = settle(call, _host(scores), host)
    answer.counts = torch.from_numpy(host.counts).to(answer.counts.device)
    if failed is not None:
        answer.x = answer.x.masked_fill(_mask(failed, answer.x), torch.nan)
    return answer


def packed(presolved: Presolved, count: int) -> Tensor:
    """What presolve decided as one tensor (count, .), as the native core has it."""
    return presolved.flags(count).to(torch.uint8)


def _problem(call: TensorCall, scores: Tensor) -> Problem:
    plan = call.plan
    decided = plan.decided() if plan.constant else None
    return plan.problem(call.tensors(), scores, call.objective, decided)


def _unusable(call: TensorCall, scores: Tensor) -> Failed:
    """(N,) instances with scores that no solver could use; None: there are none, as one look at the device says."""
    largest = scores.detach().abs().amax() if scores.numel() else scores.new_zeros(())
    width = torch.ones((), dtype=torch.float64, device=scores.device)
    if call.objective.finite_box and call.numbers.lower.shape[1]:
        width = (call.numbers.upper - call.numbers.lower).detach().amax()
    if call.plan.constant and bool(torch.isfinite(largest.to(torch.float64) * width)):
        check_objective(call.objective)
        return None
    return unusable_scores(call, _host(scores))


def _host(scores: Tensor) -> np.ndarray:
    """Scores on the host, in a dtype that numpy has."""
    known = scores.dtype in (torch.float16, torch.float32, torch.float64)
    return to_numpy(scores if known else scores.float())


def _mask(which: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(which).to(like.device)[:, None]
