"""Newton's method of `linsat.arrays.newton` on torch tensors: every objective, any device."""

from __future__ import annotations

import torch

from linsat.arrays import newton as constants
from linsat.arrays.judgement import optimal
from linsat.arrays.linear_algebra import is_dense
from linsat.arrays.newton import Newton
from linsat.arrays.problem import Problem, Tensor
from linsat.arrays.result import Claim, Stop, farkas_gap
from linsat.arrays.step import Setting, State, first_state, polish, step

# Passes between two looks at who is done. On the CPU a look costs nothing; elsewhere it makes the host wait for the
# device, which then runs out of work. Who is done between two looks waits, so that no answer depends on this number.
_LOOK_EVERY = 8


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

    def solve(self, problem: Problem, options: Newton, start: Tensor | None = None) -> Claim:
        """Solve every instance; ``start`` are duals (N, k) of an earlier solve."""
        problem = problem.in_double()
        single_first = self.single_first
        if single_first is None:
            single_first = problem.scores.device.type != "cpu"
        with torch.no_grad():
            if not single_first or start is not None:
                return _Loop(problem, options, start).run()
            rough = _Loop(problem.in_single(), options, None).run()
            # NaN is no start: an instance that has not arrived starts again, hot.
            arrived = (rough.stops == Stop.ARRIVED)[:, None]
            claim = _Loop(problem, options, torch.where(arrived, rough.mu.double(), torch.nan)).run()
            claim.steps.add_(rough.steps)
            return claim


class _Loop:
    """Runs `step` until no instance is left; instances that are done leave the batch. One synchronisation a look."""

    def __init__(self, problem: Problem, options: Newton, start: Tensor | None, look_every: int | None = None) -> None:
        self.options = options
        self.look_every = look_every or (1 if problem.scores.device.type == "cpu" else _LOOK_EVERY)
        self.claim = Claim.empty(problem, "newton")
        self.setting = Setting.of(problem)
        self.index = torch.arange(problem.size, device=problem.scores.device)
        self.start = start

    def run(self) -> Claim:
        self.state = first_state(self.setting, self.start)
        for look in range(self.options.max_steps * constants.BACKTRACKS + 1):
            if self._look(look * self.look_every):
                return self.claim
            self._advance()
        self._leave(torch.full_like(self.index, Stop.STEP_LIMIT))
        return self.claim

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
        ends = [(done, Stop.ARRIVED), (self.state.stalled, Stop.STALLED)]
        if number and number % constants.CERTIFICATE_EVERY == 0:
            ends.append((farkas_gap(self.setting.problem, self.state.mu) > 0, Stop.INFEASIBLE))
        ends.append((self._at_limit(self.state), Stop.STEP_LIMIT))
        stops = torch.full_like(self.index, Stop.RUNS)
        for which, stop in reversed(ends):  # the first that holds counts
            stops = torch.where(which, stop, stops)
        return self._leave(stops)

    def _leave(self, stops: Tensor) -> bool:
        """Instances that have a reason to stop leave with it; returns whether none is left."""
        stays = (stops == Stop.RUNS).nonzero().squeeze(-1)  # the host waits here for the device
        if stays.numel() == self.index.numel() > 0:
            return False
        # All of them, because to pick some would be one more wait; who stays writes again when leaving.
        self.claim.mu[self.index] = self.state.mu
        self.claim.x[self.index] = self.state.at.x
        self.claim.stops[self.index] = stops
        self.claim.steps[self.index] = self.state.steps
        self.index = self.index[stays]
        self.setting, self.state = self.setting.select(stays), self.state.select(stays)
        return stays.numel() == 0
