"""Where and with what a result was measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = (
    "linsat",
    "torch",
    "numpy",
    "scipy",
    "LinSATNet",
    "cvxpylayers",
    "cvxpy",
    "diffcp",
    "clarabel",
    "qpth",
    "proxsuite",
    "moreau",
    "pinet-hcnn",
    "jax",
    "POT",
    "pygmtools",
)


def machine() -> dict[str, object]:
    """CPU model, cores this process may use, memory and platform."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(memory_bytes("MemTotal") / 1e9, 1),
        "platform": platform.platform(),
    }


def versions() -> dict[str, str | None]:
    """Python and every package that is measured or measures; None where not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def commit() -> str:
    """The commit of the checkout, with "+changes" where files differ from it, but for docs, which a run writes."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()

    try:
        changed = bool(git("status", "--porcelain", "--untracked-files=no", "--", ":!docs"))
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


class OtherWork:
    """How many cores programs other than this one and its children keep busy, on average since the start."""

    def __init__(self) -> None:
        self.start = self._now()

    def cores(self, also_own: float = 0.0) -> float | None:
        """None where the system does not say; ``also_own`` are seconds of processes that are not our children."""
        wall, busy, own = (now - then for now, then in zip(self._now(), self.start, strict=True))
        return None if busy <= 0 or wall <= 0 else round(max(0.0, busy - own - also_own) / wall, 2)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds on the clock, of all cores at work, and of this process and its ended children."""
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        try:
            fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        except OSError:
            return time.monotonic(), 0.0, own
        user, nice, system, _idle, _waiting, irq, softirq, steal = (int(field) for field in fields)
        ticks = user + nice + system + irq + softirq + steal
        return time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), own


def memory_bytes(field: str) -> int:
    """A field of /proc/meminfo (MemTotal, MemAvailable) in bytes; 0 where there is no such file."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if ":" in line}
    return sizes.get(field, 0)


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
