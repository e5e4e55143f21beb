"""The layer inside everything PyTorch does with functions and modules."""

import copy
import functools
import io
import os
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn

import linsat

F64 = torch.float64
CONS = linsat.Constraints(A=[[1.0, 2.0, 0.5], [0.3, 1.0, 1.0]], b=[1.2, 1.0], C=[[1.0, 1.0, 2.0]], d=[0.7])


def _project(y):
    return linsat.project(y, CONS, tau=0.3)


def _jacobian(y):
    return torch.autograd.functional.jacobian(_project, y)


def test_no_grad_and_inference_mode():
    scores = torch.randn(2, 3, dtype=F64, requires_grad=True)
    expected = _project(scores).detach()
    with torch.no_grad():
        x = _project(scores)
    assert not x.requires_grad
    with torch.inference_mode():
        y = _project(scores)
    assert torch.equal(x, expected)
    assert torch.equal(y, expected)


def test_sets_first_used_or_made_in_inference_mode_train_afterwards():
    outside = linsat.constraints.top_k(5, 2)
    with torch.inference_mode():
        linsat.project(torch.randn(5), outside)
        inside = linsat.Constraints(E=torch.ones(1, 5), f=torch.tensor([2.0]))
        linsat.project(torch.randn(5), inside)
    for cons in (outside, inside):
        scores = torch.randn(5, requires_grad=True)
        linsat.project(scores, cons, tau=torch.tensor(0.1)).square().sum().backward()
        assert torch.isfinite(scores.grad).all()


def test_vmap_over_scores_equals_the_batch():
    scores = torch.randn(5, 3, dtype=F64)
    assert torch.allclose(torch.func.vmap(_project)(scores), _project(scores), atol=1e-12)
    assert torch.allclose(torch.func.vmap(_project, in_dims=1)(scores.T), _project(scores), atol=1e-12)
    nested = torch.randn(2, 4, 3, dtype=F64)
    assert torch.allclose(torch.func.vmap(torch.func.vmap(_project))(nested), _project(nested), atol=1e-12)
    assert torch.allclose(torch.func.vmap(_project)(nested), _project(nested), atol=1e-12)


def test_vmap_over_tau():
    scores, taus = torch.randn(3, dtype=F64), torch.tensor([0.1, 0.5, 1.0], dtype=F64)
    mapped = torch.func.vmap(lambda t: linsat.project(scores, CONS, tau=t))(taus)
    looped = torch.stack([linsat.project(scores, CONS, tau=t) for t in taus])
    assert torch.allclose(mapped, looped, atol=1e-12)


def test_jacrev_and_per_sample_jacobians():
    scores = torch.randn(4, 3, dtype=F64)
    assert torch.allclose(torch.func.jacrev(_project)(scores[0]), _jacobian(scores[0]), atol=1e-10)
    per_sample = torch.func.vmap(torch.func.jacrev(_project))(scores)
    expected = torch.stack([_jacobian(y) for y in scores])
    assert torch.allclose(per_sample, expected, atol=1e-10)


def test_jacrev_to_right_sides_and_a_set_first_used_inside():
    b = torch.tensor([1.2, 1.0], dtype=F64)
    scores = torch.randn(3, dtype=F64)
    solve = lambda b: linsat.project(scores, CONS.with_rhs(b=b), tau=0.3)  # noqa: E731
    assert torch.allclose(torch.func.jacrev(solve)(b), torch.autograd.functional.jacobian(solve, b), atol=1e-10)
    fresh = linsat.constraints.doubly_stochastic(3)
    inside = torch.func.jacrev(lambda y: linsat.project(y, fresh))(torch.zeros(9, dtype=F64))
    assert torch.isfinite(inside).all()
    assert torch.isfinite(linsat.project(torch.zeros(9), fresh)).all()  # nothing of the transform stayed behind


