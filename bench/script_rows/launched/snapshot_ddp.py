"""A training with snapshots, in the shape of PyTorch's tutorial on DDP: ``snapshot_ddp.py MEETING EPOCHS``.

MEETING says how the ranks meet. EPOCHS more are trained from the snapshot on, if there is one.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

_SNAPSHOT = "snapshot.pt"


def _by_environment() -> None:
    dist.init_process_group("gloo")


def _by_open_mpi_variables() -> None:
    os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
    os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
    dist.init_process_group("gloo")


def _by_mpi_of_torch() -> None:
    dist.init_process_group("mpi")


def _by_mpi() -> None:
    import seatrial.mpi

    dist.init_process_group(seatrial.mpi.BACKEND, init_method="mpi://")


def _by_environment_over_mpi() -> None:
    import seatrial.mpi

    dist.init_process_group(seatrial.mpi.BACKEND)


def _by_mpi_of_torch_and_import() -> None:
    import seatrial.mpi

    assert seatrial.mpi.BACKEND != "mpi"
    dist.init_process_group("mpi")


_MEETINGS = {
    "env": _by_environment,
    "ompi-variables": _by_open_mpi_variables,
    "mpi-of-torch": _by_mpi_of_torch,
    "mpi": _by_mpi,
    "env-over-mpi": _by_environment_over_mpi,
    "import-only": _by_mpi_of_torch_and_import,
}


def main() -> None:
    _MEETINGS[sys.argv[1]]()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(2048, 20), torch.rand(2048, 1))
    sampler: DistributedSampler[object] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    first = 0
    if os.path.exists(_SNAPSHOT):
        snapshot = torch.load(_SNAPSHOT, weights_only=True)
        model.module.load_state_dict(snapshot["model"])
        first = snapshot["epochs"]
    steps = 0
    for epoch in range(first, first + int(sys.argv[2])):
        sampler.set_epoch(epoch)
        for features, target in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(features), target).backward()
            optimizer.step()
            steps += 1
        # Nobody may read it while it is written, nor before all have read the last one.
        dist.barrier()
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "epochs": epoch + 1}, _SNAPSHOT)
        dist.barrier()
    print(f"rank {rank} of {world_size}: {steps} steps from epoch {first}", flush=True)
    dist.destroy_process_group()
    # Threads of Gloo outlive its group: torch 2.13 sometimes aborts at the end of Python because of them.
    if sys.argv[1] == "env":
        os._exit(0)


if __name__ == "__main__":
    main()
