"""One case of the bench of scripts: a command, its expected end, and what was seen of it."""

from __future__ import annotations

import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from script_rows.places import PLACES, ROOT, RUN_VARIABLE, Machine, NotHereError

_TIMEOUT_S = 280.0
"""Of a case on a busy machine."""
_SIGNAL_S = 100.0
"""Until the output is there after which a signal is sent."""
_READ_BYTES = 4_000_000
_SAID_CHARACTERS = 300
_HEAD = "import os, signal, sys, time\nrank = int(os.environ.get('RANK', '0'))\n"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command and its expected end."""

    id: str
    """Number of the case in the table of the review, such as ``6a``."""
    name: str
    on: str = "here"
    """Name of the place where it runs, one of PLACES."""
    words: Sequence[str] = ("script.py",)
    """After ``seatrial launch``, or after python where the place starts no seatrial."""
    expected: Sequence[str] = ()
    """Patterns, each of which must be found in both streams together."""
    absent: str = ""
    """Pattern that must not be found."""
    codes: Sequence[int] = (0,)
    """Right exit codes: more than one where that of another launcher counts, which has several for a failure."""
    text: str = ""
    """What the script holds, after a head that imports modules and reads RANK."""
    file: str = "script.py"
    """Name of the script."""
    files: Mapping[str, str] | None = None
    """Further files: name -> text. Those that begin with #! are executable."""
    env: Mapping[str, str] | None = None
    needs: Sequence[str] = ()
    """Folders of packages: frameworks, heavy, mpi4py."""
    signals: Sequence[tuple[str, int]] = ()
    """(pattern, signal): once the output has the pattern, the signal is sent; one after the other."""
    to_group: bool = False
    """The signals go to all processes that a terminal would send them to."""
    times: int = 1
    """How often the command is run, one after the other in the same folder; all of them must end right."""
    at_once: int = 1
    """How many of the command run at the same time in the same folder."""
    log_bytes: int = 0
    """Least size of the file of each rank."""
    gone_s: float = 5.0
    """Time after which no process of the case may be left."""
    instead_of: str = ""
    """The script of others in whose place a script of ours of the same shape runs."""
    test: str = ""
    """The test that does exactly this, by its node id; it runs in place of a command."""
    not_run: str = ""
    """Why the case cannot run here."""


def on_each(*places: str, case: Case) -> tuple[Case, ...]:
    """Return the case once for each place."""
    return tuple(replace(case, on=place) for place in places)


def ran(case: Case, machine: Machine) -> dict[str, Any]:
    """Return the row of a case."""
    row: dict[str, Any] = {"case": case.id, "name": case.name, "on": case.on}
    if case.not_run:
        return {**row, "how": f"not run: {case.not_run}"}
    try:
        seen = _tested(case, machine) if case.test else _launched(case, machine)
    except NotHereError as error:
        return {**row, "how": f"not run: {error}"}
    how = "test" if case.test else "command"
    if case.instead_of:
        how = f"a script of ours in the shape of {case.instead_of}"
    return {**row, "how": how, **seen}


