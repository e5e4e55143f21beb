"""An instance that cannot be satisfied: what each `on_failure` does with it, and that the others never notice."""

import datetime
import os
import warnings

import pytest
import torch
from torch import nn

import linsat
from tests.helpers.arithmetic import assert_same_answer

F64 = torch.float64
OBJECTIVES = {
    "entropy": linsat.Entropy(tau=0.2),
    "slack-free": linsat.Entropy(tau=0.2, slack="none"),
    "euclidean": linsat.Euclidean(),
}
BAD = 2  # of the four instances
GOOD = [0, 1, 3]


def _sides():
    """Right-hand sides of four doubly stochastic 3 x 3 matrices, one of which would need a row that sums to 9."""
    sides = torch.ones(4, 6, dtype=F64)
    sides[BAD, 0] = 9.0
    return sides


def _model(objective, on_failure):
    """A linear map and the layer behind it."""
    torch.manual_seed(0)
    cons = linsat.constraints.doubly_stochastic(3)
    return nn.Linear(4, 9, dtype=F64), linsat.LinSAT(cons, objective=objective, on_failure=on_failure)


def _inputs():
    return torch.randn(4, 4, dtype=F64, generator=torch.Generator().manual_seed(1))


def _good_alone(objective, scores):
    layer = _model(objective, "raise")[1]
    return layer(scores.detach()[GOOD], f=_sides()[GOOD])


def _in_mode(mode, linear, layer):
    """The model as a function of its inputs, in one of the ways people run it: scores and x.

    Bits of x are compared for these scores: those of a smaller batch may differ, as rows of `nn.Linear` do.
    """

    def run(inputs):
        scores = linear(inputs)
        return scores, layer(scores, f=_sides())

    if mode == "train":
        return run
    if mode == "compile":
        return torch.compile(run, backend="eager")
    if mode == "eval":
        linear.eval(), layer.eval()
        return run
    return torch.no_grad()(run)


