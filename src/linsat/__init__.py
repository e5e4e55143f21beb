"""linsat: hard linear constraints on the output of a neural network."""

from linsat.constraints import Constraints
from linsat.errors import ConstraintError, ConvergenceError, InfeasibleError, LinSATWarning
from linsat.projection import project, project_each, solve
from linsat.solution import Solution
from linsat.solvers import Newton, Sinkhorn
from linsat.status import Status

__all__ = ["ConstraintError", "Constraints", "ConvergenceError", "InfeasibleError", "LinSATWarning", "Newton", "Sinkhorn", "Solution", "Status", "project", "project_each", "solve"]
