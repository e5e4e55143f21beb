"""The binding of the native core (linsat.h): its structures, the library, and the reason why there is none."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from linsat.errors import ConstraintError

_ABI = 7  # raised together with LINSAT_ABI whenever the meaning of an argument changes
_ON, _OFF = ("on", "1", "yes", ""), ("off", "0", "no")  # values of LINSAT_KERNEL, and
_INSTRUCTIONS = ("plain", "avx2", "avx512")  # the most that it may use, by its number in linsat.h
OBJECTIVES = ("entropy", "euclidean", "kl", "tsallis", "quadratic")  # by their number in linsat.h
PARAMETERS = 2  # numbers, or arrays of them, that an objective has at most
_NO_MEMORY = -1

_Whole, _Real, _Address = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


def _structure(name: str, *groups: tuple[Any, str]) -> type[ctypes.Structure]:
    """A structure of the core from groups of fields of one type; tests/test_native.py compares it with the header."""
    pairs = [(field, kind) for kind, names in groups for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": pairs})


Numbers = _structure("Numbers", (_Address, "at"), (_Whole, "step stride single"))
Parameters = Numbers * PARAMETERS
Statement = _structure(
    "Statement",
    (_Whole, "objective entropic_slack"),
    (Numbers, "values side lower upper price"),
    (Parameters, "parameters"),
    (_Real, "gamma_shift"),
)
Solve = _structure(
    "Solve",
    (_Whole, "count single max_steps threads"),
    (_Real, "tol"),
    (_Address, "scores start known x duals decided status steps solver unsolved"),
)
Gradient = _structure("Gradient", (_Address, "at"), (_Whole, "step"))
ParameterGradients = Gradient * PARAMETERS
Pull = _structure(
    "Pull",
    (_Whole, "count single threads"),
    (_Address, "scores grad_x duals grad_duals status decided"),
    (_Whole, "decided_step"),
    (_Address, "grad_scores"),
    (Gradient, "values side lower upper price"),
    (ParameterGradients, "parameters"),
)


@dataclass(frozen=True)
class Core:
    """The functions of the library, which release the GIL."""

    functions: ctypes.CDLL
    instructions: str  # the instruction set it runs with here

    def solve(self, layout: int, statement: ctypes.Structure, call: ctypes.Structure) -> None:
        """`linsat_solve`.

        Raises:
            MemoryError: there is no memory for work arrays.
        """
        _check(self.functions.linsat_solve(layout, ctypes.byref(statement), ctypes.byref(call)))

    def pull_back(self, layout: int, statement: ctypes.Structure, call: ctypes.Structure) -> None:
        """`linsat_pull_back`, likewise."""
        _check(self.functions.linsat_pull_back(layout, ctypes.byref(statement), ctypes.byref(call)))


def _check(code: int) -> None:
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
            functions.linsat_limit_instructions(_Whole(_INSTRUCTIONS.index(wanted)))
    except (OSError, AttributeError) as error:
        return f"its library cannot be loaded ({error}); reinstall linsat"
    if differs:
        return "its library was compiled from another version of linsat; reinstall linsat"
    for function in (functions.linsat_solve, functions.linsat_pull_back):
        function.argtypes = (_Address,) * 3
    functions.linsat_layout.argtypes = (*(_Whole,) * 3, *(_Address,) * 5)
    functions.linsat_layout_free.argtypes = (_Address,)
    functions.linsat_instructions.restype = ctypes.c_char_p
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
    own = [_ABI, *(ctypes.sizeof(kind) for kind in (Numbers, Statement, Solve, Gradient, Pull))]
    sizes = (_Whole * len(own))()
    functions.linsat_abi(sizes)
    return list(sizes) != own
