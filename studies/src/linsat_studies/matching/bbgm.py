"""BBGM (Rolinek et al., ECCV 2020): spline convolutions, and costs for a combinatorial solver inside the network.

The solver stands in `quadratic`; this is the network that makes its costs. As there, keypoints are refined by spline
convolutions and scored by inner products whose channels are weighted by both images, and pairs of edges are scored too.
"""

from __future__ import annotations

import torch
from torch import nn

from linsat_studies.matching.batches import Batch
from linsat_studies.matching.config import NetworkConfig
from linsat_studies.matching.nodes import EdgeMatcher
from linsat_studies.matching.quadratic import EdgeScores


class Bbgm(EdgeMatcher):
    """Scores of pairs of keypoints by `forward`, of these and of pairs of edges by `scores`.

    Args:
        features, image: channels F at a keypoint and G of the whole image.
        sizes: of the network; ``edges`` is the weight of every channel of an edge when training begins.
    """

    def __init__(self, features: int, image: int, sizes: NetworkConfig) -> None:
        super().__init__(features, image, sizes)
        with torch.no_grad():  # an edge begins as the difference of its ends, as in BBGM
            self.edges.end.weight.copy_(-self.edges.start.weight)
            self.edges.start.bias.zero_()
        self.weight = nn.Parameter(torch.full((sizes.channels,), sizes.edges))

    def scores(self, batch: Batch) -> EdgeScores:
        """Scores of all pairs of keypoints and of edges."""
        nodes, left, right = self.weighed(batch)
        return EdgeScores(nodes, left * self.weight[:, None, None], right)
