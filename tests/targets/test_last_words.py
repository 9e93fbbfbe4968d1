"""The end of a launcher or of a job is told once a slow disk has shown its last words: they say whose fault it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from by_day import by_day

from seatrial.errors import RequestError
from seatrial.targets import processes
from seatrial.targets.command import Command
from seatrial.targets.launcher_process import Launcher
from seatrial.targets.processes import Agents
from seatrial.targets.slurm.driver import BatchJobDriver
from seatrial.targets.slurm.reasons import JobState, parse_state

_REFUSED = "There are not enough slots available in the system"


@pytest.fixture
def answer_s(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time that the disk takes to answer, at first longer than anybody waits for it."""
    real, times_s = processes.read_tail, [0.5]

    def read_slowly(log: Path, max_bytes: int) -> str:
        time.sleep(times_s[0])
        return real(log, max_bytes)

    monkeypatch.setattr(processes, "read_tail", read_slowly)
    monkeypatch.setattr(processes, "_TAIL_S", 0.01)
    monkeypatch.setattr(processes, "_LAST_WORDS_S", 0.1)
    yield times_s
    for thread in threading.enumerate():
        if thread.name == "disk question":
            thread.join(20)


def _started(agents: Agents, folder: Path, words: str, code: int = 1) -> Agents:
    command = Command(argv=("sh", "-c", f"echo '{words}'; exit {code}"), env={}, nodes=(0, 1))
    agents.submit([command], folder, [], lambda connection, first, node: None)
    return agents


def _first(poll: Callable[[tuple[int, ...]], object], connected: tuple[int, ...] = ()) -> object:
    until = time.monotonic() + 20
    while (told := poll(connected)) is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    return told


def test_options_that_a_launcher_refuses_are_no_lost_node(answer_s: list[float], tmp_path: Path) -> None:
    launcher = _started(Launcher(on_status=print), tmp_path, _REFUSED)
    with pytest.raises(RequestError, match="there are not enough slots"):
        _first(launcher.poll)
    launcher.cleanup()


def test_an_agent_ends_with_its_last_words(answer_s: list[float], tmp_path: Path) -> None:
    agents = _started(Agents(), tmp_path, "out of memory", 3)
    assert [_first(agents.poll) for _ in range(2)] == [
        (node, 'its agent ended with exit code 3: "out of memory"') for node in (0, 1)
    ]
    agents.cleanup()


@pytest.mark.parametrize("make", by_day([Agents, lambda: Launcher(on_status=print)]))
def test_a_disk_that_answers_nothing_hides_no_end(
    make: Callable[[], Agents], answer_s: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_s[0] = 3.0
    monkeypatch.setattr(processes, "LAST_ANSWER_S", 0.5)
    agents = _started(make(), tmp_path, _REFUSED)
    assert [_first(agents.poll) for _ in range(2)] == [(node, _first_words(agents)) for node in (0, 1)]
    agents.cleanup()


def _first_words(agents: Agents) -> str:
    return "its launcher ended: exit code 1" if isinstance(agents, Launcher) else "its agent ended with exit code 1"


def test_what_was_asked_before_the_end_are_no_last_words(answer_s: list[float], tmp_path: Path) -> None:
    (log := tmp_path / "log").write_text("starts")
    tails = processes.LogTails()
    assert tails.read(log) == ""
    time.sleep(0.2)
    log.write_text("why it ended")
    until = time.monotonic() + 20
    while (words := tails.read_last(log)) is None:
        assert time.monotonic() < until
    assert words == "why it ended"


@pytest.mark.parametrize("waits_in_queue", [False, True])
def test_options_that_srun_refuses_are_no_lost_job(
    waits_in_queue: bool, answer_s: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = parse_state("FAILED|NonZeroExitCode|n[0-1]")
    driver = BatchJobDriver(queue_timeout_s=9, requested="--nodes=2", step_name="trial", on_status=print)
    driver.number, driver._nodes, driver._log = "12", (0, 1), tmp_path / "slurm.log"
    driver._log.write_text("srun: unrecognized option '--gpu-bindd=none'\n")

    def ended() -> JobState | None:
        return state

    monkeypatch.setattr(driver, "_query", ended)
    monkeypatch.setattr(driver, "_poll_query", ended)
    with pytest.raises(RequestError, match="unrecognized option"):
        driver._wait_in_queue(()) if waits_in_queue else _first(driver.poll)
