"""Hosts to test on: network namespaces with names, addresses, /etc and a separate sshd for each, gone whatever happens.

    node0 -- 10.77.0.10   \\
    node1 -- 10.77.0.11    +-- a bridge in a separate namespace; nothing is made in the one of this machine
    ...                   /

All run as the same user without rights, whose home they share, with its key and the known hosts. They share the disk,
the cores and /dev/shm of this machine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import seatrial

UID = 10001
SSH_PORT = 2222
_CARRIED = ("SEATRIAL_TEST_RUN", "PYTHONDONTWRITEBYTECODE", "LANG")
_READY_S = 10.0

# One bind of a whole /etc: binds of single files are dropped when a package on the machine renames them.
_ENTER = """
name=$1 etc=$2; shift 2
printf %s "$name" >/proc/sys/kernel/hostname  # the command refuses an underscore
mount -t overlay overlay -o lowerdir="$etc:/etc" /etc
exec "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One of them."""

    number: int
    name: str
    called: str
    """The name that it gives itself."""
    address: str
    namespace: str
    cable: str
    """Its end at the switch."""
    switch: str
    etc: Path
    """Its own files of /etc, as whoever enters it next sees them."""
    home: Path
    environ: Mapping[str, str]

    def argv(self, *command: str, root: bool = False) -> list[str]:
        """What runs a command on it, in the home of its user; with all rights of this machine's root if asked to."""
        drop = ["setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups", "--no-new-privs", "--"]
        environ = ["env", "-i", "-C", str(self.home), *(f"{name}={value}" for name, value in self.environ.items())]
        enter = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--uts", "--mount"]
        enter += ["sh", "-c", _ENTER, "sh", self.called, str(self.etc)]
        return [*enter, *([] if root else drop), *environ, *command]

    def run(self, *command: str, timeout_s: float = 50.0, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on it to its end."""
        return subprocess.run(
            self.argv(*command), capture_output=True, text=True, timeout=timeout_s, check=False, **options
        )

    def ip(self, *words: str) -> None:
        """``ip`` inside of it: ``link set eth0 mtu 1400``."""
        _do("ip", "-n", self.namespace, *words)

    def limit(self, rate: str) -> None:
        """Limit the rate at which it sends: ``100mbit``."""
        words = ["qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "128kb", "latency", "100ms"]
        _do("tc", "-n", self.namespace, *words)

    def unlimit(self) -> None:
        """Remove the limit of the rate."""
        _do("tc", "-n", self.namespace, "qdisc", "del", "dev", "eth0", "root")

    def join_network(self, address: str) -> None:
        """Another interface, with an address such as ``10.88.0.11/24``."""
        peer = ["type", "veth", "peer", "name", "eth1", "netns", self.namespace]
        _do("ip", "-n", self.switch, "link", "add", f"{self.cable}x", *peer)
        _do("ip", "-n", self.switch, "link", "set", f"{self.cable}x", "master", "br0", "up")
        self.ip("addr", "add", address, "dev", "eth1")
        self.ip("link", "set", "eth1", "up")

    def pull_cable(self) -> None:
        """At the switch: the host itself sees nothing but silence."""
        _do("ip", "-n", self.switch, "link", "set", self.cable, "down")

    def plug_cable(self) -> None:
        """Undo ``pull_cable``."""
        _do("ip", "-n", self.switch, "link", "set", self.cable, "up")

    def firewall(self, *rule: str) -> None:
        """A rule of iptables inside of it: ``-A INPUT -p tcp --dport 80 -j REJECT``."""
        _do("nsenter", f"--net=/run/netns/{self.namespace}", "iptables", *rule)

    def ipv6_firewall(self, *rule: str) -> None:
        """The same of ip6tables."""
        _do("nsenter", f"--net=/run/netns/{self.namespace}", "ip6tables", *rule)

    def processes(self) -> list[int]:
        """The process ids of all that runs on it."""
        done = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False)
        return [int(word) for word in done.stdout.split()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Some hosts that reach one another by name, address and ssh."""

    folder: Path
    """All of them, and this test, can read and write here; temporary files of theirs are in ``tmp``."""
    each: Sequence[Host]
    python: Path
    """An interpreter that their user may start and that has torch, but not seatrial. It is their ``python3``, too."""

    def __iter__(self) -> Iterator[Host]:
        return iter(self.each)

    def __getitem__(self, number: int) -> Host:
        return self.each[number]

    def seatrial(self, *words: str) -> list[str]:
        """The command, as of an installation on them that only the controller uses."""
        return [str(self.folder / "bin" / "seatrial"), *words]


@pytest.fixture
def hosts() -> Iterator[Callable[..., Hosts]]:
    """Call it with how many hosts are needed, and what all of them, or these, call themselves if not node0, node1, ...;
    once a test."""
    with contextlib.ExitStack() as stack:
        yield lambda count, called="": stack.enter_context(made_hosts(count, called))


@contextlib.contextmanager
def made_hosts(count: int, called: str | Mapping[int, str] = "") -> Iterator[Hosts]:
    """Make this number of hosts, for as long as the block lasts.

    ``called``: what all of them call themselves, or some, by number.
    """
    names = dict.fromkeys(range(count), called) if isinstance(called, str) else called
    tag = f"st{os.getpid()}"
    folder = Path(tempfile.mkdtemp(prefix=f"{tag}-", dir="/tmp"))
    each: list[Host] = []
    sshds: list[subprocess.Popen[bytes]] = []
    try:
        folder.chmod(0o755)
        (folder / "tmp").mkdir()
        (folder / "tmp").chmod(0o1777)
        python = _python(folder)
        _write_commands(folder, python)
        home = _home(folder)
        _do("ip", "netns", "add", f"{tag}sw")
        _do("ip", "-n", f"{tag}sw", "link", "add", "br0", "type", "bridge")
        _do("ip", "-n", f"{tag}sw", "link", "set", "br0", "up")
        for number in range(count):
            each.append(
                Host(
                    number=number,
                    name=f"node{number}",
                    called=names.get(number) or f"node{number}",
                    address=f"10.77.0.{10 + number}",
                    namespace=f"{tag}n{number}",
                    cable=f"p{number}",
                    switch=f"{tag}sw",
                    etc=folder / f"etc{number}",
                    home=home,
                    environ=_environ(home, folder),
                )
            )
        for host in each:
            _wire(host)
            _write_etc(host, each)
            sshds.append(_start_sshd(host, folder))
        _do("chown", "-R", f"{UID}:{UID}", str(home))
        _await_sshds(each)
        yield Hosts(folder=folder, each=each, python=python)
    finally:
        _end(each, sshds, f"{tag}sw")
        shutil.rmtree(folder, ignore_errors=True)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr.strip()}"


