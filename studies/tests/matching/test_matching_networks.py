"""Networks against loops over edges, and what must not matter: order, padding, batch mates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from matching_cases import FEATURES, IMAGE, batch, pairs, sizes

from linsat_studies.matching.batches import collate
from linsat_studies.matching.config import NETWORKS, NetworkConfig
from linsat_studies.matching.nodes import EdgeWeights, SplineConvolution, sides, spline_basis
from linsat_studies.matching.pca_gm import GraphConvolution
from linsat_studies.matching.train import build_network


def network(kind, *, features=FEATURES, image=IMAGE):
    torch.manual_seed(0)
    config = NetworkConfig(kind=kind, width=12, channels=6)
    return build_network(config, features=features, image=image).double().eval()


def doubled(b):
    return replace(b, **{n: t.double() for n, t in vars(b).items() if t.dtype == torch.float32})


def test_spline_weights_are_bilinear_and_average_over_neighbours():
    side, _ = sides(doubled(batch()))
    basis = spline_basis(side, 3)
    neighbours = side.adjacency.sum(-1)
    assert bool((neighbours[side.mask] > 0).all())
    torch.testing.assert_close(basis.sum((1, 3)), side.mask.double())  # a mean over neighbours, nothing for padding
    i, j = (int(v) for v in side.adjacency[0].nonzero()[0])
    x, y = ((side.points[0, j] - side.points[0, i]) + 1).clamp(0, 2).tolist()  # on the grid 0, 1, 2
    expected = np.zeros((3, 3))
    for at_x in (int(x), min(int(x) + 1, 2)):
        for at_y in (int(y), min(int(y) + 1, 2)):
            expected[at_x, at_y] = (1 - abs(x - at_x)) * (1 - abs(y - at_y))
    np.testing.assert_allclose(basis[0, :, i, j].reshape(3, 3).numpy(), expected / int(neighbours[0, i]), atol=1e-12)


def test_spline_convolution_is_the_sum_over_edges_and_grid_points():
    torch.manual_seed(1)
    side, _ = sides(doubled(batch()))
    convolution = SplineConvolution(4, 3).double()
    h = torch.randn(*side.mask.shape, 4, dtype=torch.float64) * side.mask.unsqueeze(-1)
    basis = spline_basis(side, 3)
    ours = convolution(h, basis, side.mask)[1]
    kernels = convolution.kernel.weight.reshape(4, 9, 4)  # (to, grid point, from)
    for i in range(int(side.mask[1].sum())):
        around = torch.zeros(4, dtype=torch.float64)
        for j in side.adjacency[1, i].nonzero().flatten().tolist():
            for k in range(9):
                around = around + basis[1, k, i, j] * (kernels[:, k] @ h[1, j])
        expected = convolution.norm(h[1, i] + torch.relu(convolution.own(h[1, i]) + around))
        torch.testing.assert_close(ours[i], expected)


def test_graph_convolution_takes_the_mean_over_neighbours():
    torch.manual_seed(1)
    side, _ = sides(doubled(batch()))
    convolution = GraphConvolution(4).double()
    h = torch.randn(*side.mask.shape, 4, dtype=torch.float64)
    near = side.adjacency[0, 0].nonzero().flatten().tolist()
    mean = sum(convolution.around(h[0, j]) for j in near) / len(near)
    expected = convolution.norm(h[0, 0] + torch.relu(convolution.own(h[0, 0]) + mean))
    torch.testing.assert_close(convolution(h, side.adjacency, side.mask)[0, 0], expected)


def test_messages_are_those_of_the_association_graph():
    """Products of two edge matrices are the rows of the n1 n2 by n1 n2 matrix that NGMv2 multiplies with."""
    torch.manual_seed(2)
    left, right = sides(doubled(batch()))
    edges = EdgeWeights(4, 3, 3).double()
    h = torch.randn(*left.mask.shape, 4, dtype=torch.float64)
    k = torch.randn(*right.mask.shape, 4, dtype=torch.float64)
    first, second = edges(h, left)[0], edges(k, right)[0]  # (c, n1, n1), (c, n2, n2)
    x = torch.randn(3, h.shape[1], k.shape[1], dtype=torch.float64)
    products = first @ x @ second.transpose(1, 2)
    for c in range(3):
        association = torch.kron(first[c], second[c])
        torch.testing.assert_close(products[c].flatten(), association @ x[c].flatten())
    assert bool((first[:, ~left.adjacency[0]] == 0).all())


@pytest.mark.parametrize("kind", NETWORKS)
def test_scores_do_not_depend_on_batch_mates_or_padding(kind):
    made, features = pairs()
    model = network(kind)
    together = model(doubled(collate(made, features)))
    for i, one in enumerate(made):
        alone = model(doubled(collate([one], features)))
        n1, n2 = len(one.left.names), len(one.right.names)
        torch.testing.assert_close(together[i, :n1, :n2], alone[0], atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", NETWORKS)
def test_scores_follow_the_order_of_the_keypoints(kind):
    b = doubled(batch(1))
    n1 = sizes(b)[0][0]
    order = torch.randperm(n1, generator=torch.Generator().manual_seed(3))
    changed = replace(
        b,
        points_l=b.points_l[:, order],
        features_l=b.features_l[:, order],
        adjacency_l=b.adjacency_l[:, order][:, :, order],
    )
    model = network(kind)
    torch.testing.assert_close(model(changed), model(b)[:, order], atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_weight_matters_and_no_features_are_needed(kind):
    made, features = pairs()
    model = network(kind)
    b = doubled(collate(made, features))
    model(b).square().sum().backward()
    if kind == "bbgm":  # its edges count in the worth of a matching, from weights that are 0 at first
        model.weight.data.fill_(1.0)
        model.scores(b).worth(b.truth).square().sum().backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []
    plain = network(kind, features=0, image=0)
    scores = plain(doubled(collate(made)))
    assert bool(scores.isfinite().all())
    assert float(scores.detach().std()) > 0
