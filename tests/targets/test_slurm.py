"""``--on slurm``: the commands for Slurm, and the requests that it refuses."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hostile_files import HOSTILE, assert_unharmed

from seatrial.bundle import bundle
from seatrial.checks import registry
from seatrial.errors import RequestError
from seatrial.plan.plan_reader import read_plan
from seatrial.targets.job import Job, Processes
from seatrial.targets.launcher_process import FileCommand
from seatrial.targets.option import is_given
from seatrial.targets.slurm.driver import job_name
from seatrial.targets.slurm.slurm_target import TARGETS
from seatrial.targets.target import TargetRequest

(SLURM,) = TARGETS


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


def request(**values: Any) -> TargetRequest:
    own = {option.name: () if option.multiple else option.default for option in SLURM.options}
    fields: dict[str, Any] = {"nproc_per_node": None, "device": "cpu", "backend": "auto", "python": "/opt/python"}
    own |= {name: values.pop(name) for name in list(values) if name in own}
    return TargetRequest(target="slurm", env={}, dry_run=True, own=own, **{**fields, **values})


def fields(target_request: TargetRequest) -> dict[str, Any]:
    placement = SLURM.resolve(target_request)
    names = ("nodes", "nproc_per_node", "device", "backend", "python", "env", "detail")
    return {"run": "x", "target": "slurm", **{name: getattr(placement, name) for name in names}}


def rendered(job: Processes, keep: str = "/shared/a b") -> FileCommand:
    (command,) = SLURM.render(job, control="10.0.0.1:5", token="secret", keep=keep)
    assert isinstance(command, FileCommand)
    return command


def step_of(command: FileCommand) -> list[str]:
    """Return the words of the srun in the script of sbatch."""
    (script,) = (word.removeprefix("--wrap=") for word in command.argv if word.startswith("--wrap="))
    words = shlex.split(script)
    assert words[words.index("srun") - 1] == "exec"
    return words[words.index("srun") :]


@pytest.mark.parametrize(("python", "starts"), [("venv/bin/python", True), ("python3.12", False), ("/a/python", False)])
def test_a_relative_python_is_that_of_the_folder_here(python: str, starts: bool, tmp_path: Path) -> None:
    """On a host without that folder srun starts the agents in /tmp, where anybody may have made venv/bin/python."""
    words = step_of(rendered(Processes(**fields(request(python=python)))))
    assert (f"{os.getcwd()}/{python}" in words) == starts
    assert (python in words) != starts


def test_outside_an_allocation_whole_nodes_are_requested() -> None:
    command = rendered(Processes(**fields(request(nodes=4, nproc_per_node=8))))
    assert command.argv[0] == "sbatch"
    assert command.nodes == (0, 1, 2, 3)
    assert {"--parsable", "--nodes=4", "--ntasks-per-node=1", "--exclusive", "--no-requeue", "--no-kill"} <= {
        *command.argv
    }
    # So that it can be found where sbatch has not said its number.
    assert f"--job-name={job_name('x')}" in command.argv
    # Slurm would write through a link.
    assert "--output=/dev/null" in command.argv
    step = step_of(command)
    assert step[0] == "srun"
    assert {"--nodes=4", "--ntasks=4", "--no-kill", "--kill-on-bad-exit=0"} <= {*step}
    assert step[-1] == "seatrial.agent.agent_main"
    assert command.env["SEATRIAL_NODE_RANK"] == "SLURM_NODEID"
    assert command.bundle_path == "/shared/a b/seatrial.pyz"
    # Nothing is imported from the shared folder: each node runs a private copy with this digest.
    assert step[-6:] == [
        hashlib.sha256(bundle()).hexdigest(),
        "-",
        command.bundle_path,
        "--",
        "-m",
        "seatrial.agent.agent_main",
    ]
    assert command.bundle_path not in command.env.get("PYTHONPATH", "")


def test_the_pythonpath_of_the_user_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert rendered(Processes(**fields(request()))).env["PYTHONPATH"] == "/mine"


def test_the_token_is_on_no_command_line() -> None:
    command = rendered(Processes(**fields(request())))
    assert command.env["SEATRIAL_TOKEN"] == "secret"
    assert not any("secret" in word for word in command.argv)


def test_in_an_allocation_srun_starts_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    command = rendered(Processes(**fields(request(slurm_arg=("--label",)))))
    assert "srun" in command.argv
    assert "--nodes=3" in command.argv
    assert "--overlap" in command.argv
    assert command.argv.index("--label") < command.argv.index("/opt/python")
    with pytest.raises(RequestError, match=r"--nodes 4: Slurm job 7 has 3"):
        SLURM.resolve(request(nodes=4))
    with pytest.raises(RequestError, match=r"--partition: this shell runs in Slurm job 7"):
        SLURM.resolve(request(partition="gpu"))


def test_the_agents_get_the_names_of_other_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The route to the other nodes may differ from the route to the controller."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\nprintf 'n0\\nn1\\nn2\\n'\n")
    (tmp_path / "srun").write_text("#!/bin/sh\necho $SEATRIAL_NIC, $SEATRIAL_PEER, $1\n")
    for stub in tmp_path.iterdir():
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    job = Processes(**fields(request(nodes=3)))
    (tmp_path / "a b").mkdir()
    words = rendered(job, keep=str(tmp_path / "a b")).argv
    (script,) = (word.removeprefix("--wrap=") for word in words if word.startswith("--wrap="))
    expected = "route, n0 n2, --nodes=3\n"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=20, check=True)
    assert (done.stdout, (tmp_path / "a b" / "slurm.log").read_text()) == ("", expected)
    argv = rendered(Processes(**fields(request(nodes=3)))).argv
    assert subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout == expected


@pytest.mark.parametrize("kind", ["link", "dangling", "loop", "hard link"])
def test_the_log_is_written_through_no_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    (tmp_path / "a b").mkdir()
    log = tmp_path / "a b" / "slurm.log"
    HOSTILE[kind][0](log)
    command = rendered(Processes(**fields(request())), keep=str(log.parent))
    (script,) = (word.removeprefix("--wrap=") for word in command.argv if word.startswith("--wrap="))
    for shell in filter(None, map(shutil.which, ("sh", "bash", "dash"))):
        assert subprocess.run([shell, "-c", script], capture_output=True, timeout=20, check=False).returncode
        assert_unharmed(log)


@pytest.mark.parametrize("is_link", [False, True])
def test_the_log_is_no_fifo_of_a_neighbor(is_link: bool, tmp_path: Path) -> None:
    """A shell with -C refuses regular files only."""
    (tmp_path / "a b").mkdir()
    fifo = tmp_path / "fifo" if is_link else tmp_path / "a b" / "slurm.log"
    os.mkfifo(fifo)
    if is_link:
        (tmp_path / "a b" / "slurm.log").symlink_to(fifo)
    command = rendered(Processes(**fields(request())), keep=str(tmp_path / "a b"))
    (script,) = (word.removeprefix("--wrap=") for word in command.argv if word.startswith("--wrap="))
    neighbor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    for shell in filter(None, map(shutil.which, ("sh", "bash", "dash"))):
        done = subprocess.run([shell, "-c", script], capture_output=True, timeout=20, check=False)
        assert (done.returncode, os.read(neighbor, 100)) == (1, b"")
    os.close(neighbor)


def test_requested_resources_are_passed_on_unchanged() -> None:
    target_request = request(
        partition="gpu", account="me", time="01:00:00", gres="gpu:8", constraint="a&b", slurm_arg=("--qos=x",)
    )
    command = rendered(Processes(**fields(target_request)))
    words = ["--partition=gpu", "--account=me", "--time=01:00:00", "--gres=gpu:8", "--constraint=a&b", "--qos=x"]
    assert [word for word in command.argv if word in words] == words


def test_a_trial_sets_the_time_limit_unless_the_user_does() -> None:
    plan = read_plan("smoke", schemas=registry.schemas(), scopes=registry.scopes())
    assert "--time=6" in rendered(Job(**fields(request()), plan=plan)).argv
    times = [word for word in rendered(Job(**fields(request(time="2")), plan=plan)).argv if word.startswith("--time=")]
    assert times == ["--time=2"]
    assert not any(word.startswith("--time=") for word in rendered(Processes(**fields(request()))).argv)


def test_a_container_mounts_the_folder_of_the_run() -> None:
    step = step_of(rendered(Processes(**fields(request(container_image="nvcr.io#nvidia/pytorch:26.08-py3")))))
    assert "--container-image=nvcr.io#nvidia/pytorch:26.08-py3" in step
    assert "--container-mounts=/shared/a b:/shared/a b" in step


@pytest.mark.parametrize(
    ("gres", "device_count"), [("gpu:8", 8), ("gpu:h100:4", 4), ("shard:1,gpu:2", 2), ("gres/gpu:16", 16)]
)
def test_a_node_has_as_many_ranks_as_requested_gpus(gres: str, device_count: int) -> None:
    assert SLURM.resolve(request(gres=gres, device="cuda")).nproc_per_node == device_count


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"device": "cuda"}, "the number of devices of a node is unknown here; add --gres gpu:M"),
        ({"device": "cuda", "gres": "shard:2"}, "the number of devices"),
        ({"nodes": 0}, "--nodes 0"),
        ({"nproc_per_node": 0}, "--nproc-per-node 0"),
        ({"partition": "a\nb"}, r"--partition 'a\\nb' is empty or unprintable"),
        ({"account": ""}, "--account ''"),
        ({"queue_timeout": 0.0}, "--queue-timeout 0"),
        ({"queue_timeout": float("nan")}, "--queue-timeout nan"),
        ({"backend": "mpi"}, "MPI's launcher must start the ranks"),
        ({"backend": "nccl"}, "NCCL moves data between GPUs only"),
    ],
)
def test_an_impossible_request_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SLURM.resolve(request(**values))


def test_a_refusal_of_sbatch_repeats_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = tmp_path / "sbatch"
    stub.write_text("#!/bin/sh\necho 'sbatch: error: Invalid partition name specified' >&2; exit 1\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    words = ("--export=ALL,WANDB_API_KEY=hunter2", "--reservation=mine")
    job = Processes(**fields(request(nodes=2, nproc_per_node=1, slurm_arg=words)))
    with pytest.raises(RequestError, match="sbatch refuses the job: Invalid partition name") as raised:
        SLURM.driver(job).submit([rendered(job, str(tmp_path))], tmp_path, [], lambda *_: None)
    assert "hunter2" not in str(raised.value)
    assert "--export=ALL,WANDB_API_KEY=(hidden)' --reservation=mine." in str(raised.value)


def test_a_default_counts_as_not_given() -> None:
    """Otherwise every command for another target would be refused."""
    assert not any(is_given(option, option.default) for option in SLURM.options)


@pytest.mark.parametrize(("token", "passes"), [("munge", True), ("", False), ("a token for other launchers", False)])
def test_munge_passes_the_token_for_a_user_who_says_so(
    token: str, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the user knows whether it works where the agents start."""
    monkeypatch.setenv("SEATRIAL_TOKEN", token)
    job = Processes(**fields(request(nodes=2)))
    monkeypatch.delenv("SEATRIAL_TOKEN")  # as the controller does before it submits
    assert SLURM.has_munge is not None
    assert SLURM.has_munge(job) == passes


@pytest.mark.parametrize("token", ["MUNGE", "munge ", "munged"])
def test_a_misspelt_munge_sends_no_readable_token(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEATRIAL_TOKEN", token)
    with pytest.raises(RequestError, match=r"SEATRIAL_TOKEN has . characters.* the value munge, in just these letters"):
        SLURM.resolve(request(nodes=2))
