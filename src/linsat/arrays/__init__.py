"""The mathematics on arrays of torch, JAX or numpy; the solvers that users name: Newton and the paper's Sinkhorn."""

import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from linsat._transforms import constant_field
from linsat.arrays.newton import Newton

if TYPE_CHECKING:
    from linsat.arrays.sinkhorn import Sinkhorn

__all__ = ["Newton", "Sinkhorn", "is_solver", "made_solver", "settings_of"]


def __getattr__(name: str) -> Any:
    """Sinkhorn when first used: it needs torch, which users of JAX may not have."""
    if name != "Sinkhorn":
        raise AttributeError(f"module 'linsat.arrays' has no attribute {name!r}")
    from linsat.arrays.sinkhorn import Sinkhorn

    return Sinkhorn


def is_solver(value: Any) -> bool:
    """Whether a value is one of the solvers; without importing torch, as nobody has a `Sinkhorn` then."""
    sinkhorn = sys.modules.get("linsat.arrays.sinkhorn")
    return isinstance(value, Newton) or (sinkhorn is not None and isinstance(value, sinkhorn.Sinkhorn))


def settings_of(solver: Any) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """A solver as plain values, which a graph can keep: the name of its class, and its fields."""
    kept = tuple((f.name, constant_field(getattr(solver, f.name))) for f in fields(solver))
    return type(solver).__name__, kept


def made_solver(settings: Any) -> Any:
    """The solver of such values."""
    name, kept = settings
    classes = {kind.__name__: kind for kind in (Newton, __getattr__("Sinkhorn"), *Newton.__subclasses__())}
    return classes[name](**dict(kept))
