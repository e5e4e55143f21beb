"""Options of ``linsat project`` that change the problem: the objective, soft rows, bounds of single variables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from linsat.constraints.constraint_set import Constraints
from linsat.constraints.names import reject_unknown
from linsat.errors import ConstraintError
from linsat.objectives import NAMED, Objective


def read_objective(name: str, tau: float | None) -> Objective:
    """The objective of ``--objective`` and ``--tau``."""
    if name not in NAMED:
        raise ConstraintError(f"--objective is {name!r}; expected one of {', '.join(NAMED)}.")
    objective = NAMED[name]
    if tau is None:
        return objective
    if objective.temperature is None:
        raise ConstraintError(f"--tau was given, but --objective {name} has no temperature. Fix: leave it out.")
    if not (math.isfinite(tau) and tau > 0):
        raise ConstraintError(f"--tau is {tau}; expected a positive, finite temperature. Fix: for example --tau 0.1.")
    return objective.at(tau)


def soften(constraints: Constraints, softened: Sequence[str]) -> Constraints:
    """The set with the rows of ``--soften NAME=PRICE`` soft; a name stands for its whole family."""
    for text in softened:
        name, equals, price = text.rpartition("=")
        if not equals or not name:
            raise ConstraintError(f"--soften is {text!r}; expected NAME=PRICE. Fix: for example --soften budget=10.")
        try:
            constraints = constraints.soften(name, price=_number(price))
        except ConstraintError as error:
            raise ConstraintError(f"--soften {text}: {error}") from None
    return constraints


def bound(constraints: Constraints, bounds: Sequence[str], variables: Sequence[str]) -> Constraints:
    """The set with the bounds of ``--bound NAME=LOWER:UPPER``; an end that is left out stays as it is.

    Args:
        constraints: the set.
        bounds: as they were written.
        variables: names of the variables, in turn.
    """
    if not bounds:
        return constraints
    ends = {
        side: np.array(np.broadcast_to(np.asarray(values), (*values.shape[:-1], len(variables))), dtype=np.float64)
        for side, values in (("lower", constraints.lower), ("upper", constraints.upper))
    }
    positions = {name: place for place, name in enumerate(variables)}
    for text in bounds:
        name, equals, interval = text.rpartition("=")
        low, colon, high = interval.partition(":")
        if not equals or not colon or not (low.strip() or high.strip()):
            raise ConstraintError(
                f"--bound is {text!r}; expected NAME=LOWER:UPPER. Fix: for example --bound pears=0:2."
            )
        try:
            if name not in positions:
                reject_unknown("variable", name, variables)
            for side, end in (("lower", low), ("upper", high)):
                if end.strip():
                    ends[side][..., positions[name]] = _number(end)
        except ConstraintError as error:
            raise ConstraintError(f"--bound {text}: {error}") from None
    try:
        return constraints.with_bounds(lower=ends["lower"], upper=ends["upper"])
    except ConstraintError as error:
        raise ConstraintError(f"--bound {' --bound '.join(bounds)}: {error}") from None


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConstraintError(f"{text!r} is not a number.") from None
    if not math.isfinite(value):
        raise ConstraintError(f"{text!r} is not finite; expected a finite number.")
    return value
