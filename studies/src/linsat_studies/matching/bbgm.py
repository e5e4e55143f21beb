"""BBGM (Rolinek et al., ECCV 2020): spline convolutions, and costs for a combinatorial solver inside the network.

The solver stands in `quadratic`; this is the network that makes its costs. As there, keypoints are refined by spline
convolutions and scored by inner products whose channels are weighted by both images, and pairs of edges are scored too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from linsat_studies.matching.batches import Batch
from linsat_studies.matching.nodes import Affinity, EdgeWeights, SplineNodes, sides
from linsat_studies.matching.quadratic import EdgeScores


class KeypointMatcher(nn.Module):
    """Spline convolutions on each graph, then weighted inner products.

    Args:
        features, image: channels F at a keypoint and G of the whole image.
        width: d, channels of a keypoint's vector.
        dropout: share of the features that training hides.
        kernel: grid points of the spline kernel along each direction.
        layers: spline convolutions.
    """

    def __init__(self, features: int, image: int, *, width: int, dropout: float, kernel: int, layers: int) -> None:
        super().__init__()
        self.nodes = SplineNodes(features, image, width, dropout=dropout, kernel=kernel, layers=layers)
        self.affinity = Affinity(width, image)

    def forward(self, batch: Batch) -> Tensor:
        """Scores (B, n1, n2); those of padded keypoints mean nothing."""
        left, right = sides(batch)
        return self.affinity(self.nodes(left), self.nodes(right), (left.image, right.image))


class Bbgm(KeypointMatcher):
    """`KeypointMatcher` that also scores pairs of edges.

    Args:
        features, image, width, dropout, kernel, layers: of `KeypointMatcher`.
        channels: c of an edge.
        weight: of every channel when training begins.
    """

    def __init__(
        self,
        features: int,
        image: int,
        *,
        width: int,
        dropout: float,
        kernel: int,
        layers: int,
        channels: int,
        weight: float = 1.0,
    ) -> None:
        super().__init__(features, image, width=width, dropout=dropout, kernel=kernel, layers=layers)
        self.edges = EdgeWeights(width, channels, kernel)
        with torch.no_grad():  # an edge begins as the difference of its ends, as in BBGM
            self.edges.end.weight.copy_(-self.edges.start.weight)
            self.edges.start.bias.zero_()
        self.weight = nn.Parameter(torch.full((channels,), weight))

    def scores(self, batch: Batch) -> EdgeScores:
        """Scores of all pairs of keypoints and of edges."""
        left, right = sides(batch)
        h, k = self.nodes(left), self.nodes(right)
        nodes = self.affinity(h, k, (left.image, right.image))
        weighted = self.edges(h, left) * self.weight[:, None, None]
        return EdgeScores(nodes, weighted, self.edges(k, right))
