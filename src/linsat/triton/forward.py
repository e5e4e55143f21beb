"""The kernel that solves: Newton's method of `linsat.arrays.newton`, one program per instance, one loop.

Every pass of the loop evaluates one trial point. What the trial is, and what follows from it, is the phase:

    FIRST    duals of nothing         GIVEN    duals of an earlier solve      SWEEP   Sinkhorn, one group of rows
    NEW      finds a direction, then  TRY      a step along it, or a shorter one
    REFRESH  the same duals, cooler   POLISH   an undamped step               SNAP    duals put to their bounds

so that the code of an evaluation and of a factorisation is there once.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import sys

import triton
import triton.language as tl

from linsat.arrays import newton as constants
from linsat.arrays.result import Stop
from linsat.triton.evaluation import (
    BASE,
    DIRECTION,
    DRIFT,
    ENTROPY,
    EUCLIDEAN,
    HIGH,
    INVERSE,
    LIN,
    LOW,
    LOWER,
    MU,
    NU,
    OUT,
    RAW,
    RHS,
    ROW_VECTORS,
    SIZES,
    SLACK,
    UPPER,
    VARIABLE_VECTORS,
    WHOLE,
    WIDTH,
    B,
    R,
    U,
    evaluate,
    moved_duals,
    others_tile,
    point,
    pulled,
    read_scores,
    sigmoid,
    slopes,
    tile_places,
)  # fmt: skip
from linsat.triton.factor import factor, solve, split_rows

HELD = tl.constexpr(constants.HELD)
GAP = tl.constexpr(constants.GAP)
ROW_ROUNDING = tl.constexpr(constants.SUM_ROUNDING * sys.float_info.epsilon)
DECREASE = tl.constexpr(constants.DECREASE)
ROUNDING, SINGLE_ROUNDING = tl.constexpr(constants.DOUBLE.rounding), tl.constexpr(constants.SINGLE.rounding)
# What a pass does.
FIRST, GIVEN, SWEEP, NEW, TRY, REFRESH, POLISH, SNAP = (tl.constexpr(i) for i in range(8))


@triton.jit
def find_direction(
    A, rows, variables, row_work, variable_work, W, S, state, T, cooler, error, damping, ridge, longest,
    slots, members, places, others,
    OBJECTIVE: tl.constexpr, SLACKED: tl.constexpr, WEIGHTED: tl.constexpr, POSITIONS: tl.constexpr,
    TS: tl.constexpr, TM: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Newton's step from a state at T towards the solution at ``cooler``; returns how many pivots were dropped."""
    slopes(
        A, variables, row_work, variable_work, W, state, T, slots, members, places, others,
        OBJECTIVE, WEIGHTED, POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
    )  # fmt: skip
    i = tl.arange(0, POSITIONS)
    mu, r = tl.load(row_work + (MU + state) * POSITIONS + i), tl.load(row_work + (R + state) * POSITIONS + i)
    low, high = tl.load(rows + LOW * POSITIONS + i), tl.load(rows + HIGH * POSITIONS + i)
    inverse = tl.load(rows + INVERSE * POSITIONS + i)
    near = tl.minimum(error, HELD)
    held = ((mu - low <= near) & (r > 0)) | ((high - mu <= near) & (r < 0))
    moving = (inverse > 0) & (held == 0)
    rhs, extra = r, tl.zeros((POSITIONS,), DTYPE)
    if OBJECTIVE != EUCLIDEAN:
        drift = tl.where(inverse > 0, tl.load(row_work + DRIFT * POSITIONS + i), 0.0) * inverse
        if SLACKED:
            z = sigmoid(mu / T)
            extra = tl.load(rows + SLACK * POSITIONS + i) * z * (1.0 - z) / T
            drift += extra * mu
        rhs = r - drift * ((cooler - T) / T)
    tl.store(row_work + RHS * POSITIONS + i, tl.where(moving, rhs, 0.0))
    split_rows(rows, row_work, moving, extra, damping, ridge, slots, POSITIONS, DTYPE)
    dropped = 0
    if BLOCKS > 0:
        dropped = factor(
            A, rows, row_work, variable_work, W, S, damping, ridge, slots, places, others,
            POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
        )  # fmt: skip
    solve(rows, row_work, W, S, slots, others, POSITIONS, BLOCK, BLOCKS, DTYPE)
    direction = tl.where(moving, tl.load(row_work + OUT * POSITIONS + i), 0.0)
    if OBJECTIVE != EUCLIDEAN:
        largest = tl.max(tl.abs(direction), 0)
        direction = direction * tl.where(largest > longest, longest / largest, 1.0)
    # Duals that are held stay: a large residual shortens no step.
    tl.store(row_work + DIRECTION * POSITIONS + i, -tl.where(moving, direction, r))
    tl.debug_barrier()
    return dropped


