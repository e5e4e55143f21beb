"""One case through the library, and what an outsider says about the answer: satisfied, truly reported, or a finding."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import linsat
from fuzz.conflicts import exact_gap, row_sizes
from fuzz.doors import judge_doors
from fuzz.families import Array
from fuzz.formulas import judge_formulas
from fuzz.gradients import judge_gradients
from fuzz.graphs import through_graph
from fuzz.measure import allowance, evaluation_rounding, relative_violation, row_size, violations
from fuzz.optimality import TOLERANCE as GAP
from fuzz.optimality import Gap, duality_gap, linear_part, moves, value
from fuzz.systems import Case
from fuzz.verdict import Verdict
from linsat.native.binding import unavailable
from tests.helpers import oracles

TOLERANCE = 1e-9  # of the size of a row at x, max(1, sum_j |a_ij x_j|)
_MOVES = 1e-6  # in shares of the box and sizes of rows: what moves by less counts as forced
_NO_OVERFLOW = {name: float(torch.finfo(getattr(torch, name)).max) for name in ("float16", "bfloat16", "float32")}


@dataclass(frozen=True)
class Depth:
    """Which of the expensive checks a case gets."""

    optimum: bool = False  # against Clarabel
    highs: bool = False  # feasibility and minimality by HiGHS
    proof: bool = True  # the certificate of an infeasible instance among others
    doors: bool = False  # numpy and JAX, traced and mapped
    gradients: bool = False  # finite differences in every number
    formulas: bool = False  # abs, maxima and norms beside the rows


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
    bounds = np.concatenate([np.ravel(case.number(name)) for name in ("lower", "upper")])
    limit = np.abs(bounds[np.isfinite(bounds)]).max(initial=0.0)
    if limit > _NO_OVERFLOW.get(case.dtype, np.inf):
        _expect_refusal(case, scores, library, verdict)
        return
    cons, numbers = case.statement(library)
    try:
        solution = library.solve(scores, cons, objective=case.asked(library), on_failure="ignore", **numbers)
    except linsat.InfeasibleError as error:
        _judge_refusal(case, depth, error, verdict)
        return
    except linsat.ConstraintError as error:
        _judge_overflow(case, scores, library, f"{type(error).__name__}: {error}", verdict)
        return
    statuses = [str(s) for s in solution.status.ravel()]
    if linsat.status.Status.NOT_FINITE in statuses:
        _judge_overflow(case, scores, library, "not_finite where all numbers are", verdict)
        return
    points = solution.x.detach().reshape(-1, len(case.lower)).to(torch.float64).numpy()
    reported = solution.violation.reshape(-1).tolist()
    duals = _in_order(case, solution)
    scores_in_order = scores.detach().to(torch.float64).reshape(-1, len(case.lower)).numpy()
    for i, status in enumerate(statuses):
        one = alone(case, i)
        _judge_instance(one, status, points[i], reported[i], f"system {i}", verdict)
        if status == "converged" and np.isfinite(points[i]).all() and not one.infeasible[0]:
            _judge_gap(one, scores_in_order[i], points[i], duals[i], f"system {i}", verdict)
    _count(case, statuses, verdict)
    if not case.shared and case.infeasible.any():
        _judge_mixed(case, depth, library, solution, verdict)
    if not case.shared:
        held = solution.x[torch.as_tensor(solution.status == "converged")]
        _judge_gradient(case, held, scores, verdict)
    _judge_again(case, scores, (statuses, duals), library, verdict)
    if depth.optimum and points.size and statuses[0] == "converged" and not case.infeasible[0]:
        _judge_optimum(alone(case, 0), scores_in_order[0], points[0], duals[0], verdict)
    if depth.doors and points.size:
        judge_doors(case, statuses, points, verdict, library)
    if depth.gradients and points.size and set(statuses) == {"converged"}:
        judge_gradients(case, verdict, library)
    if depth.formulas and points.size:
        judge_formulas(case, verdict, library)


def alone(case: Case, instance: int) -> Case:
    """The system of an instance."""
    return case.alone(0 if case.shared else instance)


def _in_order(case: Case, solution: Any) -> Array:
    """The duals of every instance, in the order of the rows of the case."""
    given = solution.duals.detach().reshape(-1, len(case.senses)).to(torch.float64).numpy()
    found = np.empty_like(given)
    found[:, case.order()] = given
    return found


def _judge_gap(case: Case, y: Array, x: Array, duals: Array, where: str, verdict: Verdict) -> None:
    """A point that satisfies the rows must also be the best one: its duality gap, computed here, is next to nothing."""
    if not np.isfinite(duals).all():
        verdict.find("duals", f"{where}: not finite")
        return
    gap = duality_gap(case, 0, y, x, duals)
    verdict.checks["gaps"] += 1
    verdict.gap = max(verdict.gap, gap.relative)
    if len(gap.signs):
        row = int(gap.signs[0])
        verdict.find("duals", f"{where}: {duals[row]:.3g} for row {row}, a {case.senses[row]} row")
    if not gap.relative <= GAP:
        verdict.find("optimum", f"{where}: a duality gap of {gap.relative:.1e} of the objective")
    if len(gap.variables) or len(gap.rows):
        _judge_forced(case, gap, x, where, verdict)


def _judge_forced(case: Case, gap: Gap, x: Array, where: str, verdict: Verdict) -> None:
    """What has no finite duals must be forced by the rows, as HiGHS sees it."""
    verdict.checks["forced"] += 1
    room = moves(case, 0, gap, x)
    if not room <= _MOVES * (len(gap.variables) + len(gap.rows)):
        listed = f"variables {gap.variables.tolist()[:5]}, rows {gap.rows.tolist()[:5]}"
        verdict.find("optimum", f"{where}: {listed} are not forced, they can move by {room:.1e}")


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
        library.solve(scores, case.constraints(library), objective=case.asked(library), on_failure="ignore")
    except linsat.ConstraintError:
        verdict.statuses["refused"] += int((~case.infeasible).sum())
        verdict.reports["refused"] += int(case.infeasible.sum())
    except linsat.InfeasibleError:
        verdict.reports["refused"] += int(case.infeasible.sum())
    else:
        verdict.find("overflow", f"bounds beyond {case.dtype} were accepted")


def _judge_overflow(case: Case, scores: torch.Tensor, library: Any, what: str, verdict: Verdict) -> None:
    """An answer that the dtype of the scores cannot hold may be rejected, where nothing bounds it."""
    cons, wide = case.constraints(library), scores.detach().to(torch.float64)
    solution = library.solve(wide, cons, objective=case.asked(library), on_failure="ignore")
    if not open_box(case) or not float(solution.x.abs().max()) > torch.finfo(scores.dtype).max:
        verdict.find("error", what)
    verdict.statuses["refused"] += int((~case.infeasible).sum())
    verdict.reports["refused"] += int(case.infeasible.sum())


def _count(case: Case, statuses: list[str], verdict: Verdict) -> None:
    """One count per system: shared right-hand sides are one system, whose worst instance counts."""
    if case.shared:
        worst = next((s for s in statuses if s != "converged"), "converged")
        (verdict.reports if case.infeasible[0] else verdict.statuses)[worst] += 1
        return
    for status, bad in zip(statuses, case.infeasible, strict=True):
        (verdict.reports if bad else verdict.statuses)[status] += 1


def open_box(case: Case) -> bool:
    """Whether some variable has no bound on a side."""
    return not (np.isfinite(case.lower).all() and np.isfinite(case.upper).all())


def _contradicts(case: Case, x: Array) -> bool:
    """Whether rows contradict each other by more than they may be violated by; those of tiny coefficients may not."""
    if open_box(case):
        return True
    weights = np.abs(case.weights)
    least = case.excess * weights @ row_sizes(case.matrix_of(0), case.lower, case.upper)
    return not least <= TOLERANCE * weights @ row_size(case, 0, x)


def _judge_instance(case: Case, status: str, x: Array, reported: float, where: str, verdict: Verdict) -> None:
    """A case of one system."""
    system = 0
    if not np.isfinite(x).all():
        if status == "converged" or not open_box(case):  # what has no solution may run off where nothing bounds it
            verdict.find("not finite", f"{where}: {status}")
        return
    if status == "infeasible" and not case.infeasible[system]:
        verdict.find("false infeasible", where)
    violation = violations(case, system, x)
    rounding = allowance(case, system, x)
    relative = relative_violation(case, system, x)
    if abs(relative - reported) > 1e-12 * reported + evaluation_rounding(case, system, x).max(initial=0.0):
        verdict.find("wrong violation", f"{where}: says {reported}, is {relative}")
    if status != "converged":
        return
    if case.infeasible[system] and _contradicts(case, x):
        verdict.find("accepted", f"{where} is infeasible by {case.excess}")
        return
    size = row_size(case, system, x)
    beyond = np.where(case.hard, (violation[: len(size)] - rounding[: len(size)]) / size, 0.0)
    verdict.worst = max(verdict.worst, float(beyond.max(initial=0.0)))
    if (beyond > TOLERANCE).any():
        row = int(beyond.argmax())
        verdict.find("silent violation", f"{where}: row {row} is off by {beyond[row]:.2e} of its size")
    if (violation[len(size) :] > rounding[len(size) :]).any():
        verdict.find("outside the box", where)


def _judge_refusal(case: Case, depth: Depth, error: linsat.InfeasibleError, verdict: Verdict, system: int = 0) -> None:
    """An `InfeasibleError` must be true, proved by its certificate, and name a minimal set of rows where it says so."""
    if not case.infeasible[system]:
        verdict.find("false infeasible", f"system {system}: {error}")
        return
    if case.shared:
        verdict.reports["refused"] += 1
    order = case.order()
    named = [order[i] for i in error.indices]
    senses = [case.senses[i] for i in named]
    matrix, sides = case.matrix_of(system)[named], case.sides[system][named]
    verdict.checks["certificates"] += 1
    if np.isinf(case.lower).any() or np.isinf(case.upper).any():
        verdict.checks["certificates, infinite bounds"] += 1
    if not case.hard[named].all():
        verdict.find("soft conflict", f"system {system}: a soft row is said to contradict")
    weights = list(error.certificate)
    if len(weights) != len(named) or not named:
        verdict.find("no certificate", f"system {system}: {len(weights)} multipliers for {len(named)} rows")
    elif exact_gap(matrix, sides, senses, (case.lower, case.upper), weights) <= 0:
        verdict.find("wrong certificate", f"system {system}")
    if depth.highs and not error.minimal:
        verdict.checks["minimal sets, not claimed"] += 1
    elif depth.highs:
        verdict.checks["minimal sets"] += 1
        for drop in range(len(named)):
            rest = [i for i in range(len(named)) if i != drop]
            if not _holds(case, matrix[rest], [senses[i] for i in rest], sides[rest]):
                verdict.find("not minimal", f"system {system}: row {named[drop]} is not needed")
                break


def _same_answer(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To the last bit from the kernel; torch's own sums depend on the batch, and agree up to rounding."""
    if unavailable() is None:
        return torch.equal(one, other)
    rounding = 4 * torch.finfo(one.dtype).eps
    return torch.allclose(one, other, rtol=max(1e-9, rounding), atol=max(1e-12, rounding), equal_nan=True)


