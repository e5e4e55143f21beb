"""What `linsat.solve` returns, and what of it is worked out when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from linsat._array_namespace import Tensor, namespace, to_numpy
from linsat._optional import is_tensor
from linsat.arrays.result import SOLVERS
from linsat.constraints.arrays import to_tensor
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.structure import Numbers
from linsat.errors import ConstraintError
from linsat.objectives import Objective
from linsat.status import Status

_HOLDS = 1e-8  # a soft row that is violated by less, relative to its size, is held
_SHOWN = 6  # broken rows that the text lists

# What scores may be, and with them x: an array, or one for each variable by name.
if TYPE_CHECKING:
    import torch

    Scores = TypeVar("Scores", torch.Tensor, np.ndarray, dict[str, torch.Tensor], dict[str, np.ndarray])
else:
    Scores = TypeVar("Scores")


@dataclass(frozen=True)
class Solution(Generic[Scores]):
    """A batch of projections; every field has the batch dimensions of the scores. numpy scores give numpy fields.

    Attributes:
        x: the projected scores, in the shape (or dict of shapes) and dtype of the scores.
        steps: steps or Sinkhorn sweeps taken.
        duals: (batch..., rows) multipliers of the rows as written: x is what the objective makes of ``y + A' duals``,
            for `Entropy` ``lower + width * sigmoid(width * (y + A' duals) / tau)``, for `Euclidean`
            ``clip(y + A' duals, lower, upper)``. At most zero for ``<=`` rows and at least zero for ``>=`` rows, zero
            where a row does not bind, the price in size where a soft row is broken (a row that every feasible point
            holds with equality is an equality here, of any sign; so are all rows with the paper's entropic slack).
            Differentiable, and a warm start for a later solve.
        codes: how each instance ended as positions in `Status`; see ``status``.
        solver_codes: who solved each instance as positions in `linsat.arrays.result.SOLVERS`; see ``solved_by``.
    """

    x: Scores
    steps: Any
    duals: Any
    codes: Any
    solver_codes: Any
    constraints: Constraints
    of_bounds: Callable[[], Any] | None = field(default=None, repr=False)  # works out `bound_duals`

    @property
    def violation(self) -> Any:
        """The worst violation of any hard row or bound at ``x``, of the batch shape; see `Constraints.violation`.

        On ``x`` as it is returned, in its dtype; worked out when first asked for. A broken soft row is none.
        """
        return self._once("_violation", lambda: self.constraints.violation(self.x))

    @property
    def bound_duals(self) -> Any:
        """(batch..., variables) multipliers of the bounds: of the lower one less that of the upper one.

        The slope of Omega at x is ``linear(y) + A' duals + bound_duals``, for `Quadratic` P x: at least zero where x is
        at its lower bound, at most zero at its upper one, zero between them, where a score of -inf holds a variable,
        and at bounds to which an objective only tends (`Entropy`; the lower one of `KL`). Differentiable; in the flat
        order of the variables; worked out when first asked for.
        """

        def work_out() -> Any:
            if self.of_bounds is None:
                raise ConstraintError(
                    "bound_duals are not worked out for rows with abs, maximum, minimum or norms, whose pieces share "
                    "them. "
                    "Fix: solve constraints.lifted(), which has plain rows."
                )
            return self.of_bounds()

        return self._once("_bound_duals", work_out)

    @property
    def adjusted(self) -> Any:
        """By how much, relatively, a right-hand side was changed at most before solving, of the batch shape; mostly 0.

        Sides given in less than float64 whose equalities contradict each other by no more than the rounding of that
        dtype are replaced by the nearest consistent ones, which is what `x`, `violation` and `duals` are about.
        Sides given in float64 are never changed.
        """
        batch, amount = self.codes.shape, self.constraints._adjustment()
        if is_tensor(self.codes):
            return to_tensor(amount).detach().to(self.codes.device).expand(batch)
        return np.broadcast_to(to_numpy(amount), batch)

    @property
    def broken(self) -> Any:
        """By how much each soft row is broken at ``x``, (batch..., rows) in the units of the row.

        Zero for hard rows, and where a soft row holds: to 1e-8, or to the rounding of x, relative to its size there.
        Differentiable; worked out when first asked for.
        """
        x = next(iter(self.x.values())) if isinstance(self.x, Mapping) else self.x
        eps = namespace(x).eps(x)
        return self._once("_broken", lambda: self.constraints._soft_violation(self.x, max(_HOLDS, 4 * eps)))

    def __getstate__(self) -> dict[str, Any]:
        """With the multipliers of the bounds worked out: what works them out is not copied."""
        with suppress(ConstraintError):
            _ = self.bound_duals
        return {**self.__dict__, "of_bounds": None}

    def _once(self, name: str, work_out: Callable[[], Any]) -> Any:
        """What is worked out when first asked for; `functools.cached_property` has a lock, which no graph can enter."""
        if name not in self.__dict__:
            object.__setattr__(self, name, work_out())
        return self.__dict__[name]

    def in_numpy(self) -> Solution:
        """The same with every field as an array of numpy, without gradients."""
        x: Any = self.x
        x = {name: to_numpy(part) for name, part in x.items()} if isinstance(x, Mapping) else to_numpy(x)
        steps, duals, codes, solvers = map(to_numpy, (self.steps, self.duals, self.codes, self.solver_codes))
        return Solution(x, steps, duals, codes, solvers, self.constraints, lambda: to_numpy(self.bound_duals))

    @property
    def converged(self) -> Any:
        """Whether each instance's hard rows hold, and x is optimal, to tolerance."""
        return self.codes == Status.CONVERGED.code

    @property
    def solved_by(self) -> np.ndarray:
        """Who solved each instance: ``"newton"``, ``"interior_point"`` or ``"sinkhorn"``, of the batch shape."""
        return np.array(SOLVERS, dtype=object)[to_numpy(self.solver_codes)]

    @property
    def status(self) -> np.ndarray:
        """`Status` of each instance as an object array of the batch shape (a scalar array without batch)."""
        codes = to_numpy(self.codes)
        statuses = np.empty(codes.shape, dtype=object)
        for index, code in np.ndenumerate(codes):
            statuses[index] = Status.of(int(code))
        return statuses

    def __repr__(self) -> str:
        status = self.status.ravel().tolist()
        counts = ", ".join(f"{status.count(s)} {s}" for s in Status if s in status) or "empty batch"
        named = self.x.items() if isinstance(self.x, Mapping) else [("x", self.x)]
        shape = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named)
        worst = f"{float(self.violation.max()):.1e}" if status else "none"
        steps = int(self.steps.max()) if status else 0
        text = f"Solution({shape}: {counts}; worst violation {worst}; at most {steps} steps)"
        return "\n".join([text, *self._broken_lines()]) if status else text

    def _broken_lines(self) -> list[str]:
        """The soft rows that are broken, worst first, one a line."""
        if not self.constraints._soft_mask().any():
            return []
        broken = to_numpy(self.broken)
        amounts = np.nan_to_num(broken.reshape(-1, broken.shape[-1]))  # NaN: an instance without an answer
        instances, worst = (amounts > 0).sum(0), amounts.max(0)
        order = [int(i) for i in np.argsort(-worst, kind="stable") if instances[i]]
        if not order:
            return ["  every soft row holds"]
        names, many = self.constraints.names, len(amounts) > 1
        lines: list[str] = []
        for i in order[:_SHOWN]:
            where = f" at most, in {instances[i]} of {len(amounts)} instances" if many else ""
            lines.append(f"  {names[i]} is broken by {worst[i]:.3g}{where}")
        return lines if len(order) <= _SHOWN else [*lines, f"  and {len(order) - _SHOWN} more soft rows"]


def bound_duals(
    objective: Objective, numbers: Numbers, places: tuple[Any, Any], scores: Tensor, x: Tensor, duals: Tensor
) -> Tensor:
    r"""The multipliers of the bounds, (N, l), on arrays of any library; see `Solution.bound_duals`.

        bound_duals = Omega'(x) - linear(y) - A' duals        where x is at a bound, 0 elsewhere

    0 too where a score of -inf holds a variable, and where Omega has no finite slope.

    Args:
        objective: its numbers spread over the batch.
        places: row and column of each coefficient.
        scores, x: (N, l); duals: (N, k).
    """
    xp, (row, col) = namespace(duals), places
    lower, upper = (xp.broadcast_to(end, x.shape) for end in (numbers.lower, numbers.upper))
    held = xp.isneginf(xp.constant(scores))
    y = xp.cast(xp.where(held, 0.0, scores), duals)
    at = ((x == xp.cast(lower, x)) | (x == xp.cast(upper, x))) & ~held
    at_x = xp.cast(x, duals)
    pull = xp.index_add(xp.zeros(x.shape, duals), col, numbers.values * duals[:, row])
    slope = objective.cost_slope(at_x, xp.where(xp.isfinite(lower), lower, 0.0))
    at = at & xp.isfinite(xp.constant(slope))
    return xp.where(at, xp.where(at, slope, 0.0) - objective.linear(y) - pull, 0.0)
