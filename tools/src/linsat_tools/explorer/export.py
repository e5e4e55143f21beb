"""A problem of the explorer as Python code and as a constraint file."""

from __future__ import annotations

import json
import pprint

import numpy as np

from linsat_tools.explorer.problem import Problem


def _call(objective: str, tau: float, soft: bool) -> str:
    """The call of `linsat.project`; Euclidean has no tau, which is 1 unless the scores and prices are scaled."""
    if objective == "euclidean" and tau == 1:
        return "linsat.project(y, constraints, objective=linsat.Euclidean())"
    made = {
        "entropy": f"Entropy({tau!r})",
        "slack-free-entropy": f'Entropy({tau!r}, slack="none")',
        "kl": f"KL({tau!r})",
        "tsallis": f"Tsallis(1.5, {tau!r})",
        "euclidean": f"Euclidean(weights={tau!r})" if soft else "Euclidean()",
    }
    scores = f"y / {tau!r}" if objective == "euclidean" else "y"
    return f"linsat.project({scores}, constraints, objective=linsat.{made[objective]})"


def as_python(problem: Problem, scores: np.ndarray, tau: float, objective: str) -> str:
    """A script that makes the constraint set and projects the scores; names appear as quoted strings only."""
    lines = ["import torch", "import linsat", "", f"variables = {_literal(list(problem.variables), 12)}"]
    lines.append("constraints = linsat.Constraints(")
    for name, value in problem.arguments().items():
        lines.append(f"    {name}={_literal(value, 4 + len(name) + 1)},")
    lines += ["    variables=variables,", ")"]
    prices = problem.prices()
    if prices:
        soft, price = _literal(list(prices), 33), _literal(list(prices.values()), 33)
        lines.append(f"constraints = constraints.soften({soft}, price={price})")
    lines += [
        f"y = torch.tensor({_literal(scores.tolist(), 17)}, dtype=torch.float64)",
        f"x = {_call(objective, tau, bool(prices))}",
        "print(dict(zip(variables, x.tolist())))",
    ]
    return "\n".join(lines) + "\n"


def _literal(value: list, indent: int) -> str:
    """A list as code, broken into lines of at most 110 characters."""
    text = pprint.pformat(_plain(value), width=110 - indent, compact=True)
    return text.replace("\n", "\n" + " " * indent)


def _plain(value: object) -> object:
    """Whole numbers without a decimal point: 2.0 reads better as 2."""
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def as_json(problem: Problem) -> str:
    """The constraint set as a JSON constraint file (`linsat.Constraints.load` reads it), one line per row."""
    content = problem.arguments()
    for sense, matrix_name in (("<=", "A"), (">=", "C"), ("==", "E")):
        if matrix_name in content:
            content[matrix_name] = [_plain(row.coefficients) for row in problem.rows if row.sense == sense]
    lines = [f'  "version": 1,\n  "variables": {json.dumps(list(problem.variables))}']
    for name, value in content.items():
        if name in "ACE":
            entries = ",\n".join(f"    {json.dumps(entry)}" for entry in value)
            lines.append(f'  "{name}": [\n{entries}\n  ]')
        else:
            lines.append(f'  "{name}": {json.dumps(_plain(value))}')
    if problem.prices():
        prices = [problem.rows[i].price for i in problem.order]
        lines.append(f'  "price": {json.dumps([_plain(price) for price in prices])}')
    return "{\n" + ",\n".join(lines) + "\n}\n"
