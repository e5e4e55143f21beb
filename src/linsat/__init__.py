"""linsat: hard linear constraints on the output of a neural network."""

from linsat.constraints import Constraints
from linsat.errors import ConstraintError, ConvergenceError, InfeasibleError, LinSATWarning

__all__ = ["ConstraintError", "Constraints", "ConvergenceError", "InfeasibleError", "LinSATWarning"]
