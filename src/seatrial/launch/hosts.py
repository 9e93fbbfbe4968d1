"""Hosts as people write them: ``--hosts a,me@b:4`` and hostfiles as Open MPI, MPICH and plain lists have them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.errors import RequestError
from seatrial.launch.option import Option

__all__ = [
    "HOSTFILE",
    "HOSTS",
    "MIN_HOSTS",
    "QUEUE_TIMEOUT",
    "Host",
    "Node",
    "hosts_of",
    "nodes_on",
    "processes_of_each",
    "queue_timeout_s",
]

HOSTS = Option(
    flags=("--hosts",),
    name="hosts",
    help="The hosts, each with its processes if not all have the same: a,b:4.",
    metavar="HOST[:M],..",
)
HOSTFILE = Option(
    flags=("--hostfile",),
    name="hostfile",
    help="A file with a host a line: HOST, HOST slots=M, HOST:M.",
    type=Path,
    metavar="FILE",
)
MIN_HOSTS = Option(
    flags=("--min-hosts",),
    name="min_hosts",
    help="Go on without the hosts that do not come while K have; a PASS is then partial.",
    type=int,
    metavar="K",
)
QUEUE_TIMEOUT = Option(
    flags=("--queue-timeout",),
    name="queue_timeout",
    help="Cancel a job that has not started by then; default: 86400.",
    type=float,
    default=86_400.0,
    metavar="SECONDS",
)

_MOST_BYTES = 1 << 20
_MOST_NODES = 8192
_WORD = "[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
# An address of version 6 stands in brackets where processes follow.
_HOST = re.compile(rf"(?:(?P<user>{_WORD})@)?(?:(?P<name>{_WORD})|\[(?P<v6>[0-9A-Fa-f:.]+)\])(?::(?P<slots>[0-9]+))?")
_KEYS = {"slots": "slots", "max_slots": "", "max-slots": "", "user": "user", "port": "port"}
"""What may follow a host in a file; that which Open MPI alone has use for is read over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One entry, as it was written."""

    name: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    """How many processes it may have; None: it was not said."""

    @property
    def at(self) -> tuple[str, str | None, int | None]:
        """What tells machines apart."""
        return self.name, self.user, self.port


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node, which may share its host with others."""

    host: Host
    index: int
    """Which of the nodes on its host it is."""
    here: int
    """How many nodes are on its host."""
    slots: int | None
    """Its share of those of its host."""


def hosts_of(hosts: str | None, hostfile: Path | None) -> tuple[Host, ...]:
    """The entries in their order. Raises RequestError for what cannot be read, with the line where it stands."""
    if hosts is not None and hostfile is not None:
        raise RequestError("--hosts and --hostfile say the same thing twice; give one of them.")
    if hosts is not None:
        return tuple(_host(word.strip(), f"--hosts {hosts}") for word in hosts.split(","))
    if hostfile is None:
        raise RequestError("name the hosts: --hosts a,b or --hostfile FILE.")
    try:
        with open(hostfile, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise RequestError(f"--hostfile {hostfile}: it cannot be read ({error.strerror or error}).") from error
    if len(content) > _MOST_BYTES:
        raise RequestError(f"--hostfile {hostfile}: larger than {_MOST_BYTES >> 20} MiB; that is no list of hosts.")
    found = tuple(_of_lines(content.decode(errors="replace"), str(hostfile)))
    if not found:
        raise RequestError(f"--hostfile {hostfile}: no host stands in it.")
    return found


def _of_lines(text: str, file: str) -> Iterator[Host]:
    for number, line in enumerate(text.splitlines(), 1):
        first, *rest = line.partition("#")[0].split() or [""]
        if first:
            yield _with_keys(_host(first, f"{file}, line {number}"), rest, f"{file}, line {number}")


def _host(word: str, origin: str) -> Host:
    told = _HOST.fullmatch(word)
    if told is None or len(word) > 255:
        raise RequestError(f"{origin}: {word!r} is no host; HOST, USER@HOST, HOST:PROCESSES or [ADDRESS]:PROCESSES.")
    slots = None if told["slots"] is None else _count(told["slots"], f"{origin}: {word}")
    return Host(name=told["name"] or told["v6"], user=told["user"], slots=slots)


def _with_keys(host: Host, words: Sequence[str], origin: str) -> Host:
    told = {"user": host.user, "slots": host.slots, "port": host.port}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in _KEYS:
            raise RequestError(
                f"{origin}: {word!r} is not understood; slots=M, user=NAME and port=P may follow a host."
            )
        name = _KEYS[key]
        if name and told[name] is not None:
            raise RequestError(f"{origin}: {name} of {host.name} is said twice.")
        if name == "user":
            if not re.fullmatch(_WORD, value):
                raise RequestError(f"{origin}: user={value!r} is no name of a user.")
            told["user"] = value
        elif name:
            told[name] = _count(value, f"{origin}: {word}")
    return Host(name=host.name, **told)  # type: ignore[arg-type]  # each has the type of its key


def _count(word: str, what: str) -> int:
    if not word.isascii() or not word.isdigit() or not 0 < int(word[:9]) <= 65535:
        raise RequestError(f"{what}: a number from 1 to 65535 is expected.")
    return int(word)


def nodes_on(hosts: Sequence[Host], nodes: int | None) -> tuple[Node, ...]:
    """A node for each entry, or ``nodes`` of them: on the first hosts, or several on each. Raises RequestError.

    A host that stands there twice gets two nodes.
    """
    wanted = len(hosts) if nodes is None else nodes
    if not 1 <= wanted <= _MOST_NODES:
        raise RequestError(f"--nodes {wanted}: from 1 to {_MOST_NODES} are possible.")
    if wanted > len(hosts) and wanted % len(hosts):
        raise RequestError(f"--nodes {wanted} on {len(hosts)} hosts: they do not share them evenly.")
    times = max(1, wanted // len(hosts))
    spread = [host for host in hosts[:wanted] for _ in range(times)]
    places = [host.at for host in spread]
    return tuple(
        Node(
            host=host,
            index=places[:number].count(place),
            here=places.count(place),
            slots=None if host.slots is None else host.slots // times,
        )
        for number, (host, place) in enumerate(zip(spread, places, strict=True))
    )


def processes_of_each(nodes: Sequence[Node], asked: int | None) -> int | None:
    """Of every node, by what was asked for and the slots of the hosts; None: neither says. Raises RequestError."""
    for node in nodes:
        if node.slots is not None and node.slots < (asked or 1):
            raise RequestError(
                f"{node.host.name} has {node.slots} slots for each of its nodes, too few for {asked or 1} processes;"
                " ask for fewer with --nproc-per-node or --nodes, or correct the slots."
            )
    told = {node.host.name: node.slots for node in nodes}
    if asked is None and len(set(told.values())) > 1:
        words = ", ".join(f"{name}: {slots or 'not said'}" for name, slots in list(told.items())[:4])
        raise RequestError(
            f"the hosts have different slots ({words}), and all nodes get the same number of processes; say which with"
            " --nproc-per-node."
        )
    return asked if asked is not None else nodes[0].slots


def queue_timeout_s(own: Mapping[str, Any]) -> float:
    """Of ``--queue-timeout``. Raises RequestError for what is no time."""
    told: float = own["queue_timeout"]
    if not (math.isfinite(told) and told > 0):
        raise RequestError(f"--queue-timeout {told}: a positive number of seconds is expected.")
    return told
