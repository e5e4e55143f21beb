"""One case through the library, and what an outsider says about the answer: satisfied, truly reported, or a finding."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conflicts import exact_gap, row_sizes
from systems import Array, Case

import linsat

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import oracles

TOLERANCE = 1e-9  # of the size of a row at x, max(1, sum_j |a_ij x_j|)
_ROUNDING = 64 * np.finfo(np.float64).eps  # of the sum of the sizes of a row's terms
_NO_OVERFLOW = {name: float(torch.finfo(getattr(torch, name)).max) for name in ("float16", "bfloat16", "float32")}


@dataclass
class Verdict:
    """What one case added to the record."""

    statuses: Counter[str] = field(default_factory=Counter)  # per feasible system
    reports: Counter[str] = field(default_factory=Counter)  # per infeasible system: how it was reported
    checks: Counter[str] = field(default_factory=Counter)
    worst: float = 0.0  # violation of a converged row beyond rounding, relative to its size at x
    findings: list[str] = field(default_factory=list)

    def find(self, kind: str, text: str) -> None:
        self.findings.append(f"{kind}: {text}")


@dataclass(frozen=True)
class Depth:
    """Which of the expensive checks a case gets."""

    optimum: bool = False  # against Clarabel
    highs: bool = False  # feasibility and minimality by HiGHS
    proof: bool = True  # the certificate of an infeasible instance among others


def judge(case: Case, depth: Depth | None = None, library: Any = linsat) -> Verdict:
    """Project the case with ``library`` and check every claim the answer makes. Never raises for what it does."""
    verdict, depth = Verdict(), depth or Depth()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing may warn under on_failure="ignore", numpy least of all
        try:
            if depth.highs:
                _check_oracle(case, verdict)
            _judge(case, depth, library, verdict)
        except AssertionError:
            raise
        except Exception as error:  # whatever else comes out of the library is a finding
            verdict.find("error", f"{type(error).__name__}: {error}")
    return verdict


def _judge(case: Case, depth: Depth, library: Any, verdict: Verdict) -> None:
    scores = scores_of(case).requires_grad_()
    limit = max(np.abs(case.lower).max(), np.abs(case.upper).max())
    if limit > _NO_OVERFLOW.get(case.dtype, np.inf):
        _expect_refusal(case, scores, library, verdict)
        return
    cons = library.Constraints(**case.arguments())
    try:
        solution = library.solve(scores, cons, tau=case.tau, on_failure="ignore")
    except linsat.InfeasibleError as error:
        _judge_refusal(case, depth, error, verdict)
        return
    statuses = [str(s) for s in solution.status.ravel()]
    x = solution.x.detach().reshape(-1, len(case.lower))
    reported = solution.violation.reshape(-1).tolist()
    points = x.to(torch.float64).numpy()
    for i, status in enumerate(statuses):
        system = 0 if case.shared else i
        _judge_instance(case, system, status, points[i], reported[i], verdict)
    _count(case, statuses, verdict)
    if not case.shared and case.infeasible.any():
        _judge_mixed(case, depth, library, solution, verdict)
    if not case.shared:
        held = solution.x[torch.as_tensor(solution.status == "converged")]
        _judge_gradient(case, held, scores, verdict)
    _judge_short_way(case, scores, cons, statuses, library, verdict)
    if depth.optimum and points.size and statuses[0] == "converged" and not case.infeasible[0]:
        _judge_optimum(case, scores.detach().reshape(-1, len(case.lower))[0], points[0], verdict)


def scores_of(case: Case) -> torch.Tensor:
    """The scores in the case's dtype and memory layout."""
    y = torch.from_numpy(case.scores).to(getattr(torch, case.dtype))
    if case.layout == "strided":
        y = torch.stack([y, torch.zeros_like(y)], dim=-1)[..., 0]
    elif case.layout == "transposed" and y.dim() > 1:
        y = y.transpose(0, -1).contiguous().transpose(0, -1)
    return y


def _expect_refusal(case: Case, scores: torch.Tensor, library: Any, verdict: Verdict) -> None:
    """Bounds that the dtype of the scores cannot hold."""
    try:
        library.solve(scores, library.Constraints(**case.arguments()), tau=case.tau, on_failure="ignore")
    except linsat.ConstraintError:
        verdict.statuses["refused"] += int((~case.infeasible).sum())
        verdict.reports["refused"] += int(case.infeasible.sum())
    except linsat.InfeasibleError:
        verdict.reports["refused"] += int(case.infeasible.sum())
    else:
        verdict.find("overflow", f"bounds beyond {case.dtype} were accepted")


def _count(case: Case, statuses: list[str], verdict: Verdict) -> None:
    """One count per system: shared right sides are one system, whose worst instance counts."""
    if case.shared:
        worst = next((s for s in statuses if s != "converged"), "converged")
        (verdict.reports if case.infeasible[0] else verdict.statuses)[worst] += 1
        return
    for status, bad in zip(statuses, case.infeasible, strict=True):
        (verdict.reports if bad else verdict.statuses)[status] += 1


