"""`Plan`: a constraint set made ready for a kind of call. It owns everything that is kept between calls.

    what a user states -> Numbers -> Plan -> native core, or arrays -> Answer

A plan knows the pattern, the objective's kind and the solver; numbers come with each call, unless ``constant``. It
decides nothing about gradients (`linsat.gradient`) nor about what becomes of failures (`linsat.failures`).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from linsat._transforms import constant_in_graphs, plain, plain_tensors
from linsat.backends.run import finish, run
from linsat.compile.box import Box
from linsat.compile.diagnosis import reject_infeasible
from linsat.compile.forced import presolve_by_program
from linsat.compile.presolve import everything_free, has_even_interior, propagate
from linsat.compile.problem import Presolved, Problem, StandardForm, Tensor
from linsat.compile.rows import RowMatrix
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.structure import SparsityPattern
from linsat.errors import ConstraintError
from linsat.native import tensors as native
from linsat.native.binding import Core, load
from linsat.native.layout import NativeLayout, make_layout
from linsat.native.tensors import Stated
from linsat.objectives import Entropy, Euclidean, Objective
from linsat.objectives.base import of_kind
from linsat.solvers import Newton, Sinkhorn, made_solver, settings_of
from linsat.solvers.newton import STEPS_BEFORE_INTERIOR
from linsat.status import Status

Solver = Newton | Sinkhorn
# A set whose every share lies this far inside (0, 1) at scores 0 has an interior: nothing is forced.
_WELL_INSIDE = 1e-5


class Numbers(NamedTuple):
    """What a set states, in float64 on one device: (1, .) where all instances share it, else (N, .)."""

    values: Tensor  # (., nnz) coefficients in the order of the pattern
    side: Tensor  # (., k) right-hand sides
    lower: Tensor  # (., l)
    upper: Tensor  # (., l)
    price: Tensor  # (., k) of breaking a row, infinite where it is hard

    def select(self, index: Tensor) -> Numbers:
        return Numbers(*(tensor if tensor.shape[0] == 1 else tensor[index] for tensor in self))


def numbers_of(constraints: Constraints, width: int, batch_shape: Sequence[int], device: Any) -> Numbers:
    """The numbers of a set, spread over a flattened batch; gradients reach the user's tensors."""
    given, pattern = constraints.numbers(device), constraints.structure
    price = pattern.hard_price(device) if given.price is None else given.price
    sizes = len(pattern.row), pattern.num_rows, width, width, pattern.num_rows
    flat = []
    for tensor, size in zip((given.values, given.rhs, given.lower, given.upper, price), sizes, strict=True):
        shape = tensor.shape
        if len(shape) <= 1:
            flat.append(tensor.expand(1, size))
        elif len(shape) == 2 and shape[1] == size and shape[:1] == batch_shape:
            flat.append(tensor)
        else:
            flat.append(tensor.expand(*batch_shape, size).reshape(math.prod(batch_shape), size))
    return Numbers(*flat)


@dataclass
class Answer:
    """What a solve gives back. ``decided`` is what presolve found, (1 or N, .), see `Plan.unpack`."""

    x: Tensor  # (N, l) of the dtype of the scores
    duals: Tensor  # (N, k) multipliers of the rows as written
    counts: Tensor  # (3, N) int64: positions in Status, steps, positions in SOLVERS
    decided: Tensor  # (1 or N, 2 l + 2 k) uint8
    known_solved: bool = False  # whether it is known already that every instance has converged
    stated: native.Stated | None = None  # what the native core read, for the way back

    @property
    def codes(self) -> Tensor:
        return self.counts[0]

    @property
    def solved(self) -> bool:
        return self.known_solved or not bool(self.codes.any())


