"""Results on disk, whole or not at all: written beside their place, then moved there."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np


def write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Create ``path`` from what ``write(file)`` writes; an interrupt or an error leaves an older file as it was.

    Raises:
        OSError: the disk is full, the folder cannot be written; names the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # a file that was moved into place must not be empty after a power cut
        part.replace(path)
    except OSError as error:  # that of a write names no file
        raise OSError(error.errno, error.strerror, str(path)) from None
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


def read_text(path: Path) -> str:
    """A text in UTF-8, with or without a byte order mark.

    Raises:
        ValueError: not a text; names the file.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text in UTF-8 ({error.reason} at byte {error.start}).") from None


def read_table(path: Path) -> list[list[str]]:
    """The cells of a CSV file, line by line; lines without cells are left out.

    Raises:
        ValueError: not a text, or cells that no table has; names the file.
    """
    try:
        return [cells for cells in csv.reader(io.StringIO(read_text(path), newline="")) if cells]
    except csv.Error as error:
        raise ValueError(f"{path} is not a table of comma-separated values ({error}).") from None


def write_json(path: Path, content: Any) -> None:
    """Write lists, dictionaries, numbers and texts."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """What ``write_json`` wrote; None where there is no such file.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}). Fix: remove it; what it held is then computed again.") from None


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Write an .npz file."""
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
