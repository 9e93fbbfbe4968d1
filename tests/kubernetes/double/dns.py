"""The DNS server of the double of a cluster: names of pods by headless Services, and a memory of absence.

As CoreDNS with the configuration of kubeadm (``kubernetes cluster.local``, ``ttl 30``, ``cache 30``), and not kinder:

- A name exists once the pod has an address and the server has heard of it (kubernetes-real.md, C: 0.5 to 2 s after the
  start of the sandbox), and where its Service wants it, once the pod is ready (pytorchjob, mpijob).
- Whoever asks before makes the server answer NXDOMAIN to everybody for as long as it keeps such answers: 30 s for
  CoreDNS (plugin cache, ``denial``), 5 s for NodeLocal DNSCache (``denial 9984 5`` of its manifest), which managed
  clusters often have, and which is the default here, since a test has a minute.
- Other names do not exist: no server is behind it.

It differs from DNS in one way: a name that several pods share has all of their addresses in the same order.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kubernetes.double.pods import World, is_ready
from kubernetes.double.store import Object

ADDRESS = "10.78.0.1"
DENIAL_S = 5.0
_KNOWN_S = 0.5
_DOMAIN = "svc.cluster.local"
_OF_NODES = "nodes.example.com"
"""The search domain of the machines, which comes before those of a pod: whoever answers there answers first."""
_PORT, _A, _IN, _TTL_S = 53, 1, 1, 30
_NO_NAME = 3
_NEWNET = 0x40000000
_HEADER = struct.Struct(">HHHHHH")

Zone = Mapping[str, Sequence[str]]
"""Name in lower case, without its final dot -> addresses."""


def resolv_conf(pod: Object) -> str:
    """As kubelet writes it for ClusterFirst, with ``dnsConfig`` of the pod (pkg/kubelet/network/dns, appendDNSConfig).

    Its domains come last, and of options with one name its own count.
    """
    told = pod["spec"].get("dnsConfig", {})
    first = [f"{pod['metadata']['namespace']}.{_DOMAIN}", _DOMAIN, "cluster.local", _OF_NODES]
    search = " ".join(dict.fromkeys([*first, *told.get("searches", ())]))
    options = {"ndots": "5", **{option["name"]: option.get("value", "") for option in told.get("options", ())}}
    words = " ".join(f"{name}:{value}" if value else name for name, value in options.items())
    return f"search {search}\nnameserver {ADDRESS}\noptions {words}\n"


def zone_of(world: World) -> Zone:
    """All names that exist now."""
    zone: dict[str, list[str]] = {}
    for service in world.store.each("Service"):
        told, metadata = service["spec"], service["metadata"]
        if told.get("clusterIP") != "None" or not told.get("selector"):
            continue
        name, namespace = metadata["name"], metadata["namespace"]
        for pod in world.store.each("Pod", namespace, told["selector"]):
            address = pod["status"].get("podIP")
            if address is None or pod["status"]["phase"] in ("Succeeded", "Failed"):
                continue
            if not (is_ready(pod) or told.get("publishNotReadyAddresses", False)):
                continue
            if world.first_seen(pod, "address") < _KNOWN_S:
                continue
            zone.setdefault(f"{name}.{namespace}.{_DOMAIN}", []).append(address)
            host = pod["spec"].get("hostname")
            if host and pod["spec"].get("subdomain") == name:
                zone.setdefault(f"{host}.{name}.{namespace}.{_DOMAIN}", []).append(address)
    return zone


class Names:
    """Answers from ``zone``, which the owner replaces, and the memory of the names that did not exist."""

    def __init__(self, *, denial_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.zone: Zone = {}
        self._denial_s, self._clock = denial_s, clock
        self._denied_until: dict[str, float] = {}

    def answer(self, query: bytes) -> bytes:
        """The answer to one question. Raises ValueError, IndexError or struct.error for what is none."""
        number, flags, count, *_ = _HEADER.unpack_from(query)
        if count != 1 or flags & 0x8000:
            raise ValueError("not one question")
        labels, place = [], _HEADER.size
        while length := query[place]:
            labels.append(query[place + 1 : place + 1 + length].decode("ascii"))
            place += 1 + length
        kind, _ = struct.unpack_from(">HH", query, place + 1)
        question = query[_HEADER.size : place + 5]
        addresses = self._addresses(".".join(labels).lower())
        records = [
            struct.pack(">HHHIH", 0xC00C, _A, _IN, _TTL_S, 4) + socket.inet_aton(address)
            for address in addresses or ()
            if kind == _A
        ]
        code = 0 if addresses else _NO_NAME
        # A response, authoritative, with the wish for recursion as it was asked.
        return (
            _HEADER.pack(number, 0x8480 | flags & 0x0100 | code, 1, len(records), 0, 0) + question + b"".join(records)
        )

    def _addresses(self, name: str) -> Sequence[str]:
        now = self._clock()
        if now < self._denied_until.get(name, 0.0):
            return ()
        found = self.zone.get(name, ())
        if not found:
            self._denied_until[name] = now + self._denial_s
        return found


class DnsServer:
    """A socket in a network namespace that has ADDRESS, and a thread that answers what comes there."""

    def __init__(self, namespace: Path, names: Names) -> None:
        """``namespace``: its file."""
        self._names = names
        self._socket = _bound_in(namespace)
        threading.Thread(target=self._serve, daemon=True).start()

    def end(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                query, sender = self._socket.recvfrom(4096)
            except OSError:
                return
            with contextlib.suppress(OSError, ValueError, IndexError, struct.error):
                self._socket.sendto(self._names.answer(query), sender)


def _bound_in(namespace: Path) -> socket.socket:
    """A socket that stays in a network namespace, which its thread enters to make it."""
    made: list[socket.socket] = []
    errors: list[OSError] = []

    def make() -> None:
        try:
            with open(namespace, "rb") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")
            server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            server.bind((ADDRESS, _PORT))
            made.append(server)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return made[0]
