"""The binding of the native core (linsat.h): its structures, the library, and the reason why there is none.

Structures are packed, not built: a call of a small set takes microseconds, and so would a ctypes structure.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from linsat.errors import ConstraintError

_ABI = 10  # raised together with LINSAT_ABI whenever the meaning of an argument changes
_ON, _OFF = ("on", "1", "yes", ""), ("off", "0", "no")  # values of LINSAT_KERNEL, and
_INSTRUCTIONS = ("plain", "avx2", "avx512")  # the most that it may use, by its number in linsat.h
OBJECTIVES = ("entropy", "euclidean", "kl", "tsallis", "quadratic", "metric")  # by their number in linsat.h
PARAMETERS = 2  # numbers, or arrays of them, that an objective has at most
_NO_MEMORY = -1

_WHOLE, _REAL, _ADDRESS = "q", "d", "P"  # as `struct` calls them


class Record:
    """A structure of the core: ``pack`` takes its fields in order, those of structures within it one after another."""

    def __init__(self, *groups: tuple[str | Record, str]) -> None:
        """From groups of fields of one type; tests/native/test_native.py compares them with the header."""
        self.fields = [(name, kind) for kind, names in groups for name in names.split()]
        self.format: str = "".join(kind.format if isinstance(kind, Record) else kind for _, kind in self.fields)
        packer = struct.Struct(self.format)
        self.pack, self.size = packer.pack, packer.size


NUMBERS = Record((_ADDRESS, "at"), (_WHOLE, "step stride single"))
STATEMENT = Record(
    (_WHOLE, "objective entropic_slack"),
    (NUMBERS, "values side lower upper price " + "parameters " * PARAMETERS),
    (_REAL, "gamma_shift"),
)
SOLVE = Record(
    (_WHOLE, "count single max_steps threads"),
    (_REAL, "tol"),
    (_ADDRESS, "scores start known x duals decided status steps solver unsolved"),
)
GRADIENT = Record((_ADDRESS, "at"), (_WHOLE, "step"))
PULL = Record(
    (_WHOLE, "count single threads"),
    (_ADDRESS, "scores grad_x duals grad_duals status decided"),
    (_WHOLE, "decided_step"),
    (_ADDRESS, "grad_scores"),
    (GRADIENT, "values side lower upper price " + "parameters " * PARAMETERS),
)


@dataclass(frozen=True)
class Core:
    """The functions of the library, which release the GIL."""

    functions: ctypes.CDLL
    instructions: str  # the instruction set it runs with here


def check(code: int) -> None:
    """Raise what a function of the core has returned as an error.

    Raises:
        MemoryError: there is no memory for work arrays.
    """
    if code == _NO_MEMORY:
        raise MemoryError("there is not enough memory for the native core's work arrays.")
    if code:
        raise ValueError("the native core does not solve this objective.")


@functools.cache
def load() -> Core | str:
    """The library, or the reason why it cannot be used.

    ``LINSAT_KERNEL=off`` in the environment turns it off, ``avx2`` has it run without AVX-512, ``plain`` without both.

    Raises:
        ConstraintError: LINSAT_KERNEL has another value.
    """
    wanted = os.environ.get("LINSAT_KERNEL", "on").lower()
    if wanted in _OFF:
        return "turned off by LINSAT_KERNEL"
    if wanted not in _ON + _INSTRUCTIONS:
        raise ConstraintError(
            f"the environment variable LINSAT_KERNEL is {wanted!r}; expected on, off, or the instructions to use: "
            "plain, avx2 or avx512. "
            "Fix: one of these, or leave it out."
        )
    path = _path(Path(__file__).parent)
    if path is None:
        return (
            "it was not compiled when linsat was installed; reinstall linsat where there is a C compiler, such as gcc"
        )
    try:
        functions = ctypes.CDLL(str(path))
        differs = _differs(functions)
        if wanted in _INSTRUCTIONS:
            functions.linsat_limit_instructions(ctypes.c_int64(_INSTRUCTIONS.index(wanted)))
    except (OSError, AttributeError) as error:
        return f"its library cannot be loaded ({error}); reinstall linsat"
    if differs:
        return "its library was compiled from another version of linsat; reinstall linsat"
    whole, real, address, packed = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p, ctypes.c_char_p
    for function in (functions.linsat_solve, functions.linsat_pull_back):
        function.argtypes = (address, packed, packed)
    functions.linsat_layout.argtypes = (*(whole,) * 3, *(address,) * 5)
    functions.linsat_layout_free.argtypes = (address,)
    functions.linsat_analyse.argtypes = (whole, address, address, real, address, address)
    functions.linsat_factor.argtypes = (*(address,) * 4, real, *(address,) * 3)
    functions.linsat_refine.argtypes = (address, address, real, whole, address, address)
    functions.linsat_refine.restype = real
    functions.linsat_analysis_free.argtypes = (address,)
    functions.linsat_instructions.restype = packed
    return Core(functions, functions.linsat_instructions().decode())


def unavailable() -> str | None:
    """None, or the reason why the native core cannot be used at all."""
    loaded = load()
    return loaded if isinstance(loaded, str) else None


def _path(folder: Path) -> Path | None:
    candidates = (folder / f"_core{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


def _differs(functions: ctypes.CDLL) -> bool:
    """Whether the library disagrees with this file about what it is called with."""
    own = [_ABI, *(record.size for record in (NUMBERS, STATEMENT, SOLVE, GRADIENT, PULL))]
    sizes = (ctypes.c_int64 * len(own))()
    functions.linsat_abi(sizes)
    return list(sizes) != own
