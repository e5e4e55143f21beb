"""The entropic program as equalities with slack shares, for the peers that need it spelled out.

Every row becomes an equality with a share z in [0, 1] of its slack mass s, then is divided by its mean
coefficient:

    a x <= b   ->   a x + b z = b              s = b
    c x >= d   ->   c x + g d z = (g + 1) d    s = g d,  g = floor(sum c / d)
    e x  = f   ->   e x = f                    s = 0

    min  -<y, x> + tau sum_j h(x_j) + tau sum_i s_i h(z_i)   over   G x + s z = q
    h(t) = t log t + (1 - t) log(1 - t)

This is the program that linsat solves, so answers can be compared entry by entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from problems import Rows


@dataclass(frozen=True, eq=False)
class Equalities:
    """``G x + s z = q``: G (rows, l), slack masses s and right-hand sides q (rows,)."""

    G: sp.csr_array
    s: np.ndarray
    q: np.ndarray


def to_equalities(rows: Rows) -> Equalities:
    """Rows with coefficients >= 0 over the box [0, 1], which all benchmark problems have."""
    G = sp.csr_array(sp.vstack([rows.A, rows.C, rows.E]))
    if G.nnz and G.data.min() < 0:
        raise ValueError("a row has a negative coefficient; the benchmark problems have none")
    # The nudge keeps quotients that are whole in exact arithmetic, such as 0.3 / 0.1, from rounding down.
    multiple = np.floor(rows.C.sum(axis=1) / rows.d * (1 + 1e-12)) if rows.C.shape[0] else np.zeros(0)
    s = np.concatenate([rows.b, multiple * rows.d, np.zeros(rows.E.shape[0])])
    q = np.concatenate([rows.b, (multiple + 1) * rows.d, rows.f])
    scale = G.sum(axis=1) / np.diff(G.indptr)
    return Equalities(sp.csr_array(sp.diags_array(1 / scale) @ G), s / scale, q / scale)
