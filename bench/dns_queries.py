"""How many questions the agents of 1,000 pods ask of DNS until they know their controller's name.

    python bench/dns_queries.py

Needs root and dnsmasq. In a network namespace and a mount namespace of this process alone, one dnsmasq holds the names
and another answers the agents and keeps negative answers for 30 s, as CoreDNS does in a cluster. The name of the
controller appears 20 s after the agents have begun, which the cache hides for up to 30 s more. Each agent is a thread
with the product's own search, which asks glibc's resolver; the server's log counts the queries, A and AAAA apart.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from harness import write_result

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
from seatrial.probe.address_search import AddressSearch

AGENTS = 1_000
KNOWN_AT_S = 20.0
GIVE_UP_S = 110.0
_DOMAIN = "team.svc.cluster.local"
_RESOLV_CONF = f"search {_DOMAIN} svc.cluster.local cluster.local\nnameserver 10.1.1.1\noptions ndots:5\n"
_INSIDE = "SEATRIAL_BENCH_INSIDE"
_TRY_S = 0.2


def main() -> None:
    if _INSIDE not in os.environ:
        enter = ["unshare", "--net", "--mount", sys.executable, __file__]
        sys.exit(subprocess.run(enter, env={**os.environ, _INSIDE: "1"}, check=False).returncode)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for words in (["ip", "link", "set", "lo", "up"], ["ip", "addr", "add", "10.1.1.1/24", "dev", "lo"]):
            subprocess.run(words, check=True)
        (folder / "resolv.conf").write_text(_RESOLV_CONF)
        subprocess.run(["mount", "--bind", str(folder / "resolv.conf"), "/etc/resolv.conf"], check=True)
        servers = _start_servers(folder)
        try:
            _measure(folder, servers[0])
        finally:
            for server in servers:
                server.kill()
                server.wait()


def _start_servers(folder: Path) -> list[subprocess.Popen[bytes]]:
    (folder / "hosts").write_text("")
    both = ["dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", "--bind-interfaces", "--user=root"]
    both += ["--dns-forward-max=100000", "--pid-file=", "--listen-address=10.1.1.1"]
    holder = [*both, "--port=5353", "--local=/cluster.local/", f"--addn-hosts={folder / 'hosts'}"]
    cache = [*both, "--port=53", "--server=10.1.1.1#5353", "--neg-ttl=30", "--cache-size=10000"]
    cache += ["--log-queries", f"--log-facility={folder / 'log'}"]
    servers = [subprocess.Popen(argv) for argv in (holder, cache)]
    time.sleep(1.0)
    return servers


def _measure(folder: Path, holder: subprocess.Popen[bytes]) -> None:
    found: dict[int, float] = {}
    began = time.monotonic()

    def agent(node_rank: int) -> None:
        pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
        search = AddressSearch("trial-0.trial", node_rank, environ=pod)
        while time.monotonic() - began < GIVE_UP_S:
            if search.addresses():
                found[node_rank] = time.monotonic() - began
                return
            time.sleep(_TRY_S)

    threading.stack_size(256 << 10)
    agents = [threading.Thread(target=agent, args=(number,)) for number in range(1, AGENTS + 1)]
    for thread in agents:
        thread.start()
    time.sleep(max(0.0, KNOWN_AT_S - (time.monotonic() - began)))
    (folder / "hosts").write_text(f"10.244.1.5 trial-0.trial.{_DOMAIN}\n")
    holder.send_signal(signal.SIGHUP)
    for thread in agents:
        thread.join()
    lines = (folder / "log").read_text().splitlines()
    queries = [line for line in lines if " query[" in line]
    by_second = Counter(line[:15] for line in queries)
    names = sorted({match[1] for line in queries if (match := re.search(r"query\[\w+\] (\S+) ", line))})
    last_s = max(found.values(), default=GIVE_UP_S)
    result = {
        "agents": AGENTS,
        "agents_that_found_it": len(found),
        "name_appears_after_s": KNOWN_AT_S,
        "negative_answers_kept_s": 30,
        "negative_answers_from_the_cache": sum(" cached " in line and "NXDOMAIN" in line for line in lines),
        "median_agent_found_it_after_s": round(statistics.median(found.values()), 1) if found else None,
        "last_agent_found_it_after_s": round(last_s, 1),
        "queries": len(queries),
        "queries_per_agent": round(len(queries) / AGENTS, 2),
        "queries_per_agent_and_s": round(len(queries) / AGENTS / last_s, 3),
        "most_queries_in_one_s": max(by_second.values(), default=0),
        "names_asked_for": names,
    }
    for key, value in result.items():
        print(f"{key:30} {value}")
    print(write_result("dns_queries", "python bench/dns_queries.py", result))


if __name__ == "__main__":
    main()
