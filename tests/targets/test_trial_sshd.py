"""The sshd of the container image (``deploy/images``): refusals, and a configuration that a real sshd reads."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
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
    values = {"PATH": "/a b:/bin", "X": 'q"uo\\te $HOME %h', "HOME": "/h", "LINES": "a\nb", "Y": "#x"}
    lines = _as_sshd_reads_it(tmp_path, values)
    assert [line for line in lines if line.startswith("setenv ")] == [
        "setenv PATH=/a b:/bin",
        'setenv X=q"uo\\te $HOME %h',
        "setenv Y=#x",
    ]
    assert {"usepam no", "port 2299", f"hostkey {tmp_path}/host_key"} <= set(lines)


@pytest.mark.hosts
def test_only_trial_logs_in_and_only_with_the_keys_that_were_named(tmp_path: Path) -> None:
    """The base image may have an account with the number of ``trial``, and keys and helpers for it."""
    lines = _as_sshd_reads_it(tmp_path, {})
    assert [line for line in lines if line.startswith(("allow", "authorized", "authentication", "trusted"))] == [
        "allowtcpforwarding no",
        "allowagentforwarding no",
        "allowstreamlocalforwarding yes",
        "trustedusercakeys none",
        "authorizedprincipalsfile none",
        "authorizedkeyscommand none",
        "authorizedkeyscommanduser none",
        "authorizedprincipalscommand none",
        "authorizedprincipalscommanduser none",
        f"authorizedkeysfile {tmp_path}/authorized_keys",
        "allowusers trial",
        "authenticationmethods publickey",
    ]


def _as_sshd_reads_it(folder: Path, environ: Mapping[str, str]) -> list[str]:
    """What the configuration in ``folder`` means to a real sshd, with its defaults."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "host_key"], check=True)
    text = runpy.run_path(str(PROGRAM))["config"](2299, "127.0.0.1", folder, environ)
    (folder / "config").write_text(text)
    os.makedirs("/run/sshd", exist_ok=True)  # without it sshd prints nothing
    return subprocess.check_output(["/usr/sbin/sshd", "-T", "-f", folder / "config"], text=True).splitlines()
