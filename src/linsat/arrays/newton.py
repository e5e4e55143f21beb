r"""Projected, regularised Newton on the dual: the default solver, in words, and its constants.

Per instance, with the letters of `linsat.arrays.problem`:

    e = max |mu - clip(mu - r, dual bounds)|                                   done when e <= tol (and T = tau), the
                                                                               same relative to max(1, |a| |x|), and
                                                                               the gap <mu, r> is small
    held: within min(e, HELD) of a bound with r pointing out                   these duals follow -r and stay there
    (H + delta I) p = -(r + drift) on the others,   delta = damping min(e, 1) / T
    mu <- clip(mu + alpha p, dual bounds), alpha = 1, SHORTEN, SHORTEN^2, ...  until theta falls, or has not risen again
    damping / 4 after a full step, * 4 otherwise

Objectives with a temperature begin hot (START_TEMPERATURE of the largest score) with SWEEPS of Sinkhorn, and cool by
COOLING whenever e <= LOOSE_RESIDUAL, along the tangent of the path mu(T) (the drift). A step is at most a few
temperatures times a stride that doubles while whole steps succeed. Theta is convex, so a step at whose end the slope
still falls has lowered it, also where rounding hides the fall. Whatever is not solved so goes to
`linsat.arrays.interior.method`.

Every back end takes these constants from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from linsat._array_namespace import namespace
from linsat.errors import ConstraintError
from linsat.status import Status

# Found on random systems (positive, signed, degenerate) from tau = 1 to 0.001.
LOOSE_RESIDUAL = 0.3  # intermediate temperatures are only solved to this
COOLING = 0.5  # one temperature to the next
START_TEMPERATURE = 0.05  # of the largest |score|
# Regularisation of the Hessian, times residual / temperature: least, first and largest. The least is almost nothing,
# so that directions of hardly any curvature (nearly parallel rows) are still followed.
LEAST_DAMPING, FIRST_DAMPING, LARGEST_DAMPING = 1e-9, 1e-2, 1.0
FIRST_RIDGE, LARGEST_RIDGE = 1e-12, 1e-2  # relative to the diagonal of H
REFINED_RIDGE = 1e-11  # of a solve whose refinements undo it
BACKTRACKS = 12
SHORTEN = 0.3
DECREASE = 1e-4  # share of the predicted fall that counts as progress
ROUNDING = 1e-14  # of theta, relative to the sum of its terms
HELD = 1e-6  # a dual this close to its bound counts as at it
LARGEST_STRIDE = 1e6
GAP = 10.0  # duality gap allowed, in units of tol (1 + |<y, x>|)
SUM_ROUNDING = 2.0  # of a row, in units of the precision of its terms
SWEEPS = 3  # of Sinkhorn before the first step
SETTLING, SETTLED = 40, 1e-10  # steps for one row by itself, where a start has no dual for it, and its residual then
FAR = 12.0  # temperatures: duals from which the first step is longer are not used, where a cold start begins hotter
MOST_GROUPS = 4  # a sweep evaluates everything once per group of disjoint rows; beyond this it does not pay
FINE = 1e-4  # of tol: an error that the last step, taken when e <= tol, need not make smaller
CERTIFICATE_EVERY = 8  # passes between two looks for a proof of infeasibility
# The interior-point method takes over after this many steps: it needs 10 to 40, of ten times the cost, on anything.
STEPS_BEFORE_INTERIOR = 60


def handed_over(codes: Any, max_steps: int) -> Any:
    """Of instances that Newton's method has left with these codes (N,), those that the interior-point method takes."""
    left = codes == Status.STALLED.code
    if max_steps > STEPS_BEFORE_INTERIOR:  # else the limit is the user's, and final
        left = left | (codes == Status.STEP_LIMIT.code)
    return left


