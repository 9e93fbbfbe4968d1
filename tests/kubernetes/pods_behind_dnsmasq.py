"""The commands of two pods of a job behind a real DNS server that remembers for 30 s what was not there; a program.

    unshare --net --mount python pods_behind_dnsmasq.py FOLDER

One dnsmasq holds the names of the cluster, another one answers the pods and keeps negative answers, as CoreDNS does
(``cache 30``). Somebody asks for the name of the first pod before it is there. It appears 4 s after both pods have
begun, and stays hidden until the answer is forgotten. Prints what was asked as JSON; the output of each pod is in
FOLDER/podN.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

_DOMAIN = "team.svc.cluster.local"
_NAME = f"trial-0.trial.{_DOMAIN}"
_RESOLV_CONF = f"search {_DOMAIN} svc.cluster.local cluster.local\nnameserver 10.1.1.1\noptions ndots:5\n"
_POD = "10.244.1.5"
_NEGATIVE_TTL_S = 30
_KNOWN_AFTER_S = 4.0
_END_S = 150.0


def main(folder: Path) -> None:
    """Do what the first lines say, in namespaces that end with this process."""
    for words in (
        ["link", "set", "lo", "up"],
        ["addr", "add", "10.1.1.1/24", "dev", "lo"],
        ["addr", "add", f"{_POD}/24", "dev", "lo"],
    ):
        subprocess.run(["ip", *words], check=True)
    (folder / "resolv.conf").write_text(_RESOLV_CONF)
    subprocess.run(["mount", "--bind", str(folder / "resolv.conf"), "/etc/resolv.conf"], check=True)
    (folder / "names").write_text("")
    servers, pods = _servers(folder), list[subprocess.Popen[bytes]]()
    try:
        _await(lambda: _asked(folder, "started"))
        # Somebody asks too early.
        subprocess.run(["getent", "hosts", f"{_NAME}."], check=False, timeout=20)
        # The second pod is often the first to run.
        pods = [_pod(folder, number) for number in (1, 0)]
        time.sleep(_KNOWN_AFTER_S)
        (folder / "names").write_text(f"{_POD} {_NAME}\n")
        servers[0].send_signal(signal.SIGHUP)
        codes = [pod.wait(timeout=_END_S) for pod in pods]
    finally:
        for process in (*pods, *servers):
            process.kill()
            process.wait()
    print(
        json.dumps(
            {
                "codes": codes,
                "queries": _asked(folder, " query["),
                "denied from memory": [line for line in _asked(folder, " cached ") if "NXDOMAIN" in line],
            }
        )
    )


def _servers(folder: Path) -> list[subprocess.Popen[bytes]]:
    both = ["dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", "--bind-interfaces", "--user=root"]
    both += ["--pid-file=", "--listen-address=10.1.1.1"]
    names = ["--port=5353", "--local=/cluster.local/", f"--addn-hosts={folder / 'names'}"]
    cache = ["--port=53", "--server=10.1.1.1#5353", f"--neg-ttl={_NEGATIVE_TTL_S}", "--log-queries"]
    return [subprocess.Popen([*both, *names]), subprocess.Popen([*both, *cache, f"--log-facility={folder / 'log'}"])]


def _pod(folder: Path, number: int) -> subprocess.Popen[bytes]:
    home = folder / f"home{number}"
    home.mkdir()
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ["PYTHONPATH"],
        "HOME": str(home),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "SEATRIAL_JOIN_TIMEOUT_S": "120",
        "SEATRIAL_NNODES": "2",
        "SEATRIAL_NPROC_PER_NODE": "1",
        "SEATRIAL_NODE_RANK": str(number),
        "SEATRIAL_NODE_NAME": f"node-{number}",
        "SEATRIAL_TOKEN": "not-a-real-token-of-thirty-letters",
        "JOB_COMPLETION_INDEX": str(number),
        "MASTER_ADDR": "trial-0.trial",
        "MASTER_PORT": "21587",
    }
    command = [sys.executable, "-m", "seatrial", "run", "smoke", "--device", "cpu", "--only", "inventory,collectives"]
    with open(folder / f"pod{number}", "wb") as said:
        return subprocess.Popen(
            command, cwd=home, env=environ, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
        )


def _asked(folder: Path, words: str) -> list[str]:
    file = folder / "log"
    return [line for line in file.read_text().splitlines() if words in line] if file.exists() else []


def _await(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not condition():
        if time.monotonic() > until:
            sys.exit("dnsmasq does not start")
        time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
