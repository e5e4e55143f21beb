"""Plain threads for the kernel: it releases the GIL, and nothing survives a fork that should not."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

# Handing work to a thread costs about this long; less work than a few times that stays in the calling thread.
_WORTH_SECONDS = 2e-4
# One pool per process: after a fork the child must not use its parent's, whose threads it did not inherit.
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def run_shared(task: Callable[[], None], most: int | None, seconds: float) -> None:
    """Run ``task`` in several threads at once, which share the work among themselves; at most ``most`` are of use.

    Each task takes the next instance until none is left: a thread that wakes late or shares its core with
    something else does less, and nothing waits for it. Uses ``torch.get_num_threads()`` threads, the calling one
    included, where ``seconds`` of work in total are worth it.
    """
    if (most is not None and most <= 1) or seconds < _WORTH_SECONDS:
        task()
        return
    threads = torch.get_num_threads() if most is None else min(torch.get_num_threads(), most)
    if threads <= 1:
        task()
        return
    key = (os.getpid(), threads)
    pool = _pools.get(key)
    if pool is None:
        pool = _pools.setdefault(key, ThreadPoolExecutor(threads - 1, thread_name_prefix="linsat"))
    others = [pool.submit(task) for _ in range(1, threads)]
    try:
        task()
    finally:
        for other in others:
            if not other.cancel():  # one that has not begun has nothing left to do
                other.exception()  # what the tasks share must outlive every thread that uses it
    for other in others:
        if not other.cancelled():
            other.result()
