"""The text of each case, byte for byte. After a change that is meant to change it:

SEATRIAL_RENEW_GOLDEN=1 pytest tests/kubernetes/test_golden.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from kubernetes.workloads import CASES, case

from seatrial.kubernetes.manifest import to_yaml

_FOLDER = Path(__file__).parent / "golden"


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
