"""One process a node, which starts the ranks of its node by mp.spawn."""

from __future__ import annotations

import argparse

import torch.distributed as dist
import torch.multiprocessing as mp
from toy_training import train  # type: ignore[import-not-found]


def one_rank(local_rank: int, options: argparse.Namespace) -> None:
    rank = options.node_rank * options.nproc_per_node + local_rank
    world_size = options.nnodes * options.nproc_per_node
    dist.init_process_group("gloo", init_method=options.dist_url, rank=rank, world_size=world_size)
    train()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--nnodes", "--node_rank", "--nproc_per_node"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--dist-url", required=True)
    options = parser.parse_args()
    mp.spawn(one_rank, args=(options,), nprocs=options.nproc_per_node)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
