"""Projecting a score file of any size, chunk by chunk, so that being killed at any moment loses one chunk at most.

Three files: ``x.npy.part`` grows by one chunk at a time; ``x.npy.json``, replaced whole once a chunk is on the disk,
says how many instances of it count and what they were made from; ``x.npy`` appears by renaming when all are there. A
csv or parquet file is written from the complete ``.part``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import linsat
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import expected_shape
from linsat.errors import ConstraintError
from linsat.files import Model, read_model
from linsat.native.binding import unavailable
from linsat.objectives import Objective
from linsat.projection import solve
from linsat.solution import Solution
from linsat_tools.cli.options import bound, read_objective, soften
from linsat_tools.cli.output import check_table, finish, unfinished
from linsat_tools.cli.record import Job, Record, how_to_continue, start_or_resume
from linsat_tools.scores import ScoreFile, open_scores

_NUMBERS_PER_CHUNK = 2**21  # of the largest array that a chunk needs: 16 MB each in float64, a few of them at once


def run(job: Job, progress: Callable[[int, int], None] = lambda done, total: None) -> Record:
    """Project all scores of a file; ``progress(done, total)`` is called after each chunk.

    Memory: the constraint set and a few arrays of one chunk (about 0.2 GB), whatever the size of the files.

    Raises:
        ConstraintError: malformed input or options, or files that belong to another run.
        InfeasibleError: the rows contradict each other.
        OSError: the disk is full; what was written counts, and the message says how to continue.
    """
    job.check()
    objective = read_objective(job.objective, job.tau)
    model = read_model(job.constraints, box=job.box)
    scores = _read_scores(job, model)
    variables = model.variables or tuple(map(model.constraints._variable_name, range(model.num_variables)))
    constraints = _read_constraints(job, model.constraints, objective, variables)
    check_table(job, scores, variables)
    chunk = job.chunk or _chunk_size(constraints)
    fresh = Record(_made_from(job, objective, scores, chunk), scores.instances)
    record = start_or_resume(job, fresh)
    progress(record.done, record.instances)
    if record.done == record.instances and not job.part.exists():
        return record
    job.out.parent.mkdir(parents=True, exist_ok=True)
    with unfinished(job, record, scores) as file, _safe(job):
        for piece in scores.read(record.done, chunk):
            solution = _solve(piece, constraints, objective, job.scores, record.done)
            file.write(np.ascontiguousarray(solution.x, dtype=scores.dtype).tobytes())
            file.flush()
            os.fsync(file.fileno())
            record.count(solution)
            record.write(job.record)
            progress(record.done, record.instances)
        finish(job, scores, variables)
    return record


@contextlib.contextmanager
def _safe(job: Job) -> Iterator[None]:
    """Say how to continue where a run is interrupted or the disk is full."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_to_continue(job)) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(f"the disk is full. {how_to_continue(job)}") from None


def _read_constraints(job: Job, stated: Constraints, objective: Objective, variables: tuple[str, ...]) -> Constraints:
    """The set with the options of the command line, checked."""
    constraints = soften(bound(stated, job.bounds, variables), job.soften)
    try:
        objective.check_bounds(constraints)
    except ConstraintError as error:
        raise ConstraintError(
            f"{job.constraints}: {error} On the command line: --box LOWER UPPER, --bound NAME=LOWER:UPPER, or "
            f"--objective euclidean, which needs no bounds."
        ) from None
    return constraints.check()


def _read_scores(job: Job, model: Model) -> ScoreFile:
    """The scores, flat or in the shape of the set's variable, checked against the set."""
    scores, layout = open_scores(job.scores, variables=model.variables, ids=job.ids), model.constraints._layout
    shape = None if layout is None else layout.shape
    if shape and scores.shape[-1] != model.num_variables and scores.shape[-len(shape) :] == shape:
        scores = scores.shaped(shape)
    if scores.variables != model.num_variables:
        columns = " Fix: --id for each column that holds no scores." if scores.columns is not None else ""
        raise ConstraintError(
            f"{scores.path}: scores have shape {scores.shape}; expected {expected_shape(layout, model.num_variables)}."
            f"{columns}"
        )
    batch = tuple(model.constraints.batch_shape)
    if batch and batch != (scores.instances,):
        raise ConstraintError(
            f"{scores.path}: {scores.instances} instances, but the constraints have per-instance numbers for {batch}; "
            f"expected one each, or shared ones."
        )
    return scores


def _chunk_size(constraints: Constraints) -> int:
    largest = max(constraints.num_variables or 1, len(constraints), len(constraints._structure.row))
    return max(1, _NUMBERS_PER_CHUNK // largest)


def _made_from(job: Job, objective: Objective, scores: ScoreFile, chunk: int) -> dict[str, Any]:
    return {
        "linsat": linsat.__version__,
        "kernel": unavailable() is None,
        "constraints": hashlib.sha256(job.constraints.read_bytes()).hexdigest(),
        "box": None if job.box is None else list(job.box),
        "bound": list(job.bounds),
        "soften": list(job.soften),
        "scores": scores.digest(),
        "id": list(job.ids),
        "shape": list(scores.shape),
        "objective": job.objective,
        "tau": objective.temperature,
        "chunk": chunk,
    }


def _solve(piece: np.ndarray, constraints: Constraints, objective: Objective, scores: Path, first: int) -> Solution:
    bad = np.argwhere(np.isnan(piece) | np.isposinf(piece))
    if len(bad):
        row, column = (int(i) for i in bad[0])
        raise ConstraintError(
            f"{scores}: instance {first + row}, variable {constraints._variable_name(column)} is "
            f"{piece[row, column]}; expected finite scores, or -inf to keep a variable at its lower bound. "
            f"Fix: find out where it comes from."
        )
    here = constraints._instances(first, first + len(piece)) if constraints.batch_shape else constraints
    return solve(piece, here, objective=objective, on_failure="ignore")
