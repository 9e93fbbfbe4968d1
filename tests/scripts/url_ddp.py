"""A script whose options name its rank and the rendezvous: tcp://HOST:PORT or file:///PATH."""

from __future__ import annotations

import argparse

import torch.distributed as dist
from toy_training import train  # type: ignore[import-not-found]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--dist-url", required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo", init_method=options.dist_url, rank=options.rank, world_size=options.world_size)
    train()


if __name__ == "__main__":
    main()
