"""Trainings as a person starts them, in separate processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from live.trials import events_in, left_running

SEATRIAL = (sys.executable, "-m", "seatrial")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
RECIPE = ("train", "digits", "4", "1", "--model", "mlp", "--device", "cpu")
"""92 steps, with a checkpoint each 23."""
END_S = 150
"""The timeout of a test comes first."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A finished command."""

    exit_code: int
    output: str
    errors: str

    @property
    def digest(self) -> str:
        (digest,) = re.findall(r"^digests of all ranks equal: ([0-9a-f]{64})$", self.output, re.MULTILINE)
        return str(digest)


class Training:
    """A command that runs in a folder and writes its reports to ``out``."""

    def __init__(
        self, folder: Path, *arguments: str, command: tuple[str, ...] = SEATRIAL, env: Mapping[str, str] | None = None
    ) -> None:
        self.out = folder / "reports"
        self.process = subprocess.Popen(
            [*command, *arguments],
            cwd=folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def until(self, happened: Callable[[], Any]) -> Any:
        """Wait until ``happened()`` is true and return its value; fail if the command ends before."""
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if value := happened():
                return value
            time.sleep(0.02)
        _, errors = self.process.communicate()
        raise AssertionError(f"it never happened; the command ended with {self.process.poll()}: {errors}")

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for folder in self.out.glob("*/") for event in events_in(folder) if event["kind"] == kind]

    def ended(self) -> Ended:
        """Wait for the end; nothing may be left running."""
        try:
            output, errors = self.process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            raise
        assert left_running(self.out) == []
        assert "Traceback" not in errors, errors
        return Ended(exit_code=self.process.returncode, output=output, errors=errors)


def train(folder: Path, *arguments: str, **options: Any) -> Ended:
    """Run one to its end."""
    return Training(folder, *arguments, **options).ended()


def here(folder: Path) -> tuple[str, ...]:
    """Return the options that put reports and checkpoints into that folder."""
    return ("--out", str(folder / "reports"), "--checkpoint-dir", str(folder / "checkpoints"))


def log_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
