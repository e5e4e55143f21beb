"""`project` and `solve`: scores and constraints in, constrained x out."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from linsat._adjoint import ImplicitCall, implicit_duals
from linsat._compile import System, compile_constraints, implied_reduction, infeasible_error
from linsat._equations import Equalities, Program, Reduction, Tensor
from linsat._fused import FusedProjection, GeneralWayError, Lane, fits, tables_of
from linsat._kernels import KernelBrokenError
from linsat._kernels.run import Solved
from linsat._request import DEFAULT, ON_FAILURE, Request, Solver, check_numbers, largest_bound
from linsat._transforms import outside_graphs
from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError, ConvergenceError, LinSATWarning
from linsat.solution import Solution
from linsat.solvers import Newton, Sinkhorn
from linsat.solvers.outcome import Outcome
from linsat.status import Status

_MOST_LANES = 32


@outside_graphs
def project(
    y: Any,
    constraints: Constraints,
    *,
    tau: Any = 0.1,
    solver: Solver | None = None,
    on_failure: str = "warn",
    start: Any = None,
) -> Any:
    """The point of the constraint set that fits the scores best, differentiably.

    Solves, for each instance, ``max <y, x> + tau * entropy(x)`` over the rows and the box (`linsat._equations` has the
    exact program). Small ``tau`` gives nearly discrete answers, large ``tau`` smooth ones.

    Args:
        y: scores (..., variables), a floating torch tensor or numpy array; numpy in, numpy out.
        constraints: the rows and the box; per-instance right sides broadcast against the leading dimensions of y.
        tau: temperature, a positive number or tensor of the batch shape; may require gradients.
        solver: `Newton()` (default) or `Sinkhorn()`.
        on_failure: what to do when some instance does not converge: ``"warn"``, ``"raise"`` or ``"ignore"``.
        start: duals of an earlier, similar solve (`Solution.duals`) to start from.

    Returns:
        x like y: same shape (broadcast with per-instance constraints), dtype and device. Gradients reach y, right
        sides, coefficients, bounds and tau. Cost: see `Newton` and `Sinkhorn`.

    Raises:
        InfeasibleError: rows shared by all instances contradict each other.
        ConstraintError: malformed arguments, NaN or infinite scores.
        ConvergenceError: with ``on_failure="raise"``.
    """
    if start is None and fits(y, tau):
        x = _fused(y, constraints, tau, solver, on_failure)
        if x is not None:
            return x
    return solve(y, constraints, tau=tau, solver=solver, on_failure=on_failure, start=start).x


@outside_graphs
def solve(
    y: Any,
    constraints: Constraints,
    *,
    tau: Any = 0.1,
    solver: Solver | None = None,
    on_failure: str = "warn",
    start: Any = None,
) -> Solution:
    """Like `project`, returning a `Solution`: x with status, violation, steps and duals of every instance."""
    request = Request.read(y, constraints, tau, solver, on_failure, start)
    system = compile_constraints(
        constraints,
        num_variables=request.scores.shape[-1],
        device=request.scores.device,
        gamma_shift=request.solver.gamma_shift,
        presolve=request.solver.presolves,
    )
    return _solve(system, request)


def project_each(
    scores: Sequence[Any],
    constraints: Sequence[Constraints],
    *,
    tau: Any = 0.1,
    solver: Solver | None = None,
    on_failure: str = "warn",
) -> list[Any]:
    """Project instances of different shapes: ``scores[i]`` onto ``constraints[i]``, in the given order.

    Instances whose sets have the same rows and box are solved together as one batch, also where their right sides
    differ; an infeasible one among those is reported by ``on_failure`` like any instance with right sides of its own.
    """
    if len(scores) != len(constraints):
        raise ConstraintError(
            f"scores has {len(scores)} entries and constraints {len(constraints)}. Fix: one constraint set per scores."
        )
    options = {"tau": tau, "solver": solver, "on_failure": on_failure}
    groups: dict[Any, list[int]] = {}
    for i, (y, cons) in enumerate(zip(scores, constraints, strict=True)):
        kind = (type(y).__name__, str(getattr(y, "dtype", None)), tuple(np.shape(y)))
        groups.setdefault((kind, _rows_key(cons)), []).append(i)
    results: list[Any] = [None] * len(scores)
    for members in groups.values():
        if len(members) == 1:
            results[members[0]] = project(scores[members[0]], constraints[members[0]], **options)
            continue
        stack = torch.stack if isinstance(scores[members[0]], torch.Tensor) else np.stack
        batch_dims = len(np.shape(scores[members[0]])) - 1
        joined = _joined_sides([constraints[i] for i in members], batch_dims)
        together = project(stack([scores[i] for i in members]), joined, **options)
        for position, i in enumerate(members):
            results[i] = together[position]
    return results


def _rows_key(constraints: Any) -> Any:
    """Equal for sets with the same rows and box; sets that cannot be joined get a key of their own."""
    if not isinstance(constraints, Constraints) or not constraints.fixed or constraints.batch_shape:
        return id(constraints)
    structure, numbers = constraints.structure, constraints.numbers()
    parts = (structure.row, structure.col, structure.senses, numbers.values, numbers.lower, numbers.upper)
    return len(constraints), constraints.num_variables, *(t.cpu().numpy().tobytes() for t in parts)


def _joined_sides(sets: Sequence[Constraints], batch_dims: int) -> Constraints:
    """One set for scores (sets, batch..., variables) whose rows are the same: with each one's right sides."""
    first = sets[0]
    if all(cons is first or torch.equal(cons.rhs, first.rhs) for cons in sets):
        return first
    sides = [cons.right_sides for cons in sets]
    stacked = {name: torch.stack([side[name] for side in sides]) for name in sides[0]}  # (sets, rows)
    return first.with_rhs(**{name: t.reshape(len(sets), *[1] * batch_dims, -1) for name, t in stacked.items()})


