"""Living inside torch.compile, torch.export, vmap and jacrev: the few places where linsat must know of them.

torch is imported by the functions, so that what a user states works without it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import torch

P = ParamSpec("P")
R = TypeVar("R")
ONE_GRAPH_SINCE = (2, 13)  # of torch


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Have torch.compile run the function as it is, between two graphs.

    ``torch.compiler.disable`` does that too, but importing it costs seconds; here it is only touched while compiling.
    """
    disabled: Callable[P, R] | None = None  # made once, when first needed

    def between(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal disabled
        if disabled is None:
            disabled = sys.modules["torch"].compiler.disable(function)
        return disabled(*args, **kwargs)

    between._torchdynamo_disable = True  # type: ignore[attr-defined]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        torch = sys.modules.get("torch")
        if torch is not None and torch.compiler.is_compiling():
            return between(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def recorded(function: Callable[P, R]) -> Callable[P, R]:
    """Leave the function to torch.compile, which records it as one operator; an older torch than that runs it as it is.

    Dynamo before 2.13 does not follow everything that a call reads, so there the graph is broken around it.
    """
    import torch

    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return function if version >= ONE_GRAPH_SINCE else outside_graphs(function)


def constant_in_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Have torch.compile call the function while it traces and take the result as a constant of the graph.

    ``torch.compiler.assume_constant_result``, whose import costs seconds. Arguments must be constants, or objects that
    existed before tracing: the graph is rebuilt for others.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def constant_field(value: Any) -> Any:
    """A field of a setting, which torch.compile(dynamic=True) would make a variable of the graph if it is a float."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, float) or not torch.compiler.is_compiling():
        return value
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(value)


class Kept:
    """A place for what is made while torch.compile traces, as attributes: of a dictionary it sees old entries only."""

    def put(self, key: Hashable, value: object) -> str:
        """Keep a value; returns the name of the attribute."""
        name = "kept_" + "".join(c if c.isalnum() else "_" for c in repr(key))
        setattr(self, name, value)
        return name


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Inside, new tensors are plain ones, also within a transform, inference mode or a trace: for what is kept."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    off = torch._C._DisableFuncTorch(), torch._C.DisableTorchFunction(), _disable_current_modes()
    with off[0], off[1], off[2], torch.inference_mode(False):
        yield


@contextmanager
def transforms_allowed() -> Iterator[None]:
    """Inside, function transforms work also where an operator runs below them, as in a graph of a transform."""
    import torch

    key, excluded = torch._C.DispatchKey, torch._C._dispatch_tls_local_exclude_set()
    for transform in (key.FuncTorchDynamicLayerFrontMode, key.FuncTorchDynamicLayerBackMode, key.FuncTorchGradWrapper):
        excluded = excluded.remove(transform)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield


def mapped(tensor: torch.Tensor) -> bool:
    """Whether a function transform has wrapped the tensor: what it holds may differ per mapped instance."""
    import torch

    if torch.compiler.is_compiling():  # which cannot look into this function, and has resolved the transforms itself
        return False
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers themselves, without gradients and those of all mapped instances: for checks, which look at them."""
    return unwrapped(tensor).detach()


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that function transforms have wrapped; itself where none has."""
    import torch

    while mapped(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def plain_together(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`plain` of tensors of one shape, again of one shape, also where only some of them are mapped over."""
    if not any(map(mapped, tensors)):
        return tuple(tensor.detach() for tensor in tensors)
    import torch

    stacked = torch.stack(tensors)
    whole = plain(stacked)
    return whole.movedim(whole.dim() - stacked.dim(), 0).unbind()


def tracing(tensor: torch.Tensor | None = None) -> bool:
    """Whether operations are recorded instead of run, or the tensor has no numbers: nothing may look at them."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return True
    if tensor is None or type(tensor) is torch.Tensor:
        return tensor is not None and tensor.is_meta
    return tensor.is_meta or hasattr(tensor, "fake_mode")


def transforming(tensor: torch.Tensor | None = None) -> bool:
    """Whether a function transform (vmap, jacrev, ...) runs, or has made the tensor (is_grads_batched, a dual)."""
    import torch

    return torch._C._are_functorch_transforms_active() or (
        tensor is not None and (torch._C._functorch.is_legacy_batchedtensor(tensor) or has_tangent(tensor))
    )


def forward_mode() -> bool:
    """Whether tensors may carry tangents: inside forward_ad.dual_level, torch.func.jvp, jacfwd, hessian."""
    import torch

    return torch.autograd.forward_ad._current_level >= 0


def has_tangent(tensor: torch.Tensor) -> bool:
    """Whether the tensor carries a tangent of forward mode."""
    import torch

    if not forward_mode() or tensor.layout != torch.strided:
        return False
    if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView):
        return False  # inside an operator, below autograd, where tangents are not to be seen and asking is an error
    while torch._C._functorch.is_batchedtensor(tensor):  # vmap cannot look
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None


@constant_in_graphs
def transform_depth() -> int:
    """How many function transforms are running, one within another."""
    import torch

    return torch._C._functorch.maybe_current_level() or 0
