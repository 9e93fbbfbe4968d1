"""The sshd of the container image (``deploy/images``): refusals, and a configuration that a real sshd reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "deploy" / "images" / "sshd.py"


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["--port", "22", "ssh-ed25519 A"], "--port 22: expected 1024 to 65535"),
        (["a-password"], "'a-password' is not a public key"),
        ([], "the following arguments are required: key"),
        pytest.param(["ssh-ed25519 A"], "do not run it as root", marks=pytest.mark.root),
    ],
)
def test_invalid_arguments_are_refused_in_one_sentence(words: list[str], refusal: str) -> None:
    done = subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode != 0
    assert refusal in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.hosts
def test_sshd_reads_the_environment_of_the_image(tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    code = (
        "import pathlib, runpy, sys; made = runpy.run_path(sys.argv[1])\n"
        "values = {'PATH': '/a b:/bin', 'X': 'q\"uo\\\\te $HOME %h', 'HOME': '/h', 'LINES': 'a\\nb', 'Y': '#x'}\n"
        "print(made['config'](2299, '127.0.0.1', pathlib.Path(sys.argv[2]), values), end='')"
    )
    text = subprocess.check_output([sys.executable, "-c", code, PROGRAM, key], text=True)
    (tmp_path / "config").write_text(text)
    os.makedirs("/run/sshd", exist_ok=True)  # without it sshd prints nothing
    lines = subprocess.check_output(["/usr/sbin/sshd", "-T", "-f", tmp_path / "config"], text=True).splitlines()
    assert [line for line in lines if line.startswith("setenv ")] == [
        "setenv PATH=/a b:/bin",
        'setenv X=q"uo\\te $HOME %h',
        "setenv Y=#x",
    ]
    assert {"passwordauthentication no", "usepam no", "port 2299", f"hostkey {key}"} <= set(lines)
