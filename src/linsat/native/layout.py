"""How the kernel arranges rows and coefficients: index arrays, built once per sparsity pattern."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from linsat.native import binding
from linsat.native.binding import Core
from linsat.solvers.newton import MOST_GROUPS

Array = np.ndarray

# Beyond these the torch back end is the better choice, or the interior-point method with its sparse factors.
MOST_ROWS = 1 << 16
MOST_OTHER_ROWS = 256  # rows outside the leading group, whose factor is dense
MOST_OTHER_ROWS_FULL = 4096  # the same where most of that factor is not zero anyway
MOST_TABLES = 4_000_000  # pairs kept one by one
MOST_ENTRIES = 64_000_000  # pairs in runs
_SHORTEST_RUN = 3  # mean length from which runs are faster than single entries
_FULL = 0.2  # share of pairs of rows with a variable in common from which their matrix counts as full
_TILE, _MOST_TILES = 8192, 64  # variables of a tile; threads share the tiles of an instance
_DENSE_ROWS = 16  # from which H is computed as a product of matrices, if most coefficients are not zero


@dataclass(frozen=True)
class NativeLayout:
    """The structure the kernel reads, and the arrays it points into."""

    structure: ctypes.Structure
    arrays: dict[str, Array]
    address: int


def make_layout(row: Array, col: Array, senses: Array, variables: int, core: Core) -> NativeLayout | str:
    """The layout of a pattern, or the reason why the core does not take it."""
    k, l = len(senses), variables
    row, col = np.ascontiguousarray(row), np.ascontiguousarray(col)
    counts = np.bincount(col, minlength=l).astype(np.int32)
    pairs = int((counts.astype(np.int64) * (counts + 1) // 2).sum())
    if k > MOST_ROWS:
        return f"{k} rows are more than {MOST_ROWS}"
    dense = k >= _DENSE_ROWS and pairs > 2 * k * l
    if pairs > MOST_ENTRIES and not dense:
        return f"its tables would have {pairs:,} entries, more than {MOST_ENTRIES:,}"
    groups, spans = _groups(core, row, col, (k, l))
    lead = np.zeros(0, dtype=np.int64) if dense else max(groups, key=len, default=np.zeros(0, dtype=np.int64))
    others = np.setdiff1d(np.arange(k), lead)
    if len(others) > MOST_OTHER_ROWS and (
        len(others) > MOST_OTHER_ROWS_FULL or not _is_full(pairs, len(lead), len(others))
    ):
        return f"{len(others)} rows share variables with other rows, more than {MOST_OTHER_ROWS}"
    order = np.concatenate([lead, others]).astype(np.int32)
    position = np.empty(k, dtype=np.int32)
    position[order] = np.arange(k, dtype=np.int32)
    width = (len(others) + 7) // 8 * 8
    sweeps = 0 < len(groups) <= MOST_GROUPS
    tile_start, separate = _tiles(spans[:, lead], l)
    pattern = _Pattern(row, col, position, counts, tile_start, len(lead), width)
    arrays = pattern.entries(core) | {"order": order, "tile_start": tile_start}
    arrays |= pattern.runs(core)
    found = {} if dense else pattern.pairs(core, pairs)
    if found is None:
        return f"its tables would have {pairs:,} entries, more than {MOST_TABLES:,}"
    arrays |= found
    arrays["group_start"] = np.cumsum([0, *map(len, groups)], dtype=np.int32)
    arrays["group_rows"] = np.concatenate([position[group] for group in groups]) if groups else order
    arrays["senses"] = np.ascontiguousarray(senses)
    rest = len(others)
    operations = (
        2 * l + len(col) + (l * rest * rest / 8 if dense else pairs + len(lead) * rest * rest / 8) + rest**3 / 12
    )
    structure = binding.Layout(
        seconds=1e-9 * operations,
        rows=k,
        variables=l,
        entries=len(col),
        pairs=0 if dense else pairs,
        leading=len(lead),
        width=width,
        groups=len(groups) if sweeps else 0,
        entry_runs=len(arrays["runs_of_entries"]),
        pair_runs=len(arrays.get("runs_of_pairs", ())),
        tiles=len(tile_start) - 1,
        separate=separate,
        dense=dense,
        **{name: array.ctypes.data for name, array in arrays.items()},
    )
    return NativeLayout(structure, arrays, ctypes.addressof(structure))


def _groups(core: Core, row: Array, col: Array, shape: tuple[int, int]) -> tuple[list[Array], Array]:
    """Up to 64 groups of rows with disjoint supports, and the first and last variable of each row, (2, rows)."""
    group, first, last = found = np.empty((3, shape[0]), dtype=np.int32)
    at = [array.ctypes.data for array in (row, col, group, first, last)]
    if core.functions.linsat_groups(*shape, len(col), *at):
        raise MemoryError("there is not enough memory for the kernel's tables.")
    return [np.flatnonzero(group == g) for g in range(group.max(initial=-1) + 1)], found[1:]


def _is_full(pairs: int, leading: int, rest: int) -> bool:
    """Whether the matrix of the other rows, after elimination of the leading ones, is mostly full."""
    return pairs > _FULL * rest * max(leading, rest)


def _tiles(spans: Array, variables: int) -> tuple[Array, bool]:
    """Where tiles of variables begin and the last one ends, and whether no leading row has variables in two tiles."""
    end = (variables + 7) // 8 * 8
    if variables <= _TILE:
        return np.array([0, end], dtype=np.int32), True
    size = max(_TILE, -(-variables // _MOST_TILES))
    # A tile may begin at a multiple of eight that no leading row spans.
    first, last = spans[:, spans[1] >= 0]
    crossed = np.bincount(first + 1, minlength=variables + 2) - np.bincount(last + 1, minlength=variables + 2)
    possible = np.flatnonzero(np.cumsum(crossed)[:variables:8] == 0) * 8
    starts = [0]
    separate = True
    while variables - starts[-1] > size:
        wanted = starts[-1] + size
        near = possible[(possible > starts[-1] + size // 2) & (possible <= starts[-1] + 2 * size)]
        separate &= len(near) > 0
        starts.append(int(near[np.abs(near - wanted).argmin()]) if len(near) else wanted // 8 * 8)
    return np.array([*starts, end], dtype=np.int32), separate


class _Pattern:
    """The tables of a sparsity pattern, made by the functions of arrange.h."""

    def __init__(
        self, row: Array, col: Array, position: Array, counts: Array, tile_start: Array, leading: int, width: int
    ) -> None:
        lengths = np.bincount(row, minlength=len(position))
        by_position = np.empty_like(lengths)
        by_position[position] = lengths
        self.tiles = len(tile_start) - 1
        self.tables = {
            "entry": np.empty(len(col), dtype=np.int32),
            "entry_row": np.empty(len(col), dtype=np.int32),
            "entry_col": np.empty(len(col), dtype=np.int32),
            "tile_entries": np.empty(len(tile_start), dtype=np.int32),
        }
        self.kept = {
            "row": row,
            "col": col,
            "position": position,
            "start_of": np.concatenate([[0], np.cumsum(by_position)]).astype(np.int32),
            "counts": counts,
            "tile_start": tile_start,
        }
        self.structure = binding.Pattern(
            variables=len(counts),
            entries=len(col),
            leading=leading,
            width=width,
            tiles=self.tiles,
            **{name: array.ctypes.data for name, array in (self.kept | self.tables).items()},
        )
        self.rows = len(position)

    def entries(self, core: Core) -> dict[str, Array]:
        """Coefficients in order: in each tile the first of every variable, then the second of those that have one."""
        if core.functions.linsat_entries(ctypes.byref(self.structure), self.rows):
            raise MemoryError("there is not enough memory for the kernel's tables.")
        return self.tables

    def runs(self, core: Core) -> dict[str, Array]:
        """The runs, or none where they are too short to pay."""
        room = len(self.tables["entry"]) // _SHORTEST_RUN
        runs, starts = np.empty((room, 7), dtype=np.int32), np.empty(self.tiles + 1, dtype=np.int32)
        found = core.functions.linsat_runs(ctypes.byref(self.structure), room, runs.ctypes.data, starts.ctypes.data)
        return {"runs_of_entries": runs[: found if found <= room else 0].copy(), "tile_entry_runs": starts}

    def pairs(self, core: Core, count: int) -> dict[str, Array] | None:
        """Pairs of coefficients of one variable: in runs, or one by one where these are too short; None: too many."""
        room = count // _SHORTEST_RUN
        runs = np.empty((room, 7), dtype=np.int32)
        starts, tile_pairs = np.empty((2, self.tiles + 1), dtype=np.int32)

        def find(tables: Array | None) -> int:
            return core.functions.linsat_pairs(
                ctypes.byref(self.structure),
                room,
                runs.ctypes.data,
                starts.ctypes.data,
                tile_pairs.ctypes.data,
                None if tables is None else tables.ctypes.data,
                count,
            )

        found = find(None)
        arrays = {"tile_pair_runs": starts, "tile_pairs": tile_pairs}
        if found <= room:
            return arrays | {"runs_of_pairs": runs[:found].copy()}
        if count > MOST_TABLES:
            return None
        tables = np.empty((4, count), dtype=np.int32)
        find(tables)
        names = ("pair_first", "pair_second", "pair_col", "pair_target")
        return arrays | dict(zip(names, tables, strict=True))