def _judge_mixed(case: Case, depth: Depth, library: Any, solution: Any, verdict: Verdict) -> None:
    """Feasible instances of a batch are the same, to the last bit, without the infeasible ones; these are proved."""
    good = np.flatnonzero(~case.infeasible)
    l = len(case.lower)
    scores = scores_of(case).reshape(-1, l)
    if len(good):
        (rest, numbers), objective = case.statement(library, good), case.asked(library, good)
        again = library.solve(scores[good], rest, objective=objective, on_failure="ignore", **numbers)
        verdict.checks["mixed batches"] += 1
        short = library.project(scores[good], rest, objective=objective, on_failure="ignore", **numbers)
        if not all(_same_answer(x, solution.x.reshape(-1, l)[good]) for x in (again.x, short)):
            verdict.find("batch mates", "feasible instances change when infeasible ones leave the batch")
    if not depth.proof:
        return
    bad = int(np.flatnonzero(case.infeasible)[0])
    keep = np.array([bad])
    one, numbers = case.statement(library, keep)
    try:
        again = library.solve(scores[[bad]], one, objective=case.asked(library, keep), on_failure="raise", **numbers)
    except linsat.InfeasibleError as error:
        _judge_refusal(case, depth, error, verdict, bad)
    except linsat.ConvergenceError:
        verdict.checks["infeasible, reported as not converged"] += 1
    else:
        point, one = again.x[0].detach().to(torch.float64).numpy(), case.alone(bad)
        _judge_instance(one, "converged", point, relative_violation(one, 0, point), f"system {bad}", verdict)


