"""Solving with the Hessian of one instance: leading rows eliminated, the others factored by Cholesky, in blocks.

    H = [ diag   W ]      S = V - W' diag^-1 W = L L',   built, factored and stored block by block, from the left
        [ W'     V ]

Blocks of L lie below the diagonal of S; on it lie the inverses of the triangular diagonal blocks, with which panels
and right-hand sides are solved by products. A pivot that is nothing beside its diagonal entry is dropped: its row
depends on earlier ones, and its dual stays where it is.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from linsat.triton.evaluation import INVERSE, OUT, RAW, RHS, SPLIT, D


@triton.jit
def regular(value, damping, ridge, DTYPE: tl.constexpr):
    """A diagonal entry, regularised; one where there is nothing."""
    value = (value + damping) * (1.0 + ridge)
    least = 1e-290 if DTYPE == tl.float64 else 1e-30
    return tl.where(value > least, value, 1.0)


@triton.jit
def split_rows(rows, row_work, moving, extra, damping, ridge, slots, POSITIONS: tl.constexpr, DTYPE: tl.constexpr):
    """SPLIT: 1 / diagonal of leading rows that move, 1 / rho of others that do; 0 for rows that do not."""
    i = tl.arange(0, POSITIONS)
    inverse = tl.load(rows + INVERSE * POSITIONS + i)
    raw = tl.load(row_work + RAW * POSITIONS + i)
    diagonal = regular(raw * inverse * inverse + extra, damping, ridge, DTYPE)
    split = tl.where(moving, tl.where(i < slots, 1.0 / diagonal, inverse), 0.0)
    tl.store(row_work + SPLIT * POSITIONS + i, split)
    # What else is on the diagonal of the others; negative: the row does not move.
    tl.store(row_work + OUT * POSITIONS + i, tl.where(moving, extra, -1.0))
    tl.debug_barrier()


@triton.jit
def product_blocks(
    A, rows, row_work, variable_work, W, first, second, slots, places, others,
    POSITIONS: tl.constexpr, TS: tl.constexpr, TM: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """V and W' diag^-1 W between two blocks of other rows."""
    g, h = first * BLOCK + tl.arange(0, BLOCK), second * BLOCK + tl.arange(0, BLOCK)
    split = row_work + SPLIT * POSITIONS
    left = tl.load(split + slots + g, mask=g < others, other=0.0)
    right = tl.load(split + slots + h, mask=h < others, other=0.0)
    V, Q = tl.zeros((BLOCK, BLOCK), DTYPE), tl.zeros((BLOCK, BLOCK), DTYPE)
    for start in range(0, places, TS * TM):
        v = start + tl.arange(0, TS * TM)
        d = tl.load(variable_work + D * places + v)
        C = tl.load(A + (1 + g)[:, None] * places + v[None, :], mask=(g < others)[:, None], other=0.0)
        E = tl.load(A + (1 + h)[None, :] * places + v[:, None], mask=(h < others)[None, :], other=0.0)
        V += tl.dot(C * d[None, :], E, input_precision="ieee", out_dtype=DTYPE)
    for start in range(0, slots, 16):
        at = start + tl.arange(0, 16)
        inside = at < slots
        inverse = tl.load(rows + INVERSE * POSITIONS + at, mask=inside, other=0.0)
        weight = inverse * inverse * tl.load(split + at, mask=inside, other=0.0)
        C = tl.load(W + at[None, :] * (BLOCK * BLOCKS) + g[:, None], mask=inside[None, :], other=0.0)
        E = tl.load(W + at[:, None] * (BLOCK * BLOCKS) + h[None, :], mask=inside[:, None], other=0.0)
        Q += tl.dot(C * weight[None, :], E, input_precision="ieee", out_dtype=DTYPE)
    both = left[:, None] * right[None, :]
    return V * both, Q * both


@triton.jit
def less_earlier(block, S, first, second, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, DTYPE: tl.constexpr):
    """A block of S less the products of the blocks of L to the left of it."""
    g, h = first * BLOCK + tl.arange(0, BLOCK), second * BLOCK + tl.arange(0, BLOCK)
    for earlier in range(second):
        c = earlier * BLOCK + tl.arange(0, BLOCK)
        left = tl.load(S + g[:, None] * (BLOCK * BLOCKS) + c[None, :])
        right = tl.load(S + h[None, :] * (BLOCK * BLOCKS) + c[:, None])
        block -= tl.dot(left, right, input_precision="ieee", out_dtype=DTYPE)
    return block


