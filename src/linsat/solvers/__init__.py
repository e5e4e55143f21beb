"""Solvers: Newton (default) and the paper's multi-set Sinkhorn."""

from linsat.solvers.newton import Newton
from linsat.solvers.sinkhorn import Sinkhorn

__all__ = ["Newton", "Sinkhorn"]
