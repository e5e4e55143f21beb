"""What was made lately, found again by the tensors it was made from: a small cache that is safe among threads."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class Recent(Generic[T]):
    """The ``most`` values used last, by key."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._kept: OrderedDict[Hashable, T] = OrderedDict()

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of the key, made by the first who asks."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return self._kept[key]


class MadeFrom(Generic[T]):
    """Values made from constant tensors: found by the tensors themselves, else by what they hold."""

    def __init__(self, most: int) -> None:
        self._by_identity: Recent[tuple[Sequence[torch.Tensor], T]] = Recent(most)
        self._by_content: Recent[T] = Recent(most)

    def get_or_make(self, key: Hashable, tensors: Sequence[torch.Tensor], make: Callable[[], T]) -> T:
        """The value of these tensors, which are kept with it, so that no other can take their identity."""

        def look() -> tuple[Sequence[torch.Tensor], T]:
            return tensors, self._by_content.get_or_make((key, *map(content, tensors)), make)

        return self._by_identity.get_or_make((key, *map(_identity, tensors)), look)[1]


def content(tensor: torch.Tensor) -> Hashable:
    """Equal for tensors that hold the same; reads every number."""
    import torch

    # Flattened by a copy, because torch gives a view of no numbers at all strides that forbid to see it as bytes.
    flat = tensor.detach().cpu().resolve_neg().reshape(-1).clone(memory_format=torch.contiguous_format)
    digest = hashlib.blake2b(flat.view(torch.uint8).numpy().tobytes(), digest_size=16).digest()
    return str(tensor.device), str(tensor.dtype), tuple(tensor.shape), digest


def _identity(tensor: torch.Tensor) -> Hashable:
    return id(tensor), 0 if tensor.is_inference() else tensor._version