def _judge_gradient(case: Case, x: torch.Tensor, scores: torch.Tensor, verdict: Verdict) -> None:
    """Where the rows hold, the gradient is finite, unless its true value may lie beyond the dtype of the scores.

    The Jacobian of x is at most diag(width^2 / 4) / tau (what a row takes away is positive semidefinite), so that its
    entries are at most width_i width_j / (4 tau). Half precision ends at 65,504, which wide boxes pass. Of the nearest
    point it is a projection, in the metric of the weights.
    """
    if not x.numel():
        return
    verdict.checks["gradients"] += 1
    weights = torch.linspace(-1, 1, x.shape[-1], dtype=torch.float64)
    (grad,) = torch.autograd.grad((x.to(torch.float64) * weights).sum(), scores)
    if case.objective in ("kl", "tsallis", "quadratic", "metric"):
        most = np.inf  # t / tau may be anything
    elif case.objective == "euclidean":
        most = float(weights.abs().sum()) * (1.0 if case.metric is None else float(np.ptp(np.log(case.metric))) + 1e4)
    else:
        width = torch.from_numpy(
            np.asarray(case.number("upper") - case.number("lower")).reshape(-1, x.shape[-1]).max(0)
        )
        most = float((weights.abs() * width).sum() * width.max()) / (4 * float(np.min(case.number("tau"))))
    may_overflow = most > torch.finfo(scores.dtype).max
    if grad.isnan().any() or (grad.isinf().any() and not may_overflow):
        verdict.find("gradient", "not finite")


