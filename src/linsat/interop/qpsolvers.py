"""linsat as a solver of qpsolvers: ``register()``, then ``qpsolvers.solve_qp(P, q, G, h, solver="linsat")``.

qpsolvers states  min x'Px / 2 + q'x  over  Gx <= h, Ax = b, lb <= x <= ub;  linsat maximises <y, x> - x'Px / 2, so
y = -q, and its multipliers have the other sign. Needs the extra ``qpsolvers``.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat._optional import require
from linsat.constraints.constraint_set import Constraints
from linsat.errors import InfeasibleError
from linsat.objectives import Quadratic
from linsat.projection import solve
from linsat.status import Status


def register() -> None:
    """Make ``solver="linsat"`` known to qpsolvers, for ``solve_qp``, ``solve_problem`` and ``solve_ls``."""
    solvers = require("qpsolvers.solvers", extra="qpsolvers", purpose="linsat.interop.qpsolvers")
    solvers.solve_function["linsat"] = solve_problem
    for names in (solvers.available_solvers, solvers.dense_solvers, solvers.sparse_solvers):
        if "linsat" not in names:
            names.append("linsat")


def solve_problem(problem: Any, initvals: Any = None, verbose: bool = False, **settings: Any) -> Any:
    """Solve one ``qpsolvers.Problem``.

    Args:
        problem: a strictly or semi-definite program, dense or sparse.
        initvals, verbose: taken for qpsolvers' sake and not used: a start is not needed, nothing is printed.
        settings: ``solver``, as in `linsat.solve`.

    Returns:
        A ``qpsolvers.Solution`` with multipliers; ``found`` is False where there is none, and ``extras`` say why.
        One program at a time costs what its set-up costs: `linsat.solve` takes batches.
    """
    qpsolvers = require("qpsolvers", extra="qpsolvers", purpose="linsat.interop.qpsolvers")
    begin = time.perf_counter()
    P, q, G, h, A, b, lb, ub = problem.unpack()
    box: dict[str, Any] = {"lower": -np.inf if lb is None else lb, "upper": np.inf if ub is None else ub}
    rows: dict[str, Any] = {} if G is None else {"A": G, "b": h}
    if A is not None:
        rows |= {"E": A, "f": b}
    n = len(q)
    if not rows:  # a box alone: a row that does nothing
        rows = {"A": sp.csr_matrix((1, n)), "b": np.ones(1)}
    answer = qpsolvers.Solution(problem, found=False)
    try:
        cons = Constraints(**rows, **box)
        solution = solve(-q, cons, objective=Quadratic(P), on_failure="ignore", **settings)
    except InfeasibleError as error:
        answer.extras = {"status": Status.INFEASIBLE, "message": str(error)}
        return answer
    status = solution.status.item()
    answer.extras = {"status": status}
    if status is not Status.CONVERGED:
        return answer
    inequalities = 0 if G is None else G.shape[0]
    duals = solution.duals if G is not None or A is not None else np.empty(0)
    answer.found, answer.x = True, solution.x
    answer.z, answer.y = -duals[:inequalities], -duals[inequalities:]
    answer.z_box = -solution.bound_duals if lb is not None or ub is not None else np.empty(0)
    answer.obj = float(answer.x @ (P @ answer.x) / 2 + q @ answer.x)
    answer.solve_time = time.perf_counter() - begin
    return answer
