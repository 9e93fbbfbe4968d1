"""Parser of ``--hosts a,me@b:4`` and of hostfiles in the syntax of Open MPI and MPICH or with a plain name per line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.errors import RequestError
from seatrial.files import read_input
from seatrial.targets.option import Option, duration_s

HOSTS = Option(
    flags=("--hosts",),
    name="hosts",
    help="Hosts, comma-separated; add :M for a different number of processes (a,b:4); repeatable.",
    metavar="HOST[:M],..",
    is_list=True,
)
HOSTFILE = Option(
    flags=("--hostfile",),
    name="hostfile",
    help="File with one host per line: HOST, HOST slots=M or HOST:M.",
    type=Path,
    metavar="FILE",
)
MIN_HOSTS = Option(
    flags=("--min-hosts",),
    name="min_hosts",
    help="Start once K hosts are ready and leave out the others; a PASS is then partial.",
    type=int,
    metavar="K",
)
QUEUE_TIMEOUT = Option(
    flags=("--queue-timeout",),
    name="queue_timeout",
    help="Cancel a job that has not started after this time. Default: 24h.",
    type=duration_s,
    default=86_400.0,
    metavar="TIME",
)

_MAX_BYTES = 1 << 20
_MAX_NODES = 8192
_NAME = "[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
# An IPv6 address is in brackets, because a colon precedes the number of processes.
_HOST = rf"(?:(?P<user>{_NAME})@)?(?:(?P<name>{_NAME})|\[(?P<v6>[0-9A-Fa-f:.]+)\])(?::(?P<slots>[0-9]+))?"
_KEYS = {"slots": "slots", "max_slots": "", "max-slots": "", "user": "user", "port": "port"}
"""Key after a host in a file -> field of Host; empty: a key of Open MPI that is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One entry of the list."""

    name: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    """Most processes on this host; None: the entry has no number."""

    @property
    def at(self) -> tuple[str, str | None, int | None]:
        """The part that identifies the machine: name, user, port."""
        return self.name, self.user, self.port


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node, which may share its host with other nodes."""

    host: Host
    index: int
    """Number of the node among the nodes on its host, from 0."""
    here: int
    """Number of nodes on its host."""
    slots: int | None
    """Its share of the slots of its host; None: the host has no number."""


def hosts_of(hosts: str | None, hostfile: Path | None) -> tuple[Host, ...]:
    """Return the entries in their order. Raises RequestError for an entry that cannot be parsed, with its line."""
    if hosts is not None and hostfile is not None:
        raise RequestError("--hosts and --hostfile both name the hosts; give one of them.")
    if hosts is not None and not hosts.strip():
        raise RequestError("--hosts '' names no host; write --hosts a,b.")
    if hosts is not None:
        return tuple(_parse_host(word.strip(), f"--hosts {hosts}") for word in hosts.split(","))
    if hostfile is None:
        raise RequestError("the hosts are missing; add --hosts a,b or --hostfile FILE.")
    try:
        content = read_input(hostfile, _MAX_BYTES)
    except OSError as error:
        raise RequestError(
            f"--hostfile {hostfile} cannot be read ({error.strerror or error}); name another file."
        ) from error
    if len(content) > _MAX_BYTES:
        raise RequestError(
            f"--hostfile {hostfile}: larger than {_MAX_BYTES >> 20} MiB, so it is no list of hosts; name another file."
        )
    entries = tuple(_parse_lines(content.decode(errors="replace"), str(hostfile)))
    if not entries:
        raise RequestError(f"--hostfile {hostfile}: the file names no host.")
    return entries


def _parse_lines(text: str, file: str) -> Iterator[Host]:
    for number, line in enumerate(text.splitlines(), 1):
        first, *rest = line.partition("#")[0].split() or [""]
        if first:
            yield _with_keys(_parse_host(first, f"{file}, line {number}"), rest, f"{file}, line {number}")


