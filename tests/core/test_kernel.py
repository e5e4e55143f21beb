"""The native core: iterates and gradients of the torch back end, alone and under threads, forks and failures."""

import copy
import ctypes
import multiprocessing
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import linsat
from linsat.arrays.presolve import propagate
from linsat.machine import print_info
from linsat.native import binding
from linsat.objectives import Entropy, Euclidean
from linsat.status import Status
from linsat.torch.call import as_tensors
from tests.helpers.arithmetic import needs_kernel
from tests.helpers.oracles import random_system
from tests.helpers.statements import KERNEL, TORCH, Stated

F64 = torch.float64

HEADERS = Path(__file__).parents[2] / "src" / "linsat" / "native"  # an installed package has none

pytestmark = needs_kernel

_RNG = np.random.default_rng(0)
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
    "many groups": linsat.Constraints(A=_RNG.uniform(-1, 1, (12, 15)), b=2.0),
    "scattered": linsat.Constraints(A=_RNG.uniform(0, 1, (9, 30)) * (_RNG.random((9, 30)) < 0.3), b=1.0),
    "one-sided box": linsat.Constraints(A=_RNG.uniform(-1, 1, (12, 15)), b=0.1, lower=0.0, upper=np.inf),
    "no box": linsat.Constraints(A=_RNG.uniform(-1, 1, (12, 15)), b=0.1, lower=-np.inf, upper=np.inf),
    "no rows": linsat.Constraints(lower=[0.0, -1.0, 2.0], upper=[1.0, 1.0, 3.0]),
}
UNBOUNDED = {"one-sided box", "no box"}
# Rows that depend on each other have duals of which only some combinations are determined; x and its gradient are.
DEPENDENT = {"doubly stochastic", "ranking", "tour", "tours", "forced pairs", "matching", "capacity"}
OBJECTIVES = {
    "paper, warm": Entropy(1.0),
    "paper": Entropy(0.1),
    "paper, cold": Entropy(0.01),
    "entropy": Entropy(0.1, slack="none"),
    "entropy, cold": Entropy(0.01, slack="none"),
    "euclidean": Euclidean(),
    "weighted": Euclidean(weights=1.0),
}


def _stated(cons, objective, scores):
    """A call with these arguments, the weights a number for each variable."""
    if isinstance(objective, Euclidean) and objective.weights is not None:
        objective = Euclidean(weights=torch.linspace(0.5, 2.0, scores.shape[1], dtype=F64))
    return Stated.of(cons, objective, scores)


def _cases():
    for family in FAMILIES:
        for name, objective in OBJECTIVES.items():
            if not (family in UNBOUNDED and objective.finite_box):
                yield pytest.param(family, name, id=f"{family}-{name}")


@pytest.mark.parametrize(("family", "objective"), list(_cases()))
def test_iterates_are_those_of_the_torch_back_end(family, objective):
    """The duals after 1, 2, 3 and all steps; of dependent rows the point that they stand for."""
    cons = FAMILIES[family]
    stated = _stated(cons, OBJECTIVES[objective], torch.randn(4, cons.num_variables, dtype=F64))
    for steps in (1, 2, 3, 200):
        ours, theirs = (stated.solve(linsat.Newton(max_steps=steps, backend=b)) for b in ("kernel", "arrays"))
        assert torch.equal(ours.codes, theirs.codes)
        tol = 1e-12 if steps < 3 else 1e-9  # errors grow as the steps multiply them by the condition of H
        # Among saturated variables a dual is hardly determined, and the last corrections are lost in rounding.
        if family not in DEPENDENT and (steps < 3 or "cold" not in objective):
            assert _size(ours.duals - theirs.duals) <= tol * (1 + _size(theirs.duals))
        assert _size(ours.x - theirs.x) <= tol * (1 + _size(theirs.x)) * (1 if family not in DEPENDENT else 1e3)


def _size(tensor):
    return float(tensor.abs().max()) if tensor.numel() else 0.0


@pytest.mark.parametrize(("family", "objective"), list(_cases()))
def test_gradients_are_those_of_the_adjoint(family, objective):
    """To the scores; and to right-hand sides, the adjoint itself, where rows do not depend on each other."""
    cons = FAMILIES[family]
    stated = _stated(cons, OBJECTIVES[objective], torch.randn(4, cons.num_variables, dtype=F64))
    answer = stated.solve(KERNEL)
    grad_x = torch.randn_like(stated.scores)
    ours, theirs = (stated.pull_back(solver, answer, grad_x) for solver in (KERNEL, TORCH))
    assert _size(ours[0] - theirs[0]) <= 1e-9 * (1 + _size(theirs[0]))
    if family not in DEPENDENT and "entropy" in objective:
        assert _size(ours[2] - theirs[2]) <= 1e-7 * (1 + _size(theirs[2]))


