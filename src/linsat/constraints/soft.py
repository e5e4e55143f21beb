"""Soft rows: which rows of a set may be broken, and at what price per unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from linsat._transforms import plain, tracing
from linsat.constraints.arrays import Tensor, to_tensor
from linsat.constraints.names import select_rows
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints


@dataclass(frozen=True)
class SoftRows:
    """Rows that were softened together; in a sequence of them the last price of a row counts."""

    rows: Tensor  # (m,) positions, on the CPU
    price: Tensor  # a scalar, (m,) or (batch..., m); the user's own tensor where it requires gradients

    def with_price(self, price: Any) -> SoftRows:
        """The same rows at another price."""
        return SoftRows(self.rows, read_price(price, len(self.rows)))


def read_price(value: Any, count: int) -> Tensor:
    """Validate the price of ``count`` rows: a number, one per row, or (batch..., rows)."""
    price = to_tensor("price", value)
    if price.layout != torch.strided:
        raise ConstraintError("price is sparse; expected dense numbers. Fix: price.to_dense().")
    if price.dim() and price.shape[-1] not in (1, count):
        raise ConstraintError(
            f"price has shape {tuple(price.shape)} but {count} rows are softened; expected a number, ({count},) or "
            f"(batch, {count}). Fix: one price per softened row."
        )
    check_price(price)
    return price


def check_price(price: Tensor) -> None:
    """Reject prices that are not positive and finite, naming the first by its index; in a graph the solve does."""
    if tracing(price):
        return
    now = plain(price)
    wrong = ~(torch.isfinite(now) & (now > 0))
    if bool(wrong.any()):
        index = tuple(int(i) for i in wrong.nonzero()[0])
        where = f"price[{', '.join(map(str, index))}]" if index else "price"
        raise ConstraintError(
            f"{where} is {float(now[index])}; expected a positive, finite price per unit. Fix: price=10.0, say; a row "
            f"that must hold is left out, and a learned price is kept positive by log_price.exp()."
        )


def softened(constraints: Constraints, soft: Sequence[SoftRows], wanted: Any, price: Any) -> tuple[SoftRows, ...]:
    """The soft rows of a set after some more were softened, or got another price."""
    rows = torch.tensor(select_rows(constraints, wanted), dtype=torch.int64)
    made = SoftRows(rows, read_price(price, len(rows)))
    if not len(rows):
        return tuple(soft)
    kept = [block for block in soft if not bool(torch.isin(block.rows, rows).all())]
    if made.price.requires_grad and any(block.price.requires_grad for block in kept):
        raise ConstraintError(
            "price requires gradients, and so does the price of rows that were softened before; a set follows one "
            "such tensor. Fix: soften all these rows in one call, with one price per row."
        )
    return *kept, made


def learned_price(soft: Sequence[SoftRows]) -> dict[str, Tensor]:
    """The price that requires gradients, by its argument name; at most one does."""
    return next(({"price": block.price} for block in soft if block.price.requires_grad), {})


def repriced(soft: Sequence[SoftRows], price: Tensor | None) -> tuple[SoftRows, ...]:
    """The same rows read anew, with another price for those whose price is learned (or else for the last ones)."""
    learned = next((i for i, block in enumerate(soft) if block.price.requires_grad), len(soft) - 1)
    return tuple(
        block.with_price(block.price if price is None or i != learned else price) for i, block in enumerate(soft)
    )


def full_price(soft: Sequence[SoftRows], num_rows: int, device: torch.device | str) -> Tensor | None:
    """The price of every row, (batch..., rows) in float64, infinite where a row is hard; None: all are."""
    if not soft:
        return None
    batch = torch.broadcast_shapes(*(block.price.shape[:-1] for block in soft))
    price = torch.full((*batch, num_rows), torch.inf, dtype=torch.float64, device=device)
    for block in soft:
        own = block.price.to(device, torch.float64).expand(*batch, len(block.rows))
        price = price.index_copy(-1, block.rows.to(device), own)
    return price


def from_full_price(price: Tensor) -> tuple[SoftRows, ...]:
    """The soft rows that prices (batch..., rows) mean, infinite where a row is hard."""
    hard = torch.isposinf(plain(price))
    check_price(torch.where(hard, 1.0, price))
    finite = ~hard.reshape(-1, price.shape[-1])
    mixed = (finite.any(0) & ~finite.all(0)).nonzero()
    if len(mixed):
        row = int(mixed[0])
        raise ConstraintError(
            f"price of row {row} is finite for some instances and missing for others; expected a row to be soft for "
            f"all or for none. Fix: a high price where it should hold."
        )
    rows = finite.all(0).nonzero().squeeze(-1).cpu()
    if not len(rows):
        return ()
    return (SoftRows(rows, read_price(price[..., rows.to(price.device)], len(rows))),)
