"""The few array operations whose names or habits differ between torch, JAX and numpy: the mathematics is written once.

`namespace(x)` is the namespace of x's library. Nothing is imported for it: a caller with an array of a library
has imported that library.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Tensor: TypeAlias = Any  # an array of torch, JAX or numpy


def namespace(*arrays: Any) -> Any:
    """The operations for these arrays: torch's or JAX's where one of them is of that library, else numpy's."""
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(array, torch.Tensor) for array in arrays):
        return _made_once(_Torch)
    jax = sys.modules.get("jax")
    if jax is not None and any(isinstance(array, jax.Array) for array in arrays):
        return _made_once(_Jax)
    return _made_once(_Arrays)


def to_numpy(array: Any) -> np.ndarray:
    """The numbers on the host, without gradients, those of all mapped instances."""
    if not hasattr(array, "detach"):
        return np.asarray(array)
    from linsat._transforms import plain, plain_tensors, transforming

    if transforming(array):
        with plain_tensors():
            return plain(array).cpu().numpy()
    return array.detach().cpu().resolve_neg().numpy()


class _Arrays:
    """numpy, and what jax.numpy has in common with it."""

    def __init__(self, module: Any = np) -> None:
        self.where, self.minimum, self.maximum, self.clip = module.where, module.minimum, module.maximum, module.clip
        self.zeros_like, self.ones_like, self.full_like = module.zeros_like, module.ones_like, module.full_like
        self.isfinite, self.isposinf, self.isneginf = module.isfinite, module.isposinf, module.isneginf
        self.exp, self.log, self.sqrt, self.floor = module.exp, module.log, module.sqrt, module.floor
        self.stack, self.concatenate = module.stack, module.concatenate
        self.broadcast_to, self.broadcast = module.broadcast_to, module.broadcast_arrays
        self.at_least, self.at_most = module.maximum, module.minimum
        self.module, self.inf = module, math.inf

    def known_false(self, which: Any) -> bool:
        """Whether none holds, as far as the host may look."""
        return not bool(which.any())

    def if_any(self, which: Any, then: Any, state: Any, look: bool) -> Any:
        """then(state) where any of ``which`` holds, else the state."""
        return then(state) if bool(which.any()) else state

    def repeat_while(self, state: Any, body: Any) -> Any:
        """body(body(... state)) as long as the last entry of the state holds."""
        while bool(state[-1]):
            state = body(state)
        return state

    def zeros(self, shape: Sequence[int], like: Any) -> Any:
        return self.module.zeros(shape, like.dtype)

    def counters(self, count: int, like: Any) -> Any:
        return self.module.zeros(count, int)

    def eye(self, size: int, like: Any) -> Any:
        return self.module.eye(size, dtype=like.dtype)

    def cast(self, x: Any, like: Any) -> Any:
        return x.astype(like.dtype)

    def from_numpy(self, array: np.ndarray, like: Any) -> Any:
        return self.module.asarray(array)

    def amax(self, x: Any) -> Any:
        return x.max(-1)

    def amin_first(self, x: Any) -> Any:
        return x.min(0)

    def constant(self, x: Any) -> Any:
        """x without a gradient."""
        return x

    def sigmoid(self, u: Any) -> Any:
        e = self.module.exp(-abs(u))  # the same as in softplus, so that it is computed once
        return self.where(u >= 0, 1.0, e) / (1 + e)

    def softplus(self, u: Any) -> Any:
        return self.maximum(u, 0.0) + self.module.log1p(self.module.exp(-abs(u)))

    def index_add(self, x: Any, index: Any, terms: Any) -> Any:
        """x (N, m) with terms (N, .) added at ``index`` of the last dimension."""
        count, width = max(len(x), len(terms)), x.shape[1]
        whole = np.broadcast_to(terms, (count, terms.shape[1]))
        sums = [np.bincount(index, row, minlength=width) for row in whole]
        return x + np.stack(sums) if sums else np.broadcast_to(x, (count, width))

    def diagonal(self, H: Any) -> Any:
        return self.module.diagonal(H, axis1=-2, axis2=-1)

    def diagonal_matrix(self, v: Any) -> Any:
        return v[..., None] * self.module.eye(v.shape[-1], dtype=v.dtype)

    def solve(self, matrix: Any, rhs: Any) -> Any:
        """Solutions (N, m) of systems (N, m, m)."""
        return self.module.linalg.solve(matrix, rhs[..., None])[..., 0]

    def eps(self, x: Any) -> float:
        return float(np.finfo(x.dtype).eps)

    def tiny(self, x: Any) -> float:
        return float(np.finfo(x.dtype).tiny)