def _judge_again(
    case: Case, scores: torch.Tensor, solved: tuple[list[str], Array], library: Any, verdict: Verdict
) -> None:
    """`project`, or the graph of it, where `solve` converged: rows and optimum are judged again."""
    if not scores.numel():
        return
    statuses, duals = solved
    cons, numbers = case.statement(library)
    try:
        if case.way == "eager":
            on_failure = "raise" if case.shared else "ignore"
            x = library.project(scores, cons, objective=case.asked(library), on_failure=on_failure, **numbers)
        else:
            verdict.checks[case.way] += 1
            x = through_graph(case.way, scores, case.constraints(library), case.asked(library))
    except (linsat.ConvergenceError, linsat.InfeasibleError):
        return
    points = x.reshape(-1, x.shape[-1])
    shared = case.shared and case.way == "eager"
    held = [i for i, status in enumerate(statuses) if shared or status == "converged"]
    if case.way == "eager":
        _judge_gradient(case, points[held], scores, verdict)
    for i in held:
        point, one = points[i].detach().to(torch.float64).numpy(), alone(case, i)
        reported = relative_violation(one, 0, point) if np.isfinite(point).all() else np.nan
        _judge_instance(one, "converged", point, reported, f"system {i}, project", verdict)
        if np.isfinite(point).all() and not one.infeasible[0]:
            y = scores.detach().to(torch.float64).reshape(-1, len(point)).numpy()[i]
            _judge_gap(one, y, point, duals[i], f"system {i}, project", verdict)


