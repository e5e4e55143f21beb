"""BBGM (Rolinek et al., ECCV 2020): spline convolutions, and costs for a combinatorial solver inside the network.

The solver stands in `techniques`; this is the network that makes its costs. As there, keypoints are refined by spline
convolutions and scored by inner products whose channels are weighted by both images. Pairs of edges are not scored:
with unary scores alone the solver is exact and takes microseconds.
"""

from __future__ import annotations

from torch import Tensor, nn

from linsat_studies.matching.batches import Batch
from linsat_studies.matching.nodes import Affinity, SplineNodes, sides


class Bbgm(nn.Module):
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
