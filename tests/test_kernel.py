"""The fused kernel: the same numbers as the torch path on every family, alone and under threads, forks and failures."""

import copy
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import numba
import numpy as np
import pytest
import torch

import linsat
from linsat import _kernels
from linsat._kernels.newton import _claim
from linsat._kernels.threads import run_shared
from oracles import random_system

KERNEL, TORCH = linsat.Newton(backend="kernel"), linsat.Newton(backend="torch")
F64 = torch.float64

FAMILIES = {
    "simplex": linsat.constraints.simplex(7),
    "top_k": linsat.constraints.top_k(9, 3),
    "at most k": linsat.constraints.top_k(9, 3, exactly=False),
    "budget": linsat.constraints.budget([1.0, -2.0, 0.5, 3.0], 1.5),
    "doubly stochastic": linsat.constraints.doubly_stochastic(6),
    "matching": linsat.constraints.matching(5, 4, at_most=3),
    "capacity": linsat.constraints.capacity_assignment(6, 3, [2, 2, 3]),
    "ranking": linsat.constraints.ranking(5, groups="aabbb", at_least={"a": 0.4}),
    "tour": linsat.constraints.tour(8, 0, 7, priority=2, within=3),
    "tours": linsat.constraints.tour(6, [0, 1, 2, 3], [5, 4, 0, 1]),
    "portfolio": linsat.constraints.portfolio(40, range(6), 0.5),
    "box": linsat.Constraints(A=[[1.0, 2.0, -1.0]], b=[1.5], E=[[1.0, 1.0, 1.0]], f=[2.0], lower=-1.0, upper=3.0),
    "forced pairs": linsat.Constraints(A=[[1.0, 1, 0], [0, 0, 1]], b=[1.0, 0.4], C=[[1.0, 1.0, 0]], d=[1.0]),
    "many groups": linsat.Constraints(A=np.random.default_rng(0).uniform(-1, 1, (12, 15)), b=2.0),
}


def _gradient(cons, scores, tau, solver):
    scores = scores.clone().requires_grad_(True)
    x = linsat.project(scores, cons, tau=tau, solver=solver)
    weights = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape)
    (x * weights).sum().backward()
    return x.detach(), scores.grad


