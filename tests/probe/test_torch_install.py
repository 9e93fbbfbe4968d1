"""The torch that an interpreter would import, with hand-made installations."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seatrial.errors import RequestError, SeatrialError
from seatrial.probe.torch_install import TorchInstall, find_torch


def _install(folder: Path, *, torch: str | None, seatrial: bool = True) -> None:
    """What ``find_torch`` looks at: torch/version.py (None: no such file) and whether there is a seatrial."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise AssertionError('torch was imported')\n")
    if torch is not None:
        (folder / "torch" / "version.py").write_text(torch)
    if seatrial:
        (folder / "seatrial").mkdir()
        (folder / "seatrial" / "__init__.py").touch()


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """An interpreter whose only packages are those of one folder beside it."""
    python = tmp_path / "bare-python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.4.0a0+git123'\ncuda = '12.4'\nhip = None\n", ("2.4.0a0+git123", "12.4", "")),
        ("__version__: str = '2.13.0'\ncuda: str | None = None\nhip: str | None = '7.1'\n", ("2.13.0", "", "7.1")),
        ("from typing import Optional\n__version__ = '3.0'\ndebug = False\n", ("3.0", "", "")),
    ],
)
def test_the_version_is_read_and_torch_is_not_imported(
    tmp_path: Path, bare_python: str, text: str, expected: tuple[str, str, str]
) -> None:
    _install(tmp_path, torch=text)
    version, cuda, hip = expected
    assert find_torch(bare_python) == TorchInstall(version=version, cuda=cuda, hip=hip)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("__version__ = '2.3.1+cu121'\n", "torch 2.3.1+cu121 of"),
        ("__version__ = '1.13'\n", "2.4 or newer"),
        ("__version__ = 'main'\n", "torch main of"),
        ("version = compute()\n", "torch of unknown version"),
        ("a syntax error\n", "torch of unknown version"),
        (None, "torch of unknown version"),
    ],
)
def test_a_torch_that_is_too_old_or_unknown_is_refused(
    tmp_path: Path, bare_python: str, text: str | None, words: str
) -> None:
    _install(tmp_path, torch=text)
    with pytest.raises(RequestError, match=r"name another interpreter with --python") as refused:
        find_torch(bare_python)
    assert words in str(refused.value)


def test_missing_torch_and_missing_seatrial_are_different_errors(tmp_path: Path, bare_python: str) -> None:
    with pytest.raises(RequestError, match="torch is not installed"):
        find_torch(bare_python)
    _install(tmp_path, torch="__version__ = '2.13.0'\n", seatrial=False)
    with pytest.raises(RequestError, match="seatrial is not installed"):
        find_torch(bare_python)


@pytest.mark.parametrize(("version", "refused"), [("3.9.18", True), ("3.10.0rc1", False), ("4.0.0", False)])
def test_an_interpreter_that_is_too_old_is_refused(tmp_path: Path, version: str, refused: bool) -> None:
    """A script stands in for the interpreter, and says what one of that version would."""
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/sh\necho '{{"python": "{version}", "seatrial": true, "version": "2.6.0"}}'\n""")
    python.chmod(0o755)
    if refused:
        with pytest.raises(RequestError, match=f"it is Python {version}, and seatrial needs 3.10 or newer"):
            find_torch(str(python))
    else:
        assert find_torch(str(python)).version == "2.6.0"


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/true", "/bin/echo", "/"])
def test_what_is_no_python_is_refused_with_its_name(python: str) -> None:
    with pytest.raises(RequestError, match=f"--python {python}: it does not run as a Python interpreter"):
        find_torch(python)


def test_a_host_without_a_further_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbor may have taken them all: no other interpreter would start."""

    def refused(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "run", refused)
    with pytest.raises(SeatrialError, match="was not started: the host gave no further thread or process") as told:
        find_torch(sys.executable)
    assert told.value.exit_code == 3


def test_a_torch_folder_in_the_working_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, torch="__version__ = '1.0'\n")
    monkeypatch.chdir(tmp_path)
    assert find_torch(sys.executable).version != "1.0"