@dataclass(frozen=True)
class Precision:
    """The constants that depend on how the numbers are rounded."""

    rounding: float  # of theta, relative to the sum of its terms
    first_ridge: float  # of a step, relative to the diagonal of H
    refined_ridge: float  # of a solve that is refined
    residual: float  # of a row, relative to the sum of its terms: an error below this is none


DOUBLE = Precision(ROUNDING, FIRST_RIDGE, REFINED_RIDGE, residual=0.0)
# Multiples of its rounding, 1.2e-7. A larger ridge than in double precision costs steps, not accuracy.
SINGLE = Precision(rounding=5e-6, first_ridge=2e-6, refined_ridge=5e-6, residual=5e-7)


def precision_of(x: Any) -> Precision:
    """That of arrays like x."""
    return DOUBLE if namespace(x).eps(x) < 1e-12 else SINGLE


@dataclass(frozen=True)
class Newton:
    """Solve by Newton's method on the dual; what that does not solve, by an interior-point method.

    Args:
        tol: largest violation of any row at which an instance has converged, relative to the row's mean coefficient
            while solving and to ``max(1, sum_j |a_ij x_j|)`` in the end; the duality gap is held to the same figure.
            One more step is taken then, so the rows usually hold far better.
        max_steps: hard limit of Newton steps per instance, over all temperatures.
        backend: ``"auto"`` runs the native core on the CPU where it can, and array operations (of torch, or of JAX)
            everywhere else; ``"arrays"`` always the latter; ``"kernel"`` (the core) and ``"triton"`` (on a GPU) raise
            where that one cannot be used; ``"interior_point"`` goes to that method at once. ``"triton"`` is checked at
            its first use on a device, and turned off there with a warning where it differs from array operations.
        seconds: time limit of the interior-point method on large sparse sets, for all instances of a call together,
            kept inside its steps; what is not solved by then has the status ``time_limit``. None: no limit.

    Cost per step and instance: O(pairs of rows sharing a variable) to assemble the Hessian and O(rows^3 / 3) to factor
    it; typically 5 to 30 steps. Memory O(variables + rows^2) per instance, whatever the number of steps. Beyond 2,000
    rows conjugate gradients take the place of the factor: O(non-zeros) per iteration and in memory; there jacrev and
    vmap are rejected. The interior-point method works instance by instance on the CPU with a sparse factorisation: 10
    to 100 ms for a thousand rows. Gradients are implicit and exact. Fails (status, never silently) for infeasible
    instances, or when rounding hides the last digits of very badly scaled rows.
    """

    tol: float = 1e-9
    max_steps: int = 200
    backend: Literal["auto", "arrays", "kernel", "triton", "interior_point"] = "auto"
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.tol < 1:
            raise ConstraintError(f"tol is {self.tol}; expected a number between 0 and 1. Fix: tol=1e-9.")
        if not isinstance(self.max_steps, int) or self.max_steps < 1:
            raise ConstraintError(f"max_steps is {self.max_steps}; expected a positive integer. Fix: max_steps=200.")
        if self.seconds is not None and not self.seconds > 0:
            raise ConstraintError(
                f"seconds is {self.seconds}; expected a positive number, or None. Fix: for example seconds=10."
            )
        if self.backend not in ("auto", "arrays", "kernel", "triton", "interior_point"):
            raise ConstraintError(
                f"backend is {self.backend!r}; expected 'auto', 'arrays', 'kernel', 'triton' or 'interior_point'. "
                f"Fix: leave backend out; what runs on a GPU is decided by where the scores are."
            )

    @property
    def holds(self) -> float:
        """The violation of a row, as `Solution.violation` states it, up to which an instance may have converged."""
        return self.tol

    @property
    def gamma_shift(self) -> float:
        """Added to d in the multiplier of covering rows (`linsat.arrays.problem.StandardForm.of`)."""
        return 0.0

    @property
    def presolves(self) -> bool:
        """Whether forced variables and rows that cannot bind are taken out first."""
        return True
