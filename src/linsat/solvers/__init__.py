"""Solvers: Newton (default) and the paper's multi-set Sinkhorn."""

from typing import TYPE_CHECKING, Any

from linsat.solvers.newton import Newton

if TYPE_CHECKING:
    from linsat.solvers.sinkhorn import Sinkhorn

__all__ = ["Newton", "Sinkhorn"]


def __getattr__(name: str) -> Any:
    """Sinkhorn when first used: it needs torch, which users of JAX may not have."""
    if name != "Sinkhorn":
        raise AttributeError(f"module 'linsat.solvers' has no attribute {name!r}")
    from linsat.solvers.sinkhorn import Sinkhorn

    return Sinkhorn
