"""PCA-GM (Wang, Yan and Yang, ICCV 2019): convolution within each graph and across the two of a pair."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from linsat_studies.matching.batches import Batch
from linsat_studies.matching.config import NetworkConfig
from linsat_studies.matching.nodes import Affinity, NodeEncoder, sides
from linsat_studies.matching.techniques import sinkhorn

_ITERATIONS = 10  # of the Sinkhorn algorithm between the two convolutions


class GraphConvolution(nn.Module):
    """``h_i <- h_i + ReLU(W h_i + mean over neighbours j of V h_j)``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.around = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, h: Tensor, adjacency: Tensor, mask: Tensor) -> Tensor:
        """(B, n, d) from vectors, graph (B, n, n) and mask (B, n)."""
        mean = adjacency.to(h.dtype) / adjacency.sum(-1, keepdim=True).clamp_min(1)
        mixed = self.own(h) + mean @ self.around(h)
        return self.norm(h + nn.functional.relu(mixed)) * mask.unsqueeze(-1)


class PcaGm(nn.Module):
    """Vectors of the keypoints, a convolution within each graph, a first soft matching, a convolution across the graphs
    along that matching, another within each graph, and the inner products of the results as scores.

    Args:
        features, image: channels F at a keypoint and G of the whole image.
        sizes: of the network.
    """

    def __init__(self, features: int, image: int, sizes: NetworkConfig) -> None:
        super().__init__()
        width = sizes.width
        self.encoder = NodeEncoder(features, image, width, sizes.dropout)
        self.first, self.second = GraphConvolution(width), GraphConvolution(width)
        self.across = nn.Linear(2 * width, width)
        self.affinities = nn.ModuleList(Affinity(width, image) for _ in range(2))

    def forward(self, batch: Batch) -> Tensor:
        """Scores (B, n1, n2); those of padded keypoints mean nothing."""
        left, right = sides(batch)
        images = left.image, right.image
        h = self.first(self.encoder(left), left.adjacency, left.mask)
        k = self.first(self.encoder(right), right.adjacency, right.mask)
        guess = sinkhorn(self.affinities[0](h, k, images), batch, tau=1.0, iterations=_ITERATIONS)
        met = self.across(torch.cat([h, guess @ k], -1))
        meeting = self.across(torch.cat([k, guess.transpose(1, 2) @ h], -1))
        h = self.second(met, left.adjacency, left.mask)
        k = self.second(meeting, right.adjacency, right.mask)
        return self.affinities[1](h, k, images)
