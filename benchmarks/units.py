"""Units of work that some bars are stated in, timed in the process that is measured, before and after it.

sigmoid_s   one `torch.sigmoid` over the scores of the case
product_s   one product of two 1000 x 1000 float64 matrices
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

_EACH = 5


class Yardstick:
    """``stick = Yardstick(scores); work(); stick.read()``."""

    def __init__(self, scores: torch.Tensor) -> None:
        square = torch.rand(1000, 1000, dtype=torch.float64)
        self._works = {"sigmoid_s": lambda: torch.sigmoid(scores), "product_s": lambda: square @ square}
        self._before = self._time()

    def read(self) -> dict[str, float]:
        after = self._time()
        return {name: statistics.median(self._before[name] + after[name]) for name in self._works}

    def _time(self) -> dict[str, list[float]]:
        return {name: _repeat(work) for name, work in self._works.items()}


def _repeat(work: Callable[[], torch.Tensor]) -> list[float]:
    work()
    seconds = []
    for _ in range(_EACH):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds
