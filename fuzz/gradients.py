"""Gradients to every number against finite differences of x, along directions in which the set stays nonempty."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import linsat
from fuzz.families import Array
from fuzz.systems import Case
from fuzz.verdict import Verdict
from linsat.errors import LinSATError

_STEP = 3e-5  # relative to the numbers
_AGREE = 1e-3  # of differences to both sides, with steps that differ by two: where they do not, x has a kink there
_OFF = 3e-3  # of the gradient from them, relative to its size
_PARAMETERS = ("tau", "metric", "prior", "alpha", "P")


def judge_gradients(case: Case, verdict: Verdict, library: Any = linsat) -> None:
    """One direction in all numbers at once, and one in the scores alone by forward mode too."""
    if case.dtype != "float64" or case.sparse or case.way != "eager":
        return
    rng = np.random.default_rng(len(case.senses))
    numbers = _numbers(case)
    direction = _direction(rng, case, numbers)
    weights = torch.from_numpy(rng.normal(size=_x(case, numbers, library).shape))
    steps: list[Any] = [
        _difference(case, numbers, direction, weights, step, library) for step in (_STEP, _STEP / 2, -_STEP / 2)
    ]
    size = 1.0 + sum(abs(step) for step in steps if step is not None)
    if None in steps or max(steps) - min(steps) > _AGREE * size:
        verdict.checks["finite differences: a kink"] += 1
        return
    learned = {name: torch.as_tensor(value).requires_grad_() for name, value in numbers.items()}
    x = _x(case, learned, library)
    gradients = torch.autograd.grad((x * weights).sum(), list(learned.values()), allow_unused=True)
    slope = 0.0
    for name, gradient in zip(learned, gradients, strict=True):
        if gradient is not None:
            slope += float((gradient.numpy() * direction[name])[direction[name] != 0].sum())
    verdict.checks["finite differences"] += 1
    if not min(steps) - _OFF * size <= slope <= max(steps) + _OFF * size:
        verdict.find(
            "gradient", f"{slope:.6g} along a direction in {', '.join(numbers)}; differences say {steps[1]:.6g}"
        )


def _numbers(case: Case) -> dict[str, Array]:
    """Every finite number of the call as a float64 array in the shape in which it is handed over."""
    made = {"y": case.scores, **case.arguments()}
    if case.price is not None:
        made["price"] = case._soft_prices(None)[1]
    used = {"kl": ("tau", "prior"), "tsallis": ("tau", "alpha"), "euclidean": ("metric",)}.get(
        case.objective, ("P",) if case.P is not None else ("tau",)
    )
    made |= {name: case.number(name) for name in used if case.number(name) is not None}
    return {name: np.array(value, dtype=np.float64) for name, value in made.items()}


def _direction(rng: np.random.Generator, case: Case, numbers: dict[str, Array]) -> dict[str, Array]:
    """Relative to the numbers, so that zeros of matrices stay; sides of equalities follow a point that moves."""
    moved: dict[str, Array] = {}
    for name, value in numbers.items():
        finite = np.where(np.isfinite(value), value, 0.0)
        moved[name] = rng.normal(size=value.shape) * (
            np.maximum(np.abs(finite), 0.1) if name == "y" else np.abs(finite)
        )
    moved = {name: np.asarray(value) for name, value in moved.items()}
    for name in ("b", "d", "lower", "upper"):
        if name in moved:
            moved[name] = np.where(np.isfinite(numbers[name]), rng.normal(size=moved[name].shape), 0.0)
    moved["lower"] = np.where(numbers["lower"] == numbers["upper"], moved["upper"], moved["lower"])
    if "P" in moved:  # stays semidefinite, of its rank
        P = numbers["P"]
        turn = rng.normal(size=P.shape[:-2] + P.shape[-1:])
        moved["P"] = P * (turn[..., :, None] + turn[..., None, :])
    if "f" in moved:  # equalities that depend on each other have to go on doing so, or x would jump
        E = numbers["E"]
        by_rows, by_columns = rng.normal(size=E.shape[:-1]), rng.normal(size=E.shape[:-2] + E.shape[-1:])
        moved["E"] = E * (by_rows[..., :, None] + by_columns[..., None, :])
        at = _points(case)
        moved["shift"] = rng.normal(size=at.shape) * 0.1
        moved["f"] = _times(moved["E"], at) + _times(E, moved["shift"])
    return moved


def _points(case: Case) -> Array:
    points = np.array([np.zeros(len(case.lower)) if p is None else p for p in case.points])
    return points[0] if case.shared else points.reshape(*case.batch, -1)


def _times(matrix: Array, x: Array) -> Array:
    return np.einsum("...ij,...j->...i", matrix, x)


def _moved(case: Case, numbers: dict[str, Array], direction: dict[str, Array], way: float) -> dict[str, Array]:
    """The numbers some way along the direction: equalities by scaling, which keeps their rank, with a point on them."""
    there = {name: value + way * direction[name] for name, value in numbers.items()}
    if "f" in there:
        E = numbers["E"]
        there["E"] = E * np.exp(way * np.divide(direction["E"], E, out=np.zeros_like(E), where=E != 0))
        there["f"] = _times(there["E"], _points(case) + way * direction["shift"])
        there["f"] += numbers["f"] - _times(E, _points(case))  # where the point does not hold them
    return there


def _x(case: Case, numbers: dict[str, Any], library: Any) -> torch.Tensor:
    given = {name: torch.as_tensor(value) for name, value in numbers.items()}
    y, price = given.pop("y"), given.pop("price", None)
    parameters = {name: given.pop(name) for name in _PARAMETERS if name in given}
    asked = case.asked(library)
    for name, value in parameters.items():
        field = "weights" if name == "metric" or (name == "P" and case.objective == "metric") else name
        object.__setattr__(asked, field, value)
    cons = library.Constraints(**given)
    if price is not None:
        cons = cons.soften(case._soft_prices(None)[0], price=price)
    return library.project(y, cons, objective=asked, on_failure="nan")


def _difference(
    case: Case, numbers: dict[str, Array], direction: dict[str, Array], weights: torch.Tensor, step: float, library: Any
) -> float | None:
    """One-sided, so that a kink here shows too; None where a point on the way is not solved."""
    ends = []
    for way in (step, 0.0):
        try:
            there = _moved(case, numbers, direction, way)
            ends.append(float((_x(case, there, library) * weights).sum()))
        except LinSATError:  # the set has no point there
            return None
    slope = (ends[0] - ends[1]) / step
    return slope if np.isfinite(slope) else None
