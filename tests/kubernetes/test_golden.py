"""The manifests of each case, byte for byte. After an intended change:

SEATRIAL_RENEW_GOLDEN=1 pytest tests/kubernetes/test_golden.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from kubernetes.workloads import CASES, case

from seatrial.targets.kubernetes.manifest import mpi_launcher, objects
from seatrial.targets.kubernetes.manifest.yaml_text import to_yaml

_FOLDER = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def start_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word more in the start script is not to change all texts; test_objects.py sees the real one in its place."""
    monkeypatch.setattr(objects, "_start_script", lambda: "# stands in for the start script\n")
    monkeypatch.setattr(mpi_launcher, "_wait_script", lambda: "# stands in for the script that waits for hosts\n")


@pytest.mark.parametrize("name", CASES)
def test_text_is_as_it_was(name: str) -> None:
    file = _FOLDER / f"{name}.yaml"
    text = to_yaml(case(name))
    if os.environ.get("SEATRIAL_RENEW_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_no_file_is_left_over() -> None:
    assert {file.stem for file in _FOLDER.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_text_says_what_was_meant(name: str) -> None:
    assert list(yaml.safe_load_all(to_yaml(case(name)))) == case(name)
