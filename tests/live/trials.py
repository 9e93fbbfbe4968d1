"""Real trials for the live tests: the command as a person types it, in a separate process."""

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
from seatrial.protocol.wire import Decoder

SCHEMA = json.loads((Path(seatrial.report.__file__).parent / "schema.json").read_text("utf-8"))
END_S = 55


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A finished trial."""

    exit_code: int
    report: dict[str, Any]
    out: Path
    errors: str

    @property
    def folder(self) -> Path:
        return next(path for path in self.out.iterdir() if path.is_dir())

    def grave(self) -> list[dict[str, Any]]:
        """Return the findings that decide the verdict."""
        return [finding for finding in self.report["findings"] if finding["severity"] in ("fail", "error")]

    def events(self) -> list[dict[str, Any]]:
        return events_in(self.folder)


class Trial:
    """A running trial."""

    def __init__(
        self,
        out: Path,
        *arguments: str,
        plant: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ):
        self.out = out
        self.process = subprocess.Popen(
            [python, "-m", "seatrial", "run", *(arguments or ("smoke",)), "--out", str(out), "--json"],
            env={**os.environ, "REAL_PYTHON": sys.executable, "SEATRIAL_PLANT": ";".join(plant), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ended(self) -> Ended:
        """Wait for the end; assert that the report matches its schema and that no process was left running."""
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
        """Return the first event that matches, as soon as the controller has written it."""
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
    """Return all events in a run's folder, of the controller and of the agents."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.events")):
        found.extend(Decoder().lines(path.read_bytes()))
    return found


def left_running(out: Path) -> list[str]:
    """Return agents and ranks of trials that report to ``out``; its path is in their environment."""
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
