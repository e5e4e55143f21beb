"""Shared set-up: one thread, so that timings and batch sizes never change what a test sees.

``LINSAT_TEST_THREADS=4`` in the environment asks for more: no verdict may depend on them (scripts/machines.py).
"""

import os
import warnings

import pytest
import torch

torch.set_num_threads(int(os.environ.get("LINSAT_TEST_THREADS", "1")))


@pytest.fixture(autouse=True)
def _same_randomness() -> None:
    torch.manual_seed(0)


@pytest.fixture
def no_warning_allowed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
