"""PyTorch Lightning's Trainer as its documentation starts it: trainer.fit, with DDP over the ranks that it finds.

Arguments: the number of nodes and of devices on each, which the Trainer compares with its environment.
"""

from __future__ import annotations

import os
import sys

import pytorch_lightning as lightning  # type: ignore[import-not-found]
import torch
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):  # type: ignore[misc]
    """One linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


lightning.seed_everything(1)
trainer = lightning.Trainer(
    accelerator="cpu",
    strategy="ddp",
    num_nodes=int(sys.argv[1]),
    devices=int(sys.argv[2]),
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
model = Regression()
trainer.fit(model, DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=4))
total = trainer.strategy.reduce(torch.tensor(float(trainer.global_rank + 1)), reduce_op="sum")
print(
    f"rank {trainer.global_rank} of {trainer.world_size} is RANK {os.environ['RANK']}, sum {int(total)}",
    flush=True,
)