def _fused(y: Tensor, constraints: Constraints, tau: float, solver: Solver | None, on_failure: str) -> Tensor | None:
    """The projection in one kernel call each way, or None where the general way must serve."""
    solver = DEFAULT if solver is None else solver
    if not (isinstance(solver, Newton) and isinstance(constraints, Constraints) and isinstance(on_failure, str)):
        return None
    if constraints.num_variables != y.shape[-1]:
        return None
    try:
        lane = _lane_for(y, constraints, (tau, solver, on_failure))
        return None if lane is None else FusedProjection.apply(y, lane, constraints)
    except (KernelBrokenError, GeneralWayError):
        return None


def _lane_for(y: Tensor, constraints: Constraints, options: tuple[float, Newton, str]) -> Lane | None:
    """The lane of earlier calls with the same arguments, or a new one."""
    if constraints.batch_shape:  # as large as the batch: not kept
        return _lane(constraints, *options) if y.numel() and y.shape[:-1] == constraints.batch_shape else None
    lanes = constraints.lanes
    if options not in lanes:
        if len(lanes) >= _MOST_LANES:  # a temperature that changes with every step must not pile up
            lanes.clear()
        lanes[options] = _lane(constraints, *options)
    return lanes[options]


def _lane(constraints: Constraints, tau: float, solver: Newton, on_failure: str) -> Lane | None:
    """What calls with these arguments have in common; None where the general way must serve."""
    if not constraints.fixed or solver.backend == "torch" or on_failure not in ON_FAILURE:
        return None
    if largest_bound(constraints) > torch.finfo(torch.float32).max:
        return None  # the general way knows the dtype of the scores
    system = compile_constraints(constraints, gamma_shift=solver.gamma_shift)
    tables = tables_of(system)
    if tables is None:
        return None

    def report(solved: Solved, scores: Tensor) -> None:
        if not system.shared:
            raise GeneralWayError
        codes = torch.from_numpy(solved.codes)
        check_numbers(scores, torch.ones(1))
        _report(system, on_failure, system.equalities, Outcome(codes, codes, codes))

    def again(y: Tensor, constraints: Constraints) -> Tensor:
        return solve(y, constraints, tau=tau, solver=solver, on_failure="ignore").x

    return Lane(tables, np.array([float(tau)]), solver.tol, solver.max_steps, not system.shared, report, again)


def _solve(system: System, request: Request) -> Solution:
    equalities = request.equalities(system)
    solver = request.solver

    def run(rows: Equalities, scores: Tensor, tau: Tensor) -> tuple[Outcome, Tensor, Reduction]:
        """Everything that looks at numbers happens here, out of sight of autograd and of function transforms."""
        check_numbers(scores, tau)
        outcome, reduction = _run_solver(system, solver, rows, scores, tau, request.start)
        _report(system, request.on_failure, rows, outcome)
        return outcome, outcome.shares(rows.program(scores, reduction), tau), reduction

    if isinstance(solver, Sinkhorn) and solver.gradient == "unrolled":
        check_numbers(request.scores, request.tau)
        reduction = system.reduce(equalities)
        program = equalities.program(request.scores, reduction)
        start = None if request.start is None else request.start * equalities.scale.detach()
        outcome, shares = solver.unrolled(program, request.tau, start)
        outcome.codes[reduction.infeasible.expand(outcome.codes.shape)] = Status.INFEASIBLE.code
        _report(system, request.on_failure, equalities, outcome)
        return request.solution(outcome, shares, equalities)
    call = ImplicitCall(equalities.rows, system.shared, run)
    outcome, p, reduction = implicit_duals(call, equalities, request.scores, request.tau)
    program = equalities.program(request.scores, reduction)
    shares, _ = program.shares(outcome.mu, request.tau[:, None])
    # The derivatives are those of the duals' shares, the value is where the solver saw the rows hold.
    shares = p + (shares - shares.detach())
    return request.solution(outcome, shares, equalities)


