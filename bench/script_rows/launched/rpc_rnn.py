"""A recurrent network split over RPC, in the shape of PyTorch's example rpc/rnn: it starts its processes itself.

``rpc_rnn.py EPOCHS``; MASTER_ADDR and MASTER_PORT are in the environment.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch.distributed.optim import DistributedOptimizer


class Table(torch.nn.Module):
    """The embedding, which the other process keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the vectors of words."""
        return self.table(words)

    def references(self) -> list[rpc.RRef]:
        """Return the parameters, for an optimizer elsewhere."""
        return [rpc.RRef(parameter) for parameter in self.parameters()]


def _train(epochs: int) -> None:
    table = rpc.remote("server", Table)
    network = torch.nn.LSTM(8, 8)
    parameters = table.rpc_sync().references() + [rpc.RRef(parameter) for parameter in network.parameters()]
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.05)
    for epoch in range(epochs):
        with dist_autograd.context() as context:
            output, _ = network(table.rpc_sync().forward(torch.randint(10, (5, 4))))
            dist_autograd.backward(context, [output.square().mean()])
            optimizer.step(context)
        print(f"Training epoch {epoch}", flush=True)


def _process(rank: int, epochs: int) -> None:
    rpc.init_rpc("trainer" if rank else "server", rank=rank, world_size=2)
    if rank:
        _train(epochs)
    rpc.shutdown()


if __name__ == "__main__":
    mp.spawn(_process, args=(int(sys.argv[1]),), nprocs=2)
