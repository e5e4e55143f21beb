"""`Plan`: a constraint set made ready for a kind of call.

    what a user states -> Numbers -> Plan -> native core, or arrays -> Answer

A plan knows the pattern, the objective's kind and the solver; numbers come with each call, unless ``constant``. Its own
arrays are numpy's: the doors (numpy, torch, JAX) bring theirs, and the core takes both. It decides nothing about
gradients nor about what becomes of failures (`linsat.failures`).

What is kept between calls is kept with what it follows from: with a pattern (`SparsityPattern.cache`), with a plan
(``kept``), with a set its plans, its calls (`linsat.call.keep`) and its constants as solvers and graphs read them. The
process keeps constants of objectives (`linsat.torch.call`) and the plans of saved graphs (`linsat.torch.rebuilt`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from linsat._array_namespace import namespace
from linsat._optional import is_tensor
from linsat._senses import GREATER
from linsat._transforms import plain_tensors
from linsat.arrays.forced import presolve_by_program
from linsat.arrays.newton import STEPS_BEFORE_INTERIOR, Newton, handed_over
from linsat.arrays.presolve import everything_free, has_even_interior, propagate
from linsat.arrays.problem import Presolved, Problem, StandardForm
from linsat.arrays.rows import RowMatrix, RowPattern
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.numbers import slots_of
from linsat.constraints.structure import Numbers as Numbers
from linsat.constraints.structure import SparsityPattern
from linsat.errors import ConstraintError
from linsat.native import batch as native
from linsat.native.batch import Answer, Array, NativeLayout, Statement, fits_dense, make_layout
from linsat.native.binding import Core, load
from linsat.objectives import Objective
from linsat.verdict.diagnosis import reject_infeasible

if TYPE_CHECKING:
    from linsat.arrays import Sinkhorn

    Solver = Newton | Sinkhorn
else:  # Sinkhorn needs torch
    Solver = Any

# A set whose every share lies this far inside (0, 1) at scores 0 has an interior: nothing is forced.
_WELL_INSIDE = 1e-5


def numbers_of(constraints: Constraints, width: int, batch_shape: Sequence[int]) -> Numbers:
    """The numbers of a set over a flattened batch: arrays, or the user's tensors where torch follows them."""
    return Numbers(*slots_of(constraints, width, tuple(batch_shape)))


