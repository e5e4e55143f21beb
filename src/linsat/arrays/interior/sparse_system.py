r"""The linear system of an interior-point step: sparse LDL', regularised as little as an accurate answer allows.

    [ P + D   A' ]
    [ A      -E  ]

is quasi-definite, so every order of elimination has pivots: one is chosen that leaves few entries, columns in nearly
all rows come last, and it is kept for every matrix of the same pattern (native/ordering.h, native/fronts.h). Without
the native core SuperLU takes its place. What the regularisation changes, iterative refinement undoes.

Rows that are parallel but for an angle of 1e-8 have a singular A D^-1 A' in doubles, however it is factored. Where the
matrix is small enough and P diagonal, an orthogonal factorisation of D^-1/2 A' takes over then, which resolves angles
down to 1e-15.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp

from linsat._recent import Recent
from linsat.native.binding import Core, load
from linsat.native.sparse_factor import Analysis, Factor

Array = np.ndarray
Solution = TypeVar("Solution")
Analyses = Recent[Analysis]  # of the patterns used last
Seconds = Callable[[], float]  # left

# Regularisation of the rows, relative to the diagonal of A D^-1 A' + E; the least that solves accurately is used.
REGULARISATION = (1e-13, 1e-11, 1e-9, 1e-7, 1e-5)
_FIRST_LEVEL = 2
_BARE = 1e-8  # the least curvature in the factor, of the usual one
LARGEST_DENSE = 250_000  # entries of the matrix that is factored by rows and columns, slacks included
_RANK = 1e-14  # of the largest column of a triangular factor: smaller ones are rows that depend on others
_NONE = 1e-20  # next to none, of the rows, where pivots are chosen
_BAND = 16  # columns that the rows of a band reach over
SMALLEST = 1e-300
_ACCURATE, _INACCURATE = 1e-9, 1e-6  # relative residual of the linear system
_REFINED, _FINE, _REFINEMENTS = 1e-12, 1e-14, 8  # residual that is small enough, also where care is taken


def places(there: Array) -> Array | slice:
    """Where a mask is true: an index as fast as can be."""
    where = np.flatnonzero(there)
    if len(where) and where[-1] - where[0] + 1 == len(where):
        return slice(int(where[0]), int(where[-1]) + 1)
    return where


class SparseSystem:
    """The linear system of a step, slacks eliminated, by a sparse LDL' factorisation with iterative refinement."""

    def __init__(
        self,
        matrix: sp.csr_array,
        transposed: sp.csr_array,
        slack_rows: Array | slice,
        *,
        P: sp.csr_array | None = None,
        bare: Array | None = None,
        analyses: Analyses | None = None,
        seconds: Seconds = lambda: np.inf,
    ) -> None:
        """``bare`` columns (l,) may have no curvature at all; ``seconds`` says how many are left."""
        k, l = matrix.shape
        self.matrix, self.transposed, self.P = matrix, transposed, P
        self.squares = sp.csr_array((matrix.data**2, matrix.indices, matrix.indptr), shape=matrix.shape)
        self.slack_rows, self.num_variables, self.seconds = slack_rows, l, seconds
        self.own = np.zeros(l) if P is None else P.diagonal()  # the diagonal of P
        # The curvature that columns may be without. Beside one that is next to nothing all others would drown.
        self.usual = np.where(np.zeros(l, dtype=bool) if bare is None else bare, 1.0, 0.0)
        if P is not None:
            self.usual[:] = self.own.max(initial=0.0) or 1.0
        self.upper = _upper_triangle(matrix, P)
        self.diagonal = self.upper.indptr[1:] - 1  # the last entry of each column
        self.solver: Factor | _SuperLU | None = None
        self.analyses = Recent(1) if analyses is None else analyses
        self.level, self.quality = _FIRST_LEVEL, 0.0
        self.careful = False  # whether solutions are refined as far as that goes
        self.orthogonal = False  # whether D^-1/2 A' is factored in place of the whole matrix
        self.pivoting = False  # whether pivots are chosen for their size
        self.can_be_orthogonal = (
            P is None and not self.usual.any() and k * (l + np.arange(k)[slack_rows].size) <= LARGEST_DENSE
        )
        self.can_pivot = P is None and not self.can_be_orthogonal and _is_band(matrix)

    def factor(self, curvature: Array) -> None:
        l = self.num_variables
        self.curvature, diagonal = curvature, curvature[:l] + self.own
        self.slack = np.zeros(self.matrix.shape[0])  # E
        self.slack[self.slack_rows] = self.slack_room = 1.0 / curvature[l:]
        self.exact = np.concatenate([diagonal, -self.slack])  # the diagonal without regularisation
        usual = np.maximum(diagonal, self.usual)
        gram = self.squares @ (1.0 / usual) + self.slack
        self.weight = 1.0 / np.sqrt(np.concatenate([usual, np.maximum(gram, SMALLEST)]))
        if self.orthogonal:
            self._factor_orthogonal()
            return
        regularised = self.slack + (_NONE if self.pivoting else REGULARISATION[self.level]) * gram + SMALLEST
        diagonal = np.maximum(diagonal * (1 + 1e-14), _BARE * self.usual)
        self.upper.data[self.diagonal] = np.concatenate([diagonal, -regularised])
        if self.solver is None:
            self.solver = _factorisation(self.upper, self.analyses, self.seconds)
        if self.pivoting and not isinstance(self.solver, _Pivoting):
            self.solver = _Pivoting(self.upper)
        self.solver.factor(self.upper.data, self.exact, self.weight, self.seconds())

    def accurately(self, curvature: Array, solve: Callable[[], Solution]) -> Solution:
        """Factor with as little regularisation as leaves the solution of the first system accurate."""
        if self.quality < _ACCURATE:
            self.level = max(self.level - 1, 0)
        self.factor(curvature)
        solution = solve()
        if self.quality <= _INACCURATE or self.orthogonal or self.pivoting:
            return solution
        # Too little regularisation loses digits to rounding, too much keeps refinement from converging: try the others.
        reached = {self.level: self.quality}
        for level in sorted(
            range(len(REGULARISATION)), key=lambda level: (level < self.level, abs(level - self.level))
        ):
            if level in reached:
                continue
            self.level = level
            self.factor(curvature)
            solution = solve()
            reached[level] = self.quality
            if self.quality <= _INACCURATE:
                return solution
        self.orthogonal, self.pivoting = self.can_be_orthogonal, self.can_pivot
        self.level = min(reached, key=lambda level: reached[level] if np.isfinite(reached[level]) else np.inf)
        self.factor(curvature)
        return solve()

    def _factor_orthogonal(self) -> None:
        """Q R of [D^-1/2 A'; E^1/2] with columns of norm one, its largest rows first: their sizes differ by decades."""
        from scipy.linalg import qr

        columns, rows = self.weight[: self.num_variables], self.weight[self.num_variables :]
        rows = rows * np.vstack([(self.matrix * columns).T.toarray(), np.diag(np.sqrt(self.slack))[self.slack_rows]])
        self.rank = 0
        if not np.isfinite(rows).all():
            return
        order = np.argsort(-np.abs(rows).max(1, initial=0.0), kind="stable")
        q, self.r, self.pivots = qr(rows[order], mode="economic", pivoting=True, check_finite=False)
        self.q = np.empty_like(q)
        self.q[order] = q
        sizes = np.abs(np.diag(self.r))
        self.rank = int((sizes > _RANK * sizes.max(initial=0.0)).sum())

    def _solve_orthogonal(self, rest: Array) -> Array:
        """dx = D^-1/2 [(I - Q Q') D^-1/2 pull + Q R^-T primal],  dmu = R^-1 [R^-T primal - Q' D^-1/2 pull]."""
        from scipy.linalg import solve_triangular

        l, rank = self.num_variables, self.rank
        rest = self.weight * rest
        pull, primal, duals = rest[:l], rest[l:][self.pivots[:rank]], np.zeros(self.matrix.shape[0])
        if not rank:
            return self.weight * np.concatenate([pull, duals])
        q, r = self.q[:l, :rank], self.r[:rank, :rank]
        gained = solve_triangular(r, primal, trans="T", check_finite=False) - q.T @ pull
        duals[self.pivots[:rank]] = -solve_triangular(r, gained, check_finite=False)
        return self.weight * np.concatenate([pull + q @ gained, duals])

    def solve(self, pull: Array, primal: Array) -> tuple[Array, Array]:
        """Columns and duals with (P + D) dx - A' dmu = pull and A dx = primal, slack columns included."""
        l, rows = self.num_variables, self.slack_rows
        slack_pull = pull[l:] * self.slack_room
        wanted = np.concatenate([pull[:l], primal])
        wanted[l:][rows] += slack_pull
        if isinstance(self.solver, Factor) and not self.orthogonal:
            solution, share = self.solver.solve(wanted, _FINE if self.careful else _REFINED, _REFINEMENTS)
        else:
            solution, share = self._refined(wanted)
        self.quality = share if np.isfinite(share) else np.inf
        dmu = -solution[l:]
        return np.concatenate([solution[:l], slack_pull - dmu[rows] * self.slack_room]), dmu

    def _refined(self, wanted: Array) -> tuple[Array, float]:
        """As linsat_refine in the native core."""
        once = (
            self.solver.solve if isinstance(self.solver, _SuperLU) and not self.orthogonal else self._solve_orthogonal
        )
        solution = once(wanted)
        rest = self._rest(wanted, solution)
        whole, size = self._size(wanted) + SMALLEST, self._size(rest)
        for _ in range(_REFINEMENTS):
            if size < _FINE * whole:
                break
            better = solution + once(rest)
            rest = self._rest(wanted, better)
            before, size = size, min(size, self._size(rest))
            if not size < before:
                break
            solution = better
            if size > 0.7 * before:
                break
        return solution, size / whole

    def _rest(self, wanted: Array, solution: Array) -> Array:
        """What is left of the right-hand side."""
        l = self.num_variables
        rest = wanted - self.exact * solution
        rest[:l] -= self.transposed @ solution[l:]
        rest[l:] -= self.matrix @ solution[:l]
        if self.P is not None:
            rest[:l] -= self.P @ solution[:l] - self.own * solution[:l]
        return rest

    def _size(self, rest: Array) -> float:
        return float(np.abs(rest * self.weight).max(initial=0.0))


