"""Results on disk, whole or not at all: written beside their place, then moved there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np


def write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Create ``path`` from what ``write(file)`` writes; an interrupt or an error leaves an older file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # a file that was moved into place must not be empty after a power cut
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def prepare(*paths: Path | None) -> None:
    """Make the folders of files to be written later, so that a wrong path is told before the work, not after it."""
    for path in paths:
        if path is not None:
            if path.is_dir():
                raise ValueError(f"{path} is a folder; expected the name of a file to write. Fix: {path / 'name'}.")
            path.parent.mkdir(parents=True, exist_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8."""
    write_whole(path, lambda file: file.write(text.encode()))


def write_json(path: Path, content: Any) -> None:
    """Write lists, dictionaries, numbers and texts."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """What ``write_json`` wrote; None where there is no such file."""
    return json.loads(path.read_text()) if path.exists() else None


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Write an .npz file."""
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
