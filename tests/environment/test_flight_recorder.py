"""Where NCCL's flight recorder writes: older versions of torch write to ``/tmp/nccl_trace_rank_N``, also through a link
that a neighbor has put there before."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seatrial import folders
from seatrial.agent.program_ranks import prepare
from seatrial.environment.flight_recorder import BUFFER, recorder_settings

_FILE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HOME": "{}/me"}, "{}/me/.cache/torch"),
        ({"HOME": "{}/me", "XDG_CACHE_HOME": "{}/fast"}, "{}/fast/torch"),
        ({"HOME": "{}/me", "XDG_CACHE_HOME": "fast"}, "{}/me/.cache/torch"),
        ({"HOME": "/"}, "{}/known/.cache/torch"),
        ({"HOME": "me"}, "{}/known/.cache/torch"),
        ({}, "{}/known/.cache/torch"),
    ],
)
def test_it_writes_to_the_cache_of_the_user(
    environ: dict[str, str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = SimpleNamespace(pw_dir=str(tmp_path / "known"))
    monkeypatch.setattr(folders, "pwd", SimpleNamespace(getpwuid=lambda user: known))
    environ = {name: value.format(tmp_path) for name, value in environ.items()}
    assert recorder_settings(environ) == {_FILE: f"{folder.format(tmp_path)}/comm_lib_trace_rank_"}
    # Older versions of torch do not make it, and write nothing then.
    assert Path(folder.format(tmp_path)).is_dir()


def test_the_file_of_the_user_stays(tmp_path: Path) -> None:
    for name in (_FILE, "TORCH_FR_DUMP_TEMP_FILE"):
        assert recorder_settings({"HOME": str(tmp_path), name: "/set"}) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("environ", [{}, {"HOME": "/"}], ids=str)
def test_for_a_user_without_a_home_it_writes_nowhere(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "pwd", SimpleNamespace(getpwuid={}.__getitem__))
    assert recorder_settings(environ) == {_FILE: "/proc/torch/comm_lib_trace_rank_"}


@pytest.mark.root
def test_of_root_it_writes_to_no_folder_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after ``sudo -E``: the user could put links there."""
    (home := tmp_path / "root").mkdir()
    known = SimpleNamespace(pw_dir=str(home))
    monkeypatch.setattr(folders, "pwd", SimpleNamespace(getpwuid=lambda user: known))
    (of_user := tmp_path / "user").mkdir()
    os.chown(of_user, 65534, 65534)
    for name in ("HOME", "XDG_CACHE_HOME"):
        for folder in (of_user, of_user / "new"):
            assert recorder_settings({name: str(folder)}) == {_FILE: f"{home}/.cache/torch/comm_lib_trace_rank_"}
    assert list(of_user.iterdir()) == []


@pytest.mark.parametrize("by", ["the run", "the agent's environment", "nobody"])
def test_a_place_is_named_whoever_turns_the_recorder_on(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BUFFER, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if by == "the agent's environment":
        monkeypatch.setenv(BUFFER, "2000")
    start: Any = {"kind": "start_workers", "env": {BUFFER: "2000"} if by == "the run" else {}}
    prepare(start)
    assert (_FILE in start["env"]) == (by != "nobody")
