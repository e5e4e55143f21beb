"""Soft rows: which rows of a set may be broken, and at what price per unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from linsat._optional import is_tensor
from linsat._transforms import plain
from linsat.constraints import arrays
from linsat.constraints.arrays import Array, Numbers
from linsat.constraints.names import select_rows
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints


@dataclass(frozen=True)
class SoftRows:
    """Rows that were softened together; in a sequence of them the last price of a row counts."""

    rows: Array  # (m,) int64 positions
    price: Numbers  # a scalar, (m,) or (batch..., m); the user's own tensor where it requires gradients

    @property
    def learned(self) -> bool:
        """Whether the price requires gradients."""
        return is_tensor(self.price) and self.price.requires_grad

    def with_price(self, price: Any) -> SoftRows:
        """The same rows at another price."""
        return SoftRows(self.rows, read_price(price, len(self.rows)))


def read_price(value: Any, count: int) -> Numbers:
    """Validate the price of ``count`` rows: a number, one per row, or (batch..., rows)."""
    price = arrays.read_numbers("price", value)
    if price.ndim and price.shape[-1] not in (1, count):
        raise ConstraintError(
            f"price has shape {tuple(price.shape)} but {count} {'row is' if count == 1 else 'rows are'} softened; "
            f"expected a number, ({count},) or (batch, {count}). Fix: one price per softened row."
        )
    check_price(price)
    return price


def check_price(price: Numbers) -> None:
    """Reject prices that are not positive and finite, naming the first by its index; in a graph the solve does."""
    now = arrays.visible(price)
    if now is None:
        return
    wrong = ~(arrays.namespace(now).isfinite(now) & (now > 0))
    if bool(wrong.any()):
        index = arrays.first_place(wrong)
        raise ConstraintError(
            f"{arrays.indexed('price', index)} is {float(now[index])}; expected a positive, finite price per unit. "
            f"Fix: for example price=10.0; a row that must hold is left out, and a learned price is kept positive by "
            f"log_price.exp()."
        )


def softened(constraints: Constraints, soft: Sequence[SoftRows], wanted: Any, price: Any) -> tuple[SoftRows, ...]:
    """The soft rows of a set after some more were softened, or got another price."""
    rows = np.array(select_rows(constraints, wanted), dtype=np.int64)
    made = SoftRows(rows, read_price(price, len(rows)))
    if not len(rows):
        return tuple(soft)
    kept = [block for block in soft if not np.isin(block.rows, rows).all()]
    if made.learned and any(block.learned for block in kept):
        raise ConstraintError(
            "price requires gradients, and so does the price of rows that were softened before; a set follows one "
            "such tensor. Fix: soften all these rows in one call, with one price per row."
        )
    return *kept, made


def learned_price(soft: Sequence[SoftRows]) -> dict[str, Numbers]:
    """The price that requires gradients, by its argument name; at most one does."""
    return next(({"price": block.price} for block in soft if block.learned), {})


def repriced(soft: Sequence[SoftRows], price: Numbers | None) -> tuple[SoftRows, ...]:
    """The same rows read again, with another price for those whose price is learned (or else for the last ones)."""
    learned = next((i for i, block in enumerate(soft) if block.learned), len(soft) - 1)
    return tuple(
        block.with_price(block.price if price is None or i != learned else price) for i, block in enumerate(soft)
    )


def full_price(soft: Sequence[SoftRows], num_rows: int) -> Numbers | None:
    """The price of every row, (batch..., rows), infinite where a row is hard; None: all are."""
    if not soft:
        return None
    batch = arrays.broadcast_shapes(*(block.price.shape[:-1] for block in soft))
    full = np.full((*batch, num_rows), np.inf)
    full, *prices = arrays.alike([full, *(block.price for block in soft)])
    for block, price in zip(soft, prices, strict=True):
        own = arrays.spread(price, (*batch, len(block.rows)))
        if is_tensor(full):
            full = full.index_copy(-1, arrays.positions_on(full, block.rows), own.to(full.dtype))
        else:
            full[..., block.rows] = own
    return full


def from_full_price(price: Numbers) -> tuple[SoftRows, ...]:
    """The soft rows that prices (batch..., rows) mean, infinite where a row is hard."""
    xp = arrays.namespace(price)
    hard = xp.isposinf(plain(price) if is_tensor(price) else price)
    check_price(xp.where(hard, 1.0, price))
    finite = arrays.as_array(~hard.reshape(-1, price.shape[-1]))
    mixed = np.flatnonzero(finite.any(0) & ~finite.all(0))
    if len(mixed):
        raise ConstraintError(
            f"price of row {mixed[0]} is finite for some instances and missing for others; expected a row to be soft "
            f"for all or for none. Fix: a high price where it should hold."
        )
    rows = np.flatnonzero(finite.all(0))
    return (SoftRows(rows, read_price(arrays.picked(price, rows), len(rows))),) if len(rows) else ()
