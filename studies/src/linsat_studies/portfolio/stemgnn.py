"""StemGNN, a spectral graph network for many series at once, written from its description (Cao et al., NeurIPS 2020).

A latent correlation layer makes a graph of the series; two blocks then work in the spectrum of that graph and of time:
graph Fourier transform, discrete Fourier transform over time, gated linear units on the real and imaginary parts
(the spectral sequential cell), the inverse transforms with a learned kernel. Each block gives a forecast, and a
backcast that the next block does not see again.

It is kept small, so that 494 series are affordable on one processor. It departs from the description in this:

- series are weekly returns, not daily ones (the caller sums them), which makes time five times as short;
- the graph Fourier transform is taken through Chebyshev polynomials of the graph, 1, S and 2 S S - 1, in place of
  eigenvectors: those have no stable gradient where eigenvalues nearly coincide, and cost (number of series) cubed;
- every window has its own graph, so that no answer depends on the other windows of a batch;
- the forecast is a vector of features for each series, which the heads of the study read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

_ORDERS = 3  # Chebyshev polynomials of the graph
_STATE = 8  # width of the GRU's state, from which only the graph is made


class Graph(NamedTuple):
    """S = D^-1/2 W D^-1/2, where W is the symmetric part of an attention matrix and D its row sums.

    Eigenvalues lie in [-1, 1]. The roots stay apart from W: scaling its rows and columns would take more time than
    scaling the few series it is applied to.
    """

    mutual: Tensor  # (batch, nodes, nodes): 2 W
    root: Tensor  # (batch, nodes, 1): (2 D)^-1/2

    @classmethod
    def of(cls, attention: Tensor) -> Graph:
        """From attention, whose rows sum to 1; so a row sum of W is at least 1 / 2, and none is zero."""
        return cls(attention + attention.transpose(1, 2), (1 + attention.sum(1)).rsqrt()[..., None])

    def __call__(self, series: Tensor) -> Tensor:
        """S times series (batch, nodes, time)."""
        return self.root * (self.mutual @ (self.root * series))


class LatentCorrelation(nn.Module):
    """Series (batch, nodes, time) to a graph: a GRU reads each series, and nodes attend by their last states."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)

    def forward(self, series: Tensor) -> Graph:
        """See the class."""
        batch, nodes, time = series.shape
        _, state = self.gru(series.reshape(batch * nodes, time, 1))
        state = state[-1].view(batch, nodes, -1)
        query = self.query(state) / state.shape[-1] ** 0.5  # scaled before the product: nodes^2 numbers fewer to divide
        logits = query @ self.key(state).transpose(1, 2)
        return Graph.of(logits.softmax(-1))


class GatedUnit(nn.Module):
    """A gated linear unit: one half of a linear map, through the sigmoid of the other."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 2 * outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) to (..., outputs)"""
        return nn.functional.glu(self.linear(x), dim=-1)


class Block(nn.Module):
    """One StemGNN block: series (batch, nodes, time) to (forecast features (batch, nodes, hidden), backcast)."""

    def __init__(self, time: int, hidden: int) -> None:
        super().__init__()
        self.time = time
        self.frequencies = time // 2 + 1
        width = _ORDERS * self.frequencies
        self.real = nn.Sequential(GatedUnit(width, width), GatedUnit(width, width))
        self.imaginary = nn.Sequential(GatedUnit(width, width), GatedUnit(width, width))
        self.kernel = nn.Linear(_ORDERS * time, hidden)
        self.forecast = GatedUnit(hidden, hidden)
        self.backcast = nn.Sequential(GatedUnit(hidden, hidden), nn.Linear(hidden, time))

    def forward(self, series: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
        """See the class; ``graph`` comes from `LatentCorrelation`."""
        once = graph(series)
        spectral = torch.stack([series, once, 2 * graph(once) - series], dim=2)  # (batch, nodes, orders, time)
        waves = torch.fft.rfft(spectral, norm="ortho").flatten(2)
        shape = (*spectral.shape[:3], self.frequencies)
        cells = torch.complex(self.real(waves.real).view(shape), self.imaginary(waves.imag).view(shape))
        filtered = torch.fft.irfft(cells, n=self.time, norm="ortho").flatten(2)
        mixed = torch.tanh(self.kernel(filtered + spectral.flatten(2)))
        return self.forecast(mixed), self.backcast(mixed)


class StemGNN(nn.Module):
    """Two blocks; series (batch, nodes, time) to features (batch, nodes, hidden).

    Cost: 4 * nodes^2 * time multiplications a window for the graph, and memory for nodes^2 numbers.
    """

    def __init__(self, time: int, hidden: int) -> None:
        super().__init__()
        self.correlation = LatentCorrelation(_STATE)
        self.first = Block(time, hidden)
        self.second = Block(time, hidden)

    def forward(self, series: Tensor) -> Tensor:
        """See the class."""
        graph = self.correlation(series)
        first, explained = self.first(series, graph)
        second, _ = self.second(series - explained, graph)
        return first + second
