"""The mathematics of `linsat._equations` as one fused pass per instance on the CPU (numba).

Everything is in shares: the box is [0, 1], rows are divided by their scale, pinned variables and tight slacks are
folded into the right sides (`linsat._kernels.tables` prepares that). With a = a_ij width_j / rho_i:

    u = (y + A' mu) / T,  p = sigmoid(u),  z = sigmoid(mu / T),  r = A p + s z - b

One group of rows with disjoint supports comes first: its block of the Hessian is diagonal, so a Schur complement leaves
a Cholesky factorisation of the other rows only. Nothing is allocated per instance; an instance's answer does not depend
on what else is in the batch, to the last bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from linsat._kernels.compiled import compiled

# Reassociation lets sums vectorise; the exponential below relies on exact evaluation and must not have it.
_SUMS = {"reassoc", "contract", "nsz", "arcp"}
_EXACT = {"contract", "nsz"}
_SUM_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": _SUMS}
_EXACT_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": _EXACT}

_ROOM = 64  # doubles

CONVERGED, STEP_LIMIT, STALLED, INFEASIBLE, NOT_FINITE = 0, 1, 2, 3, 4

# The constants of linsat.solvers.newton, which explains them.
_LOOSE_RESIDUAL = 0.3
_COOLING = 0.5
_START_TEMPERATURE = 0.05
_LEAST_DAMPING, _FIRST_DAMPING, _LARGEST_DAMPING = 1e-9, 1e-2, 1.0
_BACKTRACKS = 12
_CERTIFICATE_EVERY = 8
_RIDGE = 1e-12
_MAGIC = 6755399441055744.0  # 1.5 * 2**52: adding it rounds to a whole number, kept in the low bits


def _fetch_and_add(typing_context, counter):
    """counter[0] += 1 in one step that no other thread can come between; returns the value before."""

    def build(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), build


_claim: Any = intrinsic(_fetch_and_add)


@compiled(**_SUM_OPTIONS)
def _vector(size):
    """A work vector with room behind it.

    Compiled loops take a scalar branch, with other roundings, when two arrays start within a few vectors of each other.
    Room behind every array keeps the branch, and so the last bit of the answer, from depending on where memory lies.
    """
    return np.zeros(size + _ROOM)[:size]


@compiled(inline="always", **_EXACT_OPTIONS)
def _exp_of_negative(x: float) -> float:
    """exp(x) for x <= 0 without a call, so that loops around it vectorise; full precision down to exp(-700)."""
    x = max(x, -700.0)
    shifted = x * 1.4426950408889634 + _MAGIC
    whole = shifted - _MAGIC
    r = (x - whole * 0.6931471803691238) - whole * 1.9082149292705877e-10
    e = 1 / 3628800 + r * (1 / 39916800 + r / 479001600)
    e = 1 / 5040 + r * (1 / 40320 + r * (1 / 362880 + r * e))
    e = 1 / 24 + r * (1 / 120 + r * (1 / 720 + r * e))
    e = 1 + r * (1 + r * (1 / 2 + r * (1 / 6 + r * e)))
    bits = (np.float64(shifted).view(np.int64) + 1023) << 52
    return e * np.int64(bits).view(np.float64)


@compiled(**_EXACT_OPTIONS)
def _sigmoids(u, p, tail):
    """p = sigmoid(u) and tail = 1 + exp(-|u|), whose logarithm is the rest of softplus."""
    for j in range(u.size):
        e = _exp_of_negative(-abs(u[j]))
        t = 1.0 / (1.0 + e)
        tail[j] = 1.0 + e
        p[j] = t if u[j] >= 0 else e * t


@compiled(**_SUM_OPTIONS)
def _softplus_sum(u, tail):
    """sum of softplus(u) with one logarithm for many factors: each lies in [1, 2]."""
    total = 0.0
    for j in range(u.size):
        total += max(u[j], 0.0)
    start = 0
    while start < u.size:
        stop = min(start + 512, u.size)
        product = 1.0
        for j in range(start, stop):
            product *= tail[j]
        total += math.log(product)
        start = stop
    return total


@compiled(**_SUM_OPTIONS)
def _pull(mu, variable_rows, variable_values, out):
    """out = A' mu, from the rows of each variable (padded to the same number)."""
    for j in range(out.size):
        out[j] = 0.0
    for c in range(variable_rows.shape[0]):
        rows, values = variable_rows[c], variable_values[c]
        for j in range(out.size):
            out[j] += values[j] * mu[rows[j]]


