"""Lightning Fabric with DDP: ``fabric_ddp.py NODES RANKS_PER_NODE``."""

from __future__ import annotations

import os
import sys

import torch
from lightning_fabric import Fabric  # type: ignore[import-not-found]


def main() -> None:
    fabric = Fabric(accelerator="cpu", num_nodes=int(sys.argv[1]), devices=int(sys.argv[2]), strategy="ddp")
    fabric.launch()
    model = fabric.setup_module(torch.nn.Linear(4, 1))
    model(torch.ones(2, 4) * fabric.global_rank).sum().backward()
    total = int(fabric.all_reduce(torch.tensor(fabric.global_rank + 1.0), reduce_op="sum"))
    print(f"rank {fabric.global_rank} of {fabric.world_size} is RANK {os.environ['RANK']}, sum {total}", flush=True)
    # Else a thread of Gloo may abort the process while Python ends ("terminate called without an active exception").
    # The model goes first: the last to hold a group of Gloo waits for that thread, and DistributedDataParallel does so
    # without releasing Python's lock, which the thread may need (pytorch/pytorch#56297; 13 of 30 runs hung).
    del model
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
