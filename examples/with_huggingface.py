"""A Hugging Face style model with constrained output: configuration, save_pretrained, from_pretrained, ModelOutput.

pip install transformers; python examples/with_huggingface.py
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import linsat

try:
    from transformers import PretrainedConfig, PreTrainedModel
    from transformers.utils import ModelOutput
except ImportError:
    raise ImportError("this example needs transformers. Fix: pip install transformers") from None


class ShortlistConfig(PretrainedConfig):
    """Everything the rows are made from is in the configuration, so that a saved model brings its constraints."""

    model_type = "shortlist"

    def __init__(
        self,
        features: int = 8,
        groups: tuple[int, ...] = (0, 0, 0, 1, 1, 1),
        size: int = 3,
        tau: float = 0.1,
        **more: Any,
    ) -> None:
        self.features, self.groups, self.size, self.tau = features, list(groups), size, tau
        super().__init__(**more)


@dataclass
class ShortlistOutput(ModelOutput):
    loss: torch.Tensor | None = None
    scores: torch.Tensor | None = None
    selected: torch.Tensor | None = None


class ShortlistModel(PreTrainedModel):
    """Chooses ``size`` of the candidates, at least one of each group, whatever the scores are."""

    config_class = ShortlistConfig

    def __init__(self, config: ShortlistConfig) -> None:
        super().__init__(config)
        self.score = nn.Linear(config.features, 1)
        member = [[float(group == g) for g in config.groups] for group in sorted(set(config.groups))]
        with torch.device("cpu"):  # from_pretrained builds on the meta device, where rows would lose their numbers
            rows = linsat.Constraints(C=member, d=1.0, E=[[1.0] * len(config.groups)], f=float(config.size))
        self.layer = linsat.LinSAT(rows, tau=config.tau)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(std=0.5)
            module.bias.data.zero_()

    def forward(self, candidates: torch.Tensor, labels: torch.Tensor | None = None) -> ShortlistOutput:
        scores = self.score(candidates).squeeze(-1)  # (batch, candidates)
        selected = self.layer(scores)
        loss = None if labels is None else (selected - labels).square().sum(-1).mean()
        return ShortlistOutput(loss=loss, scores=scores, selected=selected)


def main() -> float:
    """Save, load, predict, differentiate; returns the largest difference between the model and its copy."""
    torch.manual_seed(0)
    model = ShortlistModel(ShortlistConfig())
    candidates = torch.randn(4, 6, 8)
    out = model(candidates, labels=torch.ones(4, 6) / 2)
    out.loss.backward()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        copy = ShortlistModel.from_pretrained(folder)
    difference = float((copy(candidates).selected - out.selected).detach().abs().max())
    print(f"each row sums to {out.selected.sum(-1).tolist()}; the reloaded model differs by {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