@dataclass(eq=False)
class Plan:
    """Pattern, objective and solver of a kind of call; and the numbers, where they are constant and shared by all."""

    pattern: SparsityPattern
    width: int
    device: torch.device
    objective: Objective  # its kind: the numbers come with each call
    solver: Solver
    owner: Callable[[], Constraints | None]  # the set, for messages; weak, as the set keeps its plans
    constant: bool = False
    numbers: Numbers | None = None  # where they are constant
    kept: dict[Any, Any] = field(default_factory=dict)

    @property
    def constraints(self) -> Constraints:
        owner = self.owner()
        if owner is None:
            raise ReferenceError("the constraint set of a plan is gone; keep it while the plan is used.")
        return owner

    # ------------------------------------------------------------------ solving

    @torch.no_grad()
    def solve(self, numbers: Numbers, scores: Tensor, objective: Objective, start: Tensor | None = None) -> Answer:
        """Every instance of scores (N, l); ``start`` are duals of an earlier solve.

        Raises:
            InfeasibleError: constant rows contradict each other.
            ConstraintError: the back end that the solver asks for cannot take the problem.
        """
        decided = self.decided() if self.constant else None
        if self.native(objective, scores) is None:
            return self._on_arrays(numbers, scores, objective, start, decided)
        answer = self._on_core(numbers, scores, objective, start, decided)
        if not answer.solved and isinstance(self.solver, Newton):
            codes = answer.codes
            left = codes == Status.STALLED.code
            if self.solver.max_steps > STEPS_BEFORE_INTERIOR:  # else the limit is the user's, and final
                left = left | (codes == Status.STEP_LIMIT.code)
            left = left.nonzero().squeeze(-1)
            if left.numel():
                self._finish(answer, left, numbers, scores, objective)
        return answer

    def _on_core(
        self,
        numbers: Numbers,
        scores: Tensor,
        objective: Objective,
        start: Tensor | None = None,
        decided: Tensor | None = None,
    ) -> Answer:
        assert isinstance(self.solver, Newton)
        stated, layout = self.stated(numbers, objective, scores.shape[0]), self.layout()
        assert isinstance(layout, NativeLayout)
        tol, steps = self.solver.tol, self.solver.max_steps
        found = native.solve(layout, stated, scores, tol=tol, max_steps=steps, start=start, known=decided)
        return Answer(*found, stated)

    def _on_arrays(
        self, numbers: Numbers, scores: Tensor, objective: Objective, start: Tensor | None, decided: Tensor | None
    ) -> Answer:
        count = scores.shape[0]
        problem = self.problem(numbers, scores, objective, decided)
        given = None if start is None else start * problem.scale
        result = run(problem, self.solver, given)
        if decided is None:
            decided = pack(problem.presolved, count)
        x = result.x.to(scores.dtype)
        return Answer(x, problem.multipliers(result.mu), result.counts, decided)

    def _finish(self, answer: Answer, left: Tensor, numbers: Numbers, scores: Tensor, objective: Objective) -> None:
        """What Newton has not solved goes to the interior-point method."""
        assert isinstance(self.solver, Newton)
        decided = answer.decided if answer.decided.shape[0] == 1 else answer.decided[left]
        here = replace_numbers(objective, lambda t: t if t.shape[0] == 1 else t[left])
        problem = self.problem(numbers.select(left), scores[left], here, decided)
        part = finish(problem, self.solver, answer.duals[left])
        answer.known_solved = False
        steps = answer.counts[1, left]
        answer.duals[left], answer.x[left] = problem.multipliers(part.mu), part.x.to(answer.x.dtype)
        answer.counts[:, left] = part.counts
        answer.counts[1, left] += steps

    # ------------------------------------------------------------------ the native core

    def native(self, objective: Objective, scores: Tensor) -> Core | None:
        """The native core, where it takes the problem and the solver does not ask for another back end."""
        kept = self.kept
        if "core" not in kept:
            kept["core"] = self._chosen(objective, scores)
        return kept["core"]

    def _chosen(self, objective: Objective, scores: Tensor) -> Core | None:
        solver = self.solver
        if not isinstance(solver, Newton) or solver.backend not in ("auto", "kernel"):
            return None
        reason = self.not_native(objective, scores)
        if isinstance(reason, Core):
            return reason
        if solver.backend == "kernel":
            raise ConstraintError(f"backend='kernel' cannot be used here: {reason}. Fix: leave backend out.")
        return None

    def not_native(self, objective: Objective, scores: Tensor) -> Core | str:
        """The native core, or the reason why it cannot take the problem."""
        kind = type(objective)
        if kind is not Entropy and kind is not Euclidean:
            return f"the kernel knows Entropy and Euclidean, not {kind.__name__}"
        core = load()
        if isinstance(core, str):
            return f"the kernel is not available: {core}"
        if scores.device.type != "cpu":
            return f"the kernel runs on the CPU, not on {scores.device.type}"
        layout = self.layout()
        return f"the set is too large for the kernel: {layout}" if isinstance(layout, str) else core

    def layout(self) -> NativeLayout | str:
        """How the native core arranges the pattern, or why it does not; kept with the pattern."""
        cache = self.pattern.cache.setdefault(("cpu", self.width), {})
        if "native" not in cache:
            core = load()
            assert isinstance(core, Core)
            pattern = self.pattern
            cache["native"] = make_layout(pattern.row, pattern.col, pattern.senses, self.width, core)
        return cache["native"]

    def stated(self, numbers: Numbers, objective: Objective, count: int) -> Stated:
        """The statement as the core reads it; kept where nothing in it changes."""
        if not self.constant:
            return Stated(objective, numbers, count, gamma_shift=self.solver.gamma_shift)
        kept = self.kept.get("stated")
        if kept is None or kept[0] is not objective:
            kept = objective, Stated(objective, numbers, count, gamma_shift=self.solver.gamma_shift)
            self.kept["stated"] = kept
        return kept[1]

    # ------------------------------------------------------------------ the same on arrays

    def form(self, numbers: Numbers) -> StandardForm:
        """The standard form (`linsat.compile.box`), differentiable in every number; kept where they are constant."""
        if not self.constant or numbers is not self.numbers:
            return self._form(numbers)
        if "form" not in self.kept:
            with plain_tensors():  # kept, so also where a function transform runs
                self.kept["form"] = self._form(numbers)
        return self.kept["form"]

    def _form(self, numbers: Numbers) -> StandardForm:
        row, col, senses = self.pattern.on(self.device)
        cache = self.pattern.cache.setdefault((str(self.device), self.width), {})
        rows = RowMatrix(row, col, numbers.values, (self.pattern.num_rows, self.width), cache)
        ends = numbers.lower[:, col], numbers.upper[:, col]
        box = Box.of(rows, numbers.lower, numbers.upper, self.objective.finite_box, ends)
        entropic, shift = self.objective.entropic_slack, self.solver.gamma_shift
        return box.form(numbers.side, numbers.price, senses, entropic=entropic, gamma_shift=shift)

    def problem(
        self, numbers: Numbers, scores: Tensor, objective: Objective, decided: Tensor | None, *, own: bool = False
    ) -> Problem:
        """The problem on arrays, with what was decided, or what presolve decides now.

        Scores of -inf change the box: what was decided without them is decided again, unless it is each instance's own.
        """
        numbers, held = hold(numbers, scores)
        form = self.form(numbers)
        if held is not None:
            scores, decided = scores.masked_fill(held, 0.0), decided if own else None
        presolved = self.presolve(form) if decided is None else self.unpack(decided)
        _, _, senses = self.pattern.on(self.device)
        return form.problem(scores, objective, presolved, senses=senses, side=numbers.side)

    def presolve(self, form: StandardForm) -> Presolved:
        """What presolve decides for these numbers: (1, .) where they are shared, else (instances, .)."""
        with torch.no_grad():
            if self.objective.interior and self.solver.presolves:
                _, _, senses = self.pattern.on(self.device)
                return propagate(form, senses)
            return everything_free(form)

    def unpack(self, decided: Tensor) -> Presolved:
        """What was decided, from one array: free and at the upper bound of variables, active and tight of rows."""
        l, k = self.width, self.pattern.num_rows
        free, at_upper, active, tight = decided.bool().split([l, l, k, k], -1)
        _, _, senses = self.pattern.on(self.device)
        share = (tight & (senses > 0)).to(torch.float64)
        return Presolved(free, at_upper, active, tight, share, torch.zeros_like(free[:, 0]))

    # ------------------------------------------------------------------ constant numbers: decided once

    def decided(self) -> Tensor:
        """What every call with constant numbers can rely on, (1, .); worked out at the first.

        Variables that the rows force to a bound are looked for here, for objectives that never reach one: by solving
        once at scores 0, and by a linear program where that comes close to a bound. Sets for the interior-point method
        need none of it.

        Raises:
            InfeasibleError: the rows contradict each other; names a minimal conflicting set.
        """
        if "decided" not in self.kept:
            with plain_tensors(), torch.no_grad():
                self.kept["decided"] = pack(self._settled(), 1)
        return self.kept["decided"]

    def _settled(self) -> Presolved:
        assert self.numbers is not None
        form, (_, _, senses) = self.form(self.numbers), self.pattern.on(self.device)
        presolved = self.presolve(form)
        if bool(presolved.infeasible.any()):
            reject_infeasible(self.constraints)
            presolved = replace(presolved, infeasible=torch.zeros_like(presolved.infeasible))
        plain_set = not self.objective.interior or not self.solver.presolves
        if plain_set or not bool(presolved.active.any()) or has_even_interior(form, senses) or form.rows.sparse:
            return presolved
        probe = replace(self, constant=False, numbers=None, kept={}, solver=Newton(max_steps=STEPS_BEFORE_INTERIOR))
        objective = self.objective.probe(form.lower)
        scores = torch.zeros_like(form.lower[:1], memory_format=torch.contiguous_format)
        answer = probe.solve(self.numbers, scores, objective)
        problem = form.problem(scores, objective, presolved)
        if int(answer.codes[0]) == Status.CONVERGED.code and _well_inside(problem, answer):
            return presolved
        found = presolve_by_program(form, senses, presolved, 0)
        if bool(found.infeasible.any()):
            reject_infeasible(self.constraints)
            return presolved
        return found


