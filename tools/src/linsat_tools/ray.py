"""Bulk projection on Ray: a table of scores in, the same table with x and a status per row out.

    rows = linsat_tools.ray.project_dataset(ray.data.read_parquet(path), constraints, scores=["a", "b", "c"])

`ProjectBatches` is the callable behind it, for pipelines that call ``map_batches`` themselves. It keeps no state
between batches and an instance's answer does not depend on its batch: when a worker dies, Ray gives its batches to
another one and the result is the same, every row once. Needs the extra ``ray``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError
from linsat.projection import solve

Batch = dict[str, np.ndarray]


class ProjectBatches:
    """Scores of a batch to x: a callable for ``ray.data.Dataset.map_batches`` with ``batch_format="numpy"``.

    Args:
        constraints: the set, shared by all rows; sent to the workers once.
        scores: name of a column with one vector of scores a row, or names of columns, one per variable.
        out: name of the new column with x, or names of new columns, one per variable.
        tau: temperature.
        status: name of the new column that says how each row ended (`linsat.status.Status`): rows that did not converge
            are marked, not dropped and not raised.

    Cost: that of `linsat.solve` on the batch, plus starting a worker (a second with the kernel's code on disk).

    Raises:
        ConstraintError: contradictory names or options at once; a missing column or scores that are not numbers, with
            the first batch.
    """

    def __init__(
        self,
        constraints: Constraints,
        *,
        scores: str | Sequence[str] = "scores",
        out: str | Sequence[str] = "x",
        tau: float = 0.1,
        status: str = "status",
    ) -> None:
        if not isinstance(constraints, Constraints) or constraints.num_variables is None or constraints.batch_shape:
            raise ConstraintError(
                "constraints must be a linsat.Constraints with a number of variables and right-hand sides that all "
                "rows share. Fix: one data set for each set of right-hand sides."
            )
        if not (isinstance(tau, (int, float)) and 0 < tau < float("inf")):
            raise ConstraintError(f"tau is {tau!r}; expected a positive number. Fix: for example tau=0.1.")
        self.constraints = constraints.check()
        self.tau = float(tau)
        self.scores = _columns("scores", scores, constraints.num_variables)
        self.out = _columns("out", out, constraints.num_variables)
        self.status = status
        taken = {status} & set(_listed(self.out)) | set(_listed(self.scores)) & {status, *_listed(self.out)}
        if taken:
            raise ConstraintError(
                f"the column {sorted(taken)[0]!r} is named twice. Fix: other names for out or status."
            )

    def __call__(self, batch: Batch) -> Batch:
        """Add x and status to a batch of columns."""
        y = self._read(batch)
        solution = solve(y, self.constraints, tau=self.tau, on_failure="ignore")
        x = np.asarray(solution.x)
        made = {self.out: x} if isinstance(self.out, str) else {name: x[:, i] for i, name in enumerate(self.out)}
        return {**batch, **made, self.status: np.asarray(solution.status).astype(str)}

    def _read(self, batch: Batch) -> np.ndarray:
        for name in _listed(self.scores):
            if name not in batch:
                raise ConstraintError(f"scores names the column {name!r}; there is {', '.join(sorted(batch))}.")
        try:
            if isinstance(self.scores, str):
                y = np.stack([np.asarray(row) for row in batch[self.scores]])
            else:
                y = np.stack([np.asarray(batch[name]) for name in self.scores], axis=-1)
        except ValueError as error:
            raise ConstraintError(
                f"the scores of a batch are no matrix ({error}). Fix: vectors of one length."
            ) from None
        if y.dtype.kind in "iub":
            y = y.astype(np.float64)
        if y.dtype.kind != "f" or y.ndim != 2:
            raise ConstraintError(f"the scores of a batch have dtype {y.dtype} and shape {y.shape}; expected numbers.")
        return y


def project_dataset(
    dataset: Any,
    constraints: Constraints,
    *,
    scores: str | Sequence[str] = "scores",
    out: str | Sequence[str] = "x",
    tau: float = 0.1,
    status: str = "status",
    workers: int = 2,
    batch_size: int = 4096,
) -> Any:
    """Project every row of a Ray data set; lazy, like all of Ray Data.

    Args:
        dataset: a ``ray.data.Dataset``.
        constraints: see `ProjectBatches`, also for ``scores``, ``out``, ``tau`` and ``status``.
        workers: processes, of one processor each.
        batch_size: rows at once; memory of a worker grows with batch_size times (2 variables + rows) times 8 bytes.

    Returns:
        the data set with the new columns. A worker that dies is replaced, and its batches are projected again.

    Raises:
        ImportError: Ray is not installed.
        ConstraintError: see `ProjectBatches`; or ``dataset`` is none.
    """
    try:
        from ray import data
    except ImportError as error:
        raise ImportError(f'projecting on Ray needs ray ({error}). Fix: pip install "linsat-tools[ray]"') from None
    if not isinstance(dataset, data.Dataset):
        raise ConstraintError(
            f"dataset is {type(dataset).__name__}; expected ray.data.Dataset. Fix: ray.data.from_items."
        )
    for name, value in (("workers", workers), ("batch_size", batch_size)):
        if not isinstance(value, int) or value < 1:
            raise ConstraintError(f"{name} is {value!r}; expected a positive integer.")
    options = {"scores": scores, "out": out, "tau": tau, "status": status}
    ProjectBatches(constraints, **options)  # type: ignore[arg-type]  # wrong arguments are told here, not by a worker
    return dataset.map_batches(
        ProjectBatches,
        fn_constructor_args=(constraints,),
        fn_constructor_kwargs=options,
        batch_size=batch_size,
        batch_format="numpy",
        concurrency=workers,
        num_cpus=1,
    )


def _columns(argument: str, names: Any, variables: int) -> str | tuple[str, ...]:
    if isinstance(names, str):
        return names
    found = tuple(names) if isinstance(names, Sequence) else ()
    if len(found) != variables or not all(isinstance(name, str) for name in found) or len(set(found)) != variables:
        raise ConstraintError(
            f"{argument} is {names!r}; expected the name of a column, or {variables} different names, one per variable."
        )
    return found


def _listed(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names
