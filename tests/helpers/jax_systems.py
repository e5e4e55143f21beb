"""Systems for `linsat.jax`, random and structured, padded to a few shapes: JAX compiles once for each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import linsat
from tests.helpers.oracles import random_system

SENSES = {"<=": ("A", "b"), ">=": ("C", "d"), "==": ("E", "f")}
# Rows of each kind, and variables.
SHAPES = [(2, 2, 2, 8), (4, 3, 2, 16), (3, 5, 4, 30), (6, 6, 3, 40), (1, 1, 12, 36), (8, 4, 4, 60)]
OBJECTIVES = {
    "paper": linsat.Entropy(0.2),
    "slack-free": linsat.Entropy(0.2, slack="none"),
    "euclidean": linsat.Euclidean(),
    "weighted": linsat.Euclidean(weights=np.linspace(0.5, 2.0, 60)),
    "kl": linsat.KL(0.5),
    "prior": linsat.KL(0.5, prior=np.linspace(0.2, 1.0, 60)),
    "tsallis": linsat.Tsallis(1.5, tau=0.5),
}


def objective_of(name: str, width: int) -> linsat.Objective:
    """One of them, with numbers for as many variables."""
    return OBJECTIVES[name].changed(lambda number: number[:width] if np.ndim(number) else number)


@dataclass(frozen=True)
class Batch:
    """Systems of one shape as one set of full rows, and numbers for each instance."""

    cons: linsat.Constraints
    numbers: dict[str, np.ndarray]  # A, b, C, d, E, f, each with a leading axis
    scores: np.ndarray  # (count, l)
    known: np.ndarray  # (count, l) points that satisfy the rows

    def in_torch(self) -> linsat.Constraints:
        own = self.numbers
        cons = self.cons.with_coefficients(A=own["A"], C=own["C"], E=own["E"])
        return cons.with_rhs(b=own["b"], d=own["d"], f=own["f"])


def batch(shape: tuple[int, int, int, int], count: int, seed: int) -> Batch:
    """``count`` feasible systems of one padded shape: every third structured (transport), the others random."""
    rng = np.random.default_rng(seed)
    found = [_one(rng, shape, structured=i % 3 == 0) for i in range(count)]
    numbers = {name: np.stack([system[name] for system, _ in found]) for name in ("A", "b", "C", "d", "E", "f")}
    l = shape[3]
    full = {name: np.ones((rows, l)) for name, rows in zip("ACE", shape[:3], strict=True)}
    sides = {"b": np.full(shape[0], float(l)), "d": np.zeros(shape[1]), "f": np.full(shape[2], 0.5 * l)}
    cons = linsat.Constraints(**full, **sides)
    scores = rng.normal(size=(count, l)) * rng.choice([0.3, 1.0, 3.0], (count, 1))
    return Batch(cons, numbers, scores, np.stack([point for _, point in found]))


def _one(rng: np.random.Generator, shape: tuple[int, int, int, int], *, structured: bool) -> tuple[dict, np.ndarray]:
    """Numbers of one system in full rows; rows and variables that are not used are zero, with a side that holds."""
    counts, l = dict(zip(SENSES, shape[:3], strict=True)), shape[3]
    own: dict[str, np.ndarray] = {}
    for sense, (matrix, side) in SENSES.items():
        own[matrix] = np.zeros((counts[sense], l))
        own[side] = np.full(counts[sense], {"<=": 1.0, ">=": -1.0, "==": 0.0}[sense])
    point = rng.uniform(0.05, 0.95, l)
    if structured:
        _transport(rng, own, point)
        return own, point
    system = random_system(rng, str(rng.choice(["positive", "signed"])), largest=l, rows=min(l // 2, 9))
    width = system.matrix.shape[1]
    point[:width] = system.point
    used = dict.fromkeys(SENSES, 0)
    for row, sense, rhs in zip(system.matrix, system.senses, system.rhs, strict=True):
        matrix, side = SENSES[sense]
        # Dependent equalities have no derivative by their sides: any change of one alone leaves no point.
        dependent = sense == "==" and _dependent(own[matrix][: used[sense], :width], row)
        if used[sense] < counts[sense] and not dependent:
            own[matrix][used[sense], :width], own[side][used[sense]] = row, rhs
            used[sense] += 1
    return own, point


def _dependent(rows: np.ndarray, row: np.ndarray) -> bool:
    return np.linalg.matrix_rank(np.vstack([rows, row])) <= len(rows)


def _transport(rng: np.random.Generator, own: dict[str, np.ndarray], point: np.ndarray) -> None:
    """Row and column sums of a matrix: capacities from above, demands from below, the first row and column exact."""
    side = int(np.sqrt(len(point)))
    matrix = point[: side * side].reshape(side, side)
    columns = np.arange(side * side).reshape(side, side)
    for i in range(min(len(own["b"]), side)):
        own["A"][i, columns[i]], own["b"][i] = 1.0, matrix[i].sum() + rng.exponential(0.3)
    for j in range(min(len(own["d"]), side)):
        own["C"][j, columns[:, j]], own["d"][j] = 1.0, matrix[:, j].sum() - rng.exponential(0.3)
    for i in range(min(len(own["f"]), side)):
        own["E"][i, columns[-1 - i]], own["f"][i] = 1.0, matrix[-1 - i].sum()
