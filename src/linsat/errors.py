"""What linsat raises and warns with. Every message names what was received, what was expected and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any


class LinSATError(Exception):
    """Base of every error linsat raises on purpose."""


class ConstraintError(LinSATError, ValueError):
    """An argument is malformed: wrong shape, dtype, value or combination of arguments."""


class InfeasibleError(LinSATError, ValueError):
    """No point of the box satisfies the rows.

    Attributes:
        rows: names of rows that cannot hold together (with the bounds). Minimal where ``minimal`` is true:
            drop any one of them and the rest can hold.
        indices: the same rows as positions in the constraint set (rows of A first, then C, then E). Rows of a file that
            became bounds have no position; their names come last in ``rows``.
        minimal: whether minimality was established (each smaller set has a point that satisfies it).
        certificate: one multiplier per row of ``indices``: at least zero for ``<=``, at most zero for ``>=``, any sign
            for ``==``. Weighted by them the rows say ``v x <= c``, while ``v x`` exceeds c everywhere in the box: a
            proof, checked in exact arithmetic. Where a bound is infinite, the entry of v has the sign that needs the
            other bound, or is exactly zero. Floats where floats prove it, else `fractions.Fraction`. Empty where no
            proof was found.
        bounds: the bounds that the conflict needs and that were not given as bounds but come from a ``box`` or from a
            row with one coefficient, in words. Minimal together with the rows.
    """

    def __init__(
        self,
        message: str,
        *,
        rows: Sequence[str] = (),
        indices: Sequence[int] = (),
        minimal: bool = False,
        certificate: Sequence[float | Fraction] = (),
        bounds: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.rows = tuple(rows)
        self.indices = tuple(indices)
        self.minimal = minimal
        self.certificate = tuple(certificate)
        self.bounds = tuple(bounds)

    def __reduce__(self) -> tuple:
        # Exceptions cross process boundaries (DataLoader workers); keyword attributes need help to survive.
        return _rebuild_infeasible, (str(self), dict(self.__dict__))


def _rebuild_infeasible(message: str, attributes: dict[str, Any]) -> InfeasibleError:
    return InfeasibleError(message, **attributes)


class ConvergenceError(LinSATError, RuntimeError):
    """The solver stopped before the rows held to tolerance (with ``on_failure="raise"``, the default of `project`)."""


class LinSATWarning(UserWarning):
    """The solver stopped before the rows held to tolerance for some instances (``on_failure="warn"``)."""
