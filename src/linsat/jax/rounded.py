"""Sides given with a call that contradict each other by no more than their rounding: `linsat.constraints.rounded`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linsat.constraints.constraint_set import Constraints
from linsat.constraints.rounded import EXACT, EXPLAINED, keep_dependencies
from linsat.jax.single import exact_product, exact_sum

Array = Any


def change(f: Array, given: Any, constraints: Constraints | None) -> tuple[Array | None, Array]:
    """What frees sides (batch..., rows of E) of rounding, or None; and their largest relative change, (batch...).

    Args:
        f: the sides in the precision of JAX.
        given: their dtype as they were given; those in float64 never change.
        constraints: the set, if its own coefficients are used: of others no dependencies are known.
    """
    narrow = jnp.issubdtype(given, jnp.floating) and given.itemsize < 8
    matrix = None if constraints is None else constraints.blocks.get("E")
    N = None if matrix is None or not narrow else getattr(matrix.kept, keep_dependencies(matrix))
    if N is None or not N.shape[1] or f.shape[-1] != len(N):
        return None, jnp.zeros(f.shape[:-1], f.dtype)
    now, basis = jax.lax.stop_gradient(f), jnp.asarray(N, f.dtype)
    gram = basis.T @ (now[..., :, None] ** 2 * basis)
    solved = (jnp.linalg.pinv(gram, hermitian=True) @ _missing(now, N)[..., None])[..., 0]
    share = -now * (solved @ basis.T)  # relative change of each side
    largest = abs(share).max(-1)
    meant = (largest > EXACT) & (largest <= EXPLAINED * float(jnp.finfo(given).eps))
    return jnp.where(meant[..., None], now * share, 0.0), jnp.where(meant, largest, 0.0)


def _missing(f: Array, N: np.ndarray) -> Array:
    """f' N, (batch..., p), in which most digits cancel: in single precision summed in two floats."""
    if f.dtype == np.float64:
        return f @ jnp.asarray(N)
    high = N.astype(np.float32)
    low = (N - high).astype(np.float32)
    products, lost = exact_product(jnp.asarray(high.T), f[..., None, :])  # (batch..., p, rows)
    return exact_sum(products, lost + low.T * f[..., None, :])
