"""Scores of -inf keep variables at their lower bounds; NaN and +inf spoil their own instance only."""

import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import linsat
from linsat.losses import perturbed_fenchel_young_loss
from tests.helpers.oracles import System, entropic_optimum, is_feasible, nearest_point, slack_free_optimum

F64 = torch.float64
INF, NAN = float("inf"), float("nan")
SMALL = 8  # seed of a drawn system whose second instance has a mask
TAU = 0.3
OBJECTIVES = {
    "paper": (linsat.Entropy(TAU), lambda s, y: entropic_optimum(s, y, TAU)),
    "no slack": (linsat.Entropy(TAU, slack="none"), lambda s, y: slack_free_optimum(s, y, TAU)),
    "nearest": (linsat.Euclidean(), nearest_point),
}
SOLVERS = {
    "default": None,
    "arrays": linsat.Newton(backend="arrays"),
    "interior point": linsat.Newton(backend="interior_point"),
}


def drawn(seed: int, variables: int = 7, instances: int = 5) -> tuple[System, np.ndarray, np.ndarray]:
    """Rows of every kind over a box with room, scores of some instances, and masks that leave the rows feasible."""
    rng = np.random.default_rng([seed, 29])
    point = rng.uniform(0.2, 0.8, variables)
    matrix = rng.choice([-1.0, 1.0], (4, variables)) * rng.uniform(0.3, 1.5, (4, variables))  # zeros would be kinks
    matrix[1] = np.abs(matrix[1])
    rhs = matrix @ point + np.array([0.2, -0.2, -0.2, 0.0])
    ends = np.full(variables, -0.1), np.full(variables, 1.2)
    system = System(matrix, ["<=", ">=", ">=", "=="], rhs, point, *ends)
    masks = rng.random((instances, variables)) < 0.25
    masks[0] = False
    for i, mask in enumerate(masks):
        if not is_feasible(closed(system, mask)):
            masks[i] = False
    assert masks.any()
    return system, rng.normal(size=masks.shape), masks


def closed(system: System, mask: np.ndarray) -> System:
    """The rows without the variables of a mask: these cannot leave their lower bounds."""
    upper = np.where(mask, system.lower, system.upper)
    return System(system.matrix, system.senses, system.rhs, system.point, system.lower, upper)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_optimum_without_the_forbidden_variables_is_clarabels(name, solver):
    objective, optimum = OBJECTIVES[name]
    judged = 0
    for seed in range(3):
        system, scores, masks = drawn(seed)
        cons = linsat.Constraints(**system.arguments())
        y = np.where(masks, -np.inf, scores)
        found = linsat.solve(y, cons, objective=objective, solver=SOLVERS[solver])
        assert found.converged.all()
        assert (found.x[masks] == -0.1).all()
        for i, mask in enumerate(masks):
            expected = optimum(closed(system, mask), scores[i])
            if expected is not None:  # Clarabel does not vouch for every entropic answer
                judged += bool(mask.any())
                np.testing.assert_allclose(found.x[i], expected, atol=2e-6)
            alone = linsat.project(y[i], cons, objective=objective, solver=SOLVERS[solver])
            np.testing.assert_allclose(alone, found.x[i], atol=1e-9)  # whatever the others of its batch mask
        again = linsat.project(y, cons, objective=objective, solver=SOLVERS[solver])  # the set has met -inf before
        np.testing.assert_array_equal(again, found.x)
    assert judged >= 4


