"""Right and wrong uses of the public names, for type checkers; never run. `test_typing.py` reads the comments.

``reveal_type(...)  # T`` expects the type T, ``# error`` that both checkers reject the line; all else both accept.
"""

import numpy as np
import torch
from typing_extensions import reveal_type

import linsat

tensor = torch.zeros(2, 3)
array = np.zeros((2, 3))
cons = linsat.Constraints(A=[[1.0, 1.0, 1.0]], b=2.0)
layer = linsat.LinSAT(cons, tau=0.1, on_failure="nan")

# What comes in comes out.
reveal_type(linsat.project(tensor, cons))  # Tensor
reveal_type(linsat.project(array, cons, tau=0.1))  # ndarray
reveal_type(linsat.project({"works": tensor, "off": tensor}, cons))  # dict[str, Tensor]
reveal_type(linsat.project({"works": array}, cons))  # dict[str, ndarray]
reveal_type(linsat.project(tensor, cons, objective=linsat.Euclidean(), solver=linsat.Newton()))  # Tensor
reveal_type(linsat.solve(tensor, cons))  # Solution[Tensor]
reveal_type(linsat.solve(array, cons))  # Solution[ndarray]
reveal_type(linsat.solve(tensor, cons).x)  # Tensor
reveal_type(layer(tensor))  # Tensor
reveal_type(layer(array, tau=0.01))  # ndarray
reveal_type(layer.forward(tensor))  # Tensor
reveal_type(linsat.project_each([tensor], [cons]))  # list[Tensor]
reveal_type(cons.with_rhs({"budget": 1.0}))  # Constraints
reveal_type(cons.soften("budget", price=2.0))  # Constraints
reveal_type(cons & cons)  # Constraints

# What cannot work is rejected before it runs.
linsat.project("hello", cons)  # error
linsat.project(tensor, cons, on_failure="explode")  # error
linsat.solve(tensor, cons, on_failure="explode")  # error
linsat.project(tensor, "x[0] <= 1")  # error
linsat.project(tensor, cons, 0.1)  # error
linsat.project(tensor, cons, objective="euclidean")  # error
linsat.project(tensor, cons, solver="newton")  # error
linsat.LinSAT(cons, on_failure="explode")  # error
linsat.LinSAT("rows")  # error
linsat.Entropy(slack="some")  # error
linsat.Newton(backend="cuda")  # error
linsat.Sinkhorn(gradient="none")  # error
linsat.project_each([tensor], cons)  # error
linsat.projct(tensor, cons)  # error
