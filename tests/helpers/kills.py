"""What a program owes whoever kills it or fills the disk under it (`fuzz.kills`)."""

from __future__ import annotations

import random
import resource
import signal
from pathlib import Path
from typing import Any

from fuzz import kills


def assert_kills_change_nothing(program: kills.Program, folder: Path) -> None:
    """Killed twice, each time started again: it ends as if undisturbed and leaves nothing half-written."""
    trials = kills.trials(program, folder, 2, random.Random(1))
    assert all(trial.equal for trial in trials), trials
    assert all(trial.left == () for trial in trials), trials
    assert sum(trial.killed for trial in trials) == 2


def assert_a_full_disk_is_told(program: kills.Program, expected: Any, folder: Path, size: int) -> None:
    """Where every write beyond ``size`` bytes of a file fails: one line, code 2, and the next start ends well."""

    def limits() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    log = folder / "log"
    assert kills.wait(kills.start(program, folder / "run", log, limits=limits)) == 2
    lines = [line for line in log.read_text().splitlines() if "error:" in line]
    assert len(lines) == 1, log.read_text()
    assert "File too large" in lines[0]
    assert "Traceback" not in log.read_text()
    assert kills.wait(kills.start(program, folder / "run", log)) == 0
    assert kills.equal(program.result(folder / "run"), expected)
    assert kills.half_written(folder / "run") == []
