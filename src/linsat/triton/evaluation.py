"""Passes over the variables of one instance: everything at some duals, slopes, products with the coefficients.

One program holds no more than a tile of coefficients at a time. What lasts longer is in its share of a work array:

    vectors by position of the row    MU and R of two states, then the others named below
    vectors by place of the variable  U of two states, D = dx/d(A'nu), LIN the linear term
    W (slots, width)                  raw coupling of leading with other rows
    S (width, width)                  factor, in blocks

with nu = mu / rho. Letters as in `linsat.arrays.problem`; coefficients are as the user wrote them, so that instances
with different boxes and right-hand sides share them.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from linsat.triton.layout import KNOWN

# Vectors of the work array, by position of the row.
MU, R = tl.constexpr(0), tl.constexpr(2)  # two states each
DIRECTION, RHS, SPLIT, RAW, DRIFT, NU, OUT = (tl.constexpr(i) for i in range(4, 11))
ROW_VECTORS = tl.constexpr(11)
# By place of the variable, after those.
U, D, LIN = tl.constexpr(0), tl.constexpr(2), tl.constexpr(3)
VARIABLE_VECTORS = tl.constexpr(4)
# What the host has written for rows and variables (`layout.py`).
INVERSE, B, SLACK, LOW, HIGH, WHOLE = (tl.constexpr(i) for i in range(6))
WIDTH, BASE, LOWER, UPPER, WEIGHT = (tl.constexpr(i) for i in range(5))
EUCLIDEAN, ENTROPY, KL = (tl.constexpr(number) for number in KNOWN.values())
# Numbers for which no code of their own is compiled: the code for one set serves every set of its class.
SIZES = (
    *("first", "step_coefficients", "step_rows", "step_variables", "step_temperature", "work_size"),
    *("num_variables", "num_rows", "slots", "members", "others"),
)


@triton.jit
def sigmoid(t):
    e = tl.exp(-tl.abs(t))
    share = 1.0 / (1.0 + e)
    return tl.where(t >= 0, share, e * share)


@triton.jit
def others_tile(A, v, g, places, others):
    """Coefficients of the other rows g at the places v, (width, places of the tile)."""
    return tl.load(A + (1 + g)[:, None] * places + v[None, :], mask=(g < others)[:, None], other=0.0)


@triton.jit
def tile_places(slot, member, members, TS: tl.constexpr, TM: tl.constexpr):
    """The places of a tile, and the slot of each."""
    t = tl.arange(0, TS * TM)
    at = slot + t // TM
    return at * members + member + t % TM, at


@triton.jit
def pulled(A, nu, v, at, slots, places, others, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """A' nu at the places v of the slots at."""
    total = tl.load(A + v) * tl.load(nu + at)
    if BLOCKS > 0:
        g = tl.arange(0, BLOCK * BLOCKS)
        own = tl.load(nu + slots + g, mask=g < others, other=0.0)
        total += tl.sum(others_tile(A, v, g, places, others) * own[:, None], 0)
    return total


@triton.jit
def exponential(variables, u, v, T, places):
    """p of KL, the logarithm at which it ends, and whether that is farther away than u asks for."""
    high = tl.load(variables + UPPER * places + v)
    asked, end = u / T, tl.log(tl.where(high > 0, high, 1.0))
    inside = (high > 0) & (asked < end)
    most = 700.0 if u.dtype == tl.float64 else 80.0  # whose exponential is still a number
    return tl.where(inside, tl.exp(tl.minimum(asked, most)), high), end, inside


@triton.jit
def point(variables, u, v, T, places, OBJECTIVE: tl.constexpr, WEIGHTED: tl.constexpr):
    """p and its term of theta."""
    if OBJECTIVE == ENTROPY:
        t = u / T
        e = tl.exp(-tl.abs(t))
        share = 1.0 / (1.0 + e)
        p = tl.where(t >= 0, share, e * share)
        term = T * (tl.maximum(t, 0.0) + tl.log(1.0 + e))
    elif OBJECTIVE == KL:
        p, end, inside = exponential(variables, u, v, T, places)
        term = T * p + tl.where(inside, 0.0, p * (u - T * end))
    else:
        low, high = tl.load(variables + LOWER * places + v), tl.load(variables + UPPER * places + v)
        p = u
        weighted = u
        if WEIGHTED:
            q = tl.load(variables + WEIGHT * places + v)
            p = u / q
            weighted = q
        p = tl.where(p <= low, low, tl.where(p >= high, high, p))
        if WEIGHTED:
            term = p * (u - 0.5 * (weighted * p))
        else:
            term = p * (u - 0.5 * p)
    return p, term


