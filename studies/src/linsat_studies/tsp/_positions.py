"""The paper's form behind ``solvers.quadratic_tours``: X[city, position], one canonical instance at a time.

Start and end are fixed, so the inner cities 1 .. n - 2 share the positions 1 .. n - 2. With c = n - 2 the length is

    sum_i D[0, i] X[i, 1] + sum_k sum_{i, j} D[i, j] X[i, k] X[j, k + 1] + sum_i D[i, n - 1] X[i, c].
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, csr_array


def solve_scip(D: np.ndarray, latest: int | None, seconds: float) -> tuple[np.ndarray | None, bool]:
    """SCIP takes quadratic rows, so the length is a variable bounded below by the quadratic sum."""
    import pyscipopt

    c = len(D) - 2
    model = pyscipopt.Model()
    model.hideOutput()
    model.setParam("limits/time", seconds)
    X = [[model.addVar(vtype="B", ub=_possible(i, k, latest)) for k in range(c)] for i in range(c)]
    for i in range(c):
        model.addCons(pyscipopt.quicksum(X[i][k] for k in range(c)) == 1)
        model.addCons(pyscipopt.quicksum(X[k][i] for k in range(c)) == 1)
    length = model.addVar(lb=0.0)
    model.addCons(pyscipopt.quicksum(_terms(D, X)) <= length)
    model.setObjective(length, "minimize")
    model.optimize()
    if model.getNSols() == 0:
        return None, False
    best = model.getBestSol()
    values = np.array([[model.getSolVal(best, X[i][k]) for k in range(c)] for i in range(c)])
    return _tour(values), model.getStatus() == "optimal"


def solve_gurobi(D: np.ndarray, latest: int | None, seconds: float) -> tuple[np.ndarray | None, bool]:
    """Gurobi, as in the paper: the quadratic length is the objective."""
    try:
        gurobipy = importlib.import_module("gurobipy")
    except ImportError as error:
        raise ImportError(
            "Gurobi needs gurobipy and a licence. Fix: pip install gurobipy and set the licence up, or choose "
            'solver="scip" or "highs", which are free.'
        ) from error
    c = len(D) - 2
    try:
        with gurobipy.Env(params={"OutputFlag": 0}) as env, gurobipy.Model(env=env) as model:
            model.Params.TimeLimit = seconds
            X = [[model.addVar(vtype="B", ub=_possible(i, k, latest)) for k in range(c)] for i in range(c)]
            for i in range(c):
                model.addConstr(gurobipy.quicksum(X[i][k] for k in range(c)) == 1)
                model.addConstr(gurobipy.quicksum(X[k][i] for k in range(c)) == 1)
            model.setObjective(gurobipy.quicksum(_terms(D, X)), gurobipy.GRB.MINIMIZE)
            model.optimize()
            if model.SolCount == 0:
                return None, False
            values = np.array([[X[i][k].X for k in range(c)] for i in range(c)])
            return _tour(values), model.Status == gurobipy.GRB.OPTIMAL
    except gurobipy.GurobiError as error:
        raise RuntimeError(
            f'Gurobi rejected: {error}. Fix: a licence for this size, or solver="scip" or "highs", which are free.'
        ) from error


def solve_highs(D: np.ndarray, latest: int | None, seconds: float) -> tuple[np.ndarray | None, bool]:
    """HiGHS on the linearised form: Y[i, j, k] = X[i, k] X[j, k + 1], tied to X by its sums over j and over i."""
    c = len(D) - 2
    inner = D[1:-1, 1:-1]
    i, j = np.nonzero(~np.eye(c, dtype=bool))
    pairs = len(i)
    steps = np.repeat(np.arange(c - 1), pairs)  # Y is numbered step by step, then by pair
    i, j = np.tile(i, c - 1), np.tile(j, c - 1)
    Y = c * c + np.arange(len(steps))
    cost = np.concatenate([np.zeros(c * c), inner[i, j]])
    cost[np.arange(c) * c] += D[0, 1:-1]
    cost[np.arange(c) * c + c - 1] += D[1:-1, -1]
    total = c * c + len(Y)
    cells = np.arange(c * c)
    assign = csr_array(
        coo_array(
            (np.ones(2 * c * c), (np.concatenate([cells // c, c + cells % c]), np.tile(cells, 2))), shape=(2 * c, total)
        )
    )
    # sum_j Y[i, j, k] = X[i, k] and sum_i Y[i, j, k] = X[j, k + 1]; row numbers (step, city), then the second block.
    block = c * (c - 1)
    tied = np.arange(block)
    rows = np.concatenate([steps * c + i, block + steps * c + j, tied, block + tied])
    columns = np.concatenate([Y, Y, (tied % c) * c + tied // c, (tied % c) * c + tied // c + 1])
    values = np.concatenate([np.ones(2 * len(Y)), -np.ones(2 * block)])
    ties = csr_array(coo_array((values, (rows, columns)), shape=(2 * block, total)))
    upper = np.ones(total)
    upper[: c * c] = [_possible(cell // c, cell % c, latest) for cell in cells]
    result = milp(
        cost,
        integrality=np.concatenate([np.ones(c * c), np.zeros(len(Y))]),
        bounds=Bounds(np.zeros(total), upper),
        constraints=[LinearConstraint(assign, 1, 1), LinearConstraint(ties, 0, 0)],
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if result.x is None:
        return None, False
    return _tour(result.x[: c * c].reshape(c, c)), result.status == 0


def _possible(i: int, k: int, latest: int | None) -> float:
    """Upper bound of X[i, k]: 0 where the priority city (inner city 0) would be later than position ``latest``."""
    return 0.0 if latest is not None and i == 0 and k + 1 > latest else 1.0


def _terms(D: np.ndarray, X: Any) -> Any:
    """The summands of the length, for a solver whose variables can be multiplied."""
    c = len(D) - 2
    for i in range(c):
        yield float(D[0, i + 1]) * X[i][0]
        yield float(D[i + 1, c + 1]) * X[i][c - 1]
        for j in range(c):
            if i != j:
                for k in range(c - 1):
                    yield float(D[i + 1, j + 1]) * X[i][k] * X[j][k + 1]


def _tour(values: np.ndarray) -> np.ndarray:
    """The tour of a binary X given with the solver's rounding."""
    return np.concatenate([[0], values.argmax(axis=0) + 1, [len(values) + 1]])