def _tested(case: Case, machine: Machine) -> dict[str, Any]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-m", "slow or not slow", case.test]
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=machine.environ_of_tests(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    said = done.stdout.strip().splitlines()[-1]
    return {
        "command": f"pytest {case.test}",
        "exit_code": done.returncode,
        "said": said,
        "right": done.returncode == 0 and bool(re.search(r"\d passed", said)) and "skipped" not in said,
        "seconds": round(time.monotonic() - started, 1),
    }


def _launched(case: Case, machine: Machine) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=machine.folder) as name:
        folder = Path(name)
        folder.chmod(0o777)
        for file, text in {case.file: _HEAD + case.text, **(case.files or {})}.items():
            (folder / file).write_text(text)
            (folder / file).chmod(0o755 if text.startswith("#!") else 0o644)
        environ = dict(case.env or {}) | machine.paths(case.needs)
        argv, variables = PLACES[case.on](machine, folder, environ, list(case.words))
        before = _marked()
        started = time.monotonic()
        ends = [end for _ in range(case.times) for end in _ended(case, argv, variables, folder)]
        seconds = time.monotonic() - started
        left = _left(before, case.gone_s)
        sizes = [path.stat().st_size for path in folder.glob("reports/*/rank*.log")]
    output = "\n".join(text for _, text in ends)
    lines = [line for line in output.splitlines() if line.strip()]
    missing = [pattern for pattern in case.expected if not re.search(pattern, output, re.DOTALL | re.MULTILINE)]
    wrong = [code for code, _ in ends if code not in case.codes]
    unwanted = bool(case.absent) and bool(re.search(case.absent, output))
    right = not (missing or wrong or unwanted or left or any(size < case.log_bytes for size in sizes))
    if not right:
        print(f"{missing=} {wrong=} {unwanted=} {left=} {sizes=}\n{output[-6000:]}", file=sys.stderr, flush=True)
    return {
        "command": _plain(shlex.join(argv), folder, machine),
        "exit_code": ends[-1][0],
        "said": _plain(lines[-1], folder, machine)[:_SAID_CHARACTERS] if lines else "",
        "left": len(left),
        "right": right,
        "seconds": round(seconds, 1),
    }


def _ended(case: Case, argv: Sequence[str], variables: Mapping[str, str], folder: Path) -> Iterator[tuple[int, str]]:
    """Yield exit code and output of each process that ran at once."""
    running = []
    for number in range(case.at_once):
        path = folder / f"said{number}"
        with open(path, "wb") as said:
            process = subprocess.Popen(
                argv,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        running.append((process, path))
    for process, path in running:
        try:
            for pattern, number in case.signals:
                _await(pattern, path, process)
                (os.killpg if case.to_group else os.kill)(process.pid, number)
                # A person needs some time as well; two signals at once are one.
                time.sleep(0.5)
            process.wait(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        yield process.returncode, _read(path)


def _read(path: Path) -> str:
    """Return the output, of a long one its end."""
    with open(path, "rb") as said:
        said.seek(max(0, path.stat().st_size - _READ_BYTES))
        return said.read().decode(errors="backslashreplace")


def _await(pattern: str, path: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _SIGNAL_S
    while not re.search(pattern, _read(path), re.DOTALL) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)


def _marked() -> set[int]:
    """Return the processes of this bench, by the variable that all of them inherit."""
    marked = set()
    word = f"{RUN_VARIABLE}={os.environ[RUN_VARIABLE]}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if state not in "ZX" and word in (process / "environ").read_bytes().split(b"\0"):
                marked.add(int(process.name))
    return marked


def _left(before: set[int], gone_s: float) -> list[str]:
    """Return the commands of the processes that are left after some time, and end them."""
    until = time.monotonic() + gone_s
    while (pids := _marked() - before - {os.getpid()}) and time.monotonic() < until:
        time.sleep(0.1)
    commands = []
    for pid in pids:
        with suppress(OSError):
            commands.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            os.kill(pid, signal.SIGKILL)
    return commands


def _plain(text: str, folder: Path, machine: Machine) -> str:
    """Return a text without the paths and the name of this machine; of the way to a host what is typed there."""
    for path, word in (
        (str(folder), "FOLDER"),
        *machine.names(),
        (f"{sys.executable} -m seatrial", "seatrial"),
        (sys.executable, "python"),
        (f"{ROOT}/", ""),
        (f" on {platform.node()} ", " on HOST "),
    ):
        text = text.replace(path, word)
    text = re.sub(r"(?s)^nsenter .* sh (node\d) HOSTS/etc.* HOSTS/bin/seatrial ", r"on \1: seatrial ", text)
    return text if text.isprintable() else text.encode("unicode_escape").decode()
