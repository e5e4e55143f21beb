"""Newton's method of `linsat.solvers.newton` on torch tensors: every objective, any device."""

from __future__ import annotations

import torch

from linsat.compile.problem import Problem, Tensor
from linsat.solvers import newton as constants
from linsat.solvers.linear_algebra import is_dense
from linsat.solvers.newton import Newton
from linsat.solvers.result import SolverResult, farkas_gap
from linsat.solvers.step import Setting, State, first_state, optimal, polish, step
from linsat.status import Status

# Passes between two looks at who is done. On the CPU a look costs nothing; elsewhere it makes the host wait for the
# device, which then runs out of work. Who is done between two looks waits, so that no answer depends on this number.
_LOOK_EVERY = 8
_RUNS = -1  # in place of the code of a status


class ArrayBackend:
    """Newton's method with torch operations: takes every objective, every size and every device.

    Args:
        single_first: whether float32 steps come first and float64 steps start from where those end, which pays where
            float64 is slow; None: on every device but the CPU. The answer is held to the same tolerance either way.
    """

    name = "arrays"

    def __init__(self, *, single_first: bool | None = None) -> None:
        self.single_first = single_first

    def supports(self, problem: Problem) -> str | None:
        return None

    def solve(self, problem: Problem, options: Newton, start: Tensor | None = None) -> SolverResult:
        """Solve every instance; ``start`` are duals (N, k) of an earlier solve."""
        problem = problem.in_double()
        single_first = self.single_first
        if single_first is None:
            single_first = problem.scores.device.type != "cpu"
        with torch.no_grad():
            if not single_first or start is not None:
                return _Loop(problem, options, start).run()
            rough = _Loop(problem.in_single(), options, None).run()
            # NaN is no start: an instance that did not converge starts again, hot.
            arrived = (rough.codes == Status.CONVERGED.code)[:, None]
            result = _Loop(problem, options, torch.where(arrived, rough.mu.double(), torch.nan)).run()
            result.steps.add_(rough.steps)
            return result


class _Loop:
    """Runs `step` until no instance is left; instances that are done leave the batch. One synchronisation a look."""

    def __init__(self, problem: Problem, options: Newton, start: Tensor | None, look_every: int | None = None) -> None:
        self.options = options
        self.look_every = look_every or (1 if problem.scores.device.type == "cpu" else _LOOK_EVERY)
        self.result = SolverResult.empty(problem, "newton")
        self.setting = Setting.of(problem)
        self.index = torch.arange(problem.size, device=problem.scores.device)
        self.start = start

    def run(self) -> SolverResult:
        self.state = first_state(self.setting, self.start)
        for look in range(self.options.max_steps * constants.BACKTRACKS + 1):
            if self._look(look * self.look_every):
                return self.result
            self._advance()
        self._leave(torch.full_like(self.index, Status.STEP_LIMIT.code))
        return self.result

    def _advance(self) -> None:
        """The passes to the next look; who is done after one of them does not take part in the others."""
        if self.look_every == 1:
            self.state = step(self.setting, self.state)
            return
        waits = torch.zeros_like(self.state.stalled)
        for _ in range(self.look_every):
            self.state = step(self.setting, self.state, look=False, waits=waits)
            waits = waits | self._done(self.state) | self.state.stalled | self._at_limit(self.state)

    def _done(self, state: State) -> Tensor:
        return self.setting.done(state, self.options.tol)

    def _at_limit(self, state: State) -> Tensor:
        return (state.steps >= self.options.max_steps) & ~state.searching

    def _look(self, number: int) -> bool:
        """Remove the instances that are done after ``number`` passes; returns whether none is left."""
        done = self._done(self.state)
        if self.look_every > 1 or bool(done.any()):
            # Conjugate gradients cannot tell what is left from rounding, so they polish nothing.
            if is_dense(self.state.mu.shape[-1]):
                self.state = polish(self.setting, self.state, done)
            done = done & optimal(self.setting, self.state, self.options.tol)
        found = [(done, Status.CONVERGED), (self.state.stalled, Status.STALLED)]
        if number and number % constants.CERTIFICATE_EVERY == 0:
            found.append((farkas_gap(self.setting.problem, self.state.mu) > 0, Status.INFEASIBLE))
        found.append((self._at_limit(self.state), Status.STEP_LIMIT))
        codes = torch.full_like(self.index, _RUNS)
        for which, status in reversed(found):  # the first that holds counts
            codes = torch.where(which, status.code, codes)
        return self._leave(codes)

    def _leave(self, codes: Tensor) -> bool:
        """Instances with a code leave with it; returns whether none is left."""
        stays = (codes == _RUNS).nonzero().squeeze(-1)  # the host waits here for the device
        if stays.numel() == self.index.numel() > 0:
            return False
        # All of them, because to pick some would be one more wait; who stays writes again when leaving.
        self.result.mu[self.index] = self.state.mu
        self.result.x[self.index] = self.state.at.x
        self.result.codes[self.index] = codes
        self.result.steps[self.index] = self.state.steps
        self.index = self.index[stays]
        self.setting, self.state = self.setting.select(stays), self.state.select(stays)
        return stays.numel() == 0
