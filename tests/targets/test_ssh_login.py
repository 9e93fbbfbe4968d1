"""Login shells and login scripts that disturb ``--on ssh``: harmless, or one sentence with the cause."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launchers.gather import gathered, job_of, where
from targets.ssh_double import write_ssh_double

from seatrial.errors import SeatrialError
from seatrial.targets.ssh.ssh_target import TARGETS

(SSH,) = TARGETS
LOOK = "look at ~/.bashrc there"


def log_in_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, shell: str = "sh -c") -> None:
    """Put a double of ssh on PATH that runs ``script`` before the command, as bash does for sshd, or another shell."""
    folder = write_ssh_double(tmp_path)
    ssh = folder / "ssh"
    ssh.write_text(ssh.read_text().replace("SSH_CONN", f"{script}\nSSH_CONN").replace("exec sh -c", f"exec {shell}"))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("cat >/dev/null", "a login script reads the standard input"),
        ("read line", "a login script reads the standard input"),
        ("head -c 100 >/dev/null", "a login script reads the standard input"),
        ("exit 0", "its login shell ended with exit code 0 and did not start"),
        ("echo 'use the other host'; exit 3", "ended with exit code 3 and did not start"),
        ("exec 1>&2", "a login script redirects standard output"),
        ("exec >/dev/null", "a login script redirects standard output"),
        ("exec >/dev/null 2>&1", "its login shell ended with exit code 0 and did not start"),
        ("exec bash", "did not start"),
    ],
)
def test_a_script_that_keeps_python_away(
    script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in_with(tmp_path, monkeypatch, script)
    with pytest.raises(SeatrialError) as failed:
        SSH.resolve(where("typed-name", nproc_per_node=1))
    sentence = str(failed.value)
    assert sentence.startswith("typed-name: ")
    assert words in sentence
    assert LOOK in sentence
    assert sentence.isprintable()
    assert len(sentence) < 700


def test_the_last_words_of_a_script_are_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in_with(tmp_path, monkeypatch, "printf 'Please log in as \033[31mubuntu\033[0m.\\n'; exit 142")
    with pytest.raises(SeatrialError, match=r'exit code 142 .*\("Please log in as .*ubuntu.*"\)') as failed:
        SSH.resolve(where("a", nproc_per_node=1))
    assert str(failed.value).isprintable()


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ("/usr/sbin/nologin -c", r"its login shell takes no commands; .* \(.This account is currently not available"),
        ("bash -r -c", r"its login shell is restricted .* \(.*restricted.\)"),
        ("false", r"its login shell ended with exit code 1"),
    ],
)
def test_a_shell_that_runs_no_command(shell: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in_with(tmp_path, monkeypatch, "", shell)
    with pytest.raises(SeatrialError, match=f"^a: {words}"):
        SSH.resolve(where("a", nproc_per_node=1))


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("head -c 300000 /dev/zero | tr '\\0' x", marks=pytest.mark.nightly),
        pytest.param("head -c 300000 /dev/urandom; head -c 300000 /dev/urandom >&2", marks=pytest.mark.nightly),
        "for each in 1 2 3 4 5 6 7 8 9; do echo welcome; done",
    ],
)
def test_a_script_that_prints_is_harmless(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in_with(tmp_path, monkeypatch, script)
    request = where("a", nproc_per_node=1)
    assert SSH.resolve(request).nodes == 1
    said = gathered(SSH, job_of(SSH, request), tmp_path)
    assert [event["kind"] for event in said if event["kind"] in ("node", "lost")] == ["node"]


def test_a_job_in_the_background_keeps_no_answer_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job holds the standard error of ssh open, as ``(sleep 60 >&2 &)`` in ~/.bashrc does."""
    ended = tmp_path / "ended"
    log_in_with(tmp_path, monkeypatch, "")
    ssh = tmp_path / "bin" / "ssh"
    # As the real ssh, the double waits until nobody holds standard error any more. It ends when it is killed.
    ssh.write_text(ssh.read_text().replace("exec sh", "sh") + f"read -t 20 _ <>{tmp_path}/job; touch {ended}\n")
    ssh.write_text(ssh.read_text().replace("#!/bin/sh", "#!/bin/bash"))
    os.mkfifo(tmp_path / "job")
    assert SSH.resolve(where("a", nproc_per_node=1)).nodes == 1
    assert not ended.exists()
