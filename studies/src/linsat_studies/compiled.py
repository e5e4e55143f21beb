"""Compiling functions and keeping the result on disk, where nothing that happens to those files can do harm.

numba's own cache (``cache=True``) refuses to decorate where no folder can be written, fails where a file is damaged or
the disk is full, and would run machine code whose bits have changed. Here a file carries the digest of its content: a
file that is damaged, half-written or of another version is compiled anew and replaced, and a folder or disk that takes
no files costs the time of compiling in every process, which a warning says once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import njit
from numba.core.caching import FunctionCache
from numba.core.serialize import dumps

_DIGEST = hashlib.sha256().digest_size
_told: list[str] = []


def not_kept(reason: str) -> None:
    """Once per process, say what slow first calls are due to and what mends them."""
    if not _told:
        warnings.warn(
            f"compiled code cannot be kept on disk ({reason}), so every process compiles it anew. "
            "Fix: make room there, or set NUMBA_CACHE_DIR to a folder that can be written.",
            UserWarning,
            stacklevel=3,
        )
    _told.append(reason)


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with these options, its results kept in the folders that numba would use (``NUMBA_CACHE_DIR``)."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(**options)(function)
        try:
            dispatcher._cache = _Kept(function)
        except (RuntimeError, OSError):  # numba finds no folder to write to
            not_kept("no folder for it can be written")
        except AttributeError as error:  # a numba whose cache is built otherwise
            not_kept(f"this numba keeps files in another way: {error}")
        return dispatcher

    return decorate


class _Kept(FunctionCache):
    """What numba asks before it compiles and tells afterwards."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file: Any = _Files(
            Path(self._cache_path),
            self._impl.filename_base,
            repr((numba.__version__, self._impl.locator.get_source_stamp())),
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever is wrong with a file, compiling mends it
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            not_kept(f"{error.strerror}: {self._cache_path}")


class _Files:
    """One file for each signature of a function: a digest, then the pickled (key, compiled code)."""

    def __init__(self, folder: Path, name: str, version: str) -> None:
        self._folder, self._name, self._version = folder, name, version

    def _path(self, key: Any) -> Path:
        digest = hashlib.sha256(repr((self._version, key)).encode()).hexdigest()
        return self._folder / f"{self._name}.{digest[:16]}.kept"

    def load(self, key: Any) -> Any:
        """The compiled code, None where there is none or its file is damaged."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        digest, body = content[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(body).digest() != digest:
            return None
        known, data = pickle.loads(body)
        return data if known == (self._version, key) else None

    def save(self, key: Any, data: Any) -> None:
        """Write whole or not at all; a digest needs no wait for the disk."""
        body = dumps(((self._version, key), data))
        path = self._path(key)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(hashlib.sha256(body).digest() + body)
            part.replace(path)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def flush(self) -> None:
        """Forget everything, as numba's ``recompile`` asks."""
        for path in self._folder.glob(f"{self._name}.*.kept"):
            path.unlink(missing_ok=True)
