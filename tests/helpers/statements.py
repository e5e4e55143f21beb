"""What lies between a call and its answer: a plan, its numbers, and the same problem on arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import linsat
from linsat.arrays.presolve import everything_free
from linsat.arrays.problem import Problem, StandardForm
from linsat.arrays.rows import RowMatrix
from linsat.native.batch import Answer
from linsat.plan import Plan
from linsat.request import Options, Request
from linsat.torch.arrays import attempt
from linsat.torch.call import Reading, TensorCall, as_tensors
from linsat.torch.implicit import Solved
from linsat.torch.projection import gradients

KERNEL, TORCH = linsat.Newton(backend="kernel"), linsat.Newton(backend="arrays")


@dataclass(frozen=True)
class Stated:
    """A set, an objective and scores (N, l), as a call reads them."""

    cons: linsat.Constraints
    given: linsat.Objective
    scores: torch.Tensor

    @classmethod
    def of(cls, cons: linsat.Constraints, objective: Any, scores: torch.Tensor) -> Stated:
        return cls(cons, objective, scores)

    def call(self, solver: linsat.Newton | None = None, start: torch.Tensor | None = None) -> TensorCall:
        return Reading.of(self.scores, Request(self.cons, {}, self.given, Options(solver, "ignore"), start)).call()

    @property
    def plan(self) -> Plan:
        return self.call().plan

    @property
    def numbers(self) -> Any:
        """As tensors."""
        return self.call().tensors()

    @property
    def objective(self) -> linsat.Objective:
        """Its numbers spread over the batch."""
        return self.call().objective

    def solve(self, solver: linsat.Newton, start: torch.Tensor | None = None) -> Answer:
        call = self.call(solver, start)
        with torch.no_grad():
            if call.statement is None:
                return attempt(call, self.scores)
            scores = self.scores.contiguous()
            return as_tensors(call.attempt(scores, torch.empty_like(scores)))

    def pull_back(
        self, solver: linsat.Newton, answer: Answer, grad_x: Any, grad_duals: Any = None
    ) -> list[torch.Tensor | None]:
        """Gradients to scores, numbers and the numbers of the objective, by the back end that the solver asks for."""
        call = self.call(solver)
        tensors = (self.scores, *call.tensors(), *call.objective.parameters().values())
        solved = Solved(call.plan, call.objective, tensors, answer.duals, answer.counts, answer.decided)
        with torch.no_grad():
            return list(gradients(solved, grad_duals, grad_x, (True,) * len(tensors)))

    def alone(self, instance: int) -> Stated:
        """One instance, without the others."""
        own = self.objective.changed(lambda number: number if len(number) == 1 else number[instance : instance + 1])
        own = own.changed(lambda number: number.reshape(() if number.numel() == 1 else (-1,)))
        cons = self.cons._instances(instance, instance + 1) if self.cons.batch_shape else self.cons
        return Stated(cons, own, self.scores[instance : instance + 1])

    def problem(self) -> Problem:
        """The problem on arrays."""
        call = self.call()
        decided = call.plan.decided() if call.plan.constant else None
        return call.plan.problem(call.tensors(), self.scores, call.objective, decided)


def problem_of(cons: linsat.Constraints, objective: Any, scores: torch.Tensor) -> Problem:
    """The problem on arrays that a call with these arguments solves."""
    return Stated.of(cons, objective, scores).problem()


def form_of(cons: linsat.Constraints, objective: Any = None) -> StandardForm:
    """The standard form of a set."""
    assert cons.num_variables is not None
    scores = torch.zeros(*cons.batch_shape, cons.num_variables, dtype=torch.float64)
    call = Reading.of(scores, Request(cons, {}, objective or linsat.Euclidean(), Options(None, "ignore"))).call()
    return call.plan.form(call.tensors())


def rows_of(cons: linsat.Constraints) -> RowMatrix:
    return form_of(cons).rows


def untouched_problem(cons: linsat.Constraints, objective: Any, scores: torch.Tensor) -> Problem:
    """The problem on arrays before anything was asked about its rows: nothing is fixed, nothing infeasible."""
    call = Reading.of(scores, Request(cons, {}, objective, Options(None, "ignore"))).call()
    form, own = call.plan.form(call.tensors()), objective.spread(scores.shape[:1], scores.shape[1], torch.device("cpu"))
    return form.problem(
        scores, own, everything_free(form), senses=call.plan.senses(form.rows), side=call.tensors().side
    )