def plan_of(constraints: Constraints, objective: Objective, solver: Solver, width: int, device: torch.device) -> Plan:
    """The plan of a call: kept with the set where its numbers are constant and shared, else with its pattern."""
    if not constraints.fixed or constraints.batch_shape:
        # Messages need the set of the call: the plan is light, and what it derives is kept with the pattern.
        return _new_plan(constraints, objective, solver, width, device)
    if torch.compiler.is_compiling():
        how = (objective.kind(), settings_of(solver), width, str(device))
        return getattr(constraints.in_graphs, _keep_in_graphs(constraints, how))
    return _kept_plan(constraints, objective, solver, width, device)


def _kept_plan(
    constraints: Constraints, objective: Objective, solver: Solver, width: int, device: torch.device
) -> Plan:
    kind = (type(objective), objective.entropic_slack, objective.finite_box, objective.interior)
    key = (kind, solver, type(solver), width, str(device))
    plan = constraints.plans.get(key)
    if plan is None:
        # What is kept must be plain tensors, also when the first call comes from inside vmap, jacrev or a trace.
        with plain_tensors():
            plan = _new_plan(constraints, objective, solver, width, device)
            plan.constant, plan.numbers = True, numbers_of(constraints, width, (), device)
        constraints.plans[key] = plan
    return plan


