"""The compiled library: where it is, what it is called with, and why it cannot be used where it cannot."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from linsat.compile import presolve
from linsat.errors import ConstraintError
from linsat.solvers import linear_algebra, newton

# Raised together with the version in kernel.c whenever the meaning of an argument changes.
_ABI_VERSION = 6
_ON, _PLAIN, _OFF = ("on", "1", "yes", ""), ("plain",), ("off", "0", "no")  # values of LINSAT_KERNEL

_Whole, _Real, _Address = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


class Numbers(ctypes.Structure):
    """One array: its address and the distance between two instances, 0 where they share it."""

    _fields_ = [("at", _Address), ("step", _Whole)]


def _structure(name: str, *groups: tuple[Any, str]) -> type[ctypes.Structure]:
    """A structure of kernel.c from groups of fields of one type."""
    pairs = [(field, kind) for kind, names in groups for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": pairs})


Constants = _structure(
    "Constants",
    (_Real, "loose_residual cooling start_temperature least_damping first_damping largest_damping"),
    (
        _Real,
        "first_ridge largest_ridge refined_ridge shorten decrease rounding held largest_stride gap fine sum_rounding",
    ),
    (_Real, "contradiction vacuous forced unnoticed row_rounding"),
    (_Whole, "backtracks certificate_every sweeps"),
)
Layout = _structure(
    "Layout",
    (_Whole, "rows variables entries pairs leading width groups entry_runs pair_runs tiles separate dense"),
    (_Address, "order entry entry_row entry_col pair_first pair_second pair_col pair_target"),
    (_Address, "runs_of_entries runs_of_pairs group_start group_rows"),
    (_Address, "tile_start tile_entries tile_pairs tile_entry_runs tile_pair_runs"),
    (_Real, "seconds"),
)
Team = _structure("Team", (_Whole, "counter ticket done over"), (_Address, "part argument"))
Problem = _structure(
    "Problem",
    (_Whole, "objective entropic_slack"),
    (Numbers, "values lower upper rhs slack scale dual_lower dual_upper parameter"),
    (Numbers, "free at_upper active tight infeasible tight_share"),
)
Solve = _structure(
    "Solve",
    (_Whole, "count max_steps single together"),
    (_Real, "tol"),
    (_Address, "constants scores start x mu codes steps unsolved"),
)
Pull = _structure(
    "Pull",
    (_Whole, "count single together"),
    (_Address, "constants scores grad_x mu grad_mu codes grad_y q grad_parameter"),
)
Presolve = _structure("Presolve", (_Whole, "count"), (_Address, "constants senses free at_upper active infeasible"))


def _constants() -> ctypes.Structure:
    """The constants of the iteration and of presolve, from where they are written."""
    return Constants(
        loose_residual=newton.LOOSE_RESIDUAL,
        cooling=newton.COOLING,
        start_temperature=newton.START_TEMPERATURE,
        least_damping=newton.LEAST_DAMPING,
        first_damping=newton.FIRST_DAMPING,
        largest_damping=newton.LARGEST_DAMPING,
        first_ridge=newton.FIRST_RIDGE,
        largest_ridge=newton.LARGEST_RIDGE,
        refined_ridge=linear_algebra.REFINED_RIDGE,
        shorten=newton.SHORTEN,
        decrease=newton.DECREASE,
        rounding=newton.ROUNDING,
        held=newton.HELD,
        largest_stride=newton.LARGEST_STRIDE,
        gap=newton.GAP,
        fine=newton.FINE,
        sum_rounding=newton.SUM_ROUNDING,
        contradiction=presolve.CONTRADICTION,
        vacuous=presolve.VACUOUS,
        forced=presolve.FORCED,
        unnoticed=presolve.UNNOTICED,
        row_rounding=presolve.ROUNDING,
        backtracks=newton.BACKTRACKS,
        certificate_every=newton.CERTIFICATE_EVERY,
        sweeps=newton.SWEEPS,
    )


@dataclass(frozen=True)
class Library:
    """The functions of kernel.c, which release the GIL, and the constants they take."""

    functions: ctypes.CDLL
    constants: ctypes.Structure
    instructions: str  # the instruction set it runs with here
    # Tasks for `run`, which works through the instances of one call in several threads.
    forward: int
    backward: int
    presolve: int

    def run(self, task: int, layout: int, problem: ctypes.Structure, call: ctypes.Structure, threads: int) -> None:
        """Work through the instances of a call; addresses and structures as in kernel.c.

        Raises:
            MemoryError: there is no memory for work arrays.
        """
        if self.functions.linsat_run(task, layout, ctypes.addressof(problem), ctypes.addressof(call), threads):
            raise MemoryError("there is not enough memory for the kernel's work arrays.")

    @property
    def constants_at(self) -> int:
        return ctypes.addressof(self.constants)


@functools.cache
def load() -> Library | str:
    """The library, or the reason why it cannot be used.

    ``LINSAT_KERNEL=off`` in the environment turns it off, ``plain`` has it run without AVX2.

    Raises:
        ConstraintError: LINSAT_KERNEL has another value.
    """
    wanted = os.environ.get("LINSAT_KERNEL", "on").lower()
    if wanted in _OFF:
        return "turned off by LINSAT_KERNEL"
    if wanted not in _ON + _PLAIN:
        raise ConstraintError(
            f"the environment variable LINSAT_KERNEL is {wanted!r}; expected on, plain (without AVX2) or off. "
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
        if wanted in _PLAIN:
            functions.linsat_use_plain()
    except (OSError, AttributeError) as error:
        return f"its library cannot be loaded ({error}); reinstall linsat"
    if differs:
        return "its library was compiled from another version of linsat; reinstall linsat"
    functions.linsat_run.argtypes = (*(_Address,) * 4, _Whole)
    functions.linsat_layout.argtypes = (*(_Whole,) * 3, *(_Address,) * 4)
    functions.linsat_layout_free.argtypes = (_Address,)
    functions.linsat_claim.restype = _Whole
    functions.linsat_claim.argtypes = (_Address,)
    functions.linsat_instructions.restype = ctypes.c_char_p
    tasks = [getattr(functions, name) for name in ("linsat_forward", "linsat_backward", "linsat_presolve")]
    addresses = [ctypes.cast(task, _Address).value or 0 for task in tasks]
    return Library(functions, _constants(), functions.linsat_instructions().decode(), *addresses)


def unavailable() -> str | None:
    """None, or the reason why the kernel cannot be used at all."""
    loaded = load()
    return loaded if isinstance(loaded, str) else None


def _path(folder: Path) -> Path | None:
    candidates = (folder / f"_kernel{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


def _differs(functions: ctypes.CDLL) -> bool:
    """Whether the library disagrees with this file about what it is called with."""
    own = [_ABI_VERSION, *(ctypes.sizeof(kind) for kind in (Constants, Layout, Problem, Solve, Pull, Presolve, Team))]
    found = (_Whole * len(own))()
    functions.linsat_abi(found)
    return list(found) != own
