"""Problem families: rows in every form a method may want, and seeded scores.

The rows are written here once more, independently of `linsat.constraints`, as scipy.sparse matrices; the
dense form comes from those, the `linsat.Constraints` from the library's families. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import scipy.sparse as sp
import torch

import linsat

HEADLINE, BATCH_SWEEP, SIZE_SWEEP, TAU_SWEEP, EXTRA = "headline", "batch", "size", "tau", "extra"
BATCHES = (16, 64, 256, 1024)
SIZES = (10, 20, 30, 50, 70, 100)
TAUS = (1.0, 0.1, 0.03, 0.01, 0.003, 0.001)
# Dense rows above this are never built: the million-variable case alone would take 16 GB.
LARGEST_DENSE_GB = 1.0


@dataclass(frozen=True, eq=False)
class Rows:
    """``A x <= b``, ``C x >= d``, ``E x = f`` over the box [0, 1]; a block without rows has shape (0, l)."""

    A: sp.csr_array
    b: np.ndarray
    C: sp.csr_array
    d: np.ndarray
    E: sp.csr_array
    f: np.ndarray

    @property
    def num_variables(self) -> int:
        return int(self.E.shape[1])

    @property
    def count(self) -> int:
        return int(self.A.shape[0] + self.C.shape[0] + self.E.shape[0])

    def blocks(self) -> dict[str, tuple[sp.csr_array, np.ndarray]]:
        """The blocks that have rows: name of the matrix -> (matrix, right side)."""
        every = {"A": (self.A, self.b), "C": (self.C, self.d), "E": (self.E, self.f)}
        return {name: block for name, block in every.items() if block[0].shape[0]}

    def dense(self) -> dict[str, np.ndarray]:
        """``{"E": (rows, l), "f": (rows,), ...}`` for the blocks that have rows."""
        sides = {"A": "b", "C": "d", "E": "f"}
        arrays: dict[str, np.ndarray] = {}
        for name, (matrix, side) in self.blocks().items():
            arrays |= {name: matrix.toarray(), sides[name]: side}
        return arrays

    def sparse_constraints(self) -> linsat.Constraints:
        """The set built from the sparse matrices instead of from a family."""
        sides = {"A": "b", "C": "d", "E": "f"}
        given = {name: matrix for name, (matrix, _) in self.blocks().items()}
        given |= {sides[name]: side for name, (_, side) in self.blocks().items()}
        return linsat.Constraints(**given)

    def violation(self, x: np.ndarray) -> float:
        """Worst violation of any row by any instance of x (batch, l), relative to its size there; nan where x is."""
        point = np.asarray(x, dtype=np.float64).T
        if not np.isfinite(point).all():
            return float("nan")
        worst = [0.0]
        if self.A.shape[0]:
            worst.append(float(((self.A @ point - self.b[:, None]) / _sizes(self.A, point)).max()))
        if self.C.shape[0]:
            worst.append(float(((self.d[:, None] - self.C @ point) / _sizes(self.C, point)).max()))
        if self.E.shape[0]:
            worst.append(float((np.abs(self.E @ point - self.f[:, None]) / _sizes(self.E, point)).max()))
        return max(worst)


def _sizes(matrix: sp.csr_array, point: np.ndarray) -> np.ndarray:
    """max(1, sum_j |a_ij x_j|)."""
    return np.maximum(1.0, abs(matrix) @ np.abs(point))


@dataclass(frozen=True, eq=False)
class Problem:
    """One case: rows, batch and temperature. Rows are built on first use: one case is very large."""

    name: str
    title: str
    family: str
    size: int  # n of the matrix, or the number of assets
    batch: int
    tau: float
    make_rows: Callable[[], Rows]
    make_constraints: Callable[[], linsat.Constraints]
    groups: tuple[str, ...] = (EXTRA,)
    iterations: int = 100  # of the methods that take a fixed number of sweeps; 100 is LinSATNet's default
    ours_only: str = ""  # why no peer is tried

    @cached_property
    def rows(self) -> Rows:
        return self.make_rows()

    @cached_property
    def constraints(self) -> linsat.Constraints:
        return self.make_constraints()

    @property
    def l(self) -> int:  # noqa: E743 - the letter of the paper
        return self.rows.num_variables

    @property
    def dense_gigabytes(self) -> float:
        return 8.0 * self.rows.count * self.l / 1e9

    def scores(self, seed: int) -> torch.Tensor:
        """(batch, l) float32, uniform in [0, 1]."""
        return torch.rand(self.batch, self.l, generator=torch.Generator().manual_seed(seed))

    def weights(self, seed: int) -> torch.Tensor:
        """(batch, l) gradient handed to the backward pass; normal, because a constant one gives zero."""
        return torch.randn(self.batch, self.l, generator=torch.Generator().manual_seed(seed + 1))


# ------------------------------------------------------------------ rows


def _rows(width: int, **blocks: tuple[sp.sparray, np.ndarray]) -> Rows:
    empty = (sp.csr_array((0, width)), np.zeros(0))
    parts = [blocks.get(name, empty) for name in ("A", "C", "E")]
    flat = [item for matrix, side in parts for item in (sp.csr_array(matrix), np.asarray(side, float))]
    return Rows(*flat)


def _row_and_column_sums(n1: int, n2: int) -> sp.csr_array:
    across = sp.kron(sp.eye_array(n1), np.ones((1, n2)))
    down = sp.kron(np.ones((1, n1)), sp.eye_array(n2))
    return sp.csr_array(sp.vstack([across, down]))


def _indicator(columns: list[int], width: int) -> sp.csr_array:
    return sp.csr_array((np.ones(len(columns)), (np.zeros(len(columns), int), columns)), shape=(1, width))


def doubly_stochastic_rows(n: int) -> Rows:
    return _rows(n * n, E=(_row_and_column_sums(n, n), np.ones(2 * n)))


def tour_rows(n: int, start: int, end: int, priority: int, within: int) -> Rows:
    """TSP-PRI: doubly stochastic, X[start, 0] = 1, X[end, n-1] = 1, sum X[priority, 0..within] = 1."""
    first = [priority * n + step for step in range(within + 1)]
    picked = [_indicator(cells, n * n) for cells in ([start * n], [end * n + n - 1], first)]
    matrix = sp.vstack([_row_and_column_sums(n, n), *picked])
    return _rows(n * n, E=(matrix, np.ones(2 * n + 3)))


def matching_rows(n1: int, n2: int, at_most: float) -> Rows:
    total = np.ones((1, n1 * n2))
    sides = np.append(np.ones(n1 + n2), at_most)
    return _rows(n1 * n2, A=(sp.vstack([_row_and_column_sums(n1, n2), sp.csr_array(total)]), sides))


def portfolio_rows(n: int, preferred: list[int], at_least: float) -> Rows:
    return _rows(n, C=(_indicator(preferred, n), [at_least]), E=(sp.csr_array(np.ones((1, n))), [1.0]))


# ------------------------------------------------------------------ cases


def doubly_stochastic(n: int, batch: int, tau: float, *groups: str, iterations: int = 100) -> Problem:
    suffix = f"-it{iterations}" if iterations != 100 else ""
    return Problem(
        name=f"ds{n}-b{batch}-t{tau:g}{suffix}",
        title=f"doubly stochastic {n}x{n}, batch {batch}, tau {tau:g}",
        family="doubly stochastic",
        size=n,
        batch=batch,
        tau=tau,
        make_rows=partial(doubly_stochastic_rows, n),
        make_constraints=partial(linsat.constraints.doubly_stochastic, n),
        groups=groups or (EXTRA,),
        iterations=iterations,
    )


def tour(n: int, batch: int, tau: float) -> Problem:
    """The cities are arbitrary; the priority city comes within 5 steps, as in the paper.

    LinSATNet 0.1.3 takes the right side 1 here: it adds 1e-7 to zero marginals, and 0.999 changes neither its
    time nor its violation noticeably (0.029 either way after 50 iterations). All methods get the same rows.
    """
    cities = {"start": 0, "end": 1, "priority": 2, "within": 5}
    return Problem(
        name=f"tsp{n}-b{batch}-t{tau:g}",
        title=f"TSP-PRI rows n = {n}, batch {batch}, tau {tau:g}",
        family="TSP-PRI",
        size=n,
        batch=batch,
        tau=tau,
        make_rows=partial(tour_rows, n, **cities),
        make_constraints=partial(linsat.constraints.tour, n, cities["start"], cities["end"], priority=2, within=5),
        groups=(HEADLINE,),
        iterations=50,
    )


def matching(n: int, at_most: int, batch: int, tau: float) -> Problem:
    return Problem(
        name=f"matching{n}-b{batch}-t{tau:g}",
        title=f"matching {n}x{n}, at most {at_most}, batch {batch}, tau {tau:g}",
        family="matching",
        size=n,
        batch=batch,
        tau=tau,
        make_rows=partial(matching_rows, n, n, at_most),
        make_constraints=partial(linsat.constraints.matching, n, n, at_most=at_most),
        groups=(HEADLINE,),
    )


def portfolio(n: int, batch: int, tau: float) -> Problem:
    """Six preferred assets hold at least half, as in the paper."""
    preferred = list(range(6))
    return Problem(
        name=f"portfolio{n}-b{batch}-t{tau:g}",
        title=f"portfolio {n} assets, batch {batch}, tau {tau:g}",
        family="portfolio",
        size=n,
        batch=batch,
        tau=tau,
        make_rows=partial(portfolio_rows, n, preferred, 0.5),
        make_constraints=partial(linsat.constraints.portfolio, n, preferred, 0.5),
        groups=(HEADLINE,),
    )


def assignment(n: int, tau: float) -> Problem:
    return Problem(
        name=f"assignment{n}-t{tau:g}",
        title=f"assignment {n}x{n}, batch 1, tau {tau:g}",
        family="doubly stochastic",
        size=n,
        batch=1,
        tau=tau,
        make_rows=partial(doubly_stochastic_rows, n),
        make_constraints=partial(linsat.constraints.doubly_stochastic, n),
        groups=(HEADLINE,),
        ours_only=f"{n * n:,} variables: run for this library only",
    )


FIRST = doubly_stochastic(20, 64, 0.1, HEADLINE, BATCH_SWEEP, TAU_SWEEP)
COLD = doubly_stochastic(20, 64, 0.01, HEADLINE, iterations=1000)
TOUR = tour(20, 256, 0.1)
MATCHING = matching(20, 12, 8, 0.05)
PORTFOLIO = portfolio(493, 32, 0.01)
LATENCY = doubly_stochastic(3, 1, 0.1, HEADLINE)
ASSIGNMENT = assignment(1000, 0.01)
TINY = doubly_stochastic(3, 2, 0.1, EXTRA)

# A tiny problem of each family: what a process warms its libraries up on.
WARM_UPS = {case.family: case for case in (TINY, tour(8, 2, 0.1), matching(4, 2, 2, 0.1), portfolio(9, 2, 0.1))}


def all_problems() -> dict[str, Problem]:
    """Every case by name: the headline first, then the sweeps."""
    cases = [FIRST, COLD, TOUR, MATCHING, PORTFOLIO, LATENCY, ASSIGNMENT, TINY]
    shared = (BATCH_SWEEP, SIZE_SWEEP)  # batch 16 at n = 20 is a point of both sweeps
    cases += [
        doubly_stochastic(20, batch, 0.1, *(shared if batch == 16 else (BATCH_SWEEP,)))
        for batch in BATCHES
        if batch != FIRST.batch
    ]
    cases += [doubly_stochastic(n, 16, 0.1, SIZE_SWEEP) for n in SIZES if n != 20]
    cases += [doubly_stochastic(20, 64, tau, TAU_SWEEP) for tau in TAUS if tau != FIRST.tau]
    return {case.name: case for case in cases}
