"""Drop-in for the published `LinSATNet` package: its two functions with their arguments, and the bare iterations.

``from linsat import linsat_layer, init_constraints`` in place of ``from LinSATNet import ...`` is all it takes. The
default ``mode="newton"`` holds every feasible set of rows exactly; ``mode="v1"`` and ``mode="v2"`` run the
published iterations with the published constants.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from linsat._recent import Recent, content
from linsat._transforms import transforming
from linsat.arrays import Newton, Sinkhorn
from linsat.constraints import Constraints
from linsat.errors import ConstraintError, LinSATWarning
from linsat.marginals import multi_set_sinkhorn, sinkhorn
from linsat.plan import Solver
from linsat.projection import solve

__all__ = ["init_constraints", "linsat_layer", "multi_set_sinkhorn", "sinkhorn"]

_MODES = ("newton", "v1", "v2")
_KEY = "linsat_constraints"
_ARGUMENTS = ("A", "b", "C", "d", "E", "f")


_known: Recent[dict[str, Any]] = Recent(16)  # sets of earlier calls, by the content of their matrices


def _known_or_new(num_var: int, parts: tuple[Any, ...], grouped: bool) -> dict[str, Any]:
    def make() -> dict[str, Any]:
        return init_constraints(num_var, **dict(zip(_ARGUMENTS, parts, strict=True)), grouped=grouped)

    if any(part is not None and not _plain(part) for part in parts):
        return make()
    return _known.get_or_make((num_var, grouped, *(part if part is None else content(part) for part in parts)), make)


def _plain(part: Any) -> bool:
    """Whether a matrix or right-hand side is a dense tensor that no one will change."""
    if not isinstance(part, torch.Tensor) or part.requires_grad or part.layout != torch.strided:
        return False
    return not transforming(part)


class _DropInNewton(Newton):
    """Newton with the published multiplier of covering rows, so that its answer is the published fixed point."""

    @property
    def gamma_shift(self) -> float:
        return Sinkhorn(stop="published").gamma_shift


def linsat_layer(
    x: torch.Tensor,
    A: Any = None,
    b: Any = None,
    C: Any = None,
    d: Any = None,
    E: Any = None,
    f: Any = None,
    constr_dict: dict[str, Any] | None = None,
    tau: float = 0.05,
    max_iter: int = 100,
    dummy_val: float = 0,
    mode: str = "newton",
    grouped: bool = True,
    no_warning: bool = False,
) -> torch.Tensor:
    """Project x onto ``A x <= b``, ``C x >= d``, ``E x = f``, ``0 <= x <= 1``; the published signature.

    Args:
        x: scores (variables,) or (batch, variables).
        A, b, C, d, E, f: the rows; left out when ``constr_dict`` is given.
        constr_dict: what `init_constraints` returned, to compile the rows once.
        tau: temperature.
        max_iter: sweeps of modes v1 and v2; Newton stops by itself and does not need it.
        dummy_val: subtracted from the scores (the published dummy variables).
        mode: ``"newton"`` (default), or the published iterations ``"v2"`` and ``"v1"`` (the latter always ungrouped).
        grouped: step rows with disjoint supports together (v2).
        no_warning: say nothing when the rows do not hold in the end.
    """
    if mode not in _MODES:
        raise ConstraintError(f"mode is {mode!r}; expected one of {', '.join(map(repr, _MODES))}.")
    if not isinstance(x, torch.Tensor) or x.dim() not in (1, 2):
        shape = tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
        raise ConstraintError(f"x is {shape}; expected a tensor (variables,) or (batch, variables).")
    if constr_dict is None:
        constr_dict = _known_or_new(x.shape[-1], (A, b, C, d, E, f), grouped)
    if not isinstance(constr_dict, dict) or _KEY not in constr_dict:
        raise ConstraintError(
            f"constr_dict is a {type(constr_dict).__name__} that init_constraints did not make. "
            f"Fix: constr_dict = linsat.init_constraints(num_var, A, b, C, d, E, f)."
        )
    constraints: Constraints = constr_dict[_KEY]
    if mode == "newton":
        solver: Solver = _DropInNewton()
    else:
        solver = Sinkhorn(
            max_sweeps=max_iter,
            variant="v1" if mode == "v1" else "v2",
            grouped=grouped and constr_dict["grouped"] and mode == "v2",
            gradient="unrolled",
            stop="published",
        )
    solution = solve(x - dummy_val, constraints, tau=tau, solver=solver, on_failure="ignore")
    if not no_warning and x.numel() and float(solution.violation.max()) > 0.1:
        warnings.warn(
            f"The rows are violated by up to {float(solution.violation.max()):.3g} after {max_iter} iterations. "
            f"Raise max_iter, or use mode='newton'.",
            LinSATWarning,
            stacklevel=2,
        )
    return solution.x


def init_constraints(
    num_var: int,
    A: Any = None,
    b: Any = None,
    C: Any = None,
    d: Any = None,
    E: Any = None,
    f: Any = None,
    grouped: bool = True,
) -> dict[str, Any]:
    """Read the rows once, for several calls of `linsat_layer`; the published signature."""
    if A is None and C is None and E is None:
        raise ConstraintError("None of A, C and E was given. Fix: pass at least one matrix with its right-hand side.")
    constraints = Constraints(A=A, b=b, C=C, d=d, E=E, f=f)
    if constraints.num_variables != num_var:
        raise ConstraintError(
            f"num_var is {num_var} but the matrices have {constraints.num_variables} columns. Fix: make them agree."
        )
    return {_KEY: constraints, "grouped": grouped}
