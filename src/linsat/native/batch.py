"""Calling the native core on a batch: arrays of numpy, or tensors of torch on the CPU; nothing is copied."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linsat.native.binding import OBJECTIVES, PARAMETERS, PULL, SOLVE, STATEMENT, Core, load
from linsat.native.layout import NativeLayout

Array = Any  # of numpy, or a tensor on the CPU: float32 or float64
NUMBERS = 5  # of a statement besides those of the objective: values, side, lower, upper, price
_NOWHERE = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as the core reads it, and the arrays behind it, which must live as long."""

    packed: bytes
    arrays: tuple[Array, ...]
    fields: tuple[Any, ...]  # what is packed

    def with_arrays(self, arrays: Mapping[int, Array]) -> Statement:
        """The same with other arrays of the same shapes and dtypes, by their positions."""
        fields, kept = list(self.fields), list(self.arrays)
        for position, array in arrays.items():
            kept[position] = array
            fields[2 + 4 * position : 6 + 4 * position] = _place(array, array.shape[0])
        return Statement(STATEMENT.pack(*fields), tuple(kept), self.fields)


@dataclass(slots=True)
class Answer:
    """What a solve gives back; arrays of numpy from the core, tensors from torch operations."""

    x: Array  # (N, l) in the dtype of the scores
    duals: Array  # (N, k) multipliers of the rows as written
    counts: Array  # (3, N) int64: positions in Status, steps, positions in SOLVERS
    decided: Array  # (1 or N, 2 l + 2 k) uint8: what presolve decided
    solved: bool  # whether every instance has converged
    statement: Statement | None = None  # what the core has read, for the way back

    @property
    def codes(self) -> Array:
        return self.counts[0]


def state(
    kind: str, entropic_slack: bool, numbers: Sequence[Array], parameters: Sequence[Array], count: int, shift: float
) -> Statement:
    """A statement from (1 or count, .) arrays: values, side, lower, upper, price, and those of the objective."""
    places = [part for array in (*numbers, *parameters) for part in _place(array, count)]
    places += _NOWHERE * (PARAMETERS - len(parameters))
    fields = (OBJECTIVES.index(kind), entropic_slack, *places, shift)
    return Statement(STATEMENT.pack(*fields), (*numbers, *parameters), fields)


def solve(
    layout: NativeLayout,
    statement: Statement,
    scores: Array,
    x: Array,
    *,
    tol: float,
    max_steps: int,
    start: Array | None = None,
    known: np.ndarray | None = None,
) -> Answer:
    """Solve scores (N, l) into x, both contiguous and of one dtype; ``start`` are duals (N, k) in float64.

    ``known`` is what is decided for all instances; without it presolve decides for each, (N, .).
    """
    count, width = scores.shape
    k = layout.rows
    numbers, size = count * k, 2 * (width + k)
    own = 0 if known is not None else count * size
    # One block for all: whole numbers behind the duals, what is decided behind these.
    try:
        room = np.zeros(numbers + 3 * count + 1 + (own + 7) // 8)
    except MemoryError:
        raise too_large(count, width, k) from None
    at = _address(room)
    end = at + 8 * numbers
    call = SOLVE.pack(
        count,
        scores.itemsize == 4,
        max_steps,
        thread_count(),
        tol,
        _address(scores),
        0 if start is None else _address(start),
        0 if known is None else _address(known),
        _address(x),
        at,
        0 if known is not None else end + 24 * count + 8,
        end,
        end + 8 * count,
        end + 16 * count,
        end + 24 * count,
    )
    _core().solve(layout.address, statement.packed, call)
    whole = room[numbers : numbers + 3 * count + 1].view(np.int64)
    decided = known
    if decided is None:
        decided = room[numbers + 3 * count + 1 :].view(np.uint8)[:own].reshape(count, size)
    duals = room[:numbers].reshape(count, k)
    return Answer(x, duals, whole[:-1].reshape(3, count), decided, not whole[-1], statement)


def pull_back(
    layout: NativeLayout,
    answer: Answer,
    scores: Array,
    grad_scores: Array,
    grad_x: Array | None,
    grad_duals: Array | None,
    wanted: Sequence[tuple[int, ...] | None],
) -> list[np.ndarray | None]:
    """The gradient to the scores, into ``grad_scores``, and those of the shapes ``wanted``, None: not wanted.

    Scores, grad_scores and grad_x are contiguous and of one dtype; the duals and their gradient are float64. A shape
    that begins with 1 is that of a number which instances share: its gradient is their sum.
    """
    assert answer.statement is not None
    count = scores.shape[0]
    made = [None if shape is None else np.empty(shape) for shape in wanted]
    places: list[int] = []
    for gradient in made:
        if gradient is None:
            places += (0, 0)
        else:
            places += (_address(gradient), gradient.shape[1] if gradient.shape[0] == count else 0)
    places += [0] * (2 * (NUMBERS + PARAMETERS) - len(places))
    decided = answer.decided
    call = PULL.pack(
        count,
        scores.itemsize == 4,
        thread_count(),
        _address(scores),
        0 if grad_x is None else _address(grad_x),
        _address(answer.duals),
        0 if grad_duals is None else _address(grad_duals),
        _address(answer.counts),
        _address(decided),
        decided.shape[1] if decided.shape[0] == count > 1 else 0,
        _address(grad_scores),
        *places,
    )
    _core().pull_back(layout.address, answer.statement.packed, call)
    return made


def too_large(count: int, width: int, rows: int) -> MemoryError:
    """What a batch needs where there is not enough memory for it."""
    needed = 8 * count * (2 * width + rows) / 2**30
    return MemoryError(
        f"y holds {count:,} instances of {width:,} variables; there is not enough memory for the {needed:.2g} GB that "
        f"solving them at once needs. Fix: smaller batches, for instance "
        f"torch.cat([linsat.project(part, constraints) for part in y.split({max(1, min(4096, count // 8))})])."
    )


def thread_count() -> int:
    """How many threads a call may use: as many as torch, where torch is used."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch.get_num_threads()
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else len(os.sched_getaffinity(0))


def _core() -> Core:
    core = load()
    assert isinstance(core, Core)  # or there would be no layout
    return core


def _address(array: Array) -> int:
    return array.__array_interface__["data"][0] if type(array) is np.ndarray else array.data_ptr()


def _place(array: Array, count: int) -> tuple[int, int, int, bool]:
    """Where the numbers of ``count`` instances are: one each, or shared by all."""
    rows = array.shape[0]
    if rows != 1 and rows != count:  # the core would read beyond the end
        raise ValueError(f"an array of shape {tuple(array.shape)} does not fit a batch of {count} instances.")
    size = array.itemsize
    if type(array) is np.ndarray:
        step, stride = array.strides
        step, stride = step // size, stride // size
    else:
        step, stride = array.stride()
    return _address(array), 0 if rows == 1 else step, stride, size == 4
