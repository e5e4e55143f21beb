"""Compiled code of the studies, kept on disk in the way of linsat's kernel: damaged or unwritable files cost time only.

The one place where the studies reach behind linsat's public interface.
"""

from __future__ import annotations

from linsat._kernels.compiled import compiled

__all__ = ["compiled"]