@dataclass(eq=False)
class Plan:
    """Pattern, objective and solver of a kind of call; and the numbers, where they are constant and shared by all."""

    pattern: SparsityPattern
    width: int
    objective: Objective  # its kind: the numbers come with each call
    solver: Solver
    owner: Callable[[], Constraints]  # the set, for messages
    numbers: Numbers | None = None  # where they are constant
    kept: dict[Any, Any] = field(default_factory=dict)

    @property
    def constant(self) -> bool:
        return self.numbers is not None

    @property
    def rows(self) -> RowPattern:
        """The pattern of the coefficients over the variables of the call; kept with the pattern."""
        cache = self.pattern.cache
        if ("rows", self.width) not in cache:
            shape = (self.pattern.num_rows, self.width)
            cache["rows", self.width] = RowPattern(self.pattern.row, self.pattern.col, shape)
        return cache["rows", self.width]

    # ------------------------------------------------------------------ the native core

    def native(self, device: str = "cpu") -> bool:
        """Whether the native core takes calls with scores on a device.

        Raises:
            ConstraintError: the solver asks for the core, which cannot take them; the message says why.
        """
        if device not in self.kept:
            solver = self.solver
            wanted = isinstance(solver, Newton) and solver.backend in ("auto", "kernel")
            reason = self.not_native(device) if wanted else ""
            if reason and isinstance(solver, Newton) and solver.backend == "kernel":
                raise ConstraintError(f"backend='kernel' cannot be used here: {reason}. Fix: leave backend out.")
            self.kept[device] = wanted and reason is None
        return self.kept[device]

    def not_native(self, device: str) -> str | None:
        """Why the native core does not take calls with scores on a device; None where it does."""
        if self.objective.native is None:
            return f"the kernel knows linsat's own objectives, not {type(self.objective).__name__}"
        core = load()
        if isinstance(core, str):
            return f"the kernel is not available: {core}"
        if device != "cpu":
            return f"the kernel runs on the CPU, not on {device}"
        layout = self.layout()
        if isinstance(layout, str):
            return f"the set is too large for the kernel: {layout}"
        if self.objective.couples and not fits_dense(layout.rows, self.width):
            return f"{layout.rows} rows and {self.width} variables are too many for its dense factors of a full matrix"
        return None

    def layout(self) -> NativeLayout | str:
        """How the native core arranges the pattern, or why it does not; kept with the pattern."""
        cache, pattern = self.pattern.cache, self.pattern
        if ("native", self.width) not in cache:
            core = load()
            assert isinstance(core, Core)
            cache["native", self.width] = make_layout(pattern.row, pattern.col, pattern.senses, self.width, core)
        return cache["native", self.width]

    def state(self, numbers: Numbers, parameters: Sequence[Array], count: int) -> Statement:
        """The statement as the core reads it."""
        kind = self.objective.native
        assert kind is not None
        shift = self.solver.gamma_shift
        return native.state(kind, self.objective.entropic_slack, numbers, parameters, count, shift)

    def solve(self, statement: Statement, scores: Array, x: Array, start: Array | None = None) -> Answer:
        """Every instance of scores (N, l) by the native core; ``start`` are duals of an earlier solve.

        Raises:
            InfeasibleError: constant rows contradict each other.
        """
        layout, solver = self.layout(), self.solver
        assert isinstance(layout, NativeLayout)
        assert isinstance(solver, Newton)
        known = self.known()
        return native.solve(
            layout, statement, scores, x, tol=solver.tol, max_steps=solver.max_steps, start=start, known=known
        )

    def left_over(self, answer: Answer) -> np.ndarray:
        """Which instances the core has not solved, and a method for large sparse programs may."""
        assert isinstance(self.solver, Newton)
        return np.flatnonzero(handed_over(np.asarray(answer.codes), self.solver.max_steps))

    # ------------------------------------------------------------------ on arrays of any library

    def form(self, numbers: Numbers) -> StandardForm:
        """The standard form, differentiable in every number."""
        values, side, lower, upper, price = numbers
        rows, shift = RowMatrix(self.rows, values), self.solver.gamma_shift
        with np.errstate(all="ignore"):  # numbers that cannot be are for others to reject
            return StandardForm.of(rows, lower, upper, side, price, self.senses(rows), self.objective, shift)

    def problem(
        self, numbers: Numbers, scores: Array, objective: Objective, decided: Array | None, *, own: bool = False
    ) -> Problem:
        """The problem of scores (N, l), with what was decided, or what presolve decides now.

        Scores of -inf change the box: what was decided without them is decided again, unless it is each instance's own.
        """
        numbers, held = hold(numbers, scores, objective)
        form = self.kept_form(numbers) if held is None else self.form(numbers)
        if held is not None:
            scores = namespace(scores).where(held, 0.0, scores)
        if decided is None:
            presolved = self.presolve(form)
        else:
            presolved = self.unpack(decided, form)
            if held is not None and not own:
                presolved = self.presolve(form).where(held.any(-1), presolved)
        return form.problem(scores, objective, presolved, senses=self.senses(form.rows), side=numbers.side)

    def kept_form(self, numbers: Numbers) -> StandardForm:
        """The form of these numbers; kept for those that were kept in `kept`, which never change."""
        if numbers is not self.numbers and not any(numbers is kept for kept in self.kept.values()):
            return self.form(numbers)
        key = "form", id(numbers)
        if key not in self.kept:
            with plain_tensors() if is_tensor(numbers.values) else nullcontext():
                self.kept[key] = self.form(numbers)
        return self.kept[key]

    def senses(self, rows: RowMatrix) -> Any:
        """The senses of the rows as an array of the library of the coefficients."""
        self.rows.places.setdefault("senses", self.pattern.senses)
        return self.rows.on("senses", rows.values)

    def presolve(self, form: StandardForm) -> Presolved:
        """What presolve decides for these numbers: (1, .) where they are shared, else (instances, .)."""
        constant = namespace(form.rhs).constant
        form = form.with_tensors(tuple(map(constant, form.tensors())))
        if self.objective.interior and self.solver.presolves:
            with np.errstate(all="ignore"):
                return propagate(form, self.senses(form.rows))
        return everything_free(form)

    def unpack(self, decided: Array, form: StandardForm) -> Presolved:
        """What was decided, from one array: free and at the upper bound of variables, active and tight of rows."""
        l, k, xp = self.width, self.pattern.num_rows, namespace(form.rhs)
        flags = (xp.from_numpy(decided, form.rhs) if isinstance(decided, np.ndarray) else decided) != 0
        free, at_upper = flags[:, :l], flags[:, l : 2 * l]
        active, tight = flags[:, 2 * l : 2 * l + k], flags[:, 2 * l + k :]
        share = xp.cast(tight & (self.senses(form.rows) == GREATER), form.rhs)
        return Presolved(free, at_upper, active, tight, share, free[:, 0] & ~free[:, 0])

    # ------------------------------------------------------------------ constant numbers

    def known(self) -> np.ndarray | None:
        """What is decided for all instances of a call; None: each has its own, as bounds that bind in `Quadratic`."""
        return self.decided() if self.constant and not self.objective.couples else None

    def decided(self) -> np.ndarray:
        """What every call with constant numbers can rely on, (1, .), packed; worked out at the first.

        Raises:
            InfeasibleError: the rows contradict each other; names a minimal conflicting set.
        """
        if "decided" not in self.kept:
            self.objective.check_bounds(self.owner())
            with np.errstate(all="ignore"):
                self.kept["decided"] = pack(_presolved(self))
        return self.kept["decided"]


