"""The signals that launchers send to all processes of a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from seatrial.util import job_signals
from seatrial.util.job_signals import STOPPING, collector, for_ranks, handled, unless_ignored

CODE = """
import os, signal, sys
print("started", flush=True)
sys.stdin.readline()
from seatrial.util.job_signals import ignore_those_for_ranks
ignore_those_for_ranks()
for number in (signal.SIGUSR1, signal.SIGUSR2):
    os.kill(os.getpid(), number)
print("lives, child too:", os.waitstatus_to_exitcode(os.system("kill -USR1 $$; kill -USR2 $$")), flush=True)
"""


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*STOPPING, *job_signals.FOR_RANKS)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_process_that_starts_lives_until_it_ignores_them() -> None:
    with job_signals.those_for_ranks_held_back():
        process = subprocess.Popen(
            [sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {*job_signals.FOR_RANKS} == set()
    for number in job_signals.FOR_RANKS:
        process.send_signal(number)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    for number in job_signals.FOR_RANKS:
        process.send_signal(number)
    assert process.communicate("\n", timeout=30)[0] == "lives, child too: 0\n"
    assert process.returncode == 0


def test_different_signals_together_are_one_and_the_same_twice_are_two() -> None:
    signals: list[int] = []
    collect = collector(signals)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
        collect(number, None)
    assert signals == [signal.SIGHUP, signal.SIGHUP]


def test_an_ignored_sighup_stays_so() -> None:
    assert unless_ignored(STOPPING) == STOPPING
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert unless_ignored(STOPPING) == (signal.SIGTERM, signal.SIGINT)


def test_handlers_of_a_c_library_stay_and_stop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """DMTCP handles SIGUSR2 before Python starts. Python names such a handler None, and takes no None back."""
    real_get, real_set = signal.getsignal, signal.signal
    of_library = (signal.SIGUSR2, signal.SIGTERM)

    def set_as_there(number: int, handler: object) -> object:
        former = real_set(number, handler)  # type: ignore[arg-type]
        return None if number in of_library and handler is on_signal else former

    def on_signal(number: int, frame: object) -> None:
        heard.append(number)

    heard: list[int] = []
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number in of_library else real_get(number))
    monkeypatch.setattr(signal, "signal", set_as_there)
    assert for_ranks() == (signal.SIGUSR1,)
    with handled(STOPPING, on_signal):
        os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]