def _judge_optimum(case: Case, y: Array, x: Array, duals: Array, verdict: Verdict) -> None:
    """Clarabel on the same program finds nothing better, where it vouches for its answer.

    What its point breaks of the rows is charged at our duals, which is what breaking them is worth. The paper's slack
    has a value too: there the points are compared.
    """
    system = _system(case, case.matrix_of(0), case.senses, case.sides[0])
    best = _by_clarabel(case, system, y)
    if best is None:
        verdict.checks["optimum: Clarabel unsure"] += 1
        return
    verdict.checks["optimum"] += 1
    eps = torch.finfo(getattr(torch, case.dtype)).eps
    if case.objective == "entropic":
        width = np.where(case.upper > case.lower, case.upper - case.lower, 1.0)
        rounding = eps * np.maximum(np.abs(case.lower), np.abs(case.upper))
        distance = float((np.maximum(np.abs(x - best) - rounding, 0.0) / width).max())
        if distance > 1e-3:
            verdict.find("optimum", f"{distance:.1e} of the box away from Clarabel's")
        return
    inside = np.clip(best, case.lower, case.upper)
    broken = np.where(case.hard, violations(case, 0, inside)[: len(case.senses)], 0.0)
    ours, theirs = value(case, y, x), value(case, y, inside) - float(np.abs(duals) @ broken)
    size = 1.0 + np.abs(linear_part(case, y) * x).sum() + abs(ours)
    worth = np.abs(duals) if case.price is None else np.where(case.hard, np.abs(duals), case.price)
    own = float(worth @ allowance(case, 0, x)[: len(duals)])  # what rounding x to its dtype is worth
    verdict.checks["values"] += 1
    if theirs - ours > (1e-7 + 100 * eps * (case.dtype != "float64")) * size + own:
        verdict.find("optimum", f"a value of {ours:.9g}, where Clarabel has {theirs:.9g}")


def _by_clarabel(case: Case, system: oracles.System, y: Array) -> Array | None:
    if case.objective in ("quadratic", "metric"):
        return oracles.quadratic_optimum(system, linear_part(case, y), case.P, case.price)
    if case.objective == "euclidean":
        return oracles.nearest_point(system, y, 1.0 if case.metric is None else case.metric, case.price)
    if case.objective == "kl":
        return oracles.kl_optimum(system, y, case.tau, case.price, 1.0 if case.prior is None else case.prior)
    if case.objective == "tsallis":
        return oracles.tsallis_optimum(system, y, case.tau, case.price, case.alpha)
    if case.objective == "slack-free":
        return oracles.slack_free_optimum(system, y, case.tau, case.price)
    return oracles.entropic_optimum(system, y, case.tau, case.price)


def _check_oracle(case: Case, verdict: Verdict) -> None:
    """HiGHS agrees with what the construction of the case says, where its tolerance can tell."""
    if case.infeasible[0] and case.excess < 1e-4:
        return
    verdict.checks["HiGHS"] += 1
    hard = np.flatnonzero(case.hard)
    senses = [case.senses[i] for i in hard]
    if _holds(case, case.matrix_of(0)[hard], senses, case.sides[0][hard]) == bool(case.infeasible[0]):
        verdict.find("oracle", "HiGHS contradicts the construction of the case")


def _holds(case: Case, matrix: Array, senses: list[str], sides: Array) -> bool:
    """Whether HiGHS finds a point for rows divided by their size, variables by their width where that is finite."""
    if not len(matrix):
        return True
    width = case.upper - case.lower
    unit_of = np.where(np.isfinite(width), width, 1.0)
    base = np.where(np.isfinite(width), case.lower, 0.0)
    size = row_sizes(matrix, 0 * unit_of, unit_of)
    ends = [np.where(np.isfinite(width), e, bound) for e, bound in ((0.0, case.lower), (width > 0, case.upper))]
    unit = oracles.System(
        matrix * unit_of / size[:, None], senses, (sides - matrix @ base) / size, base, lower=ends[0], upper=ends[1]
    )
    return oracles.is_feasible(unit)


def _system(case: Case, matrix: Array, senses: list[str], sides: Array) -> oracles.System:
    return oracles.System(matrix, senses, sides, case.lower, case.lower, case.upper)