def plan_of(constraints: Constraints, objective: Objective, solver: Solver, width: int, *, given: bool = False) -> Plan:
    """The plan of a call, kept with the set; with constant numbers, unless some are ``given`` with each call."""
    constant = constraints._fixed and not constraints.batch_shape and not given
    kind = (type(objective), objective.entropic_slack, objective.finite_box, objective.interior)
    key = (kind, *objective.parameters(), solver, type(solver), width, constant)
    plan = constraints._plans.get(key)
    if plan is None:
        constraints._require_linear("this function")
        numbers = numbers_of(constraints, width, ()) if constant else None
        # Numbers that are kept here would keep alive the computation that they come from; 2 is allowed for each.
        bare = objective if objective.native is None else objective.changed(lambda _: 2.0)
        plan = Plan(constraints._structure, width, bare, solver, owner_of(constraints), numbers)
        constraints._plans[key] = plan
    return plan


def owner_of(constraints: Constraints) -> Callable[[], Constraints]:
    """The set, not kept alive by what it keeps itself."""
    weak = weakref.ref(constraints)

    def owner() -> Constraints:
        alive = weak()
        if alive is None:
            raise RuntimeError("the constraint set of a plan is gone. Fix: keep the set while the plan is used.")
        return alive

    return owner


def hold(numbers: Numbers, scores: Array, objective: Objective) -> tuple[Numbers, Array | None]:
    """The numbers in which variables with a score of -inf, or that the objective holds, have their lower bound as upper
    one, and which these are."""
    xp = namespace(scores)
    held = xp.isneginf(xp.constant(scores))
    if objective.held is not None:
        held = held | xp.constant(objective.held)
    if xp.known_false(held):
        return numbers, None
    return numbers._replace(upper=xp.where(held, numbers.lower, numbers.upper)), held


def pack(presolved: Presolved) -> np.ndarray:
    """What presolve decided as one array, as the native core reads and writes it."""
    return np.ascontiguousarray(presolved.flags().astype(np.uint8))


# ------------------------------------------------------------------ what constant numbers decide for every call


def _presolved(plan: Plan) -> Presolved:
    """What the constant numbers of a plan decide, (1, .): forced variables, rows that bind or cannot.

    Presolve decides from bounds and rows. Variables that the rows together force to a bound are looked for too, for
    objectives that never reach one: where the answer at scores 0, which the native core is asked for once, keeps away
    from every bound nothing is forced; else a linear program says what is. Sets for the interior-point method need
    none of it.

    Raises:
        InfeasibleError: the rows contradict each other; names a minimal conflicting set.
    """
    assert plan.numbers is not None
    form = plan.form(plan.numbers)
    senses = plan.senses(form.rows)
    known = plan.presolve(form)
    if bool(known.infeasible.any()):
        reject_infeasible(plan.owner())
        known = replace(known, infeasible=np.zeros_like(known.infeasible))
    plain_set = not plan.objective.interior or not plan.solver.presolves
    if plain_set or not bool(known.active.any()) or has_even_interior(form, senses) or form.rows.sparse:
        return known
    if _well_inside(plan, form, known):
        return known
    forced = presolve_by_program(form, senses, known)
    if bool(forced.infeasible.any()):
        reject_infeasible(plan.owner())
        return known
    return forced


def _well_inside(plan: Plan, form: StandardForm, known: Presolved) -> bool:
    """Whether the answer at scores 0 keeps away from every bound, so that nothing is forced to one."""
    assert plan.numbers is not None
    probe = replace(plan, numbers=None, kept={}, solver=Newton(max_steps=STEPS_BEFORE_INTERIOR))
    if not probe.native():
        return False
    scores = np.zeros((1, plan.width))
    objective = plan.objective.probe(scores)
    statement = probe.state(plan.numbers, tuple(objective.parameters().values()), 1)
    answer = probe.solve(statement, scores, np.empty_like(scores))
    if not answer.solved:
        return False
    problem = form.problem(scores, objective, known)
    width, t = problem.upper - problem.lower, answer.x - problem.lower
    if not objective.finite_box:  # only its lower bound is out of reach
        largest = np.where(known.free, t, 0.0).max(-1, keepdims=True)
        return bool(((t > _WELL_INSIDE * np.minimum(width, largest)) | ~known.free).all())
    share = t / np.where(width > 0, width, 1.0)
    inside = bool(((share * (1 - share) > _WELL_INSIDE) | ~known.free).all())
    if not objective.entropic_slack or not inside:
        return inside
    z = problem.slack_shares(answer.duals * problem.scale)
    idle = ~known.active | (problem.slack <= 0)
    return bool(((z * (1 - z) > _WELL_INSIDE) | idle).all())
