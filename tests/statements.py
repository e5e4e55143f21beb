"""What lies between a call and its answer: a plan, its numbers, and the same problem on arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

import linsat
from linsat.compile.presolve import everything_free
from linsat.compile.problem import Problem, StandardForm
from linsat.compile.rows import RowMatrix
from linsat.gradient.implicit import Solved, gradients
from linsat.plan import Answer, Numbers, Plan, numbers_of, plan_of

CPU = torch.device("cpu")
KERNEL, TORCH = linsat.Newton(backend="kernel"), linsat.Newton(backend="torch")


@dataclass(frozen=True)
class Stated:
    """A set, an objective and scores (N, l), as a call reads them."""

    plan: Plan
    numbers: Numbers
    objective: linsat.Objective  # its numbers spread over the batch
    scores: torch.Tensor
    constraints: linsat.Constraints  # which the plan keeps weakly

    @classmethod
    def of(cls, cons: linsat.Constraints, objective: Any, scores: torch.Tensor) -> Stated:
        count, l = scores.shape
        plan = plan_of(cons, objective, linsat.Newton(), l, CPU)
        numbers = plan.numbers or numbers_of(cons, l, (count,) if cons.batch_shape else (), CPU)
        return cls(plan, numbers, objective.spread(torch.Size([count]), l, CPU), scores, cons)

    def by(self, solver: linsat.Newton) -> Plan:
        """The plan with another solver; what is kept does not depend on it."""
        return replace(self.plan, solver=solver)

    def solve(self, solver: linsat.Newton, start: torch.Tensor | None = None) -> Answer:
        return self.by(solver).solve(self.numbers, self.scores, self.objective, start)

    def pull_back(
        self, solver: linsat.Newton, answer: Answer, grad_x: Any, grad_duals: Any = None
    ) -> list[torch.Tensor | None]:
        """Gradients to scores, numbers and the numbers of the objective, by the back end that the solver asks for."""
        tensors = (self.scores, *self.numbers, *self.objective.parameters().values())
        solved = Solved(self.by(solver), self.objective, tensors, answer.duals, answer.counts, answer.decided)
        with torch.no_grad():
            return list(gradients(solved, grad_duals, grad_x, (True,) * len(tensors)))

    def problem(self) -> Problem:
        """The problem on arrays."""
        decided = self.plan.decided() if self.plan.constant else None
        return self.plan.problem(self.numbers, self.scores, self.objective, decided)

    def alone(self, instance: int) -> Stated:
        """One instance, without the others."""
        index = torch.tensor([instance])
        own = {name: t if len(t) == 1 else t[index] for name, t in self.objective.parameters().items()}
        objective = replace(self.objective, **own) if own else self.objective
        plan = replace(self.plan, kept={})
        return Stated(plan, self.numbers.select(index), objective, self.scores[index], self.constraints)


def problem_of(cons: linsat.Constraints, objective: Any, scores: torch.Tensor) -> Problem:
    """The problem on arrays that a call with these arguments solves."""
    return Stated.of(cons, objective, scores).problem()


def form_of(cons: linsat.Constraints, objective: Any = None) -> StandardForm:
    """The standard form of a set."""
    assert cons.num_variables is not None
    plan = plan_of(cons, objective or linsat.Euclidean(), linsat.Newton(), cons.num_variables, CPU)
    return plan.form(plan.numbers or numbers_of(cons, cons.num_variables, cons.batch_shape, CPU))


def rows_of(cons: linsat.Constraints) -> RowMatrix:
    return form_of(cons).rows


def untouched_problem(cons: linsat.Constraints, objective: Any, scores: torch.Tensor) -> Problem:
    """The problem on arrays before anything was asked about its rows: nothing is fixed, nothing infeasible."""
    form = form_of(cons, objective)
    own = objective.spread(scores.shape[:1], scores.shape[1], CPU)
    assert cons.num_variables is not None
    side = numbers_of(cons, cons.num_variables, cons.batch_shape, CPU).side
    return form.problem(scores, own, everything_free(form), senses=cons.structure.on(CPU)[2], side=side)
