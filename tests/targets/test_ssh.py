"""``--on ssh`` without a network: the commands, the dry run, and the messages for failures."""

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
from launchers.gather import gathered, job_of, where
from targets.ssh_double import write_ssh_double

from seatrial.errors import RequestError, SeatrialError
from seatrial.protocol.handshake import node_token
from seatrial.targets.command import Command
from seatrial.targets.hosts import Host, Node
from seatrial.targets.processes import REMOVED
from seatrial.targets.ssh import bootstrap, connection, survey_hosts
from seatrial.targets.ssh.connection import STARTED, ssh_argv
from seatrial.targets.ssh.ssh_target import TARGETS
from seatrial.targets.ssh.survey_hosts import HostResources, explain_ssh_exit
from seatrial.targets.target import TargetRequest

(SSH,) = TARGETS


def commands(request: TargetRequest, token: str = "t") -> tuple[Command, ...]:
    return SSH.render(job_of(SSH, request), control="", token=token, keep="")


@pytest.fixture
def doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the double of ssh on PATH, and return the folder of temporary folders."""
    monkeypatch.setenv("PATH", f"{write_ssh_double(tmp_path)}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def test_a_host_is_never_an_option_and_host_keys_are_checked() -> None:
    argv = ssh_argv(Host(name="a", user="me", port=77), "/opt/my python")
    assert argv[-3:-1] == ("--", "me@a")
    assert argv[-5:-3] == ("-p", "77")
    assert not any("StrictHostKeyChecking" in word or "UserKnownHostsFile" in word for word in argv)
    assert "BatchMode=yes" in argv, "nobody can answer a prompt"
    assert shlex.split(argv[-1])[:3] == ["exec", "/opt/my python", "-Esuc"]


def test_each_node_is_fed_its_own_token_only() -> None:
    rendered = commands(where("a,b,a", dry_run=True, nproc_per_node=2), token="secret-of-all")
    tokens = [node_token("secret-of-all", node) for node in range(3)]
    assert len({*tokens, "secret-of-all"}) == 4
    for node, command in enumerate(rendered):
        assert command.feed is not None
        assert json.loads(command.feed.lines[1])["env"]["SEATRIAL_TOKEN"] == tokens[node]
        shown = str((command.argv, command.env, command.feed.lines))
        assert [token in shown for token in (*tokens, "secret-of-all")] == [number == node for number in range(4)]
        assert tokens[node] not in str((command.argv, command.env)), "arguments and variables are public"


def test_the_header_names_the_node_its_neighbors_and_a_peer() -> None:
    nodes = commands(where("a,b,a", dry_run=True, nproc_per_node=2))
    headers = [json.loads(command.feed.lines[1])["env"] for command in nodes if command.feed]
    assert [header["SEATRIAL_NODE_RANK"] for header in headers] == ["0", "1", "2"]
    assert [header.get("SEATRIAL_NODES_HERE") for header in headers] == ["2", None, "2"]
    assert [header["SEATRIAL_PEER"] for header in headers] == ["b", "a", "b"]


def test_no_host_alone_says_where_the_others_look_for_their_route() -> None:
    nodes = commands(where("a,b,c,d,e", dry_run=True, nproc_per_node=2))
    peers = [json.loads(command.feed.lines[1])["env"]["SEATRIAL_PEER"] for command in nodes if command.feed]
    assert peers == ["b c d", "a c d", "a b d", "a b c", "a b c"]


def test_the_devices_of_a_host_are_shared_by_its_nodes() -> None:
    request = dataclasses.replace(where("a", dry_run=True, nproc_per_node=2, nodes=2), device="cuda")
    headers = [json.loads(command.feed.lines[1]) for command in commands(request) if command.feed]
    assert [header["devices"] for header in headers] == [
        [["CUDA_VISIBLE_DEVICES"], 0, 2],
        [["CUDA_VISIBLE_DEVICES"], 2, 4],
    ]


@pytest.mark.parametrize(
    ("visible", "share"),
    [
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "5"}),
        ({"HIP_VISIBLE_DEVICES": "6,7", "CUDA_VISIBLE_DEVICES": "4,5"}, {"HIP_VISIBLE_DEVICES": "7"}),
        ({}, {"HIP_VISIBLE_DEVICES": "1"}),
    ],
    ids=["CUDA", "HIP", "none"],
)
def test_a_node_gets_its_share_of_the_variable_that_its_host_obeys(
    visible: dict[str, str], share: dict[str, str]
) -> None:
    request = dataclasses.replace(where("a", dry_run=True, nproc_per_node=1, nodes=2), device="rocm")
    headers = [json.loads(command.feed.lines[1]) for command in commands(request) if command.feed]
    assert bootstrap.share_of_devices(headers[1]["devices"], visible) == share


def test_a_dry_run_with_all_options_asks_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert len(commands(where("a,b", dry_run=True, nproc_per_node=2))) == 2


def conducted(request: TargetRequest, tmp_path: Path) -> list[dict[str, Any]]:
    """Return the events of the agents that this request starts."""
    return gathered(SSH, job_of(SSH, request), tmp_path)


def test_agents_connect_through_ssh_and_leave_nothing_behind(doubled: Path, tmp_path: Path) -> None:
    said = conducted(where("a,b", nproc_per_node=1), tmp_path)
    nodes = [event for event in said if event["kind"] == "node"]
    assert sorted(node["node"] for node in nodes) == [0, 1]
    assert list(doubled.iterdir()) == []


def test_output_of_a_login_script_is_harmless(doubled: Path, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "ssh"
    script.write_text(script.read_text().replace("SSH_CONN", "echo welcome to this host; printf 'no end'\nSSH_CONN"))
    said = conducted(where("a", nproc_per_node=1), tmp_path)
    assert [event["kind"] for event in said if event["kind"] in ("node", "lost")] == ["node"]


def test_the_printed_lines_run_when_pasted(doubled: Path, tmp_path: Path) -> None:
    lines = SSH.dry_run_lines(commands(where("a", dry_run=True, nproc_per_node=1), token="TOKEN"))
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
        assert process.wait(timeout=50) != 0, "no conductor has answered"
    assert list(doubled.iterdir()) == []


def test_a_changed_bundle_is_not_started(doubled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, sha256 = connection._bundle()
    monkeypatch.setattr(connection, "_bundle", lambda: (content[:-1] + b"x", sha256))
    with pytest.raises(SeatrialError) as refused:
        SSH.resolve(where("a", nproc_per_node=1))
    assert 'a: ssh ended with exit code 3 ("Error: the bundle that came by ssh has the SHA-256 ' in str(refused.value)
    assert f"and {sha256} was expected" in str(refused.value)
    assert list(doubled.iterdir()) == []


def test_a_host_with_a_limit_of_files_is_one_sentence(doubled: Path, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "ssh"
    script.write_text(script.read_text().replace("SSH_CONN", "ulimit -f 100\nSSH_CONN"))
    with pytest.raises(SeatrialError) as refused:
        SSH.resolve(where("a", nproc_per_node=1))
    assert "a: " in str(refused.value)
    assert "the bundle cannot be kept in memory (File too large); look at the limits" in str(refused.value)


def test_a_missing_ssh_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match="ssh was not found; install OpenSSH's client"):
        SSH.resolve(where("a,b"))


def test_absent_hosts_are_left_out_when_enough_are_ready(doubled: Path, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "ssh"
    refuse = 'case "$2" in b) echo "ssh: connect to host b port 22: Connection refused" >&2; exit 255;; esac'
    script.write_text(script.read_text().replace("SSH_CONN", f"{refuse}\nSSH_CONN"))
    placement = SSH.resolve(where("a,b,c", nproc_per_node=1, min_hosts=2))
    assert (placement.nodes, [entry.node.host.name for entry in placement.detail]) == (2, ["a", "c"])
    (absent,) = placement.absent
    assert absent.startswith("b: no SSH server listens on that port;")
    with pytest.raises(SeatrialError, match="only 2 of at least 3 hosts are ready: b: no SSH server listens"):
        SSH.resolve(where("a,b,c", nproc_per_node=1, min_hosts=3))
    with pytest.raises(SeatrialError, match=r"^b: no SSH server listens"):
        SSH.resolve(where("a,b,c", nproc_per_node=1))


def test_hosts_with_the_same_trouble_stand_together(doubled: Path, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "ssh"
    refuse = (
        'case "$2" in n9) echo "ssh: Could not resolve hostname n9: no answer" >&2; exit 255;;'
        ' n*) echo "ssh: connect to host $2 port 22: Connection refused" >&2; exit 255;; esac'
    )
    script.write_text(script.read_text().replace("SSH_CONN", f"{refuse}\nSSH_CONN"))
    with pytest.raises(SeatrialError) as refused:
        SSH.resolve(where("n1,n2,n9,n3,n4,n5,n6,a", nproc_per_node=1))
    assert str(refused.value) == (
        "n1, n2, n3, n4 and 2 more: no SSH server listens on that port; start sshd, or name the port with --ssh-port"
        ' ("ssh: connect to host n1 port 22: Connection refused"); n9: its name cannot be resolved; check the spelling,'
        ' or name it in ~/.ssh/config ("ssh: Could not resolve hostname n9: no answer").'
    )


def test_a_python_without_torch_is_named_with_its_host(doubled: Path, tmp_path: Path) -> None:
    request = where("a", nproc_per_node=1)
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    for python, words in (
        (f"{tmp_path}/bare/bin/python", 'a: it says "torch is not installed for'),
        ("/nope", "a: /nope does not exist there"),
    ):
        with pytest.raises(SeatrialError, match=words):
            SSH.resolve(dataclasses.replace(request, python=python))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"torch": "2.4.0"}, "a has torch 2.13, and b 2.4.0"),
        ({"device": "cuda"}, "a has 1 processes for cpu .* and b 1 for cuda"),
        ({"nproc_per_node": 3}, "a has 1 processes for cpu .* and b 3 for cpu"),
    ],
)
def test_hosts_that_differ_are_named(other: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = HostResources(
        device="cpu", backend="auto", nproc_per_node=1, because="so", address="a", env={}, torch="2.13"
    )

    def survey_double(
        nodes: Sequence[Node], request: TargetRequest, **others: Any
    ) -> tuple[dict[Any, HostResources], tuple[str, ...]]:
        return {nodes[0].host.at: first, nodes[1].host.at: dataclasses.replace(first, **other)}, ()

    monkeypatch.setattr(survey_hosts, "survey_hosts", survey_double)
    with pytest.raises(RequestError, match=words):
        SSH.resolve(where("a,b"))
    if "torch" in other:
        # A trial reports this difference itself.
        assert SSH.resolve(dataclasses.replace(where("a,b"), typed=("run",))).nodes == 2


@pytest.mark.parametrize("own", [{"ssh_port": 0}, {"ssh_port": 70000}, {"min_hosts": 0}, {"nodes": 3}])
def test_invalid_numbers_are_refused(own: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        SSH.resolve(where("a,b", **own))


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (255, "ssh: Could not resolve hostname a: Name or service not known", "cannot be resolved"),
        (255, "ssh: connect to host a port 22: Connection refused", "no SSH server listens"),
        (255, "ssh: connect to host a port 22: Connection timed out", "within 10 s"),
        (255, "No ED25519 host key is known for a.\nHost key verification failed.", "host key is unknown"),
        (255, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", "ssh-keygen -R"),
        (255, "me@a: Permission denied (publickey).", "without a password prompt"),
        (255, "UNPROTECTED PRIVATE KEY FILE\nme@a: Permission denied (publickey).", "chmod 600"),
        (255, "Timeout, server a not responding.", "connection was lost"),
        (127, "sh: 1: exec: python3: not found", "--python"),
        (9, "", "exit code 9 and did not start python3 (without output); look at ~/.bashrc there"),
        (127, "zsh:1: command not found: python3", "python3 does not exist there"),
        (127, "fish: Unknown command: python3", "python3 does not exist there"),
        (1, "python3: Command not found.", "python3 does not exist there"),
        (
            127,
            "/opt/py/bin/python3: error while loading shared libraries: libpython3.12.so.1.0: cannot open shared object"
            " file: No such file or directory",
            "python3 cannot start there",
        ),
        (1, "\x1b[31mred", "exit code 1"),
    ],
)
def test_ssh_messages_are_explained_with_the_next_step(code: int, said: str, words: str) -> None:
    sentence = explain_ssh_exit(Host(name="a"), code, said)
    assert sentence.startswith("a: ")
    assert words in sentence
    assert sentence.isprintable()


@pytest.mark.parametrize("before", [f"{STARTED}\n", "x" * 4_000, "\U0001f600" * 1_000, f"{REMOVED}\n"])
def test_a_host_that_runs_python_gives_no_advice_about_keys(before: str) -> None:
    said = "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @"
    sentence = explain_ssh_exit(Host(name="a"), 255, f"{before}\n{said}\n", started=True)
    assert sentence == f'a: ssh ended with exit code 255 ("{said}")'
    lost = explain_ssh_exit(Host(name="a"), 255, f"{before}\nTimeout, server a not responding.\n", started=True)
    assert "connection was lost" in lost
    # ssh itself, which did not get there a second time.
    assert "ssh-keygen -R" in explain_ssh_exit(Host(name="a"), 255, f"{said}\n", started=True)


def test_a_host_pushes_nothing_out_that_it_has_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first line of Python is beyond what is kept of the output, when ssh ends."""
    said = "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @"
    for pushed in (70_000, 1_000_000):
        double = tmp_path / str(pushed) / "ssh"
        double.parent.mkdir()
        lines = f"printf '%s\\n' '{STARTED}'; head -c {pushed} /dev/zero | tr '\\0' a; echo; echo '{said}'"
        double.write_text(f"#!/bin/sh\ncat > /dev/null & {{ {lines}; }} >&2\nexit 255\n")
        double.chmod(0o755)
        monkeypatch.setenv("PATH", f"{double.parent}{os.pathsep}{os.environ['PATH']}")
        with pytest.raises(SeatrialError) as refused:
            SSH.resolve(where("a", nproc_per_node=1))
        assert str(refused.value) == f'a: ssh ended with exit code 255 ("{said}").'


def test_what_a_host_says_stays_its_words() -> None:
    """Sentences about several hosts stand beside one another."""
    sentence = explain_ssh_exit(Host(name="a"), 255, 'x); b: "it" is broken (y')
    assert sentence == """a: ssh ended with exit code 255 ("x); b: 'it' is broken (y")"""
