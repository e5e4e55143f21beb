"""Constraint sets: `Constraints` itself, ready-made families, and the modelling front."""

from linsat.constraints.constraint_set import Constraints
from linsat.constraints.families import (
    budget,
    capacity_assignment,
    doubly_stochastic,
    matching,
    permutation,
    portfolio,
    ranking,
    simplex,
    top_k,
    tour,
)
from linsat.constraints.modelling import Expression, Relation, Variable, maximum, minimum, norm, subject_to

__all__ = [
    "Constraints",
    "Expression",
    "Relation",
    "Variable",
    "budget",
    "capacity_assignment",
    "doubly_stochastic",
    "matching",
    "maximum",
    "minimum",
    "norm",
    "permutation",
    "portfolio",
    "ranking",
    "simplex",
    "subject_to",
    "top_k",
    "tour",
]