def _parse_host(word: str, origin: str) -> Host:
    match = re.fullmatch(_HOST, word)
    if match is None or len(word) > 255:
        raise RequestError(f"{origin}: {word!r} is no host; write HOST, USER@HOST, HOST:M or [IPV6]:M.")
    slots = None if match["slots"] is None else _parse_number(match["slots"], f"{origin}: {word}")
    return Host(name=match["name"] or match["v6"], user=match["user"], slots=slots)


def _with_keys(host: Host, words: Sequence[str], origin: str) -> Host:
    fields = {"user": host.user, "slots": host.slots, "port": host.port}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in _KEYS:
            raise RequestError(f"{origin}: {word!r} is unknown; after a host write slots=M, user=NAME or port=P.")
        name = _KEYS[key]
        if name and fields[name] is not None:
            raise RequestError(f"{origin}: {name} of {host.name} is given twice; give it once.")
        if name == "user":
            if not re.fullmatch(_NAME, value):
                raise RequestError(f"{origin}: user={value!r} is no user name.")
            fields["user"] = value
        elif name:
            fields[name] = _parse_number(value, f"{origin}: {word}")
    return Host(name=host.name, **fields)  # type: ignore[arg-type]  # each value has the type of its field


def _parse_number(word: str, what: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", word) or not 0 < int(word) <= 65535:
        raise RequestError(f"{what}: write a number from 1 to 65535.")
    return int(word)


def nodes_on(hosts: Sequence[Host], nodes: int | None) -> tuple[Node, ...]:
    """Return one node for each host, or ``nodes`` nodes: one on each of the first hosts, or several on each host.

    A host that is listed twice gets two nodes. Raises RequestError for a number of nodes that does not fit the hosts.
    """
    node_count = len(hosts) if nodes is None else nodes
    if not 1 <= node_count <= _MAX_NODES:
        raise RequestError(f"--nodes {node_count}: give a number from 1 to {_MAX_NODES}.")
    if node_count > len(hosts) and node_count % len(hosts):
        raise RequestError(
            f"--nodes {node_count} is no multiple of the {len(hosts)} hosts; give one, or name fewer hosts."
        )
    nodes_per_host = max(1, node_count // len(hosts))
    spread = [host for host in hosts[:node_count] for _ in range(nodes_per_host)]
    machines = [host.at for host in spread]
    return tuple(
        Node(
            host=host,
            index=machines[:number].count(machine),
            here=machines.count(machine),
            slots=None if host.slots is None else host.slots // nodes_per_host,
        )
        for number, (host, machine) in enumerate(zip(spread, machines, strict=True))
    )


def processes_of_each(nodes: Sequence[Node], requested: int | None) -> int | None:
    """Return the number of processes of every node: ``requested``, or the slots of the nodes; None: neither is given.

    Raises RequestError for too few slots, or different slots without ``requested``.
    """
    for node in nodes:
        if node.slots is not None and node.slots < (requested or 1):
            raise RequestError(
                f"{node.host.name} has {node.slots} slots for each of its nodes, too few for {requested or 1}"
                " processes; request fewer with --nproc-per-node or --nodes, or correct the slots."
            )
    slots_by_host = {node.host.name: node.slots for node in nodes}
    if requested is None and len(set(slots_by_host.values())) > 1:
        words = ", ".join(f"{name}: {slots or 'none given'}" for name, slots in list(slots_by_host.items())[:4])
        raise RequestError(
            f"the hosts have different slots ({words}), but all nodes get the same number of processes; set it with"
            " --nproc-per-node."
        )
    return requested if requested is not None else nodes[0].slots


def queue_timeout_s(own: Mapping[str, Any]) -> float:
    """Return the value of ``--queue-timeout``. Raises RequestError unless it is positive and finite."""
    timeout_s: float = own["queue_timeout"]
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise RequestError(f"--queue-timeout {timeout_s:g}: expected a time above 0, such as 90s, 5m or 2h.")
    return timeout_s
