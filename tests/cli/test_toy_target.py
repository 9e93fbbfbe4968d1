"""A new target is one new file: tried with a toy target in a copy of the package, and in the bundle of that copy."""

from __future__ import annotations

import filecmp
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from by_day import by_day

import seatrial

PACKAGE = Path(seatrial.__file__).parent
TOY = '''"""``--on toy``: this machine, with a variable in the environment of the agents."""

from __future__ import annotations

from dataclasses import replace

from seatrial.targets import local_target
from seatrial.targets.command import Command
from seatrial.targets.job import Processes
from seatrial.targets.option import NODES, Option
from seatrial.targets.target import Placement, Target, TargetRequest

COLOR = Option(flags=("--toy-color",), name="toy_color", help="Color of the toy.", default="red", metavar="COLOR")


def resolve(target_request: TargetRequest) -> Placement:
    (local,) = local_target.TARGETS
    placement = local.resolve(target_request)
    return replace(placement, words="on a toy", detail=target_request.own["toy_color"])


def render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    commands = local_target.render(job, control=control, token=token, keep=keep)
    return tuple(replace(command, env={**command.env, "TOY_COLOR": job.detail}) for command in commands)


TARGETS = (Target(name="toy", help="a toy", options=(NODES, COLOR), resolve=resolve, render=render),)
'''
SMOKE = ["run", "smoke", "--only", "bootstrap", "--device", "cpu", "--on", "toy", "--toy-color", "dark blue"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the copy of the package, to which nothing but the toy target is added."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, folder / "seatrial", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "seatrial" / "targets" / "toy_target.py").write_text(TOY)
    return folder


@pytest.fixture(scope="module", params=["package", "bundle"])
def command(request: pytest.FixtureRequest, copy: Path) -> Iterator[list[str]]:
    """The start of a command line: ``env``, the path of the copy, Python, and the copy or its bundle."""
    environ = ["env", f"PYTHONPATH={copy}", "PYTHONDONTWRITEBYTECODE=1", sys.executable]
    if request.param == "package":
        yield [*environ, "-m", "seatrial"]
        return
    bundle = copy / "toy.pyz"
    subprocess.run([*environ, "-m", "seatrial", "bundle", bundle], capture_output=True, timeout=50, check=True)
    yield ["env", "-u", "PYTHONPATH", sys.executable, str(bundle)]


def output(command: list[str], *arguments: str) -> str:
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_one_file_was_added(copy: Path) -> None:
    compared = filecmp.dircmp(PACKAGE / "targets", copy / "seatrial" / "targets", ignore=["__pycache__"])
    assert (compared.left_only, compared.right_only, compared.diff_files) == ([], ["toy_target.py"], [])


def test_help_shows_the_target_and_its_option(command: list[str]) -> None:
    assert "  toy         a toy\n" in output(command, "run", "--help")
    text = " ".join(output(command, "run", "--on", "toy", "--help").split())
    assert "With --on toy: --toy-color COLOR Color of the toy." in text


def test_a_dry_run_prints_its_command(command: list[str]) -> None:
    assert "TOY_COLOR=dark blue" in shlex.split(output(command, *SMOKE, "--dry-run"))


@pytest.mark.parametrize("command", by_day(["package", "bundle"], 1), indirect=True)
def test_a_trial_passes_on_it(command: list[str], tmp_path: Path) -> None:
    text = output(command, *SMOKE, "--nodes", "2", "--nproc-per-node", "1", "--out", str(tmp_path))
    assert "FINAL ACCEPTANCE: PASS" in text
    (report,) = tmp_path.glob("*/report.json")
    document = json.loads(report.read_text())
    assert (document["job"]["target"], document["job"]["nodes"]) == ("toy", 2)


def test_without_the_file_there_is_no_such_target() -> None:
    environ = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    argv = [sys.executable, "-m", "seatrial", "run", "--on", "toy"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, "--on toy: no such target" in done.stderr) == (2, True)
