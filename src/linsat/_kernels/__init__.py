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


@functools.cache
def load() -> KernelState:
    """Import the compiled functions once. ``LINSAT_KERNEL=off`` in the environment turns them off."""
    if os.environ.get("LINSAT_KERNEL", "on").lower() in ("off", "0", "no"):
        return KernelState(False, "turned off by LINSAT_KERNEL")
    try:
        from linsat._kernels import newton
    except ImportError as error:
        return KernelState(False, f"numba cannot be imported ({error})")
    except Exception as error:  # numba reports a broken toolchain or cache in many ways; none may stop the user
        return KernelState(False, f"the kernel cannot be compiled ({type(error).__name__}: {error})")
    return KernelState(True, "ready", newton.forward, newton.backward)