@triton.jit
def go(
    rows, row_work, group_of, start, row_of, state, phase, length, group, T, reach,
    HAS_START: tl.constexpr, OBJECTIVE: tl.constexpr, POSITIONS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """The duals that this pass evaluates, into the other state."""
    i = tl.arange(0, POSITIONS)
    other = 1 - state
    mu, r = tl.load(row_work + (MU + state) * POSITIONS + i), tl.load(row_work + (R + state) * POSITIONS + i)
    low, high = tl.load(rows + LOW * POSITIONS + i), tl.load(rows + HIGH * POSITIONS + i)
    step = tl.where((phase == TRY) | (phase == POLISH), length, 0.0)
    direction = tl.load(row_work + DIRECTION * POSITIONS + i)
    trial = tl.where(step > 0, mu + step * direction, mu)
    there = mu - r
    trial = tl.where((phase == SNAP) & (there <= low), low, tl.where((phase == SNAP) & (there >= high), high, trial))
    if HAS_START:
        if phase == GIVEN:
            own = tl.load(row_of + i)
            given = tl.load(start + own, mask=own >= 0, other=0.0).to(DTYPE)
            # The dual of a row that is not active would never move: from another right-hand side it may not be 0.
            trial = tl.where(tl.load(rows + INVERSE * POSITIONS + i) > 0, given, 0.0)
    if OBJECTIVE != EUCLIDEAN:
        if phase == SWEEP:
            # The first group starts from the state, the next ones from what the last has left.
            from_state = tl.where(group == 0, state, other)
            mu = tl.load(row_work + (MU + from_state) * POSITIONS + i)
            r = tl.load(row_work + (R + from_state) * POSITIONS + i)
            own = tl.load(group_of + i) == group
            trial = mu + tl.where(own, swept(rows, r, i, T, reach, OBJECTIVE, POSITIONS), 0.0)
    tl.debug_barrier()
    tl.store(row_work + (MU + other) * POSITIONS + i, tl.minimum(tl.maximum(trial, low), high))
    tl.debug_barrier()


@triton.jit
def swept(rows, r, i, T, reach, OBJECTIVE: tl.constexpr, POSITIONS: tl.constexpr):
    """What would make each row hold were its coefficients equal."""
    whole, wanted = tl.load(rows + WHOLE * POSITIONS + i), tl.load(rows + B * POSITIONS + i)
    have = r + wanted
    if OBJECTIVE == ENTROPY:
        rest, left, least = whole - wanted, whole - have, 1e-12 * whole
        usable = (whole > 0) & (wanted > least) & (rest > least) & (have > least) & (left > least)
        ratio = tl.where(usable, wanted * left, 1.0) / tl.where(usable, rest * have, 1.0)
    else:
        usable = (whole > 0) & (wanted > 0) & (have > 1e-12 * wanted)
        ratio = tl.where(usable, wanted, 1.0) / tl.where(usable, have, 1.0)
    cap = 10.0 * T + 0.5 * reach
    return tl.minimum(tl.maximum(T * tl.log(ratio), -cap), cap)


@triton.jit
def falls(
    row_work, state, theta, size, error, new_theta, new_size, new_error, POSITIONS: tl.constexpr, DTYPE: tl.constexpr
):
    """Whether the other state lies lower; close to the solution the residual decides, where rounding hides theta."""
    i = tl.arange(0, POSITIONS)
    other = 1 - state
    moved = tl.load(row_work + (MU + other) * POSITIONS + i) - tl.load(row_work + (MU + state) * POSITIONS + i)
    before = tl.sum(moved * tl.load(row_work + (R + state) * POSITIONS + i), 0)
    after = tl.sum(moved * tl.load(row_work + (R + other) * POSITIONS + i), 0)
    lower = new_theta <= theta + DECREASE * tl.minimum(before, 0.0)
    rounding = ROUNDING if DTYPE == tl.float64 else SINGLE_ROUNDING
    level = new_theta <= theta + rounding * (1.0 + size + new_size)
    return lower | (level & ((after <= 0) | (new_error < error)))


@triton.jit
def optimal(
    A, rows, variables, row_work, variable_work, state, T, tol, slots, members, places, others,
    OBJECTIVE: tl.constexpr, WEIGHTED: tl.constexpr, POSITIONS: tl.constexpr,
    TS: tl.constexpr, TM: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Whether rows hold relative to their size at x, and the duality gap is small."""
    raw = row_work + RAW * POSITIONS
    value = tl.zeros((), DTYPE)
    if BLOCKS > 0:
        g = tl.arange(0, BLOCK * BLOCKS)
        rest = tl.zeros((BLOCK * BLOCKS,), DTYPE)
    for slot in range(0, slots, TS):
        leading = tl.zeros((TS,), DTYPE)
        for member in range(0, members, TM):
            v, _ = tile_places(slot, member, members, TS, TM)
            u = tl.load(variable_work + (U + state) * places + v)
            p, _ = point(variables, u, v, T, places, OBJECTIVE, WEIGHTED)
            x = tl.load(variables + BASE * places + v) + tl.load(variables + WIDTH * places + v) * p
            value += tl.sum(tl.abs(tl.load(variable_work + LIN * places + v) * x), 0)
            leading += tl.sum(tl.reshape(tl.abs(tl.load(A + v) * x), (TS, TM)), 1)
            if BLOCKS > 0:
                rest += tl.sum(tl.abs(others_tile(A, v, g, places, others) * x[None, :]), 1)
        tl.store(raw + slot + tl.arange(0, TS), leading)
    if BLOCKS > 0:
        tl.store(raw + slots + g, rest, mask=g < others)
    tl.debug_barrier()
    i = tl.arange(0, POSITIONS)
    mu, r = tl.load(row_work + (MU + state) * POSITIONS + i), tl.load(row_work + (R + state) * POSITIONS + i)
    low, high = tl.load(rows + LOW * POSITIONS + i), tl.load(rows + HIGH * POSITIONS + i)
    inverse = tl.load(rows + INVERSE * POSITIONS + i)
    sizes = tl.maximum(tl.load(raw + i), 1.0)
    scale = tl.where(inverse > 0, 1.0 / tl.where(inverse > 0, inverse, 1.0), 0.0)
    worst = tl.max(tl.abs(moved_duals(mu, r, low, high)) * tl.maximum(scale / sizes, 1.0), 0)
    bound = tl.where(r > 0, low, high)
    way = tl.abs(mu - tl.where(tl.abs(bound) < float("inf"), bound, 0.0))
    soft = (low > float("-inf")) & (high < float("inf"))
    # Scaled, the right-hand side of a soft row is what its terms add up to but for r.
    lost = ROW_ROUNDING * (2.0 * sizes * inverse + tl.abs(r))
    off = tl.maximum(tl.abs(r) - tl.where(soft, lost, 0.0), 0.0)
    gap = tl.sum(way * off, 0)
    tl.debug_barrier()
    return (worst <= tol) & (gap <= GAP * tol * (1.0 + value))


@triton.jit
def proves_infeasible(
    A, rows, variables, row_work, state, slots, members, places, others,
    OBJECTIVE: tl.constexpr, POSITIONS: tl.constexpr,
    TS: tl.constexpr, TM: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Whether the duals, as weights of the rows, prove that nothing in the box satisfies them."""
    i = tl.arange(0, POSITIONS)
    mu = tl.load(row_work + (MU + state) * POSITIONS + i)
    low, high = tl.load(rows + LOW * POSITIONS + i), tl.load(rows + HIGH * POSITIONS + i)
    inverse = tl.load(rows + INVERSE * POSITIONS + i)
    infinite = float("inf")
    counts = (inverse > 0) & ((mu <= 0) | (high == infinite)) & ((mu >= 0) | (low == -infinite))
    mu = tl.where(counts, mu, 0.0)
    target = tl.load(rows + B * POSITIONS + i) * mu
    slack = tl.load(rows + SLACK * POSITIONS + i) * tl.maximum(mu, 0.0)
    best, size = tl.sum(slack, 0), tl.sum(slack + tl.abs(target), 0)
    nu = row_work + NU * POSITIONS
    tl.store(nu + i, mu * inverse)
    tl.debug_barrier()
    for slot in range(0, slots, TS):
        for member in range(0, members, TM):
            v, at = tile_places(slot, member, members, TS, TM)
            gain = tl.load(variables + WIDTH * places + v)
            gain *= pulled(A, nu, v, at, slots, places, others, BLOCK, BLOCKS)
            if OBJECTIVE == ENTROPY:
                most = tl.maximum(gain, 0.0)
            else:
                end = tl.where(
                    gain > 0, tl.load(variables + UPPER * places + v), tl.load(variables + LOWER * places + v)
                )
                most = tl.where(gain == 0, 0.0, gain * end)
            best += tl.sum(most, 0)
            size += tl.sum(tl.abs(most), 0)
    tl.debug_barrier()
    return tl.sum(target, 0) - best - 1e-9 * size > 0


ARRIVED, STEP_LIMIT = tl.constexpr(Stop.ARRIVED.value), tl.constexpr(Stop.STEP_LIMIT.value)
STALLED, INFEASIBLE = tl.constexpr(Stop.STALLED.value), tl.constexpr(Stop.INFEASIBLE.value)
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
    OBJECTIVE: tl.constexpr, WEIGHTED: tl.constexpr, POSITIONS: tl.constexpr, TS: tl.constexpr, TM: tl.constexpr,
):  # fmt: skip
    """x and mu in the user's order."""
    for slot in range(0, slots, TS):
        for member in range(0, members, TM):
            v, _ = tile_places(slot, member, members, TS, TM)
            u = tl.load(variable_work + (U + state) * places + v)
            p, _ = point(variables, u, v, T, places, OBJECTIVE, WEIGHTED)
            value = tl.load(variables + BASE * places + v) + tl.load(variables + WIDTH * places + v) * p
            j = tl.load(variable_of + v)
            tl.store(x + j, value, mask=j >= 0)
    i = tl.arange(0, POSITIONS)
    own = tl.load(row_of + i)
    tl.store(mu + own, tl.load(row_work + (MU + state) * POSITIONS + i), mask=own >= 0)


@triton.jit(do_not_specialize=[*SIZES, "groups", "max_steps"])
def forward(
    scores, coefficients, rows, variables, temperatures, settings, start, variable_of, row_of, group_of,
    x, mu, codes, taken, work,
    first, step_coefficients, step_rows, step_variables, step_temperature, work_size,
    num_variables, num_rows, slots, members, others, groups, max_steps,
    OBJECTIVE: tl.constexpr, SLACKED: tl.constexpr, WEIGHTED: tl.constexpr, HAS_START: tl.constexpr,
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
        OBJECTIVE, WEIGHTED, TS, TM, DTYPE,
    )  # fmt: skip
    tau = one
    if OBJECTIVE != EUCLIDEAN:
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
                OBJECTIVE, SLACKED, WEIGHTED, POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
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
            rows, row_work, group_of, start, row_of, state, phase, length, group, T, reach,
            HAS_START, OBJECTIVE, POSITIONS, DTYPE,
        )  # fmt: skip
        other = 1 - state
        new_theta, new_size, new_error = evaluate(
            A, rows, variables, row_work, variable_work, other, T, slots, members, places, others,
            OBJECTIVE, SLACKED, WEIGHTED, POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
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
                phase = tl.where((groups > 0) & (OBJECTIVE != EUCLIDEAN), SWEEP, NEW)
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
            code = tl.where(arrived, ARRIVED, code)
        else:
            if snapped:
                fine = optimal(
                    A, rows, variables, row_work, variable_work, state, T, tol, slots, members, places, others,
                    OBJECTIVE, WEIGHTED, POSITIONS, TS, TM, BLOCK, BLOCKS, DTYPE,
                )  # fmt: skip
                code = tl.where(fine, ARRIVED, code)
            if tried & (code < 0) & (passes % CERTIFICATE_EVERY == 0):
                proved = proves_infeasible(
                    A, rows, variables, row_work, state, slots, members, places, others,
                    OBJECTIVE, POSITIONS, TS, TM, BLOCK, BLOCKS,
                )  # fmt: skip
                code = tl.where(proved & (arrived == 0), INFEASIBLE, code)
        # An instance that has arrived is polished first, once.
        at_limit = (phase == NEW) & (steps >= max_steps) & ((arrived == 0) | (polished > 0))
        code = tl.where((code < 0) & at_limit, STEP_LIMIT, code)
    write_answer(
        x + n * num_variables, mu + n * num_rows, variables, row_work, variable_work, variable_of, row_of, state, T,
        slots, members, places, OBJECTIVE, WEIGHTED, POSITIONS, TS, TM,
    )  # fmt: skip
    tl.store(codes + n, code)
    tl.store(taken + n, steps)
