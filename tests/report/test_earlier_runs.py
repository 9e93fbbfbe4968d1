"""The runs of one --out that ``next:`` names for limits."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from neighbor_mount import mounted
from report.screens import HERE
from report.test_plan_of_runs import Change, job, other_device, plan, recorded

from seatrial import files, start
from seatrial.protocol.wire import Decoder, encode
from seatrial.report import earlier_runs
from seatrial.report.card import card
from seatrial.report.view import View

RUN = "20260102-030405-000{}"


def keep(out: Path, number: int, name: str = "pass", change: Change = lambda event: None) -> None:
    """Put a recorded run into a folder of its own, with a run id of its own."""
    folder = out / RUN.format(number)
    folder.mkdir(parents=True)
    lines = list[bytes]()
    for event in Decoder().lines((HERE / "recordings" / f"{name}.events").read_bytes()):
        change(event)
        lines += encode({**event, "run": folder.name})
    (folder / "controller.events").write_bytes(b"".join(lines))


def shown(out: Path) -> str:
    conclusion = recorded(change=plan(demands_limits=True))
    return card(conclusion, out / RUN.format(9) / "report.html", View())[-1]


def test_next_names_the_runs_that_qualify(tmp_path: Path) -> None:
    keep(tmp_path, 1)
    keep(tmp_path, 2, "killed")
    (tmp_path / RUN.format(3)).mkdir()
    (tmp_path / "20260102-other").mkdir()
    first, last = tmp_path / RUN.format(1), tmp_path / RUN.format(9)
    words = shown(tmp_path)
    assert words.startswith("next: 2 of 3 runs for limits so far; on idle nodes, run: seatrial run ")
    assert words.endswith(f", after 3: seatrial plan from {first} {last} RUN3 > limits.toml")
    keep(tmp_path, 4)
    words = shown(tmp_path)
    assert words.startswith(
        f"next: 3 runs give limits: seatrial plan from {first} {tmp_path / RUN.format(4)} {last} > limits.toml,"
        " then run: seatrial run limits.toml "
    )
    assert words.endswith(" --require-full")


def test_runs_of_neighbors_are_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes limits from them has slow nodes pass."""
    keep(tmp_path, 1)
    keep(tmp_path / "elsewhere", 2)
    (tmp_path / RUN.format(2)).symlink_to(tmp_path / "elsewhere" / RUN.format(2))
    assert shown(tmp_path).startswith("next: 2 of 3 runs for limits so far; ")
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert shown(tmp_path).startswith("next: 1 of 3 runs for limits so far; ")


@pytest.mark.root
def test_a_run_on_the_file_system_of_a_neighbor_is_not_ours(tmp_path: Path) -> None:
    (run := tmp_path / RUN.format(1)).mkdir()
    assert [*earlier_runs._own_runs(tmp_path / RUN.format(9))] == [run]
    with mounted(run, shown_owner=os.geteuid(), name="controller.events"):
        assert [*earlier_runs._own_runs(tmp_path / RUN.format(9))] == []


@pytest.mark.root
def test_our_runs_on_a_share_that_shows_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, 1)
    (tmp_path / RUN.format(9)).mkdir()
    for folder in tmp_path.iterdir():
        os.chown(folder, 12345, 12345)
    assert shown(tmp_path).startswith("next: 1 of 3 runs for limits so far; ")
    monkeypatch.setattr(start, "owner_of_new_files", lambda fd: 12345)
    assert shown(tmp_path).startswith("next: 2 of 3 runs for limits so far; ")


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often all mounts were read, and entries of folders were opened."""
    counted = Counter[str]()

    def count(module: ModuleType, name: str) -> None:
        real = getattr(module, name)

        def counting(*args: Any) -> Any:
            counted[name] += 1
            return real(*args)

        monkeypatch.setattr(module, name, counting)

    count(start, "mounted_by")
    count(files, "mounted_by")
    count(files, "_looked_at")
    return counted


@pytest.mark.root
def test_many_runs_of_a_neighbor_delay_no_card(tmp_path: Path, looked_at: Counter[str]) -> None:
    """He can make as many as the disk takes."""
    keep(tmp_path, 1)
    for number in range(3000):
        (folder := tmp_path / f"20250102-030405-{number:04x}").mkdir()
        os.chown(folder, 12345, 12345)
    assert shown(tmp_path).startswith("next: 2 of 3 runs for limits so far; ")
    assert looked_at["mounted_by"] < 30
    assert looked_at["_looked_at"] < 2100


@pytest.mark.parametrize("name", ["extra{}.events", "node{}.events"])
def test_many_files_in_a_run_delay_no_card(name: str, tmp_path: Path, looked_at: Counter[str]) -> None:
    """A colleague can make them where the umask lets the group write."""
    keep(tmp_path, 1)
    for number in range(2000):
        (tmp_path / RUN.format(1) / name.format(number)).write_text("")
    assert shown(tmp_path).startswith("next: 1 of 3 runs for limits so far; ")
    assert looked_at["mounted_by"] < 30
    assert looked_at["_looked_at"] < 2100


def starved(event: dict[str, Any]) -> None:
    for entry in event.get("measurements", ()):
        if entry["name"] == "cpu_share":
            entry["value"] = 0.5


def test_runs_that_plan_from_refuses_are_not_named(tmp_path: Path) -> None:
    keep(tmp_path, 1, change=other_device)
    keep(tmp_path, 2, change=starved)
    keep(tmp_path, 3, "killed", job(planted=[]))
    (tmp_path / RUN.format(4)).mkdir()
    (tmp_path / RUN.format(4) / "controller.events").write_text("nonsense")
    assert shown(tmp_path).startswith("next: 1 of 3 runs for limits so far; ")


def test_a_large_folder_delays_no_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, 1)
    monkeypatch.setattr(earlier_runs, "_MOST_BYTES", 1000)
    assert shown(tmp_path).startswith("next: 1 of 3 runs for limits so far; ")