@compiled(**_SUM_OPTIONS)
def _apply(x, row_start, row_cols, row_values, out):
    """out = A x, row by row."""
    for i in range(out.size):
        values, cols = row_values[row_start[i] : row_start[i + 1]], row_cols[row_start[i] : row_start[i + 1]]
        count = values.size
        total = 0.0
        if count > 0 and cols[count - 1] - cols[0] + 1 == count:
            part = x[cols[0] : cols[0] + count]  # consecutive variables: no indirection, so it vectorises
            for e in range(count):
                total += values[e] * part[e]
        else:
            for e in range(count):
                total += values[e] * x[cols[e]]
        out[i] = total


@compiled(**_SUM_OPTIONS)
def _evaluate(y, mu, T, slack, rhs, table, u, p, z, r, tail):
    """Fill u, p, z, r; returns the potential and the largest residual."""
    variable_rows, variable_values, row_start, row_cols, row_values = table[:5]
    _pull(mu, variable_rows, variable_values, u)
    inverse = 1.0 / T
    for j in range(u.size):
        u[j] = (u[j] + y[j]) * inverse
    _sigmoids(u, p, tail)
    phi = _softplus_sum(u, tail) * T
    _apply(p, row_start, row_cols, row_values, r)
    largest = 0.0
    for i in range(r.size):
        t = mu[i] * inverse
        if slack[i] > 0:
            e = math.exp(-abs(t))
            z[i] = 1.0 / (1.0 + e) if t >= 0 else e / (1.0 + e)
            phi += T * slack[i] * (max(t, 0.0) + math.log1p(e))
            r[i] += slack[i] * z[i]
        r[i] -= rhs[i]
        phi -= rhs[i] * mu[i]
        largest = max(largest, abs(r[i]))
    return phi, largest


@compiled(**_SUM_OPTIONS)
def _factor(p, z, slack, T, ridge, table, weights, H, S):
    """Assemble T H and factor it: H holds [leading diagonal | W | rest], S the factor of the Schur complement."""
    first, pair_target, pair_col, pair_values = table[5], table[6], table[7], table[8]
    k = slack.size
    rest = k - first
    for j in range(p.size):
        weights[j] = p[j] * (1.0 - p[j])
    for e in range(H.size):
        H[e] = 0.0
    for e in range(pair_target.size):
        H[pair_target[e]] += pair_values[e] * weights[pair_col[e]]
    corner = first + first * rest
    for i in range(first):
        H[i] += slack[i] * z[i] * (1.0 - z[i]) + ridge
        H[i] = H[i] * (1.0 + _RIDGE) if H[i] > 1e-290 else 1.0
    for g in range(rest):
        i = first + g
        diagonal = corner + g * rest + g
        H[diagonal] += slack[i] * z[i] * (1.0 - z[i]) + ridge
    # Whole rows of S although only its upper triangle counts: loops of one length vectorise better.
    for g in range(rest):
        S[g, :] = H[corner + g * rest : corner + (g + 1) * rest]
    W = H[first:corner].reshape((first, rest))
    whole = first - first % 4
    for i in range(0, whole, 4):  # four rows at a time: S is loaded and stored a quarter as often
        d0, d1, d2, d3 = 1.0 / H[i], 1.0 / H[i + 1], 1.0 / H[i + 2], 1.0 / H[i + 3]
        for g in range(rest):
            c0, c1, c2, c3 = W[i, g] * d0, W[i + 1, g] * d1, W[i + 2, g] * d2, W[i + 3, g] * d3
            for h in range(rest):
                S[g, h] -= c0 * W[i, h] + c1 * W[i + 1, h] + c2 * W[i + 2, h] + c3 * W[i + 3, h]
    for i in range(whole, first):
        for g in range(rest):
            c = W[i, g] / H[i]
            for h in range(rest):
                S[g, h] -= c * W[i, h]
    for g in range(rest):
        size = H[corner + g * rest + g]
        pivot = S[g, g] + _RIDGE * size
        # A pivot lost to rounding belongs to a row that depends on earlier ones: leave its dual where it is.
        inverse = 1.0 / math.sqrt(pivot) if pivot > 1e-14 * size and size > 1e-290 else 0.0
        S[g, g] = inverse  # the diagonal holds inverses
        for h in range(g + 1, rest):
            S[g, h] *= inverse
        for e in range(g + 1, rest):
            c = S[g, e]
            for h in range(e, rest):
                S[e, h] -= c * S[g, h]