def _is_band(matrix: sp.csr_array) -> bool:
    """Whether pivots out of order leave the factor small: every row is one of neighbouring columns."""
    if not matrix.nnz or not np.diff(matrix.indptr).all():
        return False
    first, last = (end.reduceat(matrix.indices, matrix.indptr[:-1]) for end in (np.minimum, np.maximum))
    return bool((last - first <= _BAND).all())


def _upper_triangle(matrix: sp.csr_array, P: sp.csr_array | None) -> sp.csc_array:
    """That of [P + D, A'; A, -E] by columns, zeros on its diagonal among its entries, the last of their columns."""
    k, l = matrix.shape
    beside = sp.csc_array((l, l)) if P is None else sp.csc_array(sp.triu(P, 1))
    beside.sort_indices()
    # A' by columns is A by rows, and every column gets one more entry.
    starts = np.concatenate([beside.indptr[:-1], beside.nnz + matrix.indptr])
    ends = np.concatenate([beside.indptr[1:], beside.nnz + matrix.indptr[1:]])
    indices = np.insert(np.concatenate([beside.indices, matrix.indices]), ends, np.arange(l + k))
    data = np.insert(np.concatenate([beside.data, matrix.data]), ends, 0.0)
    return sp.csc_array((data, indices, starts + np.arange(l + k + 1)), shape=(l + k, l + k))


