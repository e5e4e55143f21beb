"""Shared set-up: one thread, so that timings and batch sizes never change what a test sees."""

import os

import pytest
import torch

torch.set_num_threads(int(os.environ.get("LINSAT_TEST_THREADS", "1")))


@pytest.fixture(autouse=True)
def _same_randomness() -> None:
    torch.manual_seed(0)
