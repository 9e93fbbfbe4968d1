"""Two ranks of a training in pods of which the first one gets its name late; a program, and a name server.

    unshare --net --mount python ranks_behind_dns.py FOLDER

The pods are in the namespace "team". Somebody else has a Service RUN-0 in a namespace RUN, with a store behind it, to
which the second entry of the search path of a pod leads. Prints as JSON what was asked, how the ranks ended, what they
said, and whether the stranger got a connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

_SERVER, _STRANGER, FIRST = "10.1.1.1", "10.9.9.9", "10.244.1.5"
NAME = "trial-0.trial.team.svc.cluster.local"
_OF_STRANGER = "trial-0.trial.svc.cluster.local"
_RESOLV_CONF = f"search team.svc.cluster.local svc.cluster.local cluster.local\nnameserver {_SERVER}\noptions ndots:5\n"
_PORT = 22_200
_LATE_S = 6.0
"""The second rank has asked at least once by then: it begins 1 to 2 s after its start, and pauses for 2.5 s."""
_TIMEOUT_S = 40.0
_RANK = f"""
import sys, torch.distributed as dist
from seatrial.rank.device import open_device
from seatrial.worker.rendezvous import form_world
print("begins", flush=True)
store = form_world("env://", rank=int(sys.argv[1]), world_size=2, backend="gloo", device=open_device("cpu", 0, 1),
                   timeout_s={_TIMEOUT_S})
dist.barrier()
print("met", flush=True)
"""


class _Names:
    """The name server of a cluster, which remembers nothing."""

    def __init__(self) -> None:
        self.zone = {_OF_STRANGER: _STRANGER}
        self.asked: list[str] = []
        self._server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._server.bind((_SERVER, 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            question, sender = self._server.recvfrom(4096)
            number, flags = struct.unpack_from(">HH", question)
            labels, place = [], 12
            while length := question[place]:
                labels.append(question[place + 1 : place + 1 + length].decode())
                place += 1 + length
            name = ".".join(labels).lower()
            (kind,) = struct.unpack_from(">H", question, place + 1)
            self.asked.append(name)
            address = self.zone.get(name)
            record = b""
            if address and kind == 1:
                record = struct.pack(">HHHIH", 0xC00C, 1, 1, 30, 4) + socket.inet_aton(address)
            reply = 0x8480 | (flags & 0x100) | (0 if address else 3)
            head = struct.pack(">HHHHHH", number, reply, 1, bool(record), 0, 0)
            self._server.sendto(head + question[12 : place + 5] + record, sender)


def _rank(rank: int) -> subprocess.Popen[str]:
    environ = {
        **{name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME")},
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "MASTER_ADDR": "trial-0.trial",
        "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return subprocess.Popen(
        [sys.executable, "-c", _RANK, str(rank)],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def main(folder: Path) -> None:
    """Do what the first lines say, in namespaces that end with this process."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in (_SERVER, _STRANGER, FIRST):
        subprocess.run(["ip", "addr", "add", f"{address}/24", "dev", "lo"], check=True)
    (folder / "resolv.conf").write_text(_RESOLV_CONF)
    subprocess.run(["mount", "--bind", str(folder / "resolv.conf"), "/etc/resolv.conf"], check=True)
    names, visits = _Names(), 0
    ranks: list[subprocess.Popen[str]] = []
    try:
        # The first rank listens on all addresses, those of the stranger too here.
        with socket.create_server((_STRANGER, _PORT)) as stranger:
            ranks.append(_rank(1))
            assert ranks[0].stdout is not None
            ranks[0].stdout.readline()
            stranger.settimeout(_LATE_S)
            with contextlib.suppress(TimeoutError):
                stranger.accept()
                visits += 1
        early = [*names.asked]
        ranks.append(_rank(0))
        names.zone[NAME] = FIRST
        # One that has met the stranger waits for its answer for ever.
        said = [] if visits else [rank.communicate(timeout=2 * _TIMEOUT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    codes = [rank.returncode for rank in ranks]
    print(json.dumps({"early": early, "asked": names.asked, "codes": codes, "said": said, "visits": visits}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
