"""Live trials of memory and storage: by themselves, with a folder that is missing, and with a rank that is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from live.trials import trial


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where checkpoints would go."""
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def plan(tmp_path: Path, folder: Path, *, shared: str = "any") -> str:
    path = tmp_path / "mine.toml"
    checks = '["compute", "memory", "storage", "bootstrap"]'
    table = f'[storage]\nfolder = "{folder}"\nshared = "{shared}"\n'
    path.write_text(f'level = "smoke"\nchecks = {checks}\n{table}')
    return str(path)


@pytest.mark.slow
def test_memory_and_storage_alone_pass_and_leave_nothing(tmp_path: Path, folder: Path) -> None:
    ended = trial(tmp_path / "out", plan(tmp_path, folder, shared="yes"), "--only", "memory,storage")
    assert ended.exit_code == 0, ended.report["findings"]
    statuses = {name: check["status"] for name, check in ended.report["checks"].items()}
    assert (statuses.pop("memory"), statuses.pop("storage")) == ("pass", "pass")
    assert set(statuses.values()) == {"not_asked"}
    measured = {(measurement["check"], measurement["name"]) for measurement in ended.report["measurements"]}
    assert {("memory", "copy_gbps"), ("memory", "wrong_words"), ("storage", "write_gbps")} <= measured
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_folder_that_is_missing_fails_the_node(tmp_path: Path) -> None:
    ended = trial(tmp_path / "out", plan(tmp_path, tmp_path / "gone"), "--only", "storage")
    assert ended.exit_code == 1
    (finding,) = ended.grave()
    assert finding["culprit"]["kind"] == "node"
    assert "cannot be written to: No such file or directory" in finding["what"]


@pytest.mark.slow
def test_a_rank_killed_while_it_writes_leaves_nothing(tmp_path: Path, folder: Path) -> None:
    ended = trial(tmp_path / "out", plan(tmp_path, folder), "--only", "storage", plant=["kill@storage/fsync:1"])
    assert ended.exit_code == 1
    (finding,) = ended.grave()
    assert finding["culprit"]["ranks"] == [1]
    assert list(folder.iterdir()) == []
