"""A script for mpirun: the rank from Open MPI's variables, the rendezvous from MASTER_ADDR and MASTER_PORT."""

from __future__ import annotations

import os

import torch.distributed as dist
from toy_training import train  # type: ignore[import-not-found]


def main() -> None:
    world_size, rank = int(os.environ["OMPI_COMM_WORLD_SIZE"]), int(os.environ["OMPI_COMM_WORLD_RANK"])
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=rank, world_size=world_size)
    train()


if __name__ == "__main__":
    main()