@pytest.mark.parametrize("solver", [linsat.Newton(), linsat.Sinkhorn(tol=1e-10), linsat.Sinkhorn(gradient="unrolled")])
def test_on_the_simplex_it_is_the_same_with_fewer_entries(solver):
    """sum_j sigmoid((y_j + mu) / tau) = 1 over what is left, by bisection."""
    y = torch.tensor([0.4, -INF, 1.0, -INF, -0.3], dtype=F64, requires_grad=True)
    x = linsat.project(y, linsat.constraints.simplex(5), tau=TAU, solver=solver)
    left = np.array([0.4, 1.0, -0.3])
    mu = brentq(lambda mu: (1 / (1 + np.exp(-(left + mu) / TAU))).sum() - 1, -10, 10, xtol=1e-14)
    assert x[[1, 3]].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(x[[0, 2, 4]].detach(), 1 / (1 + np.exp(-(left + mu) / TAU)), atol=1e-6)
    x[2].backward()
    assert y.grad[[1, 3]].tolist() == [0.0, 0.0]
    assert float(y.grad[2]) > 0.1


def test_softmax_over_blocks_of_an_assignment():
    """A block-diagonal mask of doubly stochastic matrices is one such matrix per block."""
    y = torch.randn(6, 4, 4, dtype=F64)
    mask = torch.block_diag(torch.ones(2, 2), torch.ones(2, 2)).bool()
    x = linsat.project(y.masked_fill(~mask, -INF), linsat.constraints.doubly_stochastic(4))
    small = linsat.constraints.doubly_stochastic(2)
    for block in (slice(0, 2), slice(2, 4)):
        torch.testing.assert_close(x[:, block, block], linsat.project(y[:, block, block], small), atol=1e-8, rtol=0)
    assert not x[:, ~mask].any()


def tensors(system: System) -> tuple[torch.Tensor, ...]:
    matrix, rhs = torch.from_numpy(system.matrix), torch.from_numpy(system.rhs)
    bounds = torch.from_numpy(system.lower), torch.from_numpy(system.upper)
    given = (matrix[:1], rhs[:1], matrix[1:3], rhs[1:3], matrix[3:], rhs[3:], *bounds)
    return tuple(t.clone().requires_grad_() for t in given)


