"""The kernel of the gradient: one adjoint solve per instance, with the Hessian at the solution.

With F the duals strictly inside their bounds: H_FF q = (A D g + dL/dmu)_F and dL/dy = D (g - A'q).
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from linsat.backends.triton.evaluation import (
    HIGH,
    INVERSE,
    LIN,
    LOW,
    MU,
    NU,
    OUT,
    RAW,
    RHS,
    ROW_VECTORS,
    SIZES,
    SLACK,
    VARIABLE_VECTORS,
    WEIGHT,
    WIDTH,
    D,
    R,
    U,
    evaluate,
    others_tile,
    pulled,
    read_scores,
    sigmoid,
    slopes,
    tile_places,
)  # fmt: skip
from linsat.backends.triton.factor import factor, solve, split_rows
from linsat.solvers.newton import REFINED_RIDGE

RIDGE = tl.constexpr(REFINED_RIDGE)
G = tl.constexpr(1)  # the gradient of x: in place of u of the other state
Q = tl.constexpr(1)  # q: in place of mu of the other state


@triton.jit
def apply(
    A, row_work, vector, slots, members, places, others,
    POSITIONS: tl.constexpr, TS: tl.constexpr, TM: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """RAW = A vector."""
    raw = row_work + RAW * POSITIONS
    if BLOCKS > 0:
        g = tl.arange(0, BLOCK * BLOCKS)
        rest = tl.zeros((BLOCK * BLOCKS,), DTYPE)
    for slot in range(0, slots, TS):
        leading = tl.zeros((TS,), DTYPE)
        for member in range(0, members, TM):
            v, _ = tile_places(slot, member, members, TS, TM)
            own = tl.load(vector + v)
            leading += tl.sum(tl.reshape(tl.load(A + v) * own, (TS, TM)), 1)
            if BLOCKS > 0:
                rest += tl.sum(others_tile(A, v, g, places, others) * own[None, :], 1)
        tl.store(raw + slot + tl.arange(0, TS), leading)
    if BLOCKS > 0:
        tl.store(raw + slots + g, rest, mask=g < others)
    tl.debug_barrier()


@triton.jit
def pull_into(
    A, row_work, variable_work, slots, members, places, others,
    POSITIONS: tl.constexpr, TS: tl.constexpr, TM: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    """LIN = D A' nu, or (LAST) D (g - A' nu)."""
    nu = row_work + NU * POSITIONS
    for slot in range(0, slots, TS):
        for member in range(0, members, TM):
            v, at = tile_places(slot, member, members, TS, TM)
            found = pulled(A, nu, v, at, slots, places, others, BLOCK, BLOCKS)
            if LAST:
                found = tl.load(variable_work + (U + G) * places + v) - found
            tl.store(variable_work + LIN * places + v, found * tl.load(variable_work + D * places + v))
    tl.debug_barrier()


@triton.jit
def read_gradient(
    grad_x, variable_of, variable_work, slots, members, places,
    TS: tl.constexpr, TM: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """g, and LIN = D g."""
    for slot in range(0, slots, TS):
        for member in range(0, members, TM):
            v, _ = tile_places(slot, member, members, TS, TM)
            j = tl.load(variable_of + v)
            g = tl.load(grad_x + j, mask=j >= 0, other=0.0).to(DTYPE)
            tl.store(variable_work + (U + G) * places + v, g)
            tl.store(variable_work + LIN * places + v, g * tl.load(variable_work + D * places + v))
    tl.debug_barrier()


@triton.jit
def write_gradient(
    grad_y, grad_parameter, scores, variables, variable_work, variable_of, tau, total, slots, members, places,
    ENTROPY: tl.constexpr, WEIGHTED: tl.constexpr, PARAMETER: tl.constexpr,
    TS: tl.constexpr, TM: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """dL/dy, and dL/dtau or dL/dweights: what the explicit dependence of x and r on them passes on."""
    for slot in range(0, slots, TS):
        for member in range(0, members, TM):
            v, _ = tile_places(slot, member, members, TS, TM)
            j = tl.load(variable_of + v)
            found = tl.load(variable_work + LIN * places + v)
            u = tl.load(variable_work + U * places + v)
            if PARAMETER and ENTROPY:
                width = tl.load(variables + WIDTH * places + v)
                total -= tl.sum(tl.where(width > 0, u / tl.where(width > 0, width, 1.0) * found, 0.0), 0)
            if WEIGHTED:
                q = tl.load(variables + WEIGHT * places + v)
                if PARAMETER:
                    y = tl.load(scores + j, mask=j >= 0, other=0.0).to(DTYPE)
                    tl.store(grad_parameter + j, found * (q * y - u) / q, mask=j >= 0)
                found = found * q
            tl.store(grad_y + j, found, mask=j >= 0)
    if PARAMETER and ENTROPY:
        tl.store(grad_parameter, total / tau)


@triton.jit(do_not_specialize=SIZES)
def backward(
    scores, coefficients, rows, variables, temperatures, variable_of, row_of,
    mu, codes, grad_x, grad_mu, grad_y, q, grad_parameter, work,
    first, step_coefficients, step_rows, step_variables, step_temperature, work_size,
    num_variables, num_rows, slots, members, others,
    ENTROPY: tl.constexpr, SLACKED: tl.constexpr, WEIGHTED: tl.constexpr, DUALS: tl.constexpr,
    PARAMETER: tl.constexpr, POSITIONS: tl.constexpr, TS: tl.constexpr, TM: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Pull the gradient of instance ``first`` + program number back; outputs of those not solved stay as they are."""
    program = tl.program_id(0).to(tl.int64)
    n = first + program
    places = slots * members
    A = coefficients + n * step_coefficients
    rows += n * step_rows
    variables += n * step_variables
    row_work = work + program * work_size
    variable_work = row_work + ROW_VECTORS * POSITIONS
    W = variable_work + VARIABLE_VECTORS * places
    S = W + slots * (BLOCK * BLOCKS)
    zero, state = tl.zeros((), DTYPE), tl.full((), 0, tl.int32)
    tau = tl.full((), 1.0, DTYPE)
    if ENTROPY:
        tau = tl.load(temperatures + n * step_temperature).to(DTYPE)
    if tl.load(codes + n) == 0:
        i = tl.arange(0, POSITIONS)
        own = tl.load(row_of + i)
        duals = tl.load(mu + n * num_rows + own, mask=own >= 0, other=0.0).to(DTYPE)
        for vector in range(ROW_VECTORS):
            tl.store(row_work + vector * POSITIONS + i, tl.zeros((POSITIONS,), DTYPE))
        tl.debug_barrier()
        tl.store(row_work + MU * POSITIONS + i, duals)
        read_scores(
            scores + n * num_variables, variables, variable_of, variable_work, slots, members, places,
            ENTROPY, WEIGHTED, TS, TM, DTYPE,
        )  # fmt: skip
        tl.debug_barrier()
        evaluate(
            A, rows, variables, row_work, variable_work, state, tau, slots, members, places, others,
            ENTROPY, SLACKED, WEIGHTED, POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
        )  # fmt: skip
        slopes(
            A, variables, row_work, variable_work, W, state, tau, slots, members, places, others,
            ENTROPY, WEIGHTED, POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
        )  # fmt: skip
        low, high = tl.load(rows + LOW * POSITIONS + i), tl.load(rows + HIGH * POSITIONS + i)
        inverse = tl.load(rows + INVERSE * POSITIONS + i)
        moving = (inverse > 0) & (duals > low) & (duals < high)
        extra = tl.zeros((POSITIONS,), DTYPE)
        if SLACKED:
            z = sigmoid(duals / tau)
            extra = tl.load(rows + SLACK * POSITIONS + i) * z * (1.0 - z) / tau
        split_rows(rows, row_work, moving, extra, zero, RIDGE + zero, slots, POSITIONS, DTYPE)
        if BLOCKS > 0:
            factor(
                A, rows, row_work, variable_work, W, S, zero, RIDGE + zero, slots, places, others,
                POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
            )  # fmt: skip
        read_gradient(
            grad_x + n * num_variables, variable_of, variable_work, slots, members, places, TS, TM, DTYPE
        )  # fmt: skip
        wanted = tl.zeros((POSITIONS,), DTYPE)
        if DUALS:
            wanted = tl.load(grad_mu + n * num_rows + own, mask=own >= 0, other=0.0).to(DTYPE)
        found = tl.zeros((POSITIONS,), DTYPE)
        for round in range(4):  # the first solves, the others undo the ridge
            apply(
                A, row_work, variable_work + LIN * places, slots, members, places, others,
                POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
            )  # fmt: skip
            raw = tl.load(row_work + RAW * POSITIONS + i) * inverse
            # R keeps the right-hand side.
            known = tl.load(row_work + R * POSITIONS + i)
            rhs = tl.where(round == 0, raw + wanted, known - raw - extra * found)
            rhs = tl.where(moving, rhs, 0.0)
            tl.store(row_work + R * POSITIONS + i, tl.where(round == 0, rhs, known))
            tl.store(row_work + RHS * POSITIONS + i, rhs)
            tl.debug_barrier()
            solve(rows, row_work, W, S, slots, others, POSITIONS, BLOCK, BLOCKS, DTYPE)
            found += tl.where(moving, tl.load(row_work + OUT * POSITIONS + i), 0.0)
            tl.store(row_work + NU * POSITIONS + i, found * inverse)
            tl.debug_barrier()
            pull_into(
                A, row_work, variable_work, slots, members, places, others,
                POSITIONS, TS, TM, BLOCK, BLOCKS, False,
            )  # fmt: skip
        pull_into(
            A, row_work, variable_work, slots, members, places, others, POSITIONS, TS, TM, BLOCK, BLOCKS, True
        )  # fmt: skip
        tl.store(q + n * num_rows + own, found, mask=own >= 0)
        total = tl.sum(found * extra * duals, 0)
        write_gradient(
            grad_y + n * num_variables, grad_parameter + n * (1 if ENTROPY else num_variables),
            scores + n * num_variables, variables, variable_work, variable_of, tau, total, slots, members, places,
            ENTROPY, WEIGHTED, PARAMETER, TS, TM, DTYPE,
        )  # fmt: skip
