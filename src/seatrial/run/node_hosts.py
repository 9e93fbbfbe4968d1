"""The host of each node that connects by itself, from Slurm's layout of the step or the names of pods.

The answers may take seconds and may come only after the ranks have started. So they are asked for in a thread, once
all agents have joined, and the addresses of the agents are compared with them afterwards.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from seatrial.errors import SeatrialError
from seatrial.probe.address_search import full_names, in_pod
from seatrial.run.external_launcher import Rendezvous
from seatrial.run.host_addresses import addresses_of
from seatrial.targets.host_of_node import HostOfNode, HostsMissingError
from seatrial.targets.slurm.node_list import hosts_of_step

_LAST_WAIT_S = 10.0
"""A short trial ends before the answers have come."""
_LOOKUPS_AT_ONCE = 8
"""The pods of a whole run share the DNS of their cluster with others."""
_LOOKUPS_S = 60.0
"""Python waits for lookups before it ends, so that thousands of names without an answer must not follow one another."""
_RESOLV_CONF = "/etc/resolv.conf"


@dataclass(frozen=True, slots=True)
class FoundHosts:
    """Where nodes are, by their numbers, as far as that is known."""

    addresses: Mapping[int, Collection[str]] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)
    """The names that the commands of the launcher take."""
    problem: str = ""
    """Why they are not known, and what to do, as a sentence; empty where nothing more is known of that."""
    needs_run: bool = False
    """The problem is one only if all agents were still connected when it was found."""


class HostSearch:
    """Asks where each node is, once."""

    def __init__(self, hosts: Callable[[], Sequence[HostOfNode] | None], nodes: int) -> None:
        """``hosts``: as ``Driver.hosts``; it is called in a thread. ``nodes``: the number of nodes."""
        self._hosts, self._nodes = hosts, nodes
        self._found: list[FoundHosts | None] = []
        """The answers so far; a later one has all of an earlier one."""
        self._has_all = False
        self._are_all_there = False
        self._ran_on: bool | None = None
        """Whether all nodes were still connected when the first answer was there. None: it was not looked at yet."""
        self._thread: threading.Thread | None = None

    def begin(self, members: Collection[int], connected: Collection[int]) -> None:
        """Ask, unless that was done or nodes are missing; one that has left again joined, too. Never waits.

        Called again and again. ``connected``: the nodes whose agents are connected now.
        """
        if self._found and self._ran_on is None:
            self._ran_on = len(connected) == self._nodes
        self._are_all_there = self._are_all_there or len(members) == self._nodes
        if self._thread is None and self._are_all_there:
            thread = threading.Thread(target=self._search, name="hosts", daemon=True)
            with contextlib.suppress(RuntimeError):  # this user has no process left: the next call tries again
                thread.start()
                self._thread = thread

    def end(self, *, waits: bool) -> FoundHosts | None:
        """Return what was found, after at most 10 s, or at once.

        Names do not wait for addresses. None: not all nodes joined, there is nobody to ask, or, at once, the answer is
        not there. Where no process was ever left to ask several nodes, nothing is known of them.
        """
        if self._thread is None:
            return FoundHosts() if waits and self._are_all_there and self._nodes > 1 else None
        self._thread.join(_LAST_WAIT_S if waits else 0.0)
        if not self._found and not waits:
            return None
        found = self._found[-1] if self._found else FoundHosts()
        return FoundHosts() if found is not None and found.needs_run and not self._ran_on else found

    @property
    def is_pending(self) -> bool:
        """Return whether all nodes joined and an answer, the addresses among it, is not there."""
        return self._are_all_there and not self._has_all

    def _search(self) -> None:
        for found in self._answers():
            self._found.append(found)
        self._has_all = True

    def _answers(self) -> Iterator[FoundHosts | None]:
        try:
            hosts = self._hosts()
        except SeatrialError as error:
            yield FoundHosts(problem=str(error), needs_run=isinstance(error, HostsMissingError))
            return
        if hosts is None:
            yield None
            return
        if len(hosts) != self._nodes:  # they belong to something else
            hosts = ()
        found = FoundHosts(names={node: host.name for node, host in enumerate(hosts) if host.name})
        yield found
        addresses = addresses_of([host.address for host in hosts], at_once=_LOOKUPS_AT_ONCE, within_s=_LOOKUPS_S)
        yield replace(found, addresses=addresses)


def hosts_of_others(rendezvous: Rendezvous, environ: Mapping[str, str]) -> Sequence[HostOfNode] | None:
    """Return the host of each agent that another launcher started, empty without an answer; None: nobody can tell."""
    if rendezvous.launcher == "slurm":
        return hosts_of_step(f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}")
    if not (rendezvous.is_of_nodes and in_pod(environ)):
        return None
    try:
        resolv_conf = Path(_RESOLV_CONF).read_text(errors="replace")
    except OSError:
        resolv_conf = ""
    return [HostOfNode(full_names(name, resolv_conf)[0]) for name in names_of_pods(rendezvous.host, rendezvous.agents)]


def names_of_pods(first: str, nodes: int) -> list[str]:
    """Return the name of each node's pod, given that of the first one; none where it has no number.

    Pods are counted from 0. Where a master has workers beside it, these are counted for themselves, and the names have
    no domain; other names have one, and may end in ``-master`` before their number.
    """
    if master := re.fullmatch(r"([a-z0-9-]*)-master-0", first):
        return [first, *(f"{master[1]}-worker-{number}" for number in range(nodes - 1))]
    found = re.fullmatch(r"([a-z0-9.-]*?)-0((?:\.[a-z0-9.-]+)?)", first)
    return [first, *(f"{found[1]}-{node}{found[2]}" for node in range(1, nodes))] if found else []
