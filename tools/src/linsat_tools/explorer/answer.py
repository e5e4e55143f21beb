"""One question of the page and its answer, both plain JSON: text, scores, temperature and objective in, x and all
about it out."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from linsat.constraints import Constraints
from linsat.errors import ConstraintError, InfeasibleError
from linsat.objectives import NAMED, Euclidean
from linsat.projection import solve
from linsat.solution import Solution
from linsat_tools.explorer.export import as_json, as_python
from linsat_tools.explorer.language import parse
from linsat_tools.explorer.polygon import best_vertex, polygon
from linsat_tools.explorer.problem import Problem
from linsat_tools.explorer.tokens import RowTextError

COLDEST, HOTTEST = 1e-3, 10.0  # temperatures of the slider
LARGEST_SCORE = 1e3
_PATH = 41  # temperatures of the curves, from coldest to hottest

Answer = dict[str, Any]


def answer(question: Any) -> Answer:
    """Answer one question; a question that cannot be answered is answered by what is wrong with it.

    Args:
        question: ``{"text": str, "scores": {name: number}, "tau": number, "objective": str}``; variables without a
            score have 0. Objectives are ``"entropy"`` (the paper's layer, the default), ``"slack-free-entropy"``,
            ``"kl"``, ``"tsallis"`` and ``"euclidean"``, the nearest point to scores / tau.

    Returns:
        ``{"state": "empty" | "error" | "infeasible" | "solved", ...}``; never raises for bad input.
    """
    try:
        text, given, tau, objective = _read(question)
        problem, constraints = _prepared(text)
        if constraints is None:
            return {"state": "empty"}
        scores = np.array([given.get(name, 0.0) for name in problem.variables])
        return _solved(problem, constraints, scores, tau, objective)
    except RowTextError as error:
        return {"state": "error", "message": str(error), "line": error.line, "column": error.column}
    except ConstraintError as error:
        return {"state": "error", "message": str(error)}


@lru_cache(maxsize=8)
def _prepared(text: str) -> tuple[Problem, Constraints | None]:
    """Kept, because while scores are dragged the rows stay: a set compiles once."""
    problem = parse(text)
    return problem, problem.constraints() if problem.variables else None


def _read(question: Any) -> tuple[str, dict[str, float], float, str]:
    if not isinstance(question, dict):
        raise ConstraintError(f"the question is a {type(question).__name__}; expected an object with text and tau.")
    text, scores, tau = question.get("text"), question.get("scores", {}), question.get("tau", 0.1)
    if not isinstance(text, str):
        raise ConstraintError(f"text is a {type(text).__name__}; expected the rows as a string.")
    if not isinstance(scores, dict):
        raise ConstraintError(f"scores is a {type(scores).__name__}; expected an object of numbers by variable.")
    for name, score in scores.items():
        _check_number(f"scores.{name[:30]}", score, -LARGEST_SCORE, LARGEST_SCORE)
    _check_number("tau", tau, COLDEST, HOTTEST)
    objective = question.get("objective", "entropy")
    if not isinstance(objective, str) or objective not in NAMED:
        raise ConstraintError(f"objective is {repr(objective)[:30]}; expected one of {', '.join(NAMED)}.")
    return text, {name: float(score) for name, score in scores.items()}, float(tau), objective


def _check_number(name: str, value: Any, least: float, most: float) -> None:
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not numeric or not least <= value <= most:  # NaN compares as false
        shown = repr(value)[:30]
        raise ConstraintError(f"{name} is {shown}; expected a number from {least:g} to {most:g}.")


def _solved(problem: Problem, constraints: Constraints, scores: np.ndarray, tau: float, chosen: str) -> Answer:
    found: Answer = {
        "variables": list(problem.variables),
        "lower": list(problem.lower),
        "upper": list(problem.upper),
        "scores": scores.tolist(),
        "objective": chosen,
        "python": as_python(problem, scores, tau, chosen),
        "json": as_json(problem),
    }
    try:
        constraints.check()
    except InfeasibleError as error:
        return found | {"state": "infeasible", "rows": _rows(problem), **_conflict(problem, error)}
    answers = {name: _answer(name, constraints, scores, tau) for name in NAMED}
    solution = answers[chosen]
    found["state"] = "solved"
    found["status"], found["advice"] = str(solution.status.item()), solution.status.item().advice
    found["steps"] = int(solution.steps)
    found["x"] = solution.x.tolist()
    found["violation"] = float(solution.violation)
    found["rows"] = _rows(problem, constraints, solution)
    found["vertex"] = best_vertex(problem, scores)
    found["answers"] = {
        name: {"x": other.x.tolist() if other.converged else None, "path": _path(name, constraints, scores)}
        for name, other in answers.items()
    }
    found["path"] = found["answers"][chosen]["path"]
    if len(problem.variables) == 2:
        found["polygon"] = polygon(problem)
    return found


def _answer(name: str, constraints: Constraints, scores: np.ndarray, tau: float | np.ndarray) -> Solution:
    """One objective at one temperature, or at several as a batch.

    Euclidean has no temperature, but ``max <y, x> - tau |x|^2 / 2`` is the nearest point to y / tau, weights tau.
    """
    objective = NAMED[name]
    if objective.temperature is None:
        weights = np.broadcast_to(np.asarray(tau)[..., None], (*np.shape(tau), len(scores))).copy()
        nearest = Euclidean(weights=torch.from_numpy(weights))
        return solve(torch.from_numpy(scores / weights), constraints, objective=nearest, on_failure="ignore")
    y = torch.from_numpy(np.broadcast_to(scores, (*np.shape(tau), len(scores))).copy())
    temperature = torch.from_numpy(tau) if isinstance(tau, np.ndarray) else tau
    return solve(y, constraints, objective=objective.at(temperature), on_failure="ignore")


def _rows(problem: Problem, constraints: Constraints | None = None, solution: Solution | None = None) -> list[Answer]:
    """What the page shows of each row, in the order of the lines."""
    matrix = problem.matrix()
    found: list[Answer] = []
    for row, coefficients in zip(problem.rows, matrix, strict=True):
        found.append(
            {
                "line": row.line,
                "name": row.name,
                "text": row.text,
                "coefficients": coefficients.tolist(),
                "sense": row.sense,
                "rhs": row.rhs,
                "price": row.price,
            }
        )
    if constraints is None or solution is None:
        return found
    violation = constraints.row_violation(solution.x).tolist()
    activity = (matrix @ np.array(solution.x.tolist())).tolist()
    for position, index in enumerate(problem.order):
        found[index]["dual"] = float(solution.duals[position])
        found[index]["violation"] = violation[position]
        found[index]["activity"] = activity[index]
    return found


def _conflict(problem: Problem, error: InfeasibleError) -> Answer:
    """The conflicting rows in the user's own words."""
    order = problem.order
    indices = sorted(order[i] for i in error.indices)
    rows = [problem.rows[i] for i in indices]
    listed = "; ".join(f"{row.name}: {row.text}" for row in rows)
    if len(rows) == 1:
        message = f"This row cannot hold within the bounds: {listed}. Change it, or widen the bounds."
    else:
        message = f"These rows cannot hold together: {listed}. Drop or loosen any one of them."
    return {"conflict": indices, "message": message, "minimal": error.minimal}


def _path(name: str, constraints: Constraints, scores: np.ndarray) -> Answer:
    """x at temperatures from coldest to hottest, in one batch; null where a temperature did not converge."""
    taus = np.geomspace(COLDEST, HOTTEST, _PATH)
    solution = _answer(name, constraints, scores, taus)
    points = [x if good else None for x, good in zip(solution.x.tolist(), solution.converged.tolist(), strict=True)]
    return {"tau": taus.tolist(), "x": points}
