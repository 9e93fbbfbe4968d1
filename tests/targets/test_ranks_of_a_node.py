"""How many ranks each node gets, and which way they talk, by who started the processes."""

from __future__ import annotations

import pytest

from seatrial.cli.argparse_app import parse
from seatrial.environment.identity import Identity
from seatrial.errors import RequestError
from seatrial.probe.cpu import usable_cores
from seatrial.request.trial_request import job_of, request_of
from seatrial.run.external_launcher import Rendezvous
from seatrial.targets.job import Job

NODE = {"launcher": "pytorchjob", "level": "node", "node_rank": 0, "nnodes": 2, "master_addr": "m", "master_port": 1}


def job(identity: Identity, agents: int | None, nproc_per_node: int | str | None = None, *more: str) -> Job:
    words = ["smoke", "--device", "cpu", *more]
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


ALONE = Identity(launcher="none", level="none")


def test_a_process_for_each_core_as_torchrun_has_it() -> None:
    cores = usable_cores()
    assert job(ALONE, None, "cpu").world_size == cores
    on_two = job(ALONE, None, "cpu", "--nnodes", "2")
    assert (on_two.nodes, on_two.nproc_per_node) == (2, max(1, cores // 2))
    assert job(node(None), 2, "cpu").nproc_per_node == cores
    assert job(ALONE, None, "auto").nproc_per_node == 2


def test_a_process_for_each_accelerator_of_a_machine_without_any() -> None:
    with pytest.raises(RequestError, match="--nproc-per-node gpu counts accelerators, and --device cpu uses none"):
        job(ALONE, None, "gpu")


@pytest.mark.parametrize("target", [["--on", "slurm"], ["--on", "job", "--image", "x", "--gpu-resource", "none"]])
def test_cores_that_cannot_be_counted_from_here(target: list[str]) -> None:
    with pytest.raises(RequestError, match=r"--nproc-per-node cpu: with --on [a-z]+ the cores of the nodes cannot be"):
        job(ALONE, None, "cpu", *target, "--dry-run")


def test_on_one_machine_nobody_has_left_out_the_network() -> None:
    for words in (["--only", "compute"], ["--skip", "network"], ["--only", "compute", "--nodes", "2"]):
        plan = job(ALONE, None, 2, *words).plan
        assert "network" not in (*plan.checks, *plan.not_asked)
    assert job(rank(2), 4, None, "--only", "compute").plan.not_asked["network"] == "--only"


def test_only_takes_checks_that_the_level_lacks() -> None:
    assert job(ALONE, None, 2, "--only", "links").plan.checks == ("links",)


def test_nodes_of_one_machine_are_one_to_a_check_of_machines() -> None:
    nobody = Identity(launcher="", level="none")
    for words, has in (
        (["--nodes", "3"], "all 3 nodes of this job are one"),
        ([], "this job has 1"),
    ):
        with pytest.raises(RequestError, match=f"network needs at least 2 machines, and {has}"):
            job(nobody, None, 1, "--only", "network", *words)
