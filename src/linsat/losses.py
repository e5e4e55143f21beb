r"""Losses between scores and a known decision: Fenchel-Young, exact or by perturbation.

A Fenchel-Young loss (Blondel, Martins and Niculae, 2020) compares scores y with a target t of the set,

    L(y; t) = max over the set of [<y, x> - Omega(x)]  +  Omega(t)  -  <y, t>,

with Omega the objective of the projection. It is convex in y, at least zero, zero exactly where ``project(y) == t``,
and its gradient is x(y) - t: one solve gives value and gradient, without an adjoint.

At the duals mu of the solve it is a sum of terms that are at least zero each (u = linear(y) + A'mu):

    sum_j [psi_j(u_j) + omega_j(t_j) - u_j t_j]     how far t is from what u asks for
    sum_i mu_i (a_i t - b_i)                        rows that push at x(y) and hold with room at t; plus prices paid
    tau sum_i S_i / rho_i KL(z_i(t), z_i(x))        only with the paper's entropic slack: shares z = (B - A x) / S

so it is never a small difference of large numbers, and mu short of the optimum makes it too large, never negative.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from linsat._forks import one_thread_after_a_fork
from linsat._transforms import has_tangent, mapped, outside_graphs
from linsat.arrays.problem import Problem, StandardForm
from linsat.constraints.arrays import given_tensor
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import flatten, holds_tensors
from linsat.errors import ConstraintError
from linsat.exact import argmax
from linsat.native.batch import Answer
from linsat.objectives import Entropy, Euclidean, Objective
from linsat.objectives.quadratic import Matrix
from linsat.plan import Solver
from linsat.request import OnFailure, Options, Request, read_objective
from linsat.status import Status
from linsat.torch.call import Reading, TensorCall, as_tensors, scores_from_numpy
from linsat.torch.projection import solve_flat

Reduction = Literal["mean", "sum", "none"]
_FEASIBLE = 1e-5  # a target in float32 holds long rows to this


@one_thread_after_a_fork
@outside_graphs
def fenchel_young_loss(
    y: Any,
    target: Any,
    constraints: Constraints,
    *,
    objective: Objective | None = None,
    tau: Any = None,
    solver: Solver | None = None,
    reduction: Reduction = "mean",
    on_failure: OnFailure = "raise",
) -> Any:
    """How far scores are from making ``target`` the answer of `linsat.project`; for training on known decisions.

    At least zero, zero exactly where ``project(y) == target``, convex in y. The gradient is ``project(y) - target``
    (times the weights of `Euclidean`): as cheap as the value, and without kinks.

    Args:
        y: scores, in any shape that `linsat.project` takes; a cost to be minimised enters with a minus sign.
        target: points of the set, one per instance, like y; 0/1 decisions will do. No gradient reaches them.
        constraints: the rows and the box.
        objective: as in `linsat.project`. With entropic slack (the default) Omega counts the entropy of the slacks
            too, at the target as well, where the rows determine them. With `KL` on the simplex this is the
            cross-entropy of the softmax.
        tau: short for ``objective=linsat.Entropy(tau=tau)``; default 0.1.
        solver: as in `linsat.project`.
        reduction: ``"mean"`` or ``"sum"`` over all instances, or ``"none"``: one number for each.
        on_failure: as in `linsat.project`. Without a raise, an instance that was not solved has no gradient; under
            ``"nan"`` its loss is NaN.

    Returns:
        the loss in the dtype of y; a tensor, or a numpy array where y is one. Gradients reach y and the numbers of the
        objective. Cost: one forward projection; the backward pass is a subtraction.

    Raises:
        ConstraintError: malformed arguments; a target outside the set, or above its lower bound where y is -inf,
            which would cost infinitely much; an objective of one's own without `excess`; constraints with
            tensors that require gradients (use `linsat.project` and your own loss).
        InfeasibleError, ConvergenceError: as in `linsat.project`.
    """
    _check_reduction(reduction)
    objective = read_objective(objective, tau)
    if not issubclass(type(objective), Matrix) and "excess" not in vars(type(objective)):  # inherited, it is another's
        raise ConstraintError(
            f"objective is {type(objective).__name__}, which does not define `excess`; expected linsat.Entropy, KL, "
            f"Tsallis, Euclidean or Quadratic, whose Omega is known at the target. Fix: one of these, define "
            f"{type(objective).__name__}.excess, or your own loss on linsat.project."
        )
    if isinstance(constraints, Constraints) and constraints._terms is not None:
        raise ConstraintError(
            "constraints have formulas with abs, a maximum or a norm, for which there is no such loss. Fix: your own "
            "loss on linsat.project."
        )
    reading = _read(y, Request(constraints, {}, objective, Options(solver, on_failure)))
    _reject_transforms(reading)
    _reject_learned(constraints)
    t = _read_target(target, reading)
    return _finished(_losses(t, reading), reading, reduction, y)


def _read(y: Any, request: Request) -> Reading:
    return Reading.of(y if holds_tensors(y) else scores_from_numpy(y), request)


def _losses(t: Tensor, reading: Reading) -> Tensor:
    """One loss for each instance, (N,)."""
    flat, call = reading.scores.reshape(t.shape), reading.call()
    _reject_forbidden(t, reading, call.objective.held)
    numbers = call.tensors()
    form = call.plan.kept_form(numbers)
    room = form.rhs - form.rows.matvec(t)  # B - A t
    if not _surely_inside(t, room, form):
        _reject_outside(t, reading)
    with torch.no_grad():
        answer = as_tensors(solve_flat(call, flat.detach()))
    scores, failed = flat.to(torch.float64), None if answer.solved else answer.codes != Status.CONVERGED.code
    if failed is not None:  # they may be NaN, and times a gradient of zero stay so
        scores = scores.masked_fill(failed[:, None] & ~torch.isfinite(scores) & ~torch.isneginf(scores), 0.0)
    if isinstance(call.objective, Matrix):
        return _masked(_matrix_loss(call, scores, answer.x.to(torch.float64), t), failed, call, answer)
    problem = call.plan.problem(numbers, scores, call.objective, answer.decided)
    room = problem.rhs - problem.rows.matvec(t)  # where scores are -inf the box is another, and with it the slack
    mu = answer.duals.detach() * problem.scale
    if any(number.requires_grad or has_tangent(number) for number in call.objective.parameters().values()):
        loss = _loss_at(mu, t, room, problem)
    else:
        with torch.no_grad():
            value, direction = _loss_at(mu, t, room, problem), answer.x.to(torch.float64) - t
            if failed is not None:
                direction = direction.masked_fill(failed[:, None], 0.0)  # where x may be NaN
        loss = _with_gradient(value, problem.objective.linear(problem.scores), direction)
    return _masked(loss, failed, call, answer)


def _masked(loss: Tensor, failed: Tensor | None, call: TensorCall, answer: Answer) -> Tensor:
    """The losses, without gradients of instances that were not solved."""
    if failed is None:
        return loss
    loss = torch.where(failed, torch.nan if call.options.on_failure == "nan" else loss.detach(), loss)
    return loss.masked_fill(answer.codes == Status.NOT_FINITE.code, torch.nan)


def _matrix_loss(call: TensorCall, scores: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """What the target falls short of x, (N,): x is a constant, because at the optimum its derivative vanishes.

    (c - P (x + t) / 2)' (x - t), and what each pays for soft rows that it breaks.
    """
    l = t.shape[-1]
    objective = call.objective
    assert isinstance(objective, Matrix)
    held = torch.isneginf(scores)
    y = torch.where(held, t, scores)
    y = objective.linear(y)
    x = torch.where(torch.isfinite(x), x.detach(), t)
    loss = ((y - objective.times((x + t) / 2)) * torch.where(held, 0.0, x - t)).sum(-1)
    broken = [call.constraints._soft_violation(point.reshape(*call.batch_shape, l), 0.0) for point in (x, t)]
    price = torch.where(torch.isfinite(call.tensors().price), call.tensors().price, 0.0)
    paid = [(price * part.reshape(len(t), -1)).sum(-1) for part in broken]
    loss = loss + paid[1] - paid[0]
    return loss - loss.detach().clamp_max(0.0)  # rounding, without a gradient


def perturbed_fenchel_young_loss(
    y: Any,
    target: Any,
    constraints: Constraints,
    *,
    sigma: float = 1.0,
    samples: int = 1,
    generator: torch.Generator | None = None,
    reduction: Reduction = "mean",
) -> Any:
    """The Fenchel-Young loss of a randomly perturbed argmax (Berthet et al., 2020), by sampling; a baseline.

    ``mean over samples of [max <y + sigma Z, x>] - <y, target>`` with Z standard normal: an unbiased estimate of the
    loss but for the constant Omega(target), which has no closed form, so it may be negative. The gradient is the mean
    of ``argmax(y + sigma Z) - target``, noisy, where `fenchel_young_loss` has an exact one.

    Args:
        y, target, constraints, reduction: as in `fenchel_young_loss`.
        sigma: size of the perturbation, positive.
        samples: linear programs per instance and call.
        generator: of the perturbations, on the CPU; default: torch's own.

    Cost: ``samples`` calls of `linsat.argmax`.

    Raises:
        ConstraintError, InfeasibleError: as in `linsat.argmax`, and for a target outside the set.
    """
    _check_reduction(reduction)
    if not (isinstance(sigma, (int, float)) and 0 < sigma < float("inf")):
        raise ConstraintError(f"sigma is {sigma!r}; expected a positive number. Fix: for example sigma=1.0.")
    if not isinstance(samples, int) or samples < 1:
        raise ConstraintError(f"samples is {samples!r}; expected a positive integer. Fix: samples=1.")
    reading = _read(y, Request(constraints, {}, Euclidean()))
    _reject_transforms(reading)
    t = _read_target(target, reading)
    _reject_forbidden(t, reading)
    _reject_outside(t, reading)
    whole = reading.scores.reshape(t.shape).to(torch.float64)
    held = torch.isneginf(whole.detach())
    scores = whole.masked_fill(held, 0.0)
    with torch.no_grad():
        noise = torch.randn((samples, *scores.shape), generator=generator, dtype=torch.float64, device="cpu")
        perturbed = scores + sigma * noise.to(scores.device)
        drawn = perturbed.masked_fill(held, -torch.inf).reshape(samples, *reading.batch_shape, -1)
        x = argmax(drawn, constraints).reshape(perturbed.shape)
        best = (perturbed * x).sum(-1).mean(0)
        direction = x.mean(0) - t
        value = best - (scores * t).sum(-1)
    return _finished(_with_gradient(value, scores, direction), reading, reduction, y)


def _with_gradient(value: Tensor, scores: Tensor, direction: Tensor) -> Tensor:
    """The value (N,) as a function of the scores (N, l) with that gradient, in forward mode too."""
    linear = torch.linalg.vecdot(scores, direction)
    return value.detach() + (linear - linear.detach())


def _loss_at(mu: Tensor, t: Tensor, room: Tensor, problem: Problem) -> Tensor:
    """The loss (N,) at duals mu, which are constants: at the optimum their derivative vanishes."""
    p, objective = problem.presolved, problem.objective
    u = problem.adjusted(mu)
    loss = torch.where(p.free, objective.excess(u, t, problem.lower, problem.upper), 0.0).sum(-1)
    rows = _row_terms(mu, room, problem)
    if isinstance(objective, Entropy) and objective.entropic_slack:
        mass, tau = problem.slack, objective.temperature
        entropic = p.active & ~p.tight & (mass > 0)
        share = torch.where(entropic, room / torch.where(entropic, mass, 1.0), 0.5)
        paid = (mass / problem.scale) * tau * objective.divergence(share, mu / tau)
        rows = torch.where(entropic, paid, rows)
    loss = loss + torch.where(p.active, rows, 0.0).sum(-1)
    return loss - loss.detach().clamp_max(0.0)  # rounding, without a gradient


def _row_terms(mu: Tensor, room: Tensor, problem: Problem) -> Tensor:
    """mu (a t - b) of each row, and what the target pays for soft rows that it breaks, (N, k)."""
    p, soft = problem.presolved, problem.soft
    excess = -room
    if problem.objective.entropic_slack:
        excess = excess + problem.slack * torch.where(p.tight, p.tight_share, 0.0)
    price = torch.where(soft, torch.where(excess > 0, -problem.dual_lower, problem.dual_upper), 0.0)
    return mu * excess / problem.scale + price * excess.abs()


def _read_target(target: Any, reading: Reading) -> Tensor:
    """Targets (N, l) in float64 on the device of the scores."""
    constraints, scores = reading.constraints, reading.scores

    def read(name: str, value: Any) -> Tensor:
        try:
            return given_tensor(value).detach().to(scores.device, torch.float64)
        except (TypeError, ValueError, RuntimeError):
            raise ConstraintError(
                f"{name} is {type(value).__name__}; expected a point of the set for each instance."
            ) from None

    t = flatten("target", target, constraints._layout, scores.shape[-1], read)[0]
    shape = (*reading.batch_shape, scores.shape[-1])
    try:
        t = t.expand(shape)
    except RuntimeError:
        raise ConstraintError(
            f"target has shape {tuple(t.shape)} but y has {shape}, flat; expected one target for each instance."
        ) from None
    return t.reshape(-1, t.shape[-1])


def _surely_inside(t: Tensor, room: Tensor, form: StandardForm) -> bool:
    """Whether every row and bound holds to the tolerance without regard to its size, which is quickly seen."""
    above = (room >= -_FEASIBLE) | torch.isfinite(form.dual_lower)  # a finite dual: a row the other way, or soft
    below = (room <= form.slack + _FEASIBLE) | torch.isfinite(form.dual_upper)
    boxed = (t >= form.lower - _FEASIBLE) & (t <= form.upper + _FEASIBLE)
    return bool((above & below).all()) and bool(boxed.all())


def _reject_forbidden(t: Tensor, reading: Reading, held: Tensor | None = None) -> None:
    """Raise where a target leaves the lower bound at a score of -inf or a prior of 0: there the loss is infinite."""
    forbidden = torch.isneginf(reading.scores.detach()).reshape(t.shape)
    forbidden = forbidden if held is None else forbidden | held
    if not bool(forbidden.any()):
        return
    constraints = reading.constraints
    lower = constraints.lower.detach().to(t.device, torch.float64).expand(*reading.batch_shape, t.shape[-1])
    lower = lower.reshape(t.shape)
    wrong = forbidden & ~(t <= lower + _FEASIBLE)
    if bool(wrong.any()):
        instance, variable = wrong.nonzero()[0].tolist()
        where = "y is -inf" if held is None else "y is -inf or the prior 0"
        raise ConstraintError(
            f"target of instance {instance} has {constraints._variable_name(variable)} = "
            f"{float(t[instance, variable]):g} where {where}, so the loss is infinite; expected the lower bound, "
            f"{float(lower[instance, variable]):g}. Fix: a finite score there, or a target that respects the mask."
        )


def _reject_outside(t: Tensor, reading: Reading) -> None:
    """Raise where a target is not in the set, rows and bounds measured as everywhere."""
    violation = reading.constraints.violation(t.reshape(*reading.batch_shape, t.shape[-1])).reshape(-1)
    wrong = ~(violation <= _FEASIBLE)  # also where it is NaN
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        raise ConstraintError(
            f"target of instance {first} is not in the set: a row or bound is violated by "
            f"{float(violation[first]):.2g}. Fix: targets that satisfy the rows, such as linsat.project(t, ...) with "
            f"linsat.Euclidean()."
        )


def _reject_transforms(reading: Reading) -> None:
    if any(map(mapped, (reading.scores, *reading.objective.parameters().values()))):
        raise ConstraintError(
            "y, tau or weights belongs to a function transform (torch.func.grad, jvp, vmap, ...), which this loss does "
            'not follow. Fix: loss.backward() or torch.autograd.grad; reduction="none" in place of vmap.'
        )


def _reject_learned(constraints: Constraints) -> None:
    learned = constraints._learned_tensors() if torch.is_grad_enabled() else {}
    if learned or constraints._moving:
        raise ConstraintError(
            f"{next(iter(learned), 'a number')} of the constraints requires gradients, which this loss does not give. "
            f"Fix: .detach(), or linsat.project with your own loss."
        )


def _check_reduction(reduction: Any) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ConstraintError(f"reduction is {reduction!r}; expected 'mean', 'sum' or 'none'.")


def _finished(loss: Tensor, reading: Reading, reduction: str, y: Any) -> Any:
    """The losses (N,) reduced, in the dtype, device and kind of the scores y."""
    loss = loss.reshape(reading.batch_shape)
    loss = loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss
    loss = loss.to(reading.device, reading.dtype)
    return loss if holds_tensors(y) else loss.detach().numpy()
