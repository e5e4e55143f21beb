"""Peak memory of a piece of work inside this process, and a limit so that no method starves the machine.

On Linux the kernel's high-water mark of resident memory (VmHWM) is reset before the work (clear_refs) and
read after it; the baseline is what is resident at the reset, after freed heap pages went back to the system.
Elsewhere ru_maxrss takes its place, which can only show growth beyond anything that came before.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from machine import memory_bytes

_STATUS = Path("/proc/self/status")
_SHARE_OF_AVAILABLE = 0.97


@dataclass(frozen=True)
class Peak:
    """Baseline before the work and the highest resident memory during it, in bytes."""

    baseline: int
    highest: int

    @property
    def extra(self) -> int:
        return max(0, self.highest - self.baseline)


class PeakMemory:
    """``meter = PeakMemory(); work(); meter.read()``."""

    def __init__(self) -> None:
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # glibc only
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        self.resets = _reset_high_water()
        self.baseline = _status("VmRSS") if self.resets else _max_rss()

    def read(self) -> Peak:
        return Peak(self.baseline, _status("VmHWM") if self.resets else _max_rss())


def limit_memory(gigabytes: float | None) -> None:
    """Let this process allocate no more than that, or nearly all that is available, from here on.

    Beyond it, allocation fails with an error that is reported as "out of memory". Should the system run out all the
    same, this process is the first that it ends, rather than somebody's work.
    """
    with contextlib.suppress(OSError):  # Linux only
        Path("/proc/self/oom_score_adj").write_text("1000")
    allowed = _SHARE_OF_AVAILABLE * memory_bytes("MemAvailable") if gigabytes is None else gigabytes * 1e9
    mapped = _status("VmSize")
    if allowed <= 0 or not mapped:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = int(mapped + allowed)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def lift_limit() -> None:
    """Undo `limit_memory`, for work of the benchmark's own that must not fail."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _reset_high_water() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return _status("VmHWM") > 0


def _status(field: str) -> int:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), 0)


def _max_rss() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
