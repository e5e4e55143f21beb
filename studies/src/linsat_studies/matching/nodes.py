"""What the networks share: one vector for every keypoint, the geometry of its graph, and scores of pairs.

Shapes: B pairs, n keypoints of a side (padded), d channels. Padded keypoints have vectors of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from linsat_studies.matching.batches import Batch
from linsat_studies.matching.config import NetworkConfig

CROP = 256.0  # pixels along each side of a crop, the unit of the points
_FREQUENCIES = (1.0, 2.0, 4.0)  # of the sines of a position, in half turns over the crop


@dataclass(frozen=True)
class Side:
    """One side of a batch."""

    points: Tensor  # (B, n, 2) in [-1, 1]
    features: Tensor  # (B, n, F)
    image: Tensor  # (B, G)
    mask: Tensor  # (B, n) bool
    adjacency: Tensor  # (B, n, n) bool


def sides(batch: Batch) -> tuple[Side, Side]:
    """The left and the right side of a batch, their points scaled from pixels to [-1, 1]."""
    left = Side(batch.points_l * (2 / CROP) - 1, batch.features_l, batch.image_l, batch.mask_l, batch.adjacency_l)
    right = Side(batch.points_r * (2 / CROP) - 1, batch.features_r, batch.image_r, batch.mask_r, batch.adjacency_r)
    return left, right


class NodeEncoder(nn.Module):
    """Features, position and the whole image of each keypoint to one vector.

    Args:
        features: F, channels at a keypoint; 0 where there is no image.
        image: G, channels of the whole image; 0 where there is none.
        width: d, channels of the result.
        dropout: share of the features that training hides.
    """

    def __init__(self, features: int, image: int, width: int, dropout: float) -> None:
        super().__init__()
        self.features = _normalised_linear(features, width) if features else None
        self.image = _normalised_linear(image, width) if image else None
        self.position = nn.Linear(2 + 4 * len(_FREQUENCIES), width)
        self.dropout = nn.Dropout(dropout)
        self.mix = nn.Sequential(nn.ReLU(), nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, side: Side) -> Tensor:
        """(B, n, d)."""
        pair, node = side.mask.nonzero(as_tuple=True)  # padding, half of a mixed batch, costs nothing here
        read = self.position(_waves(side.points[pair, node]))
        if self.features is not None:
            read = read + self.features(self.dropout(side.features[pair, node].to(read.dtype)))
        if self.image is not None:
            read = read + self.image(self.dropout(side.image.to(read.dtype)))[pair]
        known = self.norm(read + self.mix(read))
        return known.new_zeros(*side.mask.shape, known.shape[-1]).index_put((pair, node), known)


def _normalised_linear(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, width))


def _waves(points: Tensor) -> Tensor:
    """Position with its sines and cosines; a linear map of them can tell near places apart."""
    angles = torch.cat([points * (f * torch.pi / 2) for f in _FREQUENCIES], -1)
    return torch.cat([points, angles.sin(), angles.cos()], -1)


def spline_basis(side: Side, kernel: int) -> Tensor:
    """Where each neighbour lies, as weights of a kernel x kernel grid of hat functions: (B, kernel^2, n, n).

    The offset from i to j, at most a crop's side in either direction, falls between four grid points, which share it
    bilinearly: the weights of an edge sum to 1 over the grid. They are divided by the number of neighbours of i, so
    that a convolution takes means. No edge, no weight.
    """
    offset = side.points.unsqueeze(-3) - side.points.unsqueeze(-2)  # [b, i, j] from i to j, in [-2, 2]
    place = (offset.clamp(-1, 1) + 1) * ((kernel - 1) / 2)  # beyond half a crop all offsets count as half a crop
    grid = torch.arange(kernel, device=place.device, dtype=place.dtype)
    hats = (1 - (place.unsqueeze(-1) - grid).abs()).clamp_min(0)  # (B, n, n, 2, kernel)
    weights = (hats[..., 0, :, None] * hats[..., 1, None, :]).flatten(-2)  # (B, n, n, kernel^2)
    mean = side.adjacency / side.adjacency.sum(-1, keepdim=True).clamp_min(1)
    return (weights * mean.unsqueeze(-1)).permute(0, 3, 1, 2)


class SplineConvolution(nn.Module):
    """A convolution on a graph whose kernel is a continuous function of the edge's offset (SplineCNN, degree 1).

    ``h_i <- h_i + ReLU(W h_i + sum_j sum_k basis_k(i, j) W_k h_j)``, one matrix W_k for each grid point.
    """

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.kernel = nn.Linear(kernel * kernel * width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, h: Tensor, basis: Tensor, mask: Tensor) -> Tensor:
        """(B, n, d) from vectors (B, n, d), `spline_basis` and the mask of real keypoints."""
        grid = basis.shape[1]
        gathered = (basis.flatten(1, 2) @ h).unflatten(1, (grid, -1))  # (B, grid, n, d)
        around = self.kernel(gathered.transpose(1, 2).flatten(2))
        return self.norm(h + nn.functional.relu(self.own(h) + around)) * mask.unsqueeze(-1)


class SplineNodes(nn.Module):
    """`NodeEncoder` followed by spline convolutions on the graph, as in BBGM and NGMv2."""

    def __init__(self, features: int, image: int, width: int, *, dropout: float, kernel: int, layers: int) -> None:
        super().__init__()
        self.encoder = NodeEncoder(features, image, width, dropout)
        self.kernel = kernel
        self.convolutions = nn.ModuleList(SplineConvolution(width, kernel) for _ in range(layers))

    def forward(self, side: Side) -> Tensor:
        """(B, n, d)."""
        h = self.encoder(side)
        basis = spline_basis(side, self.kernel)
        for convolution in self.convolutions:
            h = convolution(h, basis, side.mask)
        return h


class Affinity(nn.Module):
    """Scores of all pairs of keypoints: a weighted inner product of their vectors.

    The weight of each channel depends on both images (BBGM), so that what matters may differ between a bottle and a
    bird; without images it is learned once.

    Args:
        width: d, channels of a keypoint's vector.
        image: G, channels of the whole image; 0 where there is none.
    """

    def __init__(self, width: int, image: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.weight = nn.Parameter(torch.full((width,), width**-0.5))
        self.context = _normalised_linear(image, width) if image else None

    def forward(self, left: Tensor, right: Tensor, images: tuple[Tensor, Tensor]) -> Tensor:
        """(B, n1, n2) from vectors (B, n1, d) and (B, n2, d) and the images (B, G) of both sides."""
        weight = self.weight
        left, right = self.project(left), self.project(right)
        if self.context is not None:
            seen = self.context(images[0].to(left.dtype)) + self.context(images[1].to(left.dtype))
            weight = weight * (1 + seen.tanh()).unsqueeze(1)
        return (left * weight) @ right.transpose(1, 2)


class EdgeWeights(nn.Module):
    """What an edge i - i' is worth in each channel: a function of both its vectors and of its offset."""

    def __init__(self, width: int, channels: int, kernel: int) -> None:
        super().__init__()
        self.start, self.end = nn.Linear(width, channels), nn.Linear(width, channels, bias=False)
        self.place = nn.Linear(kernel * kernel, channels, bias=False)
        self.kernel = kernel

    def forward(self, h: Tensor, side: Side) -> Tensor:
        """(B, c, n, n), 0 where there is no edge; the mean over neighbours is taken."""
        offset = self.place(spline_basis(side, self.kernel).permute(0, 2, 3, 1))
        mean = side.adjacency / side.adjacency.sum(-1, keepdim=True).clamp_min(1)
        ends = (self.start(h).unsqueeze(2) + self.end(h).unsqueeze(1)).tanh() * mean.unsqueeze(-1)
        return (ends + offset).permute(0, 3, 1, 2)


