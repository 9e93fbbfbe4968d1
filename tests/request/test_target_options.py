"""Where a job runs: what a target takes and what it refuses, and what its nodes are told."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest

from seatrial.cli.argparse_app import parse
from seatrial.cli.option_sources import with_origins
from seatrial.errors import RequestError
from seatrial.request import target_options as module
from seatrial.request.target_options import target_request_of
from seatrial.targets.job import Processes
from seatrial.targets.local_target import TARGETS, render
from seatrial.targets.option import Option
from seatrial.targets.target import Placement, Target, TargetRequest

(LOCAL,) = TARGETS
VALUES: dict[str, Any] = {**parse("x.pyz", "run", []), "device": "cpu"}


def processes(nodes: int, nproc_per_node: int, device: str) -> Processes:
    return Processes(
        run="x",
        target="local",
        nodes=nodes,
        nproc_per_node=nproc_per_node,
        device=device,
        backend="auto",
        python=sys.executable,
        env={},
    )


def test_an_option_of_another_target_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(target_request: TargetRequest) -> Placement:
        raise NotImplementedError

    queue = Option(flags=("--queue",), name="queue", help="")
    moon = Target(name="moon", help="", options=(queue,), resolve=resolve, render=render)
    monkeypatch.setattr(module, "TARGETS", {"local": LOCAL, "moon": moon})
    values = {**VALUES, "queue": "fast", "nodes": 2}
    with pytest.raises(RequestError, match="--queue is for --on moon, not for --on local"):
        target_request_of(values)
    with pytest.raises(RequestError, match="--nodes is for --on local, not for --on moon"):
        target_request_of({**values, "target": "moon"})
    assert target_request_of({**values, "target": "moon", "nodes": None}).own == {"queue": "fast"}
    with pytest.raises(RequestError, match="--on mars: no such target; there is local, moon"):
        target_request_of({**values, "target": "mars"})


@pytest.mark.parametrize("told", ["X", "=1", "1X=2", "A B=1", "RANK=0", "SEATRIAL_TOKEN=x", "X=a\0b"])
def test_a_variable_that_is_none_or_ours_is_refused(told: str) -> None:
    with pytest.raises(RequestError, match="--env"):
        target_request_of({**VALUES, "env": (told,)})


def test_the_folder_of_the_data_may_be_set() -> None:
    assert target_request_of({**VALUES, "env": ("SEATRIAL_DATA=/data",)}).env["SEATRIAL_DATA"] == "/data"


def test_messages_repeat_no_secret() -> None:
    for told in ("HF-TOKEN=hunter2", "SEATRIAL_TOKEN=hunter2"):
        with pytest.raises(RequestError, match=f"--env {told.partition('=')[0]}") as raised:
            target_request_of({**VALUES, "env": (told,)})
        assert "hunter2" not in str(raised.value)
    with pytest.raises(RequestError, match=r"--env \.\.\.: expected NAME=VALUE"):
        target_request_of({**VALUES, "env": ("hunter2",)})
    with pytest.raises(RequestError, match="--env HF_TOKEN: expected NAME=VALUE"):
        target_request_of({**VALUES, "env": ("HF_TOKEN",)})


@pytest.mark.parametrize("command", ["run", "train", "launch"])
@pytest.mark.parametrize("told", ["HF_TOKEN=hunter2", "HTTPS_PROXY=http://me:hunter2@proxy"])
@pytest.mark.parametrize("is_typed", [True, False])
def test_a_secret_crosses_no_network_unencrypted(command: str, told: str, is_typed: bool) -> None:
    def request(target: str) -> TargetRequest:
        typed = {"target": target, **({"env": (told,)} if is_typed else {})}
        values = with_origins(command, typed, {} if is_typed else {"SEATRIAL_OPTION_ENV": told})
        return target_request_of({"backend": "auto", **values})

    name, _, value = told.partition("=")
    for target in ("mpirun", "slurm"):
        with pytest.raises(RequestError, match=f"--env {name}=...: with --on {target}, its value would") as raised:
            request(target)
        assert "hunter2" not in str(raised.value)
        # All that these launchers hand on crosses it as readable: mpirun -x, sbatch --export.
        assert "only you can read, on a disk of the nodes, or use --on ssh" in str(raised.value)
    for target in ("local", "ssh"):
        assert request(target).env == {name: value}


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("HF_TOKEN", "x", True),
        ("GIT_TOKENS", "x", True),
        ("AWS_SECRET_ACCESS_KEY", "x", True),
        ("wandb_api_key", "x", True),
        ("APIKEY", "x", True),
        ("KEY", "x", True),
        ("PGPASSWORD", "x", True),
        ("DB_PASS", "x", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/x", True),
        ("HTTPS_PROXY", "http://me:hunter2@proxy:80", True),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("NCCL_DEBUG", "TOKEN=KEY", True),
        ("NCCL_SOCKET_IFNAME", "eth0", False),
        ("NCCL_IB_PKEY", "1", False),
        ("OMP_NUM_THREADS", "1", False),
        ("CUDA_VISIBLE_DEVICES", "0", False),
        ("GLOO_SOCKET_IFNAME", "lo", False),
        ("MASTER_ADDR", "node0", False),
        ("PYTHONPATH", "/a:/b", False),
        ("NCCL_TOKEN", "x", True),
        ("TORCH_HOME", "https://u:p/w@h/", True),
        ("UNKNOWN", "x", True),
        ("DSN", "postgres://u:p/w@h", True),
        ("MYSQL_PWD", "x", True),
        ("GITHUB_PAT", "x", True),
        ("AUTH", "x", True),
        ("SSHKEY", "x", True),
        ("AZURE_STORAGE_CONNECTION_STRING", "x", True),
        ("DOCKER_AUTH_CONFIG", "x", True),
        ("SESSION_COOKIE", "x", True),
        ("BEARER", "x", True),
        ("X", "-----BEGIN PRIVATE KEY-----", True),
    ],
)
def test_reports_hide_values_that_look_secret(name: str, value: str, hidden: bool) -> None:
    job = Processes(
        run="x", target="local", nodes=1, nproc_per_node=1, device="cpu", backend="auto", python="p", env={name: value}
    )
    assert job.to_json()["env"] == {name: "(hidden)" if hidden else value}


def test_variables_are_kept_as_they_are() -> None:
    assert target_request_of({**VALUES, "env": ("A=", "B=c=d e")}).env == {"A": "", "B": "c=d e"}


@pytest.mark.parametrize(
    ("told", "expected"),
    [({}, (1, 2)), ({"nodes": 3}, (3, 2)), ({"nodes": 2, "nproc_per_node": 4}, (2, 4))],
)
def test_this_machine_is_as_many_nodes_as_asked_for(told: Mapping[str, Any], expected: tuple[int, int]) -> None:
    placement = LOCAL.resolve(target_request_of({**VALUES, **told}))
    assert (placement.nodes, placement.nproc_per_node) == expected


@pytest.mark.parametrize("told", [{"nodes": 0}, {"nodes": -1}, {"nproc_per_node": 0}, {"nproc_per_node": -2}])
def test_fewer_than_one_is_refused(told: Mapping[str, Any]) -> None:
    with pytest.raises(RequestError, match="expected at least 1"):
        LOCAL.resolve(target_request_of({**VALUES, **told}))


def seen_by_nodes(job: Processes) -> list[str | None]:
    commands = render(job, control="127.0.0.1:1", token="t", keep="")
    assert [command.nodes for command in commands] == [(node,) for node in range(job.nodes)]
    return [command.env.get("CUDA_VISIBLE_DEVICES") for command in commands]


def test_nodes_that_share_a_machine_share_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert seen_by_nodes(processes(2, 2, "cuda")) == ["0,1", "2,3"]
    assert seen_by_nodes(processes(1, 4, "cuda")) == [None]
    assert seen_by_nodes(processes(2, 2, "cpu")) == [None, None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,5,3,1")
    assert seen_by_nodes(processes(2, 2, "cuda")) == ["7,5", "3,1"]


@pytest.mark.parametrize(
    ("visible", "shares"),
    [
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, [{"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "5"}]),
        (
            {"HIP_VISIBLE_DEVICES": "6,7", "CUDA_VISIBLE_DEVICES": "4,5"},
            [{"HIP_VISIBLE_DEVICES": "6"}, {"HIP_VISIBLE_DEVICES": "7"}],
        ),
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, [{"HIP_VISIBLE_DEVICES": "0"}, {"HIP_VISIBLE_DEVICES": "1"}]),
    ],
    ids=["CUDA", "HIP", "ROCR"],
)
def test_nodes_get_shares_of_the_variable_that_hip_obeys(
    visible: dict[str, str], shares: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in visible.items():
        monkeypatch.setenv(name, value)
    commands = render(processes(2, 1, "rocm"), control="127.0.0.1:1", token="t", keep="")
    given = [{name: value for name, value in command.env.items() if "VISIBLE" in name} for command in commands]
    assert given == shares


def test_env_wins_over_a_profile() -> None:
    told = target_request_of({**VALUES, "comm_profile": "ib", "comm_debug": True, "env": ("NCCL_NET=mine", "X=1")}).env
    assert told["NCCL_NET"] == "mine"
    assert told["NCCL_IB_DISABLE"] == "0"
    assert told["NCCL_DEBUG"] == "INFO"
    assert told["X"] == "1"