@triton.jit
def slope(variables, u, v, T, width, places, OBJECTIVE: tl.constexpr, WEIGHTED: tl.constexpr):
    """dx / d(A'nu)."""
    if OBJECTIVE == ENTROPY:
        p = sigmoid(u / T)
        change = width * width * (p * (1.0 - p) / T)
    elif OBJECTIVE == KL:
        p, _, inside = exponential(variables, u, v, T, places)
        change = tl.where(inside, p, 0.0) / T
    else:
        low, high = tl.load(variables + LOWER * places + v), tl.load(variables + UPPER * places + v)
        if WEIGHTED:
            q = tl.load(variables + WEIGHT * places + v)
            change = tl.where((u / q > low) & (u / q < high), width / q, 0.0)
        else:
            change = tl.where((u > low) & (u < high), width, 0.0)
    return change


@triton.jit
def read_scores(
    scores, variables, variable_of, work, slots, members, places,
    OBJECTIVE: tl.constexpr, WEIGHTED: tl.constexpr, TS: tl.constexpr, TM: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """The linear term, and the largest score in units of the duals."""
    reach = tl.zeros((), DTYPE)
    for slot in range(0, slots, TS):
        for member in range(0, members, TM):
            v, _ = tile_places(slot, member, members, TS, TM)
            j = tl.load(variable_of + v)
            y = tl.load(scores + j, mask=j >= 0, other=0.0).to(DTYPE)
            if OBJECTIVE != EUCLIDEAN:
                reach = tl.maximum(reach, tl.max(tl.abs(tl.load(variables + WIDTH * places + v) * y), 0))
            if WEIGHTED:
                y = y * tl.load(variables + WEIGHT * places + v)
            tl.store(work + LIN * places + v, y)
    return reach


@triton.jit
def moved_duals(mu, r, low, high):
    """How far a step along -r, clipped, would take each dual; as written, a large dual hides no small residual."""
    return tl.minimum(tl.maximum(-r, low - mu), high - mu)


@triton.jit
def evaluate(
    A, rows, variables, row_work, variable_work, state, T, slots, members, places, others,
    OBJECTIVE: tl.constexpr, SLACKED: tl.constexpr, WEIGHTED: tl.constexpr, POSITIONS: tl.constexpr,
    TS: tl.constexpr, TM: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """u and r at the duals of a state; returns theta, the sum of its absolute terms, and the error e."""
    i = tl.arange(0, POSITIONS)
    mu = tl.load(row_work + (MU + state) * POSITIONS + i)
    inverse = tl.load(rows + INVERSE * POSITIONS + i)
    nu, raw = row_work + NU * POSITIONS, row_work + RAW * POSITIONS
    tl.store(nu + i, mu * inverse)
    tl.store(raw + i, tl.zeros((POSITIONS,), DTYPE))
    tl.debug_barrier()
    theta, size = tl.zeros((), DTYPE), tl.zeros((), DTYPE)
    far = -1e200 if DTYPE == tl.float64 else -1e30
    if BLOCKS > 0:
        g = tl.arange(0, BLOCK * BLOCKS)
        own = tl.load(nu + slots + g, mask=g < others, other=0.0)
        rest = tl.zeros((BLOCK * BLOCKS,), DTYPE)
    for slot in range(0, slots, TS):
        leading = tl.zeros((TS,), DTYPE)
        for member in range(0, members, TM):
            v, at = tile_places(slot, member, members, TS, TM)
            first = tl.load(A + v)
            u = tl.load(variable_work + LIN * places + v) + first * tl.load(nu + at)
            if BLOCKS > 0:
                C = others_tile(A, v, g, places, others)
                u += tl.sum(C * own[:, None], 0)
            width = tl.load(variables + WIDTH * places + v)
            if OBJECTIVE == ENTROPY:
                u = tl.where(width > 0, width * u, far)  # fixed: it has a share of nothing
            tl.store(variable_work + (U + state) * places + v, u)
            p, term = point(variables, u, v, T, places, OBJECTIVE, WEIGHTED)
            theta += tl.sum(term, 0)
            size += tl.sum(tl.abs(term), 0)
            x = width * p
            leading += tl.sum(tl.reshape(first * x, (TS, TM)), 1)
            if BLOCKS > 0:
                rest += tl.sum(C * x[None, :], 1)
        tl.store(raw + slot + tl.arange(0, TS), leading)
    if BLOCKS > 0:
        tl.store(raw + slots + g, rest, mask=g < others)
    tl.debug_barrier()
    b = tl.load(rows + B * POSITIONS + i)
    r = tl.load(raw + i) * inverse - b
    if SLACKED:
        s = tl.load(rows + SLACK * POSITIONS + i)
        t = mu / T
        e = tl.exp(-tl.abs(t))
        value = tl.sum(s * (T * (tl.maximum(t, 0.0) + tl.log(1.0 + e))), 0)
        theta += value
        size += value
        r += s * sigmoid(t)
    tl.store(row_work + (R + state) * POSITIONS + i, r)
    theta -= tl.sum(b * mu, 0)
    size += tl.sum(tl.abs(b * mu), 0)
    low, high = tl.load(rows + LOW * POSITIONS + i), tl.load(rows + HIGH * POSITIONS + i)
    error = tl.max(tl.abs(moved_duals(mu, r, low, high)), 0)
    tl.debug_barrier()
    return theta, size, error


@triton.jit
def slopes(
    A, variables, row_work, variable_work, W, state, T, slots, members, places, others,
    OBJECTIVE: tl.constexpr, WEIGHTED: tl.constexpr, POSITIONS: tl.constexpr,
    TS: tl.constexpr, TM: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """D, the raw diagonal of leading rows, their coupling W with the others, and the raw drift A D u / width."""
    raw, drift = row_work + RAW * POSITIONS, row_work + DRIFT * POSITIONS
    if BLOCKS > 0:
        g = tl.arange(0, BLOCK * BLOCKS)
        rest = tl.zeros((BLOCK * BLOCKS,), DTYPE)
    for slot in range(0, slots, TS):
        at = slot + tl.arange(0, TS)
        diagonal, leading = tl.zeros((TS,), DTYPE), tl.zeros((TS,), DTYPE)
        if BLOCKS > 0:
            coupling = tl.zeros((BLOCK * BLOCKS, TS), DTYPE)
        for member in range(0, members, TM):
            v, _ = tile_places(slot, member, members, TS, TM)
            u = tl.load(variable_work + (U + state) * places + v)
            width = tl.load(variables + WIDTH * places + v)
            d = slope(variables, u, v, T, width, places, OBJECTIVE, WEIGHTED)
            tl.store(variable_work + D * places + v, d)
            first = tl.load(A + v)
            diagonal += tl.sum(tl.reshape(first * first * d, (TS, TM)), 1)
            if OBJECTIVE != EUCLIDEAN:
                change = tl.where(width > 0, d * u / tl.where(width > 0, width, 1.0), 0.0)
                leading += tl.sum(tl.reshape(first * change, (TS, TM)), 1)
            if BLOCKS > 0:
                C = others_tile(A, v, g, places, others)
                coupling += tl.sum(tl.reshape(C * (first * d)[None, :], (BLOCK * BLOCKS, TS, TM)), 2)
                if OBJECTIVE != EUCLIDEAN:
                    rest += tl.sum(C * change[None, :], 1)
        tl.store(raw + at, diagonal)
        tl.store(drift + at, leading)
        if BLOCKS > 0:
            tl.store(W + at[None, :] * (BLOCK * BLOCKS) + g[:, None], coupling)
    if BLOCKS > 0:
        tl.store(drift + slots + g, rest, mask=g < others)
    tl.debug_barrier()
