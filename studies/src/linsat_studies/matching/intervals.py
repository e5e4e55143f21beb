"""How sure a difference between two techniques is, measured on the same pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_DRAWS = 2000
_LEVEL = 0.95


def paired_difference(
    ours: np.ndarray, other: np.ndarray, classes: Sequence[str], *, draws: int = _DRAWS, seed: int = 0
) -> dict[str, float]:
    """Mean over classes of the difference of F1, and its 95 % interval by bootstrap.

    A draw takes as many seeds of each technique and as many pairs of each class as there are, with replacement; both
    techniques get the same pairs. With one seed each the interval says what other pairs could change, not what another
    training could. About 0.5 s for 4,000 pairs and three seeds.

    Args:
        ours, other: (seeds, pairs) F1 of every pair with every trained network; numbers of seeds may differ.
        classes: of the pairs.

    Returns:
        dict: ``mean``, ``low`` and ``high``.
    """
    random = np.random.default_rng(seed)
    labels = np.array(classes)
    places = [np.flatnonzero(labels == name) for name in np.unique(labels)]
    found = np.empty(draws)
    for draw in range(draws):
        some = ours[random.integers(len(ours), size=len(ours))].mean(0)
        others = other[random.integers(len(other), size=len(other))].mean(0)
        difference = some - others
        found[draw] = np.mean([difference[at[random.integers(len(at), size=len(at))]].mean() for at in places])
    difference = ours.mean(0) - other.mean(0)
    low, high = np.quantile(found, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return {"mean": float(np.mean([difference[at].mean() for at in places])), "low": float(low), "high": float(high)}
