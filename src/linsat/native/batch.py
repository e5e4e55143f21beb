"""Calling the native core: a layout of the pattern, made once, and batches of arrays or tensors; nothing is copied.

The core takes arrays of numpy and tensors of torch on the CPU. `arrange.h` makes the index tables of a layout.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linsat.native.binding import NUMBERS, OBJECTIVES, PARAMETERS, PULL, SOLVE, STATEMENT, Core, check

Array = Any  # of numpy, or a tensor on the CPU: float32 or float64
_SLOTS = 5  # numbers of a statement besides those of the objective: values, side, lower, upper, price
_FIRST = STATEMENT.size - NUMBERS.size * (_SLOTS + PARAMETERS) - 8  # where they begin; a real number follows them
_NOWHERE = (0, 0, 0, 0)
_RAN_OFF = 2  # in place of who solved an instance
# What linsat_layout returns, and why the array path or the interior-point method is the better choice.
_NO_MEMORY, _MADE = -1, 0
_REASONS = {
    2: "{} rows are more than {}",
    3: "{} variables are more than {}",
    4: "its tables would have {:,} entries, more than {:,}",
    5: "{} rows share variables with other rows, more than {}",
}
# The interior-point method of the core, and full quadratics, have dense factors of sets up to this size.
MOST_DENSE, LARGEST_DENSE = 1000, 250_000  # rows and variables together, and multiplied


class NativeLayout:
    """A layout in the memory of the core, freed with this object."""

    def __init__(self, address: int, rows: int, variables: int, coefficients: int, core: Core) -> None:
        self.address, self.rows, self.core = address, rows, core
        self.sizes = coefficients, rows, variables, variables, rows  # of the numbers of one instance
        # Not when Python ends: a thread may still be at work, and the memory goes anyway.
        weakref.finalize(self, core.functions.linsat_layout_free, address).atexit = False


def make_layout(row: np.ndarray, col: np.ndarray, senses: np.ndarray, variables: int, core: Core) -> NativeLayout | str:
    """The layout of a pattern, or the reason why the core does not take it."""
    row, col = (np.ascontiguousarray(index, dtype=np.int64) for index in (row, col))
    senses = np.ascontiguousarray(senses, dtype=np.int8)
    address, refused = ctypes.c_void_p(), (ctypes.c_int64 * 2)()
    tables = (array.ctypes.data for array in (row, col, senses))
    code = core.functions.linsat_layout(
        len(senses), variables, len(col), *tables, ctypes.addressof(address), ctypes.addressof(refused)
    )
    if code == _NO_MEMORY:
        raise MemoryError("there is not enough memory for the tables of the native core.")
    if code in _REASONS:
        return _REASONS[code].format(*refused)
    if code != _MADE or address.value is None:
        raise ValueError("a coefficient lies outside of the matrix, or in the same place as another.")
    return NativeLayout(address.value, len(senses), variables, len(col), core)


def fits_dense(rows: int, variables: int) -> bool:
    """Whether dense factors pay: as `interior_takes` of the core has it."""
    return rows + variables <= MOST_DENSE and rows * variables <= LARGEST_DENSE


@dataclass(slots=True)
class Statement:
    """A statement as the core reads it, and the arrays behind it, which must live as long."""

    packed: bytes
    arrays: tuple[Array, ...]

    def without(self, positions: Iterable[int]) -> Statement:
        """The same for `with_arrays`: arrays at these positions are gone, and those to come contiguous."""
        packed, kept = self.packed, list(self.arrays)
        for position in positions:
            rows, size = kept[position].shape
            packed = _put(packed, position, _PLACE.pack(0, 0 if rows == 1 else size, 1))
            kept[position] = None
        return Statement(packed, tuple(kept))

    def with_arrays(self, arrays: Mapping[int, Array]) -> Statement:
        """Contiguous arrays, by their positions, in place of those it is `without`, in their shapes and dtypes."""
        packed = self.packed
        for position, array in arrays.items():
            packed = _put(packed, position, _ADDRESS.pack(_address(array)))
        return Statement(packed, (*arrays.values(), *self.arrays))


_ADDRESS, _PLACE = struct.Struct("P"), struct.Struct("Pqq")  # how NUMBERS begins


def _put(packed: bytes, position: int, part: bytes) -> bytes:
    """A statement with another beginning of the numbers at a position."""
    at = _FIRST + NUMBERS.size * position
    return packed[:at] + part + packed[at + len(part) :]


@dataclass(slots=True)
class Answer:
    """What a solve gives back; arrays of numpy from the core, tensors from torch operations."""

    x: Array  # (N, l) in the dtype of the scores
    duals: Array  # (N, k) multipliers of the rows as written
    counts: Array  # (3, N) int64: positions in Status, steps, positions in SOLVERS
    decided: Array  # (1 or N, 2 l + 2 k) uint8: what presolve decided
    solved: bool  # whether every instance has converged
    statement: Statement | None = None  # what the core has read, for the way back
    addresses: tuple[int, int, int] | None = None  # of duals, counts and what is decided, where the core wrote them
    far: Sequence[int] = ()  # instances whose rows hold only relative to an x so large that rounding hides if they can

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
    return Statement(STATEMENT.pack(*fields), (*numbers, *parameters))


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
    whole, size = 8 * count * k, 2 * (width + k)
    flags = whole + 24 * count + 8
    # One block for all: whole numbers behind the duals, what is decided behind these.
    try:
        room = np.zeros(flags if known is not None else flags + count * size, np.uint8)
    except MemoryError:
        raise too_large(count, width, k) from None
    at = ctypes.addressof(ctypes.c_char.from_buffer(room.data))
    end = at + whole
    flags_at = at + flags if known is None else _address(known)
    call = SOLVE.pack(
        count,
        scores.itemsize == 4,
        max_steps,
        thread_count(),
        tol,
        _address(scores),
        0 if start is None else _address(start),
        0 if known is None else flags_at,
        _address(x),
        at,
        flags_at if known is None else 0,
        end,
        end + 8 * count,
        end + 16 * count,
        end + 24 * count,
    )
    check(layout.core.functions.linsat_solve(layout.address, statement.packed, call))
    unsolved = np.ndarray((), np.int64, room, flags - 8)
    decided = np.ndarray((count, size), np.uint8, room, flags) if known is None else known
    counts = np.ndarray((3, count), np.int64, room, whole)
    duals = np.ndarray((count, k), np.float64, room)
    answer = Answer(x, duals, counts, decided, not unsolved, statement, (at, end, flags_at))
    if unsolved:
        answer.far = np.flatnonzero(counts[2] == _RAN_OFF).tolist()
        counts[2, answer.far] = 0  # Newton's
    return answer


def pull_back(
    layout: NativeLayout,
    answer: Answer,
    scores: Array,
    grad_scores: Array,
    grad_x: Array | None,
    grad_duals: Array | None,
    others: Mapping[int, Array],
) -> None:
    """The gradient to the scores, into ``grad_scores``, and to other numbers, into ``others`` by their positions.

    Scores, grad_scores and grad_x are contiguous and of one dtype; duals, their gradient and the others are float64.
    One of the others that is as large as for one instance belongs to a number which instances share: it is their sum.
    """
    assert answer.statement is not None
    count = scores.shape[0]
    places = [0] * (2 * (_SLOTS + PARAMETERS))
    for position, gradient in others.items():
        size = layout.sizes[position] if position < _SLOTS else math.prod(gradient.shape[1:])
        places[2 * position] = _address(gradient)
        places[2 * position + 1] = 0 if math.prod(gradient.shape) == size else size
    decided = answer.decided
    duals, codes, flags = answer.addresses or map(_address, (answer.duals, answer.counts, decided))
    call = PULL.pack(
        count,
        scores.itemsize == 4,
        thread_count(),
        _address(scores),
        0 if grad_x is None else _address(grad_x),
        duals,
        0 if grad_duals is None else _address(grad_duals),
        codes,
        flags,
        decided.shape[1] if decided.shape[0] == count > 1 else 0,
        _address(grad_scores),
        *places,
    )
    check(layout.core.functions.linsat_pull_back(layout.address, answer.statement.packed, call))


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


def dense(array: Array) -> Array:
    """An array as the core reads it: contiguous, and with the sign that torch has yet to apply."""
    if type(array) is np.ndarray:
        return np.ascontiguousarray(array)
    tensor = array.resolve_neg()
    return tensor if tensor.is_contiguous() else tensor.detach().contiguous()


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
