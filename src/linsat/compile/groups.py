"""Rows in groups of disjoint supports."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
_FULL = 2**64 - 1


def disjoint_groups(row: Array, col: Array, num_rows: int) -> list[list[int]]:
    """Rows in order, each put into the first group none of whose rows shares a variable with it."""
    order = np.argsort(row, kind="stable")
    columns, ends = col[order], np.cumsum(np.bincount(row, minlength=num_rows))
    # Bit g of word w at a column: group 64 w + g has a row with that variable.
    taken = [np.zeros(int(col.max(initial=-1)) + 1, dtype=np.uint64)]
    groups: list[list[int]] = []
    for i in range(num_rows):
        support = columns[ends[i - 1] if i else 0 : ends[i]]
        used = [int(np.bitwise_or.reduce(words[support], initial=0)) for words in taken]
        word = next((w for w, bits in enumerate(used) if bits != _FULL), len(taken))
        if word == len(taken):
            taken.append(np.zeros_like(taken[0]))
            used.append(0)
        bit = (~used[word] & (used[word] + 1)).bit_length() - 1  # the lowest that is not set
        taken[word][support] |= np.uint64(1 << bit)
        group = 64 * word + bit
        if group == len(groups):
            groups.append([])
        groups[group].append(i)
    return groups
