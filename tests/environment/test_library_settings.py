"""Libraries of ranks lock in their own memory, and answer no stranger, unless the user has chosen otherwise."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import seatrial
from seatrial.environment.library_settings import library_settings

_WORKER = Path(seatrial.__file__).parent / "worker"


def test_what_the_user_has_set_stays() -> None:
    assert library_settings({}) == {"RSMI_MUTEX_THREAD_ONLY": "1", "NCCL_RAS_ENABLE": "0"}
    assert library_settings({"NCCL_RAS_ENABLE": "1"}) == {"RSMI_MUTEX_THREAD_ONLY": "1"}
    assert library_settings({"RSMI_MUTEX_THREAD_ONLY": "", "NCCL_RAS_ENABLE": ""}) == {}


@pytest.mark.parametrize("name", ["worker_main", "train_rank"])
def test_ranks_have_them_before_they_load_torch(name: str) -> None:
    source = (_WORKER / f"{name}.py").read_text()
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    texts = [ast.get_source_segment(source, node) or "" for node in functions]
    (text,) = [text for text in texts if "library_settings(" in text]
    assert text.index("library_settings(") < text.index("import torch")
