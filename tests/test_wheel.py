"""The commands of the release workflow build a wheel that says what it is, and that starts where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that hatchling builds from the source here."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = out.glob("seatrial-*.whl")
    return file


def test_the_release_builds_with_the_same_tool() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    runs = [step["run"] for step in workflow["jobs"]["build"]["steps"] if "run" in step]
    assert any("hatchling build" in run and "seatrial bundle seatrial.pyz" in run for run in runs)


def test_its_page_on_an_index_has_a_description(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
        assert "seatrial/training/data/digits.bin" in archive.namelist()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "Can this cluster train?" in metadata.get_payload()
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("Classifier")


def test_it_starts_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    """Installed into an empty folder, without the source and without an index."""
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(target)]
    done = subprocess.run([*install, str(wheel)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    ended = subprocess.run(
        [str(target / "bin" / "seatrial"), "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "seatrial" in ended.stdout
