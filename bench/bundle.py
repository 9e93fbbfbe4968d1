"""The bundle against that of another commit: its size, the time to build it, and the time to start an agent from it.

    python bench/bundle.py CHECKOUT    the other commit, checked out in that folder; a minute on a quiet machine

Both are measured in turn in one run. An agent is ready when its first message has come: it has been imported by then.
``ssh``: what ssh would start on a host, with all that it would send. ``slurm``: what srun would start on a node, from a
bundle in a shared folder. CPU seconds, which another load changes less, count to the end of the processes. Results go
to bench/results/.
"""

from __future__ import annotations

import ast
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import alternately, ratios, write_result

ROUNDS = 15
BUILDS = 3
HOSTS = 2048
ROOT = Path(__file__).parents[1]
PREPARE = """
import json, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
from seatrial.targets.slurm import slurm_target as slurm
from seatrial.bundle import write_bundle
from seatrial.targets.hosts import Host
from seatrial.targets.job import Processes
from seatrial.targets.ssh.connection import feed_of, ssh_argv
began = time.perf_counter()
write_bundle(folder / "seatrial.pyz")
built_s = time.perf_counter() - began
env = {"SEATRIAL_TOKEN": "t" * 32, "SEATRIAL_NODE_RANK": "0"}
feed = feed_of({"module": ["seatrial.agent.agent_main"], "env": env, "folder": str(folder)})
(folder / "feed").write_bytes(feed.to_bytes())
detail = slurm._Slurm(
    requested=(), extra_args=(), container_image=None, partition=None, allocation="1", queue_timeout_s=1.0
)
job = Processes(
    run="x", target="slurm", nodes=1, nproc_per_node=1, device="cpu", backend="auto", python=sys.executable, env={},
    detail=detail,
)
(command,) = slurm.render(job, control="CONTROL", token="t" * 32, keep=str(folder))
words = list(command.argv[command.argv.index("--overlap") + 1 :])
line = ssh_argv(Host(name="host"), sys.executable)[-1]
print(json.dumps({"built_s": built_s, "ssh": line, "slurm": words, "env": dict(command.env)}))
"""


@dataclass(frozen=True)
class Subject:
    """A commit whose bundle lies in a folder, with what would start an agent from it."""

    source: Path
    folder: Path
    commands: dict[str, Any]


def _prepare(checkout: Path) -> str:
    """Return ``PREPARE`` of the checkout: each commit calls its functions by the names that they have there."""
    for statement in ast.parse((checkout / "bench" / "bundle.py").read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "PREPARE":
            return str(ast.literal_eval(statement.value))
    raise SystemExit(f"{checkout}/bench/bundle.py has no PREPARE")


def prepared(checkout: Path, folder: Path) -> Subject:
    """Build the bundle of a checkout, with no cache."""
    folder.mkdir(exist_ok=True)
    environ = {**os.environ, "PYTHONPATH": str(checkout / "src"), "XDG_CACHE_HOME": str(folder / "cache")}
    (folder / "cache").mkdir()
    said = subprocess.run(
        [sys.executable, "-c", _prepare(checkout), str(folder)],
        env=environ,
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    ).stdout
    return Subject(checkout, folder, json.loads(said))


def build_s(checkout: Path) -> float:
    """Seconds in which the bundle of a checkout is built and written."""
    with tempfile.TemporaryDirectory() as folder:
        return float(prepared(checkout, Path(folder)).commands["built_s"])


def ready_over_ssh_s(subject: Subject) -> float:
    """Seconds until an agent has said hello that was started as ssh starts it, with the feed on standard input."""
    feed = (subject.folder / "feed").read_bytes()
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    began = time.perf_counter()
    with subprocess.Popen(
        ["sh", "-c", subject.commands["ssh"]],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(feed)
        process.stdin.flush()
        while b'"hello"' not in (line := process.stdout.readline()):
            assert line, "the agent has ended"
        took_s = time.perf_counter() - began
        process.terminate()
    return took_s


def ready_under_slurm_s(subject: Subject) -> float:
    """Seconds until an agent has said hello that was started as srun starts it, from a shared folder."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        environ = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            **subject.commands["env"],
            "SEATRIAL_CONTROL": f"127.0.0.1:{server.getsockname()[1]}",
            "SEATRIAL_NODE_RANK": "0",
        }
        began = time.perf_counter()
        with subprocess.Popen(subject.commands["slurm"], env=environ, stderr=subprocess.DEVNULL) as process:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(60)
                said = b""
                while b'"hello"' not in said:
                    piece = connection.recv(1 << 16)
                    assert piece, "the agent has ended"
                    said += piece
                took_s = time.perf_counter() - began
                process.terminate()
    return took_s


def cpu_s(run: Callable[[], float]) -> float:
    """Seconds of CPU time of all processes that a call starts and awaits."""
    before, _, after = resource.getrusage(resource.RUSAGE_CHILDREN), run(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def python_s() -> float:
    """Seconds of a Python that does nothing: what both could not be faster than, and how noisy the machine is."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure, and write the result."""
    other = Path(sys.argv[1]).resolve()
    commit = subprocess.run(
        ["git", "-C", str(other), "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    checkouts = {commit: other, "this": ROOT}
    with tempfile.TemporaryDirectory() as folder:
        subjects = {name: prepared(path, Path(folder) / name) for name, path in checkouts.items()}
        measurements: dict[str, Any] = {
            "size_bytes": {name: (each.folder / "seatrial.pyz").stat().st_size for name, each in subjects.items()},
            f"bytes_sent_to_{HOSTS}_ssh_hosts": {
                name: HOSTS * (each.folder / "feed").stat().st_size for name, each in subjects.items()
            },
            "build_s": ratios(alternately({name: partial(build_s, path) for name, path in checkouts.items()}, BUILDS)),
        }
        for title, ready_s in (("ssh", ready_over_ssh_s), ("slurm", ready_under_slurm_s)):
            for each in subjects.values():
                ready_s(each)
            measured: dict[str, Callable[[], float]] = {name: partial(ready_s, each) for name, each in subjects.items()}
            measured["python -c pass"] = python_s
            measurements[f"agent_ready_s_{title}"] = ratios(alternately(measured, ROUNDS))
            spent = {name: partial(cpu_s, run) for name, run in measured.items()}
            measurements[f"agent_ready_cpu_s_{title}"] = ratios(alternately(spent, ROUNDS))
    write_result("bundle", "python bench/bundle.py CHECKOUT", measurements)


if __name__ == "__main__":
    main()