@triton.jit
def invert_factor(H, size, count, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    """The inverse of the Cholesky factor of H, (BLOCK, BLOCK), of its first rows; how many pivots were dropped."""
    i = tl.arange(0, BLOCK)
    least = 1e-14 if DTYPE == tl.float64 else 1e-6
    X = tl.where(i[:, None] == i[None, :], 1.0, tl.zeros((BLOCK, BLOCK), DTYPE))
    dropped = 0
    for c in range(count):
        here = i[:, None] == c
        row = tl.sum(tl.where(here, H, 0.0), 0)
        column = tl.sum(tl.where(i[None, :] == c, H, 0.0), 1)
        pivot = tl.sum(tl.where(i == c, row, 0.0), 0)
        usable = pivot > least * tl.sum(tl.where(i == c, size, 0.0), 0)
        inverse = tl.where(usable, 1.0 / tl.sqrt(tl.where(usable, pivot, 1.0)), 0.0)
        column = tl.where(i > c, column * inverse, 0.0)
        solved = tl.sum(tl.where(here, X, 0.0), 0) * inverse
        H -= column[:, None] * (row * inverse)[None, :]
        X = tl.where(here, solved[None, :], X - column[:, None] * solved[None, :])
        dropped += tl.where(usable, 0, 1)
    return X, dropped


@triton.jit
def factor(
    A, rows, row_work, variable_work, W, S, damping, ridge, slots, places, others,
    POSITIONS: tl.constexpr, TS: tl.constexpr, TM: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """Factor H after `slopes` and `split_rows`; returns how many pivots were dropped."""
    dropped = 0
    i = tl.arange(0, BLOCK)
    for c in range(BLOCKS):
        g = c * BLOCK + i
        V, Q = product_blocks(
            A, rows, row_work, variable_work, W, c, c, slots, places, others, POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE
        )  # fmt: skip
        extra = tl.load(row_work + OUT * POSITIONS + slots + g, mask=g < others, other=-1.0)
        diagonal = tl.sum(tl.where(i[:, None] == i[None, :], V, 0.0), 1)
        size = tl.where(extra >= 0, regular(diagonal + extra, damping, ridge, DTYPE), 1.0)
        V = tl.where(i[:, None] == i[None, :], size[:, None], V) - Q
        V = less_earlier(V, S, c, c, BLOCK, BLOCKS, DTYPE)
        X, lost = invert_factor(V, size, tl.minimum(BLOCK, others - c * BLOCK), BLOCK, DTYPE)
        dropped += lost
        tl.store(S + g[:, None] * (BLOCK * BLOCKS) + g[None, :], X)
        tl.debug_barrier()
        for below in range(c + 1, BLOCKS):
            V, Q = product_blocks(
                A, rows, row_work, variable_work, W, below, c, slots, places, others,
                POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
            )  # fmt: skip
            V = less_earlier(V - Q, S, below, c, BLOCK, BLOCKS, DTYPE)
            h = below * BLOCK + i
            inverse = tl.load(S + g[None, :] * (BLOCK * BLOCKS) + g[:, None])  # transposed
            panel = tl.dot(V, inverse, input_precision="ieee", out_dtype=DTYPE)
            tl.store(S + h[:, None] * (BLOCK * BLOCKS) + g[None, :], panel)
        tl.debug_barrier()
    return dropped


@triton.jit
def solve(
    rows, row_work, W, S, slots, others,
    POSITIONS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """OUT = H^-1 RHS, which is 0 for rows that do not move."""
    rhs, out, split = row_work + RHS * POSITIONS, row_work + OUT * POSITIONS, row_work + SPLIT * POSITIONS
    if BLOCKS > 0:
        i = tl.arange(0, BLOCK)
        for c in range(BLOCKS):
            g = c * BLOCK + i
            y = tl.load(rhs + slots + g, mask=g < others, other=0.0)
            taken = tl.zeros((BLOCK,), DTYPE)
            for start in range(0, slots, 16):
                at = start + tl.arange(0, 16)
                inside = at < slots
                weight = tl.load(rows + INVERSE * POSITIONS + at, mask=inside, other=0.0)
                weight *= tl.load(split + at, mask=inside, other=0.0) * tl.load(rhs + at, mask=inside, other=0.0)
                C = tl.load(W + at[None, :] * (BLOCK * BLOCKS) + g[:, None], mask=inside[None, :], other=0.0)
                taken += tl.sum(C * weight[None, :], 1)
            y -= taken * tl.load(split + slots + g, mask=g < others, other=0.0)
            for earlier in range(c):
                h = earlier * BLOCK + i
                known = tl.load(out + slots + h, mask=h < others, other=0.0)
                y -= tl.sum(tl.load(S + g[:, None] * (BLOCK * BLOCKS) + h[None, :]) * known[None, :], 1)
            inverse = tl.load(S + g[None, :] * (BLOCK * BLOCKS) + g[:, None])  # transposed
            tl.store(out + slots + g, tl.sum(inverse * y[:, None], 0), mask=g < others)
            tl.debug_barrier()
        for back in range(BLOCKS):
            c = BLOCKS - 1 - back
            g = c * BLOCK + i
            y = tl.load(out + slots + g, mask=g < others, other=0.0)
            for later in range(c + 1, BLOCKS):
                h = later * BLOCK + i
                known = tl.load(out + slots + h, mask=h < others, other=0.0)
                y -= tl.sum(tl.load(S + h[None, :] * (BLOCK * BLOCKS) + g[:, None]) * known[None, :], 1)
            inverse = tl.load(S + g[:, None] * (BLOCK * BLOCKS) + g[None, :])
            tl.debug_barrier()
            tl.store(out + slots + g, tl.sum(inverse * y[:, None], 0), mask=g < others)
            tl.debug_barrier()
    for start in range(0, slots, 16):
        at = start + tl.arange(0, 16)
        inside = at < slots
        y = tl.load(rhs + at, mask=inside, other=0.0)
        if BLOCKS > 0:
            inverse = tl.load(rows + INVERSE * POSITIONS + at, mask=inside, other=0.0)
            g = tl.arange(0, BLOCK * BLOCKS)
            known = tl.load(out + slots + g, mask=g < others, other=0.0)
            known *= tl.load(split + slots + g, mask=g < others, other=0.0)
            C = tl.load(W + at[:, None] * (BLOCK * BLOCKS) + g[None, :], mask=inside[:, None], other=0.0)
            y -= inverse * tl.sum(C * known[None, :], 1)
        tl.store(out + at, y * tl.load(split + at, mask=inside, other=0.0), mask=inside)
    tl.debug_barrier()
