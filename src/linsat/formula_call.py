"""A call over a set with maxima in its rows: the linear rows that it solves, and what their answer means for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from linsat._array_namespace import to_numpy
from linsat._optional import is_tensor
from linsat._transforms import tracing, transforming
from linsat.arrays.newton import Newton
from linsat.constraints.arrays import as_array, namespace, positions_on
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.plain_rows import PlainRows, Selection, stated_numbers
from linsat.errors import ConstraintError
from linsat.failures import check_lower, reject_instance, reject_scores, report
from linsat.formulas import Chosen, choose, flat_numbers
from linsat.plan import Numbers
from linsat.request import Request, joint_batch, own_instance
from linsat.solution import Solution
from linsat.status import Status
from linsat.verdict.diagnosis import reject_infeasible

Array = np.ndarray


@dataclass(frozen=True)
class Prepared:
    """A call of a door: the linear set that it solves, and what its answer means for the set itself."""

    constraints: Constraints  # as the user has it
    plain: Constraints  # linear rows, with the numbers of the call
    rows: PlainRows
    start: Any  # multipliers to begin with
    chosen: Chosen | None = None  # None: no choice was to be made
    stated: Any = None
    selection: Selection | None = None

    def solution(self, solution: Solution, codes: Array, failed: Array | None) -> Solution:
        """The answer of the linear set as that of the set itself, flat; x is NaN where ``failed`` (N,) says so."""
        assert self.chosen is not None
        assert self.selection is not None
        terms = self.constraints._terms
        assert terms is not None
        batch = solution.codes.shape
        x = self.rows.put(terms, self.stated, self.selection, solution.x)
        if failed is not None:
            x = namespace(x).where(positions_on(x, failed.reshape(*batch, 1)), math.nan, x)
        own = positions_on(solution.codes, codes.reshape(batch))
        steps = solution.steps + positions_on(solution.steps, self.chosen.counts[1].reshape(batch))
        duals = self.rows.duals(solution.duals)
        return Solution(x, steps, duals, own, solution.solver_codes, self.constraints)

    def report(self, codes: Array, scores: Array, on_failure: str, batch: tuple[int, ...]) -> Array | None:
        """What becomes of instances (N,) of scores (N, l) that were not solved: see `linsat.failures.report`."""
        if not codes.any():
            return None
        constraints, count = self.constraints, scores.shape[-1]
        bounds = (np.asarray(as_array(bound), dtype=np.float64) for bound in constraints._bounds().values())
        lower, upper = (np.broadcast_to(bound, (*batch, count)).reshape(-1, count) for bound in bounds)
        held = np.isneginf(scores)
        check_lower(held & np.isneginf(lower), constraints)
        infeasible = codes == Status.INFEASIBLE.code
        if not constraints.batch_shape and (infeasible & ~held.any(-1)).any():
            reject_infeasible(constraints)
        if on_failure == "raise" and (codes == Status.NOT_FINITE.code).any():
            constraints._check_numbers()
            empty = np.zeros((1, 0))
            first = int((codes == Status.NOT_FINITE.code).argmax())
            reject_scores(scores, Numbers(empty, empty, lower, upper, empty), constraints, first)

        def reject(first: int) -> None:
            own = own_instance(first, batch, constraints.batch_shape)
            reject_instance(constraints, own, first, held[first], lower[first], upper[first])

        return report(codes, on_failure, reject)


def prepare(request: Request, scores: Array) -> Prepared:
    """The linear set of a call with scores (batch..., l), arrays of the host; numbers keep their gradients.

    Raises:
        ConstraintError: malformed arguments.
    """
    constraints, _, objective, _, start = request
    request.check()
    solver = request.solver
    if not isinstance(solver, Newton):
        raise ConstraintError("formulas with abs, maximum or norms are solved by linsat.Newton. Fix: leave solver out.")
    rows, terms = PlainRows.of(constraints, objective.entropic_slack), constraints._terms
    assert terms is not None
    if not len(rows.joint):
        return Prepared(constraints, _without_choice(constraints, rows), rows, start)
    batch = joint_batch(scores.shape[:-1], constraints.batch_shape)
    width = scores.shape[-1]
    objective.check_bounds(constraints)
    count = math.prod(batch)
    flat = np.broadcast_to(scores, (*batch, width)).reshape(count, width)
    stated = stated_numbers(constraints)
    spread = objective.changed(lambda n: to_numpy(n)).spread(batch, width)
    begin = None if start is None else np.asarray(to_numpy(start), dtype=np.float64).reshape(count, len(constraints))
    chosen = choose(constraints, flat_numbers(stated, batch), flat, spread, solver, begin)
    selection = rows.selection(terms, chosen.choice, width, batch)
    plain = rows.numbers(terms, stated, selection)
    template = rows.template(constraints)
    made = template._with_numbers(**rows.given(plain))
    if constraints._soft_mask().any():
        made = made._with_full_price(plain.price)
    return Prepared(constraints, made, rows, chosen.duals.reshape(*batch, -1), chosen, stated, selection)


def _without_choice(constraints: Constraints, rows: PlainRows) -> Constraints:
    """The linear rows of a set whose rows have one maximum at most; kept where its numbers are constants."""
    key = "plain rows", rows.by_bounds
    if key in constraints._plans:
        return constraints._plans[key]
    terms = constraints._terms
    assert terms is not None
    plain = rows.numbers(terms, stated_numbers(constraints), None)
    made = rows.template(constraints)._with_numbers(**rows.given(plain))
    if constraints._soft_mask().any():
        made = made._with_full_price(plain.price)
    if constraints._fixed:
        constraints._plans[key] = made
    return made


def reject_graphs(y: Any) -> None:
    """Which pieces count depends on numbers, which a graph or a function transform of torch does not have."""
    parts = y.values() if isinstance(y, Mapping) else (y,)
    if any(is_tensor(part) and (tracing(part) or transforming(part)) for part in parts) or tracing():
        raise ConstraintError(
            "formulas with abs, maximum or norms look at numbers to know which of their pieces count, and an exported "
            "graph or a function transform (torch.export, vmap, jacrev) has none. Fix: call it outside of these; "
            "linsat.project takes whole batches itself."
        )
