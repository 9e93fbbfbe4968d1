"""All that looks up names, each with a short limit; and a name server that leaves each question open.

    unshare --net --mount python unanswered_names.py

That asks such a server, and says what each one does then.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from seatrial import resolver
from seatrial.agent import agent_main
from seatrial.probe import address_search, names
from seatrial.run.host_addresses import addresses_of
from seatrial.targets import remote_defaults
from seatrial.targets.kubernetes.manifest import wait_for_hosts
from seatrial.training.data.transfer import transfer

NAME = "node-1.example"
_LIMITS = {
    "agent.agent_main": ("_RESOLVE_S", "_LEAST_RESOLVE_S"),
    "probe.address_search": ("_ANSWER_S",),
    "run.host_addresses": ("_RESOLVE_S",),
    "targets.remote_defaults": ("_RESOLVE_S",),
    "targets.kubernetes.manifest.wait_for_hosts": ("_LAST_ROUND_S",),
}


def _transfer() -> None:
    ends_at = time.monotonic() + 0.1
    transfer(f"http://{NAME}/", Path("part"), 1, idle_s=0.1, ends_at=ends_at, on_bytes=lambda number: None)


ASKING: dict[str, tuple[Callable[[], object], str]] = {
    "query": (lambda: resolver.query(NAME, 80, timeout_s=0.1), "NoAnswerError: the resolver of this host has not"),
    "names.resolve": (lambda: names.resolve(NAME, 0.1).addresses, "None"),
    "an agent for its controller": (lambda: address_search.resolve_in_thread(NAME), "NoAnswerError: the resolver"),
    "an agent for its peers": (lambda: agent_main._address([NAME] * 3, needed=False), ""),
    "mpirun and Slurm": (lambda: remote_defaults.own_address([NAME] * 1_000), "None"),
    "hosts of the request": (lambda: addresses_of([f"{number}.{NAME}" for number in range(300)]), "{}"),
    "a download": (_transfer, "BrokenTransferError: gave no complete answer within 0.1 s"),
    "a launcher pod": (
        lambda: wait_for_hosts.wait([f"{number}.{NAME}" for number in range(100)], 22, 0.1)[f"0.{NAME}"],
        "its name server has not answered for 0 s",
    ),
}
"""What is called, and how what it says begins."""


def shorten(set_limit: Callable[[object, str, float], None]) -> None:
    """Make all limits short."""
    for module, limits in _LIMITS.items():
        for limit in limits:
            set_limit(sys.modules[f"seatrial.{module}"], limit, 0.1)


def said_by(ask: Callable[[], object]) -> str:
    """Return what a function returns or raises."""
    try:
        return str(ask())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _serve() -> None:
    """Answer each question on this machine by UDP that the answer is too large for it, and by TCP not at all."""
    by_udp, by_tcp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.create_server(("127.0.0.1", 53))
    by_udp.bind(("127.0.0.1", 53))
    kept = []

    def accept() -> None:
        while True:
            kept.append(by_tcp.accept())

    def answer() -> None:
        while True:
            question, address = by_udp.recvfrom(4096)
            by_udp.sendto(question[:2] + b"\x83\x80" + question[4:6] + bytes(6) + question[12:], address)

    for work in (accept, answer):
        threading.Thread(target=work, daemon=True).start()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise InterruptedError


def main() -> None:
    """Print a line for each of ``ASKING``, and one for a question that a signal interrupts."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("nameserver 127.0.0.1\n")
        file.flush()
        subprocess.run(["mount", "--bind", file.name, "/etc/resolv.conf"], check=True)
        _serve()
        shorten(setattr)
        for what, (ask, _) in ASKING.items():
            print(f"{what}={said_by(ask)}", flush=True)
        signal.signal(signal.SIGALRM, _interrupt)
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGALRM)).start()
        print(f"a signal={said_by(lambda: resolver.query(NAME, None, timeout_s=50.0))}")


if __name__ == "__main__":
    main()
