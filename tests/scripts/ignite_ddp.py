"""pytorch-ignite: the ranks that a launcher started, by ``idist.Parallel``."""

from __future__ import annotations

import os

import ignite.distributed as idist  # type: ignore[import-not-found]
import torch


def train(local_rank: int) -> None:
    total = int(idist.all_reduce(torch.tensor(idist.get_rank() + 1.0)))
    print(f"rank {idist.get_rank()} of {idist.get_world_size()} is RANK {os.environ['RANK']}, sum {total}", flush=True)
    assert local_rank == int(os.environ["LOCAL_RANK"])


if __name__ == "__main__":
    with idist.Parallel(backend="gloo") as parallel:
        parallel.run(train)
