"""The layer in a LightningModule: it is a module like any other, without parameters.

pip install lightning; python examples/with_lightning.py
"""

from __future__ import annotations

import torch
from torch import nn

import linsat

try:
    import lightning
except ImportError:
    raise ImportError("this example needs Lightning. Fix: pip install lightning") from None


class Sorter(lightning.LightningModule):
    """Learns to sort: scores every item for every position, and the layer makes a relaxed permutation of the scores."""

    def __init__(self, n: int = 5) -> None:
        super().__init__()
        self.n = n
        self.net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, n))
        self.layer = linsat.LinSAT(linsat.constraints.permutation(n), tau=0.1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.layer(self.net(values[..., None]))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        (values,) = batch
        target = nn.functional.one_hot(values.argsort(-1).argsort(-1), self.n)
        loss = (self(values) - target).square().sum((-1, -2)).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02)


def main(epochs: int = 5) -> float:
    """Train on the CPU; returns the share of lists sorted right."""
    lightning.seed_everything(0, verbose=False)
    model = Sorter()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(640, model.n)), batch_size=32)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    values = torch.rand(500, model.n)
    with torch.no_grad():
        right = model(values).argmax(-1) == values.argsort(-1).argsort(-1)
    share = float(right.all(-1).float().mean())
    print(f"{share:.0%} of the lists sorted right")
    return share


if __name__ == "__main__":
    main()
