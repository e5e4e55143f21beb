"""Projecting a score file of any size, chunk by chunk, so that being killed at any moment loses one chunk at most.

Three files: ``x.npy.part`` grows by one chunk at a time; ``x.npy.json``, replaced whole once a chunk is on the disk,
says how many instances of it count and what they were made from; ``x.npy`` appears by renaming when all are there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

import linsat
from linsat.backends.cpu_kernel.native import unavailable
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import expected_shape
from linsat.errors import ConstraintError
from linsat.files import Model, read_model
from linsat.files.scores import ScoreFile, open_scores
from linsat.projection import solve
from linsat.solution import Solution
from linsat.status import Status

_NUMBERS_PER_CHUNK = 2**21  # of the largest array that a chunk needs: 16 MB each in float64, a few of them at once


@dataclass(frozen=True)
class Job:
    """One run of ``linsat project``: what to read, what to write, and whether to go on with an earlier run."""

    constraints: Path
    scores: Path
    out: Path
    tau: float = 0.1
    box: tuple[float, float] | None = None
    chunk: int | None = None  # instances per chunk; None: by the size of an instance
    resume: bool = False
    overwrite: bool = False

    @property
    def part(self) -> Path:
        return self.out.with_name(self.out.name + ".part")

    @property
    def record(self) -> Path:
        return self.out.with_name(self.out.name + ".json")


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


def run(job: Job, progress: Callable[[int, int], None] = lambda done, total: None) -> Record:
    """Project all scores of a file; ``progress(done, total)`` is called after each chunk.

    Memory: the constraint set and a few arrays of one chunk (about 0.2 GB), whatever the size of the files.

    Raises:
        ConstraintError: malformed input or options, or files that belong to another run.
        InfeasibleError: the rows contradict each other.
        OSError: the disk is full; what was written counts, and the message says how to go on.
    """
    if job.out.suffix != ".npy":
        raise ConstraintError(f"--out {job.out} ends in {job.out.suffix!r}; expected a name that ends in .npy.")
    if not (np.isfinite(job.tau) and job.tau > 0):
        raise ConstraintError(f"--tau is {job.tau}; expected a positive, finite temperature. Fix: --tau 0.1, say.")
    if job.chunk is not None and job.chunk < 1:
        raise ConstraintError(f"--chunk is {job.chunk}; expected at least one instance.")
    model = read_model(job.constraints, box=job.box)
    scores = _read_scores(job.scores, model)
    try:
        model.constraints.require_finite_box()
    except ConstraintError as error:
        raise ConstraintError(f"{job.constraints}: {error} On the command line: --box LOWER UPPER.") from None
    constraints = model.constraints.check()
    chunk = job.chunk or _chunk_size(constraints)
    fresh = Record(_made_from(job, scores, chunk), scores.instances)
    record = _start_or_resume(job, fresh)
    progress(record.done, record.instances)
    if record.done == record.instances and not job.part.exists():
        return record
    job.out.parent.mkdir(parents=True, exist_ok=True)
    with _output(job, record, scores) as file:
        try:
            for piece in scores.read(record.done, chunk):
                solution = _solve(piece, constraints, job, record.done)
                file.write(np.ascontiguousarray(solution.x, dtype=scores.dtype).tobytes())
                file.flush()
                os.fsync(file.fileno())
                record.count(solution)
                record.write(job.record)
                progress(record.done, record.instances)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_how_to_go_on(job)) from None
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise OSError(f"the disk is full. {_how_to_go_on(job)}") from None
    job.part.replace(job.out)
    return record


def _how_to_go_on(job: Job) -> str:
    record = Record.read(job.record)
    done, total = (0, "?") if record is None else (record.done, f"{record.instances:,}")
    return (
        f"{done:,} of {total} instances are safe in {job.part}. Fix: the same command with --resume goes on from there."
    )


def _read_scores(path: Path, model: Model) -> ScoreFile:
    """The scores, flat or in the shape of the set's variable, checked against the set."""
    scores, layout = open_scores(path), model.constraints.layout
    shape = None if layout is None else layout.shape
    if shape and scores.shape[-1] != model.num_variables and scores.shape[-len(shape) :] == shape:
        scores = scores.shaped(shape)
    if scores.variables != model.num_variables:
        raise ConstraintError(
            f"{scores.path}: scores have shape {scores.shape}; expected {expected_shape(layout, model.num_variables)}."
        )
    _check_fit(model, scores)
    return scores


