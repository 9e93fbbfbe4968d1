"""How many ranks each node gets, and which way they talk, by who started the processes."""

from __future__ import annotations

import pytest

from seatrial.cli.argparse_app import parse
from seatrial.environment.identity import Identity
from seatrial.errors import RequestError
from seatrial.request.trial_request import job_of, request_of
from seatrial.run.external_launcher import Rendezvous
from seatrial.targets.job import Job

NODE = {"launcher": "pytorchjob", "level": "node", "node_rank": 0, "nnodes": 2, "master_addr": "m", "master_port": 1}


def job(identity: Identity, agents: int | None, nproc_per_node: int | None = None) -> Job:
    words = ["smoke", "--device", "cpu"]
    words += [] if nproc_per_node is None else ["--nproc-per-node", str(nproc_per_node)]
    request = request_of(parse("seatrial", "run", words))
    rendezvous = None
    if agents is not None:
        where = {"host": "m", "ports": (1,), "token": "t", "protected": True, "launcher": identity.launcher}
        rendezvous = Rendezvous(**where, number=0, agents=agents)  # type: ignore[arg-type]
    return job_of(request, identity, rendezvous)[0]


def node(nproc_per_node: int | None) -> Identity:
    return Identity(**NODE, nproc_per_node=nproc_per_node)  # type: ignore[arg-type]


def rank(local_world_size: int) -> Identity:
    return Identity(launcher="torchrun", level="rank", rank=0, world_size=4, local_world_size=local_world_size)


def test_the_option_counts_where_the_environment_of_a_node_says_nothing() -> None:
    found = job(node(None), agents=2, nproc_per_node=1)
    assert (found.nodes, found.nproc_per_node) == (2, 1)


def test_the_environment_of_a_node_says_how_many_ranks_it_starts() -> None:
    assert job(node(3), agents=2).nproc_per_node == 3
    assert job(node(3), agents=2, nproc_per_node=3).nproc_per_node == 3


def test_option_and_environment_that_disagree_are_both_printed() -> None:
    with pytest.raises(RequestError, match=r"--nproc-per-node 4, but pytorchjob starts 3 processes on each node"):
        job(node(3), agents=2, nproc_per_node=4)
    with pytest.raises(RequestError, match=r"--nproc-per-node 3, but torchrun starts 2 processes on each node"):
        job(rank(2), agents=4, nproc_per_node=3)
    assert job(rank(2), agents=4, nproc_per_node=2).nproc_per_node == 1


def test_ranks_of_several_nodes_are_not_bound_to_loopback() -> None:
    assert "GLOO_SOCKET_IFNAME" not in job(node(None), agents=2).env
    assert "GLOO_SOCKET_IFNAME" not in job(rank(2), agents=4).env


def test_ranks_of_one_machine_talk_over_loopback() -> None:
    assert job(rank(4), agents=4).env["GLOO_SOCKET_IFNAME"] == "lo"
    assert job(Identity(launcher="none", level="none"), agents=None).env["GLOO_SOCKET_IFNAME"] == "lo"
