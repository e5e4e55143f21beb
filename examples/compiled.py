"""torch.compile around a network and the layer: one graph, in which the projection is one operator.

python examples/compiled.py
"""

from __future__ import annotations

import torch
from torch import nn

import linsat


def main(backend: str = "inductor") -> float:
    """Compare compiled and plain values and gradients; returns the largest difference (inductor needs a compiler)."""
    torch.manual_seed(0)
    n = 6
    net = nn.Sequential(nn.Linear(n, 64), nn.GELU(), nn.Linear(64, n * n))
    layer = linsat.LinSAT(linsat.constraints.doubly_stochastic(n), tau=0.2)

    def loss(values: torch.Tensor) -> torch.Tensor:
        x = layer(layer.constraints.unstack(net(values)))  # (32, n, n)
        return (x @ values[..., None]).square().mean()

    values = torch.randn(32, n)
    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    found = []
    for function in (loss, compiled):
        net.zero_grad()
        value = function(values)
        value.backward()
        gradients = [parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None]
        found.append(torch.cat([value.detach().reshape(1), *gradients]))
    difference = float((found[0] - found[1]).abs().max())
    print(f"backend {backend}: largest difference of values and gradients {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
