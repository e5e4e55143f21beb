"""`TourNet`: cities in, a score for every city at every step of the tour out.

A Transformer without positional encoding reads the cities; learned vectors mark the start, the end and the priority
city; a 3-layer network turns each city's state into one score per step. Two things go beyond the paper's network:

- **Geometry.** Besides coordinates a city carries its place in the frame of start and end, and attention adds a learned
  function of the distance between two cities.
- **Refinement.** After every layer but the last the scores so far are projected onto the tour rows, and the next layer
  reads that soft tour: which steps a city has, and, as a part of its attention, which cities are likely before and
  after it. The layer thus works inside the network as well as at its end.

Cities come in canonical order: 0 starts, n - 1 ends, 1 has priority in TSP-PRI.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from linsat_studies.tsp.config import NetworkConfig
from linsat_studies.tsp.constraints import project_scores
from linsat_studies.tsp.data import InstanceError

_FEATURES = 15
_LENGTHS = (0.05, 0.15, 0.4)  # over which attention may fade with distance, in sides of the square
# Temperature of the soft tours between layers; part of the network, unlike the temperature of what it hands out.
_INNER_TAU = 0.1


def distances(coords: Tensor) -> Tensor:
    """Euclidean distances (N, n, n) of cities (N, n, 2)."""
    return (coords[:, :, None] - coords[:, None]).square().sum(-1).clamp_min(1e-14).sqrt()


def city_features(coords: Tensor, D: Tensor, task: str) -> Tensor:
    """What each city knows of its place, (N, n, 15); the three entries about the priority city are 0 in TSP-SE."""
    start, priority, end = coords[:, :1], coords[:, 1:2], coords[:, -1:]
    span = (end - start).norm(dim=-1, keepdim=True).clamp_min(1e-6)
    along, across = ((end - start) / span).unbind(-1)  # unit vector from start to end

    def in_frame(vectors: Tensor) -> list[Tensor]:
        x, y = vectors.unbind(-1)
        return [x * along + y * across, x * across - y * along]

    columns = [*(coords - 0.5).unbind(-1), D[:, :, 0], D[:, :, -1], *in_frame(coords - start)]
    columns += [columns[-2] - span[:, :, 0], span[:, :, 0].expand_as(columns[0])]
    if task == "pri":
        columns += [*in_frame(coords - priority), D[:, :, 1]]
    else:
        columns += [torch.zeros_like(columns[0])] * 3
    nearest = D.topk(4, dim=-1, largest=False).values[:, :, 1:]  # the nearest city of all is the city itself
    columns += [*nearest.unbind(-1), D.mean(-1)]
    return torch.stack(columns, dim=-1)


class Layer(nn.Module):
    """Attention with an additive bias, then a feed-forward part; each on normalised input, added to its input."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.before_attention, self.before_hidden = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.queries_keys_values = nn.Linear(config.width, 3 * config.width, bias=False)
        self.mix = nn.Linear(config.width, config.width)
        self.hidden = nn.Linear(config.width, config.hidden)
        self.out = nn.Linear(config.hidden, config.width)

    def forward(self, h: Tensor, bias: Tensor) -> Tensor:
        """States h (N, n, width) and bias (N, heads, n, n) to new states."""
        N, n, width = h.shape
        packed = self.queries_keys_values(self.before_attention(h)).view(N, n, 3, self.heads, width // self.heads)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        weights = torch.softmax((q * (width // self.heads) ** -0.5) @ k.transpose(-1, -2) + bias, dim=-1)
        h = h + self.mix((weights @ v).transpose(1, 2).reshape(N, n, width))
        return h + self.out(functional.gelu(self.hidden(self.before_hidden(h))))


class Head(nn.Sequential):
    """States (N, n, width) to scores (N, n, n): a 3-layer network, the same for every city."""

    def __init__(self, config: NetworkConfig) -> None:
        width = config.width
        last = nn.Linear(width, config.cities)
        nn.init.normal_(last.weight, std=0.1 * width**-0.5)  # small scores: the first soft tours are undecided
        super().__init__(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), last
        )


