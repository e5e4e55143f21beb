"""Newton's method on the dual with temperature continuation: the default solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from linsat._equations import Program, Tensor
from linsat._linalg import cholesky_solve, scaled_cholesky
from linsat.errors import ConstraintError
from linsat.solvers.fused import run_kernel
from linsat.solvers.outcome import Outcome, farkas_gap
from linsat.status import Status

# Constants of the method; found on random systems (positive, signed, degenerate) from tau = 1 to 0.001.
_LOOSE_RESIDUAL = 0.3  # intermediate temperatures are only solved to this
_COOLING = 0.5  # one temperature to the next
_START_TEMPERATURE = 0.05  # of the largest |score|
# Regularisation of the Hessian, times residual / temperature: least, first and largest. The least is next to nothing,
# so that directions of hardly any curvature (nearly parallel rows) are still followed.
_DAMPING = (1e-9, 1e-2, 1.0)
_BACKTRACKS = 12
_MOST_GROUPS = 4  # a first sweep evaluates everything once per group of disjoint rows; beyond this it does not pay
_CERTIFICATE_EVERY = 8  # steps between two looks for a proof of infeasibility


@dataclass(frozen=True)
class Newton:
    """Solve by Newton's method on the dual potential; holds feasible systems of any sign and scale, or says it did not.

    Args:
        tol: largest residual of any row, relative to the row's mean coefficient, at which an instance has converged.
            One more step is taken then, so the rows usually hold far better.
        max_steps: hard limit of Newton steps per instance, over all temperatures.

        backend: ``"auto"`` runs the fused kernel on the CPU and torch operations everywhere else; ``"torch"`` always
            the latter; ``"kernel"`` raises where the kernel cannot be used.

    Cost per step and instance: O(pairs of rows sharing a variable) to assemble the Hessian and O(rows^3 / 3) to factor
    it; typically 8 to 30 steps. Memory O(variables + rows^2) per instance, whatever the number of steps. Gradients are
    implicit and exact. Fails (status, never silently) for infeasible instances, or when rounding hides the last digits
    of very badly scaled rows.
    """

    tol: float = 1e-9
    max_steps: int = 200
    backend: Literal["auto", "torch", "kernel"] = "auto"

    def __post_init__(self) -> None:
        if not 0 < self.tol < 1:
            raise ConstraintError(f"tol is {self.tol}; expected a number between 0 and 1, such as 1e-9.")
        if not isinstance(self.max_steps, int) or self.max_steps < 1:
            raise ConstraintError(f"max_steps is {self.max_steps}; expected a positive integer.")
        if self.backend not in ("auto", "torch", "kernel"):
            raise ConstraintError(f"backend is {self.backend!r}; expected 'auto', 'torch' or 'kernel'.")

    @property
    def gamma_shift(self) -> float:
        """Added to d in the multiplier of covering rows (`linsat._equalities`)."""
        return 0.0

    @property
    def presolves(self) -> bool:
        """Whether forced variables and rows that cannot bind are taken out first."""
        return True

    def run(self, program: Program, tau: Tensor, start: Tensor | None = None) -> Outcome:
        """Solve every instance of the program; tau is (N,), start are duals (N, k) of an earlier solve."""
        with torch.no_grad():
            if self.backend != "torch":
                outcome = run_kernel(
                    program,
                    tau,
                    start,
                    tol=self.tol,
                    max_steps=self.max_steps,
                    required=self.backend == "kernel",
                )
                if outcome is not None:
                    return outcome
            return _Run(self, program, tau[:, None], start).outcome()


class _Run:
    """The state of one batch; instances that are done leave it."""

    def __init__(self, options: Newton, program: Program, tau: Tensor, start: Tensor | None) -> None:
        count = program.scores.shape[0]
        self.options = options
        reach = (program.width * program.scores * program.reduction.free).abs().amax(-1, keepdim=True)
        self.result = Outcome.empty(program, count)
        self.cold = start is None
        self.program, self.tau, self.reach = program, tau, reach
        self.index = torch.arange(count, device=tau.device)
        self.temperature = torch.maximum(tau, _START_TEMPERATURE * reach)
        self.mu = torch.zeros_like(self.result.mu)
        self.damping = torch.full_like(tau, _DAMPING[1])
        self.stride = torch.ones_like(tau)
        self.linear = program.linear_term()
        if start is not None:
            self._use(start)

    def _use(self, start: Tensor) -> None:
        """Begin at duals of an earlier solve, at the final temperature, where they are better than none."""
        *_, given = self.program.evaluate(start, self.tau, self.linear)
        *_, blank = self.program.evaluate(self.mu, self.tau, self.linear)
        better = (given <= blank)[:, None]
        self.mu = torch.where(better, start, self.mu)
        self.temperature = torch.where(better, self.tau, self.temperature)

    def outcome(self) -> Outcome:
        if not bool(self.program.reduction.active.any()):
            self.result.codes.fill_(Status.CONVERGED.code)  # nothing binds: mu = 0 is the solution
            return self.result
        self._evaluate()
        if self.cold:
            self._sweep()
        for step in range(self.options.max_steps + 1):
            self._retire_converged(step)
            if step and step % _CERTIFICATE_EVERY == 0:
                self._retire(farkas_gap(self.program, self.mu) > 0, Status.INFEASIBLE, step)
            if self.index.numel() == 0:
                return self.result
            if step < self.options.max_steps:
                stalled = self._step()
                self._retire(stalled, Status.STALLED, step + 1)
        everything = torch.ones_like(self.index, dtype=torch.bool)
        self._retire(everything, Status.STEP_LIMIT, self.options.max_steps)
        return self.result

    def _evaluate(self) -> None:
        values = self.program.evaluate(self.mu, self.temperature, self.linear)
        self.p, self.z, self.residual, self.phi = values
        self.error = _largest(self.residual)

    def _sweep(self) -> None:
        """One Sinkhorn sweep over the groups of disjoint rows, kept by the instances whose potential it lowers.

        A start far better than mu = 0 for much less than a Newton step. Each row with non-negative coefficients
        multiplies the odds of its variables and slack by what would make it hold were its coefficients equal.
        """
        groups = self.program.rows.groups()
        if len(groups) > _MOST_GROUPS:
            return
        start, phi = self.mu, self.phi
        total = self.program.row_totals()
        cap = 10 * self.temperature + 0.5 * self.reach
        for members in groups:
            have = (self.residual + self.linear)[:, members]
            wanted, whole = self.linear[:, members], total[:, members]
            sides = torch.stack(torch.broadcast_tensors(wanted, whole - wanted, have, whole - have))
            usable = (whole > 0) & (sides.amin(0) > 1e-12 * whole)
            wanted, rest, have, left = torch.where(usable, sides, 1.0)
            change = (self.temperature * torch.log(wanted * left / (rest * have))).clamp(-cap, cap)
            self.mu = self.mu.index_add(1, members, change)
            self._evaluate()
        worse = (self.phi > phi)[:, None]
        if bool(worse.any()):
            self.mu = torch.where(worse, start, self.mu)
            self._evaluate()

    def _direction(self, cooler: Tensor) -> Tensor:
        """Newton's step towards the solution at the temperature ``cooler``, along the tangent of the path mu(T).

        The ridge in proportion to the residual keeps the step sensible where everything a row touches is saturated and
        its curvature nil; it vanishes at the solution, so convergence stays quadratic.
        """
        drift = self._drift() * (cooler - self.temperature)
        H = self.program.hessian(self.p, self.z, self.temperature)
        ridge = self.damping * self.error[:, None].clamp_max(1.0) / self.temperature
        H = H + torch.diag_embed(ridge.expand(self.mu.shape))
        step = -cholesky_solve(*scaled_cholesky(H), self.residual + drift)
        cap = self.stride * (10 * self.temperature + 0.5 * self.reach)
        return step * (cap / _largest(step)[:, None].clamp_min(1e-300)).clamp_max(1.0)

    def _drift(self) -> Tensor:
        """Derivative of the residual with respect to the temperature, mu held."""
        program, T = self.program, self.temperature
        r = program.reduction
        p_slope = -self.p * (1 - self.p) * program.logits(self.mu, T) / T * r.free
        z_slope = torch.where(r.tight, 0.0, -self.z * (1 - self.z) * self.mu / T**2)
        slope = (program.rows.apply(program.width * p_slope) + program.slack * z_slope) / program.scale
        return torch.where(r.active, slope, 0.0)

    def _step(self) -> Tensor:
        """One damped step for every instance, cooling those that are ready; returns which found no acceptable step."""
        cools = (self.error <= _LOOSE_RESIDUAL)[:, None] & (self.temperature > self.tau)
        cooler = torch.where(cools, torch.maximum(self.tau, _COOLING * self.temperature), self.temperature)
        direction = self._direction(cooler)
        if bool(cools.any()):
            self.temperature = cooler
            self._evaluate()
        stuck, length = self._search(direction)
        least, _, largest = _DAMPING
        full = length[:, None] == 1
        self.damping = torch.where(full, self.damping / 4, 4 * self.damping).clamp(least, largest)
        # Thin feasible sets have duals far away: whole steps that keep succeeding may grow longer.
        self.stride = torch.where(full, 2 * self.stride, self.stride / 2).clamp(1.0, 1e6)
        return stuck & ~cools.squeeze(-1)

    def _search(self, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Backtrack along the direction until the potential or the residual falls; keeps mu where neither does."""
        slope = (direction * self.residual).sum(-1).clamp_max(0.0)
        norm = self.residual.norm(dim=-1)
        length = torch.ones_like(self.phi)
        searching = torch.ones_like(self.phi, dtype=torch.bool)
        mu, p, z, residual, phi = self.mu, self.p, self.z, self.residual, self.phi
        for _ in range(_BACKTRACKS):
            trial = self.mu + length[:, None] * direction
            p_t, z_t, r_t, phi_t = self.program.evaluate(trial, self.temperature, self.linear)
            falls = phi_t <= self.phi + 1e-4 * length * slope
            # Close to the solution rounding hides the fall of the potential: there the residual decides.
            level = phi_t <= self.phi + 1e-12 * (1 + self.phi.abs())
            good = searching & (falls | (level & (r_t.norm(dim=-1) < norm)))
            pick = good[:, None]
            mu, p, z = torch.where(pick, trial, mu), torch.where(pick, p_t, p), torch.where(pick, z_t, z)
            residual, phi = torch.where(pick, r_t, residual), torch.where(good, phi_t, phi)
            searching = searching & ~good
            if not bool(searching.any()):
                break
            length = torch.where(searching, 0.3 * length, length)
        self.mu, self.p, self.z, self.residual, self.phi = mu, p, z, residual, phi
        self.error = _largest(residual)
        return searching, length

    def _retire_converged(self, step: int) -> None:
        done = (self.error <= self.options.tol) & (self.temperature <= self.tau).squeeze(-1)
        if not bool(done.any()):
            return
        polished = self._polish(done)
        self._retire(done, Status.CONVERGED, step, polished)

    def _polish(self, done: Tensor) -> Tensor:
        """One undamped step for the instances about to leave, kept only where it lowers the residual."""
        program, tau = self.program.select(done.nonzero().squeeze(-1)), self.tau[done]
        mu, residual = self.mu[done], self.residual[done]
        H = program.hessian(self.p[done], self.z[done], tau)
        better = mu - cholesky_solve(*scaled_cholesky(H), residual)
        improves = _largest(program.residual(better, tau)) < _largest(residual)
        polished = self.mu.clone()
        polished[done] = torch.where(improves[:, None], better, mu)
        return polished

    def _retire(self, which: Tensor, status: Status, step: int, mu: Tensor | None = None) -> None:
        if not bool(which.any()):
            return
        index = self.index[which]
        self.result.mu[index] = (self.mu if mu is None else mu)[which]
        self.result.codes[index] = status.code
        self.result.steps[index] = step
        stay = ~which
        keep = stay.nonzero().squeeze(-1)
        self.program = self.program.select(keep)
        self.linear = self.linear if self.linear.shape[0] == 1 else self.linear[keep]
        for name in (
            "index",
            "tau",
            "reach",
            "temperature",
            "damping",
            "stride",
            "mu",
            "p",
            "z",
            "residual",
            "phi",
            "error",
        ):
            setattr(self, name, getattr(self, name)[stay])


def _largest(rows: Tensor) -> Tensor:
    """Largest absolute entry of each instance, 0 where there are no rows."""
    return rows.abs().amax(-1) if rows.shape[-1] else rows.new_zeros(rows.shape[0])