def _factorisation(upper: sp.csc_array, analyses: Analyses, seconds: Seconds) -> Factor | _SuperLU:
    core = load()
    if not isinstance(core, Core):
        return _SuperLU(upper)
    digest = hashlib.blake2b(upper.indices.tobytes(), digest_size=16)
    digest.update(upper.indptr.tobytes())
    make = lambda: Analysis(core, upper.indptr, upper.indices, seconds())  # noqa: E731
    return Factor(analyses.get_or_make(digest.digest(), make))


class _SuperLU:
    """The same by scipy's LU without pivoting, in the order that it has chosen for the first matrix."""

    symmetric = True

    def __init__(self, upper: sp.csc_array) -> None:
        self.upper = upper
        self.order: Array | None = None

    def factor(self, values: Array, *_: Any) -> None:
        upper = sp.csc_array((values, self.upper.indices, self.upper.indptr), shape=self.upper.shape)
        whole = sp.csc_array(upper + sp.triu(upper, 1).T)
        if self.order is None:
            first = self._lu(whole, "MMD_AT_PLUS_A")
            self.order = np.arange(whole.shape[0]) if first is None else np.argsort(first.perm_c)
        self.lu = self._lu(sp.csc_array(whole[self.order][:, self.order]), "NATURAL")

    def _lu(self, matrix: sp.csc_array, order: str) -> Any:
        from scipy.sparse.linalg import splu

        threshold, options = (0.0, {"SymmetricMode": True}) if self.symmetric else (1.0, {})
        try:
            return splu(matrix, permc_spec=order, diag_pivot_thresh=threshold, options=options)
        except RuntimeError:  # exactly singular
            return None

    def solve(self, rhs: Array) -> Array:
        x = np.full_like(rhs, np.nan)
        if self.lu is not None:
            x[self.order] = self.lu.solve(rhs[self.order])
        return x


class _Pivoting(_SuperLU):
    """LU with row pivoting, which leaves a small residual however near to singular the matrix is."""

    symmetric = False
