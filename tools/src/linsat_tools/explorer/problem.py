"""`Problem`: rows and boxes over named variables, and the constraint set they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from linsat.constraints import Constraints

_BLOCKS = (("<=", "A", "b"), (">=", "C", "d"), ("==", "E", "f"))


@dataclass(frozen=True)
class Row:
    """One relation, all variables on the left."""

    line: int  # of the text, from 1
    name: str
    coefficients: dict[str, float]
    sense: str  # "<=", ">=" or "=="
    rhs: float
    text: str  # as it was written
    price: float | None = None  # what breaking it costs per unit; None: it must hold


@dataclass(frozen=True)
class Problem:
    """What a user wrote: variables in order of appearance, rows in order of lines, a box for every variable."""

    variables: tuple[str, ...]
    rows: tuple[Row, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    @property
    def order(self) -> list[int]:
        """Rows as a constraint set has them: those with <= first, then >=, then ==."""
        return [i for sense, _, _ in _BLOCKS for i, row in enumerate(self.rows) if row.sense == sense]

    def matrix(self) -> np.ndarray:
        """Coefficients (rows, variables), in the order of the lines."""
        return np.array(
            [[row.coefficients.get(name, 0.0) for name in self.variables] for row in self.rows], dtype=float
        ).reshape(len(self.rows), len(self.variables))

    def arguments(self) -> dict[str, Any]:
        """The arguments of `linsat.Constraints`, as plain lists."""
        found: dict[str, list] = {}
        matrix = self.matrix().tolist()
        for sense, matrix_name, side_name in _BLOCKS:
            here = [i for i, row in enumerate(self.rows) if row.sense == sense]
            if here:
                found[matrix_name] = [matrix[i] for i in here]
                found[side_name] = [self.rows[i].rhs for i in here]
        found["lower"], found["upper"] = list(self.lower), list(self.upper)
        if self.rows:
            found["names"] = [self.rows[i].name for i in self.order]
        return found

    def prices(self) -> dict[int, float]:
        """The price of each soft row by its position in the set."""
        ordered = (self.rows[i].price for i in self.order)
        return {position: price for position, price in enumerate(ordered) if price is not None}

    def constraints(self) -> Constraints:
        """The set itself; rows in the order of ``order``."""
        found = Constraints(**self.arguments(), variables=list(self.variables))
        prices = self.prices()
        return found.soften(list(prices), price=list(prices.values())) if prices else found
