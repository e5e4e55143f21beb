"""The same projection through a graph: torch.compile without a break, and an exported program."""

from __future__ import annotations

import warnings
from typing import Any

import torch

import linsat


class Model(torch.nn.Module):
    """A layer whose rows and objective are constants of the graph."""

    def __init__(self, constraints: Any, objective: Any) -> None:
        super().__init__()
        self.layer = linsat.LinSAT(constraints, objective=objective, on_failure="nan")

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.layer(y)


def through_graph(way: str, scores: torch.Tensor, constraints: Any, objective: Any) -> torch.Tensor:
    """x; graph capture with AOTAutograd, without generating code, which takes seconds and is not linsat's."""
    model, y = Model(constraints, objective), scores.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        if way == "exported":
            return torch.export.export(model, (y,)).module()(y)
        torch._dynamo.reset()
        return torch.compile(model, fullgraph=True, backend="aot_eager")(y)
