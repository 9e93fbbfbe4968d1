"""The networks of pods in the double of a cluster: namespaces of this machine, joined by one switch, as root."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from kubernetes.double.dns import ADDRESS
from kubernetes.double.store import Object

_LISTENS = "0A"


class Networks:
    """One switch, one end of it in each pod."""

    def __init__(self, tag: str) -> None:
        """``tag``: what all its namespaces begin with."""
        self._tag = tag
        self._switch = f"{tag}sw"
        self._places: dict[str, tuple[str, str]] = {}
        """By what has a network of its own: namespace and address."""
        self._rules: dict[str, str] = {}
        """By the same: what was last given to iptables."""
        _do("ip", "netns", "add", self._switch)
        _do("ip", "-n", self._switch, "link", "add", "br0", "type", "bridge")
        _do("ip", "-n", self._switch, "link", "set", "br0", "up")
        # Of the DNS server.
        _do("ip", "-n", self._switch, "addr", "add", f"{ADDRESS}/16", "dev", "br0")

    def address(self, pod: Object) -> str:
        """Of a pod, whose network is made at the first call."""
        who = _owner(pod)
        if who not in self._places:
            number = len(self._places) + 1
            namespace, address = f"{self._tag}p{number}", f"10.78.{number // 250}.{number % 250 + 2}"
            self._places[who] = namespace, address
            _do("ip", "netns", "add", namespace)
            peer = ["type", "veth", "peer", "name", "eth0", "netns", namespace]
            _do("ip", "-n", self._switch, "link", "add", f"p{number}", *peer)
            _do("ip", "-n", self._switch, "link", "set", f"p{number}", "master", "br0", "up")
            _do("ip", "-n", namespace, "addr", "add", f"{address}/16", "dev", "eth0")
            _do("ip", "-n", namespace, "link", "set", "eth0", "up")
            _do("ip", "-n", namespace, "link", "set", "lo", "up")
        return self._places[who][1]

    def file(self, pod: Object) -> str:
        """By which others enter the network of a pod."""
        return f"/run/netns/{self._places[_owner(pod)][0]}"

    @property
    def switch(self) -> Path:
        """The file of the namespace from which all pods can be reached."""
        return Path("/run/netns", self._switch)

    def filter(self, pod: Object, rules: str) -> None:
        """Hold back what the rules (of ``iptables-restore``) do not let pass; empty: nothing."""
        who = _owner(pod)
        if self._rules.get(who, "") != rules and not pod["spec"].get("hostNetwork"):
            self._rules[who] = rules
            text = rules or "*filter\nCOMMIT\n"
            command = ["nsenter", f"--net={self.file(pod)}", "iptables-restore", "-w", "5"]
            done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=20)
            assert done.returncode == 0, f"{text}{done.stderr}"

    def listens(self, pod: Object, port: int) -> bool:
        """Whether somebody listens at that port of the pod."""
        command = ["nsenter", f"--net={self.file(pod)}", "cat", "/proc/net/tcp", "/proc/net/tcp6"]
        lines = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.splitlines()
        fields = [line.split() for line in lines]
        return any(field[1].endswith(f":{port:04X}") and field[3] == _LISTENS for field in fields if len(field) > 3)

    def remove(self, pod: Object) -> None:
        """The network of a pod, if it has one of its own."""
        if not pod["spec"].get("hostNetwork"):
            self._remove(_owner(pod))

    def end(self) -> None:
        """All of them."""
        for who in self._places:
            self._remove(who)
        subprocess.run(["ip", "netns", "del", self._switch], capture_output=True, check=False, timeout=20)

    def _remove(self, who: str) -> None:
        place = self._places.get(who)
        if place is not None:
            subprocess.run(["ip", "netns", "del", place[0]], capture_output=True, check=False, timeout=20)


def _owner(pod: Object) -> str:
    """Pods in the network of their host share it."""
    return str(pod["spec"]["nodeName"] if pod["spec"].get("hostNetwork") else pod["metadata"]["uid"])


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr.strip()}"
