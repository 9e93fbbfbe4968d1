"""One host without its whole CPU in real training: its rank is named, with the other activity on the host."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hosts import Host, Hosts
from live.host_trials import HostTrial, named

pytestmark = pytest.mark.hosts
needs_two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="each host needs a separate core")

_GROUPS = Path("/sys/fs/cgroup")
_QUOTA = 0.25
"""Cores."""
_STARVED = 1
_INTRUDERS = 8
"""They leave the rank a ninth of its core."""
_PLAN = """
deadline_s = 50
checks = ["bootstrap", "training"]
[training]
max_steps = 60
timeout_s = 40
"""


@contextlib.contextmanager
def _group() -> Iterator[list[Path]]:
    """A control group that may be given a quota of CPU time, and the one that counts its CPU time, if another.

    They are gone with those in them.
    """
    is_v1 = (_GROUPS / "cpu").is_dir()
    if not is_v1 and "cpu" not in (_GROUPS / "cgroup.subtree_control").read_text().split():
        pytest.skip("no control group may limit the CPU here")
    tops = {(_GROUPS / name).resolve() for name in ("cpu", "cpuacct")} if is_v1 else {_GROUPS}
    folders = sorted(top / f"seatrial-test-{os.getpid()}" for top in tops)
    for folder in folders:
        folder.mkdir()
    try:
        yield folders
    finally:
        deadline = time.monotonic() + 10
        for folder in folders:
            # Killed ranks stay in it until they are gone.
            while folder.is_dir():
                with contextlib.suppress(OSError):
                    folder.rmdir()
                assert time.monotonic() < deadline, (folder / "cgroup.procs").read_text()
                time.sleep(0.05)


def on_its_core(host: Host) -> Sequence[str]:
    """Two hosts of one machine that do not compete for a core."""
    return ["taskset", "-c", str(host.number)]


def _trial(hosts: Hosts, before: Callable[[Host], Sequence[str]], strike: Callable[[], None]) -> dict[str, Any]:
    """Strike after the rendezvous: to load torch without a CPU takes long."""
    trial = HostTrial(hosts, _PLAN, before=before)
    try:
        trial.until(lambda event: event["kind"] == "step" and event["check"] == "bootstrap")
        strike()
    except BaseException:
        trial.end()
        raise
    return trial.report()


def trial_with_a_quota(hosts: Hosts) -> dict[str, Any]:
    """The report of a trial of which one host may use a quarter of a core."""
    with _group() as (folder, *others):

        def before(host: Host) -> Sequence[str]:
            join = 'echo $$ > "$0/cgroup.procs"; exec "$@"'
            joined = [word for group in (folder, *others) for word in ("sh", "-c", join, str(group))]
            return [*on_its_core(host), *(joined if host.number == _STARVED else [])]

        def strike() -> None:
            if (folder / "cpu.max").exists():
                (folder / "cpu.max").write_text(f"{int(_QUOTA * 100_000)} 100000")
            else:
                (folder / "cpu.cfs_quota_us").write_text(str(int(_QUOTA * 100_000)))

        return _trial(hosts, before, strike)


def trial_on_a_shared_core(hosts: Hosts) -> dict[str, Any]:
    """The report of a trial of which one host has other processes on the core of the rank."""
    with contextlib.ExitStack() as stack:

        def strike() -> None:
            words = [*on_its_core(hosts[_STARVED]), sys.executable, "-c", "while True: pass"]
            for _ in range(_INTRUDERS):
                # The kernel shares a core between sessions, whatever the nice value within one (autogroup).
                stack.callback(_kill, subprocess.Popen(words, start_new_session=True))

        return _trial(hosts, on_its_core, strike)


def clean_trial(hosts: Hosts) -> dict[str, Any]:
    """The same with nothing wrong."""
    return _trial(hosts, on_its_core, lambda: None)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _about_the_starved(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in report["findings"] if finding["culprit"]["ranks"] == [_STARVED]]


@needs_two_cores
def test_a_rank_held_up_by_a_cpu_quota_fails(hosts: Callable[[int], Hosts]) -> None:
    report = trial_with_a_quota(hosts(2))
    assert [kind for kind, _ in named(report)] == ["rank"], report["findings"]
    assert report["acceptance"]["status"] == "FAIL"
    (finding,) = [each for each in _about_the_starved(report) if each["severity"] == "fail"]
    assert (
        finding["what"]
        == f"rank {_STARVED} was held up by the CPU quota of its control group, and all others waited for it"
    )
    assert any("its CPU quota kept" in line for line in finding["evidence"])


@needs_two_cores
def test_a_rank_that_shares_its_core_gets_a_warning(hosts: Callable[[int], Hosts]) -> None:
    report = trial_on_a_shared_core(hosts(2))
    assert named(report) == [], report["findings"]
    assert report["acceptance"]["status"] == "PASS"
    findings = _about_the_starved(report)
    assert {finding["severity"] for finding in findings} == {"warn"}
    assert any("other processes on its cores" in finding["what"] for finding in findings)
    lines = [line for finding in findings for line in finding["evidence"]]
    assert any("others on its cores kept" in line for line in lines)
    assert any("other processes used" in line for line in lines)


@needs_two_cores
def test_the_clean_twin_names_nobody(hosts: Callable[[int], Hosts]) -> None:
    report = clean_trial(hosts(2))
    assert report["acceptance"]["status"] == "PASS", report["findings"]
    assert named(report) == []