class KeypointMatcher(nn.Module):
    """Spline convolutions on each graph, then weighted inner products.

    Args:
        features, image: channels F at a keypoint and G of the whole image.
        sizes: of the network.
    """

    def __init__(self, features: int, image: int, sizes: NetworkConfig) -> None:
        super().__init__()
        kernel, layers = sizes.kernel, sizes.layers
        self.nodes = SplineNodes(features, image, sizes.width, dropout=sizes.dropout, kernel=kernel, layers=layers)
        self.affinity = Affinity(sizes.width, image)

    def forward(self, batch: Batch) -> Tensor:
        """Scores (B, n1, n2); those of padded keypoints mean nothing."""
        left, right = sides(batch)
        return self.affinity(self.nodes(left), self.nodes(right), (left.image, right.image))


class EdgeMatcher(KeypointMatcher):
    """`KeypointMatcher` that also weighs the edges of both graphs, as BBGM and NGMv2 do; it takes what that takes."""

    def __init__(self, features: int, image: int, sizes: NetworkConfig) -> None:
        super().__init__(features, image, sizes)
        self.edges = EdgeWeights(sizes.width, sizes.channels, sizes.kernel)

    def weighed(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (B, n1, n2) of pairs of keypoints, and the edges of both sides: (B, c, n1, n1), (B, c, n2, n2)."""
        left, right = sides(batch)
        h, k = self.nodes(left), self.nodes(right)
        scores = self.affinity(h, k, (left.image, right.image))
        return scores, self.edges(h, left), self.edges(k, right)