def _judge_instance(case: Case, system: int, status: str, x: Array, reported: float, verdict: Verdict) -> None:
    where = f"system {system}"
    if not np.isfinite(x).all():
        verdict.find("not finite", f"{where}: {status}")
        return
    if status == "infeasible" and not case.infeasible[system]:
        verdict.find("false infeasible", where)
    violation = violations(case, system, x)
    rounding = allowance(case, system, x)
    relative = relative_violation(case, system, x)
    if abs(relative - reported) > 1e-12 * reported + evaluation_rounding(case, system).max():
        verdict.find("wrong violation", f"{where}: says {reported}, is {relative}")
    if status != "converged":
        return
    if case.infeasible[system]:
        verdict.find("accepted", f"{where} is infeasible by {case.excess}")
        return
    size = np.maximum(1.0, np.abs(case.matrix) @ np.abs(x))
    beyond = (violation[: len(size)] - rounding[: len(size)]) / size
    verdict.worst = max(verdict.worst, float(beyond.max(initial=0.0)))
    if (beyond > TOLERANCE).any():
        row = int(beyond.argmax())
        verdict.find("silent violation", f"{where}: row {row} is off by {beyond[row]:.2e} of its size")
    if (violation[len(size) :] > rounding[len(size) :]).any():
        verdict.find("outside the box", where)


def violations(case: Case, system: int, x: Array) -> Array:
    """Violation of every row, then of both bounds of every variable, in original units."""
    gap = case.matrix @ x - case.sides[system]
    senses = np.array(case.senses)
    rows = np.where(senses == "<=", gap, np.where(senses == ">=", -gap, np.abs(gap)))
    return np.maximum(np.concatenate([rows, case.lower - x, x - case.upper]), 0.0)


def relative_violation(case: Case, system: int, x: Array) -> float:
    """The worst violation of a row relative to max(1, sum_j |a_ij x_j|), and of a bound relative to max(1, |x_j|)."""
    size = np.concatenate([np.abs(case.matrix) @ np.abs(x), np.abs(x), np.abs(x)])
    return float((violations(case, system, x) / np.maximum(1.0, size)).max())


def evaluation_rounding(case: Case, system: int) -> Array:
    """What evaluating each row in float64 may add to its violation, in any order of summation."""
    largest = np.maximum(np.abs(case.lower), np.abs(case.upper))
    return _ROUNDING * (np.abs(case.matrix) @ largest + np.abs(case.sides[system]))


def allowance(case: Case, system: int, x: Array) -> Array:
    """What evaluation, and rounding x to the dtype of the scores, may add to the violation of each row and bound."""
    info = torch.finfo(getattr(torch, case.dtype))
    largest = np.maximum(np.abs(x), np.maximum(np.abs(case.lower), np.abs(case.upper)))
    spacing = info.eps * largest + info.tiny * info.eps
    of_x = np.abs(case.matrix) @ spacing if case.dtype != "float64" else 0.0
    return np.concatenate([evaluation_rounding(case, system) + of_x, spacing, spacing])


def _judge_refusal(case: Case, depth: Depth, error: linsat.InfeasibleError, verdict: Verdict, system: int = 0) -> None:
    """An `InfeasibleError` must be true, proved by its certificate, and name a minimal set of rows."""
    if not case.infeasible[system]:
        verdict.find("false infeasible", f"system {system}: {error}")
        return
    if case.shared:
        verdict.reports["refused"] += 1
    order = case.order()
    named = [order[i] for i in error.indices]
    senses = [case.senses[i] for i in named]
    matrix, sides = case.matrix[named], case.sides[system][named]
    verdict.checks["certificates"] += 1
    weights = np.array(error.certificate)
    if len(weights) != len(named) or not named:
        verdict.find("no certificate", f"system {system}: {len(weights)} multipliers for {len(named)} rows")
    elif exact_gap(matrix, sides, senses, (case.lower, case.upper), weights) <= 0:
        verdict.find("wrong certificate", f"system {system}")
    if depth.highs:
        verdict.checks["minimal sets"] += 1
        for drop in range(len(named)):
            rest = [i for i in range(len(named)) if i != drop]
            if not _holds(case, matrix[rest], [senses[i] for i in rest], sides[rest]):
                verdict.find("not minimal", f"system {system}: row {named[drop]} is not needed")
                break


