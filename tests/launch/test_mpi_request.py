"""``--backend mpi`` where MPI's launcher has not started the ranks, and what hydra's ranks need of us."""

from __future__ import annotations

import os
import socket

import pytest

from seatrial.errors import RequestError
from seatrial.launch.place import see_that_mpi_started
from seatrial.probe.identity import Identity, identify
from seatrial.probe.process import launcher_fds, leave_launcher

OPENMPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "who"),
    [
        ({}, "nobody"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "TORCHELASTIC_RUN_ID": "x"}, "torchrun"),
        ({"SEATRIAL_NODE_RANK": "0", "SEATRIAL_NNODES": "2"}, "seatrial"),
    ],
)
def test_without_mpirun_it_says_what_to_type(environ: dict[str, str], who: str) -> None:
    with pytest.raises(RequestError, match=rf"and {who} has started this one; type mpirun -np 2 seatrial run .*mpi\."):
        see_that_mpi_started("mpi", identify(environ), "run", least=2)
    see_that_mpi_started("gloo", identify(environ), "run", least=2)


def test_ranks_of_mpirun_may_use_it_and_a_trial_needs_two() -> None:
    see_that_mpi_started("mpi", identify(OPENMPI), "run", least=2)
    alone = Identity(launcher="hydra", level="rank", rank=0, world_size=1)
    see_that_mpi_started("mpi", alone, "train", least=1)
    with pytest.raises(RequestError, match="hydra has started 1 process, and at least 2 are needed here"):
        see_that_mpi_started("mpi", alone, "run", least=2)


def test_hydra_is_told_that_a_rank_is_through_on_the_descriptor_that_it_gave() -> None:
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
