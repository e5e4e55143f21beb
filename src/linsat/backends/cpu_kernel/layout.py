"""How the kernel arranges rows and coefficients: index arrays, built once per sparsity pattern."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from linsat.backends.cpu_kernel import native
from linsat.backends.cpu_kernel.native import Library
from linsat.compile.rows import RowMatrix, disjoint_groups
from linsat.solvers.newton import MOST_GROUPS

Array = np.ndarray

# Beyond these the torch back end is the better choice: its matrix products pay off.
MOST_ROWS = 4096
MOST_OTHER_ROWS = 256  # rows outside the leading group, whose factor is dense
MOST_ENTRIES = 4_000_000  # of any table
_SHORTEST_RUN = 3  # mean length from which runs are faster than single entries


@dataclass(frozen=True)
class KernelLayout:
    """The structure the kernel reads, and the arrays it points into."""

    structure: ctypes.Structure
    arrays: dict[str, Array]
    seconds: float  # rough time of one evaluation and one factorisation, to decide about threads

    @property
    def address(self) -> int:
        return ctypes.addressof(self.structure)


def layout_of(rows: RowMatrix, loaded: Library) -> KernelLayout | str:
    """The layout of a pattern, or the reason why the kernel does not take it; kept with the pattern."""
    if "kernel" not in rows.cache:
        rows.cache["kernel"] = _build(rows, loaded)
    return rows.cache["kernel"]


def _build(rows: RowMatrix, loaded: Library) -> KernelLayout | str:
    k, l = rows.shape
    row, col = rows.row.cpu().numpy(), rows.col.cpu().numpy()
    counts = np.bincount(col, minlength=l)
    if k > MOST_ROWS:
        return f"{k} rows are more than {MOST_ROWS}"
    most = int(counts.max(initial=0))
    size = max(most * l, int((counts * (counts + 1) // 2).sum()))
    if size > MOST_ENTRIES:
        return f"its tables would have {size:,} entries, more than {MOST_ENTRIES:,}"
    groups = disjoint_groups(row, col, k)
    lead = max(groups, key=len, default=[])
    others = sorted(set(range(k)) - set(lead))
    if len(others) > MOST_OTHER_ROWS:
        return f"{len(others)} rows share variables with other rows, more than {MOST_OTHER_ROWS}"
    order = np.array([*lead, *others], dtype=np.int64)
    position = np.empty(k, dtype=np.int64)
    position[order] = np.arange(k)
    width = (len(others) + 7) // 8 * 8
    sweeps = 0 < len(groups) <= MOST_GROUPS
    arrays = _entries(position[row], col, counts)
    arrays |= _pairs(arrays, counts, len(lead), width)
    arrays |= {"order": order, "user_row": row, "user_col": col}
    arrays["group_start"] = np.cumsum([0, *map(len, groups)])
    arrays["group_rows"] = np.concatenate([position[group] for group in groups]) if groups else order
    arrays = {name: np.ascontiguousarray(array, dtype=np.int32) for name, array in arrays.items()}
    arrays["runs_of_entries"] = _runs(loaded, arrays["entry_col"], arrays["entry_row"])
    arrays["runs_of_pairs"] = _runs(loaded, arrays["pair_col"], arrays["pair_target"])
    structure = native.Layout(
        rows=k,
        variables=l,
        entries=len(col),
        pairs=len(arrays["pair_col"]),
        leading=len(lead),
        width=width,
        groups=len(groups) if sweeps else 0,
        entry_runs=len(arrays["runs_of_entries"]),
        pair_runs=len(arrays["runs_of_pairs"]),
        **{name: array.ctypes.data for name, array in arrays.items()},
    )
    rest = len(others)
    operations = 2 * l + len(col) + len(arrays["pair_col"]) + len(lead) * rest * rest / 8 + rest**3 / 12
    return KernelLayout(structure, arrays, 1e-9 * operations)


def _entries(at: Array, col: Array, counts: Array) -> dict[str, Array]:
    """Coefficients in order: the first of every variable, then the second of those that have one, and so on."""
    by_col = np.lexsort((at, col))
    slot = np.arange(len(col)) - np.repeat(np.cumsum(counts) - counts, counts)
    entry = by_col[np.argsort(slot, kind="stable")]
    return {"entry": entry, "entry_row": at[entry], "entry_col": col[entry]}


def _pairs(entries: dict[str, Array], counts: Array, leading: int, width: int) -> dict[str, Array]:
    """Pairs of coefficients of one variable, in the order of `_entries`, and the place of their product in H.

    H holds [diagonal of the leading rows | diagonal of the others | leading x others | others x others].
    """
    at, col = entries["entry_row"], entries["entry_col"]
    slots = np.cumsum([0, *(int((counts > s).sum()) for s in range(int(counts.max(initial=0))))])
    place = np.full((len(slots) - 1, len(counts)), -1, dtype=np.int64)  # of each variable's coefficients
    for s in range(len(slots) - 1):
        place[s, col[slots[s] : slots[s + 1]]] = np.arange(slots[s], slots[s + 1])
    firsts, seconds = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for b in range(len(place)):
        has = np.flatnonzero(place[b] >= 0)
        for a in range(b + 1):
            firsts.append(place[a, has])
            seconds.append(place[b, has])
    first, second = np.concatenate(firsts), np.concatenate(seconds)
    i, g = at[first], at[second]  # i <= g: rows of one variable are in order
    lead = (leading + 7) // 8 * 8
    coupling, corner = lead + width, lead + width + leading * width
    target = np.where(
        i == g,
        np.where(i < leading, i, lead + i - leading),
        np.where(i < leading, coupling + i * width + g - leading, corner + (i - leading) * width + g - leading),
    )
    return {"pair_first": first, "pair_second": second, "pair_col": col[first], "pair_target": target}


def _runs(loaded: Library, col: Array, target: Array) -> Array:
    """The runs, (runs, 5), or none where they are too short to pay."""
    room = len(col) // _SHORTEST_RUN
    runs = np.empty((room, 5), dtype=np.int32)
    found = loaded.functions.linsat_runs(len(col), col.ctypes.data, target.ctypes.data, room, runs.ctypes.data)
    return runs[:found].copy() if found <= room else np.empty((0, 5), dtype=np.int32)
