"""The kernel that solves: Newton's method of `linsat.solvers.newton`, one program per instance, one loop.

Every pass of the loop evaluates one trial point. What the trial is, and what follows from it, is the phase:

    FIRST    duals of nothing         GIVEN    duals of an earlier solve      SWEEP   Sinkhorn, one group of rows
    NEW      finds a direction, then  TRY      a step along it, or a shorter one
    REFRESH  the same duals, cooler   POLISH   an undamped step               SNAP    duals put to their bounds

so that the code of an evaluation and of a factorisation is there once.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from linsat.backends.triton.evaluation import (
    BASE,
    MU,
    ROW_VECTORS,
    SIZES,
    VARIABLE_VECTORS,
    WIDTH,
    U,
    evaluate,
    point,
    read_scores,
    tile_places,
)  # fmt: skip
from linsat.backends.triton.steps import (
    FIRST,
    GIVEN,
    NEW,
    POLISH,
    REFRESH,
    SNAP,
    SWEEP,
    TRY,
    falls,
    find_direction,
    go,
    optimal,
    proves_infeasible,
)  # fmt: skip
from linsat.solvers import newton as constants
from linsat.status import Status

CONVERGED, STEP_LIMIT = tl.constexpr(Status.CONVERGED.code), tl.constexpr(Status.STEP_LIMIT.code)
STALLED, INFEASIBLE = tl.constexpr(Status.STALLED.code), tl.constexpr(Status.INFEASIBLE.code)
START_TEMPERATURE, COOLING = tl.constexpr(constants.START_TEMPERATURE), tl.constexpr(constants.COOLING)
LOOSE_RESIDUAL = tl.constexpr(constants.LOOSE_RESIDUAL)
LEAST_DAMPING, FIRST_DAMPING = tl.constexpr(constants.LEAST_DAMPING), tl.constexpr(constants.FIRST_DAMPING)
LARGEST_DAMPING = tl.constexpr(constants.LARGEST_DAMPING)
RIDGE, SINGLE_RIDGE = tl.constexpr(constants.DOUBLE.first_ridge), tl.constexpr(constants.SINGLE.first_ridge)
LARGEST_RIDGE, SWEEPS, FINE = (tl.constexpr(c) for c in (constants.LARGEST_RIDGE, constants.SWEEPS, constants.FINE))
BACKTRACKS, SHORTEN = tl.constexpr(constants.BACKTRACKS), tl.constexpr(constants.SHORTEN)
LARGEST_STRIDE = tl.constexpr(constants.LARGEST_STRIDE)
CERTIFICATE_EVERY = tl.constexpr(constants.CERTIFICATE_EVERY)


@triton.jit
def write_answer(
    x, mu, variables, row_work, variable_work, variable_of, row_of, state, T, slots, members, places,
    ENTROPY: tl.constexpr, WEIGHTED: tl.constexpr, POSITIONS: tl.constexpr, TS: tl.constexpr, TM: tl.constexpr,
):  # fmt: skip
    """x and mu in the user's order."""
    for slot in range(0, slots, TS):
        for member in range(0, members, TM):
            v, _ = tile_places(slot, member, members, TS, TM)
            u = tl.load(variable_work + (U + state) * places + v)
            p, _ = point(variables, u, v, T, places, ENTROPY, WEIGHTED)
            found = tl.load(variables + BASE * places + v) + tl.load(variables + WIDTH * places + v) * p
            j = tl.load(variable_of + v)
            tl.store(x + j, found, mask=j >= 0)
    i = tl.arange(0, POSITIONS)
    own = tl.load(row_of + i)
    tl.store(mu + own, tl.load(row_work + (MU + state) * POSITIONS + i), mask=own >= 0)