class _Jax(_Arrays):
    def __init__(self) -> None:
        import jax
        from jax.core import Tracer

        super().__init__(jax.numpy)
        self.jax, self.tracer = jax, Tracer
        sigmoid = jax.custom_jvp(super().sigmoid)
        sigmoid.defjvps(lambda t, p, u: t * p * (1 - p))
        self.sigmoid = sigmoid  # type: ignore[method-assign]

    def constant(self, x: Any) -> Any:
        return self.jax.lax.stop_gradient(x)

    def index_add(self, x: Any, index: Any, terms: Any) -> Any:
        x = self.broadcast_to(x, (max(len(x), len(terms)), x.shape[1]))
        return x.at[:, index].add(terms)

    def known_false(self, which: Any) -> bool:
        return not isinstance(which, self.tracer) and super().known_false(which)

    def repeat_while(self, state: Any, body: Any) -> Any:
        return self.jax.lax.while_loop(lambda now: now[-1], body, state)

    def if_any(self, which: Any, then: Any, state: Any, look: bool) -> Any:
        return self.jax.lax.cond(which.any(), then, lambda now: now, state)

    def cholesky(self, H: Any) -> tuple[Any, Any]:
        """The lower factor, and for which instances there is none."""
        factor = self.jax.lax.linalg.cholesky(H, symmetrize_input=False)
        return factor, ~self.isfinite(self.diagonal(factor)).all(-1)

    def cholesky_solve(self, factor: Any, rhs: Any) -> Any:
        solve = self.jax.lax.linalg.triangular_solve
        half = solve(factor, rhs[..., None], left_side=True, lower=True)
        return solve(factor, half, left_side=True, lower=True, transpose_a=True)[..., 0]


class _Torch:
    def __init__(self) -> None:
        import torch

        self.where, self.minimum, self.maximum, self.clip = torch.where, torch.minimum, torch.maximum, torch.clamp
        self.zeros_like, self.ones_like, self.full_like = torch.zeros_like, torch.ones_like, torch.full_like
        self.isfinite, self.isposinf, self.isneginf = torch.isfinite, torch.isposinf, torch.isneginf
        self.exp, self.log, self.sqrt, self.floor = torch.exp, torch.log, torch.sqrt, torch.floor
        self.stack, self.concatenate = torch.stack, torch.cat
        self.at_least, self.at_most, self.sigmoid = torch.clamp_min, torch.clamp_max, torch.sigmoid
        self.broadcast_to, self.broadcast = torch.broadcast_to, torch.broadcast_tensors
        self.diagonal_matrix = torch.diag_embed
        self.torch, self.inf = torch, math.inf

    def softplus(self, u: Any) -> Any:
        # torch's softplus drops the exponential above its threshold of 20, an error that a line search would see.
        return self.torch.nn.functional.softplus(u, threshold=40.0)

    def zeros(self, shape: Sequence[int], like: Any) -> Any:
        return like.new_zeros(shape)

    def counters(self, count: int, like: Any) -> Any:
        return self.torch.zeros(count, dtype=self.torch.int64, device=like.device)

    def eye(self, size: int, like: Any) -> Any:
        return self.torch.eye(size, dtype=like.dtype, device=like.device)

    def cast(self, x: Any, like: Any) -> Any:
        return x.to(like.dtype)

    def from_numpy(self, array: np.ndarray, like: Any) -> Any:
        return self.torch.from_numpy(array).to(like.device)

    def amax(self, x: Any) -> Any:
        return x.amax(-1)

    def amin_first(self, x: Any) -> Any:
        return x.amin(0)

    def constant(self, x: Any) -> Any:
        return x.detach()

    def index_add(self, x: Any, index: Any, terms: Any) -> Any:
        if x.shape[0] != terms.shape[0]:
            x = x.expand(max(x.shape[0], terms.shape[0]), -1)
        return x.index_add(1, index, terms)

    def diagonal(self, H: Any) -> Any:
        return H.diagonal(dim1=-2, dim2=-1)

    def known_false(self, which: Any) -> bool:
        from linsat._transforms import plain, tracing

        return not tracing(which) and not bool(plain(which).any())

    def if_any(self, which: Any, then: Any, state: Any, look: bool) -> Any:
        """then(state), unless the host may look and sees that it would change nothing."""
        return then(state) if not look or bool(which.any()) else state

    def repeat_while(self, state: Any, body: Any) -> Any:
        while bool(state[-1]):
            state = body(state)
        return state

    def cholesky(self, H: Any) -> tuple[Any, Any]:
        factor, info = self.torch.linalg.cholesky_ex(H)
        return factor, info > 0

    def cholesky_solve(self, factor: Any, rhs: Any) -> Any:
        return self.torch.cholesky_solve(rhs[:, :, None], factor).squeeze(-1)

    def solve(self, matrix: Any, rhs: Any) -> Any:
        return self.torch.linalg.solve(matrix, rhs[..., None])[..., 0]

    def eps(self, x: Any) -> float:
        return self.torch.finfo(x.dtype).eps

    def tiny(self, x: Any) -> float:
        return self.torch.finfo(x.dtype).tiny


_made: dict[str, Any] = {}


def _made_once(library: type) -> Any:
    if library.__name__ not in _made:
        _made[library.__name__] = library()
    return _made[library.__name__]
