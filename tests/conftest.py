"""Shared by all tests: the marks of tests that need something of the machine, and the search for leftover processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import hosts as hosts
from hypothesis import settings

from seatrial.bundle import write_bundle

# A shared machine may pause any example for long; the timeout of the whole test stands. CI tries the same inputs each
# time, so that a change is judged by what it changes; whoever runs the tests elsewhere tries new ones.
settings.register_profile("seatrial", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("seatrial")


def _has(*programs: str) -> bool:
    return all(shutil.which(program) for program in programs)


MARKS: dict[str, tuple[str, Callable[[], bool]]] = {
    "root": ("needs root", lambda: os.geteuid() == 0),
    "hosts": (
        "needs root, ip and sshd, to make hosts from network namespaces",
        lambda: os.geteuid() == 0 and _has("ip", "sshd", "ssh"),
    ),
    "cluster": (
        "needs root, ip and sshd, for a double of a cluster whose pods are namespaces; takes minutes",
        lambda: os.geteuid() == 0 and _has("ip", "sshd", "ssh"),
    ),
    "mpi": ("needs mpirun, named by SEATRIAL_TEST_MPIRUNS", lambda: bool(os.environ.get("SEATRIAL_TEST_MPIRUNS"))),
    "mpi4py": (
        "needs mpirun as above, and mpi4py and NumPy in the folder that SEATRIAL_TEST_MPI4PY names",
        lambda: all(os.environ.get(f"SEATRIAL_TEST_{name}") for name in ("MPIRUNS", "MPI4PY")),
    ),
    "debian_torch": (
        "needs root and a Debian 13 with its torch in the folder that SEATRIAL_TEST_DEBIAN_TORCH names"
        " (tools/make_debian_torch.sh)",
        lambda: os.geteuid() == 0 and bool(os.environ.get("SEATRIAL_TEST_DEBIAN_TORCH")),
    ),
    "frameworks": (
        "needs Lightning Fabric, ignite and accelerate in the folder that SEATRIAL_TEST_FRAMEWORKS names",
        lambda: bool(os.environ.get("SEATRIAL_TEST_FRAMEWORKS")),
    ),
    "heavy_frameworks": (
        "needs the folder that SEATRIAL_TEST_HEAVY_FRAMEWORKS names, as tests/launchers/heavy-frameworks.txt says",
        lambda: bool(os.environ.get("SEATRIAL_TEST_HEAVY_FRAMEWORKS")),
    ),
    "slurm": ("needs slurmctld and slurmd", lambda: _has("slurmctld", "slurmd")),
    "podman": ("needs podman", lambda: _has("podman")),
    "terraform": (
        "needs terraform, shellcheck, the AWS provider below the folder that SEATRIAL_TEST_TERRAFORM_PLUGINS names, and"
        " moto in the one of SEATRIAL_TEST_MOTO",
        lambda: (
            _has("terraform", "shellcheck", "ssh-keygen")
            and all(os.environ.get(f"SEATRIAL_TEST_{name}") for name in ("TERRAFORM_PLUGINS", "MOTO"))
        ),
    ),
    "browser": ("needs chromium", lambda: _has("chromium")),
    "fuzz": ("takes minutes", lambda: True),
    "gpu": ("needs an accelerator", lambda: Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()),
    "slow": ("takes long", lambda: True),
    "nightly": ("takes long, and CI runs a cheaper case of its class", lambda: True),
}
"""Mark -> its meaning, and a function that says whether this machine can run it."""

RUN_VARIABLE = "SEATRIAL_TEST_RUN"
"""A variable in the environment of every process that the tests start, so that orphans are found too."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--marked", action="store_true", help="run the marked tests, and only those")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[RUN_VARIABLE] = uuid.uuid4().hex
    # Of somebody's terminal, or of pytest-xdist; a test that wants a width sets it.
    os.environ.pop("COLUMNS", None)
    for mark, (reason, _) in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {reason}")
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(_LeftOutByWorkers())


