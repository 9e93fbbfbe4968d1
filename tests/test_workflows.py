"""What GitHub is told to run: pinned, with no more rights than needed, and nothing of a stranger's in a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

_FOLDER = Path(__file__).parents[1] / ".github" / "workflows"
_WRITES = {
    ("images", "publish"): {"packages"},
    ("release", "publish"): {"id-token"},
    ("release", "asset"): {"contents"},
}
"""Workflow and job -> what it may write."""


@pytest.fixture(params=sorted(_FOLDER.glob("*.yml")), ids=lambda path: path.stem)
def workflow(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any], str]:
    path: Path = request.param
    text = path.read_text()
    return path.stem, yaml.safe_load(text), text


def test_actions_are_pinned(workflow: tuple[str, dict[str, Any], str]) -> None:
    used = re.findall(r"uses: (.*)", workflow[2])
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_rights_are_few(workflow: tuple[str, dict[str, Any], str]) -> None:
    name, told, _ = workflow
    assert told["permissions"] == {}
    for job, content in told["jobs"].items():
        writes = {right for right, how in content["permissions"].items() if how == "write"}
        assert writes == _WRITES.get((name, job), set())
        assert content["timeout-minutes"] <= 60


def test_nothing_is_put_into_a_shell(workflow: tuple[str, dict[str, Any], str]) -> None:
    steps = [step for job in workflow[1]["jobs"].values() for step in job["steps"]]
    assert not [step["run"] for step in steps if "${{" in step.get("run", "")]
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_they_are_what_github_reads() -> None:
    """By the schema that check-jsonschema brings along; nothing is fetched."""
    where = os.environ.get("SEATRIAL_TEST_CHECK_JSONSCHEMA")
    if where is None:
        pytest.skip("SEATRIAL_TEST_CHECK_JSONSCHEMA names no folder with check-jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    files = map(str, sorted(_FOLDER.glob("*.yml")))
    done = subprocess.run([*command, *files], env={**os.environ, "PYTHONPATH": where}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
