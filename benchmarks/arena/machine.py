"""What the records were measured on."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

PACKAGES = ("torch", "jax", "pinet-hcnn", "moreau", "cvxpylayers", "qpth", "proxsuite", "pyepo", "ortools", "clarabel")
PACKAGES += ("qpsolvers", "hierarchicalforecast")


def describe() -> dict[str, Any]:
    """The processor and the versions of everything that runs."""
    versions = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {"name": f"{platform.machine()} with {os.cpu_count()} cores, one thread", "versions": versions}