_left_out: Counter[str] = Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marked tests run with ``--marked`` or by their mark (``-m gpu``), and skip where the machine cannot run them."""
    by_mark = bool(config.getoption("markexpr"))
    chosen, other = [], []
    for item in items:
        marks = [mark for mark in MARKS if item.get_closest_marker(mark)]
        if by_mark or bool(marks) == config.getoption("marked"):
            chosen.append(item)
        else:
            other.append(item)
            _left_out.update(marks)
        for mark in marks:
            reason, is_fit = MARKS[mark]
            if not is_fit():
                item.add_marker(pytest.mark.skip(reason=f"{mark}: {reason}"))
    if other:
        config.hook.pytest_deselected(items=other)
        items[:] = chosen


class _LeftOutByWorkers:
    """With pytest-xdist each worker collects all tests, and only the first process prints what was left out."""

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = dict(_left_out)

    def pytest_testnodedown(self, node: Any) -> None:
        if not _left_out:
            _left_out.update(node.workeroutput.get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for mark, count in sorted(_left_out.items()):
        terminalreporter.write_line(f"NOT RUN: {count} marked {mark} ({MARKS[mark][0]}); make test-marked runs them")


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle, built from this source."""
    file = tmp_path_factory.mktemp("bundle") / "seatrial.pyz"
    write_bundle(file)
    return file


@pytest.fixture(scope="session")
def three_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Results of ``on_3_ranks(rank, folder)`` in real ranks, for each collected file that defines it: file -> by rank.

    One set of processes for all: starting them costs more than what they do.
    """
    from training.rank_processes import run_jobs

    collected = {item.module.__name__ for item in request.session.items if isinstance(item, pytest.Function)}
    names = sorted(name for name in collected if hasattr(sys.modules[name], "on_3_ranks"))
    folder = tmp_path_factory.mktemp("ranks")
    jobs = {name: (sys.modules[name].on_3_ranks, (str(folder / name),)) for name in names}
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return run_jobs(3, jobs)
    # The processes of pytest-xdist have collected the same files: the first that needs the results is the one to run.
    shared = tmp_path_factory.getbasetemp().parent
    with open(shared / "three_ranks.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = shared / "three_ranks.pickle"
        if not file.exists():
            file.write_bytes(pickle.dumps(run_jobs(3, jobs)))
        # Written by the line above, so trusted.
        results: dict[str, list[Any]] = pickle.loads(file.read_bytes())
        return results


@pytest.fixture(autouse=True)
def signals_for_ranks_as_before() -> Iterator[None]:
    """What a test has this process ignore, as the commands do, its next processes would ignore as well."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail a test that leaves its processes or threads behind, and end those processes."""
    pids_before, threads_before = _pids(), set(threading.enumerate())
    yield
    give_up = time.monotonic() + 5
    while True:
        # Looking at new ones only makes it cheap enough for thousands of tests.
        processes = {pid: text for pid in _pids() - pids_before if (text := _ours(pid))}
        threads = [thread for thread in threading.enumerate() if thread not in threads_before]
        if not (processes or threads):
            return
        if time.monotonic() > give_up:
            break
        time.sleep(0.02)
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    named = [f"process {pid}: {text}" for pid, text in processes.items()]
    pytest.fail("left running: " + "; ".join(named + [f"thread {thread.name}" for thread in threads]), pytrace=False)


def _pids() -> set[int]:
    """All processes of this machine. Empty where /proc is not."""
    with contextlib.suppress(OSError):
        return {int(name) for name in os.listdir("/proc") if name.isdecimal()}
    return set()


def _ours(pid: int) -> str | None:
    """The command of a process that runs still, if it is our child or bears this run's variable."""
    run = f"{RUN_VARIABLE}={os.environ[RUN_VARIABLE]}".encode()
    folder = Path("/proc", str(pid))
    try:
        # pid (command) state parent ...; the command may hold anything but the last ")".
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        if fields[0] in "ZX":
            return None
        if int(fields[1]) != os.getpid() and run not in (folder / "environ").read_bytes().split(b"\0"):
            return None
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (OSError, IndexError):  # It ended meanwhile, or belongs to somebody else.
        return None
    # multiprocessing keeps this one for the life of the interpreter.
    return None if "multiprocessing.resource_tracker" in command else command or "(no command)"
