"""Real trials for the live tests: the command as a person types it, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

import seatrial.report
from seatrial.verdict.wire import Decoder

SCHEMA = json.loads((Path(seatrial.report.__file__).parent / "schema.json").read_text("utf-8"))
END_S = 55


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A trial that is over."""

    exit_code: int
    report: dict[str, Any]
    out: Path
    errors: str

    @property
    def folder(self) -> Path:
        return next(path for path in self.out.iterdir() if path.is_dir())

    def grave(self) -> list[dict[str, Any]]:
        """The findings that decide."""
        return [finding for finding in self.report["findings"] if finding["severity"] in ("fail", "error")]

    def events(self) -> list[dict[str, Any]]:
        return events_in(self.folder)


class Trial:
    """A trial that runs."""

    def __init__(self, out: Path, *arguments: str, plant: Sequence[str] = (), env: Mapping[str, str] | None = None):
        self.out = out
        self.process = subprocess.Popen(
            [sys.executable, "-m", "seatrial", "run", *(arguments or ("smoke",)), "--out", str(out), "--json"],
            env={**os.environ, "SEATRIAL_PLANT": ";".join(plant), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ended(self) -> Ended:
        """Wait for the end, and see that the report keeps its promises and nothing is left running."""
        try:
            text, errors = self.process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            kill_left(self.out)
            raise
        assert text, errors
        report = json.loads(text)
        jsonschema.validate(report, SCHEMA)
        assert report["exit_code"] == self.process.returncode
        assert left_running(self.out) == []
        return Ended(exit_code=self.process.returncode, report=report, out=self.out, errors=errors)

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event that is wanted, as soon as the controller has kept it."""
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline and self.process.poll() is None:
            for folder in self.out.glob("*/"):
                for event in events_in(folder):
                    if wanted(event):
                        return event
            time.sleep(0.05)
        raise AssertionError(f"the event never came; the trial ended with {self.process.poll()}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


def trial(out: Path, *arguments: str, plant: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Ended:
    """Run one trial to its end."""
    return Trial(out, *arguments, plant=plant, env=env).ended()


def events_in(folder: Path) -> list[dict[str, Any]]:
    """All events that were kept in a run's folder, by the controller and by the agents."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.events")):
        found.extend(Decoder().lines(path.read_bytes()))
    return found


def left_running(out: Path) -> list[str]:
    """Agents and ranks of trials that report to ``out``: they carry its folder in their environment."""
    mark = f"SEATRIAL_KEEP={out}".encode()
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                left.append(f"{folder.name}: {(folder / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
        except OSError:
            continue
    return left


def wait_until_none_left(out: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while left_running(out):
        assert time.monotonic() < deadline, left_running(out)
        time.sleep(0.1)


def kill_left(out: Path) -> None:
    for line in left_running(out):
        os.kill(int(line.partition(":")[0]), signal.SIGKILL)
