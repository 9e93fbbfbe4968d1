"""The first program of a launcher pod: it waits until every node of the host file answers, then becomes mpirun.

Its text travels in a ConfigMap and runs with the standard library of the image::

    python3 wait_for_hosts.py HOSTFILE PORT TIMEOUT_S COMMAND...

ssh does not repeat a look-up that failed, and the operators may start launcher and nodes together: mpi-operator does so
for a job that was suspended first (kubeflow/mpi-operator #615).
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Sequence

WAITING = "seatrial: waiting for"
"""A line of standard error that begins so says for what it waits, after each try but the first. The controller shows
it."""
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
"""CoreDNS answers that a name does not exist from its cache for 30 s (``cache 30``), so asking more often is of no
use."""
_CONNECT_S = 5.0
_AT_ONCE = 32
_MOST_NAMED = 4


def full_name(host: str, resolver_configuration: str) -> str:
    """Return the name with its domain and a final dot, so that the resolver asks once and not along its search path.

    ``resolver_configuration``: the text of /etc/resolv.conf. In a pod its search path is ``NAMESPACE.svc.DOMAIN
    svc.DOMAIN DOMAIN``. Elsewhere the name is returned as it is.
    """
    searched = re.findall(r"^\s*search\s+(.*)$", resolver_configuration, re.MULTILINE)
    domains = searched[-1].split() if searched else []
    cluster = next((domain for domain in domains if domain.startswith("svc.")), None)
    if cluster is None or host.endswith(".") or re.fullmatch(r"[0-9.]+|.*:.*", host):
        return host
    if host.endswith(".svc"):
        return f"{host}{cluster.removeprefix('svc')}."
    namespace = next((domain for domain in domains if domain.endswith(f".{cluster}")), None)
    return host if namespace is None or "." not in host else f"{host}.{namespace}."


def hosts_in(host_file: str) -> list[str]:
    """Return the hosts of a host file, ``HOST slots=N`` or ``HOST:N`` a line."""
    names = [re.split(r"[\s:]", line.strip())[0] for line in host_file.splitlines()]
    return [name for name in dict.fromkeys(names) if name and not name.startswith("#")]


def problem_of(host: str, port: int) -> str:
    """Return why a host does not answer on this port; empty if it does."""
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError as error:
        return str(error.strerror or error)
    return ""


def wait(hosts: Sequence[str], port: int, timeout_s: float) -> dict[str, str]:
    """Wait until all hosts answer. Returns those that do not within the time, each with its problem."""
    began, pause_s = time.monotonic(), _FIRST_WAIT_S
    absent = list(hosts)
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        while True:
            problems = dict(zip(absent, pool.map(lambda host: problem_of(host, port), absent), strict=True))
            absent = [host for host, problem in problems.items() if problem]
            waited_s = time.monotonic() - began
            remaining_s = timeout_s - waited_s
            if not absent or remaining_s <= 0:
                return {host: problems[host] for host in absent}
            if pause_s > _FIRST_WAIT_S:
                print(f"{WAITING} {_named(absent, problems)}, for {waited_s:.0f} s", file=sys.stderr, flush=True)
            time.sleep(min(pause_s, remaining_s))
            pause_s = min(pause_s * 2, _LONGEST_WAIT_S)


def _named(absent: Sequence[str], problems: dict[str, str]) -> str:
    named = ", ".join(f"{host} ({problems[host]})" for host in absent[:_MOST_NAMED])
    return named + (f" and {len(absent) - _MOST_NAMED} more" if len(absent) > _MOST_NAMED else "")


def main(arguments: Sequence[str]) -> None:
    """Wait, then replace this process by the command; exit with 3 if a host does not answer in time."""
    host_file, port, timeout_s, *command = arguments
    # The first process of a container is not ended by a signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
    with open(host_file, encoding="utf-8") as file:
        hosts = hosts_in(file.read())
    try:
        with open("/etc/resolv.conf", encoding="utf-8", errors="replace") as file:
            resolver_configuration = file.read()
    except OSError:
        resolver_configuration = ""
    names = {full_name(host, resolver_configuration): host for host in hosts}
    problems = wait(list(names), int(port), float(timeout_s))
    if problems:
        host, problem = next(iter(problems.items()))
        print(
            f"Error: {len(problems)} of {len(names)} nodes do not answer on port {port} after {float(timeout_s):.0f} s:"
            f" {names[host]} ({problem}); read the log of its pod.",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(3)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
