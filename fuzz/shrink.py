"""Failing cases made small, and kept as JSON files that are replayed for good."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from conflicts import exact_gap
from systems import Array, Case

FAILURES = Path(__file__).resolve().parent / "failures"


def shrink(case: Case, fails: Callable[[Case], bool], *, seconds: float = 60.0) -> Case:
    """The smallest case found that still fails: fewer systems, rows and variables, plainer options, rounder numbers.

    What is known about the case stays true: a change after which the known point no longer satisfies its rows, or the
    known multipliers no longer refute them, is not made. Stops after so many seconds of processor time.
    """
    start, smaller = time.process_time(), True
    while smaller:
        smaller = False
        for candidate in _candidates(case):
            if time.process_time() - start > seconds:
                return case
            if is_true(candidate) and fails(candidate):
                case, smaller = candidate, True
                break
    return case


def is_true(case: Case) -> bool:
    """Whether points satisfy (to rounding) and multipliers refute what the case says they do."""
    sums = np.abs(case.matrix) @ np.maximum(np.abs(case.lower), np.abs(case.upper))
    for point, side in zip(case.points, case.sides, strict=True):
        if point is None:
            if case.weights is None:
                return False
            if exact_gap(case.matrix, side, case.senses, (case.lower, case.upper), case.weights) <= 0:
                return False
            continue
        gap = case.matrix @ point - side
        sign = np.array([{"<=": 1.0, ">=": -1.0, "==": 0.0}[s] for s in case.senses])
        over = np.where(sign == 0, np.abs(gap), sign * gap)
        if (over > 1e-15 * (sums + np.abs(side))).any() or (point < case.lower).any() or (point > case.upper).any():
            return False
    return True


def _candidates(case: Case) -> Iterator[Case]:
    """Simpler cases, the boldest changes first."""
    systems, (rows, variables) = len(case.sides), case.matrix.shape
    if not case.shared:
        for size in {systems // 2, 1} - {0, systems}:
            for first in range(0, systems, size):
                yield _only_systems(case, list(range(systems))[first : first + size])
        for drop in range(systems if systems > 1 else 0):
            yield _only_systems(case, [i for i in range(systems) if i != drop])
    elif len(case.scores.reshape(-1, variables)) > 1:
        for i in range(len(case.scores.reshape(-1, variables))):
            yield replace(case, scores=case.scores.reshape(-1, variables)[[i]], batch=(1,))
    for keep in _subsets(rows):
        yield _only_rows(case, keep)
    for keep in _subsets(variables):
        yield _only_variables(case, keep)
    plain = {"dtype": "float64", "layout": "contiguous", "sparse": False}
    for name, value in plain.items():
        if getattr(case, name) != value:
            yield replace(case, **{name: value})
    for digits in (1, 3):
        for name in ("scores", "tau"):
            rounder = _rounded(np.asarray(getattr(case, name)), digits)
            if (rounder != getattr(case, name)).any():
                yield replace(case, **{name: float(rounder) if name == "tau" else rounder})
        yield from _rounder_rows(case, digits)


def _subsets(count: int) -> Iterator[list[int]]:
    """Halves and all but one."""
    everything = list(range(count))
    if count > 3:
        yield everything[: count // 2]
        yield everything[count // 2 :]
    for drop in range(count if count > 1 else 0):
        yield [i for i in everything if i != drop]


def _only_systems(case: Case, keep: list[int]) -> Case:
    scores = case.scores.reshape(-1, case.matrix.shape[1])[keep]
    points = [case.points[i] for i in keep]
    return replace(case, sides=case.sides[keep], scores=scores, batch=(len(keep),), points=points)


def _only_rows(case: Case, keep: list[int]) -> Case:
    weights = None if case.weights is None else case.weights[keep]
    senses = [case.senses[i] for i in keep]
    return replace(case, matrix=case.matrix[keep], senses=senses, sides=case.sides[:, keep], weights=weights)


def _only_variables(case: Case, keep: list[int]) -> Case:
    """The dropped variables stay where the known point has them (infeasible systems: at their lower bound)."""
    gone = [j for j in range(case.matrix.shape[1]) if j not in keep]
    taken = [case.matrix[:, gone] @ (case.lower if point is None else point)[gone] for point in case.points]
    return replace(
        case,
        matrix=case.matrix[:, keep],
        sides=case.sides - np.array(taken),
        lower=case.lower[keep],
        upper=case.upper[keep],
        scores=case.scores[..., keep],
        points=[None if point is None else point[keep] for point in case.points],
    )


def _rounder_rows(case: Case, digits: int) -> Iterator[Case]:
    """Coefficients with fewer digits; the right sides follow the known points."""
    matrix = _rounded(case.matrix, digits)
    if (matrix != case.matrix).any() and matrix.any(1).all():
        moved = [(matrix - case.matrix) @ (case.lower if point is None else point) for point in case.points]
        yield replace(case, matrix=matrix, sides=case.sides + np.array(moved))


def _rounded(array: Array, digits: int) -> Array:
    """So many significant digits."""
    size = np.where(array == 0, 1.0, np.abs(array))
    unit = 10.0 ** (np.floor(np.log10(size)) - digits + 1)
    return np.round(array / unit) * unit


def save(case: Case, name: str, finding: str, folder: Path = FAILURES) -> Path:
    """Write one case, with what went wrong when it was found."""

    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray) else value

    body = {key: plain(value) for key, value in asdict(case).items()}
    body["points"] = [plain(point) for point in case.points]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"finding": finding, **body}) + "\n")
    return path


def load(path: Path) -> Case:
    """A case that `save` wrote."""
    body = json.loads(path.read_text())
    values = {f.name: body[f.name] for f in fields(Case)}
    for name in ("matrix", "sides", "lower", "upper", "scores"):
        values[name] = np.array(values[name], dtype=np.float64)
    values["weights"] = None if values["weights"] is None else np.array(values["weights"])
    values["points"] = [None if point is None else np.array(point) for point in values["points"]]
    values["batch"] = tuple(values["batch"])
    return Case(**values)
