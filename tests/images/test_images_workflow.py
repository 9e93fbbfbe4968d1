"""The commands of the workflow for images, read out of its file: what needs no registry runs as it is written."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from images.containers import MARKS, gone_afterwards, image

_ROOT = Path(__file__).parents[2]
_DIGEST = f"sha256:{'5' * 64}"
_RECORDING_DOCKER = f"""#!{sys.executable}
import json, sys
with open("docker.jsonl", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1:3] == ["login", "ghcr.io"]:
    assert sys.stdin.read() == "a token", "the token comes on standard input"
if sys.argv[1:3] == ["image", "inspect"]:
    assert sys.argv[3:5] == ["--format", "{{{{index .RepoDigests 0}}}}"]
    print(f"{{sys.argv[5].rpartition(':')[0]}}@{_DIGEST}")
"""
"""A double of docker: it writes down its words, and answers for an image with a digest of fives."""


def _workflow() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((_ROOT / ".github/workflows/images.yml").read_text())
    return document


def _step(name: str) -> str:
    (command,) = [step["run"] for step in _workflow()["jobs"]["publish"]["steps"] if step.get("name") == name]
    return str(command)


def _run(command: str, folder: Path, docker: str, **variables: str) -> str:
    """Run a step as GitHub does, with this ``docker`` first on PATH; return its output."""
    program = folder / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(docker)
    program.chmod(0o755)
    (folder / "step.sh").write_text(command)
    done = subprocess.run(
        ["bash", "-e", "step.sh"],
        cwd=folder,
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "docker.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("target", _workflow()["jobs"]["publish"]["strategy"]["matrix"]["target"])
def test_the_build_step_names_bases_by_digest_and_stages_that_exist(target: str, tmp_path: Path) -> None:
    of_workflow = {name: str(value).partition(" ${{")[0] for name, value in _workflow()["env"].items()}
    _run(_step("Build"), tmp_path, _RECORDING_DOCKER, TARGET=target, **of_workflow)
    *_, build = _calls(tmp_path)
    arguments = [word for option, word in itertools.pairwise(build) if option == "--build-arg"]
    assert arguments == [f"BASE_IMAGE=python@{_DIGEST}", f"LAUNCHER_BASE_IMAGE=debian@{_DIGEST}", "TORCH=torch"]
    options = dict(zip(build[1:-1:2], build[2:-1:2], strict=True))
    assert (build[0], options["-t"], build[-1]) == ("build", f"seatrial-{target}", ".")
    dockerfile = (_ROOT / options["-f"]).read_text()
    assert f" AS {options['--target']}\n" in dockerfile
    assert [word for word in arguments if f"ARG {word.partition('=')[0]}" not in dockerfile] == []


def test_the_push_step_hands_on_the_digest_that_the_registry_gave(tmp_path: Path) -> None:
    variables = {"GITHUB_REPOSITORY": "Some/Trial", "GITHUB_SHA": "f" * 40, "GITHUB_ACTOR": "someone"}
    variables |= {"TARGET": "mpi", "TOKEN": "a token", "GITHUB_OUTPUT": str(tmp_path / "output")}
    shown = _run(_step("Push"), tmp_path, _RECORDING_DOCKER, **variables)
    name = f"ghcr.io/some/trial-mpi:{'f' * 40}"
    assert _calls(tmp_path) == [
        ["login", "ghcr.io", "-u", "someone", "--password-stdin"],
        ["tag", "seatrial-mpi", name],
        ["push", name],
        ["image", "inspect", "--format", "{{index .RepoDigests 0}}", name],
    ]
    assert (tmp_path / "output").read_text() == f"name=ghcr.io/some/trial-mpi\ndigest={_DIGEST}\n"
    assert "a token" not in shown


@pytest.mark.parametrize("target", ["worker", pytest.param("mpi", marks=pytest.mark.nightly)])
@MARKS[0]
@MARKS[1]
@pytest.mark.timeout(300)
def test_the_trial_step_passes_in_the_image(target: str, tmp_path: Path) -> None:
    """podman is the docker of this machine, and the image has the name of the tests."""
    with gone_afterwards() as name:
        renamed = f'set -- "${{@/#seatrial-{target}/{image(target)}}}"'
        docker = f'#!/bin/bash\n{renamed}\nexec podman "$1" --name {name} "${{@:2}}"\n'
        output = _run(_step("A trial of two processes in it"), tmp_path, docker, TARGET=target)
    assert "FINAL ACCEPTANCE: PASS" in output
