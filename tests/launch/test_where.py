"""Where a job runs: what a target takes and what it refuses, and what its nodes are told."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest

from seatrial.errors import RequestError
from seatrial.launch import where as module
from seatrial.launch.job import Processes
from seatrial.launch.local import TARGETS, render
from seatrial.launch.option import Option
from seatrial.launch.pyz import parse
from seatrial.launch.target import Placement, Target, Where
from seatrial.launch.where import where_of

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
    def resolve(where: Where) -> Placement:
        raise NotImplementedError

    queue = Option(flags=("--queue",), name="queue", help="")
    moon = Target(name="moon", help="", options=(queue,), resolve=resolve, render=render)
    monkeypatch.setattr(module, "TARGETS", {"local": LOCAL, "moon": moon})
    values = {**VALUES, "queue": "fast", "nodes": 2}
    with pytest.raises(RequestError, match="--queue is for --on moon, not for --on local"):
        where_of(values)
    with pytest.raises(RequestError, match="--nodes is for --on local, not for --on moon"):
        where_of({**values, "target": "moon"})
    assert where_of({**values, "target": "moon", "nodes": None}).own == {"queue": "fast"}
    with pytest.raises(RequestError, match="--on mars: no such target; there is local, moon"):
        where_of({**values, "target": "mars"})


@pytest.mark.parametrize("told", ["X", "=1", "1X=2", "A B=1", "RANK=0", "SEATRIAL_TOKEN=x", "X=a\0b"])
def test_a_variable_that_is_none_or_ours_is_refused(told: str) -> None:
    with pytest.raises(RequestError, match="--env"):
        where_of({**VALUES, "env": (told,)})


def test_what_may_be_a_secret_stands_in_no_complaint() -> None:
    for told in ("HF-TOKEN=hunter2", "SEATRIAL_TOKEN=hunter2"):
        with pytest.raises(RequestError, match=f"--env {told.partition('=')[0]}") as raised:
            where_of({**VALUES, "env": (told,)})
        assert "hunter2" not in str(raised.value)


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
        ("MONKEY", "x", False),
        ("KEYBOARD", "x", False),
        ("NCCL_DEBUG", "TOKEN=KEY", False),
        ("MASTER", "tcp://node0:80", False),
    ],
)
def test_what_looks_like_a_secret_stands_in_no_report(name: str, value: str, hidden: bool) -> None:
    job = Processes(
        run="x", target="local", nodes=1, nproc_per_node=1, device="cpu", backend="auto", python="p", env={name: value}
    )
    assert job.to_json()["env"] == {name: "(hidden)" if hidden else value}


def test_variables_are_kept_as_they_are() -> None:
    assert where_of({**VALUES, "env": ("A=", "B=c=d e")}).env == {"A": "", "B": "c=d e"}


@pytest.mark.parametrize(
    ("told", "expected"),
    [({}, (1, 2)), ({"nodes": 3}, (3, 2)), ({"nodes": 2, "nproc_per_node": 4}, (2, 4))],
)
def test_this_machine_is_as_many_nodes_as_asked_for(told: Mapping[str, Any], expected: tuple[int, int]) -> None:
    placement = LOCAL.resolve(where_of({**VALUES, **told}))
    assert (placement.nodes, placement.nproc_per_node) == expected


@pytest.mark.parametrize("told", [{"nodes": 0}, {"nodes": -1}, {"nproc_per_node": 0}, {"nproc_per_node": -2}])
def test_fewer_than_one_is_refused(told: Mapping[str, Any]) -> None:
    with pytest.raises(RequestError, match="at least one"):
        LOCAL.resolve(where_of({**VALUES, **told}))


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


def test_what_a_person_says_himself_stands_over_a_profile() -> None:
    told = where_of({**VALUES, "comm_profile": "ib", "comm_debug": True, "env": ("NCCL_NET=mine", "X=1")}).env
    assert told["NCCL_NET"] == "mine"
    assert told["NCCL_IB_DISABLE"] == "0"
    assert told["NCCL_DEBUG"] == "INFO"
    assert told["X"] == "1"
