"""The time of the check network: 2,048 nodes simulated, one node's real connections, and real agents on hosts.

    sudo python bench/network.py

Writes ``results/network.json``. It takes three minutes and wants the machine for itself.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import write_result

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.simulated_network import Failure, network_evidence
from hosts import made_hosts
from live.test_network_on_hosts import FAULTS, NetworkFault, network_trial

from seatrial.checks.network.endpoint import Endpoint, reach
from seatrial.checks.network.judge import judge
from seatrial.checks.network.params import Params

_NODES = 2_048
_AT_ONCE = 64
_SHAPES: dict[str, Callable[[int, int], Failure]] = {
    "open": lambda source, target: None,
    "one node takes no connections": lambda source, target: "no answer" if target == 77 else None,
    "all closed": lambda source, target: "no answer",
    "two subnets closed to one another": lambda source, target: (
        "no answer" if (source < _NODES // 2) != (target < _NODES // 2) else None
    ),
}


def _judged() -> list[dict[str, Any]]:
    """Time the judge, which the conductor calls twice and the report once."""
    half = _NODES // 2
    addresses = [f"10.{1 + (node >= half)}.{node >> 8}.{node & 255}" for node in range(_NODES)]
    rows = []
    for shape, failure in _SHAPES.items():
        evidence = network_evidence(_NODES, failure, addresses=addresses)
        started, cpu = time.perf_counter(), time.process_time()
        ruling = judge(evidence, Params())
        taken = {"judge_s": round(time.perf_counter() - started, 2), "cpu_s": round(time.process_time() - cpu, 2)}
        culprits = [finding.culprit.name[:80] for finding in ruling.findings]
        rows.append({"nodes": _NODES, "shape": shape, **taken, "culprits": culprits})
    return rows


def _connected() -> dict[str, Any]:
    """Time one node's connections to 2,047 others, all of which this process also answers."""
    endpoint = Endpoint()
    port = endpoint.run(endpoint.listen("127.0.0.1"), 5.0)
    assert port is not None

    async def connect_all() -> int:
        queue, failed = iter(range(_NODES - 1)), 0

        async def work() -> None:
            nonlocal failed
            for _ in queue:
                result = await reach("127.0.0.1", port, endpoint.identity, 3.0)
                failed += result.failure is not None

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        return failed

    started, cpu = time.perf_counter(), time.process_time()
    failed = endpoint.run(connect_all(), 120.0)
    return {
        "connections": _NODES - 1,
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_s_of_both_ends": round(time.process_time() - cpu, 2),
        "failed": failed,
    }


def _on_hosts(count: int, fault: str) -> dict[str, Any]:
    with made_hosts(count) as hosts:
        row = FAULTS[fault]
        row.plant(hosts)
        report = network_trial(hosts, NetworkFault(options=row.options))
    steps = [step for step in report["steps"] if step["check"] == "network"]
    return {
        "hosts": count,
        "planted": fault,
        "seconds": {step["stage"]: step["seconds"] for step in steps},
        "verdict": report["acceptance"]["status"],
    }


def main() -> None:
    """Measure and write the result."""
    result = {
        "judge": _judged(),
        "one_node": _connected(),
        "hosts": [
            _on_hosts(4, "none"),
            _on_hosts(4, "node2 takes no connections"),
            _on_hosts(12, "none"),
            _on_hosts(12, "all are closed"),
        ],
    }
    print(write_result("network", "python bench/network.py", result))


if __name__ == "__main__":
    main()
