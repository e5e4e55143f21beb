"""What the records were measured on."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import machine

PACKAGES = ("torch", "jax", "pinet-hcnn", "moreau", "cvxpylayers", "qpth", "proxsuite", "qpax", "osqp", "quadprog")
PACKAGES += ("pyepo", "ortools", "clarabel", "highspy", "qpsolvers", "hierarchicalforecast", "POT", "ott-jax")


def describe() -> dict[str, Any]:
    """The processor, the commit, and the versions of everything that runs."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    about = machine.machine()
    return {
        "cpu": about["cpu"],
        "platform": about["platform"],
        "python": machine.versions()["python"],
        "commit": machine.commit(),
        "versions": versions,
    }