@pytest.mark.parametrize("objective", [Entropy(0.3), Entropy(0.3, slack="none"), Euclidean()], ids=str)
def test_gradients_are_finite_differences(objective):
    """Through the public function, also of right-hand sides, temperatures and weights, by the kernel alone."""
    base = linsat.Constraints(A=[[1.0, 2.0, 0.5, 0.0]], b=[1.0], E=[[1.0, 1.0, 1.0, 1.0]], f=[1.6])
    scores = torch.tensor([[0.9, 0.2, 0.4, 0.1], [0.1, 0.8, 0.3, 0.7]], dtype=F64, requires_grad=True)
    b = torch.tensor([[0.9], [1.1]], dtype=F64, requires_grad=True)

    def project(y, b, parameter):
        changed = Entropy(parameter, objective.slack) if isinstance(objective, Entropy) else Euclidean(parameter)
        return linsat.project(
            y, base.with_rhs(b=b), objective=changed, solver=linsat.Newton(tol=1e-12, backend="kernel")
        )

    shape = (2,) if isinstance(objective, Entropy) else (2, 4)
    parameter = torch.linspace(0.3, 0.6, int(np.prod(shape)), dtype=F64).reshape(shape).requires_grad_(True)
    assert torch.autograd.gradcheck(project, (scores, b, parameter), atol=1e-6)
    shared = torch.linspace(0.5, 1.0, 4, dtype=F64).requires_grad_(True)
    if isinstance(objective, Euclidean):
        assert torch.autograd.gradcheck(lambda q: project(scores.detach(), b.detach(), q), (shared,), atol=1e-6)


def test_gradients_of_duals_and_coefficients():
    """By the core in closed form; second derivatives go through the adjoint on arrays."""
    scores = torch.tensor([[0.9, 0.2, 0.4], [0.1, 0.8, 0.3]], dtype=F64, requires_grad=True)
    A = torch.tensor([[1.0, 2.0, 0.5]], dtype=F64, requires_grad=True)
    tight = linsat.Newton(tol=1e-12)

    def solve(y, A):
        found = linsat.solve(y, linsat.Constraints(A=A, b=[1.2], E=[[1.0, 1.0, 1.0]], f=[1.5]), tau=0.5, solver=tight)
        return found.x, found.duals

    assert torch.autograd.gradcheck(solve, (scores, A), atol=1e-6)
    cons = linsat.constraints.doubly_stochastic(3)
    y = torch.randn(2, 9, dtype=F64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda y: linsat.project(y, cons, tau=0.5), (y,), atol=1e-5)


@pytest.mark.parametrize("objective", [Entropy(0.1), Entropy(0.1, slack="none"), Euclidean()], ids=str)
def test_numbers_per_instance(objective):
    """Coefficients, bounds, right-hand sides, temperatures and weights of each instance: as if solved alone."""
    rng = np.random.default_rng(1)
    count, k, l = 5, 4, 12
    cons = linsat.Constraints(A=rng.uniform(-1, 1, (k, l)), b=rng.uniform(0.5, 1, (count, k)), lower=-0.5, upper=1.0)
    cons = cons.with_coefficients(A=torch.tensor(rng.uniform(-1, 1, (count, k, l))))
    cons = cons.with_bounds(upper=torch.tensor(rng.uniform(0.0, 1.0, (count, l))))
    if isinstance(objective, Entropy):
        objective = Entropy(torch.linspace(0.05, 0.5, count, dtype=F64), objective.slack)
    else:
        objective = Euclidean(torch.tensor(rng.uniform(0.5, 2, (count, l))))
    stated = Stated.of(cons, objective, torch.randn(count, l, dtype=F64))
    ours, theirs = stated.solve(KERNEL), stated.solve(TORCH)
    assert torch.equal(ours.codes, theirs.codes)
    assert _size(ours.x - theirs.x) <= 1e-9
    for n in range(count):
        alone = stated.alone(n).solve(KERNEL)
        assert torch.equal(alone.x[0], ours.x[n])
        assert torch.equal(alone.duals[0], ours.duals[n])


