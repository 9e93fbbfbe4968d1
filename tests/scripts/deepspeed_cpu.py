"""DeepSpeed on CPUs over Gloo, with its optimizer states shared out (ZeRO 1)."""

from __future__ import annotations

import os

import deepspeed  # type: ignore[import-not-found]
import torch
import torch.distributed as dist

deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(1)
model = torch.nn.Linear(8, 1)
config = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
for _ in range(4):
    loss = engine(torch.randn(4, 8)).square().mean()
    engine.backward(loss)
    engine.step()
total = torch.tensor(float(dist.get_rank() + 1))
dist.all_reduce(total)
rank, world_size = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {world_size} is RANK {os.environ['RANK']}, sum {int(total)}", flush=True)
dist.destroy_process_group()
