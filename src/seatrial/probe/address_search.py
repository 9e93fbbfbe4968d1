"""Where the first node or rank is: the addresses behind a name, asked for once a try and ever more rarely.

The name of a pod exists only some time after its start, and a DNS server remembers for 30 s that it did not (CoreDNS:
``cache 30``). So the first question comes late in a pod, and later ones are far apart: a thousand agents must not flood
the server. It goes to the full name with a final dot, and not through the search path of the pod, whose second entry,
svc.CLUSTER, would make RUN-0.RUN the Service RUN-0 of the namespace RUN: that may belong to somebody else.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from seatrial.probe import network
from seatrial.probe.names import is_loopback
from seatrial.resolver import query
from seatrial.util.text import and_list

_FIRST_QUERY_S = 1.0
"""From the start of a search in a pod to its first question: pods of one run begin up to 1.5 s apart."""
_SPREAD_S = 1.0
"""The nodes or ranks of one run ask spread over this time."""
_SPREAD_COUNT = 16
_PAUSE_S = 2.5
"""From the first question to the second. One question is two queries, A and AAAA."""
_PAUSE_GROWTH = 1.5
_MAX_PAUSE_S = 15.0
_ANSWER_S = 30.0
"""The default of the system's resolver for three servers that do not answer: 2 attempts of 5 s each."""
_FRESH_S = 15.0
"""Addresses are asked for again after this time: a pod that was made again has another one."""
_IN_CLUSTER = ".svc."
"""In the full name of each pod and Service."""
_UNKNOWN = (socket.EAI_NONAME, socket.EAI_NODATA)
"""Errors by which a resolver says that there is no such name, and not that it cannot tell."""
_TORCHRUN = "TORCHELASTIC_RUN_ID"
_MOST_NAMED = 2
_MOST_ADDRESSES = 8
"""Addresses of a name in each family that are tried: who answers for a DNS server may send thousands."""

HOSTS_FILE = "/etc/hosts"
Resolve = Callable[[str], Sequence[str]]
"""A function from a name to its addresses. Raises OSError for an unknown name."""


def in_pod(environ: Mapping[str, str]) -> bool:
    """Return whether this process runs in a pod."""
    return "KUBERNETES_SERVICE_HOST" in environ


def full_names(host: str, resolv_conf: str) -> tuple[str, ...]:
    """Return the names, in full and with a final dot, that a pod or Service may have: the first one that is known is
    meant. A name with a final dot is in full, and stays as it is.

    ``resolv_conf``: the text of /etc/resolv.conf in the pod. Its search path begins with NAMESPACE.svc.CLUSTER, and
    whoever wrote the pod may have added others (SERVICE.NAMESPACE.svc.CLUSTER). No other entry completes a name: others
    may own what svc.CLUSTER, or a domain of the node, leads to.
    """
    lines = [line.split() for line in resolv_conf.splitlines()]
    search = [word.strip(".") for word in next((words[1:] for words in reversed(lines) if words[:1] == ["search"]), [])]
    cluster = next((domain.partition(_IN_CLUSTER)[2] for domain in search if _IN_CLUSTER in domain), "")
    if not cluster or host.endswith(".") or is_address(host) or host == "localhost":
        return (host,)
    domains = [domain for domain in search if domain.endswith(f"{_IN_CLUSTER}{cluster}")]
    # Such a name is in full already. An entry without a dot may be the end of RUN-0.RUN.
    if any(host.endswith(f".{domain}") for domain in (f"svc.{cluster}", *search) if "." in domain):
        return (f"{host}.",)
    if host.endswith(".svc"):
        return (f"{host}.{cluster}.",)
    names = [f"{host}.{domain}." for domain in domains]
    namespaces = (domain.removesuffix(f"{_IN_CLUSTER}{cluster}") for domain in domains)
    if any(host.endswith(f".{namespace}") for namespace in namespaces):
        # A run may have the name of its namespace.
        names = [*(names if host.count(".") == 1 else ()), f"{host}.svc.{cluster}."]
    return tuple(dict.fromkeys(names))


