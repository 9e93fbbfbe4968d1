"""The screens that a reader sees, kept as files: one for each kind of verdict, on 60 and on 80 columns."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from by_day import by_day
from report.check_scenes import PLAN
from report.screens import COLUMNS, HERE, SCREENS, TRIALS, screen
from targets.ssh_double import write_ssh_double

from seatrial.cli.click_app import main


def rows(text: str, columns: int) -> int:
    """Return the rows of the terminal that a text takes."""
    return sum(max(1, -(-len(line) // columns)) for line in text.splitlines())


@pytest.fixture(params=COLUMNS, ids="{} columns".format)
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    number: int = request.param
    monkeypatch.setenv("COLUMNS", str(number))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    return number


@pytest.mark.parametrize("name", sorted(SCREENS))
def test_a_screen_is_the_kept_one(name: str, columns: int) -> None:
    """After a change of the console: tools/write_screens.py, then read what changed."""
    kept = HERE / "screens" / f"{name}.{columns}.txt"
    assert screen(name, columns) == kept.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(TRIALS))
def test_the_card_is_on_the_last_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    card = screen(name, 80)
    card = card[card.index("=" * 50) :]
    assert rows(card, 80) <= 23
    assert card.splitlines()[1].startswith("FINAL ACCEPTANCE: ")
    last = card[card.index("\nnext: ") :]
    steps = ("next: ", "  ", "fix the problem above, then run:")
    assert all(line.startswith(steps) for line in last.splitlines()[1:]), "nothing follows it"


def commands_of(card: str) -> Iterator[str]:
    """Yield the commands after ``next:``: behind a colon, or on lines of their own."""
    last = card[card.index("\nnext: ") + 1 :].replace("\\\n", "")
    for line in re.findall(r"(?m)(?:: |^  )((?:env -u|printf|seatrial) .*)$", last):
        yield from map(str.strip, line.split(" && "))


@pytest.mark.parametrize("columns", by_day(COLUMNS), ids="{} columns".format, indirect=True)
@pytest.mark.parametrize("name", by_day(sorted(TRIALS), *range(0, len(TRIALS), 3)))
def test_what_is_to_be_typed_next_is_accepted(
    name: str, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command is read by the real parser of options and plans, in their order, as a dry run."""
    monkeypatch.chdir(tmp_path)
    Path(PLAN).write_text('level = "standard"\nstorage.folder = "/ckpt"\n', encoding="utf-8")
    path = [str(write_ssh_double(tmp_path)), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    printed = list(commands_of(screen(name, columns)))
    assert printed[-1].removeprefix("env -u SEATRIAL_PLANT ").startswith("seatrial run ")
    for command in printed:
        words = shlex.split(command.removeprefix("env -u SEATRIAL_PLANT "))
        if words[0] != "seatrial":
            assert re.match(r"printf '[^']*' +> longer\.toml$", command), command
            subprocess.run(["sh", "-c", command], check=True, timeout=60)
            continue
        monkeypatch.setattr(sys, "argv", [*words, "--dry-run"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0, capsys.readouterr().err


def test_no_screen_is_left_over() -> None:
    kept = {Path(path).name for path in (HERE / "screens").iterdir()}
    assert kept == {f"{name}.{columns}.txt" for name in SCREENS for columns in COLUMNS}
