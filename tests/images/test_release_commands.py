"""The build commands of the release workflow in a container, as its runner runs them, and their files in use."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from images.containers import MARKS, run

_ROOT = Path(__file__).parents[2]
pytestmark = [*MARKS, pytest.mark.nightly, pytest.mark.timeout(600)]
_AFTERWARDS = r"""
mkdir /downloaded
cp dist/* seatrial.pyz SHA256SUMS /downloaded
cd /downloaded
sha256sum -c SHA256SUMS
python seatrial.pyz --version
pip install -q pipx==1.8.0
pipx install --quiet ./seatrial-*.whl
/root/.local/bin/seatrial --version
/root/.local/bin/seatrial plan show smoke
"""
"""What people do with the files: compare them, run the bundle, install the command."""


def _pip_volumes(folder: Path) -> list[str]:
    """Where pip looks on this machine, as options of podman."""
    spec = importlib.util.spec_from_file_location("build_images", _ROOT / "tools" / "build_images.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    options: list[str] = module.pip_volumes(folder / "pip.conf")
    return options


def _clone(folder: Path) -> None:
    """The files of the repository as they are here, without what was built beside them."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "--cached"], cwd=_ROOT, text=True)
    for name in listed.rstrip("\0").split("\0"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(_ROOT / name, folder / name, follow_symlinks=False)


def test_the_release_is_built_compared_and_installed(tmp_path: Path) -> None:
    steps = yaml.safe_load((_ROOT / ".github/workflows/release.yml").read_text())["jobs"]["build"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert len(commands) == 3
    clone = tmp_path / "clone"
    _clone(clone)
    for number, command in enumerate([*commands, _AFTERWARDS]):
        (tmp_path / f"step{number}.sh").write_text(command)
    # setup-python puts a Python of its own first on PATH; GitHub runs each step with bash -e.
    script = "python3 -m venv /python && export PATH=/python/bin:$PATH && cd /given/clone && " + " && ".join(
        f"bash -e /given/step{number}.sh" for number in range(len(commands) + 1)
    )
    options = [
        "--user",
        "0",
        "--env",
        "HOME=/root",
        "--network",
        "host",
        "--entrypoint",
        "sh",
        f"--volume={tmp_path}:/given",
    ]
    ended = run("worker", "-c", script, options=[*options, *_pip_volumes(tmp_path)], timeout_s=500)
    assert ended.code == 0, ended.output
    for name in ("seatrial.pyz: OK", ".whl: OK", ".tar.gz: OK"):
        assert name in ended.output
    (wheel,) = (clone / "dist").glob("*.whl")
    version = wheel.name.split("-")[1]
    assert [line for line in ended.output.splitlines() if version in line and "version" in line]
