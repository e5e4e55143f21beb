"""Constraint sets: `Constraints` itself, ready-made families, and the modelling front."""

from linsat.constraints.constraint_set import Constraints

__all__ = ["Constraints"]