def test_a_transform_leaves_nothing_behind_in_the_set():
    cons = linsat.Constraints(A=[[1.0, 2.0, 0.5]], b=1.0)
    solve = lambda b: linsat.project(torch.zeros(3), cons.with_rhs(b=b), tau=0.3)  # noqa: E731
    torch.func.jacrev(solve)(torch.tensor([0.5]))
    assert solve(torch.tensor([0.5])).isfinite().all()


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("objective", [linsat.Entropy(tau=0.3), linsat.Euclidean()])
def test_a_box_without_rows_inside_transforms_and_graphs(objective, scalar):
    """The closed forms: a sigmoid, or what clipping makes of the scores."""
    box = linsat.Constraints(lower=-0.5 if scalar else [-0.5, -0.5, -0.5], upper=1.0)
    y = torch.tensor([[0.3, 2.0, -0.1], [-1.0, 0.5, 0.9]], dtype=F64)
    if isinstance(objective, linsat.Euclidean):
        expected, slope = y.clip(-0.5, 1.0), ((y > -0.5) & (y < 1.0)).to(F64)
    else:
        share = torch.sigmoid(1.5 * y / 0.3)
        expected, slope = -0.5 + 1.5 * share, 1.5**2 / 0.3 * share * (1 - share)

    def onto_box(y):
        return linsat.project(y, box, objective=objective)

    close = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-12)
    close(torch.func.vmap(onto_box)(y), expected)
    close(torch.func.grad(lambda y: onto_box(y).sum())(y), slope)
    close(torch.func.jacrev(onto_box)(y[0]), slope[0].diag())
    close(torch.func.vmap(torch.func.jacfwd(onto_box))(y), torch.diag_embed(slope))
    compiled = torch.compile(onto_box, fullgraph=True, backend="aot_eager")
    given = y.clone().requires_grad_()
    x = compiled(given)
    close(x, expected)
    close(torch.autograd.grad(x.sum(), given)[0], slope)
    assert torch.func.vmap(lambda y: linsat.solve(y, box, objective=objective).duals)(y).shape == (2, 0)


def test_vmap_with_per_instance_right_sides():
    cons = CONS.with_rhs(b=[[1.2, 1.0], [0.9, 0.8]])
    scores = torch.randn(4, 2, 3, dtype=F64)
    mapped = torch.func.vmap(lambda y: linsat.project(y, cons, tau=0.3))(scores)
    assert torch.allclose(mapped, linsat.project(scores, cons, tau=0.3), atol=1e-12)


def test_hessian_by_transforms():
    scores = torch.randn(3, dtype=F64)
    loss = lambda y: (_project(y) ** 2).sum()  # noqa: E731
    expected = torch.autograd.functional.hessian(loss, scores)
    assert torch.allclose(torch.func.jacrev(torch.func.jacrev(loss))(scores), expected, atol=1e-8)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo's own
def test_compile_gives_the_same_numbers():
    model = nn.Sequential(nn.Linear(4, 3, dtype=F64), linsat.LinSAT(CONS, tau=0.3))
    compiled = torch.compile(model, backend="eager")
    inputs = torch.randn(5, 4, dtype=F64)
    assert torch.allclose(compiled(inputs), model(inputs), atol=1e-12)
    compiled(inputs).sum().backward()
    assert torch.isfinite(model[0].weight.grad).all()


def test_module_copies_pickles_and_keeps_its_state():
    bound = nn.Parameter(torch.tensor([0.8]))
    temperature = nn.Parameter(torch.tensor(0.3))
    layer = linsat.LinSAT(linsat.Constraints(A=[[1.0, 1.0]], b=bound), tau=temperature)
    assert set(layer.state_dict()) == {"b", "tau"}
    scores = torch.tensor([0.2, 0.5])
    expected = layer(scores)
    for clone in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(clone(scores), expected)
        with torch.no_grad():
            clone.get_parameter("b").fill_(0.1)  # the clone's set must follow the clone's own parameter
        assert float(clone(scores).sum().detach()) < 0.11
        assert torch.equal(layer(scores), expected)
    other = linsat.LinSAT(
        linsat.Constraints(A=[[1.0, 1.0]], b=nn.Parameter(torch.tensor([0.2]))),
        tau=nn.Parameter(torch.tensor(1.0)),
    )
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(scores), expected)
    assert "2 variables in [0, 1], 1 row: 1 <=" in repr(layer)


