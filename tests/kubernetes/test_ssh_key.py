"""The ssh key of a run under MPI: how the controller makes it, and what the pods take of it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes.attempted import Cluster
from kubernetes.rules import launcher_of
from kubernetes.test_kubernetes_target import printed
from kubernetes.workloads import case

from seatrial.errors import RequestError
from seatrial.targets.kubernetes import kubernetes_target
from seatrial.targets.kubernetes.ssh_key import new_ssh_key

_IMAGE = "--image registry.example.com/ml/train:1"
_BEGIN = "-----BEGIN OPENSSH PRIVATE KEY-----"


def _public(key: str, folder: Path) -> str:
    """Return the line of the public key, which ssh-keygen makes."""
    file = folder / "private"
    file.touch(mode=0o600)
    file.write_text(key)
    return subprocess.run(["ssh-keygen", "-y", "-f", file], check=True, capture_output=True, text=True).stdout


def test_each_key_is_a_new_one_and_nothing_of_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    keys = [new_ssh_key("mpijob") for _ in range(2)]
    assert [*tmp_path.iterdir()] == []
    publics = {_public(key, tmp_path) for key in keys}
    assert len(publics) == 2
    # No comment: it would name the user and the machine.
    assert all(len(public.split()) == 2 for public in publics)


def test_only_runs_under_mpi_have_a_key() -> None:
    keys = []
    for target in ("mpijob", "trainjob --runtime mpi", "trainjob", "job"):
        objects = printed(f"run --on {target} --dry-run --nodes 2 --gpus-per-node 1 {_IMAGE}")
        (secret,) = [thing for thing in objects if thing["kind"] == "Secret"]
        keys.append(secret["stringData"].get("ssh-privatekey", ""))
    assert [key.splitlines()[:1] for key in keys] == [[_BEGIN]] * 2 + [[], []]
    assert keys[0] != keys[1]


def test_a_start_with_fewer_nodes_has_another_key(tmp_path: Path) -> None:
    job = Cluster(tmp_path, []).job
    after = kubernetes_target._with_fewer_nodes(replace(job, target="mpijob"), 1, ("trial-1-1-x: no node accepts it",))
    assert after.detail.workload.ssh_key.startswith(_BEGIN)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("", r"ssh-keygen was not found; install OpenSSH's client"),
        ("echo No user exists for uid 5; exit 255", "was not made by .*/ssh-keygen .*No user exists for uid 5"),
        ("exit 0", "cannot be made in a temporary folder .*No such file"),
    ],
)
def test_no_key_is_an_error_in_words(script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if script:
        (tmp_path / "ssh-keygen").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "ssh-keygen").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match=f"^--on mpijob: the key by which .*{words}"):
        new_ssh_key("mpijob")


def _taken(key: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run what a pod does with the key of its Secret, in a folder in place of /tmp."""
    script = launcher_of(case("mpijob"))["command"][9].replace("$$", "$").partition("need() {")[0]
    words = ["/bin/sh", "-c", script.replace("/tmp/", f"{folder}/")]
    environ = {**os.environ, "SEATRIAL_SSH_KEY": key}
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("end", ["\n", ""], ids=["whole", "without the last newline"])
def test_a_pod_lets_in_its_own_key_alone(end: str, tmp_path: Path) -> None:
    key = new_ssh_key("mpijob")
    done = _taken(key.rstrip("\n") + end, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    public = _public(key, tmp_path)
    assert (tmp_path / "authorized_keys").read_text() == public
    assert (tmp_path / "known_hosts").read_text() == f"* {public}"
    # ssh refuses a key that others can read.
    assert (tmp_path / "ssh_key").stat().st_mode & 0o777 == 0o600


def test_a_comment_of_the_key_is_no_line_of_those_let_in(tmp_path: Path) -> None:
    file = tmp_path / "made"
    comment = 'a\ncommand="id" ssh-ed25519 AAAA\n'
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", file], check=True)
    assert _taken(file.read_text(), tmp_path).returncode == 0
    (line,) = (tmp_path / "authorized_keys").read_text().splitlines()
    assert [word[:12] for word in line.split(" ")] == ["ssh-ed25519", "AAAAC3NzaC1l"]
    assert (tmp_path / "known_hosts").read_text() == f"* {line}\n"


@pytest.mark.parametrize("key", ["", "not-a-real-key\n"])
def test_a_secret_without_a_key_is_named(key: str, tmp_path: Path) -> None:
    done = _taken(key, tmp_path)
    assert done.returncode == 3
    assert "Error: ssh-keygen finds no key in ssh-privatekey of the Secret of this run" in done.stderr
