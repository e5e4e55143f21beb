"""The compiled beam search behind ``decode.beam_search``, one instance at a time.

A state is a partial tour: the set of visited cities (bits of a word), the last of them, the length so far and a score.
States with the same set form a group. With merging a group has at most one state per last city, and its states differ
only in what they cost so far: the group as a whole is ranked by the best score among them, and a child (group, city)
takes the parent from which it is shortest. So a step needs

1. the groups: one hash lookup per state,
2. the candidates (group, city): one addition each, without looking at lengths,
3. the best ``width`` candidates: a histogram of scores, then a quickselect inside the one bin that is cut,
4. the length of the selected candidates only, over the parents in their group.

Steps 2 and 3 dominate and are linear in groups times cities.
"""

from __future__ import annotations

import numpy as np

from linsat_studies.compiled import compiled
from linsat_studies.tsp.distances import fill_distances

MAX_CITIES = 64
_BINS = 1024
# Scores more than this below the best share the last bin; log of a share of one in ten thousand is -9.
_DEPTH = 24.0


@compiled(nogil=True)
def beam_each(
    coords: np.ndarray,
    logs: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    priority: np.ndarray,
    within: int,
    width: int,
    merge: bool,
    tours: np.ndarray,
) -> None:
    """Search every instance; ``logs`` is [instance, position, city], priority -1 where there is none."""
    n = coords.shape[1]
    D = np.empty((n, n))
    slots = 4
    while slots < 2 * width:
        slots *= 2
    masks = np.empty(width, np.uint64)
    new_masks = np.empty(width, np.uint64)
    span = np.empty(width, np.float64)
    new_span = np.empty(width, np.float64)
    score = np.empty(width, np.float32)
    new_score = np.empty(width, np.float32)
    last = np.empty((n, width), np.int64)
    parent = np.empty((n, width), np.int64)
    table = np.empty(slots, np.int64)
    member = np.empty(width, np.int64)
    group = np.empty(width, np.int64)
    group_mask = np.empty(width, np.uint64)
    group_score = np.empty(width, np.float32)
    group_first = np.empty(width + 1, np.int64)
    values = np.empty(width * n, np.float32)
    names = np.empty(width * n, np.int64)
    bins = np.empty(_BINS, np.int64)
    chosen = np.empty(width, np.int64)
    cut = np.empty(width * n, np.int64)
    for i in range(coords.shape[0]):
        fill_distances(coords[i], D)
        ends = (np.uint64(1) << np.uint64(start[i])) | (np.uint64(1) << np.uint64(end[i]))
        masks[0], span[0], score[0], last[0, 0] = ends, 0.0, 0.0, start[i]
        count = 1
        for step in range(1, n - 1):
            if merge:
                groups = _group(masks, score, count, table, group, group_mask, group_score, group_first, member)
            else:
                groups = count
                for s in range(count):
                    group_mask[s], group_score[s], group_first[s], member[s] = masks[s], score[s], s, s
                group_first[count] = count
            forced = priority[i] if step == within else -1
            found = _candidates(group_mask, group_score, groups, logs[i, step], forced, values, names)
            kept = _select(values, found, width, bins, chosen, cut)
            for k in range(kept):
                g, city = names[chosen[k]] // n, names[chosen[k]] % n
                shortest, best = np.inf, 0
                for m in range(group_first[g], group_first[g + 1]):
                    s = member[m]
                    length = span[s] + D[last[step - 1, s], city]
                    if length < shortest:
                        shortest, best = length, s
                new_masks[k] = group_mask[g] | (np.uint64(1) << np.uint64(city))
                new_span[k], new_score[k] = shortest, values[chosen[k]]
                last[step, k], parent[step, k] = city, best
            masks, new_masks = new_masks, masks
            span, new_span = new_span, span
            score, new_score = new_score, score
            count = kept
        shortest, s = np.inf, 0
        for k in range(count):
            length = span[k] + D[last[n - 2, k], end[i]]
            if length < shortest:
                shortest, s = length, k
        tours[i, n - 1] = end[i]
        for step in range(n - 2, -1, -1):
            tours[i, step] = last[step, s]
            s = parent[step, s] if step > 0 else 0