def test_prices_bound_the_duals():
    """A finite bound on a dual: the row gives way instead of pushing harder."""
    cons = linsat.Constraints(A=[[1.0, 1.0, 1.0]], b=[0.1]).soften(price=0.3)
    for objective in (Entropy(0.1, slack="none"), Euclidean()):
        stated = Stated.of(cons, objective, torch.full((2, 3), 2.0, dtype=F64))
        ours, theirs = stated.solve(KERNEL), stated.solve(TORCH)
        assert ours.codes.tolist() == theirs.codes.tolist() == [0, 0]
        torch.testing.assert_close(ours.x, theirs.x, atol=1e-10, rtol=0)
        torch.testing.assert_close(ours.duals, theirs.duals, atol=1e-12, rtol=0)
        assert float((ours.x.sum(-1) - 0.1).min()) > 0.1  # it gave way


@pytest.mark.parametrize("objective", [Entropy(0.05), Entropy(0.05, slack="none"), Euclidean()], ids=str)
def test_warm_starts(objective):
    stated = Stated.of(FAMILIES["portfolio"], objective, torch.randn(4, 40, dtype=F64))
    cold = stated.solve(KERNEL)
    warm = stated.solve(KERNEL, cold.duals)
    assert int(warm.counts[1].max()) == 0
    far = stated.solve(KERNEL, torch.full_like(cold.duals, 50.0))
    torch.testing.assert_close(far.x, cold.x, atol=1e-8, rtol=0)
    ours, theirs = (stated.solve(linsat.Newton(backend=b), 0.9 * cold.duals) for b in ("kernel", "arrays"))
    torch.testing.assert_close(ours.duals, theirs.duals, atol=1e-8, rtol=1e-8)
    assert int(ours.counts[1].max()) <= int(cold.counts[1].max()) + 1


def test_a_start_for_a_row_that_cannot_bind_any_more_does_nothing():
    tight, loose = linsat.Constraints(A=[[1.0, 1.0]], b=0.5), linsat.Constraints(A=[[1.0, 1.0]], b=5.0)
    y = torch.ones(1, 2, dtype=F64)
    duals = linsat.solve(y, tight).duals
    for solver in (KERNEL, TORCH):
        torch.testing.assert_close(linsat.project(y, loose, solver=solver, start=duals), linsat.project(y, loose))


@pytest.mark.parametrize("kind", ["positive", "signed", "boundary"])
def test_both_back_ends_on_random_systems(kind):
    rng = np.random.default_rng(300)
    for _ in range(60):
        system = random_system(rng, kind)
        cons = linsat.Constraints(**system.arguments())
        tau = float(rng.choice([1.0, 0.1, 0.01, 0.001]))
        scores = rng.normal(size=len(system.point))
        by_torch = linsat.solve(scores, cons, tau=tau, solver=TORCH)
        assert by_torch.converged
        assert system.violation(by_torch.x) <= 1e-6
        np.testing.assert_allclose(linsat.project(scores, cons, tau=tau, solver=KERNEL), by_torch.x, atol=1e-6)


