"""Restore pictures cut into nine shuffled pieces: a network scores places, the layer makes a permutation of them."""

import sys

import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"
from torch import nn

import linsat

n, size = 9, 12  # 3 x 3 pieces of 12 x 12 pixels
u, cons = torch.linspace(0, 1, 36), linsat.constraints.permutation(n)


def shuffled(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pieces (count, n, pixels) of a sun over waves of random phase, in random order, and the place of each."""
    v, phase = u[:, None], 6.3 * torch.rand(count, 1, 1)
    picture = torch.exp(-8 * ((u - 0.7) ** 2 + (v - 0.3) ** 2)) + 0.5 * v + 0.2 * u * torch.sin(14 * v + 5 * u + phase)
    pieces = picture.unfold(1, size, size).unfold(2, size, size).reshape(count, n, size * size)
    places = torch.rand(count, n).argsort(-1)
    return pieces.take_along_dim(places[..., None], 1), places


def trained(with_layer: bool) -> torch.Tensor:
    """X[piece, place] of the test pictures: a relaxed permutation, or a softmax of every piece for itself."""
    torch.manual_seed(0)
    last = linsat.LinSAT(cons, tau=1.0) if with_layer else nn.Softmax(-1)
    net = nn.Sequential(nn.Linear(size * size, 64), nn.ReLU(), nn.Linear(64, n), last)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(150):
        pieces, places = shuffled(32)
        # Noise on every pixel, so that a piece alone does not always say where it belongs.
        loss = -net(pieces + 0.5 * torch.randn_like(pieces)).gather(-1, places[..., None]).clamp_min(1e-9).log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.manual_seed(1)
    return net(test_pieces + 0.5 * torch.randn_like(test_pieces)).detach()


torch.manual_seed(2)
test_pieces, test_places = shuffled(500)
alone, layer = trained(with_layer=False), trained(with_layer=True)
matched = [linsat.decode.hungarian(X, cons).x for X in (alone, layer)]
found = {"softmax": alone.argmax(-1), "softmax, matched": matched[0].argmax(-1), "layer": matched[1].argmax(-1)}
right = {name: (places == test_places).all(-1) for name, places in found.items()}
for name in found:
    print(f"{name}: {right[name].float().mean():.0%} of 500 pictures restored")

shown = int((right["layer"] & ~right["softmax, matched"]).nonzero()[0])
figure, axes = plt.subplots(1, 5, figsize=(8.4, 2), layout="constrained")
for axis, (title, places) in zip(axes, {"shuffled": torch.arange(n).expand(500, n), **found}.items()):
    canvas = torch.full((n, size, size), torch.nan)
    canvas[places[shown]] = test_pieces[shown].reshape(n, size, size)
    axis.imshow(canvas.reshape(3, 3, size, size).transpose(1, 2).reshape(36, 36).numpy(), cmap="magma")
    axis.set(title=title, xticks=[], yticks=[])
axes[4].imshow(layer[shown].numpy(), cmap="Blues", vmin=0, vmax=1)
axes[4].set(title="X[piece, place]", xticks=[], yticks=[])
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "permutation_learning.png", dpi=90)
