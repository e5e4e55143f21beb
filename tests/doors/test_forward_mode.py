"""Forward mode: tangents of x and the duals, against reverse mode and finite differences."""

import functools

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

import linsat

F64 = torch.float64
close = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-9)


def by_dual_tensors(function, at):
    """The Jacobian, one tangent at a time."""
    columns = []
    for way in torch.eye(at.numel(), dtype=at.dtype):
        with forward_ad.dual_level():
            answer = function(forward_ad.make_dual(at, way.reshape(at.shape)))
            columns.append(forward_ad.unpack_dual(answer).tangent)
    return torch.stack(columns, -1).reshape((*columns[0].shape, *at.shape))


WAYS = {
    "functional": functools.partial(torch.autograd.functional.jacobian, strategy="forward-mode", vectorize=True),
    "jacfwd": lambda function, at: jacfwd(function)(at),
    "jacfwd without gradients": lambda function, at: torch.no_grad()(jacfwd(function))(at),
    "make_dual": by_dual_tensors,
}
AT = {
    "y": torch.tensor([[0.4, -0.3, 1.1, 0.2], [-0.7, 0.9, 0.1, 0.6]], dtype=F64),
    "A": torch.tensor([[0.5, 0.9, 0.2, 0.7], [0.8, 0.1, 0.6, 0.3]], dtype=F64),
    "b": torch.tensor([[0.6, 0.6], [0.6, 0.5]], dtype=F64),
    "lower": torch.tensor([0.0, -0.1, 0.1, 0.0], dtype=F64),
    "upper": torch.tensor([1.0, 0.4, 0.5, 0.8], dtype=F64),
    "price": torch.tensor([0.05], dtype=F64),
    "number": torch.tensor([0.3, 0.6], dtype=F64),
}
OBJECTIVES = {
    "entropy": lambda number: linsat.Entropy(tau=number),
    "no slack": lambda number: linsat.Entropy(tau=number, slack="none"),
    "euclidean": lambda number: linsat.Euclidean(weights=1 + number[:, None] * torch.arange(4)),
}


def solution(objective, **replaced):
    at = AT | replaced
    cons = linsat.Constraints(
        A=at["A"], b=at["b"], E=torch.ones(1, 4, dtype=F64), f=[1.3], lower=at["lower"], upper=at["upper"]
    )
    soft = cons.soften([1], price=at["price"])
    return linsat.solve(at["y"], soft, objective=OBJECTIVES[objective](at["number"]), on_failure="raise")


@pytest.mark.parametrize("name", AT)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_tangents_of_x_and_duals_equal_reverse_mode(objective, name):
    for part in ("x", "duals"):
        function = lambda value: getattr(solution(objective, **{name: value}), part)  # noqa: B023, E731
        expected = torch.autograd.functional.jacobian(function, AT[name])
        assert expected.abs().max() > 1e-3 or (part, name) == ("duals", "price")
        for way in WAYS.values():
            close(way(function, AT[name]), expected)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_tangents_equal_finite_differences(objective):
    generator = torch.Generator().manual_seed(0)
    ways = {name: torch.randn(at.shape, generator=generator, dtype=F64) for name, at in AT.items()}
    with forward_ad.dual_level():
        moved = solution(objective, **{name: forward_ad.make_dual(at, ways[name]) for name, at in AT.items()})
        tangents = [forward_ad.unpack_dual(part).tangent for part in (moved.x, moved.duals)]
    h = 1e-5
    ahead, behind = (solution(objective, **{n: at + s * ways[n] for n, at in AT.items()}) for s in (h, -h))
    for tangent, one, other in zip(tangents, (ahead.x, ahead.duals), (behind.x, behind.duals), strict=True):
        torch.testing.assert_close(tangent, (one - other) / (2 * h), rtol=1e-5, atol=1e-6)


CONS = linsat.Constraints(A=AT["A"], b=[0.7, 0.6])


@pytest.mark.parametrize("objective", [linsat.Entropy(tau=0.3), linsat.Entropy(tau=0.3, slack="none")])
def test_second_derivatives_and_maps(objective):
    def project(y, b=None):
        return linsat.project(y, CONS if b is None else CONS.with_rhs(b=b), objective=objective)

    y, b = AT["y"], AT["b"]
    expected = torch.stack([jacrev(jacrev(project))(one) for one in y])
    assert expected.abs().max() > 0.1
    for twice in (hessian, lambda f: jacfwd(jacfwd(f)), lambda f: jacrev(jacfwd(f))):
        close(twice(project)(y[0]), expected[0])
    close(vmap(hessian(project))(y), expected)
    close(jacfwd(vmap(project))(y), jacrev(project)(y))
    for once in (jacfwd(project, argnums=1), hessian(project, argnums=1)):
        close(vmap(once)(y, b), torch.stack([once(*one) for one in zip(y, b, strict=True)]))
    loss, way = torch.arange(4, dtype=F64), torch.tensor([0.3, -1.0, 0.2, 0.7], dtype=F64)
    along = torch.einsum("i,ijk,k->j", loss, expected[0], way)
    with forward_ad.dual_level():  # forward over reverse
        dual = forward_ad.make_dual(y[0].clone().requires_grad_(), way)
        (gradient,) = torch.autograd.grad((project(dual) * loss).sum(), dual)
        close(forward_ad.unpack_dual(gradient).tangent, along)
    leaf = y[0].clone().requires_grad_()  # reverse over forward
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(project(forward_ad.make_dual(leaf, way))).tangent
    close(torch.autograd.grad((tangent * loss).sum(), leaf)[0], along)