@pytest.mark.parametrize("kind", ["positive", "signed", "boundary"])
def test_presolve_decides_as_in_torch(kind):
    rng = np.random.default_rng(5)
    for _ in range(40):
        system = random_system(rng, kind)
        cons = linsat.Constraints(**system.arguments())
        shift = torch.tensor(rng.normal(size=(6, len(cons)))) * (torch.arange(6) % 2)[:, None]
        sides = iter((cons.rhs + shift).split([len(side) for side in cons.right_sides.values()], -1))
        cons = cons.with_rhs(**{name: next(sides) for name in cons.right_sides})
        stated = Stated.of(cons, Entropy(0.1), torch.zeros(6, cons.num_variables, dtype=F64))
        call = stated.call(linsat.Newton(max_steps=1, backend="kernel"))  # too early for a proof by the iteration
        answer = as_tensors(call.plan.solve(call.statement, stated.scores, torch.empty_like(stated.scores)))
        form = call.plan.form(call.tensors())
        ours, theirs = call.plan.unpack(answer.decided, form), propagate(form, cons._structure.on("cpu")[2])
        assert torch.equal(answer.codes == Status.INFEASIBLE.code, theirs.infeasible)
        for name in ("free", "active"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
        assert torch.equal(ours.at_upper & ~ours.free, theirs.at_upper & ~theirs.free)


def test_saturated_scores_do_not_stall():
    """Sorting scores far apart: almost everything saturates and the potential must be exact to see progress."""
    cons = linsat.constraints.permutation(4)
    values = torch.rand(500, 4, 1, dtype=F64)
    scores = (5 * values * torch.linspace(-1, 1, 4, dtype=F64)).flatten(1)
    for solver in (TORCH, KERNEL):
        assert linsat.solve(scores, cons, tau=0.01, solver=solver).converged.all()


@pytest.mark.parametrize("objective", [Entropy(0.1), Euclidean()], ids=str)
def test_bit_equal_whatever_the_batch_its_order_and_the_threads(objective):
    cons = linsat.constraints.tour(10, 0, 9)
    scores = torch.randn(64, 100)
    alone = [_gradient(cons, row, objective) for row in scores]
    x, gradient = (torch.stack(parts) for parts in zip(*alone, strict=True))
    order = torch.randperm(64)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for index in (torch.arange(64), order, order[:7]):
                found = _gradient(cons, scores[index], objective)
                assert torch.equal(found[0], x[index])
                assert torch.equal(found[1], gradient[index])
    finally:
        torch.set_num_threads(before)


def _gradient(cons, scores, objective=None, solver=None):
    scores = scores.clone().requires_grad_(True)
    x = linsat.project(scores, cons, objective=objective, solver=solver)
    weights = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)
    (x * weights).sum().backward()
    return x.detach(), scores.grad


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_scores_of_every_floating_dtype(dtype):
    cons = linsat.constraints.doubly_stochastic(5)
    scores = torch.randn(3, 25).to(dtype)
    x, gradient = _gradient(cons, scores)
    exact, exact_gradient = _gradient(cons, scores.double())
    assert x.dtype == gradient.dtype == dtype
    assert torch.equal(x, exact.to(dtype))
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=2e-2, atol=1e-2)


def test_bad_numbers_and_limits_are_reported():
    cons = linsat.constraints.doubly_stochastic(3)
    scores = torch.zeros(2, 9)
    for bad in (float("nan"), float("inf")):
        scores[1, 4] = bad
        with pytest.raises(linsat.ConstraintError, match=r"instance 1, variable X\[1, 1\]"):
            linsat.project(scores, cons)
    for tau in (0.0, -1.0, float("nan")):
        with pytest.raises(linsat.ConstraintError, match="positive, finite temperature"):
            linsat.project(torch.zeros(2, 9), cons, tau=tau)
    with pytest.raises(linsat.ConstraintError, match="weights is -1"):
        linsat.project(torch.zeros(2, 9), cons, objective=Euclidean(weights=torch.full((9,), -1.0)))
    scores = torch.linspace(0, 1, 18).sin().reshape(2, 9)
    with pytest.warns(linsat.LinSATWarning, match="step_limit"):
        linsat.project(scores, cons, tau=0.001, solver=linsat.Newton(max_steps=1), on_failure="warn")
    with pytest.raises(linsat.ConvergenceError):
        linsat.project(scores, cons, tau=0.001, solver=linsat.Newton(max_steps=1))


def test_numbers_of_another_batch_are_not_read():
    stated = Stated.of(FAMILIES["simplex"].with_rhs(f=torch.ones(3, 1)), Entropy(0.1), torch.zeros(3, 7, dtype=F64))
    wrong = stated.numbers._replace(side=torch.ones(2, 1, dtype=F64))
    with pytest.raises(ValueError, match="does not fit a batch of 3"):
        stated.plan.state(wrong, tuple(stated.objective.parameters().values()), 3)


# ---------------------------------------------------------------- what the kernel does not take


