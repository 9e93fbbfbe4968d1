"""A real Slurm cluster on this machine: two slurmd that share it, no munge, any user."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NODES = 2
_START_S = 20


def _free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def _configuration(folder: Path, ports: list[int]) -> str:
    host, user = socket.gethostname().partition(".")[0], getpass.getuser()
    settings = {
        "ClusterName": "test",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": ports[0],
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/none",
        "CredType": "cred/none",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": f"{folder}/spool.%n",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd.%n.pid",
        "SlurmctldLogFile": folder / "slurmctld.log",
        "SlurmdLogFile": f"{folder}/slurmd.%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "MpiDefault": "none",
        "ReturnToService": 2,
        "SlurmdParameters": "config_overrides",
        "SchedulerParameters": "bf_interval=1,sched_interval=1,batch_sched_delay=0",
        "KillWait": 2,
        "MessageTimeout": 5,
        "SlurmdTimeout": 10,
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    for number in range(_NODES):
        lines.append(
            f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1 + number]} CPUs=4 Boards=1"
            " SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN"
        )
    lines.append(f"PartitionName=main Nodes=n[0-{_NODES - 1}] Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which ``srun`` finds the cluster. Its daemons are ended whatever happens."""
    for name in ("state", *(f"spool.n{number}" for number in range(_NODES))):
        (folder / name).mkdir()
    path = folder / "slurm.conf"
    path.write_text(_configuration(folder, _free_ports(1 + _NODES)))
    environ = {**os.environ, "SLURM_CONF": str(path)}
    try:
        subprocess.run([_sbin("slurmctld"), "-c", "-f", str(path)], env=environ, check=True, timeout=_START_S)
        for number in range(_NODES):
            command = [_sbin("slurmd"), "-f", str(path), "-N", f"n{number}"]
            subprocess.run(command, env=environ, check=True, timeout=_START_S)
        _wait_until_idle(environ)
        yield environ
    finally:
        for pid_file in folder.glob("*.pid"):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
        # What a slurmd starts for each step outlives it, and does not heed SIGTERM.
        for pid in _steps_of(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _steps_of(folder: Path) -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cmdline").read_bytes().startswith(b"slurmstepd"):
                opened = [os.readlink(fd) for fd in (process / "fd").iterdir()]
                if any(file.startswith(f"{folder}/") for file in opened):
                    yield int(process.name)


def _sbin(name: str) -> str:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or name


def _wait_until_idle(environ: dict[str, str]) -> None:
    until = time.monotonic() + _START_S
    while True:
        nodes = subprocess.run(
            ["sinfo", "-h", "-t", "idle", "-o", "%D"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
        if nodes.stdout.strip() == str(_NODES):
            return
        assert time.monotonic() < until, f"the cluster never came up: {nodes.stdout} {nodes.stderr}"
        time.sleep(0.1)
