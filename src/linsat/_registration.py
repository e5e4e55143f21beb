"""The operators of graphs, registered as soon as both linsat and torch are imported, in whichever order.

A program of torch.export that holds them can then be loaded after ``import linsat``; and linsat imports torch no sooner
than it is needed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def register_operators() -> None:
    """Register now if torch is there, else when it has been imported."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _AfterTorch())
    elif sys.modules["torch"] is not None:  # None: torch may not be imported
        _register()


def _register() -> None:
    importlib.import_module("linsat.torch.operator")


class _AfterTorch:
    """Waits for the import of torch, which others find and carry out."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then_register(module: ModuleType) -> None:
                execute(module)
                _register()

            spec.loader.exec_module = then_register  # type: ignore[method-assign]
        return spec
