"""Operands and answers of the primitives (`linsat.jax.core`), by their names; and what is static in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from linsat.arrays.newton import Newton
from linsat.native.binding import OBJECTIVES, PARAMETERS
from linsat.objectives import Objective
from linsat.objectives.base import Kind as ObjectiveKind
from linsat.objectives.base import of_kind
from linsat.plan import Numbers, Plan

Array = Any


class Operands(NamedTuple):
    """Of `solve`."""

    scores: Array  # (N, l)
    row: Array  # (nnz,) int32
    col: Array  # (nnz,) int32
    senses: Array  # (k,) int8
    values: Array  # (1 or N, .) floating where they came with the call, else the bytes of doubles
    side: Array
    lower: Array
    upper: Array
    price: Array
    first: Array  # numbers of the objective, (0, 0) where it has none
    second: Array
    start: Array  # (N, k), or (0, 0)
    known: Array  # (1, .) what is decided for all instances, or (0, 0)
    rest: Array  # (1 or N, k) of the sides, what the precision of JAX does not hold, or (0, 0)


class Solved(NamedTuple):
    """Of `push` and `pull_back`, before tangents or cotangents: what `solve` was given, and what it made of that."""

    scores: Array
    row: Array
    col: Array
    senses: Array
    values: Array
    side: Array
    lower: Array
    upper: Array
    price: Array
    first: Array
    second: Array
    duals: Array
    bits: Array
    counts: Array
    decided: Array


class Answers(NamedTuple):
    """Of `solve`."""

    x: Array  # (N, l)
    duals: Array  # (N, k) in the precision of JAX
    bits: Array  # (N, 8 k) uint8: the duals as they are
    counts: Array  # (N, 3) int32: positions in Status, steps, positions in SOLVERS
    decided: Array  # (N, .) uint8


NUMBERS = slice(Operands._fields.index("values"), Operands._fields.index("first"))  # of the set, among operands
MOVING = (0, *range(NUMBERS.start, NUMBERS.stop + PARAMETERS))  # operands that may have a tangent


def work_dtype() -> Any:
    """The longest floats that JAX has at present."""
    return jax.dtypes.canonicalize_dtype(np.float64)


@dataclass(frozen=True, eq=False)
class Kind:
    """What is static in a computation; hashed by identity, so that one is kept for each kind of call."""

    plan: Plan
    stated: ObjectiveKind  # the objective without its numbers
    constants: tuple[np.ndarray | None, ...]  # numbers of the set that do not come with the call
    native: bool

    @property
    def options(self) -> np.ndarray:
        """As native/xla.h reads them."""
        plan, solver = self.plan, self.plan.solver
        assert isinstance(solver, Newton)
        kind = OBJECTIVES.index(plan.objective.native or OBJECTIVES[0])
        slack, shift = plan.objective.entropic_slack, solver.gamma_shift
        return np.array([kind, slack, shift, solver.tol, solver.max_steps], np.float64)

    def numbers(self, operands: Sequence[Array]) -> Numbers:
        """As arrays of JAX."""
        dtype = work_dtype()
        given = operands[NUMBERS]
        pairs = zip(self.constants, given, strict=True)
        return Numbers(*(array if kept is None else jnp.asarray(kept, dtype) for kept, array in pairs))

    def objective(self, operands: Sequence[Array]) -> Objective:
        """With the numbers of the call."""
        count = len(self.stated[2])
        return of_kind(self.stated, operands[NUMBERS.stop :][:count])
