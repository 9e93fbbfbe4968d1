"""deploy/examples has what the command prints today, and the operators accept it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from kubernetes.schemas import problems

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "deploy" / "examples"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_examples", _ROOT / "tools" / "make_examples.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_they_are_what_is_printed(made: ModuleType) -> None:
    there = {file.stem: file.read_text() for file in _FOLDER.glob("*.yaml")}
    assert there == {name: made.text_of(name) for name in made.EXAMPLES}, "run tools/make_examples.py"


def _objects() -> list[tuple[str, dict[str, Any]]]:
    return [
        (file.stem, thing) for file in sorted(_FOLDER.glob("*.yaml")) for thing in yaml.safe_load_all(file.read_text())
    ]


def test_no_secret_is_in_them() -> None:
    kinds = [thing["kind"] for _, thing in _objects()]
    assert {"Job", "JobSet", "PyTorchJob", "TrainJob", "MPIJob"} <= set(kinds)
    assert "Secret" not in kinds
    # All users of a machine can read the arguments of the processes on it.
    assert not [file.stem for file in _FOLDER.glob("*.yaml") if "--from-literal" in file.read_text()]
    assert not [file.stem for file in _FOLDER.glob("*.yaml") if "PRIVATE KEY" in file.read_text()]


@pytest.mark.parametrize("name", ["job-cpu", "trainjob-mpi", "mpijob-openshift-custom-scc"])
@pytest.mark.parametrize("exists", [False, True], ids=["its name is free", "its name is taken"])
def test_a_file_is_applied_only_after_its_own_secret(name: str, exists: bool, tmp_path: Path) -> None:
    """The pods read whatever Secret has that name."""
    first_lines = (_FOLDER / f"{name}.yaml").read_text().partition("---\n")[0].partition("--dry-run\n")[2]
    script = "\n".join(re.findall(r"^#  ( .*)", first_lines, re.M))
    stub = tmp_path / "kubectl"
    stub.write_text(
        '#!/bin/sh\necho "$*" >> "$CALLS"\n[ "$1" = apply ] && exit\nwc -c\n'
        'for word; do case $word in --from-file=ssh-privatekey=*) cat "${word##*=}"; esac; done\n'
        f"exit {int(exists)}\n"
    )
    stub.chmod(0o755)
    calls = tmp_path / "calls"
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls)}
    done = subprocess.run(["sh", "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.split()[0]) == ("", "48")
    assert ("BEGIN OPENSSH PRIVATE KEY" in done.stdout) == ("mpi" in name)
    created, *applied = calls.read_text().splitlines()
    assert created.startswith("create secret generic example --from-file=token=/dev/stdin")
    assert (" -n kubeflow-testing" in created) == ("custom-scc" in name)
    assert applied == ([] if exists else [f"apply -f {name}.yaml"])


@pytest.mark.slow
def test_operators_take_them() -> None:
    custom = [(name, thing) for name, thing in _objects() if "." in thing["apiVersion"].partition("/")[0]]
    ours = [
        (name, thing) for name, thing in custom if not thing["apiVersion"].endswith(("k8s.io/v1", "openshift.io/v1"))
    ]
    assert len(ours) > 8
    assert {name: found for name, thing in ours if (found := problems(thing))} == {}
