r"""Is x the optimum? The duality gap of (x, duals), recomputed from the numbers of a case: numpy, nothing of linsat.

    gap = sum_j [psi_j(u_j) + omega_j(x_j) - u_j x_j]  +  what rows add,      u = linear(y) + A' duals

Every term is at least zero and written so that nothing cancels: a relative entropy for `Entropy` and `KL`, a Bregman
divergence for `Tsallis`, a product of distances for `Euclidean`. With a full matrix it is the most that the slope
z = P x - u gains over the box, sum_j max z_j (x_j - x'_j). A hard row that does not hold with equality, to tolerance,
adds |dual (a x - b)|, a soft one price * broken + dual (a x - b), an inequality with the paper's entropic slack the
relative entropy of its slack share. The gap bounds how far the value of x is from the best one, whatever the duals are,
so wrong duals can only make it larger.

`Euclidean`, `Tsallis` and quadratics have finite duals always. Entropies need infinite ones where rows force a variable
to a bound, or an inequality to be tight at every feasible point. Where the gap is not small, such variables and rows
are left out of it and put to HiGHS instead: can any of them move?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog

from fuzz.families import Array
from fuzz.measure import evaluation_rounding, row_size, signed_gap, spacing, violations
from fuzz.systems import Case

ROWS_HOLD = 1e-9  # violation of a row that holds, relative to its size
TOLERANCE = 1e-8  # of the gap, relative to 1 + the sum of the terms of the objective
_AT_END = 1e-9  # a share this close to 0 or 1 may be forced there


@dataclass
class Gap:
    """The gap of one point, what rounding may account for, and what has to be forced for it to count."""

    relative: float  # (gap - rounding) / (1 + terms of the objective)
    variables: Array  # left out: every feasible point must have them at their bound
    rows: Array  # left out: every feasible point must hold them with equality
    signs: Array  # rows whose dual has a sign that their sense does not allow, or is beyond their price


def duality_gap(case: Case, system: int, y: Array, x: Array, duals: Array) -> Gap:
    """At scores y, a point x and duals in the order of the rows of the case."""
    A = case.matrix_of(system)
    mu = duals.astype(np.longdouble)
    linear = linear_part(case, y)
    u = linear + A.T.astype(np.longdouble) @ mu
    weight = np.abs(linear) + np.abs(A).T @ np.abs(duals)  # the size of the terms of u
    terms, size, ends = _TERMS[case.objective](case, u, x)
    curved = np.abs(x) if case.metric is None else case.metric * np.abs(x)
    loss = spacing(case, x) * (8 * weight + (curved if case.P is None else np.abs(case.P) @ np.abs(x)))
    if case.P is not None:  # rounding of x turns the slope, which counts over the whole box
        apart = np.maximum(spacing(case, x), 8 * np.finfo(np.float64).eps * np.abs(x))
        loss = loss + (np.abs(case.P) @ apart + 8 * np.finfo(np.float64).eps * weight) * _reach(case, x)
    total = 1.0 + np.abs(linear * x).sum() + size
    of_rows, loss_rows, tight = _of_rows(case, system, x, duals)
    wrong = _wrong_signs(case, duals)
    whole = float((terms.sum() + of_rows.sum() - loss.sum() - loss_rows.sum()) / total)
    if case.objective not in _TENDS or (whole <= TOLERANCE and not wrong.any()):  # nothing has to be left out
        return Gap(whole, np.zeros(0, dtype=int), np.zeros(0, dtype=int), np.flatnonzero(wrong))
    odd = ends & (terms > 0.1 * TOLERANCE * total + loss)
    smallest = np.flatnonzero(odd)[np.argsort(terms[odd])]  # those that fit into the tolerance together stay
    odd[smallest[np.cumsum(terms[smallest]) <= 0.5 * TOLERANCE * total]] = False
    held = ~case.hard | (
        np.abs(signed_gap(case, system, x)) > 1e-7 * (1 + np.abs(A) @ np.abs(x)) + np.abs(A) @ spacing(case, x)
    )
    large = of_rows > 0.1 * TOLERANCE * total + loss_rows
    odd_rows = tight & large
    # The slack share of a row whose variables are all forced is what it is, whatever its dual says, as is what a soft
    # row is broken by, which is left out only where the gap is not small with it. Where a row is an equality, variables
    # may also be at their ends because the scores want them there.
    stuck = large & ~tight & ~((A != 0) & (case.upper > case.lower) & ~ends).any(1)
    parts = total, terms, loss, of_rows, loss_rows, wrong, held
    found = [_left_out(case, A, odd, odd_rows, ends, rows, parts) for rows in (stuck & case.hard, stuck)]
    return found[0] if found[0].relative <= TOLERANCE else found[1]


def _left_out(
    case: Case, A: Array, odd: Array, odd_rows: Array, ends: Array, stuck: Array, parts: tuple[Any, ...]
) -> Gap:
    """The gap without odd variables and rows, and without those of rows that are stuck."""
    total, terms, loss, of_rows, loss_rows, wrong, held = parts
    odd = odd | (ends & (case.upper > case.lower) & (A[stuck] != 0).any(0))
    odd_rows = odd_rows | (wrong & ~held)
    fixed = (case.upper <= case.lower) | odd
    odd_rows |= ~((A != 0) & ~fixed).any(1)  # nothing of the row is left to move
    gap = terms[~odd].sum() + of_rows[~odd_rows].sum()
    rounding = loss[~odd].sum() + loss_rows[~odd_rows].sum()
    return Gap(
        relative=float((gap - rounding) / total),
        variables=np.flatnonzero(odd),
        rows=np.flatnonzero(odd_rows & ((A != 0) & ~fixed).any(1)),
        signs=np.flatnonzero(wrong & ~odd_rows),
    )


def _wrong_signs(case: Case, duals: Array) -> Array:
    senses, price = np.array(case.senses), case.price
    beyond = np.zeros(len(senses), dtype=bool) if price is None else np.abs(duals) > price * (1 + 1e-9)
    signed = ~case.hard if case.objective == "entropic" else np.ones(len(senses), dtype=bool)
    return beyond | (signed & (((senses == "<=") & (duals > 0)) | ((senses == ">=") & (duals < 0))))


def linear_part(case: Case, y: Array) -> Array:
    """What multiplies x in the objective."""
    if case.objective == "metric":
        return case.P @ y
    return y if case.metric is None else case.metric * y


def value(case: Case, y: Array, x: Array) -> float:
    """<y, x> - Omega(x) less what soft rows cost, in extended precision; x is taken into the box.

    Not of the paper's slack, which has a value too.
    """
    x = np.clip(x, case.lower, case.upper).astype(np.longdouble)
    gain = linear_part(case, y) @ x
    t, tau = x - case.lower, case.tau
    if case.objective in ("quadratic", "metric"):
        cost = x @ case.P @ x / 2
    elif case.objective == "euclidean":
        cost = ((1.0 if case.metric is None else case.metric) * x * x).sum() / 2
    elif case.objective == "kl":
        prior = np.ones(len(x)) if case.prior is None else case.prior
        cost = tau * (_xlogx(t) - t * np.log(prior) - t + prior).sum()
    elif case.objective == "tsallis":
        cost = tau * (t**case.alpha - t).sum() / (case.alpha * (case.alpha - 1))
    else:
        width = case.upper - case.lower
        cost = -tau * _entropy(np.where(width > 0, t / np.where(width > 0, width, 1.0), 0.0)).sum()
    broken = violations(case, 0, x.astype(np.float64))[: len(case.senses)]
    price = np.zeros(len(broken)) if case.price is None else np.where(case.hard, 0.0, case.price)
    return float(gain - cost - price @ broken)


def _reach(case: Case, x: Array) -> Array:
    """How far each variable can go; as far as it is from 0, and 1, where nothing bounds it."""
    width = case.upper - case.lower
    return np.where(np.isfinite(width), width, 1.0 + np.abs(x))


def _quadratic(case: Case, u: Array, x: Array) -> tuple[Array, float, Array]:
    """The slope z = P x - u can gain z_j (x_j - lower_j) where it is positive, and likewise upwards."""
    z = case.P.astype(np.longdouble) @ x - u
    away = 1.0 + np.abs(x)
    down = np.where(np.isfinite(case.lower), x - case.lower, away)
    up = np.where(np.isfinite(case.upper), case.upper - x, away)
    terms = np.where(z > 0, z * np.maximum(down, 0.0), -z * np.maximum(up, 0.0)).astype(np.float64)
    return terms, float(abs(x @ case.P @ x)) / 2, np.zeros(len(x), dtype=bool)


def _kl(case: Case, u: Array, x: Array) -> tuple[Array, float, Array]:
    """tau [t log(t / s) - t + s] for the s that u asks for, cut at the width, and what u asks beyond it."""
    width = case.upper - case.lower
    t, free = np.maximum(x - case.lower, 0.0).astype(np.longdouble), width > 0
    prior = np.ones(len(x)) if case.prior is None else case.prior
    power = u / case.tau + np.log(prior)
    end = np.log(np.where(free, width, 1.0).astype(np.longdouble))  # infinite where the bound is
    width = np.minimum(width, 1e300)
    largest = 690.0  # whose exponential is a float; more is asked where rows force a variable to its lower bound
    s = np.exp(np.minimum(np.minimum(power, end), largest))
    t = np.clip(np.clip(s, t - spacing(case, x), t + spacing(case, x)), 0.0, None)
    floor = 1e-4000 if np.finfo(np.longdouble).max > 1e4000 else 1e-300
    ratio = np.log(np.maximum(t, floor)) - np.minimum(power, end)
    beyond = np.where(power > end, (power - np.minimum(power, end)) * np.maximum(width - t, 0.0), 0.0)
    terms = t * ratio - t + s + beyond
    size = case.tau * (np.abs(_xlogx(t)) + t * np.abs(np.log(prior)) + t + prior).sum()
    near = _AT_END * np.where(np.isfinite(width), width, 1.0) + spacing(case, x)
    return (
        np.where(free, case.tau * np.maximum(terms, 0.0), 0.0).astype(np.float64),
        float(size),
        (x - case.lower <= near) | (case.upper - x <= near),
    )


def _tsallis(case: Case, u: Array, x: Array) -> tuple[Array, float, Array]:
    """omega(t) - omega(s) - omega'(s) (t - s) for the s that u asks for, and (omega'(s) - u)(t - s) where s is cut."""
    a, width = case.alpha, case.upper - case.lower
    t = np.maximum(x - case.lower, 0.0).astype(np.longdouble)
    v = (a - 1) * u / case.tau + 1 / a
    s = np.minimum(np.maximum(v, 0.0) ** (1 / np.longdouble(a - 1)), width)
    t = np.clip(np.clip(s, t - spacing(case, x), t + spacing(case, x)), 0.0, None)
    factor = case.tau / (a * (a - 1))
    parts = np.abs(t**a) + np.abs(s**a) + a * s ** (a - 1) * (t + s)
    bent = t**a - s**a - a * s ** (a - 1) * (t - s) - 8 * np.finfo(np.longdouble).eps * parts
    slope = case.tau / (a - 1) * (s ** (a - 1) - v)
    terms = factor * np.maximum(bent, 0.0) + np.maximum(slope * (t - s), 0.0)
    size = float(factor * np.abs(t**a - t).sum())
    return np.where(width > 0, terms, 0.0).astype(np.float64), size, np.zeros(len(x), dtype=bool)


def _euclidean(case: Case, u: Array, x: Array) -> tuple[Array, float, Array]:
    """With c = clip(u / q), psi(u) - u x + q x^2 / 2 is q (x - c)(x + c - 2 u / q) / 2."""
    q = np.ones(len(x)) if case.metric is None else case.metric
    c = np.clip(u / q, case.lower, case.upper)
    terms = (q * (x - c) * (x + c - 2 * u / q) / 2).astype(np.float64)
    return np.abs(terms), float((q * x * x).sum()) / 2, np.zeros(len(x), dtype=bool)


def _entropic(case: Case, u: Array, x: Array) -> tuple[Array, float, Array]:
    """tau times the relative entropy of the share of x against the share that u asks for."""
    width = case.upper - case.lower
    free = width > 0
    p = np.clip((x - case.lower) / np.where(free, width, 1.0), 0.0, 1.0)
    v = (width * u / case.tau).astype(np.longdouble)
    # Of the shares that the dtype of x cannot tell apart, the one that u asks for, or the nearest to it.
    apart = spacing(case, x) / np.where(free, width, 1.0)
    asked = np.exp(-np.logaddexp(0, -v))
    closest = np.clip(np.clip(asked, p - apart, p + apart), 0.0, 1.0)
    terms = np.where(free, case.tau * _relative_entropy(closest, v), 0.0)
    near = _AT_END + apart
    ends = (p <= near) | (p >= 1 - near)
    return terms, case.tau * float(np.where(free, _entropy(p), 0.0).sum()), ends


_TERMS = {
    "entropic": _entropic,
    "slack-free": _entropic,
    "euclidean": _euclidean,
    "kl": _kl,
    "tsallis": _tsallis,
    "quadratic": _quadratic,
    "metric": _quadratic,
}
_TENDS = ("entropic", "slack-free", "kl")  # to a bound, which they reach with infinite duals only


def _relative_entropy(p: Array, v: Array) -> Array:
    """p log(p / s) + (1 - p) log((1 - p) / (1 - s)) with s = sigmoid(v); at least 0."""
    log_s, log_not = -np.logaddexp(0, -v), -np.logaddexp(0, v)
    found = _xlogx(p) - p * log_s + _xlogx(1 - p) - (1 - p) * log_not
    # Of two terms that nearly cancel, rounding of the longer one is left over.
    return np.maximum(found - 8 * np.finfo(np.longdouble).eps * (1 + np.abs(v)), 0.0).astype(np.float64)


def _entropy(p: Array) -> Array:
    return -_xlogx(p) - _xlogx(1 - p)


def _xlogx(p: Array) -> Array:
    return p * np.log(np.maximum(p, 1e-4000 if np.finfo(np.longdouble).max > 1e4000 else 1e-300))


def _of_rows(case: Case, system: int, x: Array, duals: Array) -> tuple[Array, Array, Array]:
    """What each row adds to the gap, what rounding may add, and whether the row holds with equality at x."""
    gap = signed_gap(case, system, x).astype(np.float64)
    A, senses = case.matrix_of(system), np.array(case.senses)
    off = evaluation_rounding(case, system, x) + np.abs(A) @ spacing(case, x)
    added, loss = np.abs(duals * gap), np.abs(duals) * off
    if case.price is not None:
        broken = np.where(
            senses == "<=", np.maximum(gap, 0), np.where(senses == ">=", np.maximum(-gap, 0), np.abs(gap))
        )
        price = np.where(case.hard, 0.0, case.price)
        added = np.where(case.hard, added, np.abs(price * broken + duals * gap))
        loss = loss + price * off
    # Optimal for right-hand sides that are off by what a row may be violated by is optimal enough: with nearly parallel
    # rows duals are so large that nothing more can be asked. A soft row has no such tolerance: what it is broken by
    # costs its price, as does what it lacks to being broken.
    added = np.where(case.hard & (np.abs(gap) <= ROWS_HOLD * row_size(case, system, x)), 0.0, added)
    tight = np.abs(gap) <= off + ROWS_HOLD * (1 + np.abs(A) @ np.abs(x))
    if case.objective == "entropic":
        _add_slack(case, system, x, gap, off, duals, added, loss)
    return added, loss, tight & case.hard


def _add_slack(
    case: Case, system: int, x: Array, gap: Array, off: Array, duals: Array, added: Array, loss: Array
) -> None:
    """The hard inequalities of the paper's layer: tau S / scale times the relative entropy of their slack share.

    a x + S z = b with S = b - least; c x + S z = d + S with S = most - d, or g (d - least), g = floor((most - least) /
    (d - least)), for c >= 0; the temperature of a share is in units of the row's mean |coefficient * width|.
    """
    A, side, size = case.matrix_of(system), case.sides[system], row_size(case, system, x)
    low, high = A * case.lower, A * case.upper
    least, most = np.minimum(low, high).sum(1), np.maximum(low, high).sum(1)
    reach = np.abs(A) * (case.upper - case.lower)
    scale = np.where((reach > 0).any(1), reach.sum(1) / np.maximum((reach > 0).sum(1), 1), 1.0)
    for i in np.flatnonzero(case.hard & (np.array(case.senses) != "==")):
        room = most[i] - side[i] if case.senses[i] == "<=" else side[i] - least[i]
        if room <= 1e-11 * (most[i] - least[i]) and duals[i] == 0:  # holds on the whole box: no row at all
            continue
        if case.senses[i] == "<=":
            S, share = side[i] - least[i], -gap[i]
        else:
            need = side[i] - least[i]
            S = np.floor((most[i] - least[i]) / need * (1 + 1e-12)) * need if (A[i] >= 0).all() else most[i] - side[i]
            share = S - gap[i]
        if 1e-9 * scale[i] >= S:  # no room but rounding: an equation
            continue
        v = np.longdouble(scale[i] * duals[i] / case.tau)
        # Of sides as far off as a row may be violated, that which the dual asks for, as of rows without slack.
        asked, near = np.exp(-np.logaddexp(0, -v)), ROWS_HOLD * size[i] / S
        z = np.clip(np.clip(asked, share / S - near, share / S + near), 0.0, 1.0)
        added[i] = case.tau * S / scale[i] * float(_relative_entropy(np.longdouble(z), v))
        inside = np.clip(z, off[i] / S, 1 - off[i] / S) if off[i] < S / 2 else 0.5
        pull = abs(duals[i]) + case.tau / scale[i] * abs(np.log(max(inside, 1e-300) / max(1 - inside, 1e-300)))
        loss[i] = off[i] * pull + case.tau / scale[i] * off[i]


def moves(case: Case, system: int, gap: Gap, x: Array) -> float:
    """How far HiGHS can move what was left out of the gap from where it is at x, either way; 0: it is forced.

    In shares of the box and sizes of rows, beyond the rounding of x to its dtype.
    """
    A, side = case.matrix_of(system)[case.hard], case.sides[system][case.hard]
    senses = np.array(case.senses)[case.hard]
    bounded = np.isfinite(case.upper)
    width = np.where((case.upper > case.lower) & bounded, case.upper - case.lower, 1.0)
    scale = np.maximum((np.abs(A) * width).max(1), 1e-300)
    M, b = A * width / scale[:, None], (side - A @ case.lower) / scale
    sign = np.where(senses == ">=", -1.0, 1.0)
    equal = senses == "=="
    share = (x - case.lower) / width
    cost = np.zeros(len(x))
    cost[gap.variables] = np.where((share[gap.variables] < 0.5) | ~bounded[gap.variables], 1.0, -1.0)
    start = float(cost @ np.clip(share, 0, np.where(bounded, 1.0, np.inf)))
    position = np.cumsum(case.hard) - 1
    for i in gap.rows:
        if case.senses[i] != "==":
            row = position[i]
            cost -= sign[row] * M[row]
            start -= sign[row] * b[row]
    ends = [
        linprog(
            way * cost,
            A_ub=(M * sign[:, None])[~equal] if (~equal).any() else None,
            b_ub=(b * sign)[~equal] if (~equal).any() else None,
            A_eq=M[equal] if equal.any() else None,
            b_eq=b[equal] if equal.any() else None,
            bounds=list(zip(np.zeros(len(x)), np.where(bounded, case.upper > case.lower, np.inf), strict=True)),
            method="highs",
        )
        for way in (1.0, -1.0)
    ]
    if any(end.status != 0 for end in ends):
        return np.nan
    rounding = torch.finfo(getattr(torch, case.dtype)).eps * float(np.abs(cost / width) @ np.abs(x))
    return max(start - float(ends[0].fun), -float(ends[1].fun) - start) - rounding