@pytest.mark.parametrize("door", ["eager", "vmap"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_to_every_number_are_those_of_finite_differences(name, door):
    system, scores, masks = drawn(SMALL, 4, 2)
    kind = OBJECTIVES[name][0]
    mask = torch.from_numpy(masks)
    number = torch.tensor(TAU if name != "nearest" else 1.3, dtype=F64, requires_grad=True)

    def x_of(y, number, A, b, C, d, E, f, lower, upper):
        made = linsat.Entropy(number, slack=kind.slack) if name != "nearest" else linsat.Euclidean(number.expand(4))
        cons = linsat.Constraints(A=A, b=b, C=C, d=d, E=E, f=f, lower=lower, upper=upper)
        masked = torch.where(mask, -INF, y)
        if door == "vmap":
            one = lambda y: linsat.project(y, cons, objective=made, solver=linsat.Newton(tol=1e-13))  # noqa: E731
            return torch.func.vmap(one)(masked)
        return linsat.project(masked, cons, objective=made, solver=linsat.Newton(tol=1e-13))

    given = (torch.from_numpy(scores).requires_grad_(), number, *tensors(system))
    assert gradcheck(x_of, given, atol=1e-6)


def test_second_derivatives():
    system, scores, masks = drawn(SMALL, 4, 2)
    cons, mask = linsat.Constraints(**system.arguments()), torch.from_numpy(masks)

    def x_of(y):
        masked = torch.where(mask, -INF, y)
        return linsat.project(masked, cons, objective=linsat.Entropy(TAU), solver=linsat.Newton(tol=1e-13))

    y = torch.from_numpy(scores).requires_grad_()
    assert gradgradcheck(x_of, (y,), atol=1e-5)
    weights = torch.linspace(-1, 1, y.numel(), dtype=F64).reshape(y.shape)
    loss = lambda y: (x_of(y) ** 2 * weights).sum()  # noqa: E731
    found = torch.func.jacrev(torch.func.jacrev(loss))(y.detach())
    torch.testing.assert_close(found, torch.autograd.functional.hessian(loss, y.detach()), atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_forward_mode_agrees_with_reverse_mode(name):
    system, scores, masks = drawn(SMALL)
    sides = {"b": "<=", "d": ">=", "f": "=="}
    cons, objective = linsat.Constraints(**system.arguments()), OBJECTIVES[name][0]
    y = torch.from_numpy(np.where(masks, -INF, scores))
    given = [torch.from_numpy(system.rhs[np.array(system.senses) == sense]) for sense in sides.values()]

    def x_of(y, *given):
        own = cons.with_rhs(**dict(zip(sides, given, strict=True)))
        return linsat.project(y, own, objective=objective, solver=linsat.Newton(tol=1e-13))

    every = tuple(range(1 + len(given)))
    expected = torch.func.jacrev(x_of, every)(y, *given)
    for found, reverse in zip(torch.func.jacfwd(x_of, every)(y, *given), expected, strict=True):
        torch.testing.assert_close(found, reverse, atol=1e-9, rtol=0)
    assert not expected[0][..., torch.isneginf(y)].any()
    assert float(expected[0].abs().max()) > 0.01
    direction = torch.from_numpy(np.random.default_rng(5).normal(size=y.shape))
    with forward_ad.dual_level():
        moved = forward_ad.unpack_dual(x_of(forward_ad.make_dual(y, direction), *given)).tangent
    torch.testing.assert_close(moved, (expected[0] * direction).sum((-2, -1)), atol=1e-9, rtol=0)
    mapped = torch.func.vmap(lambda y, v: torch.func.jvp(lambda y: x_of(y, *given), (y,), (v,))[1])(y, direction)
    torch.testing.assert_close(mapped, moved, atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, np.float32])
def test_every_dtype_and_numpy(dtype):
    cons = linsat.constraints.doubly_stochastic(3)
    scores = np.random.default_rng(3).normal(size=(4, 3, 3))
    scores[1, 0, 2] = scores[3, 1, 1] = -np.inf
    if dtype is np.float32:
        x = linsat.project(scores.astype(dtype), cons)
        assert isinstance(x, np.ndarray)
    else:
        y = torch.from_numpy(scores).to(dtype).requires_grad_()
        x = linsat.project(y, cons)
        x.float().square().sum().backward()
        assert torch.isfinite(y.grad).all()
        assert y.grad[1, 0, 2] == y.grad[3, 1, 1] == 0
    assert x.dtype == dtype
    assert x[1, 0, 2] == x[3, 1, 1] == 0
    worst = cons.violation(x)
    assert float(worst.max()) <= {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-6)


def test_dicts_empty_batches_and_other_calls_of_the_set():
    works, off = linsat.Variable(2, 3, name="works"), linsat.Variable(3, name="off")
    cons = linsat.subject_to((works.sum(1) == 1).named("one day"), works.sum(0) + off == 1)
    y = {"works": torch.randn(5, 2, 3), "off": torch.randn(5, 3)}
    clean = linsat.project(y, cons)
    masked = {name: t.clone() for name, t in y.items()}
    masked["works"][0, 0, 0] = masked["off"][1, 2] = -INF
    x = linsat.project(masked, cons)
    assert x["works"][0, 0, 0] == x["off"][1, 2] == 0
    torch.testing.assert_close(x["works"].sum(-1), torch.ones(5, 2))
    again = linsat.project(y, cons)
    assert all(torch.equal(again[name], clean[name]) for name in y)
    assert linsat.project(torch.empty(0, 9), cons).shape == (0, 9)
    masked["works"][2, 1] = -INF
    with pytest.raises(linsat.InfeasibleError, match=r"instance 2(.|\n)*works\[1, 0\](.|\n)*score of -inf") as error:
        linsat.project(masked, cons)
    assert error.value.rows == ("one day[1]",)


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
@pytest.mark.parametrize("door", ["eager", "vmap"])
def test_rows_that_cannot_hold_without_the_forbidden_fail_for_their_instance(shape, door):
    cons = linsat.constraints.doubly_stochastic(3)
    y = torch.zeros(*shape, 9, dtype=F64)
    y.reshape(-1, 9)[-1, :3] = -INF

    def x_of(y, **how):
        run = lambda y: linsat.project(y, cons, **how)  # noqa: E731
        return torch.func.vmap(run)(y) if door == "vmap" and shape else run(y)

    x = x_of(y, on_failure="nan").reshape(-1, 9)
    assert torch.isnan(x[-1]).all()
    torch.testing.assert_close(x[:-1], torch.full_like(x[:-1], 1 / 3))
    with pytest.raises(linsat.InfeasibleError, match="row sum"):
        x_of(y)
    if door == "eager":
        status = linsat.solve(y, cons, on_failure="ignore").status.reshape(-1)
        assert [str(s) for s in status] == ["converged"] * (len(status) - 1) + ["infeasible"]


def test_all_forbidden_and_none_below():
    caps = linsat.Constraints(A=np.ones((1, 4)), b=[1.0], lower=-0.5)
    for objective in (linsat.Entropy(), linsat.Entropy(slack="none"), linsat.Euclidean()):
        assert linsat.project(np.full((2, 4), -np.inf), caps, objective=objective).tolist() == [[-0.5] * 4] * 2
    below = linsat.Constraints(A=np.ones((1, 4)), b=[1.0], lower=-np.inf, upper=np.inf)
    with pytest.raises(linsat.ConstraintError, match=r"y holds -inf \(instance 1, variable x\[2\].*Fix: "):
        linsat.project(np.array([[0.0] * 4, [0.0, 0.0, -np.inf, 0.0]]), below, objective=linsat.Euclidean())


def test_per_instance_numbers_and_masks_together():
    """Each instance has its own budget and its own mask; Clarabel knows both."""
    budgets, rng = np.array([[1.0], [2.0], [0.5]]), np.random.default_rng(8)
    y, masks = rng.normal(size=(3, 4)), np.array([[1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0]], dtype=bool)
    cons = linsat.Constraints(E=np.ones((1, 4)), f=budgets)
    x = linsat.project(np.where(masks, -np.inf, y), cons, objective=linsat.Euclidean())
    for i in range(3):
        upper = np.where(masks[i], 0.0, 1.0)
        system = System(np.ones((1, 4)), ["=="], budgets[i], np.zeros(4), np.zeros(4), upper)
        np.testing.assert_allclose(x[i], nearest_point(system, y[i]), atol=1e-7)


def test_argmax_and_losses():
    simplex = linsat.constraints.simplex(3)
    y = torch.tensor([[0.2, -INF, 1.0], [3.0, 0.5, -INF]], dtype=F64, requires_grad=True)
    assert linsat.argmax(y, simplex).tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    target = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=F64)
    for objective in (linsat.Entropy(TAU), linsat.Entropy(TAU, slack="none"), linsat.Euclidean()):
        loss = linsat.fenchel_young_loss(y, target, simplex, objective=objective, reduction="none")
        for i, keep in enumerate(([0, 2], [0, 1])):  # the same loss over the two entries that are left
            two = linsat.constraints.simplex(2)
            expected = linsat.fenchel_young_loss(y[i, keep].detach(), target[i, keep], two, objective=objective)
            assert float(loss[i].detach()) == pytest.approx(float(expected), abs=1e-9)
        (gradient,) = torch.autograd.grad(loss.sum(), y)
        x = linsat.project(y.detach(), simplex, objective=objective)
        torch.testing.assert_close(gradient, x - target)
    noisy = perturbed_fenchel_young_loss(y, target, simplex, samples=4)
    assert torch.isfinite(noisy)
    for loss in (linsat.fenchel_young_loss, perturbed_fenchel_young_loss):
        with pytest.raises(linsat.ConstraintError, match=r"instance 1 has x\[2\] = 1 where y is -inf.*infinite.*Fix: "):
            loss(y, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=F64), simplex)
    with pytest.raises(linsat.ConstraintError, match="truth holds -inf"):
        linsat.exact.regret(torch.zeros(2, 3), y, simplex)