def _new_plan(constraints: Constraints, objective: Objective, solver: Solver, width: int, device: torch.device) -> Plan:
    return Plan(constraints.structure, width, device, objective, solver, weakref.ref(constraints))


@constant_in_graphs
def _keep_in_graphs(constraints: Constraints, how: Any) -> str:
    """The same while torch.compile traces, which may itself have made the objective."""
    kind, settings, width, device = how
    objective, solver = of_kind(kind, [1.0] * len(kind[2])), made_solver(settings)
    plan = _kept_plan(constraints, objective, solver, width, torch.device(device))
    assert plan.numbers is not None
    with plain_tensors():
        plan = replace(plan, numbers=Numbers(*map(_whole, plan.numbers)))
    return constraints.in_graphs.put(how, plan)


def _whole(tensor: Tensor) -> Tensor:
    """The tensor as all of its memory, as torch.export saves them; a bound for all variables is often one number."""
    if tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def hold(numbers: Numbers, scores: Tensor) -> tuple[Numbers, Tensor | None]:
    """The numbers in which variables with a score of -inf have their lower bound as upper one, and which these are."""
    held = torch.isneginf(scores.detach())
    if not bool(plain(held).any()):
        return numbers, None
    return numbers._replace(upper=torch.where(held, numbers.lower, numbers.upper)), held


def pack(presolved: Presolved, count: int) -> Tensor:
    """What presolve decided as one array (count, .), as the native core reads and writes it."""
    p = presolved
    parts = (p.free, p.at_upper, p.active, p.tight)
    return torch.cat([part.expand(count, -1) for part in parts], -1).to(torch.uint8)


def replace_numbers(objective: Objective, change: Callable[[Tensor], Tensor]) -> Objective:
    """The objective with every number changed."""
    numbers = {name: change(value) for name, value in objective.parameters().items()}
    return replace(objective, **numbers) if numbers else objective  # type: ignore[type-var]


def _well_inside(problem: Problem, answer: Answer) -> bool:
    p, width = problem.presolved, problem.upper - problem.lower
    share = (answer.x - problem.lower) / torch.where(width > 0, width, 1.0)
    inside = (share * (1 - share) > _WELL_INSIDE) | ~p.free
    if not problem.objective.entropic_slack:
        return bool(inside.all())
    z = problem.slack_shares(answer.duals * problem.scale)
    return bool(inside.all()) and bool(((z * (1 - z) > _WELL_INSIDE) | ~p.active | (problem.slack <= 0)).all())
