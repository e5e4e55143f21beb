"""Plain threads for the kernel: they release the GIL inside it, and nothing survives a fork that should not."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

# Handing work to a thread costs about this long; less work than a few times that stays in the calling thread.
_WORTH_SECONDS = 2e-4
# One pool per process: after a fork the child must not use its parent's, whose threads it did not inherit.
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def run_strided(task: Callable[[int, int], None], count: int, seconds: float) -> None:
    """Call ``task(first, step)`` so that together the calls cover 0 .. count - 1.

    Uses ``torch.get_num_threads()`` threads, the calling one included, where ``seconds`` of work in total are worth it.
    """
    threads = min(torch.get_num_threads(), count)
    if threads <= 1 or seconds < _WORTH_SECONDS:
        task(0, 1)
        return
    key = (os.getpid(), threads)
    pool = _pools.get(key)
    if pool is None:
        pool = _pools.setdefault(key, ThreadPoolExecutor(threads - 1, thread_name_prefix="linsat"))
    others = [pool.submit(task, first, threads) for first in range(1, threads)]
    task(0, threads)
    for other in others:
        other.result()
