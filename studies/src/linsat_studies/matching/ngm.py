"""NGMv2 (Wang, Yan and Yang, PAMI 2022): message passing on the association graph of a pair.

The association graph has a node for each pair of keypoints (i, j) and an edge between (i, j) and (i', j') where i - i'
and j - j' are edges of their graphs. Its n1 n2 by n1 n2 matrix is never built: the weight of such an edge is a product
of a weight of i - i' and one of j - j' in every channel, so that a message is ``E1_c X_c E2_c'`` for channel c.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from linsat_studies.matching.batches import Batch
from linsat_studies.matching.nodes import Affinity, EdgeWeights, SplineNodes, sides
from linsat_studies.matching.techniques import sinkhorn


class Round(nn.Module):
    """One round of messages on the association graph; each node also sees a soft matching of what is known so far."""

    def __init__(self, channels: int, iterations: int) -> None:
        super().__init__()
        self.score = nn.Linear(channels, 1)
        self.mix = nn.Sequential(
            nn.Linear(2 * channels + 1, 2 * channels), nn.ReLU(), nn.Linear(2 * channels, channels)
        )
        self.norm = nn.LayerNorm(channels)
        self.iterations = iterations

    def forward(self, x: Tensor, edges: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
        """(B, n1, n2, c) from the same and the edge weights (B, c, n1, n1), (B, c, n2, n2)."""
        messages = edges[0] @ x.permute(0, 3, 1, 2) @ edges[1].transpose(2, 3)  # (B, c, n1, n2)
        matching = sinkhorn(self.score(x).squeeze(-1), batch, tau=1.0, iterations=self.iterations)
        seen = torch.cat([x, messages.permute(0, 2, 3, 1), matching.unsqueeze(-1)], -1)
        pairs = batch.mask_l[:, :, None, None] & batch.mask_r[:, None, :, None]
        return self.norm(x + self.mix(seen)) * pairs


class Ngm(nn.Module):
    """Spline convolutions on each graph, scores of pairs and of edges, message passing on the association graph.

    Args:
        features, image: channels F at a keypoint and G of the whole image.
        width: d, channels of a keypoint's vector.
        dropout: share of the features that training hides.
        kernel: grid points of the spline kernel along each direction.
        layers: spline convolutions.
        channels: c of a node of the association graph.
        rounds: of messages.
        iterations: of the Sinkhorn algorithm in each round.
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
        rounds: int,
        iterations: int = 5,
    ) -> None:
        super().__init__()
        self.nodes = SplineNodes(features, image, width, dropout=dropout, kernel=kernel, layers=layers)
        self.affinity = Affinity(width, image)
        self.edges = EdgeWeights(width, channels, kernel)
        self.embed = nn.Linear(1, channels)
        self.rounds = nn.ModuleList(Round(channels, iterations) for _ in range(rounds))
        self.score = nn.Linear(channels, 1)

    def forward(self, batch: Batch) -> Tensor:
        """Scores (B, n1, n2); those of padded keypoints mean nothing."""
        left, right = sides(batch)
        h, k = self.nodes(left), self.nodes(right)
        affinity = self.affinity(h, k, (left.image, right.image))
        edges = self.edges(h, left), self.edges(k, right)
        x = self.embed(affinity.unsqueeze(-1))
        for step in self.rounds:
            x = step(x, edges, batch)
        return affinity + self.score(x).squeeze(-1)
