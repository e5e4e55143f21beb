"""Tensors and arrays whose memory alone does not say what they hold; default devices and dtypes of torch."""

import numpy as np
import pytest
import torch

import linsat
from linsat import decode, losses

F64 = torch.float64
TENSORS = {
    "y": torch.tensor([[0.4, -0.3, 1.1, 0.2], [-0.7, 0.9, 0.1, 0.6]], dtype=F64),
    "A": torch.tensor([[0.5, 0.9, 0.2, 0.7], [0.8, 0.1, 0.6, 0.3]], dtype=F64),
    "b": torch.tensor([[0.7, 0.6], [0.8, 0.5]], dtype=F64),
    "lower": torch.tensor([0.0, -0.1, 0.1, 0.0], dtype=F64),
    "upper": torch.tensor([1.0, 0.4, 1.2, 0.8], dtype=F64),
    "price": torch.tensor([0.1, 0.2], dtype=F64),
    "tau": torch.tensor([0.3, 0.6], dtype=F64),
    "weights": torch.tensor([1.0, 2.0, 3.0, 0.5], dtype=F64),
    "start": torch.tensor([[-0.1, 0.0], [-0.2, -0.3]], dtype=F64),
    "target": torch.tensor([[0.0, 0.1, 0.1, 0.0], [0.2, 0.0, 0.1, 0.1]], dtype=F64),
}


def negated(tensor):
    """The same numbers, as a view of their negatives with torch's negative bit."""
    view = torch._neg_view(-tensor)
    assert view.is_neg()
    return view


def answers(y, A, b, lower, upper, price, tau, weights, start, target):
    """What every door makes of these numbers."""
    cons = linsat.Constraints(A=A, b=b, lower=lower, upper=upper)
    shared = linsat.Constraints(A=A, b=b[0], lower=lower, upper=upper)
    nearest = linsat.Euclidean(weights=weights)
    solution = linsat.solve(y, cons.soften(price=price), tau=tau)
    found = {name: getattr(solution, name) for name in ("x", "duals", "violation", "broken")}
    for backend in ("kernel", "arrays", "interior_point"):
        solver = linsat.Newton(backend=backend)
        found[f"entropy, {backend}"] = linsat.project(y, cons, tau=tau, solver=solver)
        found[f"weighted, {backend}"] = linsat.project(y, cons, objective=nearest, solver=solver)
    found["constant tau"] = linsat.project(y, shared, tau=0.3)
    found["the same call again"] = linsat.project(y, shared, tau=0.3)
    found["warm"] = linsat.project(y, cons, tau=tau, start=start)
    found |= {"violation": cons.violation(target), "rows": cons.row_violation(target)}
    found |= {"argmax": linsat.argmax(y, cons), "repaired": decode.greedy_repair(y, cons).x}
    if not cons._learned_tensors():
        found["loss"] = linsat.fenchel_young_loss(y, target, cons, tau=tau, reduction="none")
    return found


@pytest.mark.parametrize("name", TENSORS)
def test_a_negative_bit_changes_nothing(name):
    expected = answers(**TENSORS)
    leaf = TENSORS[name].clone().requires_grad_()
    for given in (negated(TENSORS[name]), negated(leaf)):
        for door, found in answers(**TENSORS | {name: given}).items():
            torch.testing.assert_close(found.detach(), expected[door], rtol=0, atol=1e-9, msg=f"{name} in {door}")


def test_a_negative_bit_in_gradients_and_conjugates():
    """Onto sum x = 1 the projection of y is y - mean(y) + 1 / n, and so is J' of a gradient but for the constant."""
    simplex = linsat.Constraints(E=[[1.0, 1.0, 1.0, 1.0]], f=[1.0], lower=-10.0, upper=10.0)
    y = torch.complex(TENSORS["y"], -TENSORS["y"]).conj().imag
    assert y.is_neg()
    y.requires_grad_()
    nearest = linsat.Euclidean()
    for _ in range(2):
        x = linsat.project(y, simplex, objective=nearest)
        plain = TENSORS["y"]
        torch.testing.assert_close(x.detach(), plain - plain.mean(-1, keepdim=True) + 0.25, rtol=0, atol=1e-9)
        (gradient,) = torch.autograd.grad(x, y, negated(plain))
        torch.testing.assert_close(gradient, plain - plain.mean(-1, keepdim=True), rtol=0, atol=1e-9)
    mapped = torch.func.vmap(lambda y: linsat.project(y, simplex, objective=nearest))(y.detach())
    torch.testing.assert_close(mapped, x.detach(), rtol=0, atol=1e-9)