def _environ(home: Path, folder: Path) -> dict[str, str]:
    """The environment of a fresh login, and the variable by which leftover processes are found."""
    carried = {name: os.environ[name] for name in _CARRIED if name in os.environ}
    return {
        "HOME": str(home),
        "USER": "runner",
        "LOGNAME": "runner",
        "PATH": f"{folder}/bin:/usr/bin:/bin:/usr/sbin",
        "TMPDIR": f"{folder}/tmp",
        **carried,
    }


def _python(folder: Path) -> Path:
    """Skips the test where the user of the hosts can start none that has torch."""
    python, packages = python_of_anybody()
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{packages}" exec {python} "$@"\n')
    script.chmod(0o755)
    return script


@functools.cache
def python_of_anybody() -> tuple[str, Path]:
    """An interpreter that a user without rights may start, and the folder where it finds torch. Skips without one."""
    packages = next(path for path in map(Path, sys.path) if (path / "torch").is_dir())
    same = f"import sys, torch; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    for python in (sys.executable, "/usr/bin/python3"):
        drop = ["setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups", "--no-new-privs"]
        words = [*drop, "env", f"PYTHONPATH={packages}", python, "-c", same]
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return python, packages
    pytest.skip("no Python that another user may start has torch")


def _write_commands(folder: Path, python: Path) -> None:
    """The words of the command that their user types."""
    source = Path(seatrial.__file__).parents[1]
    commands = folder / "bin"
    commands.mkdir()
    (commands / "python3").symlink_to(python)
    (commands / "seatrial").write_text(f'#!/bin/sh\nPYTHONPATH={source} exec {python} -m seatrial "$@"\n')
    (commands / "seatrial").chmod(0o755)