# ------------------------------------------------------------------ NaN and +inf

BAD = {"kernel": None, "arrays": linsat.Newton(backend="arrays"), "sinkhorn": linsat.Sinkhorn(tol=1e-9)}


@pytest.mark.parametrize("on_failure", ["nan", "warn", "ignore"])
@pytest.mark.parametrize("solver", [*BAD, "unrolled"])
def test_scores_that_are_no_numbers_spoil_their_own_instance_only(solver, on_failure):
    solver = linsat.Sinkhorn(tol=1e-9, gradient="unrolled") if solver == "unrolled" else BAD[solver]
    cons = linsat.constraints.doubly_stochastic(3)
    clean = torch.randn(4, 9, dtype=F64)
    expected = [linsat.project(y, cons, tau=TAU, solver=solver) for y in clean]
    y = clean.clone()
    y[1, 4], y[2, 0], y[1, 5] = NAN, INF, -INF
    y.requires_grad_()
    tau, sides = nn.Parameter(torch.tensor(TAU, dtype=F64)), nn.Parameter(torch.ones(6, dtype=F64))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = linsat.solve(y, cons.with_rhs(f=sides), tau=tau, solver=solver, on_failure=on_failure)
    assert [str(s) for s in found.status] == ["converged", "not_finite", "not_finite", "converged"]
    assert len(caught) == (on_failure == "warn")
    for i in (0, 3):
        torch.testing.assert_close(found.x[i], expected[i], atol=1e-9, rtol=0)
    assert torch.isnan(found.x[1:3]).all()
    found.x[found.converged].square().sum().backward()
    assert not y.grad[1:3].any()
    assert y.grad[[0, 3]].any(-1).all()
    for number in (y, tau, sides):
        assert torch.isfinite(number.grad).all()


