"""A crowd at the control port of a live trial: it PASSes, and the controller stays as small as it was."""

from __future__ import annotations

import contextlib
import re
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live.trials import Trial

_SILENT, _SLOW, _LOUD = 1_000, 200, 50
_LOUD_BYTES = 1 << 20
_MOST_STRANGERS = 256
"""Connections that a server keeps at once."""
_MOST_GROWTH_KIB = 64 << 10


@pytest.fixture(autouse=True)
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4_096:
        pytest.skip(f"the hard limit of open files is {hard}: too few for a crowd")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class _Crowd:
    """Strangers who connect at once and go when they are sent away."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self.came: list[socket.socket] = []
        self.open: set[socket.socket] = set()
        self.slow: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._drip), threading.Thread(target=self._shout)]

    def come(self) -> None:
        for _ in range(_SILENT):
            self._connect()
        self.slow = [self._connect() for _ in range(_SLOW)]
        for thread in self._threads:
            thread.start()

    def _connect(self) -> socket.socket:
        stranger = socket.create_connection(("127.0.0.1", self._port), timeout=20.0)
        self.came.append(stranger)
        self.open.add(stranger)
        return stranger

    def _drip(self) -> None:
        while not self._over.wait(1.0):
            for stranger in self.slow:
                with contextlib.suppress(OSError):
                    stranger.send(b"@")

    def _shout(self) -> None:
        for _ in range(_LOUD):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 20.0) as stranger:
                stranger.sendall(b"x" * _LOUD_BYTES)

    def sent_away(self) -> None:
        """Forget those whose connection the other end has closed. No stranger received a byte."""
        watch = select.poll()
        by_number = {stranger.fileno(): stranger for stranger in self.open}
        for number in by_number:
            watch.register(number, select.POLLIN)
        for number, _ in watch.poll(100):
            with contextlib.suppress(ConnectionError):
                assert by_number[number].recv(1) == b"", "a stranger received data"
            self.open.discard(by_number[number])

    def go(self) -> None:
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for stranger in self.came:
            stranger.close()


@pytest.mark.fuzz
@pytest.mark.timeout(150)
def test_a_thousand_strangers_do_not_disturb_a_trial(tmp_path: Path) -> None:
    plan = tmp_path / "long.toml"
    # Longer than the time that a stranger has for its hello.
    plan.write_text('level = "smoke"\ndeadline_s = 120\n[compute]\nminutes = 0.4\n')
    out = tmp_path / "out"
    trial = Trial(out, str(plan))
    crowd = _Crowd(_control_port(out, trial))
    most_files, before_kib, most_kib = 0, _resident_kib(trial.process.pid), 0
    files_before = _open_files(trial.process.pid)
    try:
        crowd.come()
        while crowd.open and trial.process.poll() is None:
            crowd.sent_away()
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                most_files = max(most_files, _open_files(trial.process.pid))
                most_kib = max(most_kib, _resident_kib(trial.process.pid))
        assert trial.process.poll() is None, "strangers outlived the trial"
        assert crowd.open == set()
        ended = trial.ended()
    finally:
        crowd.go()
        if trial.process.poll() is None:
            trial.process.kill()
            trial.process.communicate()
    assert ended.exit_code == 0, ended.report["findings"]
    assert ended.report["missing"] == []
    assert most_files <= files_before + _MOST_STRANGERS + 16
    assert most_kib - before_kib < _MOST_GROWTH_KIB
    print(
        f"{len(crowd.came)} strangers: at most {most_files} files open and {most_kib - before_kib} KiB more in memory"
    )


def _control_port(out: Path, trial: Trial) -> int:
    """From the environment of the agent, as soon as there is one: strangers come before it has joined."""
    mark = f"SEATRIAL_KEEP={out}".encode()
    until = time.monotonic() + 30.0
    while time.monotonic() < until and trial.process.poll() is None:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environ = (folder / "environ").read_bytes()
                found = re.search(rb"SEATRIAL_CONTROL=127\.0\.0\.1:([0-9]+)", environ)
                if mark in environ and found:
                    return int(found[1])
        time.sleep(0.01)
    raise AssertionError("the agent was never started")


def _open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _resident_kib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])
