"""Told by its arguments who it is and where to meet: tcp://HOST:PORT or file:///PATH."""

from __future__ import annotations

import argparse

import torch.distributed as dist
from toy_training import train  # type: ignore[import-not-found]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--dist-url", required=True)
    told = parser.parse_args()
    dist.init_process_group("gloo", init_method=told.dist_url, rank=told.rank, world_size=told.world_size)
    train()


if __name__ == "__main__":
    main()
