"""k places for each item within the capacities of the places, of the largest total score: by prices, then by chains."""

from __future__ import annotations

import numpy as np

from linsat.errors import ConstraintError

Array = np.ndarray
_ROUNDS = 40  # of prices, before single moves


def assigned(scores: Array, k: Array, capacity: Array) -> Array:
    """(n1, n2) bool: the choice for one instance; ``-inf`` scores are not to be chosen.

    With a price for each place, every item takes the k places of the largest ``score - price``. That is the best
    choice among all with its loads, and the best within the capacities where the loads are these; what is free is
    held by fillers, which stand where it is cheapest. Prices that almost balance the loads come first, then moves.
    """
    allowed, items = np.isfinite(scores), np.arange(len(scores))
    short = np.flatnonzero(allowed.sum(1) < k)
    if len(short):
        raise ConstraintError(
            f"k is {k[short[0]]} for item {short[0]}, which may take {allowed[short[0]].sum()} places. Fix: a smaller "
            f"k, or more variables that the box leaves free."
        )
    spare = int(capacity.sum() - k.sum())
    price = _prices(scores, k, capacity)
    order = np.argsort(price - scores, axis=-1, kind="stable")
    chosen = np.zeros(scores.shape, dtype=bool)
    chosen[items[:, None], order] = np.arange(scores.shape[1]) < k[:, None]
    if spare < 0 or not _balance(chosen, scores, capacity, price, spare):
        raise ConstraintError(
            f"capacity has {int(capacity.sum())} places and k asks for {int(k.sum())}, each item's in different ones; "
            f"they do not fit. Fix: larger capacities, a smaller k, or more variables that the box leaves free."
        )
    return chosen


def _prices(scores: Array, k: Array, capacity: Array) -> Array:
    """(n2,) prices, at least 0, at which the loads are almost within the capacities.

    In each round a place asks what would fill it if all others kept their prices: an item bids what the place is worth
    to it beyond its best choice elsewhere, and the price becomes the first bid without room.
    """
    n1, n2 = scores.shape
    finite = scores[np.isfinite(scores)]
    least = 2 * finite.min(initial=0.0) - finite.max(initial=0.0) - 1.0
    scores, price = np.maximum(scores, least), np.zeros(n2)
    full = np.flatnonzero(capacity < n1)
    if not n1 or not len(full):
        return price
    # Of the last place taken, and of the next, from below.
    ranks = np.minimum(n2 - k, n2 - 1), np.maximum(n2 - k - 1, 0)
    kth, last = np.unique(ranks), n1 - 1 - capacity[full]
    for _ in range(_ROUNDS):
        worth = scores - price
        ordered = np.partition(worth, kth, axis=-1)
        inside, outside = (np.take_along_axis(ordered, at[:, None], -1) for at in ranks)
        bids = scores - np.where(worth >= inside, outside, inside)
        bids = np.where(k[:, None] == n2, scores - least, np.where(k[:, None] == 0, -np.inf, bids))
        first = np.partition(bids[:, full].T, np.unique(last), axis=-1)[np.arange(len(full)), last]
        if np.maximum((worth >= inside).sum(0) - capacity, 0).sum() <= n2:
            break
        price[full] = np.maximum(first, 0.0)
    return price


def _balance(chosen: Array, scores: Array, capacity: Array, price: Array, spare: int) -> bool:
    """Bring the loads to the capacities, in place, each time along the cheapest chain of moves; False: there is none.

    ``cost[a, b]`` is the least that moving one item, or filler, from place a to b takes from the total, and
    ``cost - price[a] + price[b]`` is at least 0 where the choice is the best for its loads. A move along a shortest
    chain leaves it so, with prices lowered by the distances.
    """
    n2 = scores.shape[1]
    places = np.arange(n2)
    fillers = np.where(places == price.argmin(), spare, 0)
    load = chosen.sum(0) + fillers
    cost, mover = np.empty((n2, n2)), np.empty((n2, n2), dtype=np.int64)
    stale = set(range(n2))
    while (load > capacity).any():
        for a in stale:
            members = np.flatnonzero(chosen[:, a])
            loss = np.where(chosen[members], np.inf, scores[members, a, None] - scores[members])
            loss, members = np.vstack([loss, np.full(n2, 0.0 if fillers[a] else np.inf)]), np.append(members, -1)
            at = loss.argmin(0)
            cost[a], mover[a] = loss[at, places], members[at]
        step = np.maximum(cost - price[:, None] + price, 0.0)
        distance, before = np.where(load > capacity, 0.0, np.inf), np.full(n2, -1)
        while True:
            through = distance[:, None] + step
            nearest = through.argmin(0)
            better = through[nearest, places] < distance
            if not better.any():
                break
            distance, before = np.where(better, through[nearest, places], distance), np.where(better, nearest, before)
        room = np.where(load < capacity, distance, np.inf)
        place = int(room.argmin())
        if not np.isfinite(room[place]):
            return False
        price = price - np.minimum(distance, room[place])
        load[place] += 1
        stale = {place}
        while before[place] >= 0:
            origin, item = int(before[place]), mover[before[place], place]
            if item < 0:
                fillers[origin], fillers[place] = fillers[origin] - 1, fillers[place] + 1
            else:
                stale.update(np.flatnonzero(chosen[item]).tolist())
                chosen[item, origin], chosen[item, place] = False, True
            stale.add(origin)
            place = origin
        load[place] -= 1
    return True