def is_address(host: str) -> bool:
    """Return whether this is an address, perhaps with a scope, and no name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


class AddressSearch:
    """The addresses of one name. ``addresses`` never asks more often than the limits above allow."""

    def __init__(
        self,
        host: str,
        number: int,
        *,
        environ: Mapping[str, str],
        resolv_conf: str | None = None,
        hosts_file: str = HOSTS_FILE,
        resolve: Resolve | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``number``: that of this node or rank, by which they ask one after the other. ``resolv_conf``: the text of
        that file; None: that of this host. ``clock`` returns seconds."""
        pod = in_pod(environ)
        if resolv_conf is None:
            resolv_conf = _read("/etc/resolv.conf") if pod else ""
        # torchrun takes the name of the first host itself, which may be that of no pod, and has asked for it as it is.
        as_it_is = (host,) if not pod or _TORCHRUN in environ else ()
        self.names = tuple(dict.fromkeys([*(full_names(host, resolv_conf) if pod else ()), *as_it_is]))
        """The names that are asked for, until one is known."""
        self.error: OSError | None = None
        """Why there is no address, after the last question."""
        self._host, self._hosts_file = host, hosts_file if pod else ""
        self._clock = clock
        self._resolve = resolve or resolve_in_thread
        self._addresses: tuple[str, ...] = (host,) if is_address(host) else ()
        self._is_name = not self._addresses
        late_s = _FIRST_QUERY_S + _SPREAD_S * (number % _SPREAD_COUNT) / _SPREAD_COUNT
        self._ask_at = clock() + (late_s if pod and self._is_name else 0.0)
        self._pause_s = _PAUSE_S

    def addresses(self) -> tuple[str, ...]:
        """Return the first addresses of each family; empty while the name is unknown. Asks where it is time to."""
        if not self._is_name:
            return self._addresses
        if self._hosts_file and (found := _addresses_in(self._hosts_file, {self._host})):
            # The resolver of the system looks there first, too, and completes no name there.
            return _first_of_each_family(found)
        if self._clock() >= self._ask_at:
            try:
                self._addresses = _first_of_each_family(self._found())
                self.error = None
                self._ask_at = self._clock() + _FRESH_S
            except OSError as error:
                # An address that was right may still be.
                self.error = error
                self._ask_at = self._clock() + self._pause_s
                self._pause_s = min(_MAX_PAUSE_S, self._pause_s * _PAUSE_GROWTH)
        return self._addresses

    def _found(self) -> tuple[str, ...]:
        """Return the addresses of the first name that is known. Raises OSError."""
        unknown = OSError(f"{self._host} is no name")
        for name in self.names:
            try:
                found = tuple(dict.fromkeys(self._resolve(name)))
            except OSError as error:
                if error.errno not in _UNKNOWN:
                    raise
                unknown = error
                continue
            if self._hosts_file and _IN_CLUSTER in name:
                self._require_one_pod(name, found)
            return found
        raise unknown

    def _require_one_pod(self, name: str, addresses: Sequence[str]) -> None:
        """Forget the addresses and raise OSError where these are of several pods: one of them may pose as the first.

        A pod has one address of each family. One that was made again has its name for a while beside the old one.
        """
        for family in ("IPv4", "IPv6"):
            found = [address for address in addresses if (":" in address) == (family == "IPv6")]
            if len(found) > 1:
                self._addresses = ()
                among = " among them" if len(found) > _MOST_NAMED else ""
                raise OSError(
                    f"{name} has {len(found)} {family} addresses, {and_list(found[:_MOST_NAMED])}{among}, and a"
                    " pod has one; delete the pod that should not have that name, or set MASTER_ADDR to a name that"
                    " only the first pod has"
                )


def _first_of_each_family(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the first addresses of IPv4 and of IPv6 that are tried, in the order of the resolver."""
    first = {
        address
        for is_ipv6 in (False, True)
        for address in [one for one in addresses if (":" in one) == is_ipv6][:_MOST_ADDRESSES]
    }
    return tuple(address for address in addresses if address in first)


def resolve_in_thread(name: str, *, timeout_s: float | None = None) -> Sequence[str]:
    """Return the addresses of a name by one question, of the families that this host has. Raises OSError.

    ``timeout_s``: how long an answer is waited for; None, and at most: as long as a resolver takes by default.
    """
    within_s = _ANSWER_S if timeout_s is None else min(_ANSWER_S, timeout_s)
    found = query(name, None, timeout_s=within_s, flags=socket.AI_ADDRCONFIG)
    return [str(address[0]) for *_, address in found]


def address_of_this_node(host: str, environ: Mapping[str, str], *, hosts_file: str = HOSTS_FILE) -> str:
    """Return the address by which the others reach this node under ``host``, without a question to DNS in a pod.

    A pod that asks for its own name too early would have the absence remembered for all others. kubelet writes the
    name and the address of the pod into /etc/hosts.

    Debian maps the name of a host to 127.0.1.1 there, by which only the host itself reaches it.
    """
    if is_address(host):
        return _source_address(host) or host
    if host == "localhost":
        return "127.0.0.1"
    names = {host.rstrip("."), *([host.partition(".")[0]] if in_pod(environ) else [])}
    if address := _address_in(hosts_file, names):
        return address
    if not in_pod(environ):
        try:
            for address in resolve_in_thread(host):
                if (source := _source_address(address)) and not is_loopback(source):
                    return source
        except OSError:
            pass
    # Addresses of documentation (RFC 5737, RFC 3849): the default route leads there, and no packet leaves.
    if address := _source_address("192.0.2.1") or _source_address("2001:db8::1"):
        return address
    # A closed network may have no default route. In the network of its host a pod has the host's file and hostname.
    own_name = socket.gethostname()
    address = _address_in(hosts_file, {own_name, own_name.partition(".")[0]})
    return address or _address_of_interfaces() or "127.0.0.1"


def _address_in(hosts_file: str, names: Collection[str]) -> str:
    """Return the first address that has one of the names and is no loopback; empty without one."""
    return next((address for address in _addresses_in(hosts_file, names) if not is_loopback(address)), "")


def _addresses_in(hosts_file: str, names: Collection[str]) -> list[str]:
    """Return the addresses that have one of the names, in the order of the file."""
    found, wanted = list[str](), {name.lower() for name in names}
    for line in _read(hosts_file).splitlines():
        address, *named = line.partition("#")[0].lower().split() or [""]
        if not wanted.isdisjoint(named) and is_address(address):
            found.append(address)
    return found


def _address_of_interfaces() -> str:
    """Return the address of the first interface that works and is no loopback; empty without one."""
    for interface in network.interfaces() or ():
        if interface.usable and not interface.loopback and (address := network.address_of(interface.name)):
            return address
    return ""


def _source_address(address: str) -> str:
    """Return the address of this host on the route to another one; empty without a route. Sends no packet."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _read(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
