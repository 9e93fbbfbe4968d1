"""A process of ours whose HOME is no absolute path gives it a value before it starts or loads anything."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from seatrial.environment import home
from seatrial.environment.home import give_home

_LACKING = (None, "", "me", "./me")


def _environ(value: str | None) -> dict[str, str]:
    return {} if value is None else {"HOME": value}


@pytest.mark.parametrize("value", _LACKING)
@pytest.mark.parametrize(("known", "given"), [("/home/me", "/home/me"), ("", "/"), ("home", "/"), (None, "/")])
def test_the_home_that_the_host_knows_or_else_the_root(
    value: str | None, known: str | None, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = {} if known is None else {os.geteuid(): SimpleNamespace(pw_dir=known)}
    monkeypatch.setattr(home, "pwd", SimpleNamespace(getpwuid=users.__getitem__))
    monkeypatch.setattr(os, "environ", {"PATH": "/bin", **_environ(value)})
    give_home()
    assert os.environ == {"PATH": "/bin", "HOME": given}


@pytest.mark.parametrize("value", ["/", "/none", "/home/me"])
def test_an_absolute_home_stays(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"HOME": value})
    give_home()
    assert os.environ == {"HOME": value}


@pytest.mark.parametrize("is_bundle", [False, True])
@pytest.mark.parametrize("value", _LACKING[:3])
def test_what_the_command_line_starts_has_a_home(value: str | None, is_bundle: bool, pyz: Path, tmp_path: Path) -> None:
    """kubectl and Open MPI executed what another user had put into the folder in which the user types."""
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\nprintenv HOME > '{tmp_path}/seen'\necho 'mpirun (Open MPI) 4.1.4'\n")
    program.chmod(0o755)
    door = [str(pyz)] if is_bundle else ["-m", "seatrial"]
    command = [sys.executable, *door, "run", "--on", "mpirun", "--mpirun", str(program), "--dry-run"]
    environ = {name: text for name, text in os.environ.items() if name != "HOME"} | _environ(value)
    words = ("--nproc-per-node", "1", "--device", "cpu", "--out", str(tmp_path / "out"), "smoke")
    subprocess.run([*command, *words], cwd=tmp_path, env=environ, capture_output=True, timeout=50, check=True)
    assert (tmp_path / "seen").read_text() == f"{pwd.getpwuid(os.geteuid()).pw_dir}\n"


@pytest.mark.parametrize("module", ["agent_main", "mpi_rank"])
@pytest.mark.parametrize("value", _LACKING[:3])
def test_what_an_agent_starts_has_a_home(value: str | None, module: str, tmp_path: Path) -> None:
    # The agent lacks the rest of its environment, and ends.
    code = (
        f"import contextlib, os; from seatrial.agent.{module} import main\n"
        "with contextlib.suppress(BaseException): main()\n"
        "print(os.environ.get('HOME'))"
    )
    environ = {name: text for name, text in os.environ.items() if name != "HOME"} | _environ(value)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout == f"{pwd.getpwuid(os.geteuid()).pw_dir}\n"
