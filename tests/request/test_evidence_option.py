"""``--evidence``: what is refused before anything starts, and where the files are read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from seatrial import files
from seatrial.cli.click_app import cli
from seatrial.errors import RequestError
from seatrial.run.handed_files import events_of, read_evidence


@pytest.mark.parametrize("name", ["absent.json", "a folder", "a fifo"])
def test_a_file_that_cannot_be_opened_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_WRITER_S", 0.1)
    (tmp_path / "a folder").mkdir()
    os.mkfifo(tmp_path / "a fifo")
    with pytest.raises(RequestError, match=f"{name} cannot be read"):
        read_evidence([f"gpu-00={tmp_path / name}"])


def test_a_node_and_names_with_equals_signs(tmp_path: Path) -> None:
    (tmp_path / "a=b").write_text("{}")
    (tmp_path / "c").write_text("[]")
    found = read_evidence([str(tmp_path / "a=b"), f"gpu-00={tmp_path / 'c'}", f"gpu-00={tmp_path / 'c'}"])
    assert [(file.name, file.node) for file in found] == [("a=b", ""), ("c", "gpu-00")]
    sources = [event["src"] for event in events_of("run", found)]
    assert len(set(sources)) == 2


def test_a_name_of_a_node_and_a_file_is_no_file_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user can have made one where the user types."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("own.json", "[]"), ("gpu-00=own.json", "{}"), ("a=b", '""')):
        (tmp_path / name).write_text(text)
    (tmp_path / "gpu-00=").mkdir()
    (tmp_path / "gpu-00=" / "own.json").write_text("{}")
    found = read_evidence(["gpu-00=own.json", "./a=b"])
    assert [(file.name, file.node, file.sha256) for file in found] == [
        ("own.json", "gpu-00", hashlib.sha256(b"[]").hexdigest()),
        ("a=b", "", hashlib.sha256(b'""').hexdigest()),
    ]


def test_a_trial_without_the_check_that_judges_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "diag.json").write_text("{}")
    arguments = ["run", "smoke", "--only", "compute", "--device", "cpu", "--dry-run"]
    arguments += ["--evidence", str(tmp_path / "diag.json")]
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert isinstance(result.exception, RequestError) or result.exit_code == 2
    assert "the check diagnostics judges it" in f"{result.exception}{result.output}"


@pytest.mark.parametrize("has_gpus", [True, False])
def test_a_cluster_that_runs_the_command_again_gets_no_file(has_gpus: bool, tmp_path: Path) -> None:
    (tmp_path / "diag.json").write_text("{}")
    arguments = ["run", "smoke", "--on", "job", "--nodes", "2", "--image", "example.com/torch:1", "--dry-run"]
    arguments += ["--gpus-per-node", "2"] if has_gpus else ["--gpu-resource", "none"]
    arguments += ["--evidence", str(tmp_path / "diag.json")]
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    if has_gpus:
        assert "kind: Job" in result.output, result.exception
        assert "--evidence" not in result.output
    else:
        assert "their trial leaves the check diagnostics out" in str(result.exception)
