"""Threads, forked and spawned processes, data loaders, an asyncio server: the same numbers, no deadlock, no leak.

`tests/core/test_kernel.py` has the parallel tests of the kernel alone; here it is what an application does.
"""

from __future__ import annotations

import asyncio
import mmap
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import linsat
from fuzz import soak

_SECONDS = 120  # a deadlock is told from a slow machine by this
_FORKED = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

SIZES = (3, 4, 5, 6, 7, 8, 9, 10)


def closed_form(y: np.ndarray, total: float, tau: float) -> np.ndarray:
    """x = sigmoid((y + mu) / tau) with sum x = total, the multiplier by bisection: the layer's simplex-like sets."""
    low, high = np.full(len(y), -1e3), np.full(len(y), 1e3)
    for _ in range(200):
        mu = (low + high) / 2
        more = (1 / (1 + np.exp(-np.clip((y + mu[:, None]) / tau, -500, 500)))).sum(1) < total
        low, high = np.where(more, mu, low), np.where(more, high, mu)
    return 1 / (1 + np.exp(-np.clip((y + mu[:, None]) / tau, -500, 500)))


def scores(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, n)).normal(size=(6, n))


def forward_and_gradient(cons: linsat.Constraints, y: np.ndarray, tau: float) -> tuple[np.ndarray, np.ndarray]:
    leaf = torch.tensor(y, requires_grad=True)
    x = linsat.project(leaf, cons, tau=tau)
    (x * torch.arange(y.shape[1], dtype=x.dtype)).sum().backward()
    return x.detach().numpy(), leaf.grad.numpy()


def gradient_by_hand(x: np.ndarray, tau: float) -> np.ndarray:
    """Of sum_i i x_i: with s = x (1 - x) / tau and weights s / sum s, dL/dy = s (w - weighted mean of w)."""
    s, w = x * (1 - x) / tau, np.arange(x.shape[1])
    return s * (w - (s * w).sum(1, keepdims=True) / s.sum(1, keepdims=True))


def test_eight_threads_each_with_its_own_set_and_gradients():
    """Sets are made, compiled and dropped inside the threads, at temperatures of their own."""
    begin = threading.Barrier(len(SIZES))

    def work(n: int) -> float:
        tau, worst = 0.05 * n, 0.0
        y = scores(n)
        x = closed_form(y, 2.0, tau)
        gradient = gradient_by_hand(x, tau)
        begin.wait(_SECONDS)
        for _ in range(8):
            found, slope = forward_and_gradient(linsat.constraints.top_k(n, 2), y, tau)
            worst = max(worst, float(np.abs(found - x).max()), float(np.abs(slope - gradient).max()))
        return worst

    with ThreadPoolExecutor(len(SIZES)) as pool:
        for future in [pool.submit(work, n) for n in SIZES]:
            assert future.result(timeout=_SECONDS) < 1e-8


def test_eight_threads_share_one_set_that_none_has_used_yet():
    cons = linsat.constraints.doubly_stochastic(5)
    y = torch.randn(3, 25, dtype=torch.float64)
    begin = threading.Barrier(8)

    def work(_: int) -> torch.Tensor:
        begin.wait(_SECONDS)
        return linsat.project(y, cons, tau=0.2)

    with ThreadPoolExecutor(8) as pool:
        found = [future.result(timeout=_SECONDS) for future in [pool.submit(work, i) for i in range(8)]]
    for x in found:
        assert torch.equal(x, found[0])
        assert float((x.reshape(-1, 5, 5).sum(1) - 1).abs().max()) < 1e-8


def _in_another_process(n: int, queue) -> None:
    """Makes the set, projects and differentiates; what a worker of any kind does."""
    torch.set_num_threads(1)
    y = scores(n)
    x, gradient = forward_and_gradient(linsat.constraints.top_k(n, 2), y, 0.3)
    expected = closed_form(y, 2.0, 0.3)
    queue.put((n, float(np.abs(x - expected).max()), float(np.abs(gradient - gradient_by_hand(expected, 0.3)).max())))


