"""``--on ssh`` without a network: what is executed, what is printed, what is said of what went wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import socket
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from launch.ssh_double import write_ssh_double
from launchers.gather import gathered, job_of, where

from seatrial.errors import RequestError, SeatrialError
from seatrial.launch import ssh_hosts
from seatrial.launch.command import Command
from seatrial.launch.hosts import Host, Node
from seatrial.launch.ssh import TARGETS, ssh_argv
from seatrial.launch.ssh_hosts import Answer, explained
from seatrial.launch.target import Where

(SSH,) = TARGETS


def commands(told: Where, token: str = "t") -> tuple[Command, ...]:
    return SSH.render(job_of(SSH, told), control="", token=token, keep="")


@pytest.fixture
def doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ssh is a double, and temporary folders are made here."""
    monkeypatch.setenv("PATH", f"{write_ssh_double(tmp_path)}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def test_a_host_cannot_be_taken_for_an_option_and_keys_are_checked() -> None:
    argv = ssh_argv(Host(name="a", user="me", port=77), "/opt/my python")
    assert argv[-3:-1] == ("--", "me@a")
    assert argv[-5:-3] == ("-p", "77")
    assert not any("StrictHostKeyChecking" in word or "UserKnownHostsFile" in word for word in argv)
    assert "BatchMode=yes" in argv, "nobody is there to answer a question"
    assert shlex.split(argv[-1])[:3] == ["exec", "/opt/my python", "-uc"]


def test_the_token_is_in_no_argument_and_in_no_environment_here() -> None:
    told = commands(where("a,b", dry_run=True, nproc_per_node=2), token="secret-of-all")
    for command in told:
        assert "secret-of-all" not in str((command.argv, command.env))
        assert command.feed is not None
        assert "secret-of-all" in command.feed.lines[1]


def test_nodes_are_told_who_they_are_whom_they_share_with_and_where_another_is() -> None:
    told = commands(where("a,b,a", dry_run=True, nproc_per_node=2))
    headers = [json.loads(command.feed.lines[1])["env"] for command in told if command.feed]
    assert [header["SEATRIAL_NODE_RANK"] for header in headers] == ["0", "1", "2"]
    assert [header.get("SEATRIAL_NODES_HERE") for header in headers] == ["2", None, "2"]
    assert [header["SEATRIAL_PEER"] for header in headers] == ["b", "a", "b"]


def test_a_hosts_devices_are_shared_out_among_its_nodes() -> None:
    told = where("a", dry_run=True, nproc_per_node=2, nodes=2)
    told = Where(**{**{name: getattr(told, name) for name in Where.__slots__}, "device": "cuda"})
    headers = [json.loads(command.feed.lines[1]) for command in commands(told) if command.feed]
    assert [header["devices"] for header in headers] == [["CUDA_VISIBLE_DEVICES", 0, 2], ["CUDA_VISIBLE_DEVICES", 2, 4]]


def test_a_dry_run_asks_no_host_where_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert len(commands(where("a,b", dry_run=True, nproc_per_node=2))) == 2


def conducted(told: Where, tmp_path: Path) -> list[dict[str, Any]]:
    """What the agents say that were started so."""
    return gathered(SSH, job_of(SSH, told), tmp_path)


def test_agents_come_through_ssh_and_leave_nothing_behind(doubled: Path, tmp_path: Path) -> None:
    said = conducted(where("a,b", nproc_per_node=1), tmp_path)
    nodes = [event for event in said if event["kind"] == "node"]
    assert sorted(node["node"] for node in nodes) == [0, 1]
    assert list(doubled.iterdir()) == []


def test_what_a_login_script_says_is_no_harm(doubled: Path, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "ssh"
    script.write_text(script.read_text().replace("SSH_CONN", "echo welcome to this host; printf 'no end'\nSSH_CONN"))
    said = conducted(where("a", nproc_per_node=1), tmp_path)
    assert [event["kind"] for event in said if event["kind"] in ("node", "lost")] == ["node"]


def test_what_is_printed_runs_as_pasted(doubled: Path, tmp_path: Path) -> None:
    lines = SSH.shown(commands(where("a", dry_run=True, nproc_per_node=1), token="TOKEN"))
    assert lines[0] == "seatrial bundle seatrial.pyz"
    script = tmp_path / "pasted.sh"
    typed = f"{shlex.join([sys.executable, '-m', 'seatrial'])} bundle seatrial.pyz >/dev/null"
    script.write_text("\n".join(["set -e", typed, *lines[1:]]))
    ours, theirs = socket.socketpair()
    with ours, theirs, open(tmp_path / "wrong", "wb") as wrong:
        ours.settimeout(50)
        ends: dict[str, Any] = {"stdin": theirs.fileno(), "stdout": theirs.fileno(), "stderr": wrong}
        process = subprocess.Popen(["bash", script], cwd=tmp_path, **ends)
        theirs.close()
        said = b""
        while b'"hello"' not in said:
            piece = ours.recv(1 << 16)
            assert piece, (said, (tmp_path / "wrong").read_text())
            said += piece
        ours.shutdown(socket.SHUT_RDWR)
        assert process.wait(timeout=50) != 0, "nobody has answered"
    assert list(doubled.iterdir()) == []


def test_a_full_folder_is_one_sentence(doubled: Path, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "ssh"
    script.write_text(script.read_text().replace("SSH_CONN", "ulimit -f 100\nSSH_CONN"))
    with pytest.raises(SeatrialError) as refused:
        SSH.resolve(where("a", nproc_per_node=1))
    assert "a: " in str(refused.value)
    assert f"seatrial cannot be written to {doubled} (File too large)" in str(refused.value)
    assert "set TMPDIR" in str(refused.value)
    assert list(doubled.iterdir()) == []


def test_without_ssh_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match="ssh is not to be found; install OpenSSH's client"):
        SSH.resolve(where("a,b"))


def test_hosts_that_do_not_come_are_left_out_when_enough_have(doubled: Path, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "ssh"
    refuse = 'case "$2" in b) echo "ssh: connect to host b port 22: Connection refused" >&2; exit 255;; esac'
    script.write_text(script.read_text().replace("SSH_CONN", f"{refuse}\nSSH_CONN"))
    place = SSH.resolve(where("a,b,c", nproc_per_node=1, min_hosts=2))
    assert (place.nodes, [entry.node.host.name for entry in place.detail]) == (2, ["a", "c"])
    (absent,) = place.absent
    assert absent.startswith("b: nobody listens for ssh at that port;")
    with pytest.raises(SeatrialError, match="only 2 of at least 3 hosts came: b: nobody listens"):
        SSH.resolve(where("a,b,c", nproc_per_node=1, min_hosts=3))
    with pytest.raises(SeatrialError, match=r"^b: nobody listens for ssh"):
        SSH.resolve(where("a,b,c", nproc_per_node=1))


def test_a_python_without_torch_is_told_with_its_host(doubled: Path, tmp_path: Path) -> None:
    told = where("a", nproc_per_node=1)
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    for python, words in (
        (f"{tmp_path}/bare/bin/python", "a: torch is not installed for"),
        ("/nope", "a: /nope is not there"),
    ):
        with pytest.raises(SeatrialError, match=words):
            SSH.resolve(Where(**{**{name: getattr(told, name) for name in Where.__slots__}, "python": python}))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"torch": "2.4.0"}, "a has torch 2.13, and b 2.4.0"),
        ({"device": "cuda"}, "a has 1 processes for cpu .* and b 1 for cuda"),
        ({"nproc_per_node": 3}, "a has 1 processes for cpu .* and b 3 for cpu"),
    ],
)
def test_hosts_that_differ_are_told(other: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Answer(device="cpu", backend="auto", nproc_per_node=1, because="so", address="a", env={}, torch="2.13")

    def answers_double(nodes: Sequence[Node], told: Where, **others: Any) -> tuple[dict[Any, Answer], tuple[str, ...]]:
        return {nodes[0].host.at: first, nodes[1].host.at: dataclasses.replace(first, **other)}, ()

    monkeypatch.setattr(ssh_hosts, "ask", answers_double)
    with pytest.raises(RequestError, match=words):
        SSH.resolve(where("a,b"))
    if "torch" in other:
        # A trial is there to find that out.
        assert SSH.resolve(dataclasses.replace(where("a,b"), typed=("run",))).nodes == 2


@pytest.mark.parametrize("own", [{"ssh_port": 0}, {"ssh_port": 70000}, {"min_hosts": 0}, {"nodes": 3}])
def test_numbers_that_make_no_sense_are_refused(own: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        SSH.resolve(where("a,b", **own))


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (255, "ssh: Could not resolve hostname a: Name or service not known", "cannot be resolved"),
        (255, "ssh: connect to host a port 22: Connection refused", "nobody listens"),
        (255, "ssh: connect to host a port 22: Connection timed out", "within 10 s"),
        (255, "No ED25519 host key is known for a.\nHost key verification failed.", "not known"),
        (255, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", "ssh-keygen -R"),
        (255, "me@a: Permission denied (publickey).", "without a question"),
        (255, "UNPROTECTED PRIVATE KEY FILE\nme@a: Permission denied (publickey).", "chmod 600"),
        (255, "Timeout, server a not responding.", "connection was lost"),
        (127, "sh: 1: exec: python3: not found", "--python"),
        (9, "", "exit code 9 (nothing was said)"),
        (1, "\x1b[31mred", "exit code 1"),
    ],
)
def test_what_ssh_says_is_told_with_what_to_do(code: int, said: str, words: str) -> None:
    told = explained(Host(name="a"), code, said)
    assert told.startswith("a: ")
    assert words in told
    assert told.isprintable()
