"""The part that the scripts of this folder share: a training of a second whose end depends on all ranks."""

from __future__ import annotations

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_STEPS = 4


def train() -> None:
    """Train some steps on this rank's data in the existing group, then print a digest of the parameters.

    Ends the process: threads of Gloo outlive its group, and a Python that ends while they run is sometimes aborted
    ("terminate called without an active exception", torch 2.13).
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        features = torch.randn(16, 8, generator=generator)
        torch.nn.functional.mse_loss(model(features), features.sum(1, keepdim=True)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    kept = b"".join(str(parameter.tolist()).encode() for parameter in model.parameters())
    print(f"rank {rank} of {world_size} has {hashlib.sha256(kept).hexdigest()}", flush=True)
    if os.environ.get("TOY_FAILS") == str(rank):
        sys.exit(f"rank {rank} fails as requested")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)
