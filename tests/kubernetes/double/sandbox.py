"""The interface between the kubelet of the double of a cluster and the sandbox that runs a container."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kubernetes.double.store import Object

PATH = "/double/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
PACKAGES = "/double/packages"
"""Where containers see torch."""


def programs(python: str) -> dict[str, str]:
    """What is in /double/bin of each container, by name: a Python that has torch, and what alpine has."""
    path = f'"${{PYTHONPATH:+$PYTHONPATH:}}{PACKAGES}"'
    return {
        "python3": f'#!/bin/sh\nPYTHONPATH={path} exec {python} "$@"\n',
        "nslookup": '#!/bin/sh\nexec getent hosts "$1"\n',
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A volume, and where a container sees it."""

    source: Path
    target: str
    read_only: bool
    memory_bytes: int | None = None
    """Of one that is in memory; then the source is only where it would be on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container, with everything resolved."""

    pod: Object
    name: str
    image: str
    hostname: str
    command: Sequence[str]
    environ: Mapping[str, str]
    folder: str
    """Where it starts."""
    mounts: Sequence[Mount]
    hosts_file: Path
    """Its /etc/hosts, which changes while it runs."""
    resolv_conf: str
    """The text of its /etc/resolv.conf."""
    scratch: Path
    """For the sandbox alone."""
    uid: int | None
    """None: the user of the image."""
    gid: int | None
    groups: Sequence[int]
    drops_capabilities: bool
    may_escalate: bool
    read_only_root: bool
    memory_bytes: int | None
    """None: as much as there is."""


class Sandbox(Protocol):
    """Namespaces of this machine, or containers."""

    image_uid: int
    """Of the user as whom images run, where a pod names none."""

    def start(self, container: Container) -> subprocess.Popen[bytes]:
        """Its output comes through the pipes ``stdout`` and ``stderr``."""

    def terminate(self, process: subprocess.Popen[bytes]) -> None:
        """SIGTERM to the first process of the container."""

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """All of it, at once."""

    def was_out_of_memory(self, process: subprocess.Popen[bytes]) -> bool:
        """Of a container that has ended: whether it needed more than it may."""

    def end(self) -> None:
        """Nothing of it is left."""
