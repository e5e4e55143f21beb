"""A limit of processor time for a block."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def time_limit(seconds: float, error: type[BaseException] = TimeoutError) -> Iterator[None]:
    """Raises ``error`` in the block after so many seconds of processor time: a busy machine changes nothing."""

    def stop(*_: object) -> None:
        raise error

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
