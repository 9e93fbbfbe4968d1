"""The first program of a launcher pod: it waits until every node of the host file answers, then becomes mpirun.

Its text travels in a ConfigMap and runs with the standard library of the image::

    python3 wait_for_hosts.py HOSTFILE COPY HOST SLOTS NODES PORT TIMEOUT_S MPI COMMAND...

The operator's host file, ``HOSTFILE``, is in a ConfigMap that others in the namespace may be allowed to change, and
mpirun starts ranks wherever it says. So only ``COPY`` is read, and it must name each pod of the run. ``HOST``: the name
of a pod without its namespace, with ``{}`` for its number; ``SLOTS``: what follows it, such as `` slots=8`` or ``:8``.
``MPI``: ``openmpi``, ``mpich`` or ``intel``.

ssh does not repeat a look-up that failed, and the operators may start launcher and nodes together: mpi-operator does so
for a job that was suspended first (kubeflow/mpi-operator #615).
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import fcntl
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

WAITING = "seatrial: waiting for"
"""A line of standard error that begins so says for what it waits, after each try but the first. The controller shows
it."""
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
"""CoreDNS answers that a name does not exist from its cache for 30 s (``cache 30``), so asking more often is of no
use."""
_QUERY_S = 30.0
"""The default of the system's resolver for three servers that do not answer: 2 attempts of 5 s each."""
_CONNECT_S = 5.0
_MOST_ADDRESSES = 8
"""Addresses of a name in each family that are tried: who answers for a DNS server may send thousands."""
_AT_ONCE = 32
_LAST_ROUND_S = 5.0
"""Time for the last round, which begins when the time is over."""
_ADDRESS_OF_INTERFACE = 0x8915
"""SIOCGIFADDR of Linux."""
_MOST_NAMED = 4
_MOST_SHOWN = 100


def domain_of(resolver_configuration: str) -> str:
    """Return the domain of the pod's namespace, ``NAMESPACE.svc.DOMAIN``; empty where it is not known.

    ``resolver_configuration``: the text of /etc/resolv.conf. In a pod its search path is ``NAMESPACE.svc.DOMAIN
    svc.DOMAIN DOMAIN``.
    """
    searched = re.findall(r"^\s*search\s+(.*)$", resolver_configuration, re.MULTILINE)
    domains = searched[-1].split() if searched else []
    clusters = [domain for domain in domains if domain.startswith("svc.")]
    return next((domain for domain in domains if domain.partition(".")[2] in clusters), "")


