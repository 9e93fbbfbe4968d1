"""``seatrial completion``: bash itself runs the script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from seatrial.cli import argparse_app
from seatrial.cli.click_app import cli
from seatrial.environment import self_location

_COMPLETE = """
eval "$(seatrial completion bash)"
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_seatrial_completion seatrial
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("seatrial pl", ["plan"]),
        ("seatrial run --nproc", ["--nproc-per-node"]),
        ("seatrial run --device c", ["cuda", "cpu"]),
    ],
)
def test_bash_completes(tmp_path: Path, words: str, found: list[str]) -> None:
    program = tmp_path / "seatrial"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m seatrial "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "--norc", "-c", _COMPLETE.format(words=words)],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, found), done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell], catch_exceptions=False)
    assert (result.exit_code, "_SEATRIAL_COMPLETE" in result.output) == (0, True)


def test_the_bundle_says_that_it_cannot(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(self_location, "BUNDLE_PATH", "/x/seatrial.pyz")
    monkeypatch.setattr(sys, "argv", ["seatrial.pyz", "completion", "bash"])
    with pytest.raises(SystemExit) as ended:
        argparse_app.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "Error: completion: only an installed seatrial completes words; install it, such as with pipx.\n"
    )
