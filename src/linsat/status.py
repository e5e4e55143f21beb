"""How a projection ended, per instance, with words that say what to change."""

from __future__ import annotations

from enum import Enum


class Status(str, Enum):
    """How one instance ended. A string enum: ``status == "converged"`` works; ``status.advice`` says what to change."""

    CONVERGED = "converged"
    STEP_LIMIT = "step_limit"
    STALLED = "stalled"
    INFEASIBLE = "infeasible"
    NOT_FINITE = "not_finite"
    TIME_LIMIT = "time_limit"
    UNBOUNDED = "unbounded"

    @property
    def advice(self) -> str:
        return _ADVICE[self]

    @property
    def code(self) -> int:
        """Position in the list of statuses, for tensors of codes."""
        return _ORDER.index(self)

    @staticmethod
    def of(code: int) -> Status:
        return _ORDER[code]

    def __str__(self) -> str:
        return str(self.value)


_ORDER = tuple(Status)  # the kernel's too
_ADVICE = {
    Status.CONVERGED: "The rows hold to tolerance.",
    Status.STEP_LIMIT: (
        "The step limit was reached before the rows held to tolerance. "
        "Raise max_steps (Newton) or max_sweeps (Sinkhorn). Or make the problem easier: box width * largest score / "
        "tau says how hard it is. Narrow the box, raise tau, shrink the spread of the scores, write rows and variables "
        "in units of a similar scale."
    ),
    Status.STALLED: (
        "Rounding stopped progress before the rows held to tolerance and x was known to be optimal. "
        "Raise tau, narrow the box, loosen tol, or rescale rows and variables whose coefficients span many orders of "
        "magnitude."
    ),
    Status.INFEASIBLE: (
        "No point of the box satisfies this instance's rows. "
        "Change its right-hand sides or bounds, or let rows be broken at a price: constraints.soften(rows, price=10.0)."
    ),
    Status.NOT_FINITE: (
        "Its scores (in linsat.jax: any of its numbers) hold NaN or +inf, or are beyond the range of float64 times the "
        "width of the box, or x is beyond the range of their dtype; x is NaN. "
        "Find out where they come from; -inf is the score of a variable that stays at its lower bound."
    ),
    Status.TIME_LIMIT: (
        "The time limit was over before the rows held to tolerance. "
        "Raise seconds (Newton), loosen tol, or solve fewer instances in one call."
    ),
    Status.UNBOUNDED: (
        "The objective grows without end along a direction that rows and bounds leave open. "
        "Bound the variables, or add curvature: a positive definite P."
    ),
}