@compiled(nogil=True)
def _group(
    masks: np.ndarray,
    score: np.ndarray,
    count: int,
    table: np.ndarray,
    group: np.ndarray,
    group_mask: np.ndarray,
    group_score: np.ndarray,
    group_first: np.ndarray,
    member: np.ndarray,
) -> int:
    """Number the distinct masks; list the states of group g in member[group_first[g] : group_first[g + 1]]."""
    slots = table.shape[0]
    shift = np.uint64(64)
    while slots > 1:
        slots >>= 1
        shift -= np.uint64(1)
    table[:] = -1
    groups = 0
    for s in range(count):
        # Multiplying by 2^64 / golden ratio spreads neighbouring masks over the high bits (Fibonacci hashing).
        slot = np.int64((masks[s] * np.uint64(0x9E3779B97F4A7C15)) >> shift)
        while table[slot] >= 0 and group_mask[table[slot]] != masks[s]:
            slot = (slot + 1) & (table.shape[0] - 1)
        g = table[slot]
        if g < 0:
            g = groups
            table[slot] = g
            group_mask[g], group_score[g], group_first[g] = masks[s], score[s], 0
            groups += 1
        group[s] = g
        group_first[g] += 1
        group_score[g] = max(group_score[g], score[s])
    total = 0
    for g in range(groups):
        total += group_first[g]
        group_first[g] = total
    group_first[groups] = total
    for s in range(count - 1, -1, -1):
        group_first[group[s]] -= 1
        member[group_first[group[s]]] = s
    return groups


@compiled(nogil=True)
def _candidates(
    group_mask: np.ndarray,
    group_score: np.ndarray,
    groups: int,
    log_row: np.ndarray,
    forced: int,
    values: np.ndarray,
    names: np.ndarray,
) -> int:
    """Score of every (group, unvisited city), named group * n + city; only the forced city where it is missing."""
    n = log_row.shape[0]
    found = 0
    for g in range(groups):
        mask = group_mask[g]
        if forced >= 0 and not (mask >> np.uint64(forced)) & np.uint64(1):
            values[found] = group_score[g] + log_row[forced]
            names[found] = g * n + forced
            found += 1
            continue
        for city in range(n):
            # Written always, kept only if unvisited: cheaper than a branch that goes either way at random.
            values[found] = group_score[g] + log_row[city]
            names[found] = g * n + city
            found += 1 - np.int64((mask >> np.uint64(city)) & np.uint64(1))
    return found


@compiled(nogil=True)
def _select(values: np.ndarray, found: int, width: int, bins: np.ndarray, chosen: np.ndarray, cut: np.ndarray) -> int:
    """Indices of the ``width`` largest of the first ``found`` values, in order of index up to the cut bin's."""
    if found <= width:
        for c in range(found):
            chosen[c] = c
        return found
    best = values[0]
    for c in range(found):
        best = max(best, values[c])
    scale = np.float32(_BINS / _DEPTH)
    deepest = np.float32(_BINS - 1)
    bins[:] = 0
    for c in range(found):
        bins[np.int64(min((best - values[c]) * scale, deepest))] += 1
    edge, above = 0, 0
    while above + bins[edge] < width:
        above += bins[edge]
        edge += 1
    kept, tied = 0, 0
    for c in range(found):
        b = np.int64(min((best - values[c]) * scale, deepest))
        if b < edge:
            chosen[kept] = c
            kept += 1
        elif b == edge:
            cut[tied] = c
            tied += 1
    _partition(values, cut, tied, width - kept)
    for c in range(width - kept):
        chosen[kept + c] = cut[c]
    return width


@compiled(nogil=True)
def _partition(values: np.ndarray, index: np.ndarray, count: int, wanted: int) -> None:
    """Reorder ``index`` so that its first ``wanted`` entries point to the largest values (Hoare's quickselect)."""
    low, high = 0, count - 1
    while low < high:
        pivot = values[index[(low + high) // 2]]
        i, j = low, high
        while i <= j:
            while values[index[i]] > pivot:
                i += 1
            while values[index[j]] < pivot:
                j -= 1
            if i <= j:
                index[i], index[j] = index[j], index[i]
                i += 1
                j -= 1
        if wanted - 1 <= j:
            high = j
        elif wanted - 1 >= i:
            low = i
        else:
            return
