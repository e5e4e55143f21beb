"""How long work says how far it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Progress = Callable[[int, int], None]  # called as progress(done, count)
Bar = Callable[[str], AbstractContextManager[Progress | None]]  # opens a progress bar of that label
Note = Callable[[str], None]  # told a line of text


def no_bar(label: str) -> AbstractContextManager[Progress | None]:
    """Shows nothing."""
    return nullcontext()
