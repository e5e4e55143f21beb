"""Frozen networks that turn a crop into feature maps, and reading those maps at a keypoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BackboneError(ValueError):
    """A backbone that there is not, or whose weights are missing; the message says which there are."""


@dataclass(frozen=True)
class Level:
    """One feature map of a batch.

    Args:
        map: (batch, channels, height, width).
        stride: pixels between neighbouring cells.
        centre: pixel coordinate that the first cell looks at, the middle of its receptive field.
    """

    map: Tensor
    stride: int
    centre: float


Maps = tuple[list[Level], Tensor]  # feature maps, and (batch, channels) for the whole image


@dataclass(frozen=True)
class Backbone:
    """A frozen network.

    Args:
        name: its name in the configuration.
        maps: (batch, 3, height, width) normalised images to feature maps.
        mean, scale: (3,) each; ``maps`` expects (pixel - mean) / scale of pixels 0 to 255.
    """

    name: str
    maps: Callable[[Tensor], Maps]
    mean: Tensor
    scale: Tensor

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Maps:
        """Feature maps of (batch, height, width, 3) uint8 images; height and width multiples of 32."""
        pixels = images.permute(0, 3, 1, 2).float()  # channels stay last in memory, which the CPU kernels like
        return self.maps((pixels - self.mean[:, None, None]) / self.scale[:, None, None])


def sample(levels: list[Level], points: Tensor) -> Tensor:
    """All levels at (batch, points, 2) pixel coordinates, bilinearly; beyond the outermost cells their value.

    Returns:
        (batch, points, channels of all levels).
    """
    found = []
    for level in levels:
        size = points.new_tensor([level.map.shape[-1], level.map.shape[-2]])
        cell = (points - level.centre) / level.stride
        grid = 2 * cell / (size - 1) - 1  # grid_sample wants -1 for the first cell, 1 for the last
        values = F.grid_sample(level.map, grid[:, None], mode="bilinear", padding_mode="border", align_corners=True)
        found.append(values[:, :, 0].transpose(1, 2))
    return torch.cat(found, dim=-1)


def load_backbone(name: str, size: int = 256) -> Backbone:
    """A frozen network with ImageNet weights, by name, for square images of ``size`` pixels.

    Raises:
        BackboneError: there is no such network, or no weights of it on this machine.
        ImportError: the package that carries its weights is missing.
    """
    if name not in BACKBONES:
        raise BackboneError(f"backbone is {name!r}; expected one of {', '.join(BACKBONES)}.")
    if size < 64 or size % 32:
        raise BackboneError(f"size is {size}; expected a multiple of 32, at least 64, for example 256.")
    return BACKBONES[name](size)


# The Lite networks were trained on (pixel - 127) / 128, unlike most ImageNet networks.
_LITE_MEAN, _LITE_SCALE = 127.0, 128.0


def normalised(images: Tensor) -> Tensor:
    """(batch, 3, height, width) as the Lite networks expect it, from (batch, height, width, 3) uint8 images."""
    return (images.permute(0, 3, 1, 2).float() - _LITE_MEAN) / _LITE_SCALE


def _efficientnet_lite0(size: int) -> Backbone:
    from linsat_studies.matching.lite0 import load_lite0

    lower, upper = load_lite0(size)

    def maps(images: Tensor) -> Maps:
        levels, x = lower(images)
        more, whole = upper(x)
        return levels + more, whole

    return Backbone("efficientnet-lite0", maps, torch.full((3,), _LITE_MEAN), torch.full((3,), _LITE_SCALE))


_VGG16_FILE = "vgg16-397923af.pth"  # torchvision's name for its ImageNet weights
_VGG16_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels, convolutions; then a pooling
_VGG16_READ = {20: 8, 25: 16}  # layer after whose ReLU a level is read: stride; the literature's relu4_2 and relu5_1


def _vgg16(size: int) -> Backbone:
    del size  # its convolutions are padded the same way whatever the size
    path = Path(torch.hub.get_dir()) / "checkpoints" / _VGG16_FILE
    if not path.is_file():
        raise BackboneError(
            f"backbone vgg16 needs torchvision's weights, and there is no {path}. Fix: download them once by "
            f"python -c \"import torchvision; torchvision.models.vgg16(weights='IMAGENET1K_V1')\"."
        )
    weights = torch.load(path, weights_only=True, map_location="cpu")
    network = _vgg16_layers()
    network.load_state_dict({k.removeprefix("features."): v for k, v in weights.items() if k.startswith("features.")})
    network.eval().requires_grad_(False)

    def maps(images: Tensor) -> Maps:
        levels, x = [], images
        for number, layer in enumerate(network):
            x = layer(x)
            if number in _VGG16_READ:
                stride = _VGG16_READ[number]
                levels.append(Level(x, stride, stride / 2))
        return levels, x.amax(dim=(-2, -1))

    mean, scale = torch.tensor([0.485, 0.456, 0.406]) * 255, torch.tensor([0.229, 0.224, 0.225]) * 255
    return Backbone("vgg16", maps, mean, scale)


def _vgg16_layers() -> nn.Sequential:
    """The convolutional part, numbered as torchvision numbers it."""
    layers: list[nn.Module] = []
    channels = 3
    for width, convolutions in _VGG16_STAGES:
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


BACKBONES: dict[str, Callable[[int], Backbone]] = {"efficientnet-lite0": _efficientnet_lite0, "vgg16": _vgg16}
