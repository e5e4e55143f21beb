"""Failing cases made small, and kept as JSON files that are replayed for good."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.conflicts import exact_gap
from fuzz.families import Array
from fuzz.systems import Case

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
    """Whether points satisfy (to rounding) and multipliers refute what the case says they do; hard rows only."""
    hard = case.hard
    senses = [s for s, h in zip(case.senses, hard, strict=True) if h]
    sign = np.array([{"<=": 1.0, ">=": -1.0, "==": 0.0}[s] for s in senses])
    for i, point in enumerate(case.points):
        matrix, side = case.matrix_of(i)[hard], case.sides[i][hard]
        lower, upper = (case.each[n][i] if n in case.each else getattr(case, n) for n in ("lower", "upper"))
        if point is None:
            if case.weights is None or case.weights[~hard].any():
                return False
            if exact_gap(matrix, side, senses, (lower, upper), case.weights[hard]) <= 0:
                return False
            continue
        gap = matrix @ point - side
        over = np.where(sign == 0, np.abs(gap), sign * gap)
        sums = np.abs(matrix) @ np.maximum(np.abs(point), _finite(lower, upper)) + np.abs(side)
        if (over > 1e-15 * sums).any() or (point < lower).any() or (point > upper).any():
            return False
    return True


def _finite(lower: Array, upper: Array) -> Array:
    return np.maximum(*(np.where(np.isfinite(bound), np.abs(bound), 0.0) for bound in (lower, upper)))


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
    plain = {"dtype": "float64", "layout": "contiguous", "sparse": False, "way": "eager", "call": False}
    for name, value in plain.items():
        if getattr(case, name) != value:
            yield replace(case, **{name: value})
    for name in ("metric", "price", "prior"):
        if getattr(case, name) is not None:
            rest = {key: values for key, values in case.each.items() if key != name}
            yield replace(case, **{name: None}, each=rest)
    if case.P is not None:
        for simple in (np.diag(np.diag(case.P)), np.eye(len(case.P))):
            if (simple != case.P).any():
                yield replace(case, P=simple, each={k: v for k, v in case.each.items() if k != "P"})
    if case.each and systems == 1:
        yield case.alone(0)
    if case.own is not None and systems == 1:
        yield replace(case, matrix=case.own[0], own=None)
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
    own = None if case.own is None else case.own[keep]
    each = {name: values[keep] for name, values in case.each.items()}
    return replace(case, sides=case.sides[keep], scores=scores, batch=(len(keep),), points=points, own=own, each=each)


def _only_rows(case: Case, keep: list[int]) -> Case:
    picked = {name: None if (v := getattr(case, name)) is None else v[keep] for name in ("weights", "price")}
    own = None if case.own is None else case.own[:, keep]
    senses = [case.senses[i] for i in keep]
    each = {name: values[:, keep] if name == "price" else values for name, values in case.each.items()}
    whole = {"own": own, "each": each, **picked}
    return replace(case, matrix=case.matrix[keep], senses=senses, sides=case.sides[:, keep], **whole)


def _only_variables(case: Case, keep: list[int]) -> Case:
    """The dropped variables stay where the known point has them (infeasible systems: at their lower bound)."""
    gone = [j for j in range(case.matrix.shape[1]) if j not in keep]
    at = np.where(np.isfinite(case.lower), case.lower, 0.0)
    picked = {name: None if (v := getattr(case, name)) is None else v[keep] for name in ("metric", "prior")}
    cuts = {"P": np.ix_(range(len(case.sides)), keep, keep)}
    cuts |= {name: np.ix_(range(len(case.sides)), keep) for name in ("lower", "upper", "metric", "prior")}
    taken = [case.matrix_of(i)[:, gone] @ (at if point is None else point)[gone] for i, point in enumerate(case.points)]
    return replace(
        case,
        matrix=case.matrix[:, keep],
        sides=case.sides - np.array(taken),
        lower=case.lower[keep],
        upper=case.upper[keep],
        scores=case.scores[..., keep],
        points=[None if point is None else point[keep] for point in case.points],
        P=None if case.P is None else case.P[np.ix_(keep, keep)],
        own=None if case.own is None else case.own[:, :, keep],
        each={name: values[cuts[name]] if name in cuts else values for name, values in case.each.items()},
        **picked,
    )


def _rounder_rows(case: Case, digits: int) -> Iterator[Case]:
    """Coefficients with fewer digits; the right-hand sides follow the known points."""
    matrix = _rounded(case.matrix, digits)
    if case.own is None and (matrix != case.matrix).any() and matrix.any(1).all():
        at = np.where(np.isfinite(case.lower), case.lower, 0.0)
        moved = [(matrix - case.matrix) @ (at if point is None else point) for point in case.points]
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
    body["each"] = {key: plain(value) for key, value in case.each.items()}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"finding": finding, **body}) + "\n")
    return path


def load(path: Path) -> Case:
    """A case that `save` wrote."""
    body = json.loads(path.read_text())
    values = {f.name: body[f.name] for f in fields(Case) if f.name in body}  # older files have fewer options
    for name in ("matrix", "sides", "lower", "upper", "scores"):
        values[name] = np.array(values[name], dtype=np.float64)
    values["each"] = {key: np.array(each) for key, each in values.get("each", {}).items()}
    for name in ("weights", "metric", "price", "own", "prior", "P"):
        values[name] = None if values.get(name) is None else np.array(values[name])
    values["points"] = [None if point is None else np.array(point) for point in values["points"]]
    values["batch"] = tuple(values["batch"])
    return Case(**values)