@pytest.mark.parametrize("tau", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("family", FAMILIES)
def test_kernel_and_torch_agree(family, tau):
    cons = FAMILIES[family]
    scores = torch.randn(4, cons.num_variables, dtype=F64)
    x, gradient = _gradient(cons, scores, tau, KERNEL)
    expected_x, expected_gradient = _gradient(cons, scores, tau, TORCH)
    assert float((x - expected_x).abs().max()) <= 1e-8
    assert float((gradient - expected_gradient).abs().max()) <= 1e-6 * max(1.0, float(expected_gradient.abs().max()))


@pytest.mark.parametrize("kind", ["positive", "signed", "boundary"])
def test_torch_path_on_random_systems(kind):
    """The torch path serves other devices; the random systems of test_solve run on the kernel."""
    rng = np.random.default_rng(300)
    for _ in range(60):
        system = random_system(rng, kind)
        cons = linsat.Constraints(**system.arguments())
        tau = float(rng.choice([1.0, 0.1, 0.01, 0.001]))
        scores = rng.normal(size=len(system.point))
        by_torch = linsat.solve(scores, cons, tau=tau, solver=TORCH)
        assert by_torch.converged
        assert system.violation(by_torch.x) <= 1e-6
        np.testing.assert_allclose(linsat.project(scores, cons, tau=tau), by_torch.x, atol=1e-6)


def test_saturated_scores_do_not_stall():
    """Sorting scores far apart: almost everything saturates and the potential must be exact to see progress."""
    cons = linsat.constraints.permutation(4)
    values = torch.rand(500, 4, 1, dtype=F64)
    scores = (5 * values * torch.linspace(-1, 1, 4, dtype=F64)).flatten(1)
    for solver in (TORCH, KERNEL):
        assert linsat.solve(scores, cons, tau=0.01, solver=solver).converged.all()


def test_bit_equal_whatever_the_batch_and_the_threads():
    cons = linsat.constraints.tour(10, 0, 9)
    scores = torch.randn(64, 100)
    alone = torch.stack([linsat.project(row, cons) for row in scores])
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            assert torch.equal(linsat.project(scores, cons), alone)
    finally:
        torch.set_num_threads(before)


def test_infeasible_mates_change_no_bit():
    base = linsat.constraints.doubly_stochastic(4)
    sides = np.ones((5, 8))
    bad = sides.copy()
    bad[1, 0], bad[3] = 9.0, np.linspace(0.5, 1.5, 8)
    scores = torch.randn(5, 16)
    mixed = linsat.solve(scores, base.with_rhs(f=bad), on_failure="ignore")
    clean = linsat.solve(scores, base.with_rhs(f=sides))
    assert mixed.status.tolist()[1] == "infeasible"
    for i in (0, 2, 4):
        assert torch.equal(mixed.x[i], clean.x[i])


def test_second_order_gradients_pass_through_the_short_way():
    cons = linsat.constraints.doubly_stochastic(3)
    scores = torch.randn(2, 9, dtype=F64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda y: linsat.project(y, cons, tau=0.5), (scores,), atol=1e-5)


def test_nan_scores_and_limits_are_reported_from_the_kernel():
    cons = linsat.constraints.doubly_stochastic(3)
    scores = torch.zeros(2, 9)
    scores[1, 4] = float("nan")
    with pytest.raises(linsat.ConstraintError, match="instance 1, variable 4"):
        linsat.project(scores, cons)
    with pytest.warns(linsat.LinSATWarning, match="step_limit"):
        linsat.project(torch.rand(2, 9), cons, tau=0.001, solver=linsat.Newton(max_steps=1))
    with pytest.raises(linsat.ConvergenceError):
        linsat.project(torch.rand(2, 9), cons, tau=0.001, solver=linsat.Newton(max_steps=1), on_failure="raise")


def test_eight_threads_with_different_sets_give_the_same_numbers():
    sets = list(FAMILIES.values())[:8]
    scores = [torch.randn(8, cons.num_variables) for cons in sets]
    expected = [_gradient(cons, y, 0.1, None) for cons, y in zip(sets, scores, strict=True)]
    fresh = [copy.deepcopy(cons) for cons in sets]  # compiled while the others run
    failures: list[str] = []

    def work(i: int) -> None:
        for _ in range(10):
            x, gradient = _gradient(fresh[i], scores[i], 0.1, None)
            if not (torch.equal(x, expected[i][0]) and torch.equal(gradient, expected[i][1])):
                failures.append(f"set {i}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def _forked(cons, scores, expected, queue):
    queue.put(bool(torch.equal(linsat.project(scores, cons), expected)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_four_forked_workers_give_the_same_numbers():
    cons = linsat.constraints.doubly_stochastic(12)
    scores = torch.rand(200, 144)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = linsat.project(scores, cons)  # the parent's pool of threads is alive when it forks
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        workers = [context.Process(target=_forked, args=(cons, scores, expected, queue)) for _ in range(4)]
        for worker in workers:
            worker.start()
        assert [queue.get(timeout=60) for _ in workers] == [True] * 4
        for worker in workers:
            worker.join(timeout=60)
    finally:
        torch.set_num_threads(before)


def _collate(rows):
    return linsat.project(torch.stack(rows), linsat.constraints.doubly_stochastic(3))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_inside_the_collate_function_of_a_data_loader():
    data = [torch.rand(9) for _ in range(16)]
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, collate_fn=_collate)
    found = torch.cat(list(loader))
    assert torch.equal(found, linsat.project(torch.stack(data), linsat.constraints.doubly_stochastic(3)))


def test_threads_share_the_numbers_and_each_is_taken_once():
    count = 200_000
    taken = np.zeros(count, dtype=np.int64)
    torch.set_num_threads(4)
    try:
        run_shared(lambda counter: _take(counter, taken), count, seconds=1.0)
    finally:
        torch.set_num_threads(1)
    assert (taken == 1).all()


@numba.njit(nogil=True)
def _take(counter, taken):
    n = _claim(counter)
    while n < taken.size:
        taken[n] += 1
        n = _claim(counter)


def test_an_error_in_a_worker_reaches_the_caller():
    caller, begun = threading.get_ident(), threading.Event()

    def fails(counter: np.ndarray) -> None:
        if threading.get_ident() == caller:
            assert begun.wait(timeout=20)
        else:
            begun.set()
            raise RuntimeError("from a worker")

    torch.set_num_threads(3)
    try:
        with pytest.raises(RuntimeError, match="from a worker"):
            run_shared(fails, 20, seconds=1.0)
    finally:
        torch.set_num_threads(1)


def _python(script: str, **environment: str) -> subprocess.CompletedProcess:
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)


def test_without_numba_the_torch_path_serves():
    script = (
        "import sys; sys.modules['numba'] = None\n"
        "import torch, linsat, linsat.cli\n"
        "x = linsat.project(torch.rand(2, 9), linsat.constraints.doubly_stochastic(3))\n"
        "assert float((x.reshape(2, 3, 3).sum(1) - 1).abs().max()) < 1e-5\n"
        "linsat.cli.main(['info'])\n"
    )
    done = _python(script)
    assert done.returncode == 0, done.stderr
    assert "numba cannot be imported" in done.stdout
    assert "the torch path serves" in done.stdout


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_where_numba_cannot_compile_the_torch_path_serves(name):
    script = (
        "import torch, numba, linsat, linsat.cli\n"
        "from linsat._kernels import newton\n"
        "def fails(*arguments): raise numba.core.errors.LoweringError('no backend')\n"
        f"newton.{name} = fails\n"
        "y = torch.rand(2, 9, requires_grad=True, dtype=torch.float64)\n"
        "project = lambda y: linsat.project(y, linsat.constraints.doubly_stochastic(3))\n"
        "assert torch.autograd.gradcheck(project, y)\n"
        "assert float((project(y).reshape(2, 3, 3).sum(1) - 1).detach().abs().max()) < 1e-8\n"
        "linsat.cli.main(['info'])\n"
        "linsat.project(y, linsat.constraints.simplex(9), solver=linsat.Newton(backend='kernel'))\n"
    )
    done = _python(script)
    assert "the kernel cannot be compiled (LoweringError" in done.stdout, done.stderr
    assert "the torch path serves" in done.stdout
    assert "backend='kernel' cannot be used here: the kernel cannot be compiled" in done.stderr


def test_the_kernel_can_be_turned_off_and_required():
    script = (
        "import torch, linsat\n"
        "cons = linsat.constraints.simplex(3)\n"
        "linsat.project(torch.zeros(3), cons)\n"
        "try:\n    linsat.project(torch.zeros(3), cons, solver=linsat.Newton(backend='kernel'))\n"
        "except linsat.ConstraintError as error:\n    print(error)\n"
    )
    done = _python(script, LINSAT_KERNEL="off")
    assert "turned off by LINSAT_KERNEL" in done.stdout
    assert _kernels.load().available


def test_importing_linsat_does_not_load_numba():
    done = _python("import sys, linsat; sys.exit('numba' in sys.modules)")
    assert done.returncode == 0
    script = "import time, torch; t = time.process_time(); import linsat; print(time.process_time() - t)"
    assert min(float(_python(script).stdout) for _ in range(3)) < 1.0


def test_first_call_of_a_fresh_process_with_a_warm_cache():
    script = (
        "import time, torch, linsat; y = torch.rand(4, 9, requires_grad=True)\n"
        "t = time.process_time(); linsat.project(y, linsat.constraints.doubly_stochastic(3)).sum().backward()\n"
        "print(time.process_time() - t)"
    )
    # Time of the processor, not of the clock: other programs must not decide a test.
    assert _python(script).returncode == 0  # fills the cache if this is the first run ever
    assert min(float(_python(script).stdout) for _ in range(3)) < 2.0


def test_info_lists_what_matters(capsys):
    from linsat.cli import main

    assert main(["info"]) == 0
    shown = capsys.readouterr().out
    for name in ("linsat", "torch", "numba", "kernel", "threads"):
        assert name in shown
    with pytest.raises(SystemExit) as caught:
        main(["dance"])
    assert caught.value.code == 2


def test_an_assignment_of_ninety_thousand_variables_takes_the_large_path():
    n = 300
    cons = linsat.constraints.doubly_stochastic(n)
    start = time.perf_counter()
    x = linsat.project(torch.rand(n * n, dtype=F64), cons, tau=0.05)
    assert time.perf_counter() - start < 60
    assert float(cons.violation(x)) <= 1e-6
