"""What constant numbers decide for every call, worked out at the first: forced variables, rows that bind or cannot.

Presolve decides from bounds and rows. Variables that the rows together force to a bound are looked for too, for
objectives that never reach one: where the answer at scores 0, which the native core is asked for once, keeps away from
every bound nothing is forced; else a linear program says what is. Sets for the interior-point method need none of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from linsat.arrays.forced import presolve_by_program
from linsat.arrays.newton import STEPS_BEFORE_INTERIOR, Newton
from linsat.arrays.presolve import has_even_interior
from linsat.arrays.problem import Presolved, StandardForm
from linsat.verdict.diagnosis import reject_infeasible

if TYPE_CHECKING:
    from linsat.plan import Plan

# A set whose every share lies this far inside (0, 1) at scores 0 has an interior: nothing is forced.
_WELL_INSIDE = 1e-5


def presolved(plan: Plan) -> Presolved:
    """What the numbers of a plan decide, (1, .).

    Raises:
        InfeasibleError: the rows contradict each other; names a minimal conflicting set.
    """
    with np.errstate(all="ignore"):
        return _presolved(plan)


def _presolved(plan: Plan) -> Presolved:
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
