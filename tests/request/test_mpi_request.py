"""``--backend mpi`` where MPI's launcher has not started the ranks, and what hydra's ranks need of us."""

from __future__ import annotations

import os
import socket

import pytest

from seatrial.environment.identity import Identity, identify
from seatrial.environment.pmi import launcher_fds, leave_launcher
from seatrial.errors import RequestError
from seatrial.targets.resources import require_mpi_launcher

OPENMPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "starter"),
    [
        ({}, "no launcher"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "TORCHELASTIC_RUN_ID": "x"}, "torchrun"),
        ({"SEATRIAL_NODE_RANK": "0", "SEATRIAL_NNODES": "2"}, "seatrial"),
    ],
)
def test_without_mpirun_it_says_what_to_type(environ: dict[str, str], starter: str) -> None:
    words = rf"and {starter} has started this one; type mpirun -np 2 seatrial run .*mpi\."
    with pytest.raises(RequestError, match=words):
        require_mpi_launcher("mpi", identify(environ), "run", min_ranks=2)
    require_mpi_launcher("gloo", identify(environ), "run", min_ranks=2)


def test_ranks_of_mpirun_may_use_it_and_a_trial_needs_two() -> None:
    require_mpi_launcher("mpi", identify(OPENMPI), "run", min_ranks=2)
    alone = Identity(launcher="hydra", level="rank", rank=0, world_size=1)
    require_mpi_launcher("mpi", alone, "train", min_ranks=1)
    with pytest.raises(RequestError, match="hydra has started 1 process, and at least 2 are needed here"):
        require_mpi_launcher("mpi", alone, "run", min_ranks=2)


def test_hydra_gets_finalize_on_its_descriptor() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        environ = {"PMI_FD": str(ours.fileno())}
        assert launcher_fds(environ) == (ours.fileno(),)
        leave_launcher(environ)
        assert theirs.recv(100) == b"cmd=finalize\n"
        theirs.close()
        leave_launcher(environ)  # nobody listens any more


@pytest.mark.parametrize("text", ["", "x", "-1", "99999", str(2**70)])
def test_a_descriptor_that_is_none_is_passed_over(text: str) -> None:
    assert launcher_fds({"PMI_FD": text}) == ()
    leave_launcher({"PMI_FD": text})
    assert launcher_fds({}) == ()
    assert os.fstat(0)
