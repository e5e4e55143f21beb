"""What the sub-commands share: where output and errors go, errors in one line, exit codes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console

from linsat.errors import InfeasibleError

NOT_ALL_HOLD, BAD_INPUT, UNKNOWN, INTERRUPTED = 1, 2, 3, 130

# Without emoji: a name such as a:one: stays as it is.
out = Console(emoji=False)
err = Console(stderr=True, emoji=False)


def say(text: str, *, style: str = "") -> None:
    """One line of output, as it is: names from files are no markup, and pipes get whole lines."""
    out.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def say_json(content: Any) -> None:
    """Machine-readable output."""
    out.print(json.dumps(content, indent=2, allow_nan=False), markup=False, highlight=False, soft_wrap=True)


def complain(text: str) -> None:
    """One line on stderr."""
    err.print(" ".join(text.split()), style="red", markup=False, highlight=False, soft_wrap=True)


def one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what a user can fix into one line and an exit code; a bug stays a traceback."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt as interrupt:
            complain(f"interrupted. {interrupt}")
            raise typer.Exit(INTERRUPTED) from None
        except InfeasibleError as error:
            complain(f"infeasible: {error}")
            raise typer.Exit(NOT_ALL_HOLD) from None
        except (ValueError, OSError, ImportError, MemoryError) as error:
            text = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else error
            complain(f"error: {text if str(text) else type(error).__name__}")
            raise typer.Exit(BAD_INPUT) from None

    return guarded