class Feedback(nn.Module):
    """A soft tour as input of the next layer: a change of the states and one of the attention's bias."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.states = nn.Linear(config.cities + 2, config.width)
        self.bias = nn.Linear(2, config.heads, bias=False)

    def forward(self, X: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
        """Soft tours X and distances D, both (N, n, n), to (N, n, width) and (N, heads, n, n)."""
        follows = X[:, :, :-1] @ X[:, :, 1:].transpose(1, 2)  # [i, j]: j comes right after i, were steps independent
        leads = follows.transpose(1, 2)
        steps = torch.stack([(follows * D).sum(-1), (leads * D).sum(-1)], dim=-1)  # expected way onward and back
        bias = self.bias(torch.stack([follows, leads], dim=-1))
        return self.states(torch.cat([X, steps], dim=-1)), bias.permute(0, 3, 1, 2)


class TourNet(nn.Module):
    """Scores for canonical routing problems; one network serves both tasks.

    Args:
        config: sizes. The number of cities is fixed, since the scores are one per step.
    """

    def __init__(self, config: NetworkConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or NetworkConfig()
        self.read = nn.Linear(_FEATURES, config.width)
        self.marks = nn.ParameterDict(
            {task: nn.Parameter(0.1 * torch.randn(4, config.width)) for task in ("se", "pri")}
        )  # of start, priority, end and all others
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.distance_bias = nn.Linear(len(_LENGTHS) + 2, config.layers * config.heads)
        outputs = config.layers if config.refine else 1
        self.heads = nn.ModuleList(Head(config) for _ in range(outputs))
        self.feedback = nn.ModuleList(Feedback(config) for _ in range(outputs - 1))

    def forward(self, coords: Tensor, task: str, within: int | None = None) -> Tensor:
        """Scores (N, n, n) [city, step] of cities (N, n, 2) in the unit square; project them with `project_scores`."""
        return self._run(coords, task, within)[0]

    def refinements(self, coords: Tensor, task: str, tau: float) -> list[Tensor]:
        """The soft tour after every layer that has one, each (N, n, n); the last is the answer at temperature tau."""
        scores, between = self._run(coords, task, None)
        return [*between, project_scores(scores, task, tau)]

    @torch.no_grad()
    def multiply_scores(self, factor: float) -> None:
        """Make all scores ``factor`` times as large; at a temperature as many times higher nothing changes."""
        for parameter in list(self.heads[-1].parameters())[-2:]:  # weight and bias of its last layer
            parameter.mul_(factor)

    def _run(self, coords: Tensor, task: str, within: int | None) -> tuple[Tensor, list[Tensor]]:
        if coords.ndim != 3 or coords.shape[1:] != (self.config.cities, 2):
            raise InstanceError(
                f"coords has shape {tuple(coords.shape)}; expected (N, {self.config.cities}, 2): this network was "
                f"trained for {self.config.cities} cities."
            )
        if task not in self.marks:
            raise InstanceError(f'task is {task!r}; expected "se" (start and end) or "pri" (also a priority city).')
        D = distances(coords)
        h = self.read(city_features(coords, D, task)) + self._marks(task)
        bias = self._distance_bias(D)
        between: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            h = layer(h, bias[number])
            if number < len(self.feedback):
                X = project_scores(self.heads[number](h), task, _INNER_TAU, within=within)
                between.append(X)
                change, bias_change = self.feedback[number](X, D)
                h = h + change
                bias[number + 1] = bias[number + 1] + bias_change
        return self.heads[-1](h), between

    def _marks(self, task: str) -> Tensor:
        start, priority, end, other = self.marks[task]
        second = priority if task == "pri" else other
        return torch.stack([start, second, *[other] * (self.config.cities - 3), end])

    def _distance_bias(self, D: Tensor) -> list[Tensor]:
        """One bias (N, heads, n, n) for each layer."""
        basis = torch.stack([D, D.square(), *(torch.exp(-D / length) for length in _LENGTHS)], dim=-1)
        return list(self.distance_bias(basis).permute(0, 3, 1, 2).chunk(self.config.layers, dim=1))


@torch.no_grad()
def soft_tours(network: TourNet, coords: Tensor, task: str, tau: float, *, within: int | None = None) -> Tensor:
    """Soft tours X (N, n, n) [city, step] of cities (N, n, 2) at temperature tau, without gradients."""
    return project_scores(network(coords, task, within), task, tau, within=within)
