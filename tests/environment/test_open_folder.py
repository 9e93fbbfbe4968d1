"""Processes of ours leave a working folder in which others could put files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seatrial.environment.working_folder import leave_open_folder, open_folder, typed_folder


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o2770, 0o1777, 0o1755], ids=oct)
def test_a_folder_is_open_if_anybody_else_can_write_there(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (typed := tmp_path / "typed").mkdir()
    monkeypatch.chdir(typed)
    typed.chmod(mode)
    assert open_folder() == (str(typed) if mode & 0o022 else "")


@pytest.mark.parametrize(("mode", "is_open"), [(0o1777, False), (0o1775, False), (0o775, True), (0o777, True)])
def test_a_folder_is_open_if_it_can_be_exchanged(
    mode: int, is_open: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (typed := tmp_path / "above" / "typed").mkdir(parents=True)
    typed.parent.chmod(mode)
    monkeypatch.chdir(typed)
    assert open_folder() == (str(typed) if is_open else "")


def test_a_folder_that_was_removed_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (typed := tmp_path / "typed").mkdir()
    monkeypatch.chdir(typed)
    typed.rmdir()
    monkeypatch.setattr(os, "environ", {})
    assert leave_open_folder()
    assert os.getcwd() == "/"


def test_relative_paths_begin_in_the_folder_that_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout is used as PYTHONPATH=src python3 -m seatrial, and an empty entry is nobody's wish."""
    (typed := tmp_path / "typed").mkdir()
    typed.chmod(0o775)
    monkeypatch.chdir(typed)
    given = {
        "PYTHONPATH": "src:/lib",
        "LD_LIBRARY_PATH": "lib:",
        "LD_PRELOAD": "liba.so ./b.so",
        "SEATRIAL_DATA": "sets",
        "PATH": "bin:/bin:.",  # anybody may have put a tool there
    }
    monkeypatch.setattr(os, "environ", given)
    assert leave_open_folder() == str(typed)
    assert os.getcwd() == "/"
    assert typed_folder() == str(typed)
    del given["SEATRIAL_TYPED_FOLDER"]
    assert given == {
        "PYTHONPATH": f"{typed}/src:/lib",
        "LD_LIBRARY_PATH": f"{typed}/lib",
        "LD_PRELOAD": f"liba.so:{typed}/./b.so",
        "SEATRIAL_DATA": f"{typed}/sets",
        "PATH": "/bin",
    }


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("a b", ("PYTHONPATH", "LD_LIBRARY_PATH")),
        ("a;b", ("PYTHONPATH", "LD_PRELOAD")),
        ("a:b", ()),
        ("ab", ("LD_PRELOAD",)),
    ],
)
def test_a_folder_whose_name_would_be_several_entries_is_no_entry(
    name: str, kept: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (typed := tmp_path / name).mkdir()
    typed.chmod(0o775)
    monkeypatch.chdir(typed)
    given = {"PYTHONPATH": "src", "LD_LIBRARY_PATH": "lib", "LD_PRELOAD": "./b.so"}
    monkeypatch.setattr(os, "environ", given)
    assert leave_open_folder() == str(typed)
    found = {variable for variable in ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD") if given[variable]}
    assert found >= {*kept}
    assert all(given[variable].startswith(f"{typed}/") for variable in found)
    assert len(found) == (3 if name == "ab" else len(kept))


def test_the_environment_of_a_process_that_stays_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"PYTHONPATH": "src", "LD_LIBRARY_PATH": "/lib:", "SEATRIAL_DATA": "sets"}
    monkeypatch.setattr(os, "environ", dict(given))
    assert leave_open_folder() == ""
    assert os.environ == given
