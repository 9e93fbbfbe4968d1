"""Hugging Face's Trainer on a small network and made-up data: torchrun's variables are all that it needs."""

from __future__ import annotations

import os
import tempfile

import torch
import torch.distributed as dist
from transformers import Trainer, TrainingArguments  # type: ignore[import-not-found]


class Regression(torch.nn.Module):
    """One linear layer that returns its loss as Trainer expects it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss and prediction."""
        prediction = self.layer(inputs)
        return {"loss": torch.nn.functional.mse_loss(prediction, labels), "logits": prediction}


torch.manual_seed(1)
data = [{"inputs": torch.randn(8), "labels": torch.randn(1)} for _ in range(64)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=8,
        per_device_train_batch_size=4,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(model=Regression(), args=arguments, train_dataset=data)
    trainer.train()
    total = torch.tensor(float(arguments.process_index + 1))
    dist.all_reduce(total)
rank, world_size = arguments.process_index, arguments.world_size
print(f"rank {rank} of {world_size} is RANK {os.environ['RANK']}, sum {int(total)}", flush=True)
dist.destroy_process_group()