def hosts_in(host_file: str, host: str, slots: str, nodes: int, domain: str) -> list[str]:
    """Return the hosts of a host file. Raises ValueError unless it has one line for each pod, in their order.

    ``domain``: that of the namespace (``domain_of``), with a part of which a name may end, and with no other.
    """
    namespace, _, cluster = domain.partition(".svc.")
    ends = ["", *([f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.{cluster}"] if domain else [])]
    lines = host_file.removesuffix("\n").split("\n")
    for node, line in enumerate(lines):
        if node >= nodes or line not in [host.format(node) + end + slots for end in ends]:
            raise ValueError(f"its line {node + 1} is {line[:_MOST_SHOWN]!a}")
    if len(lines) < nodes:
        raise ValueError(f"it has {len(lines)}")
    return [line.removesuffix(slots) for line in lines]


def _query(host: str, port: int, timeout_s: float) -> list[tuple[Any, ...]]:
    """Return the rows of ``socket.getaddrinfo``. Raises OSError, also after ``timeout_s`` (see ``resolver.py``)."""
    answers: list[list[tuple[Any, ...]] | OSError] = []

    def ask() -> None:
        try:
            answers.append([*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)])
        except OSError as error:
            answers.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    try:
        asking.start()
    except RuntimeError as error:  # the limit of the pod: threads that got no answer are still there
        raise OSError(str(error)) from None
    asking.join(timeout_s)
    answer = answers[0] if answers else OSError(f"its name server has not answered for {timeout_s:.0f} s")
    if isinstance(answer, OSError):
        raise answer
    return answer


def problem_of(host: str, port: int, until: float) -> str | None:
    """Return why a host does not answer on this port; empty if it does; None: there was no time left to ask it.

    ``until``: the moment of ``time.monotonic()`` after which its name is not looked up, and no further address tried.
    """
    problem, tried = "its name has no address", collections.Counter[int]()
    if (left_s := until - time.monotonic()) <= 0:
        return None
    try:
        places = _query(host, port, min(_QUERY_S, left_s))
    except OSError as error:
        return str(error.strerror or error)
    for family, kind, protocol, _, place in places:
        if tried[family] == _MOST_ADDRESSES or (tried and time.monotonic() > until):
            continue
        tried[family] += 1
        try:
            with socket.socket(family, kind, protocol) as connection:
                connection.settimeout(_CONNECT_S)
                connection.connect(place)
        except OSError as error:
            problem = str(error.strerror or error)
        else:
            return ""
    return problem


def wait(hosts: Sequence[str], port: int, timeout_s: float) -> dict[str, str]:
    """Wait until all hosts answer. Returns those that do not within the time, each with its problem."""
    began, pause_s = time.monotonic(), _FIRST_WAIT_S
    until = began + timeout_s + _LAST_ROUND_S
    problems = dict.fromkeys(hosts, "there was no time to ask it")
    absent = list(hosts)
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        while True:
            found = zip(absent, pool.map(lambda host: problem_of(host, port, until), absent), strict=True)
            problems.update((host, problem) for host, problem in found if problem is not None)
            absent = [host for host in absent if problems[host]]
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


def _interface_of(address: str) -> str:
    """Return the network interface whose first IPv4 address this is; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking, _ADDRESS_OF_INTERFACE, struct.pack("40s", os.fsencode(name)))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def _name_by_number(mpi: str, address: str) -> None:
    """See to it that hydra, which starts the ranks of MPICH and Intel MPI, gives its proxies a number for this pod.

    It would give them the name of the host. They obey whoever answers for that along the search path of their pods: a
    Service of the namespace, or a domain of the nodes. MPICH has the address on its command line.
    """
    try:
        socket.inet_pton(socket.AF_INET, address)
    except OSError:
        _fail(
            f"the address of this pod is {address or 'unknown'}, and MPICH and Intel MPI start ranks by IPv4 alone; use"
            " an image with Open MPI, or a target without MPI."
        )
    if mpi == "intel" and not os.environ.get("I_MPI_HYDRA_IFACE"):
        os.environ["I_MPI_HYDRA_IFACE"] = interface = _interface_of(address)
        if not interface:
            _fail(
                f"no network interface has {address} as its first address, by which the other pods reach this one; name"
                " the one to use with --env I_MPI_HYDRA_IFACE=NAME."
            )


def main(arguments: Sequence[str]) -> None:
    """Wait, then replace this process by the command.

    Exits with 3 if a host does not answer in time, the host file does not have those of the run, or the ranks would
    have to ask for this pod by a name.
    """
    host_file, copy, host, slots, nodes, port, timeout_s, mpi, *command = arguments
    # The first process of a container is not ended by a signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
    if mpi != "openmpi":
        _name_by_number(mpi, os.environ.get("SEATRIAL_POD_IP", ""))
    try:
        with open("/etc/resolv.conf", encoding="utf-8", errors="replace") as file:
            domain = domain_of(file.read())
    except OSError:
        domain = ""
    try:
        with open(copy, encoding="utf-8", errors="replace", newline="") as file:
            hosts = hosts_in(file.read(), host, slots, int(nodes), domain)
    except ValueError as error:
        _fail(
            f"{host_file} must have the {nodes} nodes of this run, from {host.format(0)}{slots} on, and {error}; see"
            " whether the operator is a release that is supported, and who may change its ConfigMap."
        )
    # A final dot: the resolver asks for the name once, and not along its search path, where another one may have it.
    names = {f"{host.format(node)}.{domain}." if domain else hosts[node]: hosts[node] for node in range(int(nodes))}
    # Variables of the operators, such as OMPI_MCA_orte_default_hostfile, name their file too.
    copied = {name: copy for name, value in os.environ.items() if value == host_file}
    os.environ.update(copied, MASTER_ADDR=next(iter(names)))
    problems = wait(list(names), int(port), float(timeout_s))
    if problems:
        name, problem = next(iter(problems.items()))
        _fail(
            f"{len(problems)} of {len(names)} nodes do not answer on port {port} after {float(timeout_s):.0f} s:"
            f" {names[name]} ({problem}); read the log of its pod."
        )
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.execvp(command[0], command)


def _fail(error: str) -> NoReturn:
    print(f"Error: {error}", file=sys.stderr, flush=True)
    sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1:])
