"""Plain threads over the instances of a batch, for kernels that release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def available_threads() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_blocks(
    task: Callable[[int, int], None],
    count: int,
    *,
    threads: int | None = None,
    block: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Call ``task(first, last)`` on consecutive blocks that together cover ``range(count)``.

    Args:
        task: works on instances first .. last - 1, and on nothing else, so that the order of blocks cannot matter.
        count: how many instances there are.
        threads: how many at once; None for every processor. 1 stays in the calling thread.
        block: instances per call; blocks are handed out as threads become free, so slow ones do not hold up the rest.
        progress: called in the calling thread as ``progress(done, count)`` when blocks are finished.

    An exception of a task is raised here, once the blocks already running have ended.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}; expected a positive number, or None for every processor.")
    spans = [(first, min(first + block, count)) for first in range(0, count, block)]
    workers = min(available_threads() if threads is None else threads, len(spans))
    if workers <= 1:
        for first, last in spans:
            task(first, last)
            if progress is not None:
                progress(last, count)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="linsat-studies") as pool:
        running = [pool.submit(task, first, last) for first, last in spans]
        done = 0
        try:
            for future, (first, last) in zip(running, spans):
                future.result()
                done += last - first
                if progress is not None:
                    progress(done, count)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