def _home(folder: Path) -> Path:
    home = folder / "home"
    ssh = home / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ssh / "id_ed25519"))
    shutil.copy(ssh / "id_ed25519.pub", ssh / "authorized_keys")
    (ssh / "config").write_text(f"Host node*\n  Port {SSH_PORT}\n")
    return home


def _wire(host: Host) -> None:
    _do("ip", "netns", "add", host.namespace)
    peer = ["type", "veth", "peer", "name", "eth0", "netns", host.namespace]
    _do("ip", "-n", host.switch, "link", "add", host.cable, *peer)
    _do("ip", "-n", host.switch, "link", "set", host.cable, "master", "br0", "up")
    host.ip("addr", "add", f"{host.address}/24", "dev", "eth0")
    host.ip("link", "set", "eth0", "up")
    host.ip("link", "set", "lo", "up")


def _write_etc(host: Host, each: Sequence[Host]) -> None:
    host.etc.mkdir()
    known = ["127.0.0.1 localhost", *(f"{other.address} {other.name}" for other in each)]
    known += [f"{host.address} {host.called}"] if host.called != host.name else []
    (host.etc / "hosts").write_text("\n".join(known) + "\n")
    (host.etc / "resolv.conf").write_text("")
    (host.etc / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\nrunner:x:{UID}:{UID}::{host.home}:/bin/bash\n")
    (host.etc / "group").write_text(f"root:x:0:\nrunner:x:{UID}:\n")


def _start_sshd(host: Host, folder: Path) -> subprocess.Popen[bytes]:
    key = host.home / f"hostkey{host.number}"
    _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    with open(host.home / ".ssh" / "known_hosts", "a") as known:
        known.write(f"[{host.name}]:{SSH_PORT} {' '.join(key.with_suffix('.pub').read_text().split()[:2])}\n")
    config = folder / f"sshd{host.number}.conf"
    lines = [
        f"Port {SSH_PORT}",
        f"ListenAddress {host.address}",
        "ListenAddress ::",
        f"HostKey {key}",
        "PidFile none",
        "UsePAM no",
        "StrictModes no",
        "PasswordAuthentication no",
        "AuthorizedKeysFile .ssh/authorized_keys",
        "MaxStartups 256",
        # sshd passes on no variable of the test run without SetEnv. One line: sshd obeys only the first.
        " ".join(
            [
                "SetEnv",
                *(f"{name}={host.environ[name]}" for name in ("PATH", "TMPDIR", *_CARRIED) if name in host.environ),
            ]
        ),
    ]
    config.write_text("\n".join(lines) + "\n")
    _do("chown", f"{UID}:{UID}", str(key), str(folder / "home"))
    with open(folder / f"sshd{host.number}.log", "ab") as log:
        return subprocess.Popen(
            host.argv("/usr/sbin/sshd", "-D", "-e", "-f", str(config)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _await_sshds(each: Sequence[Host]) -> None:
    until = time.monotonic() + _READY_S
    for host in each:
        while f":{SSH_PORT:04X} " not in _listening(host):
            assert time.monotonic() < until, f"{host.name}: sshd does not listen"
            time.sleep(0.02)


def _listening(host: Host) -> str:
    command = ["nsenter", f"--net=/run/netns/{host.namespace}", "cat", "/proc/net/tcp"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return "\n".join(line for line in lines if " 0A " in line)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _end(each: Sequence[Host], sshds: Sequence[subprocess.Popen[bytes]], switch: str) -> None:
    until = time.monotonic() + 5
    while running := [pid for host in each for pid in host.processes() if _lives(pid)]:
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    for sshd in sshds:
        sshd.wait(timeout=5)
    for namespace in [*(host.namespace for host in each), switch]:
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