def test_reasons_why_not():
    class Mine(Entropy):
        pass

    scores = torch.zeros(1, 7, dtype=F64)
    assert Stated.of(FAMILIES["simplex"], Entropy(0.1), scores).plan.native()
    with pytest.raises(linsat.ConstraintError, match="own objectives, not Mine"):
        linsat.project(scores, FAMILIES["simplex"], objective=Mine(0.1), solver=KERNEL)
    with pytest.raises(linsat.ConstraintError, match="runs on the CPU, not on meta"):
        Stated.of(FAMILIES["simplex"], Entropy(0.1), scores).call(KERNEL).plan.native("meta")
    chain = linsat.Constraints(A=sp.diags([1.0, 1.0, 1.0], [0, 1, 2], shape=(600, 602)), b=2.0)
    with pytest.raises(linsat.ConstraintError, match="backend='kernel' cannot be used.*400 rows share variables"):
        linsat.project(torch.zeros(602), chain, objective=Euclidean(), solver=KERNEL)
    many = linsat.Constraints(A=sp.eye(70_000), b=1.0)
    with pytest.raises(linsat.ConstraintError, match="70000 rows are more than 65536"):
        linsat.project(torch.zeros(70_000), many, solver=KERNEL)
    rng = np.random.default_rng(0)
    columns = np.concatenate([rng.permutation(100_000) for _ in range(18)])  # each variable in 18 of 250 rows
    scattered = sp.csr_array((np.ones(1_800_000), columns, np.arange(0, 1_800_001, 7200)), shape=(250, 100_000))
    with pytest.raises(linsat.ConstraintError, match="its tables would have .* entries, more than 16,000,000"):
        linsat.project(torch.zeros(100_000), linsat.Constraints(A=scattered, b=1e5), solver=KERNEL)


# ---------------------------------------------------------------- threads and processes