@_FORKED
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_make_sets_and_differentiate(method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    linsat.project(torch.zeros(2, 3), linsat.constraints.simplex(3))  # the parent has used it before
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    count = 4 if method == "fork" else 2  # a spawned one imports everything again
    workers = [context.Process(target=_in_another_process, args=(n, queue)) for n in SIZES[:count]]
    for worker in workers:
        worker.start()
    found = [queue.get(timeout=_SECONDS) for _ in workers]
    for worker in workers:
        worker.join(timeout=_SECONDS)
        assert worker.exitcode == 0
    assert sorted(n for n, _, _ in found) == list(SIZES[:count])
    assert max(max(errors) for _, *errors in found) < 1e-8


class _Collate:
    """The layer inside the collate function, its set made once in the main process."""

    def __init__(self) -> None:
        self.cons = linsat.constraints.top_k(5, 2)

    def __call__(self, rows):
        return linsat.project(torch.stack(rows), self.cons, tau=0.3)


@_FORKED
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_data_loader_with_four_workers():
    y = np.random.default_rng(0).normal(size=(24, 5))
    loader = torch.utils.data.DataLoader(
        list(torch.from_numpy(y)), batch_size=3, num_workers=4, collate_fn=_Collate(), timeout=_SECONDS
    )
    for _ in range(2):  # epochs: workers end and start again
        found = torch.cat(list(loader)).numpy()
        np.testing.assert_allclose(found, closed_form(y, 2.0, 0.3), rtol=0, atol=1e-8)


def test_an_asyncio_server_calls_it_from_an_executor():
    """Requests of several clients at once; the loop answers others meanwhile."""
    cons = linsat.constraints.top_k(5, 2)

    async def serve(pool: ThreadPoolExecutor) -> tuple[list[np.ndarray], int]:
        loop = asyncio.get_running_loop()
        beats, served = 0, threading.Event()

        async def heart() -> None:
            nonlocal beats
            while not served.is_set():
                beats += 1
                await asyncio.sleep(0.001)

        async def request(y: np.ndarray) -> np.ndarray:
            return await loop.run_in_executor(pool, lambda: linsat.project(y, cons, tau=0.3))

        beating = loop.create_task(heart())
        requests = [request(scores(5, seed)) for seed in range(40)]
        answers = await asyncio.wait_for(asyncio.gather(*requests), _SECONDS)
        served.set()
        await beating
        return answers, beats

    with ThreadPoolExecutor(4) as pool:
        answers, beats = asyncio.run(serve(pool))
    assert beats > 1
    for seed, x in enumerate(answers):
        np.testing.assert_allclose(x, closed_form(scores(5, seed), 2.0, 0.3), rtol=0, atol=1e-8)


def test_an_error_in_one_thread_leaves_the_others_alone():
    cons = linsat.constraints.top_k(5, 2)
    good, bad = scores(5), scores(5)
    bad[3, 2] = np.nan
    expected = closed_form(good, 2.0, 0.3)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(linsat.project, bad if i % 3 == 0 else good, cons, tau=0.3) for i in range(30)]
        for i, future in enumerate(futures):
            if i % 3 == 0:
                with pytest.raises(linsat.ConstraintError, match=r"instance 3, variable x\[2\]"):
                    future.result(timeout=_SECONDS)
            else:
                np.testing.assert_allclose(future.result(timeout=_SECONDS), expected, rtol=0, atol=1e-8)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_does_not_grow():
    """The short version of ``python -m fuzz.faults soak``, which makes a million projections."""
    memory = soak.soak(6_000)
    assert memory["projections"] >= 6_000
    assert memory["growth_mb"] < 2.5, memory  # 400 bytes a projection


def test_the_readings_see_a_leak():
    """What the test above relies on: memory that is kept shows."""
    before = soak.resident_mb()
    with mmap.mmap(-1, 8 * 2**20) as kept:  # fresh pages: an array might be given some that were freed before
        kept.write(b"x" * len(kept))
        assert soak.resident_mb() - before > 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@_FORKED
def test_a_set_built_in_a_raw_fork_of_a_threaded_process():
    """os.fork by hand while the parent runs torch and the kernel with several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        linsat.project(torch.rand(300, 144), linsat.constraints.doubly_stochastic(12))
        torch.ones(400, 400) @ torch.ones(400, 400)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                x = linsat.project(torch.rand(300, 144), linsat.constraints.doubly_stochastic(12))
                torch.set_num_threads(1)  # what follows is torch's, and as large
                code = 0 if float((x.reshape(-1, 12, 12).sum(1) - 1).abs().max()) < 1e-5 else 3
            finally:
                os._exit(code)
        assert _exit_code(child, _SECONDS) == 0
    finally:
        torch.set_num_threads(before)


def _exit_code(child: int, seconds: float) -> int | None:
    """None, and a killed child, where it does not end."""
    ended = threading.Event()
    codes: list[int] = []

    def wait() -> None:
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    if not ended.wait(seconds):
        os.kill(child, 9)
        ended.wait(10)
        return None
    return codes[0]