def _judge_mixed(case: Case, depth: Depth, library: Any, solution: Any, verdict: Verdict) -> None:
    """Feasible instances of a batch are the same, to the last bit, without the infeasible ones; these are proved."""
    good = np.flatnonzero(~case.infeasible)
    l = len(case.lower)
    scores = scores_of(case).reshape(-1, l)
    if len(good):
        alone = library.Constraints(**case.arguments(case.sides[good]))
        again = library.solve(scores[good], alone, tau=case.tau, on_failure="ignore")
        verdict.checks["mixed batches"] += 1
        short = library.project(scores[good], alone, tau=case.tau, on_failure="ignore")
        if not all(torch.equal(x, solution.x.reshape(-1, l)[good]) for x in (again.x, short)):
            verdict.find("batch mates", "feasible instances change when infeasible ones leave the batch")
    if not depth.proof:
        return
    bad = int(np.flatnonzero(case.infeasible)[0])
    one = library.Constraints(**case.arguments(case.sides[[bad]]))
    try:
        library.solve(scores[[bad]], one, tau=case.tau, on_failure="raise")
    except linsat.InfeasibleError as error:
        _judge_refusal(case, depth, error, verdict, bad)
    except linsat.ConvergenceError:
        verdict.checks["infeasible, reported as not converged"] += 1
    else:
        verdict.find("accepted", f"system {bad} is infeasible by {case.excess}")


def _judge_gradient(case: Case, x: torch.Tensor, scores: torch.Tensor, verdict: Verdict) -> None:
    """Where the rows hold, the gradient is finite, unless its true value may lie beyond the dtype of the scores.

    The Jacobian of x is at most diag(width^2 / 4) / tau (what a row takes away is positive semidefinite), so that its
    entries are at most width_i width_j / (4 tau). Half precision ends at 65,504, which wide boxes pass.
    """
    if not x.numel():
        return
    verdict.checks["gradients"] += 1
    weights = torch.linspace(-1, 1, x.shape[-1], dtype=torch.float64)
    (grad,) = torch.autograd.grad((x.to(torch.float64) * weights).sum(), scores)
    width = torch.from_numpy(case.upper - case.lower)
    most = float((weights.abs() * width).sum() * width.max()) / (4 * case.tau)
    may_overflow = most > torch.finfo(scores.dtype).max
    if grad.isnan().any() or (grad.isinf().any() and not may_overflow):
        verdict.find("gradient", "not finite")


def _judge_short_way(
    case: Case, scores: torch.Tensor, cons: Any, statuses: list[str], library: Any, verdict: Verdict
) -> None:
    """`project` goes another way than `solve`: what it returns where that converged is judged too."""
    if not scores.numel():
        return
    try:
        x = library.project(scores, cons, tau=case.tau, on_failure="raise" if case.shared else "ignore")
    except (linsat.ConvergenceError, linsat.InfeasibleError):
        return
    points = x.reshape(-1, x.shape[-1])
    held = [i for i, status in enumerate(statuses) if case.shared or status == "converged"]
    _judge_gradient(case, points[held], scores, verdict)
    for i, point in zip(held, points.detach().to(torch.float64).numpy()[held], strict=True):
        system = 0 if case.shared else i
        reported = relative_violation(case, system, point) if np.isfinite(point).all() else np.nan
        _judge_instance(case, system, "converged", point, reported, verdict)


def _judge_optimum(case: Case, scores: torch.Tensor, x: Array, verdict: Verdict) -> None:
    """Clarabel on the same program must come to the same point, where it vouches for its own."""
    system = _system(case, case.matrix, case.senses, case.sides[0])
    found = oracles.entropic_optimum(system, scores.to(torch.float64).numpy(), case.tau)
    if found is None:
        verdict.checks["optimum: Clarabel unsure"] += 1
        return
    verdict.checks["optimum"] += 1
    width = np.where(case.upper > case.lower, case.upper - case.lower, 1.0)
    rounding = torch.finfo(getattr(torch, case.dtype)).eps * np.maximum(np.abs(case.lower), np.abs(case.upper))
    distance = float((np.maximum(np.abs(x - found) - rounding, 0.0) / width).max())
    if distance > 1e-3:
        verdict.find("optimum", f"{distance:.1e} of the box away from Clarabel's")


def _check_oracle(case: Case, verdict: Verdict) -> None:
    """HiGHS agrees with what the construction of the case says, where its tolerance can tell."""
    if case.infeasible[0] and case.excess < 1e-4:
        return
    verdict.checks["HiGHS"] += 1
    if _holds(case, case.matrix, case.senses, case.sides[0]) == bool(case.infeasible[0]):
        verdict.find("oracle", "HiGHS contradicts the construction of the case")


def _holds(case: Case, matrix: Array, senses: list[str], sides: Array) -> bool:
    """Whether HiGHS finds a point for rows divided by their size, variables by their width."""
    if not len(matrix):
        return True
    width = case.upper - case.lower
    size = row_sizes(matrix, case.lower, case.upper)
    unit = oracles.System(
        matrix * width / size[:, None],
        senses,
        (sides - matrix @ case.lower) / size,
        np.zeros(len(width)),
        upper=(width > 0).astype(float),
    )
    return oracles.is_feasible(unit)


def _system(case: Case, matrix: Array, senses: list[str], sides: Array) -> oracles.System:
    return oracles.System(matrix, senses, sides, case.lower, case.lower, case.upper)