def test_vmap_goes_on_without_such_instances_too():
    cons = linsat.constraints.doubly_stochastic(3)
    y = torch.randn(3, 9, dtype=F64)
    expected = linsat.project(y[0], cons)
    y[1, 4] = NAN

    def x_of(y):
        return linsat.project(y, cons, on_failure="nan")

    x = torch.func.vmap(x_of)(y)
    torch.testing.assert_close(x[0], expected, atol=1e-9, rtol=0)
    assert torch.isnan(x[1]).all()
    assert torch.isfinite(x[2]).all()


def test_raising_names_instance_and_variable():
    cons = linsat.constraints.doubly_stochastic(3)
    y = torch.zeros(2, 3, 3)
    y[1, 0, 2], y[0, 0, 0] = NAN, -INF
    for solver in BAD.values():
        with pytest.raises(linsat.ConstraintError, match=r"y holds nan \(instance 1, variable X\[0, 2\]\).*Fix: "):
            linsat.project(y, cons, solver=solver)
    y[1, 0, 2] = INF
    with pytest.raises(linsat.ConstraintError, match=r"y holds inf \(instance 1, variable X\[0, 2\]\).*Fix: "):
        linsat.project(y, cons)


def test_losses_go_on_without_such_instances():
    simplex, target = linsat.constraints.simplex(3), torch.eye(3, dtype=F64)[:2]
    y = torch.tensor([[0.2, 0.1, 1.0], [0.0, NAN, 0.0]], dtype=F64, requires_grad=True)
    tau = nn.Parameter(torch.tensor(TAU, dtype=F64))
    for on_failure in ("nan", "ignore"):
        for temperature in (TAU, tau):
            loss = linsat.fenchel_young_loss(
                y, target, simplex, tau=temperature, reduction="none", on_failure=on_failure
            )
            assert torch.isfinite(loss[0])
            assert torch.isnan(loss[1])
            y.grad = tau.grad = None
            loss[0].backward()
            assert not y.grad[1].any()
            assert y.grad[0].any()
            assert tau.grad is None or torch.isfinite(tau.grad)