@compiled(**_SUM_OPTIONS)
def _solve(first, H, S, right, out):
    """out = H^{-1} right with the factor of `_factor`; right and out may be the same."""
    k = out.size
    rest = k - first
    for i in range(k):
        out[i] = right[i]
    for i in range(first):
        share = out[i] / H[i]
        for g in range(rest):
            out[first + g] -= H[first + i * rest + g] * share
    for g in range(rest):
        value = out[first + g] * S[g, g]
        out[first + g] = value
        for h in range(g + 1, rest):
            out[first + h] -= S[g, h] * value
    for g in range(rest - 1, -1, -1):
        total = out[first + g]
        for h in range(g + 1, rest):
            total -= S[g, h] * out[first + h]
        out[first + g] = total * S[g, g]
    for i in range(first):
        total = out[i]
        for g in range(rest):
            total -= H[first + i * rest + g] * out[first + g]
        out[i] = total / H[i]


@compiled(**_SUM_OPTIONS)
def _drift(u, p, z, mu, slack, T, change, table, weights, change_of_rows, direction):
    """Add to ``direction`` what a change of temperature does to the residual, mu held."""
    row_start, row_cols, row_values = table[2], table[3], table[4]
    scale = -change / T
    for j in range(u.size):
        weights[j] = p[j] * (1.0 - p[j]) * u[j] * scale
    _apply(weights, row_start, row_cols, row_values, change_of_rows)
    for i in range(mu.size):
        direction[i] += change_of_rows[i]
        if slack[i] > 0:
            direction[i] += slack[i] * z[i] * (1.0 - z[i]) * mu[i] / T * scale


@compiled(**_SUM_OPTIONS)
def _proves_infeasible(mu, slack, rhs, table, gain):
    """Whether <mu, b> exceeds everything <mu, A p + s z> can reach over the box, beyond rounding."""
    _pull(mu, table[0], table[1], gain)
    reach, target, size = 0.0, 0.0, 0.0
    for j in range(gain.size):
        reach += max(gain[j], 0.0)
        size += abs(gain[j])
    for i in range(mu.size):
        best = slack[i] * max(mu[i], 0.0)
        reach += best
        target += rhs[i] * mu[i]
        size += best + abs(rhs[i] * mu[i])
    return target - reach > 1e-9 * size


@compiled(**_SUM_OPTIONS)
def _sweep(y, T, reach, slack, rhs, table, mu, u, p, z, r, tail):
    """One Sinkhorn sweep over the groups of disjoint rows: a start far better than mu = 0 for a fraction of a step.

    Each row with non-negative coefficients multiplies the odds of its variables and slack by the factor that would make
    it hold if its coefficients were equal.
    """
    group_start, group_rows, totals = table[9], table[10], table[11]
    cap = 10.0 * T + 0.5 * reach
    for g in range(group_start.size - 1):
        if g > 0:  # the caller has evaluated at the start
            _evaluate(y, mu, T, slack, rhs, table, u, p, z, r, tail)
        for e in range(group_start[g], group_start[g + 1]):
            i = group_rows[e]
            wanted, rest = rhs[i], totals[i] - rhs[i]
            have = r[i] + rhs[i]
            left = totals[i] - have
            if totals[i] > 0 and min(min(wanted, rest), min(have, left)) > 1e-12 * totals[i]:
                change = T * math.log(wanted * left / (rest * have))
                mu[i] += min(max(change, -cap), cap)