@triton.jit(do_not_specialize=[*SIZES, "groups", "max_steps"])
def forward(
    scores, coefficients, rows, variables, temperatures, settings, start, variable_of, row_of, group_of,
    x, mu, codes, taken, work,
    first, step_coefficients, step_rows, step_variables, step_temperature, work_size,
    num_variables, num_rows, slots, members, others, groups, max_steps,
    ENTROPY: tl.constexpr, SLACKED: tl.constexpr, WEIGHTED: tl.constexpr, HAS_START: tl.constexpr,
    COARSE: tl.constexpr, POSITIONS: tl.constexpr, TS: tl.constexpr, TM: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Solve instance ``first`` + program number. COARSE: stop as soon as the error is small, and prove nothing."""
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
    start += n * num_rows
    tol = tl.load(settings).to(DTYPE)
    one = tl.full((), 1.0, DTYPE)
    i = tl.arange(0, POSITIONS)
    for vector in range(ROW_VECTORS):
        tl.store(row_work + vector * POSITIONS + i, tl.zeros((POSITIONS,), DTYPE))
    reach = read_scores(
        scores + n * num_variables, variables, variable_of, variable_work, slots, members, places,
        ENTROPY, WEIGHTED, TS, TM, DTYPE,
    )  # fmt: skip
    tau = one
    if ENTROPY:
        tau = tl.load(temperatures + n * step_temperature).to(DTYPE)
    tl.debug_barrier()
    hot = tl.maximum(tau, START_TEMPERATURE * reach)
    T = tau if HAS_START else hot
    least_ridge = RIDGE if DTYPE == tl.float64 else SINGLE_RIDGE
    damping, ridge, stride, length = FIRST_DAMPING * one, least_ridge * one, one, one
    theta, size, error = one, one, one
    none = tl.full((), 0, tl.int32)
    state, phase, code = none, none + FIRST, none - 1
    steps, tries, passes, group, sweeps = none, none, none, none, none
    cooled, polished = none, none
    while code < 0:
        if (phase == NEW) & (error <= FINE * tol) & (T <= tau) & (polished == 0):
            polished = none + 1  # a step could hardly make the error smaller
            phase = none + SNAP
        if phase == NEW:
            polishing = (error <= tol) & (T <= tau) & (polished == 0)
            cools = (polishing == 0) & (error <= LOOSE_RESIDUAL) & (T > tau)
            cooler = tl.where(cools, tl.maximum(tau, COOLING * T), T)
            delta = tl.where(polishing, 0.0, damping * tl.minimum(error, one) / T)
            longest = tl.where(polishing, float("inf"), stride * (10.0 * T + 0.5 * reach))
            dropped = find_direction(
                A, rows, variables, row_work, variable_work, W, S, state, T, cooler, error, delta, ridge, longest,
                slots, members, places, others,
                ENTROPY, SLACKED, WEIGHTED, POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
            )  # fmt: skip
            T = cooler
            length = one
            tries = none
            polished = tl.where(polishing, 1, 0)
            cooled = tl.where(cools, 1, 0)
            # Dependent rows may need a larger ridge, from the next step on.
            ridge = tl.where((dropped > 0) & (polishing == 0), tl.minimum(100.0 * ridge, LARGEST_RIDGE), ridge)
            steps += tl.where(polishing, 0, 1)
            phase = tl.where(polishing, POLISH, tl.where(cools, REFRESH, TRY))
        go(
            rows, row_work, group_of, start, row_of, state, phase, length, group, T, reach, num_rows,
            HAS_START, ENTROPY, POSITIONS, DTYPE,
        )  # fmt: skip
        other = 1 - state
        new_theta, new_size, new_error = evaluate(
            A, rows, variables, row_work, variable_work, other, T, slots, members, places, others,
            ENTROPY, SLACKED, WEIGHTED, POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
        )  # fmt: skip
        finite = tl.abs(new_theta) < (1e300 if DTYPE == tl.float64 else 1e37)
        accepted = (phase == FIRST) | (phase == REFRESH)
        if phase == TRY:
            accepted = finite & falls(
                row_work, state, theta, size, error, new_theta, new_size, new_error, POSITIONS, DTYPE
            )
        last_group = (phase == SWEEP) & (group + 1 >= groups)
        accepted = accepted | ((last_group | (phase == GIVEN)) & (new_theta <= theta))
        accepted = accepted | (((phase == POLISH) | (phase == SNAP)) & finite & (new_error <= error))
        state = tl.where(accepted, other, state)
        theta, size = tl.where(accepted, new_theta, theta), tl.where(accepted, new_size, size)
        error = tl.where(accepted, new_error, error)
        # What follows.
        gives_up = (phase == TRY) & (accepted == 0) & (tries + 1 >= BACKTRACKS)
        if phase == TRY:
            tries += 1
            passes += 1
            whole = accepted & (length == 1.0)
            shorter = (accepted & (length < 1.0)) | gives_up
            damping = tl.where(whole, damping / 4, tl.where(shorter, 4 * damping, damping))
            stride = tl.where(whole, 2 * stride, tl.where(shorter, stride / 2, stride))
            damping = tl.minimum(tl.maximum(damping, LEAST_DAMPING), LARGEST_DAMPING)
            stride = tl.minimum(tl.maximum(stride, 1.0), LARGEST_STRIDE)
            length = SHORTEN * length
        stalled = (gives_up & (cooled == 0)) | ((phase == FIRST) & (finite == 0))
        T = tl.where((phase == GIVEN) & (accepted == 0), hot, T)
        group = tl.where(last_group, 0, group + tl.where(phase == SWEEP, 1, 0))
        sweeps += tl.where(last_group, 1, 0)
        snapped = phase == SNAP
        tried = phase == TRY
        if phase == FIRST:
            if HAS_START:
                phase = none + GIVEN
            else:
                phase = tl.where((groups > 0) & ENTROPY, SWEEP, NEW)
        elif phase == GIVEN:
            phase = tl.where(accepted, NEW, REFRESH)
        elif phase == SWEEP:
            phase = tl.where(last_group & ((accepted == 0) | (sweeps >= SWEEPS)), NEW, SWEEP)
        elif phase == REFRESH:
            phase = tl.where(steps > 0, TRY, NEW)
        elif phase == TRY:
            phase = tl.where(accepted | gives_up, NEW, TRY)
        else:
            phase = tl.where(phase == POLISH, SNAP, NEW)
        code = tl.where(stalled, STALLED, code)
        arrived = (error <= tol) & (T <= tau) & (phase == NEW) & (code < 0)
        if COARSE:
            code = tl.where(arrived, CONVERGED, code)
        else:
            if snapped:
                fine = optimal(
                    A, rows, variables, row_work, variable_work, state, T, tol, slots, members, places, others,
                    ENTROPY, WEIGHTED, POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
                )  # fmt: skip
                code = tl.where(fine, CONVERGED, code)
            if tried & (code < 0) & (passes % CERTIFICATE_EVERY == 0):
                proved = proves_infeasible(
                    A, rows, variables, row_work, state, slots, members, places, others,
                    ENTROPY, POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
                )  # fmt: skip
                code = tl.where(proved & (arrived == 0), INFEASIBLE, code)
        # An instance that has converged is polished first, once.
        at_limit = (phase == NEW) & (steps >= max_steps) & ((arrived == 0) | (polished > 0))
        code = tl.where((code < 0) & at_limit, STEP_LIMIT, code)
    write_answer(
        x + n * num_variables, mu + n * num_rows, variables, row_work, variable_work, variable_of, row_of, state, T,
        slots, members, places, ENTROPY, WEIGHTED, POSITIONS, TS, TM,
    )  # fmt: skip
    tl.store(codes + n, code)
    tl.store(taken + n, steps)
