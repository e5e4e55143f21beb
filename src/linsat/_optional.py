"""Packages that only some users need: imported where they are used, with an error that names the extra."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any


def is_tensor(value: Any) -> bool:
    """Whether the value is a torch tensor, asked without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def torch_installed() -> bool:
    """Whether torch is there, asked without importing it."""
    try:
        return "torch" in sys.modules or importlib.util.find_spec("torch") is not None
    except (ImportError, ValueError):
        return False


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import ``module``, or say which extra of linsat brings it.

    Raises:
        ImportError: it is not installed; the message is one line with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f'{purpose} needs {package} ({error}). Fix: pip install "linsat[{extra}]"', name=package
        ) from None