def test_a_tangent_of_the_gradient_that_comes_in():
    """Backward is linear: the tangent of J' w is J' v, also where x was computed before forward mode began."""
    y = AT["y"][0].clone().requires_grad_()
    x = linsat.project(y, CONS, tau=0.3)
    loss, way = torch.arange(4, dtype=F64), torch.tensor([0.3, -1.0, 0.2, 0.7], dtype=F64)
    with forward_ad.dual_level():
        (gradient,) = torch.autograd.grad(x, y, forward_ad.make_dual(loss, way), retain_graph=True)
        found = forward_ad.unpack_dual(gradient).tangent
    close(found, torch.autograd.grad(x, y, way)[0])


def test_other_precisions_shapes_and_doors():
    y = AT["y"].float()
    found = jvp(lambda y: linsat.project(y, CONS, tau=0.3), (y,), (torch.ones_like(y),))[1]
    expected = jvp(lambda y: linsat.project(y, CONS, tau=0.3), (y.double(),), (torch.ones_like(y).double(),))[1]
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    X, Y = linsat.Variable(2, name="X"), linsat.Variable(3, name="Y")
    named = linsat.LinSAT(linsat.subject_to(X.sum() + Y.sum() <= 1.5), tau=0.3)
    parts = {"X": torch.tensor([0.3, 0.8], dtype=F64), "Y": torch.tensor([0.1, 0.5, 0.9], dtype=F64)}
    forward, reverse = jacfwd(named)(parts), jacrev(named)(parts)
    for one in parts:
        for other in parts:
            close(forward[one][other], reverse[one][other])
    square = linsat.constraints.doubly_stochastic(2)
    for solver in (linsat.Sinkhorn(), linsat.Sinkhorn(gradient="unrolled")):
        function = lambda y: linsat.project(y, square, tau=0.5, solver=solver)  # noqa: B023, E731
        torch.testing.assert_close(jacfwd(function)(AT["y"][0]), jacrev(function)(AT["y"][0]), rtol=0, atol=1e-7)


def test_instances_that_were_not_solved_have_no_tangent():
    cons = linsat.Constraints(A=[[1.0, 1.0]], b=[[1.0], [-1.0]])
    y = torch.tensor([[0.5, 1.0], [0.5, 1.0]], dtype=F64)
    for on_failure in ("ignore", "nan"):
        project = functools.partial(linsat.project, constraints=cons, tau=0.3, on_failure=on_failure)
        found = jvp(project, (y,), (torch.ones_like(y),))[1]
        assert (found[1] == 0).all()
        assert (found[0] > 0).all()


def test_fenchel_young_losses():
    """The gradient is x - t, in the direction of the tangent; to tau by finite differences."""
    target, y = linsat.project(-AT["y"], CONS, tau=0.3), AT["y"]
    tau = torch.tensor(0.3, dtype=F64)
    loss = lambda y, tau: linsat.fenchel_young_loss(y, target, CONS, tau=tau, reduction="sum")  # noqa: E731
    close(by_dual_tensors(lambda y: loss(y, 0.3), y), linsat.project(y, CONS, tau=0.3) - target)
    h = 1e-5
    expected = (loss(y, 0.3 + h) - loss(y, 0.3 - h)) / (2 * h)
    torch.testing.assert_close(by_dual_tensors(lambda tau: loss(y, tau), tau), expected, rtol=1e-5, atol=1e-6)
    sides = torch.tensor([0.7, 0.6], dtype=F64)
    with torch.no_grad(), forward_ad.dual_level():
        moving = CONS.with_rhs(b=forward_ad.make_dual(sides, sides))
        with pytest.raises(linsat.ConstraintError, match="which this loss does not give"):
            linsat.fenchel_young_loss(y, target, moving)


def test_what_forward_mode_cannot_do_is_rejected():
    step = lambda y: jvp(lambda y: linsat.project(y, CONS), (y,), (y,))[1]  # noqa: E731
    with pytest.raises(Exception, match="torch.compile cannot follow forward mode"):
        torch.compile(step, fullgraph=True, backend="aot_eager")(AT["y"])
    close(torch.compile(step, backend="aot_eager")(AT["y"]), step(AT["y"]))  # outside of the graph
    count = 2100
    many = linsat.Constraints(A=np.eye(count), b=0.7, E=np.ones((1, count)), f=[float(count // 2)])
    y = torch.zeros(count, dtype=F64)
    with pytest.raises(linsat.ConstraintError, match="forward mode .* need a dense Hessian"):
        jvp(lambda y: linsat.project(y, many, objective=linsat.Euclidean()), (y,), (y,))