@compiled(**_SUM_OPTIONS)
def solve_instance(y, tau, tol, max_steps, warm, slack, rhs, table, mu, p, per_variable, per_row, H, S):
    """Solve one instance; mu holds the start if ``warm``, then the duals, p the shares. Returns code and steps."""
    u, tail, weights, other_u, other_p = per_variable
    z, r, direction, trial, other_z, other_r = per_row
    first, k = table[5], mu.size
    reach = 0.0
    for j in range(y.size):
        if not math.isfinite(y[j]):
            return NOT_FINITE, 0
        reach = max(reach, abs(y[j]))
    if warm:
        # A start that is worse than none is not used.
        given, _ = _evaluate(y, mu, tau, slack, rhs, table, u, p, z, r, tail)
        trial[:] = 0.0
        blank, _ = _evaluate(y, trial, tau, slack, rhs, table, u, p, z, r, tail)
        warm = given <= blank
    T = tau if warm else max(tau, _START_TEMPERATURE * reach)
    if not warm:
        mu[:] = 0.0
    damping, stride = _FIRST_DAMPING, 1.0
    phi, error = _evaluate(y, mu, T, slack, rhs, table, u, p, z, r, tail)
    if not warm and table[9].size > 1:
        _sweep(y, T, reach, slack, rhs, table, mu, u, p, z, r, tail)
        swept, error = _evaluate(y, mu, T, slack, rhs, table, u, p, z, r, tail)
        if swept <= phi:
            phi = swept
        else:
            mu[:] = 0.0
            phi, error = _evaluate(y, mu, T, slack, rhs, table, u, p, z, r, tail)
    factored = False
    for step in range(max_steps + 1):
        if tau >= T and error <= tol:
            if factored and error > 1e-14:
                # One more correction with the last factor: cheap, and it usually squares the residual.
                _solve(first, H, S, r, direction)
                for i in range(k):
                    trial[i] = mu[i] - tau * direction[i]
                _, better = _evaluate(y, trial, T, slack, rhs, table, other_u, other_p, other_z, other_r, tail)
                if better < error:
                    mu[:] = trial
                    p[:] = other_p
            return CONVERGED, step
        if step > 0 and step % _CERTIFICATE_EVERY == 0 and _proves_infeasible(mu, slack, rhs, table, weights):
            return INFEASIBLE, step
        if step == max_steps:
            break
        cools = error <= _LOOSE_RESIDUAL and tau < T
        cooler = max(tau, _COOLING * T) if cools else T
        # The factor is that of T H, so the ridge (residual / T) becomes the residual and the step gains a factor T.
        _factor(p, z, slack, T, damping * min(error, 1.0), table, weights, H, S)
        factored = True
        for i in range(k):
            direction[i] = r[i]
        if cools:
            _drift(u, p, z, mu, slack, T, cooler - T, table, weights, trial, direction)
        _solve(first, H, S, direction, direction)
        longest = 0.0
        for i in range(k):
            direction[i] *= -T
            longest = max(longest, abs(direction[i]))
        cap = stride * (10.0 * T + 0.5 * reach)
        if longest > cap:
            for i in range(k):
                direction[i] *= cap / longest
        if cools:
            T = cooler
            for i in range(k):
                trial[i] = mu[i] + direction[i]
            new_phi, new_error = _evaluate(y, trial, T, slack, rhs, table, other_u, other_p, other_z, other_r, tail)
            if new_error <= _LOOSE_RESIDUAL:  # the tangent was good enough: no need to know where it started from
                mu[:] = trial
                p[:] = other_p
                u[:] = other_u
                z[:] = other_z
                r[:] = other_r
                phi, error = new_phi, new_error
                damping = max(damping / 4, _LEAST_DAMPING)
                stride = min(stride * 2, 1e6)
                continue
            phi, error = _evaluate(y, mu, T, slack, rhs, table, u, p, z, r, tail)
        slope, norm = 0.0, 0.0
        for i in range(k):
            slope += direction[i] * r[i]
            norm += r[i] * r[i]
        slope = min(slope, 0.0)
        length, accepted = 1.0, False
        for _ in range(_BACKTRACKS):
            for i in range(k):
                trial[i] = mu[i] + length * direction[i]
            new_phi, new_error = _evaluate(y, trial, T, slack, rhs, table, other_u, other_p, other_z, other_r, tail)
            accepted = new_phi <= phi + 1e-4 * length * slope
            if not accepted and new_phi <= phi + 1e-12 * (1.0 + abs(phi)):
                new_norm = 0.0
                for i in range(k):
                    new_norm += other_r[i] * other_r[i]
                accepted = new_norm < norm
            if accepted:
                break
            length *= 0.3
        if accepted:
            mu[:] = trial
            p[:] = other_p
            u[:] = other_u
            z[:] = other_z
            r[:] = other_r
            phi, error = new_phi, new_error
        elif not cools:
            return STALLED, step + 1
        full = accepted and length == 1.0
        damping = max(damping / 4, _LEAST_DAMPING) if full else min(damping * 4, _LARGEST_DAMPING)
        stride = min(stride * 2, 1e6) if full else max(stride / 2, 1.0)
    return STEP_LIMIT, max_steps


