"""Linear programs from files as plain numpy: rows, bounds, boxes, duality gaps. Nothing here is linsat's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import highspy
import numpy as np
import scipy.sparse as sp

Array = np.ndarray
_AT_BOUND = 1e-12  # share of the box


@dataclass(frozen=True)
class Program:
    """Rows A x <= b, C x >= d, E x = f over bounds that may be infinite."""

    matrix: sp.csr_array  # (k, l)
    senses: Array  # (k,) of "<=", ">=", "=="
    rhs: Array  # (k,)
    lower: Array  # (l,)
    upper: Array  # (l,)

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    def arguments(self) -> dict:
        """Keyword arguments of linsat.Constraints; its rows come in this order too (A, then C, then E)."""
        found: dict = {"lower": self.lower, "upper": self.upper}
        for sense, matrix, side in (("<=", "A", "b"), (">=", "C", "d"), ("==", "E", "f")):
            pick = np.flatnonzero(self.senses == sense)
            if len(pick):
                found |= {matrix: self.matrix[pick], side: self.rhs[pick]}
        return found

    def take(self, rows: Array) -> Program:
        """Some rows only."""
        return replace(self, matrix=sp.csr_array(self.matrix[rows]), senses=self.senses[rows], rhs=self.rhs[rows])

    def scaled(self, rows: Array, columns: Array) -> Program:
        """The same set in other units: rows multiplied, x divided by the given factors."""
        matrix = sp.csr_array(sp.diags_array(rows) @ self.matrix @ sp.diags_array(columns))
        return Program(matrix, self.senses, self.rhs * rows, self.lower / columns, self.upper / columns)

    def violation(self, x: Array) -> float:
        """The worst of rows and bounds, relative to max(1, sum_j |a_ij x_j|)."""
        gap = self.matrix @ x - self.rhs
        size = np.maximum(1.0, abs(self.matrix) @ np.abs(x))
        rows = np.where(self.senses == "<=", gap, np.where(self.senses == ">=", -gap, np.abs(gap))) / size
        bounds = np.maximum(self.lower - x, x - self.upper) / np.maximum(1.0, np.abs(x))
        return float(max(rows.max(initial=0.0), bounds.max(initial=0.0)))

    def wrong_signs(self, duals: Array) -> float:
        """How far duals are outside the signs of their rows: at most 0 for <=, at least 0 for >=."""
        wrong = np.where(self.senses == "<=", duals, np.where(self.senses == ">=", -duals, 0.0))
        return float(wrong.max(initial=0.0))

    def complementarity(self, x: Array, duals: Array) -> float:
        """sum_i |mu_i (a_i x - b_i)|: what rows add to a duality gap."""
        return float(np.abs(duals * (self.matrix @ x - self.rhs)).sum())

    def euclidean_gap(self, y: Array, x: Array, duals: Array) -> float:
        """Duality gap of min |x - y|^2 / 2 at (x, duals), relative to 1 + |primal value|.

        Each term is written so that nothing cancels: u = y + A' mu, c = clip(u), and psi(u) - u x + x^2 / 2 is
        (x - c)(x + c - 2 u) / 2.
        """
        u = y + self.matrix.T @ duals
        c = np.clip(u, self.lower, self.upper)
        terms = (x - c) * (x + c - 2 * u) / 2
        value = np.abs(y @ x - x @ x / 2)
        return (float(np.abs(terms).sum()) + self.complementarity(x, duals)) / (1.0 + value)

    def quadratic_gap(self, P: sp.csr_array, y: Array, x: Array, duals: Array) -> float:
        """Duality gap of min x'Px / 2 - <y, x> over a finite box at (x, duals), relative to 1 + |primal value|.

        With u = y - P x + A' mu the dual is reached at the bound that u points to: the gap is |u| times the way there.
        """
        u = y - P @ x + self.matrix.T @ duals
        terms = np.abs(u * (np.where(u > 0, self.upper, self.lower) - x))
        value = abs(y @ x) + x @ (P @ x) / 2
        return (float(terms.sum()) + self.complementarity(x, duals)) / (1.0 + value)

    def entropic_gap(self, y: Array, x: Array, duals: Array, tau: float) -> tuple[float, Array]:
        """The same of the slack-free entropic program, and which variables x has at a bound though u asks otherwise.

        Those are left out of the gap: the rows must force them, which `forced` and `room` ask of HiGHS.
        """
        width = self.upper - self.lower
        v = width * (y + self.matrix.T @ duals) / tau
        p = np.clip((x - self.lower) / np.where(width > 0, width, 1.0), 0.0, 1.0)
        log_in, log_out = -np.logaddexp(0, -v), -np.logaddexp(0, v)
        q = 1 - p
        terms = tau * (_xlogy(p) - p * log_in + _xlogy(q) - q * log_out)
        terms = np.where(width > 0, terms, 0.0)
        value = abs(float(y @ x)) + tau * float(np.abs(_xlogy(p) + _xlogy(q)).sum())
        at_bound = (p <= _AT_BOUND) | (p >= 1 - _AT_BOUND)
        odd = at_bound & (terms > 1e-9 * (1.0 + value) / len(x))
        return (float(np.abs(terms[~odd]).sum()) + self.complementarity(x, duals)) / (1.0 + value), np.flatnonzero(odd)

    def kl_gap(self, y: Array, x: Array, duals: Array, tau: float) -> tuple[float, Array]:
        """The same with tau KL(x - lower | 1): terms t log(t / s) - t + s, s = exp(u / tau) up to the width."""
        width = self.upper - self.lower
        t = np.clip(x - self.lower, 0.0, width)
        asked = (y + self.matrix.T @ duals) / tau
        most = np.log(np.maximum(width, 1e-300))
        log_s = np.minimum(asked, most)
        terms = tau * (_xlogy(t) - t * log_s - t + np.exp(log_s) + (asked - log_s) * (width - t))
        terms = np.where(width > 0, terms, 0.0)
        value = abs(float(y @ x)) + tau * float(np.abs(_xlogy(t) - t).sum())
        at_bound = (t <= _AT_BOUND * width) | (t >= (1 - _AT_BOUND) * width)
        rows, odd = self.complementarity(x, duals), at_bound & (terms > 1e-9 * (1.0 + value) / len(x))
        if np.abs(terms).sum() + rows <= 1e-8 * (1.0 + value):  # nothing need be left out
            odd[:] = False
        return (float(np.abs(terms[~odd]).sum()) + rows) / (1.0 + value), np.flatnonzero(odd)

    def forced(self, variable: int, x: float) -> bool:
        """Whether every feasible point has this variable at x, to HiGHS's tolerance."""
        cost = np.zeros(self.shape[1])
        cost[variable] = 1.0
        return self._range_is(cost, x)

    def room(self, variables: Array, x: Array) -> float:
        """How far these variables, each at a bound of x, can leave it all together, in shares of the box."""
        width = self.upper - self.lower
        at_lower = x - self.lower <= self.upper - x
        cost = np.zeros(self.shape[1])
        cost[variables] = np.where(at_lower, 1.0, -1.0)[variables] / width[variables]
        start = float((cost * np.where(at_lower, self.lower, self.upper))[variables].sum())
        return self.most(cost) - start

    def most(self, cost: Array) -> float:
        """The largest value of <cost, x> in the set, by HiGHS."""
        highs = self._highs()
        highs.changeColsCost(len(cost), np.arange(len(cost), dtype=np.int32), cost)
        highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
        highs.run()
        assert highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
        return float(highs.getInfo().objective_function_value)

    def always_tight(self, row: int) -> bool:
        """Whether every feasible point satisfies this row with equality, to HiGHS's tolerance."""
        return self._range_is(self.matrix[[row]].toarray()[0], self.rhs[row])

    def _range_is(self, cost: Array, value: float) -> bool:
        ends = []
        for sense in (highspy.ObjSense.kMinimize, highspy.ObjSense.kMaximize):
            highs = self._highs()
            for j in np.flatnonzero(cost):
                highs.changeColCost(int(j), float(cost[j]))
            highs.changeObjectiveSense(sense)
            highs.run()
            ends.append(highs.getInfo().objective_function_value)
        return max(abs(end - value) for end in ends) <= 1e-5 * max(1.0, abs(value))

    def feasible(self) -> bool:
        """Whether HiGHS finds a point of the set."""
        highs = self._highs()
        highs.run()
        return highs.getModelStatus() == highspy.HighsModelStatus.kOptimal

    def boxed(self) -> tuple[Program, float]:
        """Infinite bounds replaced by the smallest +-M, a power of ten, with a feasible point within +-M / 2."""
        for power in range(13):
            M = 10.0**power
            if self._within(M / 2).feasible():
                return self._within(M), M
        raise ValueError("no power of ten up to 1e12 is large enough")

    def _within(self, M: float) -> Program:
        lower, upper = (
            np.where(np.isneginf(self.lower), -M, self.lower),
            np.where(np.isposinf(self.upper), M, self.upper),
        )
        return replace(self, lower=lower, upper=upper)

    def _highs(self) -> highspy.Highs:
        highs = highspy.Highs()
        highs.silent()
        lp = highspy.HighsLp()
        lp.num_row_, lp.num_col_ = self.shape
        lp.col_cost_ = np.zeros(lp.num_col_)
        lp.col_lower_, lp.col_upper_ = self.lower, self.upper
        lp.row_lower_ = np.where(self.senses == "<=", -np.inf, self.rhs)
        lp.row_upper_ = np.where(self.senses == ">=", np.inf, self.rhs)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = self.matrix.indptr, self.matrix.indices
        lp.a_matrix_.value_ = self.matrix.data
        highs.passModel(lp)
        return highs


