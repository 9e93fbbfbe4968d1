"""Files in memory, also with a Python that was built for old systems."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from by_day import by_day

from seatrial import start
from seatrial.util import memory_file

_OF_CONDA = """
import fcntl, os
for module in (os, fcntl):
    for name in [name for name in vars(module) if name.startswith(("memfd_", "MFD_", "F_SEAL_", "F_ADD_S", "F_GET_S"))]:
        delattr(module, name)
"""
"""Takes from ``os`` and ``fcntl`` what they lack in the Pythons of conda and uv, which are built with glibc 2.17."""


@pytest.mark.parametrize("target", by_day([((),), (("--on", "ssh", "--hosts", "a"),)]))
def test_a_trial_runs_with_a_python_of_conda(target: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_OF_CONDA)
    (tmp_path / "ssh").write_text('#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done\nexec sh -c "$3"\n')
    (tmp_path / "ssh").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    words = ["--only", "host", "--device", "cpu", "--nproc-per-node", "1", "--python", sys.executable, *target]
    done = subprocess.run(
        [sys.executable, "-m", "seatrial", "run", "smoke", *words, "--out", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_opening_begins_at_the_first_byte() -> None:
    fd = memory_file.create(b"content")
    try:
        for _ in range(2):
            assert Path(f"/proc/self/fd/{fd}").read_bytes() == b"content"
    finally:
        os.close(fd)


_WITH_A_LIMIT = """
import os, resource
from seatrial.util import memory_file

before = os.listdir("/proc/self/fd")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # the kernel takes what is below
try:
    memory_file.create(bytes(8192))
except OSError as error:
    print(error.strerror, len(os.listdir("/proc/self/fd")) - len(before))
"""


def test_a_file_that_lacks_its_end_is_none() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITH_A_LIMIT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("File too large 0\n", "")


def test_a_system_that_makes_none_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_MFD_CLOEXEC", 1 << 20)
    with pytest.raises(OSError, match="Invalid argument"):
        memory_file.create()
