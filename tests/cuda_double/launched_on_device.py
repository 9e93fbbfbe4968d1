"""A script for ``launch``: a few steps of DDP on a CUDA device, alone or shared with the other ranks (Gloo then)."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def main() -> None:
    index = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    own = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    dist.init_process_group("nccl" if own else "gloo")
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1).to(f"cuda:{index}"), device_ids=[index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 8, device="cuda")).square().mean().backward()
        optimizer.step()
    total = sum(float(parameter.detach().sum()) for parameter in model.parameters())
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} on cuda:{index}, {dist.get_backend()}, sum {total:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