def test_eight_threads_with_different_sets_give_the_same_numbers():
    sets = [FAMILIES[name] for name in FAMILIES if name not in UNBOUNDED][:8]
    scores = [torch.randn(8, cons.num_variables) for cons in sets]
    expected = [_gradient(cons, y) for cons, y in zip(sets, scores, strict=True)]
    fresh = [copy.deepcopy(cons) for cons in sets]  # compiled while the others run
    failures: list[str] = []

    def work(i: int) -> None:
        for _ in range(10):
            x, gradient = _gradient(fresh[i], scores[i])
            if not (torch.equal(x, expected[i][0]) and torch.equal(gradient, expected[i][1])):
                failures.append(f"set {i}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def _forked(cons, scores, expected, threads, queue):
    same = bool(torch.equal(linsat.project(scores, cons), expected))
    queue.put(same and torch.get_num_threads() == threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_four_forked_workers_give_the_same_numbers_and_keep_the_thread_count():
    cons = linsat.constraints.doubly_stochastic(12)
    scores = torch.rand(200, 144)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = linsat.project(scores, cons)  # the parent's pool of threads is alive when it forks
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        workers = [context.Process(target=_forked, args=(cons, scores, expected, 2, queue)) for _ in range(4)]
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


# ---------------------------------------------------------------- the worker threads by themselves

_WORKERS = """
#include "workers.h"
int run(Task task, int64_t threads) { return run_shared(task, 0, 0, 0, (Team){0}, threads); }
int64_t next(Team *team) { return __atomic_fetch_add(&team->counter, 1, __ATOMIC_RELAXED); }
"""
_TASK = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)  # layout, statement, call, team


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """The core's worker threads in a library of their own, which runs tasks that are functions of Python."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None or not HEADERS.is_dir():
        pytest.skip("no C compiler, or no sources")
    folder = tmp_path_factory.mktemp("workers")
    (folder / "workers.c").write_text(_WORKERS)
    library = folder / "workers.so"
    command = [compiler, "-shared", "-fPIC", "-std=gnu11", f"-I{HEADERS}", str(folder / "workers.c"), "-lpthread"]
    subprocess.run([*command, "-o", str(library)], check=True)
    functions = ctypes.CDLL(str(library))
    functions.run.argtypes = (_TASK, ctypes.c_int64)
    functions.next.argtypes, functions.next.restype = (ctypes.c_void_p,), ctypes.c_int64
    return functions


@pytest.mark.parametrize("threads", [1, 2, 4, 9])
def test_threads_share_the_numbers_and_each_is_taken_once(workers, threads):
    count = 5_000
    taken = np.zeros(count, dtype=np.int64)

    def take(layout, statement, call, team) -> int:
        while (n := workers.next(team)) < count:
            taken[n] += 1
        return 0

    for repeat in range(1, 4):
        assert workers.run(_TASK(take), threads) == 0
        assert (taken == repeat).all()


def test_a_failure_in_a_worker_reaches_the_caller(workers):
    caller, begun = threading.get_ident(), threading.Event()

    def fails(*team) -> int:
        if threading.get_ident() == caller:
            assert begun.wait(timeout=20)
            return 0
        begun.set()
        return -1

    assert workers.run(_TASK(fails), 3) != 0
    assert workers.run(_TASK(lambda *team: 0), 3) == 0


def test_a_call_that_finds_the_workers_busy_works_alone(workers):
    inside, over = threading.Event(), threading.Event()

    def waits(*team) -> int:
        inside.set()
        assert over.wait(timeout=20)
        return 0

    busy = threading.Thread(target=workers.run, args=(_TASK(waits), 2))
    busy.start()
    assert inside.wait(timeout=20)
    who = []
    assert workers.run(_TASK(lambda *team: who.append(threading.get_ident()) or 0), 2) == 0
    over.set()
    busy.join()
    assert who == [threading.get_ident()]


def test_a_forked_child_has_threads_of_its_own(workers):
    scores = np.random.default_rng(0).random((64, 400))
    torch.set_num_threads(2)
    try:
        expected, together = _threads_of_a_child(scores, workers)
        assert together == 2
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        children = [context.Process(target=lambda: queue.put(_threads_of_a_child(scores, workers))) for _ in range(2)]
        for child in children:
            child.start()
        found = [queue.get(timeout=60) for _ in children]
        for child in children:
            child.join(timeout=60)
        assert all(np.array_equal(x, expected) and together == 2 for x, together in found)
    finally:
        torch.set_num_threads(1)


def _threads_of_a_child(scores, workers):
    """The answer, and how many threads worked at once."""
    together = threading.Barrier(2)

    def meets(*team) -> int:
        try:
            together.wait(timeout=20)
        except threading.BrokenBarrierError:
            return -1
        return 0

    x = linsat.project(scores, linsat.constraints.doubly_stochastic(20))
    return x, 2 if workers.run(_TASK(meets), 2) == 0 else 1


def test_numbers_of_one_call_do_not_reach_the_next():
    """Weights, temperature, batch size, dtype and shape of a call with the set of another one."""
    cons = linsat.Constraints(A=np.ones((1, 6)), b=[2.0])
    y = torch.linspace(0.3, 0.8, 6, dtype=torch.float64)
    assert float(y.sum()) > 2.0
    cut = (y.sum() - 2.0) / 6
    weights = torch.tensor([1e12, 1, 1, 1, 1, 1], dtype=torch.float64)
    for _ in range(2):
        heavy = linsat.project(y, cons, objective=linsat.Euclidean(weights=weights.clone()))
        torch.testing.assert_close(heavy[0], y[0], rtol=0, atol=1e-9)
        for shape in ((6,), (3, 6), (2, 2, 6)):
            found = linsat.project(y.expand(shape).contiguous(), cons, objective=linsat.Euclidean())
            torch.testing.assert_close(found, (y - cut).expand(shape), rtol=0, atol=1e-12)
        for tau in (0.1, 0.7):
            free = linsat.project(y.float() - 5.0, cons, objective=linsat.Entropy(tau, slack="none"))
            torch.testing.assert_close(free, torch.sigmoid((y.float() - 5.0) / tau), rtol=1e-5, atol=0)


def test_calls_with_many_shapes_keep_few_of_them():
    cons = linsat.Constraints(A=np.ones((1, 3)), b=[1.0])
    for count in range(1, 200):
        linsat.project(torch.rand(count, 3), cons)
    assert 0 < len(cons._calls) <= 64


# ---------------------------------------------------------------- the library


def _python(script: str, **environment: str) -> subprocess.CompletedProcess:
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)


MISSING = {
    "not compiled": ("binding._path = lambda folder: None", "it was not compiled when linsat was installed"),
    "damaged": (
        "import pathlib, tempfile; path = pathlib.Path(tempfile.mkstemp()[1]); path.write_bytes(b'no library')\n"
        "binding._path = lambda folder: path",
        "its library cannot be loaded",
    ),
    "of another version": ("binding._ABI = -1", "compiled from another version of linsat"),
    "turned off": ("os.environ['LINSAT_KERNEL'] = 'off'", "turned off by LINSAT_KERNEL"),
}


@pytest.fixture(scope="module")
def without_library():
    """What is printed in each case of `MISSING`, by one process, which never uses its library."""
    script = (
        "import os, sys, torch, linsat, linsat.machine\nfrom linsat.native import binding\n"
        "kept = binding._path, binding._ABI\n"
        f"for change in {[change for change, _ in MISSING.values()]!r}:\n"
        "    binding._path, binding._ABI = kept\n"
        "    exec(change)\n"
        "    binding.load.cache_clear()\n"
        "    y = torch.rand(2, 9, dtype=torch.float64, requires_grad=True)\n"
        "    cons = linsat.constraints.doubly_stochastic(3)\n"
        "    assert torch.autograd.gradcheck(lambda y: linsat.project(y, cons), y)\n"
        "    linsat.machine.print_info()\n"
        "    try:\n        linsat.project(y, cons, solver=linsat.Newton(backend='kernel'))\n"
        "    except linsat.ConstraintError as error:\n        print(error)\n"
        "    print('next')\n"
    )
    done = _python(script, LINSAT_KERNEL="on")
    parts = done.stdout.split("next\n")[:-1]
    assert len(parts) == len(MISSING), done.stderr
    return dict(zip(MISSING, parts, strict=True))


@pytest.mark.parametrize("case", MISSING)
def test_without_its_library_the_torch_back_end_serves(case, without_library):
    reason, shown = MISSING[case][1], without_library[case]
    assert re.search(rf"kernel +.*{reason}", shown)
    assert re.search(r"arrays +available", shown)
    assert re.search(rf"backend='kernel' cannot be used here: the kernel is not available.*{reason}", shown)


def test_a_variant_can_be_asked_for():
    """And says that it is what runs. By symmetry every share of a simplex is 1/5 at equal scores."""
    script = (
        "import numpy as np, linsat\nfrom linsat.native import binding\n"
        "x = linsat.project(np.zeros((2, 5)), linsat.constraints.simplex(5))\n"
        "print(binding.load().instructions, bool(np.abs(x - 0.2).max() < 1e-12))\n"
    )
    plain = "SSE2" if platform.machine() in ("x86_64", "AMD64") else "generic vectors"
    possible = {"plain": [plain], "PLAIN": [plain], "avx2": [plain, "AVX2"], "avx512": [plain, "AVX2", "AVX-512"]}
    for value, expected in possible.items():
        done = _python(script, LINSAT_KERNEL=value)
        assert done.stdout in [f"{name} True\n" for name in expected], done.stderr


def test_another_value_of_the_switch_is_rejected():
    script = "import numpy as np, linsat; linsat.project(np.zeros(3), linsat.constraints.simplex(3))"
    last = _python(script, LINSAT_KERNEL="plan").stderr.strip().splitlines()[-1]
    assert "LINSAT_KERNEL is 'plan'; expected on, off, or the instructions to use: plain, avx2 or avx512. Fix: " in last


def test_structures_have_the_layout_of_the_library():
    assert not binding._differs(binding.load().functions)


def test_first_call_of_a_fresh_process():
    """Nothing is compiled at the first call: it takes no longer than importing torch does."""
    script = (
        "import time; t = time.process_time(); import torch; torch_time = time.process_time() - t\n"
        "import linsat, sys; assert 'numba' not in sys.modules\n"
        "y = torch.rand(4, 9, requires_grad=True)\n"
        "linsat.project(y, linsat.constraints.doubly_stochastic(3)).sum().backward()\n"
        "assert 'numba' not in sys.modules\n"
        "print((time.process_time() - t) / torch_time)"
    )
    # Time of the processor, not of the clock: other programs must not decide a test.
    assert any(float(_python(script).stdout) < 3.0 for _ in range(3))


def test_info_lists_what_matters(capsys):
    print_info()
    shown = capsys.readouterr().out
    for name in ("linsat", "torch", "kernel         available", "threads"):
        assert name in shown


def test_a_batch_that_does_not_fit_says_how_to_split_it():
    script = (
        "import resource, torch, linsat\n"
        "cons = linsat.constraints.simplex(1000)\n"
        "linsat.project(torch.zeros(2, 1000), cons)\n"
        "y = torch.zeros(60_000, 1000)\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "limit = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + 100 * 2**20\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "try:\n    linsat.project(y, cons)\n"
        "except MemoryError as error:\n    print(error)\n"
        "parts = [linsat.project(part, cons) for part in y[:9000].split(3000)]\n"
        "print(sum(len(part) for part in parts))\n"
    )
    done = _python(script, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    message, count = done.stdout.splitlines()
    assert "y holds 60,000 instances of 1,000 variables" in message
    assert "Fix: smaller batches" in message
    assert count == "9000"  # and the process goes on
