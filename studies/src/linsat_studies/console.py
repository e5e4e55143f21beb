"""What every sub-command shares: where output and errors go, errors in one line, a progress bar."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

out = Console()
err = Console(stderr=True)


def one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turn an error a user can fix into one line and exit code 2; an interrupt into exit code 130."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            err.print("interrupted: nothing half-finished was written")
            raise typer.Exit(130) from None
        except (ValueError, OSError, ImportError, MemoryError) as error:
            text = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else error
            err.print(
                f"error: {' '.join(str(text).split())}", style="red", markup=False, highlight=False, soft_wrap=True
            )
            raise typer.Exit(2) from None

    return guarded


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal; yields ``update(done, total)``. It goes to stderr, so that output can be piped."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        number = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(number, completed=done, total=total)
