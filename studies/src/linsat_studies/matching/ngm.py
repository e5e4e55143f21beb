"""NGMv2 (Wang, Yan and Yang, PAMI 2022): message passing on the association graph of a pair.

The association graph has a node for each pair of keypoints (i, j) and an edge between (i, j) and (i', j') where i - i'
and j - j' are edges of their graphs. Its n1 n2 by n1 n2 matrix is never built: the weight of such an edge is a product
of a weight of i - i' and one of j - j' in every channel, so that a message is ``E1_c X_c E2_c'`` for channel c.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from linsat_studies.matching.batches import Batch
from linsat_studies.matching.config import NetworkConfig
from linsat_studies.matching.nodes import EdgeMatcher
from linsat_studies.matching.techniques import sinkhorn

_ITERATIONS = 5  # of the Sinkhorn algorithm in each round


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

    def forward(self, x: Tensor, edges: Sequence[Tensor], batch: Batch) -> Tensor:
        """(B, n1, n2, c) from the same and the edge weights (B, c, n1, n1), (B, c, n2, n2)."""
        messages = edges[0] @ x.permute(0, 3, 1, 2) @ edges[1].transpose(2, 3)  # (B, c, n1, n2)
        matching = sinkhorn(self.score(x).squeeze(-1), batch, tau=1.0, iterations=self.iterations)
        seen = torch.cat([x, messages.permute(0, 2, 3, 1), matching.unsqueeze(-1)], -1)
        pairs = batch.mask_l[:, :, None, None] & batch.mask_r[:, None, :, None]
        return self.norm(x + self.mix(seen)) * pairs


class Ngm(EdgeMatcher):
    """Spline convolutions on each graph, scores of pairs and of edges, message passing on the association graph.

    Args:
        features, image: channels F at a keypoint and G of the whole image.
        sizes: of the network; ``channels`` also of a node of the association graph, ``rounds`` of messages on it.
    """

    def __init__(self, features: int, image: int, sizes: NetworkConfig) -> None:
        super().__init__(features, image, sizes)
        self.embed = nn.Linear(1, sizes.channels)
        self.rounds = nn.ModuleList(Round(sizes.channels, _ITERATIONS) for _ in range(sizes.rounds))
        self.score = nn.Linear(sizes.channels, 1)

    def forward(self, batch: Batch) -> Tensor:
        """Scores (B, n1, n2); those of padded keypoints mean nothing."""
        affinity, *edges = self.weighed(batch)
        x = self.embed(affinity.unsqueeze(-1))
        for step in self.rounds:
            x = step(x, edges, batch)
        return affinity + self.score(x).squeeze(-1)