def random_curvature(size: int, seed: int = 0) -> sp.csr_array:
    """A sparse positive semi-definite matrix of about half rank: F F' with two entries in each column of F."""
    rng, rank = np.random.default_rng(seed), max(1, size // 2)
    columns = np.repeat(np.arange(rank), 2)
    rows, values = rng.integers(size, size=len(columns)), rng.normal(size=len(columns))
    F = sp.csr_array((values, (rows, columns)), shape=(size, rank))
    return sp.csr_array(F @ F.T)


def read(path: Path) -> Program:
    """An MPS file without its objective and integrality; a row with two ends becomes two rows."""
    highs = highspy.Highs()
    highs.silent()
    assert highs.readModel(str(path)) != highspy.HighsStatus.kError, path
    lp = highs.getLp()
    matrix, shape = lp.a_matrix_, (lp.num_row_, lp.num_col_)
    kind = sp.csc_array if matrix.format_ == highspy.MatrixFormat.kColwise else sp.csr_array
    whole = sp.csr_array(kind((np.array(matrix.value_), np.array(matrix.index_), np.array(matrix.start_)), shape=shape))
    low, high = np.array(lp.row_lower_), np.array(lp.row_upper_)
    filled = np.diff(whole.indptr) > 0
    equal = filled & (low == high)
    parts = (
        ("<=", filled & ~equal & np.isfinite(high), high),
        (">=", filled & ~equal & np.isfinite(low), low),
        ("==", equal, low),
    )
    rows = np.concatenate([np.flatnonzero(mask) for _, mask, _ in parts])
    senses = np.concatenate([np.full(int(mask.sum()), sense) for sense, mask, _ in parts])
    rhs = np.concatenate([side[mask] for _, mask, side in parts])
    return Program(sp.csr_array(whole[rows]), senses, rhs, np.array(lp.col_lower_), np.array(lp.col_upper_))


def _xlogy(p: Array) -> Array:
    return p * np.log(np.maximum(p, 1e-300))
