"""Plain threads for the kernel: they release the GIL inside it, and nothing survives a fork that should not."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

# Handing work to a thread costs about this long; less work than a few times that stays in the calling thread.
_WORTH_SECONDS = 2e-4
# One pool per process: after a fork the child must not use its parent's, whose threads it did not inherit.
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _one_thread_after_a_fork() -> None:
    """A forked child works with one thread, as torch's own data loaders do.

    OpenMP's threads do not survive a fork: in a child of a process that has used several, the first large tensor
    operation, such as building a constraint set, would wait for them for ever.
    """
    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_one_thread_after_a_fork)


def run_shared(task: Callable[[np.ndarray], None], count: int, seconds: float) -> None:
    """Run ``task(counter)`` in several threads at once; together they work through 0 .. count - 1.

    The task takes the next number from the counter, an integer array (1,), until none is left: a thread that wakes late
    or shares its core with something else takes fewer, and nobody waits for it. Uses ``torch.get_num_threads()``
    threads, the calling one included, where ``seconds`` of work in total are worth it.
    """
    counter = np.zeros(1, dtype=np.int64)
    threads = min(torch.get_num_threads(), count)
    if threads <= 1 or seconds < _WORTH_SECONDS:
        task(counter)
        return
    key = (os.getpid(), threads)
    pool = _pools.get(key)
    if pool is None:
        pool = _pools.setdefault(key, ThreadPoolExecutor(threads - 1, thread_name_prefix="linsat"))
    others = [pool.submit(task, counter) for _ in range(1, threads)]
    task(counter)
    for other in others:
        if not other.cancel():  # one that has not begun has nothing left to do
            other.result()
