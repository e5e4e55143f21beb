"""Bridges to other libraries, a module each, imported when first used: ``linsat.interop.linsatnet.sinkhorn``."""

import importlib
from typing import Any

_MODULES = ("hierarchicalforecast", "linsatnet", "models", "optax", "pyepo", "qpsolvers", "two_sided")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'linsat.interop' has no attribute {name!r}")
    return importlib.import_module(f"linsat.interop.{name}")
