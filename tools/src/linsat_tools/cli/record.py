"""A run of ``linsat project``: what it is asked to do, and the file that says how far it is."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from linsat.errors import ConstraintError
from linsat.solution import Solution
from linsat.status import Status

OUTPUTS = (".npy", ".csv", ".parquet")


@dataclass(frozen=True)
class Job:
    """One run of ``linsat project``: what to read, what to write, and whether to continue an earlier run."""

    constraints: Path
    scores: Path
    out: Path
    tau: float | None = None
    objective: str = "entropy"
    box: tuple[float, float] | None = None
    bounds: tuple[str, ...] = ()  # NAME=LOWER:UPPER
    soften: tuple[str, ...] = ()  # NAME=PRICE
    ids: tuple[str, ...] = ()  # columns of the scores that are no scores
    chunk: int | None = None  # instances per chunk; None: by the size of an instance
    resume: bool = False
    overwrite: bool = False

    @property
    def part(self) -> Path:
        return self.out.with_name(self.out.name + ".part")

    @property
    def record(self) -> Path:
        return self.out.with_name(self.out.name + ".json")

    def check(self) -> None:
        """Reject options that no file can make right."""
        if self.out.suffix.lower() not in OUTPUTS:
            raise ConstraintError(
                f"--out {self.out} ends in {self.out.suffix!r}; expected a name that ends in one of "
                f"{', '.join(OUTPUTS)}."
            )
        if self.chunk is not None and self.chunk < 1:
            raise ConstraintError(f"--chunk is {self.chunk}; expected at least one instance.")
        if self.resume and self.overwrite:
            raise ConstraintError("--resume and --overwrite were both given. Fix: one of them.")


@dataclass
class Record:
    """How far a run is, what it is made from, and how its instances ended. Written as JSON beside the output."""

    made_from: dict[str, Any]  # equal only for runs that must give the same bits
    instances: int
    done: int = 0
    status: dict[str, int] = field(default_factory=dict)  # instances by how they ended
    worst_violation: float = 0.0
    worst_instance: int | None = None

    @property
    def all_converged(self) -> bool:
        return self.status.get(Status.CONVERGED.value, 0) == self.instances

    def count(self, solution: Solution) -> None:
        """Add the next instances."""
        for name in map(str, solution.status.ravel()):
            self.status[name] = self.status.get(name, 0) + 1
        here = int(np.argmax(solution.violation))
        if self.worst_instance is None or solution.violation[here] > self.worst_violation:
            self.worst_violation = float(solution.violation[here])
            self.worst_instance = self.done + here
        self.done += len(solution.violation)

    def write(self, path: Path) -> None:
        beside = path.with_name(path.name + ".new")
        try:
            with open(beside, "w", encoding="utf-8") as file:
                json.dump(asdict(self), file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    @staticmethod
    def read(path: Path) -> Record | None:
        """The record of an earlier run; None where there is none."""
        try:
            return Record(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise ConstraintError(
                f"{path} is not the record of a run ({error}). Fix: --overwrite to start again."
            ) from None


def start_or_resume(job: Job, fresh: Record) -> Record:
    """The record to continue from: ``fresh``, or that of an earlier run that was made from the same."""
    if job.overwrite:
        return fresh
    found = Record.read(job.record)
    if not job.resume:
        if found is not None and found.done < found.instances:
            raise ConstraintError(
                f"{job.part} holds {found.done:,} of {found.instances:,} instances of a run that was stopped. "
                f"Fix: --resume to continue, or --overwrite to start again."
            )
        if job.out.exists():
            raise ConstraintError(f"{job.out} already exists. Fix: another name, or --overwrite.")
        return fresh
    if found is None:
        if job.out.exists():
            raise ConstraintError(f"{job.out} exists without its record {job.record}. Fix: --overwrite.")
        return fresh
    for name, expected in fresh.made_from.items():
        there = found.made_from.get(name)
        if there != expected:
            shown = "" if name in ("constraints", "scores") else f" ({there} then, {expected} now)"
            raise ConstraintError(
                f"{job.record}: the earlier run was made with another value of '{name}'{shown}. "
                f"Fix: the same inputs and options as then, or --overwrite to start again."
            )
    return found


def how_to_continue(job: Job) -> str:
    """What is safe of a run that ends early, and the way on."""
    record = Record.read(job.record)
    done, total = (0, "?") if record is None else (record.done, f"{record.instances:,}")
    return f"{done:,} of {total} instances are safe in {job.part}. Fix: continue with the same command and --resume."
