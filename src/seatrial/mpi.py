"""``import seatrial.mpi``: an MPI backend for the torch that pip installs.

    import torch.distributed as dist
    import seatrial.mpi

    dist.init_process_group(seatrial.mpi.BACKEND, init_method="mpi://")

Importing registers the backend; MPI itself is initialised with the first group. docs/mpi.md has a whole example.
"""

from seatrial.mpi_backend.register import BACKEND, register, transport

__all__ = ["BACKEND", "transport"]

register()