def _check_fit(model: Model, scores: ScoreFile) -> None:
    if model.variables is not None and scores.columns is not None and model.variables != scores.columns:
        at = next(i for i, pair in enumerate(zip(model.variables, scores.columns, strict=True)) if pair[0] != pair[1])
        raise ConstraintError(
            f"{scores.path}: column {at + 1} is {scores.columns[at]!r}; expected {model.variables[at]!r}, as in the "
            f"constraint file. Fix: reorder the columns."
        )
    batch = tuple(model.constraints.batch_shape)
    if batch and batch != (scores.instances,):
        raise ConstraintError(
            f"{scores.path}: {scores.instances} instances, but the constraints have numbers of their own for {batch}; "
            f"expected one each, or shared ones."
        )


def _chunk_size(constraints: Constraints) -> int:
    largest = max(constraints.num_variables or 1, len(constraints), len(constraints.structure.row))
    return max(1, _NUMBERS_PER_CHUNK // largest)


def _made_from(job: Job, scores: ScoreFile, chunk: int) -> dict[str, Any]:
    return {
        "linsat": linsat.__version__,
        "kernel": unavailable() is None,
        "constraints": hashlib.sha256(job.constraints.read_bytes()).hexdigest(),
        "box": None if job.box is None else list(job.box),
        "scores": scores.digest(),
        "shape": list(scores.shape),
        "tau": job.tau,
        "chunk": chunk,
    }


def _start_or_resume(job: Job, fresh: Record) -> Record:
    if job.overwrite:
        return fresh
    found = Record.read(job.record)
    if not job.resume:
        if found is not None and found.done < found.instances:
            raise ConstraintError(
                f"{job.part} holds {found.done:,} of {found.instances:,} instances of a run that was stopped. "
                f"Fix: --resume to go on, or --overwrite to start again."
            )
        if job.out.exists():
            raise ConstraintError(f"{job.out} is already there. Fix: another name, or --overwrite.")
        return fresh
    if found is None:
        if job.out.exists():
            raise ConstraintError(f"{job.out} is there without its record {job.record}. Fix: --overwrite.")
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


@contextlib.contextmanager
def _output(job: Job, record: Record, scores: ScoreFile) -> Iterator[IO[bytes]]:
    """The unfinished output, cut to what the record vouches for, ready to be continued."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(scores.dtype)
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": scores.shape})
    size = len(header.getvalue()) + record.done * scores.variables * scores.dtype.itemsize
    if record.done and (not job.part.exists() or job.part.stat().st_size < size):
        raise ConstraintError(f"{job.part} is shorter than {job.record} says. Fix: --overwrite to start again.")
    with open(job.part, "r+b" if record.done else "a+b") as file:
        _lock(file, job.part)
        if record.done == 0:
            record.write(job.record)  # first: the record of an older run may not vouch for this file
            file.truncate(0)
            file.write(header.getvalue())
        else:
            file.truncate(size)
            file.seek(size)
        yield file


def _lock(file: IO[bytes], path: Path) -> None:
    """Two runs into one file would spoil both; the lock ends with the process, however it ends."""
    with contextlib.suppress(ImportError):  # not on every system
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConstraintError(
                f"{path} is being written by another run. Fix: wait for it, or another --out."
            ) from None


def _solve(piece: np.ndarray, constraints: Constraints, job: Job, first: int) -> Solution:
    bad = np.argwhere(~np.isfinite(piece))
    if len(bad):
        row, column = (int(i) for i in bad[0])
        raise ConstraintError(
            f"{job.scores}: instance {first + row}, variable {constraints.variable_name(column)} is "
            f"{piece[row, column]}; expected finite scores. Fix: clamp or mask the scores; to forbid a variable set "
            f"its upper bound to its lower bound."
        )
    here = constraints.instances(first, first + len(piece)) if constraints.batch_shape else constraints
    return solve(piece, here, tau=job.tau, on_failure="ignore")
