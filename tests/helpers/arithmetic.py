"""Whose arithmetic a test may rely on.

Answers of the CPU kernel to the same scores may be compared to the last bit, whatever their batch. Other arithmetic
(torch's reductions, products of matrices and factorisations, so `nn.Linear` before the layer too) adds up in an order
that depends on the processor, the shapes and the number of threads: there a test compares to rounding.
"""

from __future__ import annotations

import numpy as np
import pytest

from linsat.native import binding

HAS_KERNEL = binding.unavailable() is None
needs_kernel = pytest.mark.skipif(not HAS_KERNEL, reason=f"no kernel: {binding.unavailable()}")
NEWTON_BACKENDS = ("kernel", "arrays") if HAS_KERNEL else ("arrays",)


def assert_same_answer(found, expected) -> None:
    """Two answers to the same scores, in other batches: equal to the last bit from the kernel, else to rounding."""
    if HAS_KERNEL:
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