def arrangements(array):
    """The same numbers in other memory."""
    yield array.astype(">f8")
    yield array[..., ::-1].copy()[..., ::-1]
    yield np.repeat(array, 2, -1)[..., ::2]
    yield np.asfortranarray(array)
    frozen = array.copy()
    frozen.flags.writeable = False
    yield frozen


@pytest.mark.parametrize("name", TENSORS)
def test_arrays_of_any_strides_and_byte_order(name):
    arrays = {key: tensor.numpy() for key, tensor in TENSORS.items()}
    expected = answers(**arrays)
    for array in arrangements(arrays[name]):
        for door, found in answers(**arrays | {name: array}).items():
            np.testing.assert_allclose(found, expected[door], rtol=0, atol=1e-9, err_msg=f"{name} in {door}")


# ---------------------------------------------------------------------- defaults of torch


def every_call():
    """Calls with scores on the CPU, which must not care where torch makes other tensors."""
    y = TENSORS["y"].clone()
    cons = linsat.Constraints(A=[[1.0, 1.0, 1.0, 1.0]], b=[1.0])
    square = linsat.constraints.doubly_stochastic(2)
    layer = linsat.LinSAT(cons, tau=0.2)
    found = {**answers(**TENSORS), "layer": layer(y), "set": cons.matrix.to_dense()}
    scores, tau = y.clone().requires_grad_(), TENSORS["tau"].clone().requires_grad_()
    for rows in (cons, cons.with_rhs(b=TENSORS["b"][:, :1].clone().requires_grad_())):
        x = linsat.project(scores, rows, tau=tau)
        found |= dict(zip(("to y", "to tau"), torch.autograd.grad(x.square().sum(), (scores, tau)), strict=True))

    def project(y):
        return linsat.project(y, cons, tau=0.3)

    found["vmap"], found["jacrev"] = torch.func.vmap(project)(y), torch.func.jacrev(project)(y[0])
    found["jacfwd"] = torch.func.jacfwd(project)(y[0])
    torch.compiler.reset()
    found["graph"] = torch.compile(project, fullgraph=True, backend="aot_eager")(y)
    for gradient in ("implicit", "unrolled"):
        found[gradient] = linsat.project(y, square, tau=0.5, solver=linsat.Sinkhorn(gradient=gradient))
    found["list of tau"] = linsat.project(y, cons, tau=[0.1, 0.2])
    found["list of weights"] = linsat.project(y, cons, objective=linsat.Euclidean(weights=[1.0, 2.0, 3.0, 4.0]))
    found["each"] = torch.stack(linsat.project_each([y, y], [cons, cons.with_rhs(b=[2.0])]))
    torch.manual_seed(0)
    found["perturbed"] = losses.perturbed_fenchel_young_loss(y, torch.zeros_like(y), cons)
    with pytest.raises(linsat.InfeasibleError):
        linsat.project(y, linsat.Constraints(A=[[1.0] * 4], b=[1.0], C=[[1.0] * 4], d=[2.0]))
    return found


def same(found, expected):
    for door, value in found.items():
        assert value.device.type == "cpu", door
        torch.testing.assert_close(value.detach(), expected[door].detach(), rtol=0, atol=1e-12, msg=door)


def test_the_default_device_changes_nothing():
    """A meta tensor has no memory, so that a kernel which reads or writes one ends the process."""
    expected = every_call()
    with torch.device("meta"):
        same(every_call(), expected)
    torch.set_default_device("meta")
    try:
        same(every_call(), expected)
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_default_dtype_changes_nothing(dtype):
    expected, before = every_call(), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        same(every_call(), expected)
    finally:
        torch.set_default_dtype(before)