def test_the_state_of_a_layer_with_other_rules_is_rejected():
    def layer(**rules):
        return nn.Sequential(nn.Linear(2, 3), linsat.LinSAT(linsat.Constraints(**rules)))

    A, b = np.array([[1.0, 0.0, 2.0]]), nn.Parameter(torch.tensor([0.8]))
    saved = layer(A=A, b=b).state_dict()
    assert "linsat" not in "".join(saved)  # no tensor of linsat: models of older versions keep their keys
    stream = io.BytesIO()
    torch.save(saved, stream)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=True)
    others = {
        "A": {"A": [[1.0, 0.0, 2.5]]},
        "A, E, f": {"A": None, "E": A, "f": [1.0]},
        "upper": {"upper": 2.0},
        "lower": {"lower": [0.0, 0.0, -1.0]},
    }
    for differs, changed in others.items():
        rules = {"A": A, "b": nn.Parameter(torch.tensor([0.1]))} | changed
        other = layer(**(rules if rules["A"] is not None else {k: v for k, v in rules.items() if k not in ("A", "b")}))
        for state in (saved, loaded):
            with pytest.raises(RuntimeError, match="of '1' was saved by a layer with other rules") as error:
                other.load_state_dict(state)
            assert set(differs.split(", ")) <= set(str(error.value).split("differs: ")[1].split(")")[0].split(", "))
            assert "Fix: build the layer with the rules" in str(error.value)
    softened = nn.Sequential(nn.Linear(2, 3), linsat.LinSAT(linsat.Constraints(A=A, b=b).soften(price=2.0)))
    with pytest.raises(RuntimeError, match="differs: price"):
        softened.load_state_dict(saved)
    other = layer(A=[[1.0, 0.0, 2.5]], b=nn.Parameter(torch.tensor([0.1])))
    other.load_state_dict(dict(saved))  # on purpose
    assert torch.equal(other[1].get_parameter("b"), b)


def test_the_same_rules_stated_otherwise_take_the_state():
    A, b = np.array([[1.0, 0.0, 2.0]]), nn.Parameter(torch.tensor([0.8]))
    layer = linsat.LinSAT(linsat.Constraints(A=A, b=b))
    stated = {
        "A": A,
        "b": nn.Parameter(torch.tensor([0.1])),
        "lower": np.zeros(3),
        "upper": [1.0] * 3,
        "names": ["cap"],
    }
    other = linsat.LinSAT(linsat.Constraints(**stated))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.get_parameter("b"), b)
    constant = linsat.LinSAT(linsat.Constraints(A=A, b=1.0))
    constant.load_state_dict(linsat.LinSAT(linsat.Constraints(A=sp.csr_array(A), b=[1.0])).state_dict())
    b.requires_grad_(False)  # frozen after training, as for use
    other.load_state_dict(layer.state_dict())


def test_layer_takes_right_sides_bounds_and_tau_per_call():
    layer = linsat.LinSAT(linsat.constraints.top_k(4, 2, exactly=False))
    scores = torch.ones(3, 4)
    x = layer(scores, b=torch.tensor([[1.0], [2.0], [3.0]]), tau=0.01)
    assert torch.allclose(x.sum(-1), torch.tensor([1.0, 2.0, 3.0]), atol=0.05)
    assert float(layer(scores, upper=0.25).max()) <= 0.25


def test_constraints_pickle_and_copy():
    cons = linsat.constraints.tour(5, 0, 4)
    scores = np.random.default_rng(0).normal(size=25)
    expected = linsat.project(scores, cons)
    for clone in (copy.deepcopy(cons), pickle.loads(pickle.dumps(cons))):
        assert clone.names == cons.names
        np.testing.assert_array_equal(linsat.project(scores, clone), expected)


def _train_rank(rank, world, path):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 9), linsat.LinSAT(linsat.constraints.doubly_stochastic(3), tau=0.2))
    parallel = nn.parallel.DistributedDataParallel(model)
    data = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1))
    (parallel(data[rank]) ** 2).mean().backward()
    torch.distributed.barrier()
    if rank == 0:
        torch.manual_seed(0)
        alone = nn.Sequential(nn.Linear(4, 9), linsat.LinSAT(linsat.constraints.doubly_stochastic(3), tau=0.2))
        (alone(data.reshape(12, 4)) ** 2).mean().backward()
        assert torch.allclose(alone[0].weight.grad, model[0].weight.grad, atol=1e-6)
    # The parallel module keeps gloo's threads alive; Python 3.11 aborts if one asks for the interpreter as that ends.
    os._exit(0)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_data_parallel_gradients_equal_the_joint_batch(tmp_path):
    torch.multiprocessing.spawn(_train_rank, args=(2, str(tmp_path / "rendezvous")), nprocs=2)
