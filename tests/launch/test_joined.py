"""Where ranks that somebody else started meet, by their environment alone."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from seatrial.errors import RequestError
from seatrial.launch.joined import agent_environ, is_one_of_many, meet
from seatrial.probe.identity import Identity, identify

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "gpu-01",
    "MASTER_PORT": "29500",
    "GROUP_WORLD_SIZE": "2",
}


def ranks(environ: dict[str, str], names: tuple[str, str], count: int) -> list[dict[str, str]]:
    rank_name, local_name = names
    return [{**environ, rank_name: str(rank), local_name: str(rank % 2)} for rank in range(count)]


def test_all_ranks_of_torchrun_meet_at_one_place_and_only_one_is_first() -> None:
    meetings = [
        meet(identify(environ), environ)
        for environ in ranks({**TORCHRUN, "GROUP_RANK": "0"}, ("RANK", "LOCAL_RANK"), 4)
    ]
    assert {(meeting.host, meeting.ports, meeting.token) for meeting in meetings} == {
        ("gpu-01", meetings[0].ports, meetings[0].token)
    }
    assert [meeting.number for meeting in meetings] == [0, 1, 2, 3]
    assert {meeting.agents for meeting in meetings} == {4}


@pytest.mark.parametrize("changed", [{"MASTER_PORT": "29501"}, {"TORCHELASTIC_RUN_ID": "other"}])
def test_another_job_meets_elsewhere(changed: dict[str, str]) -> None:
    (environ, *_) = ranks({**TORCHRUN, "GROUP_RANK": "0"}, ("RANK", "LOCAL_RANK"), 4)
    one = meet(identify(environ), environ)
    other = meet(identify({**environ, **changed}), {**environ, **changed})
    assert one.token != other.token
    assert one.ports != other.ports


def test_a_token_that_was_given_replaces_the_one_that_anybody_could_work_out() -> None:
    (environ, *_) = ranks({**TORCHRUN, "GROUP_RANK": "0"}, ("RANK", "LOCAL_RANK"), 4)
    open_to_all = meet(identify(environ), environ)
    given = meet(identify(environ), {**environ, "SEATRIAL_TOKEN": "secret"})
    assert (open_to_all.protected, given.protected) == (False, True)
    assert given.token not in (open_to_all.token, meet(identify(environ), {**environ, "SEATRIAL_TOKEN": "x"}).token)


def test_the_ports_are_below_those_that_the_system_hands_out() -> None:
    (environ, *_) = ranks({**TORCHRUN, "GROUP_RANK": "0"}, ("RANK", "LOCAL_RANK"), 4)
    for port in range(200):
        changed = {**environ, "MASTER_PORT": str(port + 1)}
        ports = meet(identify(changed), changed).ports
        assert len(set(ports)) == len(ports)
        assert all(20_000 <= number < 32_000 for number in ports)


OPENMPI = {"OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "prterun-a-1@1"}


ONE_MACHINE = {
    **OPENMPI,
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


def test_mpirun_on_one_machine_needs_no_address_and_keeps_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = ONE_MACHINE
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one, other = meet(identify(environ), environ), meet(identify(environ), environ)
    assert (one.host, one.protected) == ("127.0.0.1", True)
    assert one.token == other.token
    (secret,) = tmp_path.glob("seatrial-*/secret")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    secret.write_text("another machine")
    assert meet(identify(environ), environ).token != one.token


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"seatrial-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(RequestError, match="0700"):
        meet(identify(ONE_MACHINE), ONE_MACHINE)


def test_mpirun_on_several_machines_must_be_told_where_rank_0_is() -> None:
    environ = {
        **OPENMPI,
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    with pytest.raises(RequestError, match="MASTER_ADDR"):
        meet(identify(environ), environ)
    assert meet(identify({**environ, "MASTER_ADDR": "a"}), {**environ, "MASTER_ADDR": "a"}).host == "a"


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [("n[0-3]", "n0"), ("n[007,9]", "n007"), ("gpu-a", "gpu-a"), ("a,b[1-2]", "a"), ("x[1-2]y", "x1y")],
)
def test_the_first_host_of_a_slurm_step(nodelist: str, host: str) -> None:
    environ = {
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NODEID": "1",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NODELIST": nodelist,
    }
    assert meet(identify(environ), environ).host == host


def test_an_indexed_job_alone_does_not_say_of_how_many() -> None:
    environ = {"JOB_COMPLETION_INDEX": "1"}
    assert is_one_of_many(identify(environ))
    with pytest.raises(RequestError, match="SEATRIAL_NNODES"):
        meet(identify(environ), environ)


def test_a_person_s_shell_and_a_rank_0_of_1_are_not_one_of_many() -> None:
    assert not is_one_of_many(identify({}))
    assert not is_one_of_many(Identity(launcher="slurm", level="rank", rank=0, world_size=1))


def test_the_agent_of_a_rank_knows_its_place_on_its_machine() -> None:
    told = agent_environ(Identity(launcher="env", level="rank", rank=3, world_size=4, local_rank=1, local_world_size=2))
    assert told == {"SEATRIAL_LOCAL_RANK": "1", "SEATRIAL_LOCAL_WORLD_SIZE": "2"}
