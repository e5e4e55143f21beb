"""linsat: hard linear constraints on the output of a neural network.

cons = linsat.Constraints(A=A, b=b, C=C, d=d, E=E, f=f)     rows A x <= b, C x >= d, E x = f in a box
x = linsat.project(y, cons, tau=0.1)                        scores in, constrained x out, differentiable
x = linsat.project(y, cons, objective=linsat.Euclidean())   the nearest point
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from linsat._registration import register_operators

if TYPE_CHECKING:
    from linsat import constraints, decode
    from linsat import jax as jax
    from linsat import losses as losses
    from linsat.arrays import Newton, Sinkhorn
    from linsat.constraints import Constraints, Variable, maximum, minimum, norm, subject_to
    from linsat.errors import ConstraintError, ConvergenceError, InfeasibleError, LinSATWarning
    from linsat.exact import argmax
    from linsat.interop.linsatnet import init_constraints, linsat_layer
    from linsat.layer import LinSAT
    from linsat.losses import fenchel_young_loss
    from linsat.objectives import KL, Entropy, Euclidean, Objective, Quadratic, Tsallis
    from linsat.projection import project, project_each, solve
    from linsat.solution import Solution

__version__ = "0.1.0"

# Where each public name lives; a module is imported when one of its names is first used (PEP 562).
_HOMES = {
    "linsat.interop.linsatnet": ("init_constraints", "linsat_layer"),
    "linsat.constraints": ("Constraints", "Variable", "maximum", "minimum", "norm", "subject_to"),
    "linsat.errors": ("ConstraintError", "ConvergenceError", "InfeasibleError", "LinSATWarning"),
    "linsat.exact": ("argmax",),
    "linsat.layer": ("LinSAT",),
    "linsat.losses": ("fenchel_young_loss",),
    "linsat.objectives": ("KL", "Entropy", "Euclidean", "Objective", "Quadratic", "Tsallis"),
    "linsat.projection": ("project", "project_each", "solve"),
    "linsat.solution": ("Solution",),
    "linsat.arrays": ("Newton", "Sinkhorn"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("constraints", "decode", "errors", "exact", "interop", "jax", "losses", "status")
_MOVED = {
    "LinSATError": "linsat.errors.LinSATError",
    "Status": "linsat.status.Status",
    "load": "linsat.Constraints.load",
    "multi_set_sinkhorn": "linsat.interop.linsatnet.multi_set_sinkhorn",
    "regret": "linsat.exact.regret",
    "save": "linsat.Constraints.save",
    "sinkhorn": "linsat.interop.linsatnet.sinkhorn",
}

__all__ = [
    "KL",
    "ConstraintError",
    "Constraints",
    "ConvergenceError",
    "Entropy",
    "Euclidean",
    "InfeasibleError",
    "LinSAT",
    "LinSATWarning",
    "Newton",
    "Objective",
    "Quadratic",
    "Sinkhorn",
    "Solution",
    "Tsallis",
    "Variable",
    "argmax",
    "constraints",
    "decode",
    "fenchel_young_loss",
    "init_constraints",
    "jax",
    "linsat_layer",
    "maximum",
    "minimum",
    "norm",
    "project",
    "project_each",
    "solve",
    "subject_to",
]


if not TYPE_CHECKING:  # type checkers see the imports above, and no other name

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"linsat.{name}")
        if name not in _HOME_OF:
            moved = f". Fix: {_MOVED[name]}" if name in _MOVED else ""
            raise AttributeError(f"module 'linsat' has no attribute {name!r}{moved}")
        try:
            value = getattr(importlib.import_module(_HOME_OF[name]), name)
        except ImportError as error:
            if error.name != "torch":
                raise
            raise ImportError(f'linsat.{name} needs torch. Fix: pip install "linsat[torch]"', name="torch") from None
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


register_operators()
