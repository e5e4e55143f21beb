"""How far the demo is: a bar on a terminal, one line a step elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Steps:
    """Counts steps; use it in a ``with`` block and call ``begin`` at each."""

    def __init__(self, total: int) -> None:
        self.total, self.number = total, 0
        self.console = Console()
        columns = (
            SpinnerColumn(),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        self.bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.task = self.bar.add_task("", total=total)

    def begin(self, what: str) -> None:
        """The next step begins, the one before is done."""
        self.number += 1
        self.bar.update(self.task, completed=self.number - 1, description=what)
        if self.bar.disable:
            print(f"[{self.number}/{self.total}] {what}", flush=True)

    def __enter__(self) -> Steps:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
