"""Run by mpirun: how a script with the MPI backend can end. Not a test by itself.

mpirun -n 2 python mpi_endings.py forgotten | exception | late | named | absent
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import seatrial.mpi
from seatrial.mpi_backend.library import load_mpi


def main(how: str) -> None:
    patience = timedelta(seconds=2 if how in ("late", "absent") else 20)
    if how == "absent" and load_mpi().COMM_WORLD.rank == 1:
        time.sleep(30)
    dist.init_process_group(seatrial.mpi.BACKEND, init_method="mpi://", timeout=patience)
    rank = dist.get_rank()
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one.item() == dist.get_world_size()
    if how == "exception" and rank == 1:
        raise ValueError("planted in rank 1")
    if how in ("late", "named") and rank == 1:
        time.sleep(30)
    if how == "named":
        options = dist.AllreduceOptions()
        options.timeout, options.asyncOp = timedelta(seconds=1), False
        world: Any = dist.group.WORLD
        world.allreduce([one], options)
    if how != "forgotten":
        dist.all_reduce(one)
    # Nobody waits for any of these, nor is the group destroyed.
    for _ in range(20):
        dist.all_reduce(torch.ones(1000), async_op=True)
    dist.isend(torch.ones(100_000), (rank + 1) % 2)
    dropped = dist.irecv(torch.ones(100_000), (rank + 1) % 2)
    assert dropped is not None
    dropped.get_future()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads, from Python 3.12 on
        if os.fork() == 0:
            sys.exit()  # its exit handlers must leave the MPI of its parent alone
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    print("ended", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
