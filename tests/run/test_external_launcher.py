"""Where ranks that somebody else started meet, by their environment alone."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from environment.recorded_environments import MPICH, OPENMPI_5, SRUN_0, SRUN_1
from environment.recorded_environments import TORCHRUN as TORCHRUN_2_2

from seatrial.cli.argparse_app import parse
from seatrial.environment.identity import Identity, identify
from seatrial.errors import RequestError
from seatrial.request.target_options import target_request_of
from seatrial.run.external_launcher import agent_environ, find_rendezvous, is_one_of_many, placement, rank_environ
from seatrial.targets.target import TargetRequest

SECRET = "0123456789abcdefghij"
TORCHRUN = {
    "SEATRIAL_TOKEN": SECRET,
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "gpu-01",
    "MASTER_PORT": "29500",
    "GROUP_WORLD_SIZE": "2",
}
OPENMPI = {"SEATRIAL_TOKEN": "0123456789abcdefghij", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "prterun-a-1@1"}


def ranks(environ: dict[str, str], names: tuple[str, str], count: int) -> list[dict[str, str]]:
    rank_name, local_name = names
    return [{**environ, rank_name: str(rank), local_name: str(rank % 2)} for rank in range(count)]


def test_all_ranks_of_torchrun_meet_at_one_place_and_only_one_is_first() -> None:
    rendezvous_of_ranks = [
        find_rendezvous(identify(environ), environ)
        for environ in ranks({**TORCHRUN, "GROUP_RANK": "0"}, ("RANK", "LOCAL_RANK"), 4)
    ]
    assert {(rendezvous.host, rendezvous.ports, rendezvous.token) for rendezvous in rendezvous_of_ranks} == {
        ("gpu-01", rendezvous_of_ranks[0].ports, rendezvous_of_ranks[0].token)
    }
    assert [rendezvous.number for rendezvous in rendezvous_of_ranks] == [0, 1, 2, 3]
    assert {rendezvous.agents for rendezvous in rendezvous_of_ranks} == {4}


def test_ranks_of_several_machines_get_no_secret_over_the_network() -> None:
    def requested(variable: str) -> TargetRequest:
        return target_request_of({**parse("x.pyz", "run", []), "device": "cpu", "env": (variable,)})

    for local_world_size in ("2", "4"):
        first = {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": local_world_size}
        identity = identify(first)
        rendezvous = find_rendezvous(identity, first)
        assert placement(requested("OMP_NUM_THREADS=1"), identity, rendezvous).nodes == 4
        if local_world_size == "4":
            assert placement(requested("HF_TOKEN=x"), identity, rendezvous).nodes == 4
        else:
            with pytest.raises(RequestError, match=r"--env HF_TOKEN=\.\.\.: under torchrun, its value would cross"):
                placement(requested("HF_TOKEN=x"), identity, rendezvous)


@pytest.mark.parametrize(
    ("environ", "machines"),
    [
        ({**TORCHRUN, "GROUP_RANK": "0", "RANK": "0", "LOCAL_RANK": "0"}, 2),
        (
            {**OPENMPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "a"},
            None,
        ),
        ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "0", "MASTER_ADDR": "a"}, None),
        ({"SEATRIAL_NODE_RANK": "0", "SEATRIAL_NNODES": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, None),
    ],
)
def test_what_the_launcher_says_of_its_machines(environ: dict[str, str], machines: int | None) -> None:
    environ = {**environ, "SEATRIAL_TOKEN": SECRET}
    assert find_rendezvous(identify(environ), environ).machines == machines


@pytest.mark.parametrize("changed", [{"MASTER_PORT": "29501"}, {"TORCHELASTIC_RUN_ID": "other"}])
def test_another_job_meets_elsewhere(changed: dict[str, str]) -> None:
    (environ, *_) = ranks({**TORCHRUN, "GROUP_RANK": "0"}, ("RANK", "LOCAL_RANK"), 4)
    one = find_rendezvous(identify(environ), environ)
    other = find_rendezvous(identify({**environ, **changed}), {**environ, **changed})
    assert one.token != other.token
    assert one.ports != other.ports


def test_munge_passes_the_token_of_this_job_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each agent knows of which job a credential must be, whichever conductor answers at its ports."""
    (tmp_path / "munge").write_text("#!/bin/sh\necho MUNGE:x:\n")
    (tmp_path / "munge").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def token(environ: dict[str, str]) -> str:
        rendezvous = find_rendezvous(identify(environ), environ)
        assert (rendezvous.token, rendezvous.protected) == ("", True)
        return rendezvous.agent_token

    first, second = ({**environ, "SEATRIAL_TOKEN": "munge"} for environ in (SRUN_0, SRUN_1))
    assert token(first) == token(second) != token({**first, "SLURM_STEP_ID": "1"})
    assert re.fullmatch("munge:[0-9a-f]{64}", token(first))


