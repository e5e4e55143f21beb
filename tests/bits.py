"""What may be compared to the last bit: answers of the CPU kernel to the same scores.

Other arithmetic (torch's reductions, products of matrices and factorisations, so `nn.Linear` before the layer too) adds
up in an order that depends on the processor, the shapes and the number of threads. Hand both sides of a comparison the
same scores, and where the kernel is turned off compare to rounding.
"""

from __future__ import annotations

import numpy as np

from linsat.backends.cpu_kernel import native


def assert_same_answer(found, expected) -> None:
    """Two answers to the same scores, in other batches: equal to the last bit from the kernel, else to rounding."""
    if native.unavailable() is None:
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
