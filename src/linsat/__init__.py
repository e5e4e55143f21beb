"""linsat: hard linear constraints on the output of a neural network.

cons = linsat.Constraints(A=A, b=b, C=C, d=d, E=E, f=f)     rows A x <= b, C x >= d, E x = f in a box
x = linsat.project(y, cons, tau=0.1)                        scores in, constrained x out, differentiable
"""

from linsat import constraints, decode
from linsat.compat import init_constraints, linsat_layer
from linsat.constraints import Constraints, Variable, stack, subject_to, unstack
from linsat.errors import ConstraintError, ConvergenceError, InfeasibleError, LinSATError, LinSATWarning
from linsat.files import load, save
from linsat.layer import LinSAT
from linsat.marginals import multi_set_sinkhorn, sinkhorn
from linsat.objectives import Entropy, Euclidean, Objective
from linsat.projection import project, project_each, solve
from linsat.solution import Solution
from linsat.solvers import Newton, Sinkhorn
from linsat.status import Status

__version__ = "0.1.0"

__all__ = [
    "ConstraintError",
    "Constraints",
    "ConvergenceError",
    "Entropy",
    "Euclidean",
    "InfeasibleError",
    "LinSAT",
    "LinSATError",
    "LinSATWarning",
    "Newton",
    "Objective",
    "Sinkhorn",
    "Solution",
    "Status",
    "Variable",
    "constraints",
    "decode",
    "init_constraints",
    "linsat_layer",
    "load",
    "multi_set_sinkhorn",
    "project",
    "project_each",
    "save",
    "sinkhorn",
    "solve",
    "stack",
    "subject_to",
    "unstack",
]