def test_a_given_token_replaces_the_derived_one() -> None:
    (environ, *_) = ranks({**TORCHRUN, "GROUP_RANK": "0"}, ("RANK", "LOCAL_RANK"), 4)
    without = {name: text for name, text in environ.items() if name != "SEATRIAL_TOKEN"}
    open_to_all = find_rendezvous(identify(without), without, unprotected=True)
    given = find_rendezvous(identify(environ), environ)
    assert (open_to_all.protected, given.protected) == (False, True)
    other = find_rendezvous(identify(environ), {**environ, "SEATRIAL_TOKEN": SECRET + "x"})
    assert len({open_to_all.token, given.token, other.token}) == 3


def test_the_ports_are_below_those_that_the_system_hands_out() -> None:
    (environ, *_) = ranks({**TORCHRUN, "GROUP_RANK": "0"}, ("RANK", "LOCAL_RANK"), 4)
    for port in range(200):
        changed = {**environ, "MASTER_PORT": str(port + 1)}
        ports = find_rendezvous(identify(changed), changed).ports
        assert len(set(ports)) == len(ports)
        assert all(20_000 <= number < 32_000 for number in ports)


ONE_MACHINE = {
    **{name: text for name, text in OPENMPI.items() if name != "SEATRIAL_TOKEN"},
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


def test_mpirun_on_one_machine_needs_no_address_and_keeps_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = ONE_MACHINE
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one, other = find_rendezvous(identify(environ), environ), find_rendezvous(identify(environ), environ)
    assert (one.host, one.protected) == ("127.0.0.1", True)
    assert one.token == other.token
    (secret,) = tmp_path.glob("seatrial-*/secret")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    secret.write_text("0123456789abcdef" * 4)  # of another machine of this user
    assert find_rendezvous(identify(environ), environ).token != one.token


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"seatrial-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(RequestError, match=r"that only user .* can use, and it is drwxrwxrwx"):
        find_rendezvous(identify(ONE_MACHINE), ONE_MACHINE)


def test_mpirun_on_several_machines_needs_a_master_address() -> None:
    environ = {
        **OPENMPI,
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    with pytest.raises(RequestError, match="MASTER_ADDR"):
        find_rendezvous(identify(environ), environ)
    assert find_rendezvous(identify({**environ, "MASTER_ADDR": "a"}), {**environ, "MASTER_ADDR": "a"}).host == "a"


HYDRA = {"SEATRIAL_TOKEN": SECRET, "PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}


@pytest.mark.parametrize(
    "environ",
    [
        HYDRA,
        {"SEATRIAL_TOKEN": SECRET, "RANK": "1", "WORLD_SIZE": "2"},
        {"SEATRIAL_TOKEN": SECRET, "SEATRIAL_NODE_RANK": "1", "SEATRIAL_NNODES": "2"},
    ],
    ids=["hydra", "env", "seatrial"],
)
def test_where_no_variable_tells_jobs_apart_the_port_does(environ: dict[str, str]) -> None:
    """The second rank of one job could join another one of the same user and host, and both would pass."""
    there = {**environ, "MASTER_ADDR": "gpu-01"}
    with pytest.raises(RequestError, match=r"nothing tells this job from another one .* set MASTER_PORT to a number"):
        find_rendezvous(identify(there), there)
    one, other = ({**there, "MASTER_PORT": port} for port in ("29500", "29501"))
    assert find_rendezvous(identify(one), one).token != find_rendezvous(identify(other), other).token


_MEETS = (
    "import os; from seatrial.environment.identity import identify;"
    " from seatrial.run.external_launcher import find_rendezvous;"
    " print(find_rendezvous(identify(os.environ), os.environ).token)"
)


@pytest.mark.parametrize("address", [{}, {"MASTER_ADDR": "127.0.0.1"}])
def test_two_jobs_of_hydra_on_one_machine_do_not_meet(tmp_path: Path, address: dict[str, str]) -> None:
    """Their ranks have one helper of hydra as an ancestor, some with a shell between."""
    helper = tmp_path / "hydra_pmi_proxy"
    helper.write_text('#!/bin/sh\n"$1" -c "$2"; sh -c \'"$1" -c "$2"; :\' sh "$1" "$2"\n')
    helper.chmod(0o755)
    environ = {**os.environ, **HYDRA, "MPI_LOCALNRANKS": "2", **address}
    command = [str(helper), sys.executable, _MEETS]
    one, other = (
        subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    )
    assert (len(one), len({*one}), len({*one, *other})) == (2, 1, 2)


@pytest.mark.parametrize("parent", [0, 1])
def test_ranks_of_hydra_with_own_process_namespaces_need_a_port(parent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getppid", lambda: parent)
    environ = {**HYDRA, "MPI_LOCALNRANKS": "2"}
    with pytest.raises(RequestError, match="set MASTER_PORT to a number"):
        find_rendezvous(identify(environ), environ)
    environ["MASTER_PORT"] = "29517"
    find_rendezvous(identify(environ), environ)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [("n[0-3]", "n0"), ("n[007,9]", "n007"), ("gpu-a", "gpu-a"), ("a,b[1-2]", "a"), ("x[1-2]y", "x1y")],
)
def test_the_first_host_of_a_slurm_step(nodelist: str, host: str) -> None:
    environ = {
        "SEATRIAL_TOKEN": SECRET,
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
    assert find_rendezvous(identify(environ), environ).host == host


def test_a_node_of_slurm_whose_name_has_no_address_is_told_at_once() -> None:
    """A script under srun meets there by torch, which would try for minutes."""
    environ = SRUN_1 | {"SLURM_STEP_NODELIST": "no-such-host.invalid"}
    with pytest.raises(
        RequestError, match=r"^no-such-host.invalid, the first host of .* has no address on .*MASTER_ADDR"
    ):
        rank_environ(identify(environ), environ)
    given = environ | {"MASTER_ADDR": "127.0.0.1"}
    assert rank_environ(identify(given), given)["RANK"] == "1"
    environ["SLURM_STEP_NODELIST"] = "localhost"
    assert rank_environ(identify(environ), environ)["MASTER_ADDR"] == "localhost"


@pytest.mark.parametrize(
    "recorded", [SRUN_1, OPENMPI_5, MPICH, TORCHRUN_2_2], ids=["srun", "Open MPI", "MPICH", "torchrun"]
)
def test_a_master_whose_name_has_no_address_is_told_at_once(recorded: dict[str, str]) -> None:
    environ = recorded | {"MASTER_ADDR": "node..0", "MASTER_PORT": "29500"}  # a name that no resolver is asked for
    expected = r"^MASTER_ADDR=node..0 has no address on \S+; set it to a name or an address of the node of"
    with pytest.raises(RequestError, match=expected):
        rank_environ(identify(environ), environ)
    environ["MASTER_ADDR"] = "localhost"
    assert rank_environ(identify(environ), environ).get("MASTER_ADDR", "localhost") == "localhost"


def test_a_master_of_pods_may_get_its_address_later() -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node..0", "MASTER_PORT": "29500"}
    assert "RANK" not in rank_environ(identify(environ), environ)


def test_an_indexed_job_alone_does_not_say_of_how_many() -> None:
    environ = {"JOB_COMPLETION_INDEX": "1"}
    assert is_one_of_many(identify(environ))
    with pytest.raises(RequestError, match="SEATRIAL_NNODES"):
        find_rendezvous(identify(environ), environ)


def test_a_person_s_shell_and_a_rank_0_of_1_are_not_one_of_many() -> None:
    assert not is_one_of_many(identify({}))
    assert not is_one_of_many(Identity(launcher="slurm", level="rank", rank=0, world_size=1))


def test_the_agent_of_a_rank_knows_its_place_on_its_machine() -> None:
    told = agent_environ(Identity(launcher="env", level="rank", rank=3, world_size=4, local_rank=1, local_world_size=2))
    assert told == {"SEATRIAL_LOCAL_RANK": "1", "SEATRIAL_LOCAL_WORLD_SIZE": "2"}
