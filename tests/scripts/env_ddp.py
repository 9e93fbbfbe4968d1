"""A script for torchrun: all from the environment, through env://."""

from __future__ import annotations

import os

import torch.distributed as dist
from toy_training import train  # type: ignore[import-not-found]


def main() -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise RuntimeError(f"{name} is not set; start me with torchrun")
    dist.init_process_group("gloo")
    train()


if __name__ == "__main__":
    main()
