"""``--on slurm``: what is asked of Slurm."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from seatrial.checks import registry
from seatrial.errors import RequestError
from seatrial.launch.job import Job, Processes
from seatrial.launch.launchers import FileCommand
from seatrial.launch.option import is_given
from seatrial.launch.slurm import TARGETS
from seatrial.launch.target import Where
from seatrial.plan.reader import read_plan

(SLURM,) = TARGETS


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


def where(**told: Any) -> Where:
    own = {option.name: () if option.multiple else option.default for option in SLURM.options}
    fields: dict[str, Any] = {"nproc_per_node": None, "device": "cpu", "backend": "auto", "python": "/opt/python"}
    own |= {name: told.pop(name) for name in list(told) if name in own}
    return Where(target="slurm", env={}, dry_run=True, own=own, **{**fields, **told})


def fields(asked: Where) -> dict[str, Any]:
    placement = SLURM.resolve(asked)
    names = ("nodes", "nproc_per_node", "device", "backend", "python", "env", "detail")
    return {"run": "x", "target": "slurm", **{name: getattr(placement, name) for name in names}}


def rendered(job: Processes) -> FileCommand:
    (command,) = SLURM.render(job, control="10.0.0.1:5", token="secret", keep="/shared/a b")
    assert isinstance(command, FileCommand)
    return command


def step_of(command: FileCommand) -> list[str]:
    """The words of srun: those of the script."""
    (script,) = (word.removeprefix("--wrap=") for word in command.argv if word.startswith("--wrap="))
    words = shlex.split(script)
    assert words[words.index("srun") - 1] == "exec"
    return words[words.index("srun") :]


def test_outside_of_an_allocation_a_job_of_whole_nodes_is_submitted() -> None:
    command = rendered(Processes(**fields(where(nodes=4, nproc_per_node=8))))
    assert command.argv[0] == "sbatch"
    assert command.nodes == (0, 1, 2, 3)
    assert {"--parsable", "--nodes=4", "--ntasks-per-node=1", "--exclusive", "--no-requeue", "--no-kill"} <= {
        *command.argv
    }
    assert "--output=/shared/a b/slurm.log" in command.argv
    step = step_of(command)
    assert step[0] == "srun"
    assert {"--nodes=4", "--ntasks=4", "--no-kill", "--kill-on-bad-exit=0"} <= {*step}
    assert step[-1] == "seatrial.agent.main"
    assert command.env["SEATRIAL_NODE_RANK"] == "SLURM_NODEID"
    assert command.env["PYTHONPATH"].split(":")[0] == command.code == "/shared/a b/seatrial.pyz"


def test_the_token_stands_on_no_command_line() -> None:
    command = rendered(Processes(**fields(where())))
    assert command.env["SEATRIAL_TOKEN"] == "secret"
    assert not any("secret" in word for word in command.argv)


def test_in_an_allocation_srun_starts_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    command = rendered(Processes(**fields(where(slurm_arg=("--label",)))))
    assert "srun" in command.argv
    assert "--nodes=3" in command.argv
    assert "--overlap" in command.argv
    assert command.argv.index("--label") < command.argv.index("/opt/python")
    with pytest.raises(RequestError, match=r"--nodes 4: Slurm job 7 has 3"):
        SLURM.resolve(where(nodes=4))
    with pytest.raises(RequestError, match=r"--partition: this is a shell of Slurm job 7"):
        SLURM.resolve(where(partition="gpu"))


def test_the_agents_learn_names_of_other_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The way to the other nodes may be another one than that to us."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\nprintf 'n0\\nn1\\nn2\\n'\n")
    (tmp_path / "srun").write_text("#!/bin/sh\necho $SEATRIAL_NIC, $SEATRIAL_PEER, $1\n")
    for stub in tmp_path.iterdir():
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    job = Processes(**fields(where(nodes=3)))
    (script,) = (word.removeprefix("--wrap=") for word in rendered(job).argv if word.startswith("--wrap="))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for argv in (["sh", "-c", script], rendered(Processes(**fields(where(nodes=3)))).argv):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True)
        assert done.stdout == "route, n0 n2, --nodes=3\n"


def test_what_is_asked_for_is_handed_on_as_it_is() -> None:
    asked = where(
        partition="gpu", account="me", time="01:00:00", gres="gpu:8", constraint="a&b", slurm_arg=("--qos=x",)
    )
    command = rendered(Processes(**fields(asked)))
    words = ["--partition=gpu", "--account=me", "--time=01:00:00", "--gres=gpu:8", "--constraint=a&b", "--qos=x"]
    assert [word for word in command.argv if word in words] == words


def test_a_trial_tells_how_long_it_takes_and_a_person_knows_better() -> None:
    plan = read_plan("smoke", schemas={name: registry.load(name).params for name in registry.names()},
                     scopes={name: registry.load(name).scope for name in registry.names()})  # fmt: skip
    assert "--time=6" in rendered(Job(**fields(where()), plan=plan)).argv
    times = [word for word in rendered(Job(**fields(where(time="2")), plan=plan)).argv if word.startswith("--time=")]
    assert times == ["--time=2"]
    assert not any(word.startswith("--time=") for word in rendered(Processes(**fields(where()))).argv)


def test_a_container_sees_the_folder_of_the_run() -> None:
    step = step_of(rendered(Processes(**fields(where(container_image="nvcr.io#nvidia/pytorch:26.08-py3")))))
    assert "--container-image=nvcr.io#nvidia/pytorch:26.08-py3" in step
    assert "--container-mounts=/shared/a b:/shared/a b" in step


@pytest.mark.parametrize(
    ("gres", "there"), [("gpu:8", 8), ("gpu:h100:4", 4), ("shard:1,gpu:2", 2), ("gres/gpu:16", 16)]
)
def test_devices_of_a_node_are_as_many_as_were_asked_for(gres: str, there: int) -> None:
    assert SLURM.resolve(where(gres=gres, device="cuda")).nproc_per_node == there


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"device": "cuda"}, "how many devices a node has cannot be seen from here; add --gres gpu:M"),
        ({"device": "cuda", "gres": "shard:2"}, "how many devices"),
        ({"nodes": 0}, "--nodes 0"),
        ({"nproc_per_node": 0}, "--nproc-per-node 0"),
        ({"partition": "a\nb"}, r"--partition 'a\\nb': a word is expected"),
        ({"account": ""}, "--account ''"),
        ({"queue_timeout": 0.0}, "--queue-timeout 0"),
        ({"queue_timeout": float("nan")}, "--queue-timeout nan"),
        ({"backend": "mpi"}, "MPI's launcher must start the ranks"),
        ({"backend": "nccl"}, "NCCL moves data between GPUs only"),
    ],
)
def test_what_cannot_be_done_is_refused(told: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        SLURM.resolve(where(**told))


def test_a_default_counts_as_not_given() -> None:
    """Else each command that goes elsewhere would be refused for it."""
    assert not any(is_given(option, option.default) for option in SLURM.options)
