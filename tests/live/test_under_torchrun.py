"""Ranks that another launcher started: the same command, typed under torchrun, gives the same verdict."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from live.trials import SCHEMA

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TRIAL = ["run", "smoke", "--json"]
SOURCES = ["installed", pytest.param("pyz", marks=pytest.mark.slow)]


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def started(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )


def passed(out: Path, launchers: list[subprocess.Popen[str]]) -> None:
    """All launchers end with 0, and the one report that there is says PASS of two ranks."""
    outputs = [launcher.communicate(timeout=55) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0] * len(launchers), outputs
    (text,) = (json.loads(stdout) for stdout, _ in outputs if stdout.strip())
    jsonschema.validate(text, SCHEMA)
    assert text["acceptance"]["status"] == "PASS", text["findings"]
    assert text["world_size"] == 2
    assert sorted(rank["rank"] for rank in text["ranks"]) == [0, 1]
    assert len([path for path in out.iterdir() if path.is_dir()]) == 1


@pytest.fixture
def command(request: pytest.FixtureRequest) -> list[str]:
    """The command that torchrun starts: the installed package, or the bundle."""
    return [str(request.getfixturevalue("pyz"))] if request.param == "pyz" else ["-m", "seatrial"]


@pytest.mark.slow
@pytest.mark.parametrize("command", SOURCES, indirect=True)
def test_under_torchrun_rank_0_conducts(tmp_path: Path, command: list[str]) -> None:
    passed(tmp_path, [started(*TORCHRUN, "--nproc-per-node", "2", *command, *TRIAL, "--out", str(tmp_path))])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "command"),
    [
        ("static", "installed"),
        pytest.param("static", "pyz", marks=pytest.mark.slow),
        ("c10d", "installed"),
        pytest.param("c10d", "pyz", marks=pytest.mark.slow),
    ],
    indirect=["command"],
)
def test_under_torchrun_on_two_nodes(
    tmp_path: Path, backend: str, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEATRIAL_TOKEN", secrets.token_hex(32))
    port = free_port()
    where = (
        ["--master-addr", "127.0.0.1", "--master-port", port]
        if backend == "static"
        else ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"]
    )
    node = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", *where]
    passed(
        tmp_path,
        [started(*node, "--node-rank", str(number), *command, *TRIAL, "--out", str(tmp_path)) for number in range(2)],
    )


@pytest.mark.slow
def test_a_fault_under_torchrun_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEATRIAL_PLANT", "kill@collectives/all_reduce:1")
    launcher = started(*TORCHRUN, "--nproc-per-node", "2", "-m", "seatrial", *TRIAL, "--out", str(tmp_path))
    stdout, stderr = launcher.communicate(timeout=55)
    assert launcher.returncode == 1, stderr
    report = json.loads(stdout)
    assert report["acceptance"]["status"] == "FAIL"
    assert [1] in [finding["culprit"]["ranks"] for finding in report["findings"]]


def test_a_wrong_request_ends_all_processes_alike(tmp_path: Path) -> None:
    command = [*TORCHRUN, "--nproc-per-node", "2", "-m", "seatrial", "run", "smoek", "--out", str(tmp_path)]
    launcher = started(*command)
    _, stderr = launcher.communicate(timeout=55)
    assert launcher.returncode != 0
    assert "smoek" in stderr
    assert list(tmp_path.iterdir()) == []
