"""Random marginals with a known solution, and other ways to solve them: loops in numpy, and Clarabel."""

from __future__ import annotations

import math

import cvxpy as cp
import numpy as np


def multi_set_problem(seed, *, m=3, n=8, k=3, spread=1.0, density=0.5):
    """S, U, V and a Z that satisfies all sets, as Z is drawn first; 0/1 weights that cover every column."""
    rng = np.random.default_rng(seed)
    Z = rng.random((m, n)) ** 2 + 0.01
    Z /= Z.sum(0)
    U = (rng.random((k, n)) < density).astype(float)
    U[rng.integers(k, size=n), np.arange(n)] = 1.0
    S = np.exp(spread * rng.standard_normal((m, n)))
    return S, U, U @ Z.T, Z


def single_set_problem(seed, *, m=4, n=6):
    rng = np.random.default_rng(seed)
    u, v = rng.random(n) + 0.1, rng.random(m) + 0.1
    return rng.random((m, n)) + 0.05, u, v * (u.sum() / v.sum())


def cuturi(S, u, v, sweeps):
    """Sinkhorn in the notation of Cuturi (2013): the plan P, not the shares."""
    P = S / S.sum(0) * u
    for _ in range(sweeps):
        P = P * (v / P.sum(1))[:, None]
        P = P * (u / P.sum(0))
    return P


def by_hand(S, U, V, iterations):
    """Algorithm 2 entry by entry, with the errors of both halves of every iteration."""
    k, n, m = len(U), U.shape[1], V.shape[1]
    gamma, l1, kl = S / S.sum(0), [], []
    for t in range(iterations):
        u, v = U[t % k], V[t % k]
        v_now = np.array([sum(gamma[i, j] * u[j] for j in range(n)) for i in range(m)])
        half = gamma.copy()
        for i in range(m):
            for j in range(n):
                if u[j] > 0:
                    half[i, j] = gamma[i, j] * v[i] / v_now[i]
        u_now = np.array([sum(half[i, j] for i in range(m)) * u[j] for j in range(n)])
        gamma = half.copy()
        for j in range(n):
            if u[j] > 0:
                gamma[:, j] = half[:, j] * u[j] / u_now[j]
        l1.append([abs(v_now - v).sum(), abs(u_now - u).sum()])
        kl.append([_divergence(v, v_now), _divergence(u, u_now)])
    return gamma, np.array(l1), np.array(kl)


def _divergence(target, now):
    pairs = [(a / target.sum(), b / target.sum()) for a, b in zip(target, now, strict=True) if a > 0]
    return sum(p * math.log(p / q) for p, q in pairs)


def entropic_program(S, U, V, tau):
    """The program of the paper's eq. (extended-sk-obj) by Clarabel, over the entries with S > 0."""
    row, col = np.nonzero(S)
    entries = cp.Variable(len(row))
    columns = (col == np.arange(S.shape[1])[:, None]).astype(float)
    rules = [columns @ entries == 1]
    for u, v in zip(U, V, strict=True):
        # The last row of a set follows from the others and the columns; leaving it out helps the solver.
        rows = u[col] * (row == np.arange(S.shape[0] - 1)[:, None])
        rules.append(rows @ entries == v[:-1])
    objective = -(tau * np.log(S[row, col])) @ entries - tau * cp.sum(cp.entr(entries))
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-12)
    cp.Problem(cp.Minimize(objective), rules).solve(solver=cp.CLARABEL, **tight)
    gamma = np.zeros_like(S)
    gamma[row, col] = entries.value
    return gamma
