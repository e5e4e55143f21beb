"""A loss for PyEPO users: the regularised decision of linsat in place of a solver call per sample.

    pfy = pyepo.func.perturbedFenchelYoung(optmodel, n_samples=10, sigma=1.0)      # before
    pfy = linsat.interop.pyepo.FenchelYoung(optmodel, tau=1.0)                     # after
    loss = pfy(predicted_costs, true_solutions)

PyEPO's models state costs and a sense; linsat wants rows. Those of shortest paths and knapsacks are written down here
from the data of the model, whatever solver it uses; for any other model pass ``constraints``. Needs the extra
``pyepo``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn

from linsat._optional import require
from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError
from linsat.losses import Reduction, fenchel_young_loss
from linsat.objectives import Objective
from linsat.request import read_objective


class FenchelYoung(nn.Module):
    """`linsat.fenchel_young_loss` with the arguments of PyEPO's ``perturbedFenchelYoung``.

    Args:
        optmodel: a PyEPO model; its sense says whether costs are minimised or maximised.
        objective, tau: as in `linsat.fenchel_young_loss`.
        constraints: the rows of the model; needed unless it is a shortest path or a knapsack. Integer variables are
            relaxed.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Cost: one batched projection per call, where the perturbed loss calls its solver for each instance and sample.

    Raises:
        ImportError: PyEPO is not installed.
        ConstraintError: no PyEPO model; rows that linsat does not know; as many costs as there are variables expected.
    """

    def __init__(
        self,
        optmodel: Any,
        *,
        objective: Objective | None = None,
        tau: Any = None,
        constraints: Constraints | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        models = require("pyepo.model.opt", extra="pyepo", purpose="linsat.interop.pyepo")
        if not isinstance(optmodel, models.optModel):
            raise ConstraintError(f"optmodel is {type(optmodel).__name__}; expected a PyEPO model (pyepo.model).")
        self.constraints = constraints_of(optmodel) if constraints is None else constraints
        if self.constraints.num_variables != optmodel.num_cost:
            raise ConstraintError(
                f"constraints have {self.constraints.num_variables} variables, but the model {optmodel.num_cost} "
                f"costs; expected one variable for each cost."
            )
        self.objective = read_objective(objective, tau)
        self.reduction = reduction
        self.sign = float(-optmodel.modelSense.value)  # EPO.MINIMIZE is 1, EPO.MAXIMIZE -1

    def forward(self, pred_cost: torch.Tensor, true_sol: torch.Tensor) -> torch.Tensor:
        """The loss of predicted costs (batch, costs) against the best solutions (batch, costs) of the true ones."""
        return fenchel_young_loss(
            self.sign * pred_cost, true_sol, self.constraints, objective=self.objective, reduction=self.reduction
        )


def constraints_of(optmodel: Any) -> Constraints:
    """The rows of PyEPO's shortest paths and knapsacks over [0, 1], from the data of the model.

    Raises:
        ConstraintError: another model; pass its rows as ``constraints``.
    """
    bases = require("pyepo.model.bases", extra="pyepo", purpose="linsat.interop.pyepo")
    if isinstance(optmodel, bases.shortestPathBase):
        nodes, arcs = optmodel.grid[0] * optmodel.grid[1], optmodel.arcs
        tail, head = np.array(arcs).T
        each = np.arange(len(arcs))
        balance = sp.csr_array(
            (np.repeat([-1.0, 1.0], len(arcs)), (np.concatenate([tail, head]), np.concatenate([each, each]))),
            shape=(nodes, len(arcs)),
        )
        side = np.zeros(nodes)
        side[0], side[-1] = -1.0, 1.0
        return Constraints(E=balance, f=side, names=[f"balance[{node}]" for node in range(nodes)])
    if isinstance(optmodel, bases.knapsackBase):
        weights, capacity = np.asarray(optmodel.weights, float), np.asarray(optmodel.capacity, float)
        return Constraints(A=weights, b=capacity, names=[f"capacity[{row}]" for row in range(len(capacity))])
    raise ConstraintError(
        f"the rows of {type(optmodel).__name__} are not known here. Fix: FenchelYoung(optmodel, constraints=...)."
    )
