"""`linsat._presolve.propagate` and the numbers of `linsat._kernels.tables`, instance by instance on the CPU (numba).

For right sides and bounds that differ between instances, where both are part of every call. Sums run in the order of
the coefficients and are not reassociated, so an instance's numbers do not depend on its batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linsat._kernels.compiled import compiled

# The constants of linsat._presolve, which explains them.
_CONTRADICTION, _VACUOUS, _FORCED, _ROUNDING = 1e-9, 1e-12, 1e-10, 1e-15
_LESS, _GREATER = -1, 1
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


@compiled(**_OPTIONS)
def _activity_range(row, col, values, lower, width, free, pinned, least, most):
    """Fill the least and largest value of each row over the box that is left."""
    least[:] = 0.0
    most[:] = 0.0
    for e in range(row.size):
        j = col[e]
        low = lower[j] if free[j] else lower[j] + width[j] * pinned[j]
        high = lower[j] + width[j] if free[j] else low
        at_low, at_high = low * values[e], high * values[e]
        least[row[e]] += min(at_low, at_high)
        most[row[e]] += max(at_low, at_high)


@compiled(**_OPTIONS)
def propagate(row, col, values, senses, lower, width, side, free, pinned, active, infeasible):
    """Fill the last four, (N, .), from numbers whose first dimension is N or 1."""
    k, l = side.shape[1], width.shape[1]
    least, most, box_least, box_most = np.empty(k), np.empty(k), np.empty(k), np.empty(k)
    rounding, room_above, room_below = np.empty(k), np.empty(k), np.empty(k)
    down, up = np.empty(l, dtype=np.bool_), np.empty(l, dtype=np.bool_)
    for n in range(free.shape[0]):
        low, wide = lower[min(n, lower.shape[0] - 1)], width[min(n, width.shape[0] - 1)]
        wanted = side[min(n, side.shape[0] - 1)]
        for j in range(l):
            free[n, j] = wide[j] > 0
            pinned[n, j] = 0.0
        _activity_range(row, col, values, low, wide, free[n], pinned[n], box_least, box_most)
        for i in range(k):
            rounding[i] = _ROUNDING * (abs(box_least[i]) + abs(box_most[i]) + abs(wanted[i]))
            least[i], most[i] = box_least[i], box_most[i]
        impossible = False
        while True:
            for i in range(k):
                above, below = wanted[i] - least[i], most[i] - wanted[i]  # room left under a cap, over a floor
                lacking = -(_CONTRADICTION * (box_most[i] - box_least[i]) + rounding[i])
                caps, floors = senses[i] != _GREATER, senses[i] != _LESS
                if (caps and above < lacking) or (floors and below < lacking):
                    impossible = True
                room_above[i] = above - rounding[i] if caps else np.inf
                room_below[i] = below - rounding[i] if floors else np.inf
            down[:] = False
            up[:] = False
            for e in range(row.size):
                needed = _FORCED * abs(values[e]) * wide[col[e]]
                if room_above[row[e]] <= needed:
                    if values[e] > 0:
                        down[col[e]] = True
                    elif values[e] < 0:
                        up[col[e]] = True
                if room_below[row[e]] <= needed:
                    if values[e] > 0:
                        up[col[e]] = True
                    elif values[e] < 0:
                        down[col[e]] = True
            changed = False
            for j in range(l):
                if free[n, j] and (down[j] or up[j]):
                    free[n, j] = False
                    pinned[n, j] = 0.0 if down[j] else 1.0
                    changed = True
            if not changed:
                break
            _activity_range(row, col, values, low, wide, free[n], pinned[n], least, most)
        infeasible[n] = impossible
        active[n] = False
        for e in range(row.size):
            if values[e] != 0 and free[n, col[e]]:
                active[n, row[e]] = True
        for i in range(k):
            slight = _VACUOUS * (box_most[i] - box_least[i]) + rounding[i]
            if (senses[i] == _LESS and wanted[i] - box_most[i] >= -slight) or (
                senses[i] == _GREATER and box_least[i] - wanted[i] >= -slight
            ):
                active[n, i] = False


@compiled(**_OPTIONS)
def fold(
    row, col, values, width, scale, free, active, slack, order, variable_entries, row_entries, pair_first, pair_second,
    variable_values, row_values, pair_values, totals,
):  # fmt: skip
    """Fill the last four: coefficients in shares of the box and over their row's scale, without those that presolve
    took out, in the arrangements that the kernel reads; and what each row can reach with its slack."""
    k = slack.shape[1]
    weights, sums, signed = np.empty(row.size), np.empty(k), np.empty(k, dtype=np.bool_)
    for n in range(totals.shape[0]):
        wide, size = width[min(n, width.shape[0] - 1)], scale[min(n, scale.shape[0] - 1)]
        f, s = min(n, free.shape[0] - 1), min(n, slack.shape[0] - 1)
        sums[:] = 0.0
        signed[:] = False
        for e in range(row.size):
            kept = free[f, col[e]] and active[f, row[e]]
            weights[e] = values[e] * wide[col[e]] / size[row[e]] if kept else 0.0
            sums[row[e]] += weights[e]
            if weights[e] < 0:
                signed[row[e]] = True
        for i in range(k):
            at = order[i]
            totals[n, i] = 0.0 if signed[at] else sums[at] + slack[s, at]
        if n >= row_values.shape[0]:
            continue  # the same coefficients for all instances: only the slacks differ
        for a in range(variable_entries.shape[0]):
            for j in range(variable_entries.shape[1]):
                e = variable_entries[a, j]
                variable_values[n, a, j] = weights[e] if e >= 0 else 0.0
        for m in range(row_entries.size):
            row_values[n, m] = weights[row_entries[m]]
        for m in range(pair_first.size):
            pair_values[n, m] = weights[pair_first[m]] * weights[pair_second[m]]
