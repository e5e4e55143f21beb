"""The fused CPU kernel, loaded when first used; where numba is missing or cannot compile, the torch path serves."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KernelState:
    """Whether the kernel can be used, and why not."""

    available: bool
    reason: str
    forward: Any = None
    backward: Any = None


class KernelBrokenError(RuntimeError):
    """The kernel could be imported but not compiled or run; from now on `load` says so."""


_broken: list[str] = []


def load() -> KernelState:
    """Import the compiled functions once. ``LINSAT_KERNEL=off`` in the environment turns them off.

    numba compiles when a function is first called, so a toolchain that cannot may only show then: see `broken`.
    """
    return KernelState(False, _broken[0]) if _broken else _import()


def broken(error: Exception) -> KernelBrokenError:
    """Remember that the kernel failed, whatever the reason, so that nobody tries it again in this process."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    _broken.append(f"the kernel cannot be compiled ({text})")
    return KernelBrokenError(_broken[0])


@functools.cache
def _import() -> KernelState:
    if os.environ.get("LINSAT_KERNEL", "on").lower() in ("off", "0", "no"):
        return KernelState(False, "turned off by LINSAT_KERNEL")
    try:
        from linsat._kernels import newton
    except ImportError as error:
        return KernelState(False, f"numba cannot be imported ({error})")
    except Exception as error:  # numba reports a broken toolchain or cache in many ways; none may stop the user
        return KernelState(False, f"the kernel cannot be compiled ({type(error).__name__}: {error})")
    return KernelState(True, "ready", newton.forward, newton.backward)