@pytest.mark.parametrize("mode", ["train", "eval", "no_grad", "compile"])
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo's own
class TestEachOption:
    def test_raise_is_the_default_and_names_instance_and_row(self, name, mode):
        linear, layer = _model(OBJECTIVES[name], "raise")
        layer = linsat.LinSAT(layer.constraints, objective=OBJECTIVES[name])
        with pytest.raises(linsat.InfeasibleError, match=r"(?s)instance 2.*soften"):
            _in_mode(mode, linear, layer)(_inputs())

    def test_warn_and_ignore_leave_the_others_alone(self, name, mode):
        for on_failure in ("warn", "ignore"):
            linear, layer = _model(OBJECTIVES[name], on_failure)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", linsat.LinSATWarning)
                scores, x = _in_mode(mode, linear, layer)(_inputs())
            ours = [w for w in caught if issubclass(w.category, linsat.LinSATWarning)]
            assert len(ours) == (1 if on_failure == "warn" else 0)
            assert all("1 of 4 instances" in str(w.message) and "soften" in str(w.message) for w in ours)
            assert_same_answer(x.detach()[GOOD], _good_alone(OBJECTIVES[name], scores))
            assert torch.isfinite(x).all()

    def test_nan_marks_that_instance_and_trains_on(self, name, mode):
        linear, layer = _model(OBJECTIVES[name], "nan")
        scores, x = _in_mode(mode, linear, layer)(_inputs())
        assert torch.isnan(x[BAD]).all()
        assert_same_answer(x.detach()[GOOD], _good_alone(OBJECTIVES[name], scores))
        if mode == "no_grad":
            return
        torch.nansum(x.square()).backward()
        found = linear.weight.grad.clone()
        linear.weight.grad = None
        layer(linear(_inputs()[GOOD]), f=_sides()[GOOD]).square().sum().backward()
        assert torch.allclose(found, linear.weight.grad, atol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_nan_loss_leaves_finite_gradients(name):
    """A plain sum is NaN, its gradient is not: the failed instance has none, also to a number that all share."""
    cons = linsat.constraints.doubly_stochastic(3).with_rhs(f=_sides())
    scores = torch.randn(4, 9, dtype=F64, generator=torch.Generator().manual_seed(3), requires_grad=True)
    upper = torch.full((9,), 1.5, dtype=F64, requires_grad=True)
    x = linsat.project(scores, cons.with_bounds(upper=upper), objective=OBJECTIVES[name], on_failure="nan")
    (x**2).sum().backward()
    assert not scores.grad[BAD].any()
    assert torch.isfinite(scores.grad).all()
    assert torch.isfinite(upper.grad).all()


def test_nan_under_vmap_and_for_sinkhorn_in_both_gradients():
    cons = linsat.constraints.doubly_stochastic(3)
    scores = torch.randn(4, 9, dtype=F64, generator=torch.Generator().manual_seed(3))
    own = cons.with_rhs(f=_sides())
    mapped = torch.func.vmap(lambda y: linsat.project(y, own, on_failure="nan"))(torch.stack([scores, -scores]))
    swept = [
        linsat.project(scores, own, tau=0.5, solver=linsat.Sinkhorn(gradient=gradient), on_failure="nan")
        for gradient in ("implicit", "unrolled")
    ]
    for x in (*mapped, *swept):
        assert torch.isnan(x).all(-1).tolist() == [False, False, True, False]
        assert torch.allclose(x[GOOD].reshape(3, 3, 3).sum(-1), torch.ones(3, 3, dtype=F64), atol=1e-5)


def test_numpy_and_half_precision_hold_nan_too():
    cons = linsat.constraints.doubly_stochastic(3).with_rhs(f=_sides())
    for scores in (torch.zeros(4, 9).numpy(), torch.zeros(4, 9, dtype=torch.bfloat16)):
        x = torch.as_tensor(linsat.project(scores, cons, on_failure="nan"))
        assert torch.isnan(x).all(-1).tolist() == [False, False, True, False]


def test_solve_returns_the_status_and_warns_unless_told_otherwise():
    cons = linsat.constraints.doubly_stochastic(3).with_rhs(f=_sides())
    with pytest.warns(linsat.LinSATWarning, match="instance 2: infeasible"):
        solution = linsat.solve(torch.zeros(4, 9), cons)
    assert [str(status) for status in solution.status] == ["converged", "converged", "infeasible", "converged"]
    solution = linsat.solve(torch.zeros(4, 9), cons, on_failure="nan")
    assert torch.isnan(solution.x[BAD]).all()
    assert solution.converged.tolist() == [True, True, False, True]


def test_instances_of_project_each_fail_alike():
    simplex = linsat.constraints.simplex(3)
    sets = [simplex, simplex.with_rhs(f=4.0), simplex.with_rhs(f=2.0)]
    scores = [torch.zeros(3, dtype=F64)] * 3
    with pytest.raises(linsat.InfeasibleError, match="instance 1"):
        linsat.project_each(scores, sets)
    found = linsat.project_each(scores, sets, on_failure="nan")
    assert torch.isnan(found[1]).all()
    assert torch.allclose(torch.stack([found[0], found[2]]).sum(-1), torch.tensor([1.0, 2.0], dtype=F64))


def _train_with_a_failing_rank(rank, world, path, on_failure):
    """Rank 1 has an instance that no point satisfies; its loss leaves that instance out."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", linsat.LinSATWarning)
    limit = datetime.timedelta(seconds=60)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=world, timeout=limit
    )
    torch.manual_seed(0)
    model = nn.Linear(4, 9)
    parallel = nn.parallel.DistributedDataParallel(model)
    data = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    sides = torch.ones(3, 6, dtype=F64)
    if rank == 1:
        sides[1, 0] = 9.0
    cons = linsat.constraints.doubly_stochastic(3).with_rhs(f=sides)
    code = 1
    try:
        solution = linsat.solve(parallel(data[rank]), cons, tau=0.2, on_failure=on_failure)
        keep = torch.isfinite(solution.x).all(-1) if on_failure == "nan" else solution.converged
        (solution.x[keep] ** 2).mean().backward()
        gradient = [torch.zeros_like(model.weight.grad) for _ in range(world)]
        torch.distributed.all_gather(gradient, model.weight.grad)
        good = torch.equal(*gradient) and bool(torch.isfinite(gradient[0]).all()) and float(gradient[0].abs().max()) > 0
        code = 10 if good else 2
    except linsat.InfeasibleError:
        code = 11
    except RuntimeError:  # gloo: the other rank is gone
        code = 12
    finally:
        os._exit(code)


@pytest.mark.parametrize(
    ("on_failure", "codes"), [("ignore", [10, 10]), ("warn", [10, 10]), ("nan", [10, 10]), ("raise", [12, 11])]
)
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_one_rank_with_an_infeasible_instance(tmp_path, on_failure, codes):
    """Masked, training goes on with the same gradients on both ranks; raised, neither rank hangs."""
    context = torch.multiprocessing.get_context("spawn")
    arguments = (2, str(tmp_path / "rendezvous"), on_failure)
    ranks = [context.Process(target=_train_with_a_failing_rank, args=(rank, *arguments)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(90)
    assert [process.exitcode for process in ranks] == codes
