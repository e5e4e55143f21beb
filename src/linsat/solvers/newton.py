"""Newton's method on the dual with temperature continuation: the default solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from linsat._curvature import is_dense, newton_direction
from linsat._equations import Program, Tensor
from linsat._linalg import FIRST_RIDGE, LARGEST_RIDGE
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
_CERTIFICATE_EVERY = 8  # passes between two looks for a proof of infeasibility
# Passes between two looks at who is done. On the CPU a look costs nothing; elsewhere it makes the host wait for the
# device, which then runs out of work.
_LOOK_EVERY = 4
# The state of an instance, taken along when others leave the batch.
_STATE = (
    "index", "tau", "reach", "temperature", "damping", "ridge", "stride", "mu", "p", "z", "residual", "phi", "error",
    "steps", "direction", "length", "tries", "searching", "cooled", "stalled",
)  # fmt: skip


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
    it; typically 8 to 30 steps. Memory O(variables + rows^2) per instance, whatever the number of steps. Beyond 2,000
    rows conjugate gradients take the place of the factor: O(non-zeros) per iteration and in memory; there the rows hold
    to ``tol`` rather than better, and jacrev and vmap are refused. Gradients are implicit and exact. Fails (status,
    never silently) for infeasible instances, or when rounding hides the last digits of very badly scaled rows.
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
    """The state of one batch; instances that are done leave it.

    One pass of the loop is one evaluation of the program for every instance: the first try of a new step for some, a
    shorter try for those whose last one was refused. Nothing in a pass depends on numbers the host would have to read.
    """

    def __init__(
        self, options: Newton, program: Program, tau: Tensor, start: Tensor | None, look_every: int | None = None
    ) -> None:
        count = program.scores.shape[0]
        self.options = options
        self.look_every = look_every or (1 if tau.device.type == "cpu" else _LOOK_EVERY)
        reach = (program.width * program.scores * program.reduction.free).abs().amax(-1, keepdim=True)
        self.result = Outcome.empty(program, count)
        self.cold = start is None
        self.program, self.tau, self.reach = program, tau, reach
        self.index = torch.arange(count, device=tau.device)
        self.temperature = torch.maximum(tau, _START_TEMPERATURE * reach)
        self.mu = torch.zeros_like(self.result.mu)
        self.damping = torch.full_like(tau, _DAMPING[1])
        self.ridge = torch.full_like(tau, FIRST_RIDGE)
        self.stride = torch.ones_like(tau)
        self.linear = program.linear_term()
        self.steps = torch.zeros_like(self.index)
        self.direction = torch.zeros_like(self.mu)
        self.length, self.tries = torch.ones_like(tau[:, 0]), torch.zeros_like(self.index)
        self.searching, self.cooled, self.stalled = (torch.zeros_like(self.index, dtype=torch.bool) for _ in range(3))
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
        limit = self.options.max_steps
        for number in range(limit * _BACKTRACKS + 1):
            if number % self.look_every == 0 and self._look(number):
                return self.result
            self._pass()
        self._retire(torch.ones_like(self.searching), Status.STEP_LIMIT)
        return self.result

    def _look(self, number: int) -> bool:
        """Let those who are done leave; returns whether nobody is left."""
        self._retire_converged()
        self._retire(self.stalled, Status.STALLED)
        if number and number % _CERTIFICATE_EVERY == 0:
            self._retire(farkas_gap(self.program, self.mu) > 0, Status.INFEASIBLE)
        self._retire((self.steps >= self.options.max_steps) & ~self.searching, Status.STEP_LIMIT)
        return self.index.numel() == 0

    def _some(self, which: Tensor) -> bool:
        """Whether there are any, where asking costs nothing; elsewhere yes, and the work is masked."""
        return self.look_every > 1 or bool(which.any())

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

    def _find_direction(self, cooler: Tensor, fresh: Tensor) -> None:
        """Newton's step towards the solution at the temperature ``cooler``, along the tangent of the path mu(T).

        The damping in proportion to the residual keeps the step sensible where everything a row touches is saturated
        and its curvature nil; it vanishes at the solution, so convergence stays quadratic.
        """
        drift = self._drift() * (cooler - self.temperature)
        damping = self.damping * self.error[:, None].clamp_max(1.0) / self.temperature
        step, failed = newton_direction(
            self.program, (self.p, self.z), self.temperature, damping, self.ridge, self.residual + drift
        )
        cap = self.stride * (10 * self.temperature + 0.5 * self.reach)
        step = -step * (cap / _largest(step)[:, None].clamp_min(1e-300)).clamp_max(1.0)
        self.direction = torch.where(fresh[:, None], step, self.direction)
        # Dependent rows may need a larger ridge, from the next step on.
        grown = (100 * self.ridge).clamp_max(LARGEST_RIDGE)
        self.ridge = torch.where((failed & fresh)[:, None], grown, self.ridge)

    def _drift(self) -> Tensor:
        """Derivative of the residual with respect to the temperature, mu held."""
        program, T = self.program, self.temperature
        r = program.reduction
        p_slope = -self.p * (1 - self.p) * program.logits(self.mu, T) / T * r.free
        z_slope = torch.where(r.tight, 0.0, -self.z * (1 - self.z) * self.mu / T**2)
        slope = (program.rows.apply(program.width * p_slope) + program.slack * z_slope) / program.scale
        return torch.where(r.active, slope, 0.0)

    def _pass(self) -> None:
        """A new direction for every instance that is not searching along one, cooling those that are ready; one try."""
        fresh = ~self.searching
        ready = fresh & (self.error <= _LOOSE_RESIDUAL) & (self.temperature > self.tau).squeeze(-1)
        if self._some(fresh):
            cooler = torch.maximum(self.tau, _COOLING * self.temperature)
            cooler = torch.where(ready[:, None], cooler, self.temperature)
            self._find_direction(cooler, fresh)
            self.temperature = cooler
            if self._some(ready):
                self._evaluate()
            self.cooled = torch.where(fresh, ready, self.cooled)
            self.steps = self.steps + fresh
            self.length = torch.where(fresh, 1.0, self.length)
            self.tries = torch.where(fresh, 0, self.tries)
        accepted = self._try()
        self.tries = self.tries + 1
        gives_up = ~accepted & (self.tries >= _BACKTRACKS)
        self.stalled = self.stalled | (gives_up & ~self.cooled)
        self.searching = ~accepted & ~gives_up
        least, _, largest = _DAMPING
        full, shorter = (accepted & (self.length == 1))[:, None], (accepted | gives_up)[:, None]
        damping = torch.where(full, self.damping / 4, torch.where(shorter, 4 * self.damping, self.damping))
        self.damping = damping.clamp(least, largest)
        # Thin feasible sets have duals far away: whole steps that keep succeeding may grow longer.
        stride = torch.where(full, 2 * self.stride, torch.where(shorter, self.stride / 2, self.stride))
        self.stride = stride.clamp(1.0, 1e6)
        self.length = torch.where(self.searching, 0.3 * self.length, self.length)

    def _try(self) -> Tensor:
        """Go along the direction where that lowers the potential or the residual; returns where it does."""
        slope = (self.direction * self.residual).sum(-1).clamp_max(0.0)
        trial = self.mu + self.length[:, None] * self.direction
        p, z, residual, phi = self.program.evaluate(trial, self.temperature, self.linear)
        falls = phi <= self.phi + 1e-4 * self.length * slope
        # Close to the solution rounding hides the fall of the potential: there the residual decides.
        level = phi <= self.phi + 1e-12 * (1 + self.phi.abs())
        good = falls | (level & (residual.norm(dim=-1) < self.residual.norm(dim=-1)))
        pick = good[:, None]
        self.mu, self.p = torch.where(pick, trial, self.mu), torch.where(pick, p, self.p)
        self.z, self.residual = torch.where(pick, z, self.z), torch.where(pick, residual, self.residual)
        self.phi = torch.where(good, phi, self.phi)
        self.error = _largest(self.residual)
        return good

    def _retire_converged(self) -> None:
        done = (self.error <= self.options.tol) & (self.temperature <= self.tau).squeeze(-1)
        if bool(done.any()):
            # Conjugate gradients cannot tell what is left from rounding, so they polish nothing.
            self._retire(done, Status.CONVERGED, self._polish(done) if is_dense(self.program) else self.mu)

    def _polish(self, done: Tensor) -> Tensor:
        """One undamped step for the instances about to leave, kept only where it lowers the residual."""
        program, tau = self.program.select(done.nonzero().squeeze(-1)), self.tau[done]
        mu, residual = self.mu[done], self.residual[done]
        shares = self.p[done], self.z[done]
        step, _ = newton_direction(program, shares, tau, torch.zeros_like(tau), self.ridge[done], residual)
        better = mu - step
        improves = _largest(program.residual(better, tau)) < _largest(residual)
        polished = self.mu.clone()
        polished[done] = torch.where(improves[:, None], better, mu)
        return polished

    def _retire(self, which: Tensor, status: Status, mu: Tensor | None = None) -> None:
        if not bool(which.any()):
            return
        index = self.index[which]
        self.result.mu[index] = (self.mu if mu is None else mu)[which]
        self.result.codes[index] = status.code
        self.result.steps[index] = self.steps[which]
        stay = ~which
        keep = stay.nonzero().squeeze(-1)
        self.program = self.program.select(keep)
        self.linear = self.linear if self.linear.shape[0] == 1 else self.linear[keep]
        for name in _STATE:
            setattr(self, name, getattr(self, name)[keep])


def _largest(rows: Tensor) -> Tensor:
    """Largest absolute entry of each instance, 0 where there are no rows."""
    return rows.abs().amax(-1) if rows.shape[-1] else rows.new_zeros(rows.shape[0])
