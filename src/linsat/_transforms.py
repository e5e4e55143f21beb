"""Living inside torch.compile, vmap and jacrev: the few places where linsat must know of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Have torch.compile run the function as it is, between two graphs.

    ``torch.compiler.disable`` does that too, but importing it costs seconds; here it is only touched while compiling.
    """

    disabled: Callable[P, R] | None = None  # made once, when first needed

    def between(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal disabled
        if disabled is None:
            disabled = torch.compiler.disable(function)
        return disabled(*args, **kwargs)

    between._torchdynamo_disable = True  # type: ignore[attr-defined]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return between(*args, **kwargs)
        return function(*args, **kwargs)

    return call


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Inside, new tensors are plain ones, even within a function transform or inference mode: for what is kept."""
    with torch._C._DisableFuncTorch(), torch.inference_mode(False):
        yield


def mapped(tensor: torch.Tensor) -> bool:
    """Whether a function transform has wrapped the tensor: what it holds may differ per mapped instance."""
    if torch.compiler.is_compiling():  # which cannot look into this function, and has resolved the transforms itself
        return False
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers themselves, without gradients and those of all mapped instances: for checks, which look at them."""
    while mapped(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.detach()


def plain_together(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`plain` of tensors of one shape, again of one shape, also where only some of them are mapped over."""
    if not any(map(mapped, tensors)):
        return tuple(tensor.detach() for tensor in tensors)
    stacked = torch.stack(tensors)
    found = plain(stacked)
    return found.movedim(found.dim() - stacked.dim(), 0).unbind()


def transforming(tensor: torch.Tensor | None = None) -> bool:
    """Whether a function transform (vmap, jacrev, ...) is running, or has made the tensor (is_grads_batched)."""
    functorch = torch._C._functorch
    return functorch.peek_interpreter_stack() is not None or (
        tensor is not None and functorch.is_legacy_batchedtensor(tensor)
    )
