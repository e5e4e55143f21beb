"""Plain threads for the kernel: it releases the GIL, and nothing survives a fork that should not."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

# Handing work to a thread costs about this long; less work than a few times that stays in the calling thread.
_WORTH_SECONDS = 2e-4
# One pool per process: after a fork the child must not use its parent's, whose threads it did not inherit.
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def run_shared(task: Callable[[int], None], count: int, seconds: float) -> None:
    """Run ``task(counter)`` in several threads at once; together they work through 0 .. count - 1.

    The task takes the next number from the counter, the address of a 64-bit integer, until none is left: a thread that
    wakes late or shares its core with something else takes fewer, and nobody waits for it. Uses
    ``torch.get_num_threads()`` threads, the calling one included, where ``seconds`` of work in total are worth it.
    """
    counter = ctypes.c_int64(0)
    at = ctypes.addressof(counter)
    if count <= 1 or seconds < _WORTH_SECONDS:
        task(at)
        return
    threads = min(torch.get_num_threads(), count)
    if threads <= 1:
        task(at)
        return
    key = (os.getpid(), threads)
    pool = _pools.get(key)
    if pool is None:
        pool = _pools.setdefault(key, ThreadPoolExecutor(threads - 1, thread_name_prefix="linsat"))
    others = [pool.submit(task, at) for _ in range(1, threads)]
    try:
        task(at)
    finally:
        for other in others:
            if not other.cancel():  # one that has not begun has nothing left to do
                other.exception()  # the counter must outlive every thread that uses it
    for other in others:
        if not other.cancelled():
            other.result()