@compiled(**_SUM_OPTIONS)
def forward(
    counter, scores, lower, width, pinned, free, tau, tol, max_steps, warm, slack, rhs,
    variable_rows, variable_values, row_start, row_cols, row_values, leading, pair_target, pair_col, pair_values,
    group_start, group_rows, totals, x, p, mu, codes, steps,
):  # fmt: skip
    """Solve the instances not yet claimed through ``counter``, which threads share; arrays with a first dimension of 1
    are shared by all instances."""
    count, l = scores.shape
    k = slack.shape[1]
    rest = k - leading
    y = _vector(l)
    per_variable = (_vector(l), _vector(l), _vector(l), _vector(l), _vector(l))
    per_row = (_vector(k), _vector(k), _vector(k), _vector(k), _vector(k), _vector(k))
    H, S = _vector(leading + leading * rest + rest * rest), _vector(rest * rest).reshape((rest, rest))
    n = _claim(counter)
    while n < count:
        b, v, s = min(n, lower.shape[0] - 1), min(n, variable_values.shape[0] - 1), min(n, slack.shape[0] - 1)
        f, w = min(n, free.shape[0] - 1), min(n, width.shape[0] - 1)
        for j in range(l):
            y[j] = scores[n, j] * width[w, j]
        table = (
            variable_rows, variable_values[v], row_start, row_cols, row_values[v],
            leading, pair_target, pair_col, pair_values[v], group_start, group_rows,
            totals[min(n, totals.shape[0] - 1)],
        )  # fmt: skip
        code, taken = solve_instance(
            y, tau[min(n, tau.size - 1)], tol, max_steps, warm, slack[s], rhs[s], table, mu[n], p[n], per_variable,
            per_row, H, S,
        )  # fmt: skip
        codes[n], steps[n] = code, taken
        for j in range(l):
            if not free[f, j]:
                p[n, j] = pinned[f, j]
            x[n, j] = lower[b, j] + width[w, j] * p[n, j]
        n = _claim(counter)


@compiled(**_SUM_OPTIONS)
def backward(
    counter, grad_x, width, free, tau, slack,
    variable_rows, variable_values, row_start, row_cols, row_values, leading, pair_target, pair_col, pair_values,
    group_start, group_rows, totals, p, mu, grad_scores,
):  # fmt: skip
    """dL/dy = width D (g - A' q) / tau with H q = A D g / tau, for the instances not yet claimed."""
    count, l = grad_x.shape
    k = slack.shape[1]
    rest = k - leading
    g, weights, pulled = _vector(l), _vector(l), _vector(l)
    z, right, q, residual, again = _vector(k), _vector(k), _vector(k), _vector(k), _vector(k)
    H, S = _vector(leading + leading * rest + rest * rest), _vector(rest * rest).reshape((rest, rest))
    n = _claim(counter)
    while n < count:
        b, v, s = min(n, width.shape[0] - 1), min(n, variable_values.shape[0] - 1), min(n, slack.shape[0] - 1)
        f = min(n, free.shape[0] - 1)
        T = tau[min(n, tau.size - 1)]
        table = (
            variable_rows, variable_values[v], row_start, row_cols, row_values[v],
            leading, pair_target, pair_col, pair_values[v], group_start, group_rows,
            totals[min(n, totals.shape[0] - 1)],
        )  # fmt: skip
        for i in range(k):
            z[i] = 1.0 / (1.0 + math.exp(-mu[n, i] / T)) if mu[n, i] > -700 * T else 0.0
        _factor(p[n], z, slack[s], T, 0.0, table, weights, H, S)
        for j in range(l):
            g[j] = width[b, j] * grad_x[n, j] if free[f, j] else 0.0
            pulled[j] = weights[j] * g[j]
        _apply(pulled, row_start, row_cols, row_values[v], right)
        _solve(leading, H, S, right, q)
        for _ in range(2):  # undo the ridge: residual of T H q = right, through A
            _pull(q, variable_rows, variable_values[v], pulled)
            for j in range(l):
                pulled[j] *= weights[j]
            _apply(pulled, row_start, row_cols, row_values[v], residual)
            for i in range(k):
                residual[i] = right[i] - residual[i] - slack[s, i] * z[i] * (1.0 - z[i]) * q[i]
            _solve(leading, H, S, residual, again)
            for i in range(k):
                q[i] += again[i]
        _pull(q, variable_rows, variable_values[v], pulled)
        for j in range(l):
            grad_scores[n, j] = width[b, j] * weights[j] * (g[j] - pulled[j]) / T if free[f, j] else 0.0
        n = _claim(counter)
