"""The fused CPU kernel, loaded when first used; where numba is missing or cannot compile, the torch path serves."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from linsat.errors import LinSATWarning


@dataclass(frozen=True)
class KernelState:
    """Whether the kernel can be used, and why not."""

    available: bool
    reason: str
    forward: Any = None
    backward: Any = None
    propagate: Any = None
    fold: Any = None


class KernelBrokenError(RuntimeError):
    """The kernel could be imported but not compiled or run; from now on `load` says so."""


_broken: list[str] = []
_not_kept: list[str] = []
_told: list[str] = []


def load() -> KernelState:
    """Import the compiled functions once. ``LINSAT_KERNEL=off`` in the environment turns them off.

    numba compiles when a function is first called, so a toolchain that cannot may only show then: see `broken`.
    """
    if _broken:
        return KernelState(False, _broken[0])
    state = _import()
    return replace(state, reason=_slow_start()) if _not_kept and state.available else state


def not_kept(reason: str) -> None:
    """Remember that compiled code cannot be kept on disk: it works, but every process compiles it anew."""
    _not_kept.append(reason)


def warn_if_not_kept() -> None:
    """Once per process, say what a slow first call is due to and what mends it."""
    if _not_kept and not _told:
        _told.append(_not_kept[0])
        warnings.warn(f"the kernel is {_slow_start()}", LinSATWarning, stacklevel=2)


def _slow_start() -> str:
    return (
        f"ready, but compiled anew in every process: it cannot be kept on disk ({_not_kept[0]}). "
        "Fix: make room there, or set NUMBA_CACHE_DIR to a folder that can be written."
    )


def broken(error: Exception) -> KernelBrokenError:
    """Remember that the kernel failed, whatever the reason, so that nobody tries it again in this process."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    _broken.append(f"the kernel cannot be compiled ({text})")
    return KernelBrokenError(_broken[0])


@contextmanager
def running() -> Iterator[None]:
    """Around compiled code: it raises nothing but MemoryError, so anything else is the compiler's.

    Raises:
        KernelBrokenError: numba cannot compile.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise broken(error) from error
    warn_if_not_kept()


@functools.cache
def _import() -> KernelState:
    if os.environ.get("LINSAT_KERNEL", "on").lower() in ("off", "0", "no"):
        return KernelState(False, "turned off by LINSAT_KERNEL")
    try:
        from linsat._kernels import newton, presolve
    except ImportError as error:
        return KernelState(False, f"numba cannot be imported ({error})")
    except Exception as error:  # numba reports a broken toolchain or cache in many ways; none may stop the user
        return KernelState(False, f"the kernel cannot be compiled ({type(error).__name__}: {error})")
    return KernelState(True, "ready", newton.forward, newton.backward, presolve.propagate, presolve.fold)