def _run_solver(
    system: System, solver: Solver, rows: Equalities, scores: Tensor, tau: Tensor, start: Tensor | None
) -> tuple[Outcome, Reduction]:
    with torch.no_grad():
        reduction = system.reduce(rows)
        program = rows.program(scores, reduction)
        mu = None if start is None else start * rows.scale
        if system.shared:
            return solver.run(program, tau, mu), reduction
        outcome = Outcome.empty(program, scores.shape[0])
        program = rows.program(scores, reduction.expand(scores.shape[0]))
        outcome.p = program.shares(outcome.mu, tau[:, None])[0]
        infeasible = program.reduction.infeasible
        outcome.codes[infeasible] = Status.INFEASIBLE.code
        _solve_some(outcome, solver, program, tau, mu, (~infeasible).nonzero().squeeze(-1))
        _second_look(outcome, system, solver, program, tau)
        return outcome, program.reduction


def _solve_some(
    outcome: Outcome, solver: Solver, program: Program, tau: Tensor, start: Tensor | None, index: Tensor
) -> None:
    """Solve the instances of ``index`` and write them into the outcome."""
    if index.numel() == 0:
        return
    some = program.select(index)
    part = solver.run(some, tau[index], None if start is None else start[index])
    outcome.mu[index], outcome.codes[index], outcome.steps[index] = part.mu, part.codes, part.steps
    assert outcome.p is not None
    outcome.p[index] = part.shares(some, tau[index])


def _second_look(outcome: Outcome, system: System, solver: Solver, program: Program, tau: Tensor) -> None:
    """Give instances that did not converge the full presolve: rows of their own may force variables or contradict.

    One linear programme for each set of numbers among them, then one more solve for all.
    """
    done = {Status.CONVERGED.code, Status.INFEASIBLE.code}
    known: dict[bytes, Reduction] = {}
    left = []
    for instance in [i for i, code in enumerate(outcome.codes.tolist()) if code not in done]:
        own = (program.lower, program.width, program.rhs, program.slack)
        key = b"".join(t[min(instance, len(t) - 1)].cpu().numpy().tobytes() for t in own)
        if key not in known:
            known[key] = implied_reduction(program, system.senses, program.reduction, instance)
        if bool(known[key].infeasible[0]):
            outcome.codes[instance] = Status.INFEASIBLE.code
            continue
        program.reduction.replace(instance, known[key])
        left.append(instance)
    _solve_some(outcome, solver, program, tau, None, torch.tensor(left, dtype=torch.int64, device=tau.device))


def _report(system: System, on_failure: str, rows: Equalities, outcome: Outcome) -> None:
    if bool((outcome.codes >= len(Status)).any()):  # the kernel's word for numbers that are not finite
        first = int((outcome.codes >= len(Status)).nonzero()[0])
        raise ConstraintError(
            f"y of instance {first}, times the width of the box, is beyond the range of float64. "
            f"Fix: smaller scores, or a narrower box."
        )
    failed = outcome.codes != Status.CONVERGED.code
    if on_failure == "ignore" or not bool(failed.any()):
        return
    codes = outcome.codes.tolist()
    first = next(i for i, code in enumerate(codes) if code != Status.CONVERGED.code)
    status = Status.of(codes[first])
    count = sum(code != Status.CONVERGED.code for code in codes)
    text = (
        f"{count} of {len(codes)} instances did not converge; the first is instance {first}: {status}. {status.advice}"
    )
    if on_failure == "warn":
        warnings.warn(text, LinSATWarning, stacklevel=_caller_level())
        return
    if status is Status.INFEASIBLE:
        raise infeasible_error(system.constraints, rows, system.senses, first)
    raise ConvergenceError(text)


def _caller_level() -> int:
    """Stack level of the first frame outside linsat and torch, so that a warning points at the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("linsat", "torch"):
        level, frame = level + 1, frame.f_back
    return level
